"""One connection while it lasts: commands are written at once, replies are resolved in order."""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import hiredis

from mx_rmq.errors import ServerUnavailable
from mx_rmq.storage.replies import DEMOTED, refusal
from mx_rmq.storage.sockets import forget_unsent, outgoing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_INCOMPLETE: Final = object()
_LOOKS: Final = 4
"""How often within the timeout a waiting connection looks whether bytes are still leaving."""


class CutShort(ServerUnavailable):
    """The connection was lost while bytes were still leaving: they may have been too many."""


class Wire(asyncio.Protocol):
    """The transport of an open connection.

    Args:
        stream: what redis-py opened.
        timeout: seconds without an answer after which the connection is given up.
        on_demoted: called when the server has said that it is not the primary any more.
    """

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
        """Write a command; the future is its reply."""
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
                    why = f"no answer from the server: {silence(self._timeout)}"
                    reply.set_exception(ServerUnavailable(why))

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
            self.lose(silence(self._timeout))
        else:
            self._watch = self._loop.call_at(min(due, now + self._timeout / _LOOKS), self._look)

    def data_received(self, data: bytes) -> None:
        """Resolve the replies that have come."""
        self._moved_at = self._loop.time()
        self._reader.feed(data)
        try:
            while (reply := self._reader.gets()) is not _INCOMPLETE:
                future, _ = self._waiting.popleft()
                if isinstance(reply, hiredis.ReplyError):
                    if not future.done():
                        future.set_exception(refusal(str(reply)))
                    if DEMOTED.search(str(reply)):
                        self.lose(f"the server is not the primary any more: {reply}")
                        self._on_demoted()
                        return
                elif not future.done():
                    future.set_result(reply)
        except (hiredis.ProtocolError, IndexError) as error:
            self.lose(f"the server sent something that is no reply: {error}")

    def connection_lost(self, exc: Exception | None) -> None:
        """The other side closed, or the network did."""
        self._stream.connection_lost(exc)
        self.lose(str(exc) if exc else "closed by the server")


def silence(timeout: float) -> str:
    """How an error says that nothing was heard."""
    return f"no answer within {timeout:g} s"
