"""The arena: a server, workers and producers as processes of their own, and the ledgers they write."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import re
import shutil
import signal
import tempfile
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

from redis.asyncio import Redis

from mx_rmq import RedisMessageQueue
from mx_rmq.storage.connection import Connection
from mx_rmq.storage.keys import Keys
from mx_rmq.storage.locate import Address
from mx_rmq.storage.resend import resend
from mx_rmq.urls import read_url
from tests.faults import programs
from tests.faults.ledger import Event, Ledger, read
from tests.faults.programs import QUEUE
from tests.faults.run import Run
from tests.faults.servers import Server
from tests.faults.verdict import Verdict, judge
from tests.harness import command

# Processes fork from one that has everything imported, so that many can be killed and replaced.
_spawn = multiprocessing.get_context("forkserver")
# With what a worker imports when it starts: where one is killed every 300 ms, that would be most of the load.
_spawn.set_forkserver_preload(["tests.faults.programs", "mx_rmq.worker.worker"])

TOPIC = "jobs"

_TAKEN_OVER = re.compile(r"'event': 'messages\.recovered'.*'previous': '[^']*\.(\d+)\.\w+', 'ids': \[(.*?)\]")
_FAILURES = re.compile(
    r"^\S+ ((?:again|runner\.failed|service\.failed|settle\.\w+|topic\.failed):? .*)", re.MULTILINE
)


class Child:
    """A process under test."""

    def __init__(self, target: Callable[..., None], *args: Any) -> None:
        self._process = _spawn.Process(target=target, args=args, daemon=True)
        self._process.start()
        self.killed_at: float | None = None

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process.is_alive()

    @property
    def code(self) -> int | None:
        """Its exit code, negative for a signal, None while it runs."""
        return self._process.exitcode

    def kill(self) -> None:
        """End it at once: no handler, no clean-up, no goodbye."""
        if self.alive:
            self.killed_at = time.monotonic()
            os.kill(self.pid, signal.SIGKILL)
            self._process.join()

    def term(self) -> None:
        """Ask it to stop."""
        self._signal(signal.SIGTERM)

    def pause(self) -> None:
        """Let it stand still."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let it go on."""
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):  # it may have died by itself, of a pill
            os.kill(self.pid, number)

    async def ended(self, within: float) -> int:
        """Wait until it has ended, and return its exit code."""
        await asyncio.to_thread(self._process.join, within)
        assert self.code is not None, f"process {self.pid} did not end within {within:g} s"
        return self.code


def _quick_disk() -> str | None:
    """Where files are synced at once; None if there is no such place.

    While a slow sync is under way, ``everysec`` lets the server answer before it writes its file. The kill of
    its process then undoes what it answered. That would be the server's fault, and the queue is on trial.
    """
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


class Rigged:
    """The primary of the queue, wherever it is at the moment: what a fault asks of a server that may move."""

    def __init__(self, url: str) -> None:
        self.url = url
        place = Address(read_url(url)).place(Keys(QUEUE).prefix)
        self._connection = Connection(place, timeout=5)

    async def execute_command(self, *args: Any) -> Any:
        """The reply to a command that may be sent twice."""
        reply = await resend(lambda: self._connection.execute_command(*args), patience=20)
        return dict(zip(reply[::2], reply[1::2], strict=True)) if args[0] == "HGETALL" else reply

    async def aclose(self) -> None:
        await self._connection.close()


