"""What a worker holds on a shard: deliveries under its leases, from the claim until they are settled."""

from __future__ import annotations

import asyncio
from collections import deque
from enum import Enum
from math import inf
from time import monotonic
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from mx_rmq.worker.threads import caller

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from mx_rmq.message import Message
    from mx_rmq.storage.contract import Delivery
    from mx_rmq.storage.queries import ClientIdentity
    from mx_rmq.storage.shard import Shard
    from mx_rmq.worker.handlers import Handler
    from mx_rmq.worker.outcome import Verdict
    from mx_rmq.worker.threads import Call


_MOST_LOSSES: Final = 1000
_REPLIES: Final = 20
"""Replies by which it is judged how long one has waited to be read."""


class End(Enum):
    """Why a job is stopped from outside."""

    TIMEOUT = "timeout"
    LOST = "lost"
    LATE = "late"
    """Its lease may have run out before it began."""
    STOP = "stop"


class Registered(NamedTuple):
    """The connections by which others see a worker."""

    number: int
    """The number of the shard's connection."""
    parked: int
    """The client id of the parked claim's connection; 0 if that is not registered."""
    grace: float
    """Seconds that others wait if both are gone."""


class Holdings:
    """The deliveries that one worker holds on one shard."""

    def __init__(self, shard: Shard, state: Any = None) -> None:
        self.shard = shard
        self.state = state
        """What the lifespan yielded; handlers find it in their context."""
        self.jobs: set[Job] = set()
        """Also read by the lease keeper's thread."""
        self.present_until = inf
        """Until when, by the loop's clock, no other worker can take this one for vanished."""
        self.is_watched = True
        """Whether other workers look at this one's connections."""
        self.parked: ClientIdentity | None = None
        """The connection of the parked claim; None if it is not known."""
        self.registered: Registered | None = None
        """By what others see this worker; None if they do not see it."""
        self.workers = 1
        """How many workers are registered on the shard, as last heard."""
        self.stood_in = False
        """Whether the lease keeper's thread has ever settled something for the loop."""
        self.losses: deque[float] = deque(maxlen=_MOST_LOSSES)
        """When leases were lost, by the loop's clock."""
        self._server_ahead = 0.0
        self._aheads: deque[float] = deque(maxlen=_REPLIES)

    def forget(self, jobs: Iterable[Job]) -> None:
        """Drop jobs, so that their leases are not extended any more."""
        self.jobs.difference_update(jobs)

    def load(self) -> dict[str, tuple[int, int]]:
        """How many messages of each topic have begun, and how many are held ready."""
        load: dict[str, tuple[int, int]] = {}
        for job in list(self.jobs):
            running, held = load.get(job.delivery.topic, (0, 0))
            load[job.delivery.topic] = (running + 1, held) if job.started_at else (running, held + 1)
        return load

    def set_clock(self, server_now: float, *, parked: bool = False) -> None:
        """Note the server's time, just received on the shard's connection, or on that of the parked claim.

        The reply shows that the connection was there when the server wrote it. How long ago that was follows
        from the quickest of the last replies: this process may have stood still since.
        """
        now = asyncio.get_running_loop().time()
        self._server_ahead = ahead = server_now - now
        self._aheads.append(ahead)
        if self.registered is not None and self._is_seen_by(self.registered, parked=parked):
            written_at = now - (max(self._aheads) - ahead)
            self.present_until = max(self.present_until, written_at + self.registered.grace)

    def _is_seen_by(self, registered: Registered, *, parked: bool) -> bool:
        """Whether the open connection is the one that was registered.

        Each must be judged by itself: the server may have closed the other one, and this process not know.
        """
        if parked:
            return self.parked is not None and self.parked.id == registered.parked
        return self.shard.connection.number == registered.number

    def server_time(self, loop_time: float) -> float:
        """The server's time, in seconds since 1970, at an instant of the loop's clock."""
        return loop_time + self._server_ahead


