"""One pipelined connection: commands are written at once, replies are resolved in order.

redis-py makes the connection (TLS, authentication, database); then its transport is given to us, so
that a call costs no pool check-out, no lock and no task.
"""

from __future__ import annotations

import asyncio
import re
from collections import deque
from typing import TYPE_CHECKING, Any, Final

import hiredis
from redis.asyncio import ConnectionPool
from redis.exceptions import NoScriptError, RedisError, ResponseError

from mx_rmq.connect import connections, no_connection
from mx_rmq.errors import ServerUnavailable

if TYPE_CHECKING:
    from collections.abc import Awaitable

# Replies by which a server says "not now": it is starting, failing over, moving slots, without its
# replicas or in the middle of somebody's endless script. It has done nothing. Redis 6.2 wraps what the
# first write of a script was answered: "Error running script (…): @user_script: 19: -READONLY …".
NOT_NOW: Final = re.compile(
    "(?:^|: -)(?:LOADING|READONLY|MASTERDOWN|CLUSTERDOWN|TRYAGAIN|UNBLOCKED|NOREPLICAS|BUSY) "
    "|WAIT(?:AOF)? cannot be used with replica"
)

_INCOMPLETE: Final = object()


class Link:
    """A connection that many callers share; opened when it is first used, and again after a loss.

    Args:
        url: ``redis://``, ``rediss://`` or ``unix://``.
        timeout: seconds without an answer after which the connection counts as dead, so that a
            half-open socket is noticed.
    """

    def __init__(self, url: str, *, timeout: float) -> None:
        self._maker = connections(ConnectionPool, url, socket_connect_timeout=timeout)
        self._timeout = timeout
        self._connecting = asyncio.Lock()
        self._wire: _Wire | None = None
        self._made = 0
        self._closed = 0
        self._gone = False

    @property
    def connection(self) -> int:
        """Which connection is in use, counted from 1; 0 while there is none."""
        return 0 if self._wire is None or self._wire.lost else self._made

    def execute_command(self, *args: Any) -> Awaitable[Any]:
        """Send one command; its reply is awaited, not the sending."""
        if self._wire is None or self._wire.lost:
            return self._connect_and_send(args)
        return self._wire.send(args)

    async def execute_together(self, *commands: tuple[Any, ...]) -> list[Any]:
        """Send commands in a row on one connection; what is refused or lost is among the replies."""
        wire = await self._connected()
        return await asyncio.gather(*[wire.send(command) for command in commands], return_exceptions=True)

    async def _connect_and_send(self, args: tuple[Any, ...]) -> Any:
        return await (await self._connected()).send(args)

    async def _connected(self) -> _Wire:
        if self._wire is not None and not self._wire.lost:
            return self._wire
        if self._gone:
            raise ServerUnavailable("the connection was closed")
        closed = self._closed
        async with self._connecting:
            if self._wire is None or self._wire.lost:
                self._wire = await self._connect()
                self._made += 1
        if closed != self._closed:  # meanwhile; a cancelled connect may come back all the same
            self._wire.lose("closed")
        return self._wire

    async def _connect(self) -> _Wire:
        connection: Any = self._maker.make_connection()
        try:
            async with asyncio.timeout(self._timeout):
                await connection.connect()
        except BaseException as error:
            await connection.disconnect(nowait=True)
            match error:
                case TimeoutError():
                    raise ServerUnavailable(
                        f"no connection to the server: {_silence(self._timeout)}"
                    ) from error
                case RedisError() | OSError():
                    raise no_connection(error) from error
                case _:
                    raise
        # The only private names used: redis-py has no other way to hand over what it opened.
        writer, connection._writer, connection._reader = connection._writer, None, None
        return _Wire(writer, self._timeout)

    async def close(self, *, for_good: bool = False) -> None:
        """Close the connection; a later command opens it again, unless it is *for_good*."""
        self._closed += 1
        self._gone = self._gone or for_good
        if self._wire is not None:
            self._wire.lose("closed")


