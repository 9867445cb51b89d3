"""Group commit: items that arrive while a call is on the wire are sent together in the next one.

Independent of Redis. No timers and no added latency: the first call is sent at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from itertools import accumulate
from typing import Generic, TypeVar

from mx_rmq.limits import BATCH, REPLY_BYTES

Item = TypeVar("Item")
Result = TypeVar("Result")
Send = Callable[[Sequence[Item]], Awaitable[Sequence[Result]]]

_LEAST = 16
"""The smallest batch worth splitting between two senders."""

_LEAST_WEIGHT = 64 * 1024
"""The lowest weight limit that ``shrink`` sets."""


class Batcher(Generic[Item, Result]):
    """Sends items in batches and gives each its own result.

    Args:
        senders: each takes a batch and returns one result per item, in order; if it raises, every
            item of that batch gets the error. A sender has one batch on the wire at a time. With two,
            the results of one batch are handed out while the server works on the other.
        most: the most items in a batch.
        weigh: returns the weight of an item, if batches are bounded by weight too.
        most_weight: the most weight in a batch; a heavier item is sent alone.
    """

    def __init__(
        self,
        *senders: Send[Item, Result],
        most: int = BATCH,
        weigh: Callable[[Item], int] | None = None,
        most_weight: int = REPLY_BYTES,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._senders = len(senders)
        self._free = list(senders)
        self._most = most
        self._weigh = weigh
        self._most_weight = self._bound = most_weight
        self._items: list[Item] = []
        self._futures: list[asyncio.Future[Result] | None] = []
        self._on_the_wire = 0
        self._flights: dict[Send[Item, Result], tuple[list[Item], list[asyncio.Future[Result] | None]]] = {}
        """What each sender has on the wire."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._at_rest: asyncio.Future[None] | None = None
        """What ``drained`` waits for: resolved when nothing is waiting or on the wire."""
        self._alone = True
        """Whether callers seem to come one at a time, judged by the last batch."""

    def call(self, item: Item) -> Awaitable[Result]:
        """Send an item; the awaitable is its result.

        A caller that seems to be the only one sends directly, which saves two turns of the event loop.
        Items that arrive during that call are sent together in the next batch.
        """
        return self._lead(item) if self._alone and self.idle else self.add(item)

    async def _lead(self, item: Item) -> Result:
        send = self._free.pop()
        try:
            (result,) = await send([item])
            return result
        finally:
            self._alone = len(self._items) < 2
            self._free_sender(send)

    def add(self, item: Item) -> asyncio.Future[Result]:
        """Put an item into the next batch; the future is its result."""
        future: asyncio.Future[Result] = self._loop.create_future()
        self._items.append(item)
        self._futures.append(future)
        if self._free:
            self._begin()
        return future

    def put(self, item: Item) -> None:
        """Put an item into the next batch; its result is dropped."""
        self._items.append(item)
        self._futures.append(None)
        if self._free:
            self._begin()

    @property
    def idle(self) -> bool:
        """True if nothing is waiting or on the wire."""
        return len(self._free) == self._senders

    async def drained(self) -> None:
        """Wait until nothing is waiting or on the wire."""
        if not self.idle:
            if self._at_rest is None:
                self._at_rest = self._loop.create_future()
            await asyncio.shield(self._at_rest)

    def cancel(self) -> None:
        """Cancel everything that is waiting or on the wire."""
        for future in self._futures:
            if future is not None:
                future.cancel()
        self._items, self._futures = [], []
        for task in self._tasks:
            task.cancel()

    def give_up(self, over: Callable[[Item], bool], error: Exception) -> None:
        """Raise *error* to the callers of the items for which *over* is true, waiting or on the wire.

        Waiting items are removed and not sent. Items on the wire may still arrive.
        """
        for items, futures in self._flights.values():
            for item, future in zip(items, futures, strict=True):
                if over(item):
                    _fail(future, error)
        waiting, self._items, self._futures = list(zip(self._items, self._futures, strict=True)), [], []
        for item, future in waiting:
            if over(item):
                _fail(future, error)
            else:
                self._items.append(item)
                self._futures.append(future)

    def turn_away(self, which: Callable[[Item], bool], error: Exception) -> None:
        """Raise *error* to the callers of those waiting items for which *which* is true; none was sent."""
        waiting, self._items, self._futures = list(zip(self._items, self._futures, strict=True)), [], []
        for item, future in waiting:
            if future is not None and which(item):
                _fail(future, error)
            else:
                self._items.append(item)
                self._futures.append(future)

    def shrink(self) -> None:
        """Send smaller batches, after one was lost while being sent. Each success makes them larger again."""
        self._bound = max(_LEAST_WEIGHT, self._bound // 2)

    # -- senders

    def _free_sender(self, send: Send[Item, Result]) -> None:
        self._free.append(send)
        if self._items:
            self._begin()
        elif self._at_rest is not None and self.idle:
            self._at_rest.set_result(None)
            self._at_rest = None

    def _begin(self) -> None:
        send = self._free.pop()
        task = asyncio.create_task(self._run(send))
        self._tasks.add(task)
        task.add_done_callback(partial(self._ended, send))

    def _ended(self, send: Send[Item, Result], task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if task.cancelled():  # the program ends, or ``cancel`` was called
            self.cancel()
        self._free_sender(send)

    # -- batches

    async def _run(self, send: Send[Item, Result]) -> None:
        while self._items:
            count = self._fill()
            items, self._items = self._items[:count], self._items[count:]
            futures, self._futures = self._futures[:count], self._futures[count:]
            self._alone = count == 1
            self._on_the_wire += count
            self._flights[send] = items, futures
            try:
                await self._deliver(send, items, futures)
                if self._items:
                    # Callers that have just got their results may call again at once, so let them run first.
                    # Without them this batch would be small, and so would all that follow.
                    await asyncio.sleep(0)
            finally:
                self._on_the_wire -= count
                del self._flights[send]

    def _fill(self) -> int:
        """The size of the next batch: a sender's share of all items, so that no sender takes them all."""
        share = -(-(len(self._items) + self._on_the_wire) // self._senders)
        count = min(len(self._items), self._most, max(share, _LEAST))
        if self._weigh is not None:
            for n, weight in enumerate(accumulate(map(self._weigh, self._items[:count]))):
                if weight > self._bound:
                    return max(n, 1)
        return count

    async def _deliver(
        self, send: Send[Item, Result], items: list[Item], futures: list[asyncio.Future[Result] | None]
    ) -> None:
        try:
            results = await send(items)
            if len(results) != len(items):
                raise ValueError(f"{len(results)} results for {len(items)} items")
        except asyncio.CancelledError:
            for future in futures:
                if future is not None:
                    future.cancel()
            raise
        except Exception as error:
            for future in futures:
                _fail(future, error)
            return
        if self._bound < self._most_weight:
            self._bound = min(self._most_weight, self._bound * 2)
        for future, result in zip(futures, results, strict=True):
            if future is not None and not future.done():
                try:
                    future.set_result(result)
                except asyncio.InvalidStateError:
                    if not future.cancelled():  # Ctrl-C cancels it between any two instructions, also here
                        raise


def _fail(future: asyncio.Future[Result] | None, error: Exception) -> None:
    if future is not None and not future.done():
        try:
            future.set_exception(error)
            future.exception()  # mark as retrieved, so an abandoned future logs no warning
        except asyncio.InvalidStateError:
            if not future.cancelled():  # Ctrl-C, as above
                raise
