"""The lifespan: a context manager of the user around everything that a worker does."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from mx_rmq.checks import refusal
from mx_rmq.events import LifespanFailed, emit
from mx_rmq.message import describe

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractAsyncContextManager

    Make = Callable[[], AbstractAsyncContextManager[Any]]


class Lifespan:
    """Enters and leaves a context manager in one task of its own.

    A task group or a cancel scope in it must be left in the task that entered it.

    Args:
        make: makes the context manager; None if the queue has none.
        queue: the queue's name, for events.
    """

    def __init__(self, make: Make | None, queue: str = "") -> None:
        self._make = make
        self._queue = queue
        self.state: Any = None
        """What the context manager yielded."""
        self._opened, self._closing = asyncio.Event(), asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Enter the context manager; raises what it raises."""
        if self._make is None:
            return
        task = self._task = asyncio.create_task(self._run(self._make), name="mx-rmq-lifespan")
        opened = asyncio.create_task(self._opened.wait())
        try:
            await asyncio.wait([task, opened], return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            task.cancel()
            await asyncio.wait([task])
            raise
        finally:
            opened.cancel()
        if not self._opened.is_set():
            task.result()

    async def close(self) -> None:
        """Leave the context manager; cancelling this cancels that."""
        if self._task is not None:
            self._closing.set()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self, make: Make) -> None:
        try:
            manager = make()
            if not hasattr(manager, "__aenter__"):
                rule = "a function that returns an async context manager; use @asynccontextmanager"
                raise refusal("lifespan", rule, make)
            async with manager as self.state:
                self._opened.set()
                await self._closing.wait()
        except asyncio.CancelledError as error:
            if self._closing.is_set():
                said = "it was not left in time, and cancelled"
                emit(LifespanFailed(queue=self._queue, error=said), error)
            raise
        except Exception as error:
            if not self._opened.is_set():
                raise
            emit(LifespanFailed(queue=self._queue, error=describe(error)), error)
