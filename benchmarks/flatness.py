"""The server's cost per message as the queue grows, and what a message weighs."""

from __future__ import annotations

import shutil
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from math import inf
from pathlib import Path

from benchmarks.bench import BATCH, WORKER, Bench, batches, fill, fresh
from benchmarks.rows import Row
from mx_rmq.message import Death, encode_death
from mx_rmq.storage.contract import Replay
from mx_rmq.storage.queries import Queries
from mx_rmq.storage.store import Store

_TURNS = 16

ERROR = encode_death(Death(reason="failed", error="ValueError: no", kind="ValueError"))


@dataclass
class Span:
    """How a queue may grow, and what a message costs at each end: the least of a few measurements."""

    what: str
    small: int
    large: int
    prepare: Callable[[Store, int], Awaitable[None]]
    cycle: Callable[[Store], Awaitable[None]]
    few: float = inf
    many: float = inf


async def flatness(scale: float) -> Iterator[Row]:
    rounds = max(10, round(150 * scale))
    spans = [
        Span("backlog", 1_000, 1_000_000, fill, pass_through),
        Span("in flight", 100, 50_000, hold, pass_through),
        Span("delayed", 1_000, 1_000_000, delay, promote),
        Span("DLQ", 100, 100_000, bury, die_and_return),
    ]
    async with AsyncExitStack() as servers:
        ready = []
        for span in spans:
            quiet = await servers.enter_async_context(fresh())
            busy = await servers.enter_async_context(fresh())
            for bench, size in ((quiet, span.small), (busy, round(span.large * scale))):
                await span.prepare(bench.store, size)
                await cost(bench, span.cycle, rounds)  # a warm-up: the server's tables end their growth
            ready.append((span, quiet, busy))
        # In turns, so that a slow moment of the machine meets all; and it only ever adds.
        for _ in range(_TURNS):
            for span, quiet, busy in ready:
                span.few = min(span.few, await cost(quiet, span.cycle, rounds))
                span.many = min(span.many, await cost(busy, span.cycle, rounds))
    return (row for span in spans for row in rows(span))


def rows(span: Span) -> Iterator[Row]:
    name = f"server CPU per message, {span.what}"
    yield Row(f"{name} of {span.small:,}", span.few * 1e6, "µs")
    yield Row(f"{name} {span.small:,} to {span.large:,}", span.many / span.few, "x", "<= 1.5")


async def weight(scale: float) -> Iterator[Row]:
    count = round(100_000 * scale)
    rows = []
    async with fresh() as bench:
        weighed = await bytes_each(bench, count)
        rows.append(Row("server memory per pending message", weighed, "bytes", "<= 400"))
    if redis := shutil.which("redis-server"):
        async with fresh(Path(redis)) as bench:
            version = (await Queries(bench.store).info())["redis_version"]
            name = f"the same on Redis {version.partition('.')[0]}"
            rows.append(Row(name, await bytes_each(bench, count), "bytes", "<= 480"))
    return iter(rows)


async def bytes_each(bench: Bench, count: int) -> float:
    """The server's memory for each of so many pending messages."""
    before = await bench.memory()
    await fill(bench.store, count)
    return (await bench.memory() - before) / count


async def cost(bench: Bench, cycle: Callable[[Store], Awaitable[None]], rounds: int) -> float:
    """Seconds of the server's processor time per message, at a steady size of the queue."""
    before = await bench.cpu()
    for _ in range(rounds):
        await cycle(bench.store)
    return (await bench.cpu() - before) / (rounds * BATCH)


async def pass_through(store: Store) -> None:
    (batch,) = batches(BATCH)
    await store.produce("orders", batch)
    claim = await store.claim("orders", BATCH, lease=600, holder=WORKER)
    await store.complete("orders", [(delivery, 0.0) for delivery in claim.deliveries])


async def hold(store: Store, size: int) -> None:
    await fill(store, size)
    for _ in range(0, size, BATCH):
        await store.claim("orders", BATCH, lease=600, holder=WORKER)


async def delay(store: Store, size: int) -> None:
    for batch in batches(size, delay=3600.0):
        await store.produce_delayed("orders", batch)


async def promote(store: Store) -> None:
    (batch,) = batches(BATCH, delay=0.0)
    await store.produce_delayed("orders", batch)
    await store.promote()
    claim = await store.claim("orders", BATCH, lease=600, holder=WORKER)
    await store.complete("orders", [(delivery, 0.0) for delivery in claim.deliveries])


async def bury(store: Store, size: int) -> None:
    await fill(store, size)
    for _ in range(0, size, BATCH):
        claim = await store.claim("orders", BATCH, lease=600, holder=WORKER)
        await store.move_to_dlq("orders", [(delivery, b"", ERROR) for delivery in claim.deliveries])


async def die_and_return(store: Store) -> None:
    (batch,) = batches(BATCH)
    await store.produce("orders", batch)
    claim = await store.claim("orders", BATCH, lease=600, holder=WORKER)
    await store.move_to_dlq("orders", [(delivery, b"", ERROR) for delivery in claim.deliveries])
    await store.replay([Replay(message.id, ttl=600.0) for message in batch])
    claim = await store.claim("orders", BATCH, lease=600, holder=WORKER)
    await store.complete("orders", [(delivery, 0.0) for delivery in claim.deliveries])
