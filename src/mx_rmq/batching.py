"""Group commit: calls that arrive while one is on the wire leave together in the next.

Knows nothing of Redis. No timers and no added latency: the first call leaves at once.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

Item = TypeVar("Item")
Result = TypeVar("Result")


class Batcher(Generic[Item, Result]):
    """Sends items in batches, one batch at a time, and gives each its own result.

    Args:
        send: takes a batch and returns one result per item, in order. If it raises, every item of
            that batch gets the error.
        most: items per batch.
        weigh: what an item weighs, if batches are bounded by weight too.
        most_weight: the weight at which a batch is full; a heavier item goes alone.
    """

    def __init__(
        self,
        send: Callable[[Sequence[Item]], Awaitable[Sequence[Result]]],
        *,
        most: int = 1000,
        weigh: Callable[[Item], int] | None = None,
        most_weight: int = 4 * 1024 * 1024,
    ) -> None:
        self._send = send
        self._most = most
        self._weigh = weigh
        self._most_weight = most_weight
        self._items: list[Item] = []
        self._futures: list[asyncio.Future[Result] | None] = []
        self._sender: asyncio.Task[None] | None = None
        self._leader: asyncio.Future[None] | None = None
        self._alone = True
        """Whether the last batch had one item and nobody waited behind it."""

    async def call(self, item: Item) -> Result:
        """The result of an item.

        A caller who seems to be the only one sends by itself, which spares two turns of the event
        loop; those who come meanwhile leave together in the next batch.
        """
        if not self._alone or not self.idle:
            return await self.add(item)
        self._leader = asyncio.get_running_loop().create_future()
        try:
            (result,) = await self._send([item])
            return result
        finally:
            self._leader.set_result(None)
            self._leader = None
            self._begin()

    def add(self, item: Item) -> asyncio.Future[Result]:
        """Put an item into the next batch; the future is its result."""
        future: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        self._append(item, future)
        return future

    def put(self, item: Item) -> None:
        """Put an item into the next batch; nobody waits for its result."""
        self._append(item, None)

    def _append(self, item: Item, future: asyncio.Future[Result] | None) -> None:
        self._items.append(item)
        self._futures.append(future)
        if self.idle:
            self._begin()

    def _begin(self) -> None:
        self._alone = len(self._items) < 2
        if self._items:
            self._sender = asyncio.create_task(self._run())

    @property
    def idle(self) -> bool:
        """True if nothing is waiting or on the wire."""
        return self._sender is None and self._leader is None

    async def drained(self) -> None:
        """Wait until nothing is waiting or on the wire."""
        while under_way := self._sender or self._leader:
            await asyncio.wait([under_way])

    def cancel(self) -> None:
        """Give up what is waiting or on the wire."""
        for future in self._futures:
            if future is not None:
                future.cancel()
        self._items, self._futures = [], []
        if self._sender is not None:
            self._sender.cancel()

    async def _run(self) -> None:
        try:
            while self._items:
                count = self._fill()
                items, self._items = self._items[:count], self._items[count:]
                futures, self._futures = self._futures[:count], self._futures[count:]
                self._alone = count == 1
                await self._deliver(items, futures)
        finally:
            self._sender = None

    def _fill(self) -> int:
        """How many items the next batch takes."""
        count = min(len(self._items), self._most)
        if self._weigh is not None:
            weight = 0
            for n in range(count):
                weight += self._weigh(self._items[n])
                if weight > self._most_weight:
                    return max(n, 1)
        return count

    async def _deliver(self, items: list[Item], futures: list[asyncio.Future[Result] | None]) -> None:
        try:
            results = await self._send(items)
            if len(results) != len(items):
                raise ValueError(f"{len(results)} results for {len(items)} items")
        except asyncio.CancelledError:
            for future in futures:
                if future is not None:
                    future.cancel()
            raise
        except Exception as error:
            for future in futures:
                if future is not None and not future.done():
                    future.set_exception(error)
                    future.exception()  # whoever does not look has said that it does not matter
            return
        for future, result in zip(futures, results, strict=True):
            if future is not None and not future.done():
                future.set_result(result)
