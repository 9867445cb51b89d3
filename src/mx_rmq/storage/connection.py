"""One pipelined connection: commands are written at once, replies are resolved in order.

redis-py opens the connection (TLS, authentication, database). Then ``Wire`` takes over its transport, so
that a call needs no pool check-out, no lock and no task.
"""

from __future__ import annotations

import asyncio
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from redis.asyncio import ConnectionPool
from redis.exceptions import NoPermissionError, RedisError, ResponseError

from mx_rmq.errors import ConfigError, ServerUnavailable
from mx_rmq.storage.diagnosis import diagnose, is_puzzling
from mx_rmq.storage.inquiry import LoopInquiry
from mx_rmq.storage.opening import connections, no_connection
from mx_rmq.storage.place import place_of
from mx_rmq.storage.replies import moved_to
from mx_rmq.storage.resend import GrowingWait
from mx_rmq.storage.wire import Wire, silence

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from mx_rmq.storage.place import Place, Spot

_LONG: Final = 10.0
"""Seconds without a demotion after which the waits before reconnecting start short again."""


_SOON: Final = 1.0
"""Seconds within which a second redirection is not followed at once."""


class Connection:
    """A connection to a shard's primary that many callers share; opened on first use, and again after a loss.

    If the server replies that it is no longer the primary, the connection is closed and all waiting calls
    fail. The next command connects to where the primary is by then.

    Args:
        place: where the primary is; the URL of one server stands for that server.
        timeout: seconds without an answer after which the connection counts as dead, so that a
            half-open socket is noticed. For a command that has to wait for a connection, this covers
            connecting and the reply together.
        waits: how many seconds longer a command may take because it asks the server to wait.
        on_demoted: called when the server is no longer the primary: it has said so, or the primary was found
            elsewhere.
        on_reconnected: called when a connection that was lost is open again.
    """

    def __init__(
        self,
        place: Place | str,
        *,
        timeout: float,
        waits: float = 0.0,
        on_demoted: Callable[[Connection], None] | None = None,
        on_reconnected: Callable[[], None] | None = None,
    ) -> None:
        self._on_reconnected = on_reconnected
        self._place = place_of(place)
        self._spot: Spot | None = None
        """Where the last connection was opened."""
        self._connect_timeout = timeout
        self._open_timeout = timeout * self._place.share
        self._inquiry = LoopInquiry(timeout)
        self._url = ""
        self._maker: ConnectionPool | None = None
        if (known := self._place.known()) is not None:
            self._use(known)
        self._timeout = timeout + waits
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

    @property
    def open_at(self) -> str:
        """The URL where it is open; empty while it is not."""
        return self._spot.url if self.number and self._spot is not None else ""

    @property
    def address(self) -> str:
        """Where the last connection was opened, as ``host:port``; empty before the first."""
        return "" if self._spot is None else urlsplit(self._spot.url).netloc.rpartition("@")[2]

    async def opened(self) -> Wire:
        """The open connection, for a caller that sends commands of which some wait for others."""
        wire, _ = await self._connected()
        return wire

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

    def hold_back(self) -> None:
        """Let the commands of tasks that are started now leave in one write, if a connection is open."""
        if self._wire is not None and not self._wire.lost:
            self._wire.hold_back()

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
        if self._wire is not None and self._spot is not None:
            self._place.forget(self._spot)
        spot, writer = await self._open_at_primary()
        wire = Wire(writer, self._timeout, self._leave)
        if self._connecting is not asyncio.current_task():  # a cancelled connect may still return
            wire.lose("closed")
            raise ServerUnavailable("the connection was closed")
        again, before = self._wire is not None, self._spot
        self._wire, self._spot = wire, spot
        self._made += 1
        if before is not None and before.url != spot.url and self._on_demoted is not None:
            self._on_demoted(self)
        if again and self._on_reconnected is not None:
            self._on_reconnected()
        return wire

    async def new_stream(self) -> asyncio.StreamWriter:
        """Open a further connection to the same server, for what is not a command and its reply."""
        opening = asyncio.create_task(self._open_at_primary())
        try:
            _, writer = await asyncio.shield(opening)
        except asyncio.CancelledError:
            opening.cancel()
            opening.add_done_callback(_abandon)  # a cancelled connect may still return
            raise
        return writer

    async def _open_at_primary(self) -> tuple[Spot, asyncio.StreamWriter]:
        """Connect where the primary is known to be, or else where it is found."""
        if (spot := self._place.known()) is not None:
            try:
                return spot, await self._open(spot)
            except ServerUnavailable:
                if not self._place.finds:
                    raise
        spot = await self._place.find(self._inquiry)
        return spot, await self._open(spot)

    async def _open(self, spot: Spot) -> asyncio.StreamWriter:
        """Connect once."""
        maker = self._use(spot)
        connection: Any = maker.make_connection()
        try:
            async with asyncio.timeout(self._open_timeout):
                await connection.connect()
                if self._place.is_checked:
                    await connection.send_command("ROLE")
                    self._place.check(spot, await _answer(connection))
        except BaseException as error:
            self._place.forget(spot)
            await connection.disconnect(nowait=True)
            match error:
                case TimeoutError():
                    why = f"no connection to the server: {silence(self._open_timeout)}"
                    found: Exception = ServerUnavailable(why)
                case RedisError() | OSError():
                    found = no_connection(error)
                case _:
                    raise
            if not self._place.answered and is_puzzling(found):
                call = partial(diagnose, maker.connection_kwargs, tls=self._place.tls)
                if (wrong := await self._inquiry.do(call)) is not None:
                    raise wrong from error
            raise found from error
        self._place.answered = True
        # Private names: redis-py has no other way to hand over what it opened.
        writer: asyncio.StreamWriter = connection._writer
        connection._writer = connection._reader = None
        return writer

    def _use(self, spot: Spot) -> ConnectionPool:
        """What makes connections to a spot."""
        if self._maker is None or spot.url != self._url:
            timeout = self._connect_timeout
            settings = self._place.settings
            self._maker = connections(ConnectionPool, spot.url, **settings, socket_connect_timeout=timeout)
            self._url = spot.url
        return self._maker

    def _leave(self, reply: str) -> None:
        """React to a reply that the server is no longer the primary."""
        if self._spot is not None:
            self._place.heard(self._spot, reply)
        now = asyncio.get_running_loop().time()
        since, self._demoted_at = now - self._demoted_at, now
        if since > _LONG:
            self._waits.reset()
        # A redirection names the primary; one right after another does not: two nodes may name each other.
        named = self._place.in_cluster and moved_to(reply) is not None and since > _SOON
        self._not_before = now if named else now + self._waits.next()
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


def _abandon(opening: asyncio.Task[tuple[Spot, asyncio.StreamWriter]]) -> None:
    if not opening.cancelled() and opening.exception() is None:
        opening.result()[1].transport.abort()


async def _answer(connection: Any) -> Any:
    """The reply to the command that was sent; None if the user has no right to it."""
    try:
        return await connection.read_response()
    except ResponseError as error:
        if isinstance(error, NoPermissionError):
            return None
        raise


class ConnectionPerCall:
    """One connection per call in progress, for commands that delay what is sent behind them.

    Args:
        place: as for ``Connection``.
        timeout: as for ``Connection``, like the other options.
    """

    def __init__(self, place: Place | str, *, timeout: float, **options: Any) -> None:
        self._make = partial(Connection, place_of(place), timeout=timeout, **options)
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

    def lose_elsewhere(self, url: str, why: str) -> None:
        """Close all connections that are not open at a URL; those in use fail."""
        for each in self._all:
            if each.open_at != url:
                each.lose(why)

    async def close(self) -> None:
        """Close the connections for good."""
        self._gone = True
        for each in self._all:
            await each.close(for_good=True)
