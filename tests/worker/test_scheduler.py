"""Delayed messages run at their time, in their order, whenever they were produced."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

import pytest

from mx_rmq import Context, RedisMessageQueue, Retry, RetryLater
from tests.words import drained, events, eventually, in_state

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from tests.words import MakeQueue


@pytest.fixture(autouse=True)
def _no_second_look(monkeypatch: pytest.MonkeyPatch) -> None:
    """A scheduler that is not woken sleeps for a minute."""
    monkeypatch.setattr("mx_rmq.worker.scheduler._LONGEST", 60.0)


@pytest.mark.one_shard
async def test_messages_run_in_the_order_in_which_they_are_due_and_never_before(
    make_queue: MakeQueue,
) -> None:
    """They are due a delay after they were produced, which may take a while on a busy machine."""
    mq = make_queue(concurrency=1)
    dues: list[float] = []
    early: list[float] = []

    @mq.handler("t")
    async def on_t(payload: float, ctx: Context) -> None:
        dues.append(ctx.created_at + payload)
        if time.time() < dues[-1] - 0.002:  # both are rounded to the ms
            early.append(payload)

    delays = [0.3, 0.1, 0.4, 0.2, 0.0]
    await mq.start()
    for delay in delays:
        await mq.produce("t", delay, delay=delay)
    await drained(mq)
    assert len(dues) == len(delays)
    assert dues == sorted(dues)
    assert early == []


async def test_a_sleeping_scheduler_is_woken_by_an_earlier_message(mq: RedisMessageQueue) -> None:
    seen: list[str] = []

    @mq.handler("t")
    async def on_t(payload: str) -> None:
        seen.append(payload)

    await mq.start()
    await mq.produce("t", "late", delay=3600)
    await asyncio.sleep(0.1)  # by now it sleeps
    await mq.produce("t", "middle", delay=0.3)
    await mq.produce("t", "early", delay=0.1)
    await eventually(lambda: seen == ["early", "middle"])


async def test_a_scheduler_with_nothing_to_do_is_woken_by_the_first_message(mq: RedisMessageQueue) -> None:
    seen: list[int] = []

    @mq.handler("t")
    async def on_t(payload: int) -> None:
        seen.append(payload)

    await mq.start()
    await asyncio.sleep(0.1)  # by now it sleeps
    for n in range(5):
        await mq.produce("t", n, delay=0.02)
        await eventually(lambda: len(seen) == n + 1)  # noqa: B023 - awaited within the turn


async def test_a_retry_wakes_the_scheduler_too(mq: RedisMessageQueue) -> None:
    attempts: list[int] = []

    @mq.handler("t", retry=Retry(10))
    async def on_t(payload: int, ctx: Context) -> None:
        attempts.append(ctx.attempt)
        if ctx.attempt < 4:
            raise RetryLater(0.05)

    await mq.start()
    await mq.produce("t", 1, delay=3600)
    await mq.produce("t", 1, message_id="A1")
    await in_state(mq, "A1", "gone")
    assert attempts == [1, 2, 3, 4]


async def test_with_many_workers_one_is_enough_to_wake(make_queue: MakeQueue) -> None:
    seen: list[int] = []
    queues = []
    for _ in range(3):
        mq = make_queue(poll=60)

        @mq.handler("t")
        async def on_t(payload: int) -> None:
            seen.append(payload)

        await mq.start()
        queues.append(mq)
    await asyncio.sleep(0.1)  # by now they all sleep
    await queues[0].produce("t", 0, delay=3600)
    for n in range(1, 5):
        await queues[n % 3].produce("t", n, delay=0.05)
        await eventually(lambda: len(seen) == n)  # noqa: B023 - awaited within the turn
    assert seen == [1, 2, 3, 4]


async def test_what_fell_due_while_nobody_was_there_runs_at_the_start(make_queue: MakeQueue) -> None:
    """More of it than one call promotes."""
    mq = make_queue()
    seen: list[int] = []

    @mq.handler("t")
    async def on_t(payload: int) -> None:
        seen.append(payload)

    await mq.produce_many("t", range(2500), delay=0.01)
    await asyncio.sleep(0.05)
    await mq.start()
    await drained(mq)
    assert sorted(seen) == list(range(2500))


async def test_a_delayed_message_without_a_topic_is_reported_and_stops_nobody(
    mq: RedisMessageQueue, redis: Redis, caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[int] = []

    @mq.handler("t")
    async def on_t(payload: int) -> None:
        seen.append(payload)

    await mq.produce("t", 1, message_id="poisoned", delay=0.05)
    await mq.produce("t", 2, message_id="good", delay=0.1)
    await redis.hdel("mx-rmq:{q}:payload", "poisoned:queue")
    await mq.start()
    await eventually(lambda: seen == [2])
    (record,) = events(caplog, "message.poisoned")
    assert (record.id, record.place) == ("poisoned", "delayed")


async def test_a_cancelled_delay_never_runs(mq: RedisMessageQueue) -> None:
    seen: list[str] = []

    @mq.handler("t")
    async def on_t(payload: str) -> None:
        seen.append(payload)

    await mq.start()
    await mq.produce("t", "cancelled", message_id="A1", delay=0.2)
    await mq.produce("t", "kept", delay=0.3)
    assert await mq.cancel("A1")
    await eventually(lambda: seen == ["kept"])
