"""A key of the wrong type stops what needs that key, and no other recovery."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING

import pytest

from mx_rmq.errors import StoreError
from mx_rmq.storage.contract import Settled
from mx_rmq.worker.service import Service
from tests.harness import command
from tests.words import PREFIX, events, eventually, put_bytes, shard_at, store_of

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from mx_rmq import RedisMessageQueue
    from mx_rmq.storage.embedded import EmbeddedServer
    from tests.words import MakeQueue

pytestmark = pytest.mark.usefixtures("watchful")

MONITOR = PREFIX + "all_expire_monitor"
A_WHILE = 1.5
"""Seconds in which a monitor makes many steps, and its own leases of 0.5 s run out."""

LONG = 2.5
"""Seconds after which a service that fails each time waits longest between two steps."""


@pytest.fixture(autouse=True)
def _all_is_heard(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "mx_rmq")


def serving(mq: RedisMessageQueue) -> list[int]:
    seen: list[int] = []

    @mq.handler("b")
    async def on_b(payload: int) -> None:
        seen.append(payload)
        if payload < 0:
            await asyncio.Event().wait()

    return seen


async def leave_behind(mq: RedisMessageQueue, redis: Redis, *topics: str) -> None:
    """Let a worker that nothing is known of hold a message of each topic, for a moment."""
    for topic in topics:
        await mq.produce(topic, 1, message_id=f"{topic}1")
        claim = await store_of(redis).claim(topic, 5, lease=0.1, holder="ghost.1")
        assert len(claim.deliveries) == 1


async def spoil(redis: Redis, key: str) -> None:
    await redis.delete(PREFIX + key)
    await redis.set(PREFIX + key, "something else")


async def put_forward(redis: Redis, id_: str) -> None:
    """Let the lease that a monitor has be over."""
    await redis.zadd(MONITOR, {id_: time.time() * 1000 - 1})


# -- registrations


@pytest.mark.parametrize("when", ["before it starts", "while it is busy"])
@pytest.mark.parametrize("part", ["workers", "workers_seen", "workers_connections"])
async def test_a_worker_that_cannot_register_recovers_messages(
    make_queue: MakeQueue,
    redis: Redis,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    part: str,
    when: str,
) -> None:
    monkeypatch.setattr("mx_rmq.worker.monitor._INTERVAL", 0.5)  # a busy worker asks for a turn in each step
    monkeypatch.setattr("mx_rmq.worker.presence.REGISTER", 0.1)
    mq = make_queue(lease=0.5, stop_grace=0.0)
    seen = serving(mq)
    await mq.open()
    if when == "before it starts":
        await spoil(redis, part)
        await mq.start()
    else:
        await mq.produce("b", -1)
        await mq.start()
        await eventually(lambda: seen == [-1])
        await spoil(redis, part)
        await eventually(lambda: events(caplog, "server.unavailable"))
        await asyncio.sleep(LONG)
    await leave_behind(mq, redis, "c", "d")

    async def recovered() -> bool:
        return [await redis.hlen(f"{PREFIX}{topic}:processing") for topic in "cd"] == [0, 0]

    await eventually(recovered)
    await eventually(lambda: events(caplog, "server.unavailable"))
    (told,) = events(caplog, "server.unavailable")
    assert f"{PREFIX}{part} is a string" in told.error
    assert not events(caplog, "server.back")
    assert not events(caplog, "service.failed")
    await redis.delete(PREFIX + part)

    async def registered() -> bool:
        return [worker.connection > 0 for worker in await mq.workers()] == [True]

    await eventually(lambda: len(events(caplog, "server.back")) == 1)
    await eventually(registered)


async def test_a_refused_take_over_is_tried_again_though_the_worker_cannot_register(
    make_queue: MakeQueue, redis: Redis, caplog: pytest.LogCaptureFixture
) -> None:
    mq = make_queue(lease=0.3)
    serving(mq)
    await mq.start()
    assert mq._lifecycle.worker is not None
    (monitor,) = mq._lifecycle.worker._monitors
    await spoil(redis, "workers")
    await leave_behind(mq, redis, "c")
    monitor._calm.failed(StoreError("the disk was full"))
    await eventually(lambda: events(caplog, "messages.recovered"))


# -- settling


async def test_a_poisoned_topic_does_not_stop_the_recovery_of_another(
    make_queue: MakeQueue, redis: Redis, caplog: pytest.LogCaptureFixture
) -> None:
    mq = make_queue(lease=0.3)
    seen = serving(mq)
    await mq.open()
    await leave_behind(mq, redis, "a", "b", "c")
    await spoil(redis, "a:pending")
    await mq.start()
    await eventually(lambda: seen == [1])
    await asyncio.sleep(A_WHILE)
    assert [record.topic for record in events(caplog, "topic.failed")] == ["a"]
    assert sorted(record.topic for record in events(caplog, "messages.recovered")) == ["b", "c"]
    assert not events(caplog, "server.unavailable")
    lease = await command(redis, "HGET", PREFIX + "a:processing", "a1")
    assert lease.startswith(b"2@"), "taken over more than once"
    ends = await redis.zscore(MONITOR, "a1")
    assert ends is not None
    assert 50 < ends / 1000 - time.time() <= 60

    await redis.delete(PREFIX + "a:pending")
    await put_forward(redis, "a1")
    await eventually(lambda: len(events(caplog, "messages.recovered")) == 3)
    assert await redis.lrange(PREFIX + "a:pending", 0, -1) == [b"a1"]
    assert [record.topic for record in events(caplog, "topic.failed")] == ["a"]


async def test_a_message_is_told_dead_when_the_server_has_accepted_that(
    make_queue: MakeQueue, redis: Redis, caplog: pytest.LogCaptureFixture
) -> None:
    mq = make_queue(lease=0.3)
    seen = serving(mq)
    await mq.open()
    await mq.produce("a", 1, message_id="a1", ttl=0.05)
    await leave_behind(mq, redis, "b")
    await spoil(redis, "dlq")
    await mq.start()
    await eventually(lambda: seen == [1])
    await asyncio.sleep(A_WHILE)
    assert not events(caplog, "message.dead")
    assert not events(caplog, "server.unavailable")
    assert [record.topic for record in events(caplog, "topic.failed")] == ["a"]

    await redis.delete(PREFIX + "dlq")
    await put_forward(redis, "a1")
    await eventually(lambda: events(caplog, "message.dead"))
    assert [record.id for record in events(caplog, "message.dead")] == ["a1"]
    assert await redis.zrange(PREFIX + "dlq", 0, -1) == [b"a1"]


async def test_what_another_worker_settled_first_is_not_told(
    make_queue: MakeQueue, redis: Redis, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def stale(*_: object, **__: object) -> list[Settled]:
        return [Settled.STALE]

    monkeypatch.setattr("mx_rmq.worker.monitor.settle", stale)
    mq = make_queue(lease=0.3)
    serving(mq)
    await mq.open()
    await put_bytes(redis, "a1", b"no message", "a")
    await store_of(redis).claim("a", 1, lease=0.1, holder="ghost.1")
    await leave_behind(mq, redis, "c")
    await mq.start()
    await asyncio.sleep(A_WHILE)
    assert not events(caplog, "messages.recovered")
    assert not events(caplog, "message.dead")


# -- looks


async def test_a_key_that_keeps_the_monitor_from_looking_is_told_once(
    make_queue: MakeQueue, redis: Redis, caplog: pytest.LogCaptureFixture
) -> None:
    mq = make_queue(lease=0.3)
    serving(mq)
    await mq.open()
    await spoil(redis, "all_expire_monitor")
    await mq.start()

    async def registered() -> bool:
        return [worker.connection > 0 for worker in await mq.workers()] == [True]

    await eventually(registered)
    await asyncio.sleep(A_WHILE)
    told = [record.error for record in events(caplog, "server.unavailable")]
    assert len([each for each in told if each.startswith("handle_timeout_message")]) == 1
    assert all(f"{MONITOR} is a string" in each for each in told)
    assert not events(caplog, "server.back")
    assert not events(caplog, "service.failed")
    await redis.delete(MONITOR)
    await eventually(lambda: events(caplog, "server.back"))
    await leave_behind(mq, redis, "c")
    await eventually(lambda: events(caplog, "messages.recovered"))


async def test_a_refused_command_of_a_service_is_told_once(
    server: EmbeddedServer, caplog: pytest.LogCaptureFixture
) -> None:
    shard = shard_at(server.url)
    steps: list[None] = []

    class Refused(Service):
        async def step(self) -> float:
            steps.append(None)
            await shard.connection.execute_command("NO-SUCH-COMMAND")
            return 0.0

    service = Refused("refused", shard.availability, 0.1)
    task = asyncio.create_task(service.run())
    await eventually(lambda: len(steps) > 3)
    service.stop()
    await task
    await shard.close()
    assert len(events(caplog, "server.unavailable")) == 1
    assert not events(caplog, "service.failed")


async def test_retention_that_is_refused_is_told_once_and_stops_nothing(
    make_queue: MakeQueue, redis: Redis, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mx_rmq.worker.monitor._HOUSEKEEPING", 0.2)
    mq = make_queue(lease=0.3, dlq_max_count=5)
    seen = serving(mq)
    await mq.open()
    await leave_behind(mq, redis, "b", "c")
    await spoil(redis, "dlq")
    await mq.start()
    await eventually(lambda: seen == [1])
    await eventually(lambda: events(caplog, "messages.recovered"))
    await asyncio.sleep(A_WHILE)
    (told,) = events(caplog, "server.unavailable")
    assert f"{PREFIX}dlq is a string" in told.error
    assert not events(caplog, "server.back")
    await redis.delete(PREFIX + "dlq")
    await eventually(lambda: len(events(caplog, "server.back")) == 1)
