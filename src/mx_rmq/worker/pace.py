"""How many messages of a topic to hold ready, by how fast they were finished in the last moments."""

from __future__ import annotations

from typing import Final

_WINDOW: Final = 0.01
"""Seconds over which the pace is measured."""
_AHEAD: Final = 0.03
"""Seconds for which the messages held ready should last."""


class Pace:
    """The pace of one topic's handlers, and the prefetch that follows from it.

    For slow handlers no messages are held, so that other workers get them. For quick handlers enough
    are held for large batches.
    """

    __slots__ = ("_measured_at", "finished", "prefetch")

    def __init__(self, now: float) -> None:
        self.prefetch = 0
        """How many messages to hold ready beyond those that can run now."""
        self.finished = 0
        """Messages finished since the last measure."""
        self._measured_at = now

    def measure(self, now: float, most: int) -> None:
        """Set the prefetch, at most *most*, if the last measure is old enough."""
        passed = now - self._measured_at
        if passed >= _WINDOW:
            ahead = min(most, int(self.finished / passed * _AHEAD))
            # It falls by half at most: a moment in which all waited for a claim says nothing about the pace.
            self.prefetch = max(ahead, (self.prefetch + ahead) // 2)
            self.finished, self._measured_at = 0, now
