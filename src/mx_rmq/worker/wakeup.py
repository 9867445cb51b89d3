"""Waiting for a wake token, without ever dropping one."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection

    from mx_rmq.link import Link
    from mx_rmq.shard import Shard


class Wakeup:
    """A blocking pop on a connection of its own.

    The server's own timeouts are coarse (a tenth of a second), so waiting is timed here: the pop
    stays under way when a wait ends early, and a later wait goes on with it.
    """

    def __init__(self, shard: Shard, longest: float) -> None:
        self._link: Link = shard.blocking_link(longest)
        self._longest = longest
        self._keys: frozenset[str] = frozenset()
        self._answer: asyncio.Task[str | None] | None = None

    async def wait(self, keys: Collection[str], seconds: float, *events: asyncio.Event) -> Collection[str]:
        """Wait for a token at any of *keys*, for *seconds* or for an event; returns where to look.

        An earlier pop that is still under way is waited for too. If it does not cover all the keys it
        is given up for a new one, and since it may just have taken a token, its keys are returned.
        """
        if self._answer is not None and not self._keys.issuperset(keys):
            suspects = self._keys
            await self.close()
            return suspects
        if self._answer is None and keys:
            self._keys = frozenset(keys)
            self._answer = asyncio.create_task(self._pop())
        waits = [asyncio.create_task(event.wait()) for event in events]
        pops = [] if self._answer is None else [self._answer]
        try:
            await asyncio.wait([*pops, *waits], timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
        if self._answer is None or not self._answer.done():
            return ()
        answer, self._answer = self._answer, None
        key = answer.result()
        return () if key is None else (key,)

    async def _pop(self) -> str | None:
        reply = await self._link.execute_command("BLPOP", *self._keys, self._longest)
        return None if reply is None else reply[0].decode()

    async def close(self) -> None:
        """Give the pop up."""
        await self._link.close()
        if self._answer is not None:
            self._answer.cancel()
            await asyncio.gather(self._answer, return_exceptions=True)
            self._answer = None
