"""One pipelined connection: commands are written at once, replies are resolved in order.

redis-py opens the connection (TLS, authentication, database). Then ``Wire`` takes over its transport, so
that a call needs no pool check-out, no lock and no task.
"""

from __future__ import annotations

import asyncio
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Any, Final

from redis.asyncio import ConnectionPool
from redis.exceptions import RedisError

from mx_rmq.errors import ConfigError, ServerUnavailable
from mx_rmq.storage.locate import connections, no_connection
from mx_rmq.storage.resend import GrowingWait
from mx_rmq.storage.wire import Wire, silence

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

_LONG: Final = 10.0
"""Seconds without a demotion after which the waits before reconnecting start short again."""


class Connection:
    """A connection that many callers share; opened on first use, and again after a loss.

    If the server replies that it is no longer the primary, the connection is closed and all waiting calls
    fail. The next command connects to wherever the address leads by then.

    Args:
        url: ``redis://``, ``rediss://`` or ``unix://``.
        timeout: seconds without an answer after which the connection counts as dead, so that a
            half-open socket is noticed. For a command that has to wait for a connection, this covers
            connecting and the reply together.
        waits: how many seconds longer a command may take because it asks the server to wait.
        revive: restarts a server that is gone, if possible, and returns its URL.
        on_demoted: called when the server has replied that it is no longer the primary.
        on_reconnected: called when a connection that was lost is open again.
    """

    def __init__(
        self,
        url: str,
        *,
        timeout: float,
        waits: float = 0.0,
        revive: Callable[[], str] | None = None,
        on_demoted: Callable[[Connection], None] | None = None,
        on_reconnected: Callable[[], None] | None = None,
    ) -> None:
        self._on_reconnected = on_reconnected
        self._url = url
        self._maker = connections(ConnectionPool, url, socket_connect_timeout=timeout)
        self._connect_timeout = timeout
        self._timeout = timeout + waits
        self._revive = revive
        self._on_demoted = on_demoted
        self._connecting: asyncio.Task[Wire] | None = None
        self._waiters = 0
        self._wire: Wire | None = None
        self._made = 0
        self._gone = False
        self._waits = GrowingWait()
        self._demoted_at = -inf
        self._not_before = -inf

    @property
    def number(self) -> int:
        """The number of the open connection, counted from 1; 0 while none is open."""
        return 0 if self._wire is None or self._wire.lost else self._made

    def execute_command(self, *args: Any) -> Awaitable[Any]:
        """Send one command; the awaitable is its reply. On an open connection it is written at once."""
        if self._wire is None or self._wire.lost:
            return self._connect_and_send(args)
        return self._wire.send(args)

    async def execute_together(self, *commands: tuple[Any, ...]) -> list[Any]:
        """Send commands in a row on one connection; refusals and losses are returned among the replies."""
        wire, until = await self._connected()
        replies = [wire.send(command) for command in commands]
        with wire.letting_go(until, *replies):
            return await asyncio.gather(*replies, return_exceptions=True)

    async def _connect_and_send(self, args: tuple[Any, ...]) -> Any:
        wire, until = await self._connected()
        reply = wire.send(args)
        with wire.letting_go(until, reply):
            return await reply

    async def _connected(self) -> tuple[Wire, float | None]:
        """The open connection, and the deadline for the reply if the command had to wait for connecting.

        All waiting callers share one attempt to connect; if it fails, each of them gets an error.
        """
        loop = asyncio.get_running_loop()
        until = loop.time() + self._timeout
        if self._wire is not None and not self._wire.lost:
            return self._wire, None
        if self._gone:
            raise ServerUnavailable("the connection was closed")
        attempt = self._connecting
        if attempt is None:
            attempt = self._connecting = loop.create_task(self._connect())
            attempt.add_done_callback(self._end_attempt)
        self._waiters += 1
        try:
            await asyncio.wait([attempt], timeout=self._connect_timeout)
        finally:
            self._waiters -= 1
            if not self._waiters and attempt is self._connecting:
                self._connecting = None  # a later caller starts a new attempt
                attempt.cancel()
        if loop.time() > until:  # the process was paused; the caller decides whether it may still be sent
            raise ServerUnavailable(f"no connection to the server: {silence(self._timeout)}")
        if not attempt.done():
            raise ServerUnavailable(f"no connection to the server: {silence(self._connect_timeout)}")
        if attempt.cancelled():
            raise ServerUnavailable("the connection was closed")
        if (error := attempt.exception()) is not None:
            if isinstance(error, ConfigError | ServerUnavailable):
                raise type(error)(*error.args) from error  # each caller gets its own instance
            raise error
        return attempt.result(), until

    def _end_attempt(self, attempt: asyncio.Task[Wire]) -> None:
        if self._connecting is attempt:
            self._connecting = None
        if not attempt.cancelled():
            attempt.exception()  # mark as retrieved: every waiting caller may be gone

    async def _connect(self) -> Wire:
        loop = asyncio.get_running_loop()
        if (wait := self._not_before - loop.time()) > 0:  # it may still be a replica: avoid a hot loop
            await asyncio.sleep(min(wait, self._connect_timeout / 2))
        writer = await self._open_or_revive()
        wire = Wire(writer, self._timeout, self._leave)
        if self._connecting is not asyncio.current_task():  # a cancelled connect may still return
            wire.lose("closed")
            raise ServerUnavailable("the connection was closed")
        again = self._wire is not None
        self._wire = wire
        self._made += 1
        if again and self._on_reconnected is not None:
            self._on_reconnected()
        return wire

    async def new_stream(self) -> asyncio.StreamWriter:
        """Open a further connection to the same server, for what is not a command and its reply."""
        opening = asyncio.create_task(self._open_or_revive())
        try:
            return await asyncio.shield(opening)
        except asyncio.CancelledError:
            opening.cancel()
            opening.add_done_callback(_abandon)  # a cancelled connect may still return
            raise

    async def _open_or_revive(self) -> asyncio.StreamWriter:
        try:
            return await self._open()
        except ServerUnavailable:
            if self._revive is None:
                raise
            await self._bring_back(self._revive)
            return await self._open()

    async def _open(self) -> asyncio.StreamWriter:
        """Connect once."""
        connection: Any = self._maker.make_connection()
        try:
            async with asyncio.timeout(self._connect_timeout):
                await connection.connect()
        except BaseException as error:
            await connection.disconnect(nowait=True)
            match error:
                case TimeoutError():
                    why = f"no connection to the server: {silence(self._connect_timeout)}"
                    raise ServerUnavailable(why) from error
                case RedisError() | OSError():
                    raise no_connection(error) from error
                case _:
                    raise
        # Private names: redis-py has no other way to hand over what it opened.
        writer: asyncio.StreamWriter = connection._writer
        connection._writer = connection._reader = None
        return writer

    async def _bring_back(self, revive: Callable[[], str]) -> None:
        url = await asyncio.to_thread(revive)
        if url != self._url:
            self._url = url
            self._maker = connections(ConnectionPool, url, socket_connect_timeout=self._connect_timeout)

    def _leave(self) -> None:
        """React to a reply that the server is no longer the primary."""
        now = asyncio.get_running_loop().time()
        if now - self._demoted_at > _LONG:
            self._waits.reset()
        self._demoted_at = now
        self._not_before = now + self._waits.next()
        if self._on_demoted is not None:
            self._on_demoted(self)

    def lose(self, why: str) -> None:
        """Close the open connection, if there is one; a later command opens another."""
        if self._wire is not None:
            self._wire.lose(why)

    async def close(self, *, for_good: bool = False) -> None:
        """Close the connection; a later command opens it again, unless it is *for_good*."""
        self._gone = self._gone or for_good
        self.lose("closed")
        self._wire = None
        if (attempt := self._connecting) is not None:
            self._connecting = None
            attempt.cancel()
            await asyncio.wait([attempt])


