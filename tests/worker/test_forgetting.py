"""Workers forget topics that are not used any more."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from tests.words import ONE_SERVER, complete, events, eventually, is_sound

if TYPE_CHECKING:
    import pytest
    from redis.asyncio import Redis

    from mx_rmq import RedisMessageQueue
    from mx_rmq.storage.embedded import EmbeddedServer
    from mx_rmq.worker.monitor import Monitor
    from tests.words import MakeQueue


async def monitor_of(mq: RedisMessageQueue) -> Monitor:
    """The monitor of a worker that serves the topic ``served``."""

    @mq.handler("served")
    async def handle(payload: int) -> None: ...

    await mq.start()

    async def listed() -> bool:
        return bool(await mq.workers())

    await eventually(listed)
    worker = mq._lifecycle.worker
    assert worker is not None
    (found,) = worker._monitors
    return found


async def test_topics_that_no_live_worker_serves_and_nothing_uses_are_forgotten(
    mq: RedisMessageQueue, redis: Redis, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "mx_rmq")
    for n in range(300):  # more than one call can look at
        await mq.produce(f"user-{n}", 1)
        await complete(redis, f"user-{n}")
    for topic in ("served", "waiting", "paused"):
        await mq.produce(topic, 1)
    await mq.pause("paused")
    await complete(redis, "paused")
    keeper = await monitor_of(mq)
    await keeper.forget_topics(0.0)
    assert len((await mq.counts()).topics) == 303
    await keeper.forget_topics(0.0)
    assert list((await mq.counts()).topics) == ["paused", "served", "waiting"]
    (record,) = events(caplog, "topics.forgotten")
    assert len(record.topics) == 300
    assert "300 topics that were empty and unused for a day" in record.getMessage()
    assert await is_sound(mq)


async def test_a_topic_that_was_used_within_the_day_is_kept(mq: RedisMessageQueue, redis: Redis) -> None:
    await mq.produce("t", 1)
    await complete(redis)
    keeper = await monitor_of(mq)
    for _ in range(3):
        await keeper.forget_topics()
    assert (await mq.counts()).topics["t"].completed == 1


async def test_the_look_is_made_with_the_other_housekeeping(mq: RedisMessageQueue, redis: Redis) -> None:
    """Once an hour, beginning at a random point of it."""
    await mq.produce("t", 1)
    await complete(redis)
    keeper = await monitor_of(mq)
    assert 0 <= keeper._forgets_at - asyncio.get_running_loop().time() <= 3600
    keeper._forgets_at = 0.0

    async def noted() -> bool:
        return bool(await redis.hexists("mx-rmq:{q}:counters", "t:idle_since"))

    await eventually(noted)
    assert keeper._forgets_at - asyncio.get_running_loop().time() > 3000


@ONE_SERVER
async def test_a_worker_without_the_right_to_look_goes_on_without(
    make_queue: MakeQueue, redis: Redis, server: EmbeddedServer, caplog: pytest.LogCaptureFixture
) -> None:
    await redis.acl_setuser("few", enabled=True, nopass=True, keys=["*"], commands=["+@all", "-smembers"])
    mq = make_queue(server.url.replace("//", "//few:any@"))
    try:
        keeper = await monitor_of(mq)
        await keeper.forget_topics(0.0)
        await keeper.step()
        assert not events(caplog, "service.failed")
    finally:
        await mq.close()
        await redis.acl_deluser("few")
