"""A network that is slow and uneven, but loses nothing."""

from __future__ import annotations

import asyncio
from itertools import pairwise

from tests.faults.arena import Arena
from tests.faults.ending import end
from tests.faults.run import Row, Run
from tests.proxy import Proxy

LATEST = 0.5
LONGEST_GAP = 3.0
"""Seconds: a produce, its token, the claim for it and the answer may each be late, one after the other."""
LAST = 2.0
"""Seconds in which nothing more is produced: what is under way takes its time."""
PAUSE, PIECE = 0.001, 7


async def jitter(run: Run) -> Row:
    """Every chunk that anyone sends is 0 to 500 ms late."""
    seconds = run.size(30.0, 6.0)
    return await _slow(
        run,
        fault=f"every chunk 0-{LATEST * 1000:g} ms late in both directions, for {seconds:g} s",
        seconds=seconds,
        rate=100.0,
        jitter=LATEST,
    )


async def trickle(run: Run) -> Row:
    """Every reply comes in pieces of a few bytes."""
    seconds = run.size(15.0, 4.0)
    return await _slow(
        run,
        fault=f"replies in pieces of {PIECE} bytes, {PAUSE * 1000:g} ms apart, for {seconds:g} s",
        seconds=seconds,
        rate=30.0,
        pause=PAUSE,
        concurrency=4,  # or the reply to one claim would take seconds
        prefetch=0,
    )


async def _slow(
    run: Run,
    *,
    fault: str,
    seconds: float,
    rate: float,
    jitter: float = 0.0,
    pause: float = 0.0,
    **options: int,
) -> Row:
    async with Arena.open(run) as arena:
        with Proxy(arena.server) as proxy:
            arena.url = proxy.url
            proxy.jitter(jitter, run.dice)
            proxy.dribble(pause, PIECE)
            arena.worker(**options)
            arena.worker(**options)
            producer = arena.steady({}, {"sleep": 0.1}, {"fail": 1}, rate=rate)
            await asyncio.sleep(seconds - LAST)
            ending = await end(arena, producer)
    verdict = ending.verdict
    starts = [event.at for event in ending.events if event.what == "start"]
    gap = max((later - earlier for earlier, later in pairwise(starts)), default=float("inf"))
    well = ending.ok and verdict.duplicates == 0 and gap <= LONGEST_GAP
    return Row(
        fault=fault,
        messages=verdict.acked,
        lost=len(verdict.lost),
        duplicates=verdict.duplicates,
        recovery=gap,
        figure=f"0 lost, no duplicates, no error, never {LONGEST_GAP:g} s without progress",
        seen=str(ending),
        ok=well and verdict.acked >= 0.8 * rate * (seconds - LAST),
    )
