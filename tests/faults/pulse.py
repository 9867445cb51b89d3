"""The pulse of a topic that runs beside a poisoned one: how many are done, how soon, at what cost."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING

from tests.faults.run import percentile
from tests.harness import command

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.faults.arena import Arena, Child

KEPT = 0.95
"""How much of its throughput a topic must keep while another one is poisoned."""
MOST_CALLS = 5
"""How many times the calls of a clean run count as a hot loop."""
MOST_LATE = 0.5
"""Seconds within which half of the messages must be done; a worker that only polls takes twice as long."""
MOST_LOGGED = 40
"""Log events a second and worker that count as a flood."""

_CALLS = ("evalsha", "eval", "blpop", "hscan")
"""Commands that a loop without a pause would send."""


@dataclass(frozen=True)
class Pulse:
    """What was seen in a few windows of time."""

    rate: float
    """Done per second, the median of the windows."""
    late: float
    """Seconds from producing to done, the median."""
    calls: float
    """Commands per second."""
    logged: float
    """Log events per second and worker."""

    def ills(self, clean: Pulse, *, runs: bool = True) -> list[str]:
        """What is worse than it may be; a topic that cannot run may at least not be loud."""
        found = []
        if runs and self.rate < KEPT * clean.rate:
            found.append(f"{self.rate:.0f} done/s instead of {clean.rate:.0f}")
        if runs and self.late > MOST_LATE:
            found.append(f"done after {self.late:.2f} s")
        if self.calls > MOST_CALLS * clean.calls:
            found.append(f"{self.calls:.0f} calls/s instead of {clean.calls:.0f}")
        if self.logged > MOST_LOGGED:
            found.append(f"{self.logged:.0f} log events/s")
        return found


async def feel(arena: Arena, workers: Sequence[Child], name: str, windows: int, seconds: float) -> Pulse:
    """Watch the messages ``NAME-…`` for a few windows of so many seconds."""
    calls, logged, began = await _calls(arena), _logged(arena, workers), time.monotonic()
    await asyncio.sleep(windows * seconds)
    passed = time.monotonic() - began
    calls, logged = await _calls(arena) - calls, _logged(arena, workers) - logged
    await asyncio.sleep(0.02)  # settlements just answered are written down
    events = [event for event in arena.events() if event.id.startswith(f"{name}-")]
    tried = {event.id: event.at for event in events if event.what == "tried"}
    # The ledgers are read one after the other: what was produced meanwhile is left out.
    done = [
        (event.at, event.at - tried[event.id])
        for event in events
        if event.what == "done" and event.id in tried
    ]
    rates = []
    for n in range(windows):
        start = began + n * seconds
        rates.append(sum(start <= at < start + seconds for at, _ in done) / seconds)
    lags = [lag for at, lag in done if began <= at < began + passed]
    late = percentile(lags, 50) if lags else passed
    return Pulse(median(rates), late, calls / passed, logged / passed / len(workers))


async def _calls(arena: Arena) -> float:
    stats = await command(arena.redis, "INFO", "commandstats")
    return float(sum(stats.get(f"cmdstat_{name}", {"calls": 0})["calls"] for name in _CALLS))


def _logged(arena: Arena, workers: Sequence[Child]) -> int:
    """How many events the workers have logged; a traceback is part of one."""
    logs = "".join(log_of(arena, worker) for worker in workers)
    return sum(line[:10].isdigit() for line in logs.splitlines())


def log_of(arena: Arena, worker: Child) -> str:
    """What one worker has logged."""
    file = arena.logs / f"{worker.pid}.log"
    return file.read_text(errors="replace") if file.exists() else ""
