"""How a handler ends decides what becomes of its message, and never what becomes of its runner."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING, Any

import pytest

from mx_rmq import Context, RedisMessageQueue, Reject, Retry, RetryLater
from mx_rmq.message import HISTORY_LIMIT
from tests.words import ONE_SERVER, dead, drained, events, eventually, in_state, is_sound

if TYPE_CHECKING:
    from tests.words import MakeQueue

pytestmark = pytest.mark.sharded

AT_ONCE = Retry(5, backoff="fixed", base=0)


async def test_a_normal_return_completes_the_message(mq: RedisMessageQueue) -> None:
    @mq.handler("t")
    async def on_t(payload: int) -> str:
        return "whatever it returns"

    await mq.start()
    await mq.produce("t", 1, message_id="A1")
    await in_state(mq, "A1", "gone")
    counts = await mq.counts()
    assert (counts.topics["t"].completed, counts.topics["t"].retried, counts.dead) == (1, 0, 0)


@pytest.mark.parametrize("most", [1, 2, 5])
async def test_a_failing_handler_runs_exactly_as_often_as_it_may(mq: RedisMessageQueue, most: int) -> None:
    attempts: list[int] = []

    @mq.handler("t", retry=Retry(most, backoff="fixed", base=0))
    async def on_t(payload: int, ctx: Context) -> None:
        attempts.append(ctx.attempt)
        raise KeyError("lost")

    await mq.start()
    await mq.produce("t", 1, message_id="A1")
    letter = await dead(mq, "A1")
    assert attempts == list(range(1, most + 1))
    assert (letter.reason, letter.kind, letter.error) == ("failed", "KeyError", "KeyError: 'lost'")
    assert letter.message is not None
    assert letter.message.attempts == len(letter.message.history) == most


async def test_success_after_failures_leaves_nothing_behind(mq: RedisMessageQueue) -> None:
    attempts: list[int] = []

    @mq.handler("t", retry=AT_ONCE)
    async def on_t(payload: int, ctx: Context) -> None:
        attempts.append(ctx.attempt)
        if ctx.attempt < 3:
            raise RuntimeError

    await mq.start()
    await mq.produce("t", 1, message_id="A1")
    await in_state(mq, "A1", "gone")
    assert attempts == [1, 2, 3]
    assert (await mq.counts()).dead == 0
    assert await is_sound(mq)


async def test_dead_goes_to_the_dlq_at_once_with_its_reason(mq: RedisMessageQueue) -> None:
    ran: list[int] = []

    @mq.handler("t", retry=AT_ONCE)
    async def on_t(payload: int) -> None:
        ran.append(payload)
        raise Reject("no such customer")

    await mq.start()
    await mq.produce("t", 1, message_id="A1")
    letter = await dead(mq, "A1")
    assert (letter.reason, letter.error, ran) == ("rejected", "no such customer", [1])
    assert letter.message is not None
    assert [attempt.error for attempt in letter.message.history] == ["no such customer"]


async def test_retry_later_waits_as_long_as_it_says(mq: RedisMessageQueue) -> None:
    @mq.handler("t", retry=AT_ONCE)
    async def on_t(payload: int) -> None:
        raise RetryLater(1000, "the bank is closed")

    await mq.start()
    await mq.produce("t", 1, message_id="A1")
    facts = await in_state(mq, "A1", "delayed")
    assert facts.message is not None
    assert facts.due_at is not None
    (attempt,) = facts.message.history
    assert attempt.error == "RetryLater: the bank is closed"
    assert 990 < facts.due_at - attempt.at < 1010


async def test_retry_later_counts_as_an_attempt(mq: RedisMessageQueue) -> None:
    attempts: list[int] = []

    @mq.handler("t", retry=Retry(3))
    async def on_t(payload: int, ctx: Context) -> None:
        attempts.append(ctx.attempt)
        raise RetryLater(0)

    await mq.start()
    await mq.produce("t", 1, message_id="A1")
    assert (await dead(mq, "A1")).kind == "RetryLater"
    assert attempts == [1, 2, 3]


async def test_errors_that_are_never_worth_it_are_not_tried_again(mq: RedisMessageQueue) -> None:
    ran: list[int] = []

    @mq.handler("t", retry=Retry(5, backoff="fixed", base=0, never=(ValueError,)))
    async def on_t(payload: int) -> None:
        ran.append(payload)
        raise UnicodeError if payload else RuntimeError

    await mq.start()
    await mq.produce("t", 1, message_id="never")
    assert (await dead(mq, "never")).kind == "UnicodeError"
    await mq.produce("t", 0, message_id="often")
    await dead(mq, "often")
    assert ran == [1, 0, 0, 0, 0, 0]


async def test_a_broken_retry_policy_costs_no_runner(mq: RedisMessageQueue) -> None:
    def broken(attempts: int, error: BaseException) -> float:
        raise ZeroDivisionError

    @mq.handler("t", retry=Retry(3, backoff=broken, base=0.01))
    async def on_t(payload: int) -> None:
        raise RuntimeError

    await mq.start()
    ids = await mq.produce_many("t", range(20))
    for id_ in ids:
        assert (await dead(mq, id_)).reason == "failed"


class Stop(BaseException):
    pass


@pytest.mark.parametrize(
    "error",
    [
        asyncio.CancelledError,
        SystemExit,
        KeyboardInterrupt,
        GeneratorExit,
        StopIteration,
        StopAsyncIteration,
        Stop,
    ],
)
@pytest.mark.parametrize("place", ["loop", "thread"])
@ONE_SERVER
async def test_no_exception_of_a_handler_ends_its_runner(
    make_queue: MakeQueue, error: type[BaseException], place: str
) -> None:
    """200 of each on 2 runners, in the loop and in threads; each is an attempt that failed."""
    mq = make_queue(concurrency=2)

    if place == "loop":

        @mq.handler("bad", retry=Retry(1))
        async def bad_in_loop(payload: int) -> None:
            raise error

    else:

        @mq.handler("bad", retry=Retry(1))
        def bad_in_thread(payload: int) -> None:
            raise error

    seen: list[int] = []

    @mq.handler("good")
    async def good(payload: int) -> None:
        seen.append(payload)

    ids = await mq.produce_many("bad", range(200))
    await mq.start()
    await eventually(lambda: _count_dead(mq, 200))
    assert (await mq.dlq.get(ids[0])).reason == "failed"
    await mq.produce_many("good", [1, 2, 3])
    await eventually(lambda: len(seen) == 3)
    assert (await mq.counts()).processing == 0


@pytest.mark.parametrize("wait", ["before", "not at all", "swallowed"])
async def test_a_handler_that_cancels_its_own_task_ends_nothing_else(
    make_queue: MakeQueue, wait: str
) -> None:
    """Above all if it ends before the request strikes: it would strike whatever the runner does next."""
    mq = make_queue(concurrency=2, prefetch=100)
    cancelled: list[int] = []

    @mq.handler("bad", retry=Retry(1))
    async def bad(payload: int) -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        if wait != "not at all":
            try:
                await asyncio.sleep(0)
            except asyncio.CancelledError:
                if wait == "before":
                    raise

    @mq.handler("good", retry=Retry(1))
    async def good(payload: int) -> None:
        try:
            await asyncio.sleep(0)
        except asyncio.CancelledError:
            cancelled.append(payload)
            raise

    for n in range(200):
        await mq.produce("bad", n)
        await mq.produce("good", n)
    await mq.start()
    await drained(mq)
    counts = await mq.counts()
    assert cancelled == []
    assert counts.topics["good"].completed == 200
    assert counts.topics["bad"].dead == (200 if wait == "before" else 0)


async def test_a_handler_that_cancels_its_task_when_it_is_long_over_ends_nothing_else(
    make_queue: MakeQueue,
) -> None:
    mq = make_queue(concurrency=2)
    tasks: set[asyncio.Task[Any]] = set()
    seen: list[int] = []

    @mq.handler("t")
    async def on_t(payload: int) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        seen.append(payload)

    await mq.start()
    for n in range(10):
        await mq.produce("t", n)
        await eventually(lambda: len(seen) == n + 1)  # noqa: B023 - awaited within the turn
        for task in tasks:
            task.cancel()
        await asyncio.sleep(0)
    assert seen == list(range(10))


async def test_an_error_whose_text_cannot_be_read_is_an_error_like_any_other(mq: RedisMessageQueue) -> None:
    class Unspeakable(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    @mq.handler("t", retry=Retry(1))
    async def on_t(payload: int) -> None:
        raise Unspeakable if payload else Reject("\ud800")

    await mq.start()
    await mq.produce("t", 1, message_id="A1")
    await mq.produce("t", 0, message_id="A2")
    assert (await dead(mq, "A1")).kind == "Unspeakable"
    assert (await dead(mq, "A2")).reason == "rejected"


async def test_the_history_is_bounded_and_travels_into_the_dlq(
    mq: RedisMessageQueue, caplog: pytest.LogCaptureFixture
) -> None:
    """When, which worker, how long, and what of the error fits into 500 characters."""
    most = HISTORY_LIMIT + 5

    @mq.handler("t", retry=Retry(most, backoff="fixed", base=0))
    async def on_t(payload: int, ctx: Context) -> None:
        raise RuntimeError(f"{ctx.attempt} " + "x" * 5000)

    await mq.produce("t", 1, message_id="A1")
    await mq.start()
    letter = await dead(mq, "A1")
    assert letter.message is not None
    history = letter.message.history
    assert letter.message.attempts == most
    assert len(history) == HISTORY_LIMIT
    numbers = [int(attempt.error.split()[1]) for attempt in history]
    assert numbers == list(range(most - HISTORY_LIMIT + 1, most + 1))
    assert {len(attempt.error) for attempt in history} == {len(letter.error)} == {500}
    (worker,) = {attempt.worker for attempt in history}
    assert worker.startswith(f"{mq.config.worker_name}.{os.getpid()}.")
    assert all(0 <= attempt.took < 10 for attempt in history)
    times = [attempt.at for attempt in history]
    assert times == sorted(times)
    assert letter.died_at - 60 < times[0] <= letter.died_at + 1


async def test_every_ending_is_logged_as_an_event_with_its_fields(
    mq: RedisMessageQueue, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "mx_rmq")

    @mq.handler("t", retry=Retry(2, backoff="fixed", base=0))
    async def on_t(payload: int) -> None:
        raise RuntimeError("boom")

    await mq.produce("t", 1, message_id="A1")
    await mq.start()
    await dead(mq, "A1")
    (retried,) = events(caplog, "message.retried")
    (died,) = events(caplog, "message.dead")
    assert (retried.topic, retried.id, retried.error) == ("t", "A1", "RuntimeError: boom")
    assert (died.topic, died.id, died.reason) == ("t", "A1", "failed")


async def _count_dead(mq: RedisMessageQueue, count: int) -> bool:
    return (await mq.counts()).dead == count