class Arena:
    """One server and everybody who talks to it."""

    def __init__(self, run: Run, server: Server | Rigged, home: Path) -> None:
        self.run = run
        self.server: Any = server
        self.home = home
        self.url = server.url
        """Where workers and producers connect; set it to a proxy's to put that in between."""
        self.keys = Keys(QUEUE)
        self.redis: Any = server if isinstance(server, Rigged) else Redis(host="127.0.0.1", port=server.port)
        self.queue = RedisMessageQueue(server.url, name=QUEUE, server_check="off")
        self.children: list[Child] = []
        self._ledgers = home / "ledgers"
        self.logs = home / "logs"
        self._ledgers.mkdir()
        self.logs.mkdir()
        self.ledger = Ledger(self._ledgers)
        """For what the fault itself produces."""

    @classmethod
    @asynccontextmanager
    async def open(cls, run: Run, **settings: str | int) -> AsyncIterator[Arena]:
        """A fresh server with *settings*, without persistence unless they say so; everything ends with it."""
        home = Path(tempfile.mkdtemp(prefix="mx-f-", dir=_quick_disk() if "appendonly" in settings else None))
        try:
            with Server(home / "server", **{"appendonly": "no", **settings}) as server:
                arena = cls(run, server, home)
                try:
                    async with arena.queue:
                        yield arena
                finally:
                    arena.kill_all()
                    await arena.redis.aclose()
        finally:
            shutil.rmtree(home, ignore_errors=True)

    @classmethod
    @asynccontextmanager
    async def around(cls, run: Run, url: str) -> AsyncIterator[Arena]:
        """The servers at a URL, which the fault has started."""
        home = Path(tempfile.mkdtemp(prefix="mx-f-"))
        arena = cls(run, Rigged(url), home)
        try:
            async with arena.queue:
                yield arena
        finally:
            arena.kill_all()
            await arena.redis.aclose()
            shutil.rmtree(home, ignore_errors=True)

    # -- processes

    def worker(self, topics: dict[str, dict[str, Any]] | None = None, /, **options: Any) -> Child:
        """Start a worker; *topics* are the options of each handler, *options* those of its queue."""
        paths = str(self._ledgers), str(self.logs)
        return self._born(Child(programs.worker, *paths, self.url, topics or {TOPIC: {}}, options))

    def producer(
        self,
        name: str,
        *payloads: tuple[dict[str, Any], int],
        topic: str = TOPIC,
        callers: int = 50,
        rate: float | None = None,
        sending: dict[str, Any] | None = None,
        **options: Any,
    ) -> Child:
        """Start a producer of ``NAME-1``, ``NAME-2``, …: so many of each payload, in this order."""
        paths = str(self._ledgers), str(self.logs)
        args = name, topic, list(payloads), callers, rate, sending or {}, options
        return self._born(Child(programs.producer, *paths, self.url, *args))

    def sync_producer(
        self, name: str, payload: dict[str, Any], count: int, *, threads: int = 4, rate: float
    ) -> Child:
        """Start a producer that has no event loop."""
        paths = str(self._ledgers), str(self.logs)
        args = name, TOPIC, payload, count, threads, rate
        return self._born(Child(programs.sync_producer, *paths, self.url, *args))

    def restless(
        self, topics: dict[str, dict[str, Any]], count: int, longest: float, **options: Any
    ) -> Child:
        """Start a process in which *count* workers at a time come and go after *longest* seconds at most."""
        paths = str(self._ledgers), str(self.logs)
        return self._born(Child(programs.restless, *paths, self.url, topics, count, longest, options))

    def steady(self, *payloads: dict[str, Any], rate: float, topic: str = TOPIC, **options: Any) -> Child:
        """Start a producer that goes on until told to stop, and ends with an error at the first one."""
        paths = str(self._ledgers), str(self.logs)
        args = topic, list(payloads), rate, options
        return self._born(Child(programs.steady, *paths, self.url, *args))

    def spread(self, keys: dict[str, str], payload: dict[str, Any], *, rate: float, **options: Any) -> Child:
        """Start a producer of ``NAME-1``, ``NAME-2``, … with the key of each name, until told to stop."""
        paths = str(self._ledgers), str(self.logs)
        args = TOPIC, payload, keys, rate, 20, options
        return self._born(Child(programs.spread, *paths, self.url, *args))

    def _born(self, child: Child) -> Child:
        self.children.append(child)
        return child

    def kill_all(self) -> None:
        for child in self.children:
            if child.alive:
                child.resume()
                child.kill()

    def log_text(self) -> str:
        """What every process has logged."""
        return "\n".join(file.read_text(errors="replace") for file in self.logs.iterdir())

    def taken_over(self) -> dict[str, list[int]]:
        """The processes from which each message was taken over, as workers logged it."""
        pids: dict[str, list[int]] = defaultdict(list)
        for pid, ids in _TAKEN_OVER.findall(self.log_text()):
            for id_ in re.findall("'([^']+)'", ids):
                pids[id_].append(int(pid))
        return pids

    def failures(self) -> list[str]:
        """What producers were refused (``again …``) and what workers could not do, as they logged it."""
        return _FAILURES.findall(self.log_text())

    # -- what happened

    def events(self) -> list[Event]:
        """The ledgers as they are now."""
        return read(self._ledgers)

    def noted(self, child: Child, what: str) -> int:
        """How often something has happened in a process so far."""
        texts = (file.read_text() for file in self._ledgers.glob(f"{child.pid}.*"))
        return sum(f"\n{text}".count(f"\n{what} ") for text in texts)

    async def busy(self, *workers: Child, within: float = 30.0) -> None:
        """Wait until each of these workers has started something."""
        pids = {worker.pid for worker in workers}

        def all_started() -> bool:
            return pids <= {event.pid for event in self.events() if event.what == "start"}

        await eventually(all_started, within)

    async def open_messages(self) -> int:
        """How many messages are still to run."""
        return await open_messages(self.queue)

    async def produced(self) -> int:
        """How many messages the server has stored, by its own count."""
        counters = await command(self.redis, "HGETALL", self.keys.of_queue("counters"))
        return sum(int(n) for name, n in counters.items() if name.endswith(b":produced"))

    async def drained(self, within: float) -> float:
        """Wait until nothing is left to run; how long that took."""
        started = time.monotonic()
        while left := await self.open_messages():
            passed = time.monotonic() - started
            assert passed < within, f"{left} messages are left after {within:g} s\n{self.log_text()[-3000:]}"
            self.run.tell(f"{left:,} left")
            await asyncio.sleep(0.05)
        return time.monotonic() - started

    async def verdict(self) -> Verdict:
        """Judge, with all workers gone: the ledgers, the server, the audit, and a second drain."""
        self.kill_all()
        live, dead = await self._ids("payload"), await self._ids("dlq_payload")
        result = judge(self.events(), live, dead)
        for report in await self.queue.audit():
            result.findings += [f"{finding.kind} {finding.what}" for finding in report.findings]
        before = {event.id for event in self.events() if event.what == "start"}
        worker = self.worker()
        await asyncio.sleep(1.0)
        worker.kill()
        started = [event.id for event in self.events() if event.what == "start"]
        if not live:
            result.late = {id_ for id_ in started if id_ not in before}
        return result

    async def _ids(self, part: str) -> set[str]:
        shards = await self.queue._lifecycle.shards.now()
        found = [
            await shard.store.commands.execute_command("HKEYS", shard.keys.of_queue(part)) for shard in shards
        ]
        return {field.decode() for fields in found for field in fields if b":" not in field}


async def open_messages(mq: RedisMessageQueue) -> int:
    """How many messages of a queue are still to run.

    Counting takes several looks, between which a message may go from where it was not yet counted to
    where that was done; so none is left only if two counts in a row say so.
    """
    for _ in range(2):
        counts = await mq.counts()
        if left := counts.pending + counts.processing + counts.delayed:
            return left
    return 0


async def eventually(what: Callable[[], Any], within: float) -> float:
    """Wait until *what* says something true; how long that took."""
    started = time.monotonic()
    while not what():
        passed = time.monotonic() - started
        assert passed < within, f"not within {within:g} s"
        await asyncio.sleep(0.01)
    return time.monotonic() - started
