"""Looks at what concerns the whole queue, where no shard is at the queue's own tag."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mx_rmq.worker.service import Service

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from mx_rmq.storage.shard import Shard

_INTERVAL: Final = 0.5


class BaseWatch(Service):
    """Asks the queue's own tag twice a second.

    Args:
        base: the queue's own tag.
        look: asks it.
    """

    def __init__(self, base: Shard, look: Callable[[], Awaitable[None]]) -> None:
        super().__init__("layout", base.availability, _INTERVAL)
        self._look = look

    async def step(self) -> float:
        """Look once."""
        await self._look()
        return _INTERVAL
