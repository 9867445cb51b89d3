"""The clock of a queue under test."""

from __future__ import annotations

import threading
import time


class Clock:
    """The time in µs, ahead of the real time by what it was moved."""

    def __init__(self) -> None:
        self._ahead = 0
        self.still = threading.Lock()
        """While it is held, the clock does not move."""

    def __call__(self) -> int:
        """The time now."""
        return time.time_ns() // 1000 + self._ahead

    def move(self, seconds: float) -> None:
        """Put it forward."""
        with self.still:
            self._ahead += round(seconds * 1e6)
