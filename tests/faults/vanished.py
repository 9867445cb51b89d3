"""Workers vanish while their leases are long: their peers see it by their connections."""

from __future__ import annotations

import asyncio
import time

from tests.faults.arena import Arena
from tests.faults.run import Row, Run, percentile
from tests.faults.verdict import gaps

WORKERS, CONCURRENCY, LEASE = 3, 8, 30.0
LONGEST = 3.0


async def vanished(run: Run) -> Row:
    """Three workers with leases of half a minute; one is killed every two seconds and replaced."""
    kills, every, rate = run.size(40, 4), 2.0, 60.0
    messages = int(rate * every * kills)
    killed_at: dict[int, float] = {}
    async with Arena.open(run) as arena:
        # Each runs for so long that a killed worker always holds some.
        pause = 0.5 * WORKERS * CONCURRENCY / rate
        workers = [arena.worker(lease=LEASE, concurrency=CONCURRENCY) for _ in range(WORKERS)]
        producer = arena.producer("m", ({"sleep": pause}, messages), rate=rate)
        await arena.busy(*workers)
        for n in range(kills):
            run.tell(f"kill {n + 1} of {kills}")
            victim = run.dice.randrange(WORKERS)
            workers[victim].kill()
            killed_at[workers[victim].pid] = workers[victim].killed_at or time.monotonic()
            workers[victim] = arena.worker(lease=LEASE, concurrency=CONCURRENCY)
            await asyncio.sleep(every)
        assert await producer.ended(60) == 0
        await arena.drained(within=60)
        waits = gaps(arena.events(), killed_at)
        verdict = await arena.verdict()
    recovery = percentile(waits, 99)
    return Row(
        fault=f"{WORKERS} workers, one killed every {every:g} s, lease {LEASE:g} s",
        messages=verdict.acked,
        kills=kills,
        lost=len(verdict.lost),
        duplicates=verdict.duplicates,
        recovery=recovery,
        figure=f"0 lost, what was in hand runs elsewhere, p99 <= {LONGEST:g} s",
        seen=f"{verdict}; {len(waits)} were in hand",
        ok=verdict.ok and verdict.acked == messages and len(waits) >= kills and recovery <= LONGEST,
    )
