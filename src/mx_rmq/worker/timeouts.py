"""Timeouts: all running jobs are checked several times within the shortest timeout.

A timer per message would cost more than many handlers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mx_rmq.worker.holdings import End

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Iterable, Sequence

    from mx_rmq.worker.holdings import Holdings
    from mx_rmq.worker.pulse import Pulse

_FINEST, _COARSEST = 0.005, 0.1


class Timeouts:
    """Stops handlers that run past their deadline; handlers may move the deadline.

    Args:
        holdings: what the worker holds.
        timeouts: of all handlers.
        pulse: beats with every look.
        loop: the event loop.
    """

    def __init__(
        self,
        holdings: Sequence[Holdings],
        timeouts: Iterable[float | None],
        pulse: Pulse,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._holdings = holdings
        self._pulse = pulse
        self._loop = loop
        shortest = min((timeout for timeout in timeouts if timeout is not None), default=_COARSEST)
        self._interval = min(max(shortest / 10, _FINEST), _COARSEST)
        self._due = loop.time() + self._interval
        self._next = loop.call_at(self._due, self._look)

    def close(self) -> None:
        """Stop checking."""
        self._next.cancel()

    def _look(self) -> None:
        now = self._loop.time()
        self._pulse.beat(now - self._due)
        for holdings in self._holdings:
            for job in list(holdings.jobs):
                if job.deadline <= now:
                    job.stop(End.TIMEOUT)
        self._due = now + self._interval
        self._next = self._loop.call_at(self._due, self._look)
