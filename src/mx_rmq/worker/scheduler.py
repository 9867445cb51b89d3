"""Scheduling: messages that are due become pending, at their time."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from mx_rmq.worker.service import Service
from mx_rmq.worker.wakeup import Wakeup

if TYPE_CHECKING:
    from mx_rmq.shard import Shard

logger = logging.getLogger("mx_rmq.worker")

_LONGEST = 5.0


class Scheduler(Service):
    """Promotes what is due on one shard; sleeps exactly until the next is, or until woken."""

    def __init__(self, shard: Shard) -> None:
        super().__init__("scheduler")
        self._store = shard.store
        self._keys = [shard.keys.of_queue("delay_wake")]
        self._wakeup = Wakeup(shard, self.nudge, _LONGEST)

    async def step(self) -> None:
        """Promote what is due now, then wait for the next."""
        promotion = await self._store.promote()
        for id_ in promotion.poisoned:
            logger.error("message.poisoned", extra={"id": id_, "place": "delayed"})
        wait = _LONGEST if promotion.wait is None else min(promotion.wait, _LONGEST)
        if wait > 0:
            await self._wakeup.wait(self._keys, wait)

    async def close(self) -> None:
        """Give up waiting for tokens."""
        await self._wakeup.close()
