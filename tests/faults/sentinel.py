"""The primary of a Sentinel set is killed or stands still, and comes back as a replica."""

from __future__ import annotations

import asyncio

from tests.faults.arena import Arena
from tests.faults.demoted_primary import goes_on
from tests.faults.run import Row, Run
from tests.rigs.sentinel import SentinelSet

LEASE = 3.0
MOST = 10.0


async def sentinel(run: Run) -> Row:
    """In turn SIGKILL and SIGSTOP; workers and producers stay the same processes."""
    times, before = run.size((10, 2.0), (2, 1.0))
    later: list[float] = []
    returned: list[float] = []
    with SentinelSet() as rig:
        async with Arena.around(run, rig.url) as arena:
            workers = [arena.worker(lease=LEASE, concurrency=16, prefetch=4) for _ in range(2)]
            sending = {"durability": "replicated"}
            producer = arena.producer(
                "m", ({}, 1_000_000), callers=20, rate=200, sending=sending, durability_timeout=2.0
            )
            await arena.busy(*workers)
            for n in range(times):
                await asyncio.sleep(before)
                primary = rig.primary()
                run.tell(f"{'pause' if n % 2 else 'kill'} {n + 1} of {times}")
                (rig.pause if n % 2 else rig.kill)(primary)
                await asyncio.to_thread(rig.wait_for_failover, primary)
                later.append(await goes_on(arena, workers, [producer], most=MOST))
                await asyncio.to_thread(rig.mend)  # it comes back, and is made a replica
                returned.append(await goes_on(arena, workers, [producer], most=MOST))
            producer.kill()
            await arena.drained(within=60)
            verdict = await arena.verdict()
    longest = max(*later, *returned)
    wrong = verdict.lost or verdict.findings or verdict.late or verdict.unexpected
    return Row(
        fault=f"Sentinel: the primary killed or stopped, {times} times, durability='replicated'",
        messages=verdict.acked,
        kills=times,
        lost=len(verdict.lost),
        duplicates=verdict.duplicates,
        recovery=longest,
        figure=f"0 acknowledged lost, everything goes on within {MOST:g} s of the election and of the return",
        seen=str(verdict),
        ok=not wrong and longest <= MOST and verdict.acked > 50 * times,
    )
