"""One pipelined connection: commands are written at once, replies are resolved in order.

redis-py makes the connection (TLS, authentication, database); then its transport is given to us, so
that a call costs no pool check-out, no lock and no task.
"""

from __future__ import annotations

import asyncio
import re
from collections import deque
from contextlib import contextmanager
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Any, Final

import hiredis
from redis.asyncio import ConnectionPool
from redis.exceptions import NoScriptError, RedisError, ResponseError

from mx_rmq.connect import connections, forget_unsent, no_connection, outgoing
from mx_rmq.errors import ConfigError, ServerUnavailable
from mx_rmq.resend import Backoff

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

# Replies by which a server says "not now": it is starting, failing over, moving slots, without its
# replicas or in the middle of somebody's endless script. It has done nothing. Redis 6.2 wraps what the
# first write of a script was answered: "Error running script (…): @user_script: 19: -READONLY …".
NOT_NOW: Final = re.compile(
    "(?:^|: -)(?:LOADING|READONLY|MASTERDOWN|CLUSTERDOWN|TRYAGAIN|UNBLOCKED|NOREPLICAS|BUSY) "
    "|WAIT(?:AOF)? cannot be used with replica"
)

# Those of them by which a server says that it is not the primary any more. It may live on as a replica
# while its address leads to another one, so the connection is given up. LOADING is one of them: a server
# that loads while a connection lasts is fetching the data of the primary that it follows now.
DEMOTED: Final = re.compile(
    "(?:^|: -)(?:LOADING|READONLY|MASTERDOWN|UNBLOCKED) |WAIT(?:AOF)? cannot be used with replica"
)

_INCOMPLETE: Final = object()
_LOOKS: Final = 4
"""How often within the timeout a waiting connection looks whether bytes are still leaving."""
_LONG: Final = 10.0
"""Seconds after which a demotion counts as the first one again."""


class CutShort(ServerUnavailable):
    """The connection was lost while bytes were still leaving: they may have been too many."""


class Link:
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
        on_demoted: Callable[[Link], None] | None = None,
    ) -> None:
        self._url = url
        self._maker = connections(ConnectionPool, url, socket_connect_timeout=timeout)
        self._connect_timeout = timeout
        self._timeout = timeout + waits
        self._revive = revive
        self._on_demoted = on_demoted
        self._connecting: asyncio.Task[_Wire] | None = None
        self._waiters = 0
        self._wire: _Wire | None = None
        self._made = 0
        self._gone = False
        self._backoff = Backoff()
        self._demoted_at = -inf
        self._not_before = -inf

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
        wire, until = await self._connected()
        replies = [wire.send(command) for command in commands]
        with wire.letting_go(until, *replies):
            return await asyncio.gather(*replies, return_exceptions=True)

    async def _connect_and_send(self, args: tuple[Any, ...]) -> Any:
        wire, until = await self._connected()
        reply = wire.send(args)
        with wire.letting_go(until, reply):
            return await reply

    async def _connected(self) -> tuple[_Wire, float | None]:
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
            raise ServerUnavailable(f"no connection to the server: {_silence(self._timeout)}")
        if not attempt.done():
            raise ServerUnavailable(f"no connection to the server: {_silence(self._connect_timeout)}")
        if attempt.cancelled():
            raise ServerUnavailable("the connection was closed")
        if (error := attempt.exception()) is not None:
            if isinstance(error, ConfigError | ServerUnavailable):
                raise type(error)(*error.args) from error  # each caller's own
            raise error
        return attempt.result(), until

    def _end_attempt(self, attempt: asyncio.Task[_Wire]) -> None:
        if self._connecting is attempt:
            self._connecting = None
        if not attempt.cancelled():
            attempt.exception()  # mark as retrieved: all who waited may have left

    async def _connect(self) -> _Wire:
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
        wire = _Wire(writer, self._timeout, self._leave)
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
                    silence = _silence(self._connect_timeout)
                    raise ServerUnavailable(f"no connection to the server: {silence}") from error
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
            self._backoff.reset()
        self._demoted_at = now
        self._not_before = now + self._backoff.wait()
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


class Links:
    """A connection for each call under way, for commands that hold up what comes behind them.

    Args:
        url: as of a ``Link``.
        timeout: likewise, as are the other options.
    """

    def __init__(self, url: str, *, timeout: float, **options: Any) -> None:
        self._make = partial(Link, url, timeout=timeout, **options)
        self._all: set[Link] = set()
        self._idle: list[Link] = []
        self._gone = False

    async def execute_together(self, *commands: tuple[Any, ...]) -> list[Any]:
        """Send commands in a row on one connection; what is refused or lost is among the replies."""
        if self._gone:
            raise ServerUnavailable("the connection was closed")
        link = self._idle.pop() if self._idle else self._make()
        self._all.add(link)
        try:
            return await link.execute_together(*commands)
        except BaseException:
            await link.close()  # the server may be waiting on it still
            raise
        finally:
            if not link.connection:  # what happened to it may have happened to those that are idle
                self.lose_idle("another one was lost")
            self._idle.append(link)

    def lose_idle(self, why: str) -> None:
        """Give up the connections that are idle."""
        for link in self._idle:
            link.lose(why)

    async def close(self) -> None:
        """Close the connections for good."""
        self._gone = True
        for link in self._all:
            await link.close(for_good=True)


