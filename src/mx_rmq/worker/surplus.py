"""Giving back what waits too long for a runner, so that an idle worker elsewhere gets it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Iterable, Sequence

    from mx_rmq.shard import Shard
    from mx_rmq.worker.job import Job
    from mx_rmq.worker.pool import Pool

_INTERVAL = 0.1
_LONGEST = 0.5
"""Seconds for which a message is held ready; longer only while it lingers for its batch."""


class Surplus:
    """Looks several times a second at what is held ready.

    How much is held follows the pace of the handlers, and a pace may change at once: behind a handler
    that takes long, what was fetched for quick ones would wait although another worker is idle.
    """

    def __init__(self, shards: Sequence[Shard], pool: Pool, loop: asyncio.AbstractEventLoop) -> None:
        self._shards = shards
        self._pool = pool
        self._loop = loop
        self._next = loop.call_later(_INTERVAL, self._look)

    def close(self) -> None:
        """Look no more."""
        self._next.cancel()

    def _look(self) -> None:
        if jobs := self._pool.take_back(self._loop.time() - _LONGEST):
            self._pool.forget_ready(len(jobs))
            give_back(self._shards, jobs)
        self._next = self._loop.call_later(_INTERVAL, self._look)


def give_back(shards: Iterable[Shard], jobs: Sequence[Job]) -> None:
    """Release jobs that have not begun, each on its shard."""
    for shard in shards:
        shard.settler.give_back(job for job in jobs if job.shard is shard)
