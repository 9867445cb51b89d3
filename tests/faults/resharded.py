"""A queue gets other numbers of shards again and again, under load, while workers are killed."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from mx_rmq import RedisMessageQueue
from tests.faults.arena import Arena
from tests.faults.programs import QUEUE
from tests.faults.run import Row, Run

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.faults.arena import Child
    from tests.faults.ledger import Event

ORDERED = "ordered"
KEYS = 6
WORKERS = 2
LEASE = 2.0
EVERY = 0.4


async def resharded(run: Run) -> Row:
    """From 2 to 5 to 3 shards, again and again.

    Messages of six keys go to a topic that one worker serves, one at a time and alive all the time, so that
    their order can be seen. Others, some of them delayed, go to a topic whose workers are killed.
    """
    numbers = [5, 3] * run.size(5, 1)
    plain, keyed = run.size(40_000, 4_000), run.size(2_000, 250)
    async with Arena.open(run) as arena:
        async with RedisMessageQueue(arena.url, name=QUEUE, server_check="off", shards=2):
            pass  # the first program that names a number decides
        seconds = 6.0 * len(numbers)
        producers = [
            arena.producer(
                f"k{n}", ({}, keyed), topic=ORDERED, callers=1, rate=keyed / seconds, sending={"key": f"k{n}"}
            )
            for n in range(KEYS)
        ]
        half = plain // 2
        producers += [
            arena.producer("now", ({}, half), callers=50, rate=half / seconds),
            arena.producer("later", ({}, half), callers=50, rate=half / seconds, sending={"delay": 1.0}),
        ]
        arena.worker({ORDERED: {}}, concurrency=1, lease=LEASE)
        options: dict[str, Any] = {"lease": LEASE, "crash_limit": 1000, "recovery_grace": 1.0}
        workers = [arena.worker(**options) for _ in range(WORKERS)]
        resharding = asyncio.create_task(_reshard(arena, numbers))
        kills = await _kill(arena, run, workers, options, resharding)
        await resharding
        for producer in producers:
            assert await producer.ended(120) == 0
        await arena.drained(within=180)
        events = arena.events()
        verdict = await arena.verdict()
        shards = [shard.name for shard in await arena.queue.shards()]
    late = _out_of_order(events)
    expected, way = half * 2 + keyed * KEYS, " → ".join(map(str, numbers))
    return Row(
        fault=f"2 → {way} shards under load, a worker killed every {EVERY * 1000:g} ms",
        messages=verdict.acked,
        kills=kills,
        lost=len(verdict.lost),
        duplicates=verdict.duplicates,
        recovery=None,
        figure="0 lost, 0 stored twice, order kept per key",
        seen=f"{verdict}; {late} out of order; {len(shards)} shards at the end",
        ok=verdict.ok
        and verdict.acked == expected
        and verdict.dead == verdict.live == late == 0
        and len(shards) == numbers[-1],
    )


async def _reshard(arena: Arena, numbers: Sequence[int]) -> None:
    for number in numbers:
        await asyncio.sleep(1.0)
        arena.run.tell(f"to {number} shards")
        await arena.queue.reshard(number)


async def _kill(
    arena: Arena, run: Run, workers: list[Child], options: dict[str, Any], until: asyncio.Task[None]
) -> int:
    """Kill workers and replace them until a task has ended; returns how many."""
    kills = 0
    while not until.done():
        await asyncio.wait([until], timeout=EVERY)
        victim = run.dice.randrange(WORKERS)
        workers[victim].kill()
        workers[victim] = arena.worker(**options)
        kills += 1
    return kills


def _out_of_order(events: Sequence[Event]) -> int:
    """How many messages of a key began after a later one."""
    latest: dict[str, int] = {}
    late = 0
    for event in sorted(events, key=lambda event: event.at):
        name, _, number = event.id.partition("-")
        if event.what == "start" and name.startswith("k"):
            late += int(number) < latest.get(name, 0)
            latest[name] = max(latest.get(name, 0), int(number))
    return late
