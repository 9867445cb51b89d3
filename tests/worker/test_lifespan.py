"""The lifespan is open around all that a worker runs, once per worker, and its value is ``ctx.state``."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from mx_rmq import ConfigError, Context, RedisMessageQueue
from tests.words import ONE_SERVER, events, eventually, in_state

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

    from mx_rmq.storage.embedded import EmbeddedServer
    from tests.words import MakeQueue


class Steps:
    """A lifespan that writes down when it is entered and left."""

    def __init__(self) -> None:
        self.steps: list[str] = []

    @asynccontextmanager
    async def __call__(self, mq: RedisMessageQueue) -> AsyncIterator[dict[str, Any]]:
        self.steps.append("open")
        await mq.produce("log", "opened")  # the queue can be used
        yield {"pool": "P", "queue": mq}
        self.steps.append("close")


async def test_a_lifespan_is_open_before_the_first_handler_and_closed_after_the_last(
    make_queue: MakeQueue,
) -> None:
    lifespan = Steps()
    mq = make_queue(lifespan=lifespan, stop_grace=15)
    running = asyncio.Event()
    states: list[Any] = []

    @mq.handler("t")
    async def on_t(payload: int, ctx: Context) -> None:
        lifespan.steps.append("begin")
        states.append(ctx.state)
        running.set()
        await asyncio.sleep(0.1)
        lifespan.steps.append("end")

    await mq.produce("t", 1)
    for _ in range(2):  # once per worker
        await mq.start()
        await running.wait()
        await mq.stop()
        running.clear()
        assert lifespan.steps == ["open", "begin", "end", "close"]
        lifespan.steps.clear()
        await mq.produce("t", 1)
    assert states == [{"pool": "P", "queue": mq}] * 2


async def test_plain_functions_batches_and_middleware_have_the_state_too(make_queue: MakeQueue) -> None:
    @asynccontextmanager
    async def lifespan(mq: RedisMessageQueue) -> AsyncIterator[str]:
        yield "S"

    mq = make_queue(lifespan=lifespan)
    states: list[Any] = []

    @mq.middleware
    async def layer(call_next: Any, payload: Any, ctx: Any) -> Any:
        states.append((ctx[0] if isinstance(ctx, list) else ctx).state)
        return await call_next(payload, ctx)

    @mq.handler("plain")
    def plain(payload: int, ctx: Context) -> None:
        states.append(ctx.state)

    @mq.handler("batch", batch=2)
    async def batch(payloads: list[int], contexts: list[Context]) -> None:
        states.extend(context.state for context in contexts)

    await mq.start()
    await mq.produce("plain", 1)
    await mq.produce("batch", 1)
    await eventually(lambda: len(states) == 4)
    assert set(states) == {"S"}


async def test_without_a_lifespan_the_state_is_none(mq: RedisMessageQueue) -> None:
    states: list[Any] = []

    @mq.handler("t")
    async def on_t(payload: int, ctx: Context) -> None:
        states.append(ctx.state)

    await mq.start()
    await mq.produce("t", 1)
    await eventually(lambda: states == [None])


async def test_an_error_while_opening_makes_the_start_fail_with_it_and_nothing_runs(
    make_queue: MakeQueue, caplog: pytest.LogCaptureFixture
) -> None:
    @asynccontextmanager
    async def lifespan(mq: RedisMessageQueue) -> AsyncIterator[None]:
        raise ZeroDivisionError("no pool")
        yield

    mq = make_queue(lifespan=lifespan)
    ran: list[int] = []

    @mq.handler("t")
    async def on_t(payload: int) -> None:
        ran.append(payload)

    await mq.produce("t", 1, message_id="A1")
    with pytest.raises(ZeroDivisionError, match="no pool"):
        await mq.start()
    with pytest.raises(ZeroDivisionError, match="no pool"):
        await mq.run()
    (first,) = events(caplog, "worker.not_started")  # run() raises it and says no more
    assert first.error == "ZeroDivisionError: no pool"
    assert first.exc_info[0] is ZeroDivisionError
    await mq.open()
    assert (await mq.find("A1")).state == "pending"
    assert (ran, await mq.workers()) == ([], [])


async def test_an_error_while_closing_is_logged_and_the_stop_finishes(
    make_queue: MakeQueue, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "mx_rmq")

    @asynccontextmanager
    async def lifespan(mq: RedisMessageQueue) -> AsyncIterator[None]:
        yield
        raise ZeroDivisionError("no end")

    mq = make_queue(lifespan=lifespan)

    @mq.handler("t")
    async def on_t(payload: int) -> None: ...

    await mq.start()
    await mq.stop()
    (failed,) = events(caplog, "lifespan.failed")
    assert (failed.levelname, failed.error) == ("ERROR", "ZeroDivisionError: no end")
    assert failed.exc_info[0] is ZeroDivisionError
    assert events(caplog, "worker.stopped")


@ONE_SERVER
async def test_a_lifespan_that_does_not_close_does_not_hang_the_stop(
    make_queue: MakeQueue, caplog: pytest.LogCaptureFixture
) -> None:
    @asynccontextmanager
    async def lifespan(mq: RedisMessageQueue) -> AsyncIterator[None]:
        yield
        await asyncio.Event().wait()

    mq = make_queue(lifespan=lifespan, socket_timeout=0.3)

    @mq.handler("t")
    async def on_t(payload: int) -> None: ...

    await mq.start()
    await asyncio.wait_for(mq.stop(), 10)
    (failed,) = events(caplog, "lifespan.failed")
    assert failed.error == "it was not left in time, and cancelled"


async def test_a_stop_while_the_lifespan_opens_ends_it(make_queue: MakeQueue) -> None:
    opening = asyncio.Event()
    ended: list[str] = []

    @asynccontextmanager
    async def lifespan(mq: RedisMessageQueue) -> AsyncIterator[None]:
        opening.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("opening")
        yield

    mq = make_queue(lifespan=lifespan)

    @mq.handler("t")
    async def on_t(payload: int) -> None: ...

    starting = mq.start()
    await opening.wait()
    await mq.stop()
    assert starting.cancelled()
    assert ended == ["opening"]


async def test_a_task_group_in_a_lifespan_is_left_in_the_task_that_entered_it(
    make_queue: MakeQueue, caplog: pytest.LogCaptureFixture
) -> None:
    ticks: list[int] = []

    @asynccontextmanager
    async def lifespan(mq: RedisMessageQueue) -> AsyncIterator[None]:
        async def tick() -> None:
            while True:
                ticks.append(1)
                await asyncio.sleep(0.01)

        async with asyncio.TaskGroup() as group, asyncio.timeout(60):
            ticking = group.create_task(tick())
            yield
            ticking.cancel()

    mq = make_queue(lifespan=lifespan)

    @mq.handler("t")
    async def on_t(payload: int) -> None: ...

    await mq.start()
    await eventually(lambda: len(ticks) > 2)
    await mq.stop()
    assert not events(caplog, "lifespan.failed")


def test_what_is_no_context_manager_is_refused() -> None:
    async def generator(mq: Any) -> AsyncIterator[None]:
        yield

    async def coroutine(mq: Any) -> None: ...

    with pytest.raises(ConfigError, match="put @asynccontextmanager on generator"):
        RedisMessageQueue("embedded://", lifespan=generator)  # type: ignore[arg-type]
    for wrong in (coroutine, "lifespan", 5):
        with pytest.raises(
            ConfigError, match="lifespan must be a function with @asynccontextmanager, or None"
        ):
            RedisMessageQueue("embedded://", lifespan=wrong)  # type: ignore[arg-type]


async def test_a_blocking_context_manager_is_refused_at_the_start(make_queue: MakeQueue) -> None:
    @contextmanager
    def lifespan(mq: RedisMessageQueue) -> Iterator[None]:
        yield

    mq = make_queue(lifespan=lifespan)

    @mq.handler("t")
    async def on_t(payload: int) -> None: ...

    with pytest.raises(
        ConfigError, match="lifespan must be a function that returns an async context manager"
    ):
        await mq.start()


# -- in programs

MODULE = """
import os
from contextlib import asynccontextmanager
from mx_rmq import Context, RedisMessageQueue

