"""Which shard a message belongs to, by its key or its id."""

from __future__ import annotations

import re
from collections import defaultdict
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pytest

from mx_rmq import InvalidName, Retry
from mx_rmq.storage.shard import shard_number
from tests.words import dead, eventually

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from mx_rmq import RedisMessageQueue
    from tests.words import MakeQueue


async def shard_of(redis: Redis, id_: str, shards: int = 8, part: str = "payload") -> int:
    """The number of the only shard that has a message."""
    found = [n for n in range(shards) if await redis.hexists(f"mx-rmq:{{q:{n}}}:{part}", id_)]
    assert len(found) == 1, found
    return found[0]


@pytest.fixture
async def eight(make_queue: MakeQueue) -> RedisMessageQueue:
    mq = make_queue(shards=8)
    await mq.open()
    return mq


async def test_the_key_decides_the_shard_and_the_id_without_one(
    eight: RedisMessageQueue, redis: Redis
) -> None:
    plain = await eight.produce("t", 1)
    assert await shard_of(redis, plain) == shard_number(plain, 8)
    keyed = [await eight.produce("t", n, key="customer-7") for n in range(5)]
    keyed += await eight.produce_many("t", range(5), key="customer-7")
    keyed += [
        eight.sync.produce("t", 9, key="customer-7"),
        *eight.sync.produce_many("t", [1], key="customer-7"),
    ]
    assert {await shard_of(redis, id_) for id_ in keyed} == {shard_number("customer-7", 8)}


async def test_a_handlers_produce_takes_a_key(eight: RedisMessageQueue, redis: Redis) -> None:
    @eight.handler("t")
    async def handle(n: int) -> None: ...

    id_ = await handle.produce(1, key=17)
    assert await shard_of(redis, id_) == shard_number("17", 8)


@pytest.mark.parametrize(("key", "text"), [(7, "7"), (UUID(int=5), str(UUID(int=5))), ("a:b/c", "a:b/c")])
async def test_a_key_may_be_what_an_id_may_be(eight: RedisMessageQueue, key: Any, text: str) -> None:
    found = await eight.find(await eight.produce("t", 1, key=key))
    assert found.message is not None
    assert found.message.key == text


@pytest.mark.parametrize("key", ["", "a b", "x" * 129, 1.5, b"k", "a:queue"])
async def test_another_key_is_refused(eight: RedisMessageQueue, key: Any) -> None:
    with pytest.raises(InvalidName, match="a key must be 1 to 128 letters"):
        await eight.produce("t", 1, key=key)


async def test_a_message_with_a_key_is_found_by_its_id(eight: RedisMessageQueue) -> None:
    """The shard to which the id leads is asked first, then the others."""
    ids = [await eight.produce("t", n, key="k", delay=60) for n in range(8)]
    for id_ in ids:
        found = await eight.find(id_)
        assert (found.state, found.as_dict()["key"]) == ("delayed", "k")
        assert re.search(r"^key +k$", str(found), re.MULTILINE)
        assert "is delayed" in await eight.explain(id_)
    assert await eight.cancel(ids[0])
    assert not await eight.cancel(ids[0])
    assert await eight.cancel_many([*ids, "nothing"]) == 7
    assert (await eight.find(ids[1])).state == "gone"


async def test_what_is_dead_keeps_its_key_through_replay_edit_and_restore(
    eight: RedisMessageQueue, redis: Redis
) -> None:
    home = shard_number("k", 8)

    @eight.handler("t", retry=Retry(max_attempts=1))
    async def handle(n: int) -> None:
        raise ValueError(n)

    ids = [str(await eight.produce("t", n, key="k")) for n in range(6)]
    await eight.start()
    for id_ in ids:
        await dead(eight, id_)
        assert await shard_of(redis, id_, part="dlq_payload") == home
    await eight.stop()
    assert await eight.dlq.replay(*ids[:2]) == 2
    assert await eight.dlq.replay(ids[2], payload=99) == 1
    assert {await shard_of(redis, id_) for id_ in ids[:3]} == {home}
    records = [letter.as_dict() async for letter in eight.dlq.export()]
    assert await eight.dlq.delete(*ids[3:5]) == 2
    assert await eight.dlq.purge() == 1
    assert (await eight.dlq.restore(records)).restored == 3
    assert {await shard_of(redis, id_, part="dlq_payload") for id_ in ids[3:]} == {home}
    assert {record["key"] for record in records} == {"k"}


async def test_messages_of_one_key_run_in_their_order(make_queue: MakeQueue) -> None:
    """As in a queue with one shard: one at a time here, so that the order can be seen."""
    mq = make_queue(shards=8, concurrency=1, prefetch=50)
    seen: dict[str, list[int]] = defaultdict(list)

    @mq.handler("t")
    async def handle(payload: list[Any]) -> None:
        seen[payload[0]].append(payload[1])

    for n in range(40):
        for key in "abcdef":
            await mq.produce("t", [key, n], key=key)
    await mq.start()
    await eventually(lambda: sum(map(len, seen.values())) == 240)
    assert all(numbers == sorted(numbers) for numbers in seen.values())


async def test_ids_are_spread_evenly(eight: RedisMessageQueue, redis: Redis) -> None:
    await eight.produce_many("t", range(4000))
    sizes = [await redis.llen(f"mx-rmq:{{q:{n}}}:t:pending") for n in range(8)]
    assert sum(sizes) == 4000
    assert min(sizes) > 350


async def test_receipts_come_in_the_order_of_the_payloads(eight: RedisMessageQueue) -> None:
    for receipts in (await eight.produce_many("t", range(2000)), eight.sync.produce_many("u", range(2000))):
        assert receipts == sorted(receipts)
        for n in (0, 777, 1999):
            assert (await eight.find(receipts[n])).payload == n


async def test_an_id_of_ones_own_is_taken_whatever_shard_it_leads_to(eight: RedisMessageQueue) -> None:
    for n in range(20):
        assert not (await eight.produce("t", n, message_id=f"m{n}")).duplicate
        assert (await eight.produce("t", n, message_id=f"m{n}")).duplicate
