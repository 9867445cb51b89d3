"""What the benchmarks share: a server, steady cores, and ready-made messages."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from mx_rmq.message import Message, encode_message
from mx_rmq.payloads import encode_payload
from mx_rmq.producing.ids import new_id
from mx_rmq.storage.connection import Connection
from mx_rmq.storage.contract import NewMessage
from mx_rmq.storage.embedded import EmbeddedServer
from mx_rmq.storage.keys import Keys
from mx_rmq.storage.queries import Queries
from mx_rmq.storage.store import Store

PAYLOAD = {"order_id": "A-100", "amount": 99.5, "items": [1, 2, 3], "note": "x" * 38}
"""Just 100 bytes as JSON."""

BATCH = 100

WORKER = f"host.4711.{new_id()}"
"""A name such as workers have."""

_SPINNER = """
import os, select, sys
os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
while not select.select([sys.stdin], [], [], 0)[0]:
    for _ in range(1_000_000):
        pass
"""


@contextmanager
def steady_cores() -> Iterator[None]:
    """Keep the cores awake with processes that run only when nothing else does.

    On a virtual machine, waking a halted core costs more than a round trip to the server. For
    throughput only: now and then such a process is not preempted at once, which is nothing to a mean
    and everything to a p99.
    """
    spinners = []
    if hasattr(os, "SCHED_IDLE"):
        spinners = [
            subprocess.Popen([sys.executable, "-c", _SPINNER], stdin=subprocess.PIPE)
            for _ in range(os.cpu_count() or 1)
        ]
    try:
        yield
    finally:
        for spinner in spinners:
            spinner.communicate()


@contextmanager
def own_core(servers: Iterable[int]) -> Iterator[None]:
    """Keep this process on one core and servers, given by their process ids, on the others.

    For what compares the processor time of one process: it needs more for the same work while it is moved
    from core to core, or shares one with a server.
    """
    if not hasattr(os, "sched_setaffinity") or len(cores := os.sched_getaffinity(0)) < 2:
        yield
        return
    mine = {min(cores)}
    for server in servers:
        for thread in Path(f"/proc/{server}/task").iterdir():
            os.sched_setaffinity(int(thread.name), cores - mine)
    os.sched_setaffinity(0, mine)
    try:
        yield
    finally:
        os.sched_setaffinity(0, cores)


@dataclass
class Bench:
    """A fresh server with a raw store beside it."""

    server: EmbeddedServer
    store: Store

    @property
    def url(self) -> str:
        return self.server.url

    async def clear(self) -> None:
        await self.store.commands.execute_command("FLUSHALL", "SYNC")

    async def cpu(self) -> float:
        """Seconds of processor time the server has used."""
        info = await Queries(self.store).info()
        return float(info["used_cpu_user"]) + float(info["used_cpu_sys"])

    async def memory(self) -> int:
        return int((await Queries(self.store).info())["used_memory"])


@asynccontextmanager
async def fresh(binary: Path | None = None) -> AsyncIterator[Bench]:
    """A new server: the bundled Valkey, or another one."""
    with EmbeddedServer.open(binary=binary) as server:
        link = Connection(server.url, timeout=30)
        try:
            yield Bench(server, Store(link, Keys("bench")))
        finally:
            await link.close()


def message(topic: str = "orders", delay: float = 0.0) -> NewMessage:
    id_ = new_id()
    stored = Message(
        payload=encode_payload(PAYLOAD),
        created_at=round(time.time(), 3),
        ttl=604800.0,
    )
    return NewMessage(id_, encode_message(stored), ttl=604800.0, delay=delay)


def batches(count: int, delay: float = 0.0) -> Iterator[list[NewMessage]]:
    for start in range(0, count, BATCH):
        yield [message(delay=delay) for _ in range(min(BATCH, count - start))]


async def fill(store: Store, count: int, topic: str = "orders") -> None:
    """Make a backlog."""
    for batch in batches(count):
        await store.produce(topic, batch)


async def in_turns(rounds: int, *measures: Callable[[], Awaitable[float]]) -> list[tuple[float, ...]]:
    """A few measurements of each, in turns: a slow moment of the machine meets all that are compared."""
    measured = [[await measure() for measure in measures] for _ in range(rounds)]
    return list(zip(*measured, strict=True))


def ratio(measured: Sequence[float], limits: Sequence[float]) -> float:
    """How something compares with its limit: the median of the rounds, each of which measured both."""
    return median(value / limit for value, limit in zip(measured, limits, strict=True))
