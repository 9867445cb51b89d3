"""Looks at what concerns the whole queue, where no shard is at the queue's own tag."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mx_rmq.worker.rounds import PER_SECOND
from mx_rmq.worker.service import Service

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from mx_rmq.storage.shard import Shard
    from mx_rmq.worker.holdings import Holdings

_INTERVAL: Final = 0.5
_LONGEST: Final = 1.5
"""Seconds after which one of many workers looks in any case: sooner than a reshard deletes the last keys."""


class BaseWatch(Service):
    """Asks the queue's own tag twice a second, or more seldom if there are many workers.

    Args:
        base: the queue's own tag.
        look: asks it.
        holdings: of the worker on each shard; they know how many workers there are.
    """

    def __init__(
        self, base: Shard, look: Callable[[], Awaitable[None]], holdings: Sequence[Holdings]
    ) -> None:
        super().__init__("layout", base.availability, _INTERVAL)
        self._look = look
        self._holdings = holdings

    async def step(self) -> float:
        """Look once."""
        await self._look()
        workers = max((each.workers for each in self._holdings), default=1)
        return max(_INTERVAL, min(workers / PER_SECOND, _LONGEST))
