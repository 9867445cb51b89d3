"""The scheduler: makes delayed messages pending when they are due."""

from __future__ import annotations

import asyncio
from math import inf
from random import random
from typing import TYPE_CHECKING, Final

from redis.exceptions import ResponseError

from mx_rmq.events import MessagePoisoned, emit
from mx_rmq.storage.turns import Turns
from mx_rmq.worker.rounds import FEW, PER_SECOND
from mx_rmq.worker.service import Service
from mx_rmq.worker.wakeup import Wakeup

if TYPE_CHECKING:
    from mx_rmq.worker.holdings import Holdings

_LONGEST = 5.0
"""Seconds after which it looks even if no wake token arrives."""
_TERM: Final = 2.5
"""Seconds for which one of many workers is the one that is woken."""
_LATER: Final = 0.2
"""Seconds after a due time at which the other ones begin to look whether it was missed."""


class Scheduler(Service):
    """Promotes due messages on one shard; sleeps exactly until the next is due, or until woken.

    If there are many workers, one of them does so. The others look now and then, and soon after a due time
    that they know of; one of them takes its place if it is gone.
    """

    def __init__(self, holdings: Holdings, worker: str) -> None:
        shard = holdings.shard
        super().__init__("scheduler", shard.availability, _LONGEST)
        self._holdings = holdings
        self._store = shard.store
        self._turns = Turns(shard.store, "scheduler", worker)
        self._keys = [shard.keys.of_queue("delay_wake")]
        self._wakeup = Wakeup(shard, self.alarm, _LONGEST)
        self._is_woken = True
        """Whether it waits for tokens."""
        self._looked_at = -inf
        self._due_at: float | None = None
        """When the next message is due, by the loop's clock, as last heard."""
        self._share = 0.0
        """Where in the time over which many workers spread their looks this one has its next."""
        self._loop = asyncio.get_running_loop()

    def look(self) -> None:
        """Look now."""
        self._looked_at = -inf
        self.alarm.ring()

    async def step(self) -> float:
        """Promote the messages that are due; returns the seconds until the next one is."""
        if not self._many:
            self._is_woken = True
        elif self._is_woken or self._left() <= 0:
            self._is_woken = await self._is_chosen()
        if self._left() <= 0:
            await self._look()
        # The number of workers is heard of elsewhere; with fewer of them, each looks more often.
        return min(self._left(), _TERM / 2 if self._many else _LONGEST)

    async def _look(self) -> None:
        """Promote the messages that are due, and note when the next one is."""
        expects = self._looked_at == -inf or self._due_at is not None
        looked_at, due_at = self._loop.time(), None
        if expects or (await self._store.next_delay()).state != "NO_TASK":
            promotion = await self._store.promote()
            for id_ in promotion.poisoned:
                emit(MessagePoisoned(queue=self._availability.queue, id=id_, place="delayed"))
            if promotion.wait is not None:
                due_at = self._loop.time() + promotion.wait
        self._looked_at, self._due_at = looked_at, due_at
        self._share = random()  # noqa: S311 - spreads the work of many workers

    @property
    def _many(self) -> bool:
        return self._holdings.workers > FEW

    def _left(self) -> float:
        """Seconds until it is time to look."""
        now = self._loop.time()
        if self._is_woken:
            due_at = inf if self._due_at is None else self._due_at
            return min(due_at, self._looked_at + _LONGEST) - now
        # Together they look as often as one would who comes several times a second.
        apart = self._holdings.workers / PER_SECOND
        due_at = inf if self._due_at is None else self._due_at + _LATER + self._share * apart
        return min(due_at, self._looked_at + (1 + self._share) * apart) - now

    async def _is_chosen(self) -> bool:
        """Whether this worker is the one of many that is woken."""
        try:
            return await (self._turns.keep(_TERM) if self._is_woken else self._turns.take(_TERM))
        except ResponseError:  # no right to write the key, or it is spoilt: each waits for tokens
            return True

    async def wait(self, seconds: float) -> None:
        """Wait, but only until a message arrives that is due earlier."""
        until = self._loop.time() + seconds
        while not self.stopping and (left := until - self._loop.time()) > 0:
            if await self._wakeup.wait(self._keys if self._is_woken else (), left):
                self._looked_at = -inf
            if self._left() <= 0:
                return

    async def close(self) -> None:
        """Stop waiting for tokens."""
        await self._wakeup.close()
