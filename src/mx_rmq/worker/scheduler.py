"""The scheduler: makes delayed messages pending when they are due."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mx_rmq.events import MessagePoisoned, emit
from mx_rmq.worker.service import Service
from mx_rmq.worker.wakeup import Wakeup

if TYPE_CHECKING:
    from mx_rmq.storage.shard import Shard

_LONGEST = 5.0
"""Seconds after which it looks even if no wake token arrives."""


class Scheduler(Service):
    """Promotes due messages on one shard; sleeps exactly until the next is due, or until woken."""

    def __init__(self, shard: Shard) -> None:
        super().__init__("scheduler", shard.availability, _LONGEST)
        self._store = shard.store
        self._keys = [shard.keys.of_queue("delay_wake")]
        self._wakeup = Wakeup(shard, self.alarm, _LONGEST)

    async def step(self) -> float:
        """Promote the messages that are due; returns the seconds until the next one is."""
        promotion = await self._store.promote()
        for id_ in promotion.poisoned:
            emit(MessagePoisoned(queue=self._availability.queue, id=id_, place="delayed"))
        return _LONGEST if promotion.wait is None else min(promotion.wait, _LONGEST)

    async def wait(self, seconds: float) -> None:
        """Wait, but only until a message arrives that is due earlier."""
        await self._wakeup.wait(self._keys, seconds)

    async def close(self) -> None:
        """Stop waiting for tokens."""
        await self._wakeup.close()
