"""What one message, one idle worker and one shard cost: the figures that ``sizing`` is made of."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, fields
from typing import Any

from benchmarks.bench import PAYLOAD, Bench, fresh, steady_cores
from benchmarks.idle import PROCESSES, running
from benchmarks.rows import Row
from mx_rmq import RedisMessageQueue
from mx_rmq.storage.queries import Queries

FEW, SOME, MANY = 10, 100, 1_000
"""Workers whose idle cost is measured. Of more than that, each costs no more; see worker/rounds.py."""
SETTLES = 12.0
"""Seconds until all workers have heard how many they are."""
LASTS = 15.0
"""Seconds for which idle workers are measured."""


@dataclass(frozen=True, slots=True)
class Costs:
    """All that ``sizing`` needs to know; times are in µs."""

    batched_server: float
    """Produced by ``produce_many`` and handled from a backlog: the least that a message can cost."""
    batched_client: float
    batched_wire: float
    batched_trips: float
    alone_server: float
    """Produced alone, handled and settled alone: the most."""
    alone_client: float
    alone_wire: float
    alone_trips: float
    pending: float
    delayed: float
    connections: float
    """Of an idle worker to each shard."""
    idle_of_few: float
    """In a second, of an idle worker on each shard."""
    idle_of_some: float
    idle_of_many: float


NAMES = {
    "batched_server": ("server CPU per message, in batches", "µs"),
    "batched_client": ("client CPU per message, in batches", "µs"),
    "batched_wire": ("wire per message, in batches", "bytes"),
    "batched_trips": ("reads by the server per message, in batches", ""),
    "alone_server": ("server CPU per message, alone", "µs"),
    "alone_client": ("client CPU per message, alone", "µs"),
    "alone_wire": ("wire per message, alone", "bytes"),
    "alone_trips": ("reads by the server per message, alone", ""),
    "pending": ("server memory per pending message", "bytes"),
    "delayed": ("server memory per delayed message", "bytes"),
    "connections": ("connections per worker and shard", ""),
    "idle_of_few": (f"server CPU per idle worker and shard, of {FEW:,}", "µs/s"),
    "idle_of_some": (f"server CPU per idle worker and shard, of {SOME:,}", "µs/s"),
    "idle_of_many": (f"server CPU per idle worker and shard, of {MANY:,}", "µs/s"),
}
"""How each of the costs is called in a row, and its unit."""


class NoCosts(Exception):
    """A run does not have all rows."""


def read(values: dict[str, float]) -> Costs:
    """The costs, by the names of their rows."""
    if missing := [name for name, _ in NAMES.values() if name not in values]:
        raise NoCosts(
            f"these rows are missing: {'; '.join(missing)}; make them with ./mx bench sizing --json"
        )
    return Costs(*(values[NAMES[field.name][0]] for field in fields(Costs)))


async def costs(scale: float, rounds: int) -> Iterator[Row]:
    """Measure all of it; a cost is the least of its rounds."""
    count = round(20_000 * scale)
    async with fresh() as bench:
        with steady_cores():
            batched = [await in_batches(bench, count) for _ in range(rounds)]
            alone = [await one_by_one(bench, max(10, count // 40)) for _ in range(rounds)]
        weights = [await weight(bench, count, delay) for delay in (0.0, 3600.0)]
        per_shard = await connections(bench)
    idle = [await idle_worker(workers, scale) for workers in (FEW, SOME, MANY)]
    values = [*least(batched), *least(alone), *weights, per_shard, *idle]
    return iter([Row(name, value, unit) for (name, unit), value in zip(NAMES.values(), values, strict=True)])


def least(rounds: list[list[float]]) -> list[float]:
    return [min(values) for values in zip(*rounds, strict=True)]


@asynccontextmanager
async def spent(bench: Bench, count: int) -> AsyncIterator[list[float]]:
    """For each message: µs of the server and of this process, bytes both ways, reads by the server."""
    found: list[float] = []
    before, busy = await used(bench), time.process_time()
    yield found
    after, mine = await used(bench), time.process_time() - busy
    server, wire, trips = ((late - early) / count for early, late in zip(before, after, strict=True))
    found += [server * 1e6, mine / count * 1e6, wire, trips]


async def used(bench: Bench) -> tuple[float, float, float]:
    info = await Queries(bench.store).info()
    cpu = float(info["used_cpu_user"]) + float(info["used_cpu_sys"])
    wire = float(info["total_net_input_bytes"]) + float(info["total_net_output_bytes"])
    return cpu, wire, float(info["total_reads_processed"])


@asynccontextmanager
async def started(
    bench: Bench, shards: int = 1, **options: Any
) -> AsyncIterator[tuple[Any, asyncio.Queue[int]]]:
    """A queue with a worker, and what its handler puts into a queue."""
    await bench.clear()
    handled: asyncio.Queue[int] = asyncio.Queue()
    mq = RedisMessageQueue(bench.url, name="bench", shards=shards, server_check="off", **options)

    @mq.handler("orders")
    async def on_order(payload: Any) -> None:
        handled.put_nowait(1)

    async with mq:
        await mq.start()
        yield mq, handled


async def in_batches(bench: Bench, count: int) -> list[float]:
    async with started(bench, concurrency=64) as (mq, handled):
        await mq.pause("orders")
        async with spent(bench, count) as found:
            await mq.produce_many("orders", (PAYLOAD for _ in range(count)))
            await mq.resume("orders")
            for _ in range(count):
                await handled.get()
            await mq.drain()
    return found


async def one_by_one(bench: Bench, count: int) -> list[float]:
    async with started(bench) as (mq, handled), spent(bench, count) as found:
        for _ in range(count):
            await mq.produce("orders", PAYLOAD)
            await handled.get()
        await mq.drain()
    return found


async def weight(bench: Bench, count: int, delay: float) -> float:
    """Bytes in memory for each message."""
    await bench.clear()
    async with RedisMessageQueue(bench.url, name="bench", server_check="off") as mq:
        before = await bench.memory()
        await mq.produce_many("orders", (PAYLOAD for _ in range(count)), delay=delay)
        return (await bench.memory() - before) / count


async def connections(bench: Bench) -> float:
    """How many more connections an idle worker has for each shard more."""
    has = []
    for shards in (2, 6):
        async with started(bench, shards):
            await asyncio.sleep(1.0)  # until all of them are open, and those of the other queue closed
            has.append(float((await Queries(bench.store).info())["connected_clients"]))
    return (has[1] - has[0]) / 4


async def idle_worker(workers: int, scale: float) -> float:
    """µs of the server in a second for each of some idle workers."""
    count, lasts = max(PROCESSES, round(workers * scale)), max(1.0, LASTS * scale)
    async with fresh() as bench:
        without = await cpu_in(bench, lasts / 3)
        async with running(bench, count, 1):
            await asyncio.sleep(max(1.0, SETTLES * scale))
            return max(0.0, await cpu_in(bench, lasts) - without) / count * 1e6


async def cpu_in(bench: Bench, seconds: float) -> float:
    """The part of a core that the server takes."""
    before = await bench.cpu()
    await asyncio.sleep(seconds)
    return (await bench.cpu() - before) / seconds
