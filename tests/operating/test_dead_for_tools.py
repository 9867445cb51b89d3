"""What tools need of the DLQ: counts before they ask, exact deletion, and records that cannot be put back."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from mx_rmq import ConfigError, MxRmqError
from mx_rmq.message import Death
from tests.words import bury

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from mx_rmq import RedisMessageQueue


async def test_what_matches_is_counted(queue: RedisMessageQueue, redis: Redis) -> None:
    await queue.produce_many("orders", range(5))
    await bury(redis, Death(reason="failed", error="KeyError: 'a'", kind="KeyError"), "orders")
    await queue.produce_many("mails", range(3))
    await bury(redis, Death(reason="failed", error="no KeyError at all", kind="ValueError"), "mails")
    (keys, values) = await queue.dlq.groups()
    assert await queue.dlq.count() == 8
    assert await queue.dlq.count(topic="mails") == 3
    assert await queue.dlq.count(group=keys.id) == 5
    assert await queue.dlq.count(topic="mails", group=keys.id) == 0
    assert await queue.dlq.count(error="KeyError") == 8
    assert await queue.dlq.count(error="KeyError", topic="orders") == 5
    assert await queue.dlq.count(error="KeyError", group=values.id) == 3
    assert await queue.dlq.count(topic="nosuch") == 0


async def test_what_is_in_no_group_is_counted_too(queue: RedisMessageQueue, redis: Redis) -> None:
    await queue.produce_many("orders", range(5))
    await bury(redis, topic="orders")
    await redis.delete("mx-rmq:{q}:dlq_groups")
    assert await queue.dlq.count() == 5
    assert await queue.dlq.count(topic="orders") == 5
    assert await queue.dlq.count(topic="mails") == 0


async def test_only_the_death_that_was_read_is_deleted(queue: RedisMessageQueue, redis: Redis) -> None:
    for id_ in ("a", "b"):
        await queue.produce("t", 1, message_id=id_)
    await bury(redis)
    first, second = [letter async for letter in queue.dlq.export()]
    await queue.dlq.replay(second.id)
    await bury(redis)
    again = await queue.dlq.get(second.id)
    assert again.died_at > second.died_at
    deleted = await queue.dlq.delete(first.id, second.id, died_at=[first.died_at, second.died_at])
    assert deleted == 1
    assert [letter.id for letter in (await queue.dlq.list()).letters] == [second.id]
    with pytest.raises(ConfigError, match="one time for each id, got 1 for 2"):
        await queue.dlq.delete("a", "b", died_at=[1.0])


async def test_a_record_that_cannot_be_put_back_holds_up_no_other(
    queue: RedisMessageQueue, redis: Redis
) -> None:
    await queue.produce_many("t", range(3))
    await bury(redis)
    records = [letter.as_dict() async for letter in queue.dlq.export()]
    await queue.dlq.purge()
    large = records[0] | {"id": "large", "body": "x" * (queue.config.max_bytes + 1)}
    refused: list[str] = []

    def refuse(error: MxRmqError) -> None:
        refused.append(type(error).__name__)

    result = await queue.dlq.restore([records[0], {}, large, *records[1:]], refused=refuse)
    assert result.restored == 3
    assert refused == ["ConfigError", "MessageTooLarge"]