def say(what, pid):
    os.write(1, f"{what} {pid}\\n".encode())  # one write, so that lines of two processes do not mix

@asynccontextmanager
async def lifespan(queue):
    say("open", os.getpid())
    yield os.getpid()
    say("close", os.getpid())

mq = RedisMessageQueue(URL, name="q", server_check="off", lifespan=lifespan)

@mq.handler("t")
async def on_t(payload: int, ctx: Context) -> None:
    say("run", ctx.state)
"""
RUNS: dict[str, str] = {
    "run": "import mx_rmq, shop; mx_rmq.run(shop.mq)",
    "run_processes": "import mx_rmq; mx_rmq.run_processes('shop:mq', 2)",
}


@ONE_SERVER
@pytest.mark.parametrize("how", RUNS)
async def test_each_process_opens_and_closes_its_own(
    how: str, mq: RedisMessageQueue, server: EmbeddedServer, tmp_path: Path
) -> None:
    (tmp_path / "shop.py").write_text(MODULE.replace("URL", repr(server.url)))
    processes = 2 if how == "run_processes" else 1
    path = [str(tmp_path), *sys.path]
    program = f"import sys; sys.path[:] = {path!r}; {RUNS[how]}"
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as process:
        try:

            async def all_there() -> bool:
                return len(await mq.workers()) == processes

            await eventually(all_there, within=30)
            await mq.produce("t", 1, message_id="A1")
            await in_state(mq, "A1", "gone")
        finally:
            process.send_signal(signal.SIGTERM)
        said, _ = await asyncio.to_thread(process.communicate)
    steps: dict[str, list[str]] = {}
    for line in said.splitlines():
        step, pid = line.split()
        steps.setdefault(pid, []).append(step)
    assert len(steps) == processes
    assert max(steps.values(), key=len) == ["open", "run", "close"]
    assert all(each[0] == "open" and each[-1] == "close" for each in steps.values())