class Job:
    """One delivery, from the claim until it is settled."""

    __slots__ = (
        "_batch",
        "_call",
        "_left",
        "_lost",
        "_runner",
        "claimed_at",
        "deadline",
        "delivery",
        "end",
        "handler",
        "holdings",
        "is_settled",
        "is_settling",
        "leased_until",
        "loop",
        "message",
        "payload",
        "started_at",
        "took",
        "verdict",
        "waited",
    )

    def __init__(
        self,
        delivery: Delivery,
        holdings: Holdings,
        handler: Handler[..., Any],
        loop: asyncio.AbstractEventLoop,
        claimed_at: float,
        leased_until: float,
    ) -> None:
        self.delivery = delivery
        self.holdings = holdings
        self.handler = handler
        self.loop = loop
        self.message: Message | None = None
        """The stored message, once it has been read."""
        self.payload: Any = None
        self.deadline = inf
        """When its handler times out, by the loop's clock; the lease is not extended past it."""
        self.claimed_at = claimed_at
        """When the claim was answered, by the loop's clock."""
        self.leased_until = leased_until
        """When the lease is over at the earliest, by the loop's clock; no handler begins after that."""
        self.started_at = 0.0
        self.took = 0.0
        """How long its handler ran, once it has ended."""
        self.waited: float | None = None
        """How long it was ready before it began, for events."""
        self.end: End | None = None
        self.verdict: Verdict | None = None
        """How it ends, once that is known."""
        self.is_settling = False
        """Whether the lease keeper's thread has begun to settle it. From then on a refusal in the loop does
        not mean that the lease is lost."""
        self.is_settled = False
        """Whether the lease keeper's thread has settled it, because the loop hung."""
        self._runner: asyncio.Task[Any] | None = None
        self._batch: Sequence[Job] = ()
        self._call: Call | None = None
        """Its handler's call in a thread."""
        self._left: float | None = None
        """The seconds to its deadline when that call returned, until the loop knows of it."""
        self._lost: asyncio.Event | None = None

    def begin(self, runner: asyncio.Task[Any] | None, batch: Sequence[Job]) -> None:
        """Note that the handler is about to be called in *runner*, for this job and the rest of its batch."""
        self._runner = runner
        self._batch = batch
        timeout = self.handler.timeout
        self.deadline = inf if timeout is None else self.started_at + timeout
        if runner is not None and not self.handler.is_async:
            caller.set(self)

    def entered(self, call: Call) -> None:
        """Note the call of the handler in a thread; the jobs of a batch share it."""
        for job in self._batch:
            job._call = call

    def left(self, at: float) -> None:
        """Note that the handler has returned in its thread, and stop its clock: the loop may hang."""
        for job in self._batch:
            if at < job.deadline:
                job._left, job.deadline = job.deadline - at, inf

    def resumed(self, at: float) -> None:
        """Let the clock go on for what comes after the call; the time until the loop knew does not count."""
        for job in self._batch:
            job._call = None
            if job._left is not None and job.deadline == inf:  # else it was extended
                job.deadline = at + job._left
            job._left = None

    def is_overdue(self, now: float) -> bool:
        """Whether its handler runs past its deadline; asked by the lease keeper's thread."""
        if (call := self._call) is None:
            return self.deadline <= now
        with call.lock:  # else it could end in time between this answer and what it is asked for
            return self.deadline <= now

    def end_call(self) -> None:
        """End the handler's call in a thread, if there is one; any thread may do this."""
        if (call := self._call) is not None:
            call.end()

    def finish(self, now: float) -> None:
        """Note that the handler has ended, so that its runner is not cancelled any more.

        If it ended past its deadline, it timed out: it blocked the loop, so that nothing could stop it.
        """
        self.took = now - self.started_at
        if self.deadline <= now and self.end is None:
            self.end = End.TIMEOUT
        self._runner = None
        self._batch = ()
        self.deadline = inf

    def time_waited(self) -> float | None:
        """How long the message was ready before it began; None if it has run before, or was replayed.

        It is ready from when it was produced, by the producer's clock, or from the end of its delay. How long
        a message waits that is tried again is not known here.
        """
        if self.message is None or (ready_at := self.message.first_ready_at()) is None:
            return None
        return max(0.0, self.holdings.server_time(self.started_at) - ready_at)

    def extend(self, seconds: float) -> None:
        """Give the handler *seconds* from now; the jobs of a batch share one call and its deadline."""
        deadline = monotonic() + seconds
        for job in self._batch:
            job.deadline = deadline

    @property
    def ended_at(self) -> float | None:
        """When its handler ended, by the loop's clock; None if it has not."""
        return self.started_at + self.took if self.took else None

    def runs_in(self, task: asyncio.Task[Any]) -> bool:
        """Whether its handler is being called in *task*."""
        return self._runner is task

    def stop(self, end: End) -> None:
        """Stop the handler if it runs, or keep it from beginning."""
        if self.end is None:
            self.end = end
            if end is End.LOST and self._lost is not None:
                self._lost.set()
            # The call goes on as long as one job of its batch needs it.
            if self._runner is not None and all(job.end is not None for job in self._batch):
                self._runner.cancel()

    @property
    def lost_event(self) -> asyncio.Event:
        """Set when the lease is lost; created on first use."""
        if self._lost is None:
            self._lost = asyncio.Event()
            if self.end is End.LOST:
                self._lost.set()
        return self._lost
