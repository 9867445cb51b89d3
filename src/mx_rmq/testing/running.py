"""A queue with its handlers, on a private server, with a clock that the test moves."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Final

from mx_rmq.checks import check_seconds
from mx_rmq.errors import NotDrained
from mx_rmq.operating.drain import Backlog, drained
from mx_rmq.testing.clock import Clock
from mx_rmq.testing.records import RecordingStore, Records

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from mx_rmq.checks import Duration
    from mx_rmq.queue import RedisMessageQueue
    from mx_rmq.testing.records import DeadMessage, DoneMessage, ProducedMessage

_LONGEST: Final = 0.02
"""Most seconds between two looks at what is left."""
_MOMENT: Final = 0.5
"""Seconds for which ``advance`` lets handlers finish before it goes on without them."""


@asynccontextmanager
async def running(queue: RedisMessageQueue) -> AsyncIterator[RunningQueue]:
    """Run the handlers of a queue on a private server, which is gone after the block.

    The queue must not be open. Its handlers, middleware and configuration stay as they are; only its URL is
    another one inside the block. Handlers that still run at the end are cancelled.
    """
    clock, records = Clock(), Records(queue._handlers)
    new_store = partial(RecordingStore, records=records, clock=clock)
    async with queue.override("embedded://", new_store=new_store):
        with records.listening():
            if queue._handlers:
                await queue.start()
            else:
                await queue.open()
            try:
                yield RunningQueue(queue, clock, records)
            finally:
                if (worker := queue._lifecycle.worker) is not None:
                    worker.hurry()
                await queue.close()


class RunningQueue:
    """A queue inside ``running``: what happened in it, and a clock to move."""

    def __init__(self, queue: RedisMessageQueue, clock: Clock, records: Records) -> None:
        self.queue = queue
        """The queue itself."""
        self._clock = clock
        self._records = records

    def produced(self, topic: str | None = None) -> list[ProducedMessage]:
        """The messages stored since the block began, in order: of a topic, or all."""
        return [message for message in self._records.produced if topic in (None, message.topic)]

    @property
    def done(self) -> list[DoneMessage]:
        """The messages whose handlers succeeded, in order."""
        return list(self._records.done)

    @property
    def dead(self) -> list[DeadMessage]:
        """The messages that went to the DLQ, in order."""
        return list(self._records.dead)

    async def drain(
        self,
        timeout: Duration | None = 10.0,  # noqa: ASYNC109 - the error says what is left
        *,
        raise_errors: bool = False,
    ) -> None:
        """Wait until nothing is pending, running or due in the topics that have a handler.

        Messages that are delayed and not due are not waited for: use ``advance``.

        Args:
            timeout: seconds, None for no limit.
            raise_errors: raise the first error of a handler since the last such call, with its traceback.
                A ``RetryLater`` is no error unless its message dies of it. A message that failed without an
                exception of its handler, for example because it expired, raises ``MessageFailed``.

        Raises:
            NotDrained: messages are left; says which.
        """
        seconds = check_seconds("timeout", timeout, none="no limit")
        try:
            await self._idle(seconds)
        except NotDrained as left:
            if raise_errors and (failure := self._records.first_failure()) is not None:
                raise failure from left
            raise
        if raise_errors and (failure := self._records.first_failure()) is not None:
            raise failure

    async def advance(self, seconds: Duration) -> None:
        """Let time pass for the queue: delays, retries, leases, lifetimes and ``dedup_for``.

        Everything that becomes due on the way runs at its time, one instant after the other, so an hour of
        retries takes milliseconds. Each time the handlers may take half a second; then the clock goes on,
        and those that still run keep their messages. The handlers' own clock does not move, so their
        timeouts do not come sooner.
        """
        left: float = check_seconds("the time for advance()", seconds)
        await self._settle()
        while 0 < (wait := await self._next_due()) <= left:
            await self._move(wait)
            left = max(0.0, left - wait)
            await self._settle()
        await self._move(left)
        await self._settle()

    async def _idle(self, timeout: float | None) -> None:  # noqa: ASYNC109 - the error says what is left
        lifecycle = self.queue._lifecycle
        shards = (await lifecycle.open()).shards
        topics = list(self.queue._handlers)
        if not topics:
            return
        backlog = Backlog(shards, topics)
        await drained(backlog, timeout=timeout, served_here=lifecycle.served, longest=_LONGEST)
        while not self._records.is_complete:  # noqa: ASYNC110 - the answer may come in another thread
            await asyncio.sleep(0.001)

    async def _settle(self) -> None:
        with suppress(NotDrained):
            await self._idle(_MOMENT)

    async def _next_due(self) -> float:
        """Seconds until the next delayed message is due; below 0 if none is delayed."""
        waits = [-1.0]
        for shard in (await self.queue._lifecycle.open()).shards:
            found = await shard.operating.next_delay()
            if found.state == "WAITING":
                waits.append(found.seconds)
        return min((wait for wait in waits if wait >= 0), default=-1.0)

    async def _move(self, seconds: float) -> None:
        move = partial(self._clock.move, seconds)
        worker = self.queue._lifecycle.worker
        if worker is None:
            move()
        else:
            await worker.move_clock(move)
