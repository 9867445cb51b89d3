"""Plain functions run in threads: once, side by side, beside the loop, and can be ended there."""

from __future__ import annotations

import asyncio
import contextvars
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

from mx_rmq import Context, LeaseLost, RedisMessageQueue, Retry
from mx_rmq.worker.threads import Ended, Threads
from tests.words import ONE_SERVER, dead, drained, eventually, in_state

if TYPE_CHECKING:
    from tests.words import MakeQueue

ONCE = Retry(1)


@ONE_SERVER
async def test_a_plain_function_runs_exactly_once_per_message(mq: RedisMessageQueue) -> None:
    seen: list[int] = []

    @mq.handler("t")
    def on_t(payload: int) -> None:
        seen.append(payload)

    await mq.start()
    await mq.produce_many("t", range(200))
    await drained(mq)
    assert sorted(seen) == list(range(200))
    assert (await mq.counts()).topics["t"].completed == 200


@ONE_SERVER
async def test_plain_functions_run_side_by_side_and_beside_the_loop(mq: RedisMessageQueue) -> None:
    """All eight meet at a barrier, while an async handler goes on."""
    meeting = threading.Barrier(8 + 1)
    done: list[int] = []

    @mq.handler("plain", concurrency=7)
    def plain(payload: int) -> None:
        meeting.wait(timeout=15)

    @mq.handler("last")
    def last(payload: int) -> None:
        meeting.wait(timeout=15)

    @mq.handler("async")
    async def beside(payload: int) -> None:
        done.append(payload)

    await mq.start()
    ids = await mq.produce_many("plain", range(7))
    await eventually(lambda: meeting.n_waiting == 7)
    await mq.produce("async", 1)
    await eventually(lambda: done == [1])
    await mq.produce("last", 1)
    await eventually(lambda: meeting.n_waiting == 8)
    await asyncio.to_thread(meeting.wait, 15)
    await drained(mq)
    assert [(await mq.find(id_)).state for id_ in ids] == ["gone"] * 7


@ONE_SERVER
async def test_a_plain_function_has_a_context_too(mq: RedisMessageQueue) -> None:
    seen: list[Any] = []

    @mq.handler("t", timeout=0.1, retry=ONCE)
    def on_t(payload: int, ctx: Context) -> None:
        ctx.extend(60)
        seen.append((ctx.message_id, ctx.attempt, 50 < ctx.remaining <= 60, ctx.lost.is_set()))
        time.sleep(0.3)

    await mq.start()
    await mq.produce("t", 1, message_id="A1")
    await in_state(mq, "A1", "gone")
    assert seen == [("A1", 1, True, False)]


@ONE_SERVER
async def test_context_variables_of_the_middleware_are_seen_in_the_thread(mq: RedisMessageQueue) -> None:
    trace: contextvars.ContextVar[str] = contextvars.ContextVar("trace")
    seen: list[str] = []

    @mq.middleware
    async def tracing(call_next: Any, payload: Any, context: Context) -> Any:
        trace.set(context.message_id)
        return await call_next(payload, context)

    @mq.handler("t")
    def on_t(payload: int) -> None:
        seen.append(trace.get())

    await mq.start()
    await mq.produce("t", 1, message_id="A1")
    await eventually(lambda: seen == ["A1"])


@ONE_SERVER
async def test_a_plain_function_past_its_timeout_is_ended_in_its_thread(mq: RedisMessageQueue) -> None:
    ended: list[BaseException] = []

    @mq.handler("t", timeout=0.1, retry=ONCE)
    def on_t(payload: int) -> None:
        try:
            while True:
                time.sleep(0.001)
        except Exception:  # the usual way to survive everything
            ended.append(ValueError())
        except BaseException as error:
            ended.append(error)
            raise

    await mq.start()
    await mq.produce("t", 1, message_id="A1")
    letter = await dead(mq, "A1")
    assert letter.kind == "TimeoutError"
    assert [type(error) for error in ended] == [Ended]


@ONE_SERVER
async def test_a_function_that_hangs_in_a_c_call_times_out_and_blocks_nobody(make_queue: MakeQueue) -> None:
    """It cannot be interrupted, but its message goes on, and so do the messages after it."""
    mq = make_queue(concurrency=2, lease=0.6)
    release = threading.Event()
    seen: list[int] = []

    @mq.handler("stuck", timeout=0.1, retry=ONCE)
    def stuck(payload: int) -> None:
        release.wait(30)

    @mq.handler("t", timeout=10, retry=ONCE)
    def on_t(payload: int) -> None:
        seen.append(payload)

    await mq.start()
    try:
        ids = await mq.produce_many("stuck", range(6))
        for id_ in ids:
            letter = await dead(mq, id_)
            assert (letter.reason, letter.kind) == ("failed", "TimeoutError")
            assert letter.message is not None
            assert (letter.message.attempts, letter.message.crashes) == (1, 0)
        await mq.produce_many("t", range(5))
        await eventually(lambda: sorted(seen) == list(range(5)))
    finally:
        release.set()


@ONE_SERVER
async def test_extend_in_a_thread_that_was_ended_is_too_late(mq: RedisMessageQueue) -> None:
    errors: list[BaseException] = []

    @mq.handler("t", timeout=0.1, retry=ONCE)
    def on_t(payload: int, ctx: Context) -> None:
        try:
            while True:
                time.sleep(0.001)
        except Ended:
            try:
                ctx.extend(10)
            except LeaseLost as error:
                errors.append(error)

    await mq.start()
    await mq.produce("t", 1, message_id="A1")
    assert (await dead(mq, "A1")).kind == "TimeoutError"
    assert len(errors) == 1


@ONE_SERVER
async def test_threads_are_used_again_and_end_with_the_worker(make_queue: MakeQueue) -> None:
    mq = make_queue(concurrency=2)
    names: set[int] = set()

    @mq.handler("t")
    def on_t(payload: int) -> None:
        names.add(threading.get_ident())

    before = _handler_threads()
    await mq.start()
    await mq.produce_many("t", range(50))
    await drained(mq)
    assert 1 <= len(_handler_threads() - before) <= 2
    await mq.stop()
    await eventually(lambda: not _handler_threads() - before)


async def test_a_call_ended_as_it_returns_strikes_nothing_that_comes_after() -> None:
    """The exception that ends it is raised in the thread, wherever that is: it must be here."""
    threads = Threads(patience=5)
    before = _handler_threads()
    for _ in range(300):
        begun = threading.Event()
        call = asyncio.create_task(threads.run(begun.set, ()))
        while not begun.is_set():
            await asyncio.sleep(0)
        call.cancel()
        await asyncio.wait([call])
        assert await threads.run(lambda: 42, ()) == 42
    assert len(_handler_threads() - before) == 1
    threads.close()


async def test_what_a_function_returns_and_raises_comes_out_as_it_is() -> None:
    threads = Threads(patience=5)
    assert await threads.run(lambda *args: args, (1, "two")) == (1, "two")

    def fail() -> None:
        raise SystemExit(3)

    with pytest.raises(SystemExit):
        await threads.run(fail, ())
    threads.close()


def _handler_threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name == "mx-rmq-handler"}
