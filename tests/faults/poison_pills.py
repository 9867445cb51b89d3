"""Messages that kill whichever worker process runs them, among good ones."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from mx_rmq.config import Config
from tests.faults.arena import Arena
from tests.faults.run import Row, Run

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from tests.faults.verdict import Verdict

WORKERS = 4
CONCURRENCY = 8
BUSY = 0.7
LIMIT = Config().crash_limit
SHARE = 0.8


class _Load(NamedTuple):
    good: int
    rate: float
    lease: float


class _Result(NamedTuple):
    verdict: Verdict
    throughput: float
    """Good messages a second, from the first start to the last completion."""
    deaths: Sequence[tuple[str, str, int, int]]
    """Of each dead message: id, reason, the crashes it was blamed for, and how often it was started."""
    kills: int


async def poison_pills(run: Run) -> Row:
    """Four workers that are kept busy, beside four others on a server of their own that get no pills.

    Good messages come at a rate that is most of what the workers can do. Pills are spread among the
    first third of them, so that the last one has killed its last worker before the good ones end, and
    what it costs shows in the throughput.
    """
    good, pills = run.size(20_000, 2_000), run.size(10, 2)
    load = _Load(good, rate=run.size(500.0, 300.0), lease=run.size(2.0, 1.0))
    clean, result = await asyncio.gather(_drain(run, load, 0), _drain(run, load, pills))
    verdict, share = result.verdict, result.throughput / clean.throughput
    return Row(
        fault=f"{pills} messages that kill their worker among {good:,} good ones, lease {load.lease:g} s",
        messages=verdict.acked,
        kills=result.kills,
        lost=len(verdict.lost),
        duplicates=verdict.duplicates - sum(starts - 1 for *_, starts in result.deaths),
        figure=f"dead as crashed after exactly {LIMIT} crashes, good throughput >= {SHARE:.0%} of clean",
        seen=f"{verdict}; {share:.0%} of {clean.throughput:.0f}/s; dead: {result.deaths}",
        ok=clean.verdict.ok
        and verdict.ok
        and (clean.verdict.done, clean.verdict.dead, clean.verdict.duplicates) == (good, 0, 0)
        and (verdict.acked, verdict.done, verdict.dead) == (good + pills, good, pills)
        and all(death[1:3] == ("crashed", LIMIT) for death in result.deaths)
        # The first worker that vanishes is blamed on all it held, so one start may be missing.
        and all(LIMIT - 1 <= starts <= LIMIT for *_, starts in result.deaths)
        and share >= SHARE,
    )


async def _drain(run: Run, load: _Load, pills: int) -> _Result:
    async with Arena.open(run) as arena:
        one = {"sleep": BUSY * WORKERS * CONCURRENCY / load.rate}
        portion = load.good // 3 // max(1, pills)
        payloads: list[tuple[dict[str, Any], int]] = [(one, portion), ({"die": True}, 1)] * pills
        payloads.append((one, load.good - pills * portion))
        async with _supervised(arena, load.lease):
            assert await arena.producer("m", *payloads, rate=load.rate).ended(120) == 0
            await arena.drained(within=120)
        events = arena.events()
        starts = Counter(event.id for event in events if event.what == "start")
        began = min(event.at for event in events if event.what == "start")
        ended = max(event.at for event in events if event.what == "done")
        deaths = [
            (letter.id, letter.reason, letter.message.crashes if letter.message else 0, starts[letter.id])
            for letter in (await arena.queue.dlq.list(limit=load.good)).letters
        ]
        kills = len(arena.children) - WORKERS - 1
        return _Result(await arena.verdict(), load.good / (ended - began), deaths, kills)


@asynccontextmanager
async def _supervised(arena: Arena, lease: float) -> AsyncIterator[None]:
    """Workers that are replaced as soon as they have died."""

    async def supervise() -> None:
        workers = [arena.worker(lease=lease, concurrency=CONCURRENCY) for _ in range(WORKERS)]
        while True:
            for n, worker in enumerate(workers):
                if not worker.alive:
                    workers[n] = arena.worker(lease=lease, concurrency=CONCURRENCY)
            await asyncio.sleep(0.01)

    supervisor = asyncio.create_task(supervise())
    try:
        yield
    finally:
        supervisor.cancel()
        await asyncio.gather(supervisor, return_exceptions=True)