class _Wire(asyncio.Protocol):
    """One connection while it lasts."""

    def __init__(self, stream: asyncio.StreamWriter, timeout: float, on_demoted: Callable[[], None]) -> None:
        self.lost = False
        self._owner = stream  # its finalizer would close the transport
        self._transport: Any = stream.transport
        self._timeout = timeout
        self._on_demoted = on_demoted
        self._loop = asyncio.get_running_loop()
        self._reader = hiredis.Reader(notEnoughData=_INCOMPLETE)
        self._waiting: deque[tuple[asyncio.Future[Any], float]] = deque()
        self._written = 0
        self._left = 0
        """How many bytes had left, and"""
        self._leaving = 0
        """how many had not, when this was last looked at."""
        self._moved_at = 0.0
        """When something was last heard, or seen to leave."""
        self._watch: asyncio.TimerHandle | None = None
        self._stream = self._transport.get_protocol()
        self._transport.set_protocol(self)

    def send(self, args: tuple[Any, ...]) -> asyncio.Future[Any]:
        future: asyncio.Future[Any] = self._loop.create_future()
        if self.lost:
            future.set_exception(ServerUnavailable("the connection was lost"))
            return future
        packed = hiredis.pack_command(args)
        self._transport.write(packed)
        self._written += len(packed)
        now = self._loop.time()
        self._waiting.append((future, now))
        if self._watch is None:
            self._leaving = 0
            self._watch = self._loop.call_at(now + self._timeout / _LOOKS, self._look)
        return future

    @contextmanager
    def letting_go(self, until: float | None, *replies: asyncio.Future[Any]) -> Iterator[None]:
        """Wait for replies until an instant, or longer while bytes are moving. The connection is kept."""
        end = None if until is None else self._loop.call_at(until, self._let_go, replies)
        try:
            yield
        finally:
            if end is not None:
                end.cancel()

    def _let_go(self, replies: tuple[asyncio.Future[Any], ...]) -> None:
        if self._loop.time() - self._moved_at > self._timeout / 2:
            for reply in replies:
                if not reply.done():
                    silence = _silence(self._timeout)
                    reply.set_exception(ServerUnavailable(f"no answer from the server: {silence}"))

    def lose(self, why: str) -> None:
        """Give the connection up; everyone who waits for a reply is told."""
        if self.lost:
            return
        self.lost = True
        leaving = self._outgoing() or self._leaving  # of a closed socket it is no longer known
        kind = CutShort if self._waiting and leaving else ServerUnavailable
        if self._waiting:  # what is given up must not arrive later, when it has been sent again
            forget_unsent(self._transport.get_extra_info("socket"))
        self._transport.abort()
        if self._watch is not None:
            self._watch.cancel()
        while self._waiting:
            future, _ = self._waiting.popleft()
            if not future.done():
                future.set_exception(kind(f"the connection was lost: {why}"))

    def _outgoing(self) -> int:
        """How many bytes have not left yet."""
        buffered: int = self._transport.get_write_buffer_size()
        return buffered + outgoing(self._transport.get_extra_info("socket"))

    def _look(self) -> None:
        """Give up if the server has been silent for too long while a command waits for its reply.

        Not while bytes are leaving: it cannot answer what it has not got yet.
        """
        self._watch = None
        if not self._waiting:
            return
        now = self._loop.time()
        leaving = self._outgoing()
        left = self._written - leaving
        if left > self._left and (leaving or self._leaving):
            self._moved_at = now
        self._left, self._leaving = left, leaving
        due = max(self._waiting[0][1], self._moved_at) + self._timeout
        if due <= now:
            self.lose(_silence(self._timeout))
        else:
            self._watch = self._loop.call_at(min(due, now + self._timeout / _LOOKS), self._look)

    def data_received(self, data: bytes) -> None:
        self._moved_at = self._loop.time()
        self._reader.feed(data)
        try:
            while (reply := self._reader.gets()) is not _INCOMPLETE:
                future, _ = self._waiting.popleft()
                if isinstance(reply, hiredis.ReplyError):
                    if not future.done():
                        future.set_exception(_refusal(str(reply)))
                    if DEMOTED.search(str(reply)):
                        self.lose(f"the server is not the primary any more: {reply}")
                        self._on_demoted()
                        return
                elif not future.done():
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
