"""A delivery in a worker's hands."""

from __future__ import annotations

import asyncio
from enum import Enum
from math import inf
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mx_rmq.handlers import Handler
    from mx_rmq.message import Message
    from mx_rmq.records import Delivery
    from mx_rmq.shard import Shard


class End(Enum):
    """Why a running handler is to end before it has."""

    TIMEOUT = "timeout"
    LOST = "lost"
    LATE = "late"
    """Its lease may have run out before it began."""
    STOP = "stop"


class Settlement(NamedTuple):
    """What the server is to be told of a delivery."""

    verb: str
    """complete | retry | move_to_dlq | release"""
    seconds: float = 0.0
    """Of the delay before the next attempt, or for which the id stays taken."""
    body: bytes = b""
    error: bytes = b""


SETTLED: Final = Settlement("settled")
"""Of a job that the lease keeper's thread has settled, because the loop hung."""


class Job:
    """One delivery, from the claim until it is settled."""

    __slots__ = (
        "_batch",
        "_lost",
        "_runner",
        "claimed_at",
        "deadline",
        "delivery",
        "end",
        "handler",
        "leased_until",
        "loop",
        "message",
        "payload",
        "settlement",
        "shard",
        "started_at",
    )

    def __init__(
        self,
        delivery: Delivery,
        shard: Shard,
        handler: Handler[Any],
        loop: asyncio.AbstractEventLoop,
        claimed_at: float,
        leased_until: float,
    ) -> None:
        self.delivery = delivery
        self.shard = shard
        self.handler = handler
        self.loop = loop
        self.message: Message | None = None
        """What was stored, once it has been read."""
        self.payload: Any = None
        self.deadline = inf
        """When its handler times out, by the loop's clock; the lease is not extended past it."""
        self.claimed_at = claimed_at
        """When the claim was sent, by the loop's clock."""
        self.leased_until = leased_until
        """When the lease is over at the earliest, by the loop's clock; nothing begins after that."""
        self.started_at = 0.0
        self.end: End | None = None
        self.settlement: Settlement | None = None
        """How it is to be settled, from the moment that this is known."""
        self._runner: asyncio.Task[Any] | None = None
        self._batch: Sequence[Job] = ()
        self._lost: asyncio.Event | None = None

    def begin(self, runner: asyncio.Task[Any] | None, batch: Sequence[Job]) -> None:
        """The handler is about to be called in *runner*, for this job and the others of its batch."""
        self._runner = runner
        self._batch = batch
        timeout = self.handler.timeout
        self.deadline = inf if timeout is None else self.started_at + timeout

    def finish(self) -> None:
        """The handler has ended; nothing can stop it any more."""
        self._runner = None
        self._batch = ()
        self.deadline = inf

    def extend(self, seconds: float) -> None:
        """Give the handler *seconds* from now; the jobs of a batch share one call, and so its time."""
        deadline = self.loop.time() + seconds
        for job in self._batch:
            job.deadline = deadline

    def stop(self, end: End) -> None:
        """End the handler from outside, if it still runs, or before it begins."""
        if self.end is None:
            self.end = end
            if end is End.LOST and self._lost is not None:
                self._lost.set()
            # As long as one job of a batch needs it, the call goes on.
            if self._runner is not None and all(job.end is not None for job in self._batch):
                self._runner.cancel()

    @property
    def lost_event(self) -> asyncio.Event:
        """Set when the lease is lost; made only if somebody asks."""
        if self._lost is None:
            self._lost = asyncio.Event()
            if self.end is End.LOST:
                self._lost.set()
        return self._lost
