"""A connection that hears what is published on one channel."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Any, Final

import hiredis

from mx_rmq.errors import ServerUnavailable, StoreError
from mx_rmq.storage.replies import refusal
from mx_rmq.storage.wire import silence

if TYPE_CHECKING:
    from collections.abc import Callable

_INCOMPLETE: Final = object()


class Subscription(asyncio.Protocol):
    """Hears one channel on an open connection, until that is lost.

    Args:
        stream: the stream that redis-py opened.
        channel: what to hear.
        timeout: seconds without an answer after which the connection counts as dead.
        on_message: called with what is published.
        on_lost: called when the connection is lost.
    """

    def __init__(
        self,
        stream: asyncio.StreamWriter,
        channel: str,
        timeout: float,
        on_message: Callable[[bytes], None],
        on_lost: Callable[[], None],
    ) -> None:
        self.lost = False
        self._why = ""
        self._owner = stream  # kept, because its finalizer would close the transport
        self._transport: Any = stream.transport
        self._channel = channel
        self._timeout = timeout
        self._on_message = on_message
        self._on_lost = on_lost
        self._reader = hiredis.Reader(notEnoughData=_INCOMPLETE)
        self._asked: deque[asyncio.Future[None]] = deque()
        self._stream = self._transport.get_protocol()
        self._transport.set_protocol(self)

    async def confirm(self) -> None:
        """Subscribe, or see whether the server still knows of it: it answers either with the same words.

        No other command is needed to notice that a connection is dead, and so no other right.

        Raises:
            ServerUnavailable: the connection is lost.
            StoreError: the user may not subscribe.
        """
        if self.lost:
            raise ServerUnavailable(f"the connection was lost: {self._why}")
        answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._asked.append(answer)
        command: tuple[Any, ...] = ("SUBSCRIBE", self._channel)
        self._transport.write(hiredis.pack_command(command))
        try:
            await asyncio.wait([answer], timeout=self._timeout)
        except asyncio.CancelledError:
            answer.cancel()  # it keeps its place, so that later answers keep theirs
            raise
        if not answer.done():
            self.close(silence(self._timeout))
        await answer

    def close(self, why: str = "closed") -> None:
        """Close the connection."""
        if self.lost:
            return
        self.lost, self._why = True, why
        self._transport.abort()
        while self._asked:
            answer = self._asked.popleft()
            if not answer.done():
                answer.set_exception(ServerUnavailable(f"the connection was lost: {why}"))
        self._on_lost()

    def data_received(self, data: bytes) -> None:
        """Tell of messages that have arrived."""
        self._reader.feed(data)
        try:
            while (reply := self._reader.gets()) is not _INCOMPLETE:
                if isinstance(reply, hiredis.ReplyError):
                    self._refused(str(reply))
                elif reply[0] == b"message":
                    self._on_message(reply[2])
                elif self._asked:
                    answer = self._asked.popleft()
                    if not answer.done():
                        answer.set_result(None)
        except (hiredis.ProtocolError, IndexError, TypeError) as error:
            self.close(f"the server's reply cannot be read: {error}")

    def _refused(self, text: str) -> None:
        error = refusal(text)
        if self._asked and not isinstance(error, ServerUnavailable):
            remedy = f"give its user +subscribe and the channel &{self._channel}"
            error = StoreError(f"the server lets this program not hear the workers: {text}; {remedy}")
        if self._asked:
            answer = self._asked.popleft()
            if not answer.done():
                answer.set_exception(error)
        self.close(text)

    def connection_lost(self, exc: Exception | None) -> None:
        """The server closed the connection, or the network lost it."""
        self._stream.connection_lost(exc)
        self.close(str(exc) if exc else "closed by the server")
