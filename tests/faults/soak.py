"""Everything at random, for long: nothing is lost, and nothing grows."""

from __future__ import annotations

import asyncio
import time
from statistics import median
from typing import Any

from redis.exceptions import RedisError

from tests.faults.arena import TOPIC, Arena, Child
from tests.faults.ledger import Event
from tests.faults.run import Row, Run
from tests.harness import command

LEASE = 2.0
OPTIONS: dict[str, Any] = {"lease": LEASE, "concurrency": 8, "stop_grace": 2.0}
MORE_MEMORY, MORE_TASKS, MORE_FILES = 8, 4, 3
"""What the long-lived worker may have more in the last quarter than in the second: MB, tasks, descriptors."""


async def soak(run: Run) -> Row:
    """Workers are killed, stopped and paused, connections reset, scripts flushed and the server killed."""
    seconds = run.size(round(run.minutes * 60), 60)
    async with Arena.open(run, appendonly="yes") as arena:
        mixture = Mixture(arena)
        producers = [
            arena.producer("good", ({"sleep": 0.01}, seconds * 150), rate=150),
            arena.producer("fails", ({"fail": 1}, seconds * 20), rate=20),
            arena.producer("dead", ({"dead": "it was asked to"}, seconds * 2), rate=2),
            arena.producer("vitals", ({"vitals": True}, seconds * 2), rate=2),
            arena.producer("pill", ({"die": True}, seconds // 10), rate=0.1, topic="pills"),
        ]
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            await mixture.next()
            run.tell(f"{left:.0f} s left, {mixture.done} faults")
            await asyncio.sleep(run.dice.uniform(0.2, 1.2))
        for producer in producers:
            assert await producer.ended(120) == 0
        for _ in range(1200):
            if not await arena.open_messages():
                break
            mixture.replace_the_dead()
            await asyncio.sleep(0.1)
        await arena.drained(within=1)
        events = arena.events()
        verdict = await arena.verdict()
    starts = [event.id for event in events if event.what == "start" and event.id.startswith("good")]
    more = growth([event for event in events if event.what == "vitals" and event.pid == mixture.steady.pid])
    grown = more[0] > MORE_MEMORY or more[1] > MORE_TASKS or more[2] > MORE_FILES
    produced = sum((150, 20, 2, 2)) * seconds + seconds // 10
    return Row(
        fault=f"everything at random for {seconds / 60:g} min",
        messages=verdict.acked,
        kills=mixture.done,
        lost=len(verdict.lost),
        duplicates=len(starts) - len(set(starts)),
        figure="0 lost, no growth of memory, tasks or file descriptors",
        seen=f"{verdict}; grew by {more[0]:.1f} MB, {more[1]:g} tasks, {more[2]:g} descriptors; {mixture}",
        ok=verdict.ok and verdict.acked == produced and not grown,
    )


class Mixture:
    """Faults in a random order; one worker lives through all of them."""

    def __init__(self, arena: Arena) -> None:
        self._arena = arena
        self._dice = arena.run.dice
        self.steady = arena.worker({TOPIC: {}}, **OPTIONS)
        self._others = [self._another() for _ in range(2)]
        self.counts = dict.fromkeys(("kill", "stop", "pause", "reset", "flush", "server"), 0)

    @property
    def done(self) -> int:
        return sum(self.counts.values())

    def __str__(self) -> str:
        return ", ".join(f"{count} x {what}" for what, count in self.counts.items())

    async def next(self) -> None:
        """Do one of them."""
        self.replace_the_dead()
        what = self._dice.choices(list(self.counts), weights=(6, 3, 3, 3, 3, 1))[0]
        self.counts[what] += 1
        n = self._dice.randrange(len(self._others))
        match what:
            case "kill":
                self._others[n].kill()
            case "stop":
                self._others[n].term()
                await self._others[n].ended(OPTIONS["stop_grace"] + 10)
            case "pause":
                self._others[n].pause()
                await asyncio.sleep(self._dice.uniform(0, 2 * LEASE))
                self._others[n].resume()
            case "reset":
                await self._tell("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
            case "flush":
                await self._tell("SCRIPT", "FLUSH")
            case "server":
                self._arena.server.kill()
                await asyncio.to_thread(self._arena.server.start)

    def replace_the_dead(self) -> None:
        """As a supervisor would: of pills, and of faults."""
        self._others = [other if other.alive else self._another() for other in self._others]

    def _another(self) -> Child:
        return self._arena.worker({TOPIC: {}, "pills": {}}, **OPTIONS)

    async def _tell(self, *args: str) -> None:
        for _ in range(2):  # the connection may have died with the server
            try:
                await command(self._arena.redis, *args)
            except RedisError:
                continue
            return


def growth(vitals: list[Event]) -> tuple[float, float, float]:
    """How much more MB, tasks and file descriptors there were in the last quarter than in the second."""
    rows = [tuple(map(float, event.token.split("/"))) for event in vitals]
    quarter = len(rows) // 4
    assert quarter >= 3, f"only {len(rows)} looks at the long-lived worker"
    before, after = rows[quarter : 2 * quarter], rows[-quarter:]
    memory, tasks, files = (
        median(row[n] for row in after) - median(row[n] for row in before) for n in range(3)
    )
    return memory, tasks, files
