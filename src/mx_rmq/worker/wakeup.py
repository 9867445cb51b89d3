"""Waits for wake tokens without losing one."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

from redis.exceptions import ResponseError

from mx_rmq.events import WakeFailed, emit

if TYPE_CHECKING:
    from collections.abc import Awaitable, Collection

    from mx_rmq.storage.shard import Shard
    from mx_rmq.worker.alarm import Alarm

_BLIND: Final = 0.1
"""Seconds between two looks while waiting for tokens fails."""


class Wakeup:
    """A blocking pop on a connection of its own.

    The server's own timeouts are coarse (a tenth of a second), so waiting is timed here: the pop
    stays under way when a wait ends early, and a later wait continues with it.
    """

    def __init__(self, shard: Shard, alarm: Alarm, longest: float) -> None:
        self._connection = shard.new_connection(longest)
        self._commands = shard.connection
        self._queue = shard.keys.queue
        self._alarm = alarm
        self._longest = longest
        self._keys: frozenset[str] = frozenset()
        self._answer: asyncio.Future[Any] | None = None
        self._failed = False
        self._client: tuple[int, int] | None = None
        """The number of the connection, and its client id on the server."""
        self._may_unblock = True

    async def wait(self, keys: Collection[str], seconds: float) -> Collection[str]:
        """Wait for a token at any of *keys*, for *seconds* or until the alarm rings; returns keys to look at.

        An earlier pop that is still under way is waited for too. If it does not cover all the keys, it
        is ended and replaced by a new one.
        """
        if self._answer is not None and not self._keys.issuperset(keys):
            if not await self._unblock():
                suspects = self._keys
                await self.close()  # it may just have taken a token, so its keys are looked at
                return suspects
            if not self._answer.done() or self._answer.exception() or self._answer.result() is not None:
                self._alarm.ring()
            else:
                self._answer = None
        if self._answer is None and keys:
            self._keys = frozenset(keys)
            known = not self._may_unblock or (
                self._client is not None and self._client[0] == self._connection.number
            )
            # A separate future: redis-py may swallow the cancellation of the task that connects.
            self._answer = asyncio.ensure_future(self._pop(keys) if known else self._identify_and_pop(keys))
            self._answer.add_done_callback(self._alarm.ring)
        await self._alarm.wait(seconds)
        if self._answer is None or not self._answer.done():
            return ()
        answer, self._answer = self._answer, None
        try:
            reply = answer.result()
        except ResponseError as error:  # one of the keys has another type; the reply does not say which
            if not self._failed:
                self._failed = True
                emit(WakeFailed(queue=self._queue, keys=sorted(self._keys), error=str(error)))
            await self._alarm.wait(min(seconds, _BLIND))
            return self._keys
        self._failed = False
        return () if reply is None else (reply[0].decode(),)

    def _pop(self, keys: Collection[str]) -> Awaitable[Any]:
        return self._connection.execute_command("BLPOP", *keys, self._longest)

    async def _identify_and_pop(self, keys: Collection[str]) -> Any:
        """On a new connection, learn the client id by which the pop can be ended, then pop."""
        try:
            number = await self._connection.execute_command("CLIENT", "ID")
            self._client = self._connection.number, number
        except ResponseError:
            self._may_unblock = False
        return await self._pop(keys)

    async def _unblock(self) -> bool:
        """End the pop under way and wait for its reply; False if that is not possible."""
        answer, client = self._answer, self._client
        assert answer is not None
        if not self._may_unblock or client is None or client[0] != self._connection.number:
            return False
        try:
            await self._commands.execute_command("CLIENT", "UNBLOCK", client[1])
        except ResponseError:  # the user has no right to do that
            self._may_unblock = False
            return False
        await asyncio.wait([answer], timeout=_BLIND)
        return answer.done()

    async def close(self) -> None:
        """Close the connection and cancel the pop."""
        await self._connection.close()
        if self._answer is not None:
            self._answer.cancel()
            await asyncio.gather(self._answer, return_exceptions=True)
            self._answer = None
