"""One pipelined connection: commands are written at once, replies are resolved in order.

redis-py makes the connection (TLS, authentication, database); then its transport is given to us, so
that a call costs no pool check-out, no lock and no task.
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
"""Seconds after which a demotion counts as the first one again."""


class Connection:
    """A connection that many callers share; opened when it is first used, and again after a loss.

    A server that says that it is not the primary any more is left: all callers are told, and the next
    command opens a connection to wherever the address leads by then.

    Args:
        url: ``redis://``, ``rediss://`` or ``unix://``.
        timeout: seconds without an answer after which the connection counts as dead, so that a
            half-open socket is noticed. A command that has to wait for a connection waits no longer
            than that for both.
        waits: how many seconds longer a command may take because it asks the server to wait.
        revive: brings back a server that is gone, if it can be, and returns its URL.
        on_demoted: called when the server has said that it is not the primary any more.
    """

    def __init__(
        self,
        url: str,
        *,
        timeout: float,
        waits: float = 0.0,
        revive: Callable[[], str] | None = None,
        on_demoted: Callable[[Connection], None] | None = None,
    ) -> None:
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
        """Which of its connections is in use, counted from 1; 0 while there is none."""
        return 0 if self._wire is None or self._wire.lost else self._made

    def execute_command(self, *args: Any) -> Awaitable[Any]:
        """Send one command; its reply is awaited, not the sending."""
        if self._wire is None or self._wire.lost:
            return self._connect_and_send(args)
        return self._wire.send(args)

    async def execute_together(self, *commands: tuple[Any, ...]) -> list[Any]:
        """Send commands in a row on one connection; what is refused or lost is among the replies."""
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
        """The connection, and until when a command that had to wait for it may wait for its reply.

        There is one attempt to connect for all who wait, and each of them is told if it fails.
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
                self._connecting = None  # a later caller begins anew
                attempt.cancel()
        if loop.time() > until:  # the process stood still; the caller decides whether it may still be sent
            raise ServerUnavailable(f"no connection to the server: {silence(self._timeout)}")
        if not attempt.done():
            raise ServerUnavailable(f"no connection to the server: {silence(self._connect_timeout)}")
        if attempt.cancelled():
            raise ServerUnavailable("the connection was closed")
        if (error := attempt.exception()) is not None:
            if isinstance(error, ConfigError | ServerUnavailable):
                raise type(error)(*error.args) from error  # each caller's own
            raise error
        return attempt.result(), until

    def _end_attempt(self, attempt: asyncio.Task[Wire]) -> None:
        if self._connecting is attempt:
            self._connecting = None
        if not attempt.cancelled():
            attempt.exception()  # mark as retrieved: all who waited may have left

    async def _connect(self) -> Wire:
        loop = asyncio.get_running_loop()
        if (wait := self._not_before - loop.time()) > 0:  # it may still be a replica: no hot loop
            await asyncio.sleep(min(wait, self._connect_timeout / 2))
        try:
            writer = await self._open()
        except ServerUnavailable:
            if self._revive is None:
                raise
            await self._bring_back(self._revive)
            writer = await self._open()
        wire = Wire(writer, self._timeout, self._leave)
        if self._connecting is not asyncio.current_task():  # a cancelled connect may come back all the same
            wire.lose("closed")
            raise ServerUnavailable("the connection was closed")
        self._wire = wire
        self._made += 1
        return wire

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
        # The only private names used: redis-py has no other way to hand over what it opened.
        writer: asyncio.StreamWriter = connection._writer
        connection._writer = connection._reader = None
        return writer

    async def _bring_back(self, revive: Callable[[], str]) -> None:
        url = await asyncio.to_thread(revive)
        if url != self._url:
            self._url = url
            self._maker = connections(ConnectionPool, url, socket_connect_timeout=self._connect_timeout)

    def _leave(self) -> None:
        """The server has said that it is not the primary any more."""
        now = asyncio.get_running_loop().time()
        if now - self._demoted_at > _LONG:
            self._waits.reset()
        self._demoted_at = now
        self._not_before = now + self._waits.next()
        if self._on_demoted is not None:
            self._on_demoted(self)

    def lose(self, why: str) -> None:
        """Give up the connection that is in use, if there is one; a later command opens another."""
        if self._wire is not None:
            self._wire.lose(why)

    async def close(self, *, for_good: bool = False) -> None:
        """Close the connection; a later command opens it again, unless it is *for_good*."""
        self._gone = self._gone or for_good
        self.lose("closed")
        if (attempt := self._connecting) is not None:
            self._connecting = None
            attempt.cancel()
            await asyncio.wait([attempt])


class ConnectionPerCall:
    """A connection for each call under way, for commands that hold up what comes behind them.

    Args:
        url: as of a ``Connection``.
        timeout: likewise, as are the other options.
    """

    def __init__(self, url: str, *, timeout: float, **options: Any) -> None:
        self._make = partial(Connection, url, timeout=timeout, **options)
        self._all: set[Connection] = set()
        self._idle: list[Connection] = []
        self._gone = False

    async def execute_together(self, *commands: tuple[Any, ...]) -> list[Any]:
        """Send commands in a row on one connection; what is refused or lost is among the replies."""
        if self._gone:
            raise ServerUnavailable("the connection was closed")
        each = self._idle.pop() if self._idle else self._make()
        self._all.add(each)
        try:
            return await each.execute_together(*commands)
        except BaseException:
            await each.close()  # the server may be waiting on it still
            raise
        finally:
            if not each.number:  # what happened to it may have happened to those that are idle
                self.lose_idle("another one was lost")
            self._idle.append(each)

    def lose_idle(self, why: str) -> None:
        """Give up the connections that are idle."""
        for each in self._idle:
            each.lose(why)

    async def close(self) -> None:
        """Close the connections for good."""
        self._gone = True
        for each in self._all:
            await each.close(for_good=True)
