from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from mx_rmq import ConfigError, RedisMessageQueue
from tests.words import bury, eventually

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from tests.words import MakeQueue


async def test_a_deleted_queue_leaves_no_key_and_others_keep_theirs(
    queue: RedisMessageQueue, make_queue: MakeQueue, redis: Redis
) -> None:
    await queue.produce("t", 1)
    await bury(redis)
    await queue.produce_many("t", [1, 2], priority="high")
    await queue.produce("later", 1, delay=60, remember=60)
    other = make_queue(name="qq")
    await other.produce("t", 1)
    await other.produce("u", 1)
    own = await redis.keys("mx-rmq:{q}:*")
    assert len(own) > 8
    theirs = set(await redis.keys("mx-rmq:{qq}:*"))
    assert await queue.delete() == len(own)
    assert set(await redis.keys("*")) == theirs
    assert await queue.delete() == 0
    assert not (await queue.produce("t", 1)).duplicate
    assert (await queue.counts()).pending == 1


async def test_a_queue_that_is_served_is_not_deleted(mq: RedisMessageQueue, make_queue: MakeQueue) -> None:
    worker = make_queue()
    worker.handler("t")(lambda payload: None)
    await worker.start()
    await mq.produce("elsewhere", 1)
    await eventually(mq.workers)
    with pytest.raises(ConfigError, match="a queue that is served cannot be deleted; stop its workers first"):
        await mq.delete()
    assert (await mq.counts()).pending == 1
    await worker.stop()
    assert await mq.delete() > 0
