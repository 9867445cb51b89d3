"""How a fault ends that no producer may notice."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.faults.arena import Arena, Child
    from tests.faults.ledger import Event
    from tests.faults.verdict import Verdict

ALARMS = ("Traceback", "service.failed", "settle.failed", "settle.given_up")
"""What no process may log: errors nobody expected, and deliveries that were not settled."""
_OF_HANDLERS = re.compile(r"message\.(?:retried|dead): [^\n]*\nTraceback")
"""What a handler raised because its message said so."""


@dataclass
class Ending:
    """What is left, and what the callers saw."""

    verdict: Verdict
    events: list[Event]
    stored_twice: int
    errors: int
    """Of callers, and of services that have nobody to tell but the log."""

    @property
    def ok(self) -> bool:
        """Whether nothing is lost, nothing was stored twice, and nobody noticed."""
        return self.verdict.ok and self.stored_twice == self.errors == 0

    def __str__(self) -> str:
        return f"{self.verdict}; {self.stored_twice} stored twice, {self.errors} errors"


async def end(arena: Arena, *producers: Child) -> Ending:
    """Let producers end that go on until told to stop, and workers finish what is left; then judge."""
    for producer in producers:
        producer.term()
    codes = [await producer.ended(60) for producer in producers]
    await arena.drained(within=60)
    events = arena.events()
    stored = await arena.produced()
    arena.url = arena.server.url  # the second drain is to find what it can
    verdict = await arena.verdict()
    log = _OF_HANDLERS.sub("", arena.log_text())
    alarms = [line for line in log.splitlines() if any(word in line for word in ALARMS)]
    return Ending(verdict, events, stored - verdict.acked, len(alarms) + sum(code != 0 for code in codes))
