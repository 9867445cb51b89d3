"""Handlers that keep a worker from what it holds: one that blocks the event loop for good, and a slow one."""

from __future__ import annotations

import asyncio
from typing import Any

from tests.faults.arena import TOPIC, Arena, eventually
from tests.faults.ledger import Event, ids
from tests.faults.run import Row, Run

LEASE, TIMEOUT = 2.0, 3.0
FOR_GOOD = 3600
QUICK = 400
"""Before the guilty one, so that the workers hold messages ready for a quick pace."""
BEHIND = 100
LONGEST = 2.0
"""Seconds that what is held may wait behind a slow handler while another worker is idle."""


async def hung_loop(run: Run) -> Row:
    """A handler blocks the loop of one of two workers for good."""
    rows = [await _hang(run, concurrency) for concurrency in run.size((1, 64, 1, 64), (1, 64))]
    waits = [wait for wait, *_ in rows]
    problems = [problem for _, problem, _ in rows if problem]
    return Row(
        fault=f"an async handler blocks its loop for good, lease {LEASE:g} s, timeout {TIMEOUT:g} s",
        runs=len(rows),
        messages=sum(count for *_, count in rows),
        kills=len(rows),
        recovery=max(waits),
        figure=f"what it held runs elsewhere within {LEASE + 2:g} s, once and without blame",
        seen="; ".join(problems),
        ok=not problems and max(waits) <= LEASE + 2,
    )


async def slow_neighbour(run: Run) -> Row:
    """A handler that takes long on one of two workers, and a living loop."""
    rows = [await _wait(run, concurrency) for concurrency in run.size((1, 64, 1, 64), (1, 64))]
    waits = [wait for wait, *_ in rows]
    problems = [problem for _, problem, _ in rows if problem]
    return Row(
        fault="handlers of 8 s without a timeout among quick ones, a second worker idle",
        runs=len(rows),
        messages=sum(count for *_, count in rows),
        kills=len(rows),
        recovery=max(waits),
        figure=f"nothing held waits longer than {LONGEST:g} s, each runs once without blame",
        seen="; ".join(problems),
        ok=not problems and max(waits) <= LONGEST,
    )


async def _hang(run: Run, concurrency: int) -> tuple[float, str, int]:
    """How long the last innocent message waited after the hang, what went wrong, how many there were."""
    run.tell(f"concurrency {concurrency}")
    async with Arena.open(run) as arena:
        topics = {TOPIC: {"timeout": TIMEOUT}}
        for _ in range(2):
            arena.worker(topics, lease=LEASE, concurrency=concurrency)
        await _registered(arena, 2)
        payloads: list[tuple[dict[str, Any], int]] = [({}, QUICK), ({"block": FOR_GOOD}, 1), ({}, BEHIND)]
        assert await arena.producer("m", *payloads, callers=200).ended(60) == 0
        guilty = f"m-{QUICK + 1}"
        innocent = {f"m-{n}" for n in range(1, QUICK + BEHIND + 2)} - {guilty}
        await _completed(arena, len(innocent))
        events = arena.events()
        wait = _last_start(events, innocent) - _first_start(events, guilty)
        # The guilty one hangs the second worker too; after that there is no worker left to blame.
        await eventually(lambda: _starts(arena.events(), guilty) == 2, 30)
        problem = _problem(events, innocent)
    return wait, problem, len(innocent) + 1


async def _wait(run: Run, concurrency: int) -> tuple[float, str, int]:
    """How long the last quick message waited behind slow ones, what went wrong, how many there were."""
    run.tell(f"concurrency {concurrency}")
    async with Arena.open(run) as arena:
        options: dict[str, Any] = {"concurrency": concurrency, "lease": 30.0}
        for _ in range(2):
            arena.worker({TOPIC: {"timeout": None}}, **options)
        await _registered(arena, 2)
        payloads: list[tuple[dict[str, Any], int]] = [
            ({}, QUICK),
            ({"sleep": 8.0}, concurrency),
            ({}, BEHIND),
        ]
        assert await arena.producer("m", *payloads, callers=200).ended(60) == 0
        slow = {f"m-{n}" for n in range(QUICK + 1, QUICK + concurrency + 1)}
        quick = {f"m-{n}" for n in range(1, QUICK + BEHIND + concurrency + 1)} - slow
        await _completed(arena, len(quick))
        events = arena.events()
        begun = max(event.at for event in events if event.what == "start" and event.id in slow)
        wait = max(0.0, _last_start(events, quick) - begun)
        await arena.drained(within=30)
        verdict = await arena.verdict()
        problem = "" if verdict.ok and verdict.duplicates == 0 else str(verdict)
        problem = problem or _problem(arena.events(), quick | slow)
    return wait, problem, len(quick) + len(slow)


async def _registered(arena: Arena, count: int) -> None:
    """Wait until so many workers say that they live."""
    async with asyncio.timeout(30):
        while len(await arena.queue.workers()) < count:
            await asyncio.sleep(0.02)


async def _completed(arena: Arena, count: int) -> None:
    """Wait until so many messages are done, by the server's count: a worker that hangs reads no answers."""
    async with asyncio.timeout(30):
        while (await arena.queue.counts()).topics[TOPIC].completed < count:
            await asyncio.sleep(0.02)


def _problem(events: list[Event], innocent: set[str]) -> str:
    twice = {id_ for id_ in innocent if _starts(events, id_) != 1}
    blamed = ids(events, "blamed") & innocent
    wrong = {"not started once": twice, "blamed": blamed}
    return "; ".join(f"{len(which)} {what}: {sorted(which)[:3]}" for what, which in wrong.items() if which)


def _starts(events: list[Event], id_: str) -> int:
    return sum(event.what == "start" and event.id == id_ for event in events)


def _first_start(events: list[Event], id_: str) -> float:
    return next(event.at for event in events if event.what == "start" and event.id == id_)


def _last_start(events: list[Event], which: set[str]) -> float:
    return max(event.at for event in events if event.what == "start" and event.id in which)