class Links:
    """A connection for each call under way, for commands that hold up what comes behind them.

    Args:
        url: as of a ``Link``.
        timeout: likewise.
    """

    def __init__(self, url: str, *, timeout: float) -> None:
        self._url = url
        self._timeout = timeout
        self._all: set[Link] = set()
        self._idle: list[Link] = []
        self._gone = False

    async def execute_together(self, *commands: tuple[Any, ...]) -> list[Any]:
        """Send commands in a row on one connection; what is refused or lost is among the replies."""
        if self._gone:
            raise ServerUnavailable("the connection was closed")
        link = self._idle.pop() if self._idle else Link(self._url, timeout=self._timeout)
        self._all.add(link)
        try:
            return await link.execute_together(*commands)
        except BaseException:
            await link.close()  # the server may be waiting on it still
            raise
        finally:
            self._idle.append(link)

    async def close(self) -> None:
        """Close the connections for good."""
        self._gone = True
        for link in self._all:
            await link.close(for_good=True)


class _Wire(asyncio.Protocol):
    """One connection while it lasts."""

    def __init__(self, stream: asyncio.StreamWriter, timeout: float) -> None:
        self.lost = False
        self._owner = stream  # its finalizer would close the transport
        self._transport = transport = stream.transport
        self._timeout = timeout
        self._loop = asyncio.get_running_loop()
        self._reader = hiredis.Reader(notEnoughData=_INCOMPLETE)
        self._waiting: deque[tuple[asyncio.Future[Any], float]] = deque()
        self._heard_at = 0.0
        self._watch: asyncio.TimerHandle | None = None
        self._stream = transport.get_protocol()
        transport.set_protocol(self)

    def send(self, args: tuple[Any, ...]) -> asyncio.Future[Any]:
        future: asyncio.Future[Any] = self._loop.create_future()
        if self.lost:
            future.set_exception(ServerUnavailable("the connection was lost"))
            return future
        self._transport.write(hiredis.pack_command(args))
        now = self._loop.time()
        self._waiting.append((future, now))
        if self._watch is None:
            self._watch = self._loop.call_at(now + self._timeout, self._look)
        return future

    def lose(self, why: str) -> None:
        """Give the connection up; everyone who waits for a reply is told."""
        if self.lost:
            return
        self.lost = True
        self._transport.abort()
        if self._watch is not None:
            self._watch.cancel()
        while self._waiting:
            future, _ = self._waiting.popleft()
            if not future.done():
                future.set_exception(ServerUnavailable(f"the connection was lost: {why}"))

    def _look(self) -> None:
        """Give up if the server has been silent for too long while a command waits for its reply."""
        self._watch = None
        if self._waiting:
            due = max(self._waiting[0][1], self._heard_at) + self._timeout
            if due <= self._loop.time():
                self.lose(_silence(self._timeout))
            else:
                self._watch = self._loop.call_at(due, self._look)

    def data_received(self, data: bytes) -> None:
        self._heard_at = self._loop.time()
        self._reader.feed(data)
        try:
            while (reply := self._reader.gets()) is not _INCOMPLETE:
                future, _ = self._waiting.popleft()
                if future.done():
                    continue
                if isinstance(reply, hiredis.ReplyError):
                    future.set_exception(_refusal(str(reply)))
                else:
                    future.set_result(reply)
        except (hiredis.ProtocolError, IndexError) as error:
            self.lose(f"the server sent something that is no reply: {error}")

    def connection_lost(self, exc: Exception | None) -> None:
        self._stream.connection_lost(exc)
        self.lose(str(exc) if exc else "closed by the server")


def _silence(timeout: float) -> str:
    return f"no answer within {timeout:g} s"


def _refusal(text: str) -> Exception:
    if text.startswith("NOSCRIPT"):
        return NoScriptError(text)
    if NOT_NOW.search(text):
        return ServerUnavailable(f"the server cannot serve now: {text}")
    return ResponseError(text)
