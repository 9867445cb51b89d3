"""The server's cost per message as the queue grows, and what a message weighs."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from math import inf

from benchmarks.bench import BATCH, WORKER, Bench, batches, fill, fresh
from benchmarks.rows import Row
from mx_rmq.message import Death, encode_death
from mx_rmq.records import Replay
from mx_rmq.store import Store

_TURNS = 16

ERROR = encode_death(Death(reason="failed", error="ValueError: no", kind="ValueError"))


async def flatness(scale: float) -> AsyncIterator[Row]:
    rounds = max(10, round(150 * scale))
    sizes = [
        ("backlog", "1,000 to 1,000,000", 1_000, 1_000_000, fill, pass_through),
        ("in flight", "100 to 50,000", 100, 50_000, hold, pass_through),
        ("delayed", "1,000 to 1,000,000", 1_000, 1_000_000, delay, promote),
        ("DLQ", "100 to 100,000", 100, 100_000, bury, die_and_return),
    ]
    for what, span, small, large, prepare, cycle in sizes:
        async with fresh() as quiet, fresh() as busy:
            for bench, size in ((quiet, small), (busy, round(large * scale))):
                await prepare(bench.store, size)
                await cost(bench, cycle, rounds)  # a warm-up: the server's tables end their growth
            # The least of a few, since whatever else runs on the machine only adds; and in turns, so
            # that a slow moment of the machine meets both.
            few = many = inf
            for _ in range(_TURNS):
                few = min(few, await cost(quiet, cycle, rounds))
                many = min(many, await cost(busy, cycle, rounds))
        yield Row(f"server CPU per message, {what} of {small:,}", few * 1e6, "µs")
        yield Row(f"server CPU per message, {what} {span}", many / few, "x", "<= 1.5")


async def weight(scale: float) -> Iterator[Row]:
    count = round(100_000 * scale)
    async with fresh() as bench:
        before = await bench.memory()
        await fill(bench.store, count)
        after = await bench.memory()
    return iter([Row("server memory per pending message", (after - before) / count, "bytes", "<= 450")])


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
