"""Run the store's coroutines without an event loop, over connections that block the thread."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, TypeVar

from redis import ConnectionPool
from redis.exceptions import (
    AskError,
    AuthenticationError,
    ClusterDownError,
    MasterDownError,
    MovedError,
    NoPermissionError,
    ReadOnlyError,
    RedisError,
    ResponseError,
    TryAgainError,
)
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from mx_rmq.errors import ConfigError, ServerUnavailable
from mx_rmq.storage.diagnosis import diagnose, is_puzzling
from mx_rmq.storage.inquiry import BlockingInquiry
from mx_rmq.storage.opening import connections, no_connection
from mx_rmq.storage.place import place_of
from mx_rmq.storage.replies import DEMOTED, NOT_NOW, asks_for_password
from mx_rmq.storage.resend import too_late
from mx_rmq.storage.sockets import forget_unsent, outgoing

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterable, Iterator

    from mx_rmq.storage.place import Place, Spot

R = TypeVar("R")

# The "not now" replies for which redis-py has a class; it removes the prefix of their text.
_NOT_NOW: Final[dict[type[ResponseError], str]] = {
    MovedError: "MOVED",  # first: it is an AskError too
    AskError: "ASK",
    ClusterDownError: "CLUSTERDOWN",
    MasterDownError: "MASTERDOWN",
    ReadOnlyError: "READONLY",
    TryAgainError: "TRYAGAIN",
}
_PIECE: Final = 64 * 1024
"""Bytes per write; each write has the whole timeout."""


class Waited(RuntimeError):
    """A coroutine waited for an event loop, but there is none."""


def run_blocking(coroutine: Coroutine[Any, Any, R]) -> R:
    """Run a coroutine that never waits, and return its result.

    Raises:
        Waited: the coroutine waited; it was closed.
    """
    try:
        coroutine.send(None)
    except StopIteration as end:
        result: R = end.value
        return result
    coroutine.close()
    raise Waited("the coroutine waited for an event loop; give its store BlockingConnections")


class BlockingConnections:
    """Connections whose coroutines finish without being suspended; see ``run_blocking``.

    Safe to share between threads. Safe after a fork, whatever other threads did at that moment. redis-py's
    own pool is not: a lock that was held during the fork stays held in the child.

    Args:
        place: where the primary is; the URL of one server stands for that server.
        timeout: seconds without an answer after which a connection counts as dead.
        waits: how many seconds longer a command may take because it asks the server to wait.
    """

    def __init__(self, place: Place | str, timeout: float, *, waits: float = 0.0) -> None:
        self._place = place_of(place)
        self._timeout = timeout + waits
        self._open_timeout = timeout * self._place.share
        self._inquiry = BlockingInquiry(timeout)
        self._made: tuple[Spot, ConnectionPool] | None = None
        """What makes connections, and to which spot."""
        if (known := self._place.known()) is not None:
            self._maker(known)
        self._idle: list[Any] = []
        self._pid = os.getpid()

    async def execute_command(self, *args: Any) -> Any:
        """Send a command and wait for its reply, blocking the thread."""
        (reply,) = await self.execute_together(args)
        if isinstance(reply, Exception):
            raise reply
        return reply

    async def execute_together(self, *commands: tuple[Any, ...]) -> list[Any]:
        """Send commands in a row on one connection; refusals are returned among the replies.

        If the connection fails, the idle ones are closed too: a router forgets connections together, so
        they may be dead as well. They are also closed if the server was demoted.
        """
        if self._pid != os.getpid():  # after a fork: the sockets belong to the parent
            self._pid, self._idle = os.getpid(), []
        idle, began = self._idle, time.monotonic()
        try:
            connection, fresh = self._connect(idle)
        except (ServerUnavailable, ConfigError):
            self.close()
            raise
        if too_late():
            self._give_up(connection)
            raise ServerUnavailable("no connection to the server in time")
        try:
            if fresh:  # connecting and the first reply share one timeout; connecting never has it all
                took = time.monotonic() - began
                connection._sock.settimeout(max(self._timeout / 4, self._timeout - took))
            packed = connection.pack_commands(commands)
            connection.send_packed_command(_pieces(packed))
            if sum(map(len, packed)) > _PIECE:
                self._let_leave(connection)
            replies = [_reply(connection) for _ in commands]
            if fresh:
                connection._sock.settimeout(self._timeout)
        except (RedisConnectionError, RedisTimeoutError, OSError) as error:
            self._give_up(connection)
            raise ServerUnavailable(f"no answer from the server: {error!s:.200}") from error
        except BaseException:
            self._give_up(connection)
            raise
        demoted = next((reply for reply in replies if isinstance(reply, _Demoted)), None)
        if demoted is not None:
            self._place.heard(connection.mx_spot, demoted.reply)
            self._give_up(connection)
        elif idle is self._idle:
            idle.append(connection)
        else:  # the idle ones were closed while this one was in use
            connection.disconnect()
        return replies

    def connect(self) -> None:
        """Make sure that there is a connection, so that the next command is not the first to find out.

        Raises:
            ServerUnavailable: there is none, and nothing was sent.
        """
        if self._pid == os.getpid():  # else the first command after a fork begins anew
            idle = self._idle
            connection, _ = self._connect(idle)
            idle.append(connection)

    def _connect(self, idle: list[Any]) -> tuple[Any, bool]:
        """A usable idle connection, else a fresh one; and whether it is fresh."""
        with suppress(IndexError):  # no idle connection is left
            while True:
                connection = idle.pop()
                with suppress(RedisError, OSError):  # closed by the server
                    if not connection.can_read(timeout=0):  # else it holds an unexpected reply
                        return connection, False
                connection.disconnect()
        return self._open_at_primary(), True

    def _open_at_primary(self) -> Any:
        """Connect where the primary is known to be, or else where it is found."""
        if (spot := self._place.known()) is not None:
            try:
                return self._open(spot)
            except ServerUnavailable:
                if not self._place.finds:
                    raise
        return self._open(run_blocking(self._place.find(self._inquiry)))

    def _open(self, spot: Spot) -> Any:
        """Connect once."""
        maker = self._maker(spot)
        connection: Any = maker.connection_class(**maker.connection_kwargs)
        try:
            connection.connect()
            if self._place.is_checked:
                connection.send_command("ROLE")
                self._place.check(spot, _role(connection))
            connection._sock.settimeout(self._timeout)
        except BaseException as error:
            self._place.forget(spot)
            connection.disconnect()
            if not isinstance(error, RedisError | OSError):
                raise
            found: Exception = no_connection(error)
            if not self._place.answered and is_puzzling(found):
                found = diagnose(maker.connection_kwargs, tls=self._place.tls) or found
            raise found from error
        self._place.answered = True
        connection.mx_spot = spot
        return connection

    def _maker(self, spot: Spot) -> ConnectionPool:
        """What makes connections to a spot."""
        if (made := self._made) is None or made[0].url != spot.url:
            settings = {
                "socket_timeout": self._open_timeout,  # of the handshake; changed when it is open
                "socket_connect_timeout": self._open_timeout,
                "retry": None,
            }
            made = self._made = (
                spot,
                connections(ConnectionPool, spot.url, **self._place.settings, **settings),
            )
        return made[1]

    def _let_leave(self, connection: Any) -> None:
        """Wait while bytes are being sent: the server cannot answer what it has not received yet."""
        left, moved_at = outgoing(connection._sock), time.monotonic()
        while left and not connection.can_read(timeout=self._timeout / 50):
            now_left = outgoing(connection._sock)
            if now_left < left:
                left, moved_at = now_left, time.monotonic()
            elif time.monotonic() - moved_at > self._timeout:
                raise RedisTimeoutError(f"no bytes could be sent for {self._timeout:g} s")

    def _give_up(self, connection: Any) -> None:
        """Close a connection and all idle ones; its unsent bytes must not arrive later."""
        self._place.forget(connection.mx_spot)
        forget_unsent(connection._sock)
        connection.disconnect()
        self.close()

    def close(self) -> None:
        """Close the connections; one that is in use is closed when its call ends."""
        idle, self._idle = self._idle, []
        for connection in idle:
            connection.disconnect()


class _Demoted(ServerUnavailable):
    """The server is not the primary any more.

    Args:
        reply: what it said.
    """

    def __init__(self, reply: str) -> None:
        super().__init__(f"the server cannot serve now: {reply}")
        self.reply = reply


def _pieces(chunks: Iterable[bytes]) -> Iterator[bytes]:
    for chunk in chunks:
        if len(chunk) <= _PIECE:
            yield chunk
        else:
            for start in range(0, len(chunk), _PIECE):
                yield chunk[start : start + _PIECE]


def _reply(connection: Any) -> Any:
    """Read the next reply; a refusal is returned, not raised."""
    try:
        return connection.read_response()
    except (ResponseError, AuthenticationError) as error:
        word = next((word for kind, word in _NOT_NOW.items() if isinstance(error, kind)), "")
        text = f"{word} {error}".strip()
        if DEMOTED.search(text):
            return _Demoted(text)
        if NOT_NOW.search(text):
            return ServerUnavailable(f"the server cannot serve now: {text}")
        return asks_for_password(text) or error


def _role(connection: Any) -> Any:
    """The reply to ROLE; None if the user has no right to it."""
    try:
        return connection.read_response()
    except NoPermissionError:
        return None
