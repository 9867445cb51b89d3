"""Whether the event loop responds, and which handler blocks it."""

from __future__ import annotations

import asyncio
import sys
import threading
from time import monotonic
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from mx_rmq import events
from mx_rmq.traces import place_of, trace_of_stack
from mx_rmq.worker.holdings import Job

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mx_rmq.worker.holdings import Holdings

_HANG: Final = 1.0
"""Seconds without a beat after which the loop counts as hanging."""
_QUIET: Final = 0.3
"""Seconds without a beat after which it is worth looking at what the loop does."""
_LONG: Final = 10.0
"""Seconds after which a block is reported though it has not ended; it may never end."""
_WINDOW: Final = 10.0
"""Seconds for which a late beat is remembered at least."""
_MOST_PLACES: Final = 100


class _Block(NamedTuple):
    """What the loop's thread was seen to execute since the last beat."""

    who: Job | asyncio.Task[Any]
    since: float
    place: str

    def ended_at(self, otherwise: float) -> float:
        """When its handler ended, or another instant if the handler goes on."""
        ended_at = self.who.ended_at if isinstance(self.who, Job) else None
        return otherwise if ended_at is None else ended_at


class Pulse:
    """The loop beats several times a second, and the lease keeper's thread listens.

    Args:
        holdings: what the worker holds, to find the handler that runs.
        loop: the event loop, which runs in the calling thread.
        queue: the queue's name, for events.
    """

    def __init__(
        self, holdings: Sequence[Holdings], loop: asyncio.AbstractEventLoop, queue: str = ""
    ) -> None:
        self._queue = queue
        self._holdings = holdings
        self._loop = loop
        self._thread = threading.get_ident()
        self.beat_at = monotonic()
        """When the loop was last known to respond."""
        self._worst = self._worst_before = 0.0
        """The longest that a beat was late, in the window under way and in the one before."""
        self._turned_at = self.beat_at
        """When the window under way began."""
        self._heard = self.beat_at
        self._missed = 0
        """Looks in a row that heard no new beat."""
        self._looked_at = self.beat_at
        """When the thread last looked."""
        self._block: _Block | None = None
        self._told: set[object] = set()
        """Handlers, and places outside handlers, that were named."""

    # -- in the loop's thread

    def beat(self, late: float = 0.0) -> None:
        """Note that the loop responds, *late* seconds after it should have.

        If it was blocked, say by which handler.
        """
        before, self.beat_at = self.beat_at, monotonic()
        if self.beat_at - self._turned_at >= _WINDOW:
            self._worst_before, self._worst, self._turned_at = self._worst, 0.0, self.beat_at
        if late > self._worst:
            self._worst = late
        block, self._block = self._block, None
        if block is not None:
            self._tell(block, block.ended_at(self.beat_at) - max(block.since, before))

    # -- in any thread

    def lag(self) -> float:
        """The longest that the loop was late in the last ten seconds or a little more."""
        silent = monotonic() - self.beat_at
        return max(self._worst, self._worst_before, silent if silent >= _QUIET else 0.0)

    # -- in the lease keeper's thread

    def hangs(self) -> bool:
        """Whether the loop hangs, by two looks in a row; one proves nothing after a pause of the process."""
        now, beat_at = monotonic(), self.beat_at
        self._missed = self._missed + 1 if beat_at == self._heard else 0
        self._heard = beat_at
        if self._missed and now - beat_at >= _QUIET:
            self._look(now, beat_at)
        self._looked_at = now
        return self._missed > 1 and now - beat_at >= _HANG

    def _look(self, now: float, beat_at: float) -> None:
        """Note what the loop's thread executes."""
        task = asyncio.current_task(self._loop)
        if task is None:  # the loop only waits, or its callbacks are not tasks
            self._block = None
            return
        who, since, block = self._job_of(task) or task, beat_at, self._block
        if block is None or block.who is not who:
            if block is not None:
                since = block.ended_at(self._looked_at)
                self._tell(block, since - block.since)
            if isinstance(who, Job):
                since = max(since, who.started_at)
            self._block = block = _Block(who, since, self._place(task))
        if now - block.since >= _LONG:
            self._tell(block, now - block.since, lasts=True)

    def _place(self, task: asyncio.Task[Any]) -> str:
        """The line of the user's code that the task executes, empty if there is none."""
        outermost = getattr(task.get_coro(), "cr_frame", None)
        return place_of(trace_of_stack(sys._current_frames().get(self._thread), outermost))

    def _job_of(self, task: asyncio.Task[Any]) -> Job | None:
        for holdings in self._holdings:
            for job in list(holdings.jobs):
                if job.runs_in(task):
                    return job
        return None

    def _tell(self, block: _Block, seconds: float, *, lasts: bool = False) -> None:
        """Name who blocked the loop, once."""
        place = block.place
        handler = block.who.handler if isinstance(block.who, Job) else None
        if seconds < _HANG or (handler or place) in self._told:
            return
        if handler is None:
            if place and len(self._told) < _MOST_PLACES:
                self._told.add(place)
                blocked = round(seconds, 3)
                events.emit(events.LoopBlocked(queue=self._queue, seconds=blocked, place=place, lasts=lasts))
            return
        self._told.add(handler)
        events.emit(
            events.HandlerBlocked(
                queue=self._queue,
                topic=handler.topic,
                handler=handler.__name__,
                seconds=round(seconds, 3),
                is_async=handler.is_async,
                place=place,
                lasts=lasts,
            )
        )
