"""Looks at the queue that all pages and tabs share, so that many readers cost the server no more than one."""

from __future__ import annotations

import asyncio
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Any, Final, Generic, Literal, TypeVar

from mx_rmq.errors import ServerUnavailable
from mx_rmq.limits import MOST_ACTS
from mx_rmq.operating.figures import FiguresReader

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from mx_rmq.operating.doctor import Checkup
    from mx_rmq.operating.figures import Figures
    from mx_rmq.operating.history import History
    from mx_rmq.operating.letters import DeadGroups
    from mx_rmq.operating.trail import Trail
    from mx_rmq.web.needs import Queue

T = TypeVar("T")

Range = Literal["1h", "24h", "72h"]
RANGES: Final[dict[Range, int]] = {"1h": 60, "24h": 24 * 60, "72h": 72 * 60}
"""Minutes that charts show."""

_SHARE: Final = 0.05
"""The most of the time that is spent on one kind of look, so long ones are made less often."""
_PATIENCE: Final = 5.0
"""Seconds that a look may take."""
_ALL: Final = 100_000
"""More topics than are ever shown."""


class Shared(Generic[T]):
    """A value that many ask for and one reads.

    Args:
        read: reads it.
        lasts: seconds for which it is given to others before it is read again.
    """

    def __init__(self, read: Callable[[], Awaitable[T]], lasts: float) -> None:
        self._read = read
        self._lasts = lasts
        self._reading: asyncio.Task[T] | None = None
        self._fresh_until = 0.0

    async def get(self) -> T:
        """The value, at most a few seconds old.

        Raises:
            ServerUnavailable: it could not be read in time.
        """
        reading = self._reading
        if reading is None or (reading.done() and (_failed(reading) or monotonic() >= self._fresh_until)):
            reading = self._reading = asyncio.create_task(self._look())
            reading.add_done_callback(_failed)  # marks an error as retrieved, should every caller be gone
        return await asyncio.shield(reading)

    def forget(self) -> None:
        """Read it anew for the next caller, as after a change."""
        self._fresh_until = 0.0

    async def _look(self) -> T:
        began = monotonic()
        try:
            async with asyncio.timeout(_PATIENCE):
                value = await self._read()
        except TimeoutError:
            raise ServerUnavailable(f"the server has not answered for {_PATIENCE:g} s") from None
        now = monotonic()
        self._fresh_until = now + max(self._lasts, (now - began) / _SHARE)
        return value


def _failed(task: asyncio.Task[Any]) -> bool:
    return task.cancelled() or task.exception() is not None


class Looks:
    """What pages read of a queue, each kind at most so often.

    Args:
        queue: is open.
    """

    def __init__(self, queue: Queue) -> None:
        reader = FiguresReader(queue, most=_ALL)
        self._figures = Shared(reader.read, 0.9)
        self._groups: Shared[DeadGroups] = Shared(lambda: queue.dlq.groups(), 5.0)
        self._checkup: Shared[Checkup] = Shared(lambda: queue.doctor(audit_for=0), 60.0)
        self._trail: Shared[Trail] = Shared(lambda: queue.trail(MOST_ACTS), 5.0)
        self._histories: dict[Range, Shared[History]] = {
            name: Shared(partial(queue.history, minutes=minutes), lasts)
            for (name, minutes), lasts in zip(RANGES.items(), (10.0, 60.0, 180.0), strict=True)
        }

    async def figures(self) -> Figures:
        """How every topic stands and how fast it goes, and the live workers."""
        return await self._figures.get()

    async def groups(self) -> DeadGroups:
        """The groups of dead messages."""
        return await self._groups.get()

    async def checkup(self) -> Checkup:
        """What the doctor says, without an audit."""
        return await self._checkup.get()

    async def trail(self) -> Trail:
        """What operators did."""
        return await self._trail.get()

    async def history(self, over: Range) -> History:
        """What happened in all topics together."""
        return await self._histories[over].get()

    def forget(self) -> None:
        """Look anew after a change, so that the next page shows it."""
        for shared in (self._figures, self._groups, self._trail):
            shared.forget()
