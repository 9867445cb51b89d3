"""The server resets every connection."""

from __future__ import annotations

import asyncio
import time

from tests.faults.arena import Arena
from tests.faults.ending import end
from tests.faults.run import Row, Run
from tests.faults.verdict import resumption

WITHIN = 2.0


async def clients_killed(run: Run) -> Row:
    """``CLIENT KILL`` of everybody, again and again under load."""
    kills = run.size(50, 8)
    killed_at: list[float] = []
    async with Arena.open(run) as arena:
        workers = [arena.worker(concurrency=4, prefetch=0) for _ in range(2)]
        producer = arena.steady({}, {"sleep": 0.02}, {"fail": 1}, rate=200.0)
        await arena.busy(*workers)
        for n in range(kills):
            run.tell(f"kill {n + 1} of {kills}")
            killed_at.append(time.monotonic())
            arena.server.command("CLIENT", "KILL", "TYPE", "normal")
            await asyncio.sleep(run.dice.uniform(0.05, 0.8))
        await asyncio.sleep(WITHIN)
        ending = await end(arena, producer)
    verdict = ending.verdict
    pids = {worker.pid for worker in workers}
    recovery = max(resumption(ending.events, at, pids) for at in killed_at)
    return Row(
        fault="every client connection reset with CLIENT KILL under load",
        messages=verdict.acked,
        kills=kills,
        lost=len(verdict.lost),
        duplicates=verdict.duplicates,
        recovery=recovery,
        figure=f"0 lost, 0 stored twice, no duplicates, no error, each worker goes on within {WITHIN:g} s",
        seen=str(ending),
        ok=ending.ok and verdict.duplicates == 0 and recovery <= WITHIN,
    )
