"""Workers and producers whose clocks are an hour ahead or behind."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

from tests.faults.arena import Arena
from tests.faults.monitors_killed import abandon
from tests.faults.run import Row, Run

if TYPE_CHECKING:
    from tests.faults.ledger import Event

Payloads = list[tuple[dict[str, Any], int]]

LEASE = 2.0
TTL = 60.0
DELAY = 1.5
SLEEP = 2 * LEASE
HOUR = 3600.0
LATE = 3.0
"""Seconds by which a busy machine may make something late; next to nothing of an hour."""


async def clocks(run: Run) -> Row:
    """A worker and producers of each kind of clock: ahead, behind and right, all on the same messages."""
    each = run.size(500, 50)
    async with Arena.open(run) as arena:
        gone = [f"gone-{n}" for n in range(each)]
        lapses = dict.fromkeys(gone, time.monotonic() + LEASE)
        await abandon(arena, gone, lease=LEASE)
        workers, producers = [], []
        for name, ahead in (("ahead", HOUR), ("behind", -HOUR), ("right", 0.0)):
            workers.append(arena.worker(lease=LEASE, concurrency=each, clock_ahead=ahead))
            payloads: Payloads = [({}, each), ({"fail": 2}, each), ({"sleep": SLEEP}, each // 10)]
            producers += [
                arena.producer(f"now-{name}", *payloads, sending={"ttl": TTL}, clock_ahead=ahead),
                arena.producer(
                    f"later-{name}", ({}, each), sending={"ttl": TTL, "delay": DELAY}, clock_ahead=ahead
                ),
            ]
        assert await asyncio.gather(*(producer.ended(60) for producer in producers)) == [0] * 6
        await arena.drained(within=60)
        events = arena.events()
        verdict = await arena.verdict()
    messages = each + 3 * (3 * each + each // 10)
    earliest, latest = _lateness(events, lapses)
    busy = {event.pid for event in events if event.what == "start"}
    return Row(
        fault="client clocks 1 h ahead and 1 h behind, beside right ones",
        messages=verdict.acked,
        lost=len(verdict.lost),
        duplicates=verdict.duplicates,
        recovery=latest,
        figure=f"0 lost, 0 duplicates, 0 expired, nothing early or {LATE:g} s late",
        seen=f"{verdict}; {earliest:.3f} to {latest:.3f} s late",
        ok=verdict.ok
        and verdict.acked == verdict.done == messages
        and verdict.dead == 0
        and verdict.duplicates == 0
        and busy == {worker.pid for worker in workers}
        and earliest >= 0
        and latest <= LATE,
    )


def _lateness(events: list[Event], lapses: dict[str, float]) -> tuple[float, float]:
    """How late the least and the most late start was, of all that had to wait for an instant.

    The server stores a message some time between the moments at which it is tried and acknowledged, so
    nothing is early that comes after the one, nor late that comes soon after the other.
    """
    due_after, due_by = dict(lapses), dict(lapses)
    early, late = [], []
    for event in events:
        match event.what:
            case "tried" if event.id.startswith("later-"):
                due_after[event.id] = event.at + DELAY
            case "acked" if event.id.startswith("later-"):
                due_by[event.id] = event.at + DELAY
            case "retried" if event.id not in lapses:
                due_by[event.id] = event.at
            case "start":
                if event.id in due_after:
                    early.append(event.at - due_after.pop(event.id))
                if event.id in due_by:
                    late.append(event.at - due_by.pop(event.id))
    return min(early), max(late)
