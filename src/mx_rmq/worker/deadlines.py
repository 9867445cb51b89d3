"""Timeouts: one look at everything that runs, several times within the shortest timeout.

A timer per message would cost more than many handlers do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mx_rmq.worker.job import End

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Iterable, Sequence

    from mx_rmq.shard import Shard

_FINEST, _COARSEST = 0.005, 0.1


class Deadlines:
    """Ends handlers that run past their deadline, which they may have moved meanwhile."""

    def __init__(
        self, shards: Sequence[Shard], timeouts: Iterable[float | None], loop: asyncio.AbstractEventLoop
    ) -> None:
        self._shards = shards
        self._loop = loop
        shortest = min((timeout for timeout in timeouts if timeout is not None), default=_COARSEST)
        self._interval = min(max(shortest / 10, _FINEST), _COARSEST)
        self._next = loop.call_later(self._interval, self._look)

    def close(self) -> None:
        """Look no more."""
        self._next.cancel()

    def _look(self) -> None:
        now = self._loop.time()
        for shard in self._shards:
            for job in list(shard.held):
                if job.deadline <= now:
                    job.stop(End.TIMEOUT)
        self._next = self._loop.call_later(self._interval, self._look)
