"""A queue's slot moves between the nodes of a cluster, by failover, by migration and after a kill."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from mx_rmq.storage.keys import Keys
from tests.faults.arena import Arena
from tests.faults.demoted_primary import goes_on
from tests.faults.ending import end
from tests.faults.ledger import ids
from tests.faults.programs import QUEUE
from tests.faults.run import Row, Run
from tests.rigs.cluster import Cluster

if TYPE_CHECKING:
    from mx_rmq.config import Durability

SLOT = Cluster.slot_of(Keys(QUEUE).prefix)
LEASE = 3.0
MOST = 5.0


async def cluster(run: Run) -> Row:
    """CLUSTER FAILOVER and live migrations of a busy slot, mixed."""
    failovers, moves, before = run.size((20, 5, 2.0), (2, 2, 0.5))
    steps = ["failover"] * failovers + ["move"] * moves
    run.dice.shuffle(steps)
    later: list[float] = []
    with Cluster() as rig:
        async with Arena.around(run, rig.url) as arena:
            workers = [arena.worker(lease=LEASE, concurrency=16, prefetch=4) for _ in range(2)]
            producers = [
                arena.steady({"sleep": 0.01}, rate=60),
                arena.sync_producer("s", {"sleep": 0.01}, 30_000, rate=30),
            ]
            await arena.busy(*workers)
            for n, step in enumerate(steps):
                await asyncio.sleep(before)
                run.tell(f"{step}, {n + 1} of {len(steps)}")
                if step == "failover":
                    await asyncio.to_thread(rig.failover, SLOT)
                else:
                    others = [node for node in rig.primaries() if node is not rig.primary_of(SLOT)]
                    await asyncio.to_thread(rig.move_slot, SLOT, run.dice.choice(others))
                later.append(await goes_on(arena, workers, producers, most=MOST))
                await asyncio.to_thread(rig.mend)
            errors = len(arena.failures())
            producers[1].kill()
            ending = await end(arena, producers[0])
    verdict = ending.verdict
    # The killed one may have stored what it was not told of.
    twice = max(0, ending.stored_twice + verdict.acked - len(ids(ending.events, "tried")))
    return Row(
        fault=f"CLUSTER FAILOVER of a busy slot, {failovers} times, and {moves} live migrations",
        messages=verdict.acked,
        kills=len(steps),
        lost=len(verdict.lost),
        duplicates=verdict.duplicates,
        recovery=max(later),
        figure=f"0 lost, 0 stored twice, no error, everything goes on within {MOST:g} s",
        seen=f"{verdict}; {twice} stored twice, {ending.errors} errors, {errors} refused",
        ok=verdict.ok and twice == ending.errors == errors == 0 and max(later) <= MOST,
    )


async def cluster_killed_replicated(run: Run) -> Row:
    """The primary of the slot is killed under load; producers wait for its replica."""
    kills, lost, acked, seen, recovery = await kill_primaries(run, "replicated")
    return Row(
        fault="kill -9 of the primary of a slot, durability='replicated'",
        messages=acked,
        kills=kills,
        lost=lost,
        recovery=recovery,
        figure="0 acknowledged lost, the audit is clean, workers go on",
        seen=seen,
        ok=lost == 0 and not seen and acked > 50 * kills,
    )


async def cluster_killed_memory(run: Run) -> Row:
    """The same without waiting: what may be lost then."""
    kills, lost, acked, seen, recovery = await kill_primaries(run, "memory")
    return Row(
        fault="kill -9 of the primary of a slot, durability='memory'",
        messages=acked,
        kills=kills,
        recovery=recovery,
        figure=f"no promise; {lost} of {acked:,} were on the primary only; the audit is clean, workers go on",
        seen=seen,
        ok=not seen and acked > 50 * kills,
    )


async def kill_primaries(run: Run, durability: Durability) -> tuple[int, int, int, str, float]:
    """How many were killed, lost and acknowledged, what else was wrong, and the longest time to go on."""
    kills = run.size(10, 1)
    later: list[float] = []
    with Cluster() as rig:
        async with Arena.around(run, rig.url) as arena:
            workers = [arena.worker(lease=LEASE, concurrency=16, prefetch=4) for _ in range(2)]
            sending = {"durability": durability}
            producer = arena.producer("m", ({}, 1_000_000), callers=20, rate=200, sending=sending)
            await arena.busy(*workers)
            for n in range(kills):
                await asyncio.sleep(1.0 + run.dice.random())
                run.tell(f"kill {n + 1} of {kills}")
                primary = rig.primary_of(SLOT)
                rig.kill(primary)
                await asyncio.to_thread(rig.wait_for_failover, SLOT, primary)
                elected = time.monotonic()
                await asyncio.to_thread(rig.mend)  # without a replica, no message is replicated
                mended = time.monotonic() - elected
                later.append(mended + await goes_on(arena, workers, [producer], most=10.0))
            producer.kill()
            await arena.drained(within=60)
            verdict = await arena.verdict()
    wrong = verdict.findings or verdict.late or verdict.unexpected
    return kills, len(verdict.lost), verdict.acked, str(verdict) if wrong else "", max(later)
