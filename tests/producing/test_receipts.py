"""A receipt is a string: wherever one is taken, it may be given, and so may any subclass of str."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum, StrEnum
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from mx_rmq import RedisMessageQueue
from tests.words import bury, in_order

if TYPE_CHECKING:
    from redis.asyncio import Redis


class Topic(StrEnum):
    ORDERS = "orders"


class OldTopic(str, Enum):  # noqa: UP042 - it formats as its name, so its value must be asked for
    ORDERS = "orders"


class Urgent(StrEnum):
    YES = "high"


@dataclass
class Child:
    parent: str
    others: list[str] = field(default_factory=list)
    by_name: dict[str, Any] = field(default_factory=dict)


class Link(msgspec.Struct):
    parent: str


async def payload_of(queue: RedisMessageQueue, id_: str) -> Any:
    facts = await queue.find(id_)
    assert facts.message is not None
    return msgspec.json.decode(facts.message.payload)


async def test_it_goes_into_ids_headers_and_payloads(queue: RedisMessageQueue) -> None:
    parent = await queue.produce("first", 1)
    child = await queue.produce(
        "second", {"parent": parent, parent: [parent]}, message_id=parent + ".2", headers={parent: parent}
    )
    facts = await queue.find(child)
    assert facts.message is not None
    assert facts.message.headers == {str(parent): str(parent)}
    assert await payload_of(queue, child) == {"parent": str(parent), str(parent): [str(parent)]}
    again = await queue.produce("first", 1, message_id=parent)
    assert again.duplicate
    assert again == parent
    assert await payload_of(queue, await queue.produce("third", again)) == parent


async def test_everyone_who_produces_takes_it(queue: RedisMessageQueue, redis: Redis) -> None:
    @queue.handler(Topic.ORDERS)
    async def on_order(order: Child) -> None: ...

    parent = await queue.produce("first", 1)
    options: dict[str, Any] = {"headers": {"parent": parent}, "priority": Urgent.YES}
    child = Child(parent, [parent], {parent: parent})
    made = [
        await queue.produce(Topic.ORDERS, child, **options),
        await queue.produce(OldTopic.ORDERS, child, **options),
        *await queue.produce_many(OldTopic.ORDERS, [child, child], **options),
        await on_order.produce(child, **options),
        *await on_order.produce_many([child], **options),
        queue.sync.produce(OldTopic.ORDERS, child, **options),
        *queue.sync.produce_many(OldTopic.ORDERS, [child], **options),
        await queue.produce(OldTopic.ORDERS, child, delay=60, **options),
    ]
    for id_ in made:
        facts = await queue.find(id_)
        assert facts.topic == "orders"
        assert facts.message is not None
        assert facts.message.topic == "orders"
        assert facts.message.priority == "high"
        assert facts.message.headers == {"parent": str(parent)}
        seen = on_order.payload_type.decode(facts.message.payload)
        assert seen == child
        assert type(seen.parent) is str
    assert await in_order(redis, "orders") == made[:-1]
    assert await payload_of(queue, await queue.produce("links", Link(parent))) == {"parent": parent}
    queue.sync.produce("first", [parent], message_id=parent + ".s")
    assert queue.sync.produce("first", 1, message_id=parent).duplicate


async def test_operators_take_it(queue: RedisMessageQueue, redis: Redis) -> None:
    dead = await queue.produce("t", 1)
    assert await bury(redis) == [dead]
    assert (await queue.dlq.get(dead)).id == dead
    assert await queue.dlq.replay(dead, payload={"parent": dead}) == 1
    assert await payload_of(queue, dead) == {"parent": dead}
    assert await bury(redis) == [dead]
    assert await queue.dlq.replay(dead) == 1
    assert await bury(redis) == [dead]
    assert await queue.dlq.delete(dead) == 1

    live = await queue.produce(OldTopic.ORDERS, 1)
    assert "no live worker" in await queue.explain(live)
    await queue.pause(OldTopic.ORDERS)
    assert (await queue.counts()).topics["orders"].paused
    await queue.resume(OldTopic.ORDERS)
    assert not (await queue.counts()).topics["orders"].paused
    assert await queue.cancel(live)
    await queue.produce(OldTopic.ORDERS, 1)
    await queue.produce(OldTopic.ORDERS, 1, delay=60)
    assert await queue.purge(OldTopic.ORDERS) == 2
    [report] = await queue.audit()
    assert report.clean


@pytest.mark.parametrize("bad", ["half \ud800", ["half \ud800"], {"half \ud800": 1}])
async def test_and_it_is_checked_as_any_other_string(queue: RedisMessageQueue, bad: Any) -> None:
    class Text(str):
        __slots__ = ()

    def as_text(value: Any) -> Any:
        if isinstance(value, str):
            return Text(value)
        return [Text(one) for one in value] if isinstance(value, list) else {Text(k): 1 for k in value}

    with pytest.raises(ValueError, match="lone surrogate"):
        await queue.produce("t", as_text(bad))
