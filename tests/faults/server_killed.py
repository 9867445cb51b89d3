"""The server is killed again and again while everybody works."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

from tests.faults.arena import Arena
from tests.faults.ledger import Event
from tests.faults.run import Row, Run

RATE = 500.0
LONGEST = 10.0
"""Nobody is asked to go on sooner; who needs longer than this needs help."""


async def server_killed(run: Run) -> Row:
    """A producer and two workers; the server is killed every few seconds and started on its files at once."""
    every, kills = run.size(5.0, 1.5), run.size(20, 4)
    messages = int(RATE * every * (kills + 1))  # some are still to come after the last kill
    back_at: list[float] = []
    async with Arena.open(run, appendonly="yes") as arena:
        producer = arena.producer("m", ({"sleep": 0.01}, messages), callers=20, rate=RATE)
        workers = [arena.worker(concurrency=8) for _ in range(2)]
        started = time.monotonic()
        for n in range(kills):
            # However long the server takes to read its file: it serves for a while before the next kill.
            await asyncio.sleep(max(0.5, started + (n + 0.5) * every - time.monotonic()))
            run.tell(f"kill {n + 1} of {kills}")
            arena.server.kill()
            await asyncio.to_thread(arena.server.start)
            back_at.append(time.monotonic())
        assert await producer.ended(60) == 0
        await arena.drained(within=60)
        standing = all(worker.alive for worker in workers)
        verdict = await arena.verdict()
        events = arena.events()
    later = [goes_on(events, at) for at in back_at]
    return Row(
        fault=f"server killed every {every:g} s under load, AOF everysec",
        messages=verdict.acked,
        kills=kills,
        lost=len(verdict.lost),
        duplicates=verdict.duplicates,
        recovery=max(later),
        figure=f"0 lost, everything goes on by itself within {LONGEST:g} s",
        seen=f"{verdict}; {undone(events)} claims undone",
        ok=verdict.ok and verdict.acked == messages and standing and max(later) <= LONGEST,
    )


def goes_on(events: Sequence[Event], since: float) -> float:
    """How long until a message ran that was acknowledged after an instant; one in hand would say nothing."""
    new: set[str] = set()
    for event in events:
        if event.at > since:
            if event.what == "acked":
                new.add(event.id)
            elif event.what == "start" and event.id in new:
                return event.at - since
    return float("inf")


def undone(events: Sequence[Event]) -> int:
    """How many claims the server forgot: the message was later delivered as if it never had been.

    While a sync to disk is under way, ``everysec`` lets the server answer before it writes its file.
    """
    deliveries: dict[str, int] = {}
    forgotten = 0
    for event in events:
        if event.what == "start":
            number = int(event.token.partition("@")[0])
            forgotten += number <= deliveries.get(event.id, 0)
            deliveries[event.id] = number
    return forgotten
