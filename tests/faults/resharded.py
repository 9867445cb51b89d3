"""A queue gets other numbers of shards, under load, again and again; workers and primaries are killed."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from mx_rmq import RedisMessageQueue, ServerUnavailable
from tests.faults.arena import Arena
from tests.faults.programs import QUEUE
from tests.faults.run import Row, Run
from tests.rigs.cluster import Cluster

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from tests.faults.arena import Child
    from tests.faults.ledger import Event
    from tests.faults.verdict import Verdict

ORDERED = "ordered"
KEYS = 6
WORKERS = 2
LEASE = 2.0
EVERY = 0.4
EVERY_IN_CLUSTER = 2.0
"""Seconds between two kills of workers where primaries are killed too: six servers share the machine."""
FOR_EACH = 6.0
"""Seconds that the messages for one change of the number are spread over."""


async def resharded(run: Run) -> Row:
    """From 2 to 5 to 3 shards, again and again, on one server."""
    numbers = [5, 3] * run.size(5, 1)
    plain, keyed = run.size(40_000, 4_000), run.size(2_000, 250)
    async with Arena.open(run) as arena:
        producers = await _busy(arena, plain, keyed, FOR_EACH * len(numbers))
        resharding = asyncio.create_task(_reshard(arena, numbers, arena.queue))
        kills = await _kill_workers(arena, EVERY, resharding)
        events, verdict, shards = await _end(arena, producers, resharding)
    late = _out_of_order(events)
    return Row(
        fault=f"2 → {_way(numbers)} shards under load, a worker killed every {EVERY * 1000:g} ms",
        messages=verdict.acked,
        kills=kills,
        lost=len(verdict.lost),
        duplicates=verdict.duplicates,
        recovery=None,
        figure="0 lost, 0 stored twice, order kept per key",
        seen=f"{verdict}; {late} out of order; {shards} shards at the end",
        ok=verdict.ok
        and verdict.acked == plain + keyed * KEYS
        and verdict.dead == verdict.live == late == 0
        and shards == numbers[-1],
    )


async def resharded_killed(run: Run) -> Row:
    """The same in a cluster, where a primary is killed during each change, and its replica takes over.

    What a worker was told of a completion may be unknown to the replica, so a message may run again.
    """
    numbers = [5, 3] * run.size(3, 1)
    plain, keyed = run.size(6_000, 1_000), run.size(600, 100)
    sending = {"durability": "replicated", "dedup_for": 300.0}
    with Cluster() as rig:
        async with (
            Arena.around(run, rig.url) as arena,
            RedisMessageQueue(
                rig.url, name=QUEUE, server_check="off", shards=2, durability="replicated"
            ) as operator,
        ):
            producers = await _busy(arena, plain, keyed, FOR_EACH * len(numbers), **sending)

            async def kill_primary() -> None:
                await asyncio.sleep(run.dice.uniform(0.0, 1.0))
                primary = run.dice.choice(rig.primaries())
                slot = rig.first_slot_of(primary)
                run.tell(f"{primary} killed")
                rig.kill(primary)
                await asyncio.to_thread(rig.wait_for_failover, slot, primary)
                await asyncio.to_thread(rig.mend)  # without a replica, no message is replicated

            resharding = asyncio.create_task(_reshard(arena, numbers, operator, kill_primary))
            kills = await _kill_workers(arena, EVERY_IN_CLUSTER, resharding)
            events, verdict, shards = await _end(arena, producers, resharding)
    late = _out_of_order(events, may_run_again=True)
    return Row(
        fault=f"2 → {_way(numbers)} shards under load in a cluster, kill -9 of a primary at each change, "
        f"a worker killed every {EVERY_IN_CLUSTER:g} s, durability='replicated'",
        messages=verdict.acked,
        kills=kills + len(numbers),
        lost=len(verdict.lost),
        duplicates=verdict.duplicates,
        recovery=None,
        figure="0 lost, order kept per key, the audit is clean",
        seen=f"{verdict}; {late} out of order; {shards} shards at the end",
        ok=not (verdict.lost or verdict.unexpected or verdict.findings or verdict.late)
        and verdict.acked == plain + keyed * KEYS
        and verdict.dead == verdict.live == late == 0
        and shards == numbers[-1],
    )


async def _busy(arena: Arena, plain: int, keyed: int, seconds: float, **sending: Any) -> list[Child]:
    """Start the workers, and the producers, which end by themselves; returns the producers.

    Messages of six keys go to a topic that one worker serves, one at a time and alive all the time, so that
    their order can be seen. Others, some of them delayed, go to a topic whose workers are killed.
    """
    async with RedisMessageQueue(arena.url, name=QUEUE, server_check="off", shards=2):
        pass  # the first program that names a number decides
    arena.worker({ORDERED: {}}, concurrency=1, lease=LEASE, crash_limit=1000)
    producers = [
        arena.producer(
            f"k{n}",
            ({}, keyed),
            topic=ORDERED,
            callers=1,
            rate=keyed / seconds,
            sending={"key": f"k{n}", **sending},
        )
        for n in range(KEYS)
    ]
    half = plain // 2
    return [
        *producers,
        arena.producer("now", ({}, half), callers=50, rate=half / seconds, sending=sending),
        arena.producer(
            "later", ({}, half), callers=50, rate=half / seconds, sending={"delay": 1.0, **sending}
        ),
    ]


async def _reshard(
    arena: Arena,
    numbers: Sequence[int],
    mq: RedisMessageQueue,
    meanwhile: Callable[[], Awaitable[None]] | None = None,
) -> None:
    """Change the number of shards from one to the next; called again, a reshard goes on."""
    for number in numbers:
        await asyncio.sleep(1.0)
        arena.run.tell(f"to {number} shards")
        beside = asyncio.ensure_future(meanwhile()) if meanwhile is not None else None
        while True:
            try:
                await mq.reshard(number)
                break
            except ServerUnavailable:
                assert beside is not None, "nothing else was done to the server"
                await asyncio.sleep(0.1)
        if beside is not None:
            await beside


async def _kill_workers(arena: Arena, every: float, until: asyncio.Task[None]) -> int:
    """Kill workers and replace them until a task has ended; returns how many."""
    options: dict[str, Any] = {"lease": LEASE, "crash_limit": 1000, "recovery_grace": 1.0}
    workers = [arena.worker(**options) for _ in range(WORKERS)]
    kills = 0
    while not until.done():
        await asyncio.wait([until], timeout=every)
        victim = arena.run.dice.randrange(WORKERS)
        workers[victim].kill()
        workers[victim] = arena.worker(**options)
        kills += 1
    return kills


async def _end(
    arena: Arena, producers: Sequence[Child], resharding: asyncio.Task[None]
) -> tuple[Sequence[Event], Verdict, int]:
    """Wait until all is done: what happened, the verdict, and how many shards there are."""
    await resharding
    for producer in producers:
        assert await producer.ended(120) == 0
    await arena.drained(within=180)
    events = arena.events()
    verdict = await arena.verdict()
    return events, verdict, len(await arena.queue.shards())


def _way(numbers: Sequence[int]) -> str:
    return " → ".join(map(str, numbers))


def _out_of_order(events: Sequence[Event], *, may_run_again: bool = False) -> int:
    """How many messages of a key began after a later one; if they may run again, the first time counts."""
    latest: dict[str, int] = {}
    begun: set[str] = set()
    late = 0
    for event in sorted(events, key=lambda event: event.at):
        name, _, number = event.id.partition("-")
        if event.what == "start" and name.startswith("k") and not (may_run_again and event.id in begun):
            begun.add(event.id)
            late += int(number) < latest.get(name, 0)
            latest[name] = max(latest.get(name, 0), int(number))
    return late
