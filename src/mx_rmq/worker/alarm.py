"""An alarm: wakes the one coroutine that waits for it."""

from __future__ import annotations

import asyncio


class Alarm:
    """Any code may ring it; one coroutine waits for it.

    A ring before the wait begins is not lost. It is cheaper than an ``asyncio.Event`` with a timeout,
    which costs a task for each wait.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._rung = False
        self._waiter: asyncio.Future[None] | None = None

    def ring(self, *_: object) -> None:
        """End the wait under way, or else the next one."""
        self._rung = True
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def wait(self, seconds: float) -> None:
        """Wait until it rings, at most *seconds*."""
        if not self._rung:
            self._waiter = self._loop.create_future()
            timer = self._loop.call_later(seconds, self.ring)
            try:
                await self._waiter
            finally:
                timer.cancel()
                self._waiter = None
        self._rung = False