def _abandon(opening: asyncio.Task[asyncio.StreamWriter]) -> None:
    if not opening.cancelled() and opening.exception() is None:
        opening.result().transport.abort()


class ConnectionPerCall:
    """One connection per call in progress, for commands that delay what is sent behind them.

    Args:
        url: as for ``Connection``.
        timeout: as for ``Connection``, like the other options.
    """

    def __init__(self, url: str, *, timeout: float, **options: Any) -> None:
        self._make = partial(Connection, url, timeout=timeout, **options)
        self._all: set[Connection] = set()
        self._idle: list[Connection] = []
        self._gone = False

    async def execute_together(self, *commands: tuple[Any, ...]) -> list[Any]:
        """Send commands in a row on one connection; refusals and losses are returned among the replies."""
        if self._gone:
            raise ServerUnavailable("the connection was closed")
        each = self._idle.pop() if self._idle else self._make()
        self._all.add(each)
        try:
            return await each.execute_together(*commands)
        except BaseException:
            await each.close()  # the server may still be in a wait on it
            raise
        finally:
            if not each.number:  # it was lost, so the idle ones may be dead too
                self.lose_idle("another one was lost")
            self._idle.append(each)

    def lose_idle(self, why: str) -> None:
        """Close the idle connections."""
        for each in self._idle:
            each.lose(why)

    async def close(self) -> None:
        """Close the connections for good."""
        self._gone = True
        for each in self._all:
            await each.close(for_good=True)
