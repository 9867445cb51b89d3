"""How many messages of a topic to hold ready: as many as were finished in the last moments."""

from __future__ import annotations

from typing import Final

_WINDOW: Final = 0.01
"""Seconds over which the pace is measured."""
_AHEAD: Final = 0.03
"""Seconds for which the messages held ready shall last."""


class Pace:
    """The pace of one topic's handlers, and the prefetch that follows from it.

    Handlers that take long hold none, so that other workers get them; quick ones hold enough for large
    batches.
    """

    __slots__ = ("_measured_at", "finished", "prefetch")

    def __init__(self, now: float) -> None:
        self.prefetch = 0
        """How many messages to hold ready beyond those that can run now."""
        self.finished = 0
        """Messages finished since the last measure."""
        self._measured_at = now

    def measure(self, now: float, most: int) -> None:
        """Set the prefetch, at most *most*, if it is time to."""
        passed = now - self._measured_at
        if passed >= _WINDOW:
            ahead = min(most, int(self.finished / passed * _AHEAD))
            # It falls by halves only: a moment in which all waited for a claim says nothing of the pace.
            self.prefetch = max(ahead, (self.prefetch + ahead) // 2)
            self.finished, self._measured_at = 0, now
