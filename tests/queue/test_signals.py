"""``run()`` inside a program that has signal handlers of its own, such as a web server."""

from __future__ import annotations

import asyncio
import signal
import sys
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest

from mx_rmq.signals import on_signals
from tests.words import ONE_SERVER

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from mx_rmq import RedisMessageQueue
    from mx_rmq.storage.embedded import EmbeddedServer

START = """
import asyncio, signal, sys
from mx_rmq import RedisMessageQueue

def say(*words):
    print(*words, flush=True)

signal.signal(signal.SIGINT, signal.default_int_handler)  # whatever the parent thinks of it
mq = RedisMessageQueue(sys.argv[1], name="q", server_check="off", concurrency=int(sys.argv[2]))

@mq.handler("t")
async def on_t(seconds: float) -> None:
    say("running")
    await asyncio.sleep(seconds)
    say("handled")
"""
WEB_SERVER = """
class Server:
    should_exit = False

    def handle_exit(self, number, frame):
        say("told", signal.Signals(number).name)
        self.should_exit = True

async def main():
    server = Server()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, server.handle_exit)
    worker = asyncio.create_task(mq.run())
    while not server.should_exit:
        await asyncio.sleep(0.01)
    await worker
    assert signal.getsignal(signal.SIGTERM) == signal.getsignal(signal.SIGINT) == server.handle_exit
    say("ended")

asyncio.run(main())
"""
ON_THE_LOOP = """
async def main():
    told = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, told.set)
    worker = asyncio.create_task(mq.run())
    await told.wait()
    say("told SIGTERM")
    await worker
    told.clear()
    signal.raise_signal(signal.SIGTERM)
    await told.wait()
    say("ended")

asyncio.run(main())
"""
UNTIL_IDLE = """
asyncio.run(mq.run(until_idle=True))
say("ended")
"""
EXITS = """
signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
asyncio.run(mq.run())
"""
HANGS = """
import time
from mx_rmq import events, signals

signals._MORE = 3.0
mq = RedisMessageQueue(sys.argv[1], name="q", server_check="off", stop_grace=0.2)
events.listen(lambda event, _: say(event.name, event.signal, event.place), events.LoopIgnoresStop)

@mq.handler("t")
async def on_t(seconds: float) -> None:
    say("running")
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        time.sleep(0.01)
    say("handled")

asyncio.run(mq.run())
say("ended")
"""


class Program:
    """A program that runs a worker, and does not outlive its test."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    async def says(self) -> str:
        assert self._process.stdout is not None
        return (await asyncio.wait_for(self._process.stdout.readline(), 20)).decode().strip()

    def send(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    async def code(self) -> int:
        return await asyncio.wait_for(self._process.wait(), 20)


@asynccontextmanager
async def a_program(script: str, url: str, *, concurrency: int = 8) -> AsyncIterator[Program]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", START + script, url, str(concurrency), stdout=asyncio.subprocess.PIPE
    )
    try:
        yield Program(process)
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


@ONE_SERVER
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_the_handler_of_a_web_server_is_told_too_and_is_there_again_afterwards(
    mq: RedisMessageQueue, server: EmbeddedServer, number: signal.Signals
) -> None:
    async with a_program(WEB_SERVER, server.url) as program:
        await mq.produce("t", 0.3, message_id="A1")
        assert await program.says() == "running"
        program.send(number)
        assert [await program.says() for _ in range(3)] == [f"told {number.name}", "handled", "ended"]
        assert await program.code() == 0
    assert (await mq.find("A1")).state == "gone"


@ONE_SERVER
async def test_so_is_a_handler_of_the_event_loop(mq: RedisMessageQueue, server: EmbeddedServer) -> None:
    async with a_program(ON_THE_LOOP, server.url) as program:
        await mq.produce("t", 0.3)
        assert await program.says() == "running"
        program.send(signal.SIGTERM)
        assert [await program.says() for _ in range(3)] == ["told SIGTERM", "handled", "ended"]
        assert await program.code() == 0


@ONE_SERVER
async def test_a_handler_that_exits_does_so_after_the_worker_has_stopped(
    mq: RedisMessageQueue, server: EmbeddedServer
) -> None:
    async with a_program(EXITS, server.url) as program:
        await mq.produce("t", 0.3, message_id="A1")
        assert await program.says() == "running"
        program.send(signal.SIGTERM)
        assert await program.says() == "handled"
        assert await program.code() == 7
    assert (await mq.find("A1")).state == "gone"


@ONE_SERVER
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_ends_a_process_whose_event_loop_hangs_and_says_where(
    mq: RedisMessageQueue, server: EmbeddedServer, number: signal.Signals
) -> None:
    async with a_program(HANGS, server.url) as program:
        await mq.produce("t", 60)
        assert await program.says() == "running"
        program.send(number)
        name, heard, place = (await program.says()).split(" ", 2)
        assert (name, heard) == ("loop.ignores_stop", number.name)
        assert place.endswith(" in on_t")
        assert await program.code() == 1


@ONE_SERVER
async def test_an_event_loop_that_reacts_late_stops_as_ever(
    mq: RedisMessageQueue, server: EmbeddedServer
) -> None:
    async with a_program(HANGS, server.url) as program:
        await mq.produce("t", 1.5)
        assert await program.says() == "running"
        program.send(signal.SIGTERM)
        assert [await program.says() for _ in range(2)] == ["handled", "ended"]
        assert await program.code() == 0


@ONE_SERVER
async def test_a_signal_ends_a_run_before_it_is_idle(mq: RedisMessageQueue, server: EmbeddedServer) -> None:
    await mq.produce("t", 0.3, message_id="A1")
    await mq.produce("t", 0.3, message_id="A2")
    async with a_program(UNTIL_IDLE, server.url, concurrency=1) as program:
        assert await program.says() == "running"
        program.send(signal.SIGTERM)
        assert [await program.says(), await program.says()] == ["handled", "ended"]
        assert await program.code() == 0
    assert [(await mq.find(id_)).state for id_ in ("A1", "A2")] == ["gone", "pending"]


# -- here, where pytest has its own handlers


@pytest.fixture
def previous() -> Iterator[None]:
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.mark.usefixtures("previous")
async def test_a_signal_that_is_ignored_stays_ignored() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    told: list[int] = []
    with on_signals(lambda: told.append(1)):
        signal.raise_signal(signal.SIGTERM)
        await asyncio.sleep(0)
    assert told == []
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN


@pytest.mark.usefixtures("previous")
async def test_a_handler_that_was_set_inside_stays() -> None:
    def later(*_: object) -> None: ...

    with on_signals(lambda: None):
        signal.signal(signal.SIGTERM, later)
    assert signal.getsignal(signal.SIGTERM) is later


@pytest.mark.usefixtures("previous")
async def test_the_default_action_is_not_taken_but_is_there_again_afterwards() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    told = asyncio.Event()
    with on_signals(told.set):
        signal.raise_signal(signal.SIGTERM)
        await asyncio.wait_for(told.wait(), 5)
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


async def test_only_the_main_thread_gets_signals() -> None:
    before = signal.getsignal(signal.SIGTERM)

    async def run() -> bool:
        with on_signals(lambda: None):
            return signal.getsignal(signal.SIGTERM) is before

    assert await asyncio.to_thread(asyncio.run, run())
