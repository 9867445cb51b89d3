"""Gives back jobs that wait too long for a runner, so that an idle worker elsewhere gets them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Mapping, Sequence

    from mx_rmq.worker.holdings import Holdings, Job
    from mx_rmq.worker.ready import ReadyJobs
    from mx_rmq.worker.settler import Settler

_INTERVAL: Final = 0.1
_LONGEST: Final = 0.5
"""Most seconds that a message is held ready; longer only while it lingers for its batch."""


class Surplus:
    """Checks several times a second the jobs that are held ready.

    How many are held follows the pace of the handlers, and that may change suddenly. Jobs that were
    fetched for quick handlers would then wait behind a slow one although another worker is idle.
    """

    def __init__(
        self, settlers: Mapping[Holdings, Settler], ready: ReadyJobs, loop: asyncio.AbstractEventLoop
    ) -> None:
        self._settlers = settlers
        self._ready = ready
        self._loop = loop
        self._next = loop.call_later(_INTERVAL, self._look)

    def close(self) -> None:
        """Stop checking."""
        self._next.cancel()

    def _look(self) -> None:
        if jobs := self._ready.take_back(self._loop.time() - _LONGEST):
            self._ready.forget_ready(len(jobs))
            give_back(self._settlers, jobs)
        self._next = self._loop.call_later(_INTERVAL, self._look)


def give_back(settlers: Mapping[Holdings, Settler], jobs: Sequence[Job]) -> None:
    """Release jobs that have not begun, each on its shard."""
    for holdings, settler in settlers.items():
        settler.give_back(job for job in jobs if job.holdings is holdings)
