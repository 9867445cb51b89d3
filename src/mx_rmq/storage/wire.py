"""One open connection: commands are written at once, replies are resolved in order."""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, Protocol

import hiredis

from mx_rmq.errors import ServerUnavailable
from mx_rmq.storage.replies import DEMOTED, refusal
from mx_rmq.storage.sockets import forget_unsent, outgoing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

_INCOMPLETE: Final = object()
_LOOKS: Final = 4
"""How often per timeout a waiting connection checks whether bytes are still being sent."""
_TURNS: Final = 6
"""Turns of the event loop in which tasks that were just started have all written their commands."""


class CutShort(ServerUnavailable):
    """The connection was lost while bytes were still being sent: there may have been too many."""


class Receiver(Protocol):
    """What gets a reply: a future, or something that acts while the reply is being read."""

    def done(self) -> bool:
        """Whether it wants no reply any more."""

    def set_result(self, result: Any, /) -> None:
        """Take a reply."""

    def set_exception(self, exception: BaseException, /) -> None:
        """Take a refusal, or the loss of the connection."""


class Wire(asyncio.Protocol):
    """The transport of an open connection.

    Args:
        stream: the stream that redis-py opened.
        timeout: seconds without an answer after which the connection is closed.
        on_demoted: called with the reply of a server that is no longer the primary.
    """

    def __init__(
        self, stream: asyncio.StreamWriter, timeout: float, on_demoted: Callable[[str], None]
    ) -> None:
        self.lost = False
        self._owner = stream  # kept, because its finalizer would close the transport
        self._transport: Any = stream.transport
        self._timeout = timeout
        self._on_demoted = on_demoted
        self._loop = asyncio.get_running_loop()
        self._reader = hiredis.Reader(notEnoughData=_INCOMPLETE)
        self._waiting: deque[tuple[Receiver, float]] = deque()
        """Who gets the next replies, and from when on each counts as late after the timeout."""
        self._held: list[bytes] | None = None
        """What was written since ``hold_back``; None if all is written at once."""
        self._written = 0
        self._left = 0
        """How many bytes had been sent at the last check."""
        self._leaving = 0
        """How many written bytes had not been sent at the last check."""
        self._moved_at = 0.0
        """When bytes were last received, or last found to have been sent."""
        self._watch: asyncio.TimerHandle | None = None
        self._stream = self._transport.get_protocol()
        self._transport.set_protocol(self)

    def send(self, args: tuple[Any, ...]) -> asyncio.Future[Any]:
        """Write a command; the future is its reply."""
        future: asyncio.Future[Any] = self._loop.create_future()
        self._write(hiredis.pack_command(args), (future,))
        return future

    def send_together(
        self, commands: Sequence[tuple[Any, ...]], receivers: Sequence[Receiver], *, waits: float = 0.0
    ) -> None:
        """Write commands in one piece; each reply goes to the receiver at its place.

        Args:
            commands: at least one.
            receivers: as many.
            waits: how many seconds longer than the timeout the replies may take, because the commands ask
                the server to wait.
        """
        self._write(b"".join(map(hiredis.pack_command, commands)), receivers, waits)

    def _write(self, packed: bytes, receivers: Sequence[Receiver], waits: float = 0.0) -> None:
        if self.lost:
            for receiver in receivers:
                receiver.set_exception(ServerUnavailable("the connection was lost"))
            return
        if self._held is None:
            self._transport.write(packed)
        else:
            self._held.append(packed)
        self._written += len(packed)
        now = self._loop.time()
        for receiver in receivers:
            self._waiting.append((receiver, now + waits))
        if self._watch is None:
            self._leaving = 0
            self._watch = self._loop.call_at(now + self._timeout / _LOOKS, self._look)

    def hold_back(self) -> None:
        """Let the commands of tasks that are started now leave in one piece.

        The server wakes up once for all of them. Other commands wait with them, a few turns of the loop.
        """
        if self._held is None:
            self._held = []
            self._let_out(_TURNS)

    def _let_out(self, turns: int) -> None:
        if turns:
            self._loop.call_soon(self._let_out, turns - 1)
            return
        held, self._held = self._held, None
        if held and not self.lost:
            self._transport.write(b"".join(held))

    @contextmanager
    def letting_go(self, until: float | None, *replies: asyncio.Future[Any]) -> Iterator[None]:
        """Wait for *replies* until an instant, or longer if bytes moved recently. The connection is kept."""
        end = None if until is None else self._loop.call_at(until, self._let_go, replies)
        try:
            yield
        finally:
            if end is not None:
                end.cancel()

    def _let_go(self, replies: tuple[asyncio.Future[Any], ...]) -> None:
        if self._loop.time() - self._moved_at > self._timeout / 2:
            for reply in replies:
                why = f"no answer from the server: {silence(self._timeout)}"
                _resolve(reply, ServerUnavailable(why))

    def lose(self, why: str) -> None:
        """Close the connection; every caller that waits for a reply gets an error."""
        if self.lost:
            return
        self.lost = True
        leaving = self._outgoing() or self._leaving  # a closed socket no longer tells
        kind = CutShort if self._waiting and leaving else ServerUnavailable
        if self._waiting:  # a call that is given up must not arrive after it was sent again
            forget_unsent(self._transport.get_extra_info("socket"))
        self._transport.abort()
        if self._watch is not None:
            self._watch.cancel()
        while self._waiting:
            receiver, _ = self._waiting.popleft()
            _resolve(receiver, kind(f"the connection was lost: {why}"))

    def _outgoing(self) -> int:
        """How many bytes have not been sent yet."""
        buffered: int = self._transport.get_write_buffer_size()
        return buffered + outgoing(self._transport.get_extra_info("socket"))

    def _look(self) -> None:
        """Close the connection if the server is silent for too long while a command waits for its reply.

        Not while bytes are being sent: the server cannot answer what it has not received yet.
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
        """Resolve the replies that have arrived."""
        self._moved_at = self._loop.time()
        self._reader.feed(data)
        try:
            while (reply := self._reader.gets()) is not _INCOMPLETE:
                receiver, _ = self._waiting.popleft()
                if isinstance(reply, hiredis.ReplyError):
                    _resolve(receiver, refusal(str(reply)))
                    if DEMOTED.search(str(reply)):
                        self.lose(f"the server is not the primary any more: {reply}")
                        self._on_demoted(str(reply))
                        return
                else:
                    _resolve(receiver, reply)
        except (hiredis.ProtocolError, IndexError) as error:
            self.lose(f"the server's reply cannot be read: {error}")

    def connection_lost(self, exc: Exception | None) -> None:
        """The server closed the connection, or the network lost it."""
        self._stream.connection_lost(exc)
        self.lose(str(exc) if exc else "closed by the server")


def _resolve(receiver: Receiver, reply: Any) -> None:
    """Hand over a reply or an error, unless it is no longer wanted.

    asyncio handles Ctrl-C between any two instructions, also here: it cancels the main task, and with it the
    future of the reply.
    """
    if receiver.done():
        return
    try:
        if isinstance(reply, BaseException):
            receiver.set_exception(reply)
        else:
            receiver.set_result(reply)
    except asyncio.InvalidStateError:
        if not receiver.done():
            raise


def silence(timeout: float) -> str:
    """The error text for a server that did not answer."""
    return f"no answer within {timeout:g} s"
