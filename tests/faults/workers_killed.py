"""Workers are killed again and again while they work."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from tests.faults.arena import Arena
from tests.faults.run import Row, Run, percentile
from tests.faults.verdict import gaps

WORKERS = 4
CONCURRENCY = 8
LEASE = 2.0
EVERY = 0.3
BUSY = 0.5


async def workers_killed(run: Run) -> Row:
    """Four workers, one killed every 300 ms and replaced, until all kills are done and all messages too."""
    messages, kills = run.size(100_000, 10_000), run.size(200, 20)
    killed_at: dict[int, float] = {}
    async with Arena.open(run) as arena:
        # Busy, yet without a backlog behind which a recovered message would have to wait.
        rate = messages / (kills * EVERY)
        pause = BUSY * WORKERS * CONCURRENCY / rate
        producer = arena.producer("m", ({"sleep": pause}, messages), callers=200, rate=rate)
        options: dict[str, Any] = {
            "lease": LEASE,
            "concurrency": CONCURRENCY,
            "crash_limit": 1000,
            "recovery_grace": None,
        }
        workers = [arena.worker(**options) for _ in range(WORKERS)]
        await asyncio.sleep(1.0)
        for n in range(kills):
            run.tell(f"kill {n + 1} of {kills}")
            victim = run.dice.randrange(WORKERS)
            workers[victim].kill()
            killed_at[workers[victim].pid] = workers[victim].killed_at or time.monotonic()
            workers[victim] = arena.worker(**options)
            await asyncio.sleep(EVERY)
        assert await producer.ended(120) == 0
        await arena.drained(within=180)
        events, holders = arena.events(), arena.taken_over()
        verdict = await arena.verdict()
    recovery = percentile(gaps(events, killed_at, holders), 99)
    most = kills * CONCURRENCY
    return Row(
        fault=f"{WORKERS} workers, one killed every {EVERY * 1000:g} ms, lease {LEASE:g} s",
        messages=verdict.acked,
        kills=kills,
        lost=len(verdict.lost),
        duplicates=verdict.duplicates,
        recovery=recovery,
        figure=f"0 lost, duplicates <= {most}, recovery p99 <= {LEASE + 1:g} s",
        seen=str(verdict),
        ok=verdict.ok and verdict.acked == messages and verdict.duplicates <= most and recovery <= LEASE + 1,
    )
