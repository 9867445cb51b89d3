"""Read keys of any size in chunks, so that the server stays responsive."""

from __future__ import annotations

from time import monotonic
from typing import TYPE_CHECKING, Any, Final, TypeVar

from redis.exceptions import ResponseError

from mx_rmq.limits import REPLY_BYTES

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from mx_rmq.storage.commands import Commands

T = TypeVar("T")

CHUNK: Final = 500
"""How many entries one call reads."""


class TimeOver(Exception):
    """The time for reading is over."""


class Scan:
    """Reads with one connection.

    Args:
        commands: the connection.
        until: the instant of the monotonic clock after which every call raises ``TimeOver``.
    """

    def __init__(self, commands: Commands, *, until: float) -> None:
        self._commands = commands
        self._until = until
        self._names_only = True
        """Whether to ask HSCAN for NOVALUES; False once that is known not to work."""

    async def command(self, *args: Any) -> Any:
        """Run a command.

        Raises:
            TimeOver: it is too late.
        """
        if monotonic() > self._until:
            raise TimeOver
        return await self._commands.execute_command(*args)

    async def list_entries(self, key: str) -> AsyncIterator[list[bytes]]:
        """The entries of a list from its start, in chunks."""
        start = 0
        while chunk := await self.command("LRANGE", key, start, start + CHUNK - 1):
            yield chunk
            start += CHUNK

    async def names(self, match: str) -> AsyncIterator[bytes]:
        """The names of the keys that match a pattern."""
        cursor: Any = 0
        while True:
            cursor, names = await self.command("SCAN", cursor, "MATCH", match, "COUNT", CHUNK)
            for name in names:
                yield name
            if int(cursor) == 0:
                return

    async def pairs(self, command: str, key: str) -> AsyncIterator[tuple[bytes, Any]]:
        """The pairs of a hash or sorted set, whether or not the client has paired the reply."""
        cursor: Any = 0
        while True:
            cursor, items = await self.command(command, key, cursor, "COUNT", CHUNK)
            for name, value in _paired(items):
                yield name, value
            if int(cursor) == 0:
                return

    async def fields(self, key: str) -> AsyncIterator[bytes]:
        """The names of a hash's fields.

        A server without NOVALUES (Redis before 7.4) sends the values too. Then each call asks for so few
        fields that the reply is a small part of the longest one allowed. The fields so far serve as the
        estimate: the order of a hash is random, so the next ones are like them. A call asks for at most a
        quarter of their number, so that rare large values do not first appear in a very large reply.
        """
        cursor: Any = 0
        count = 1
        fields = size = 0
        while True:
            if self._names_only:
                try:
                    reply = await self.command("HSCAN", key, cursor, "COUNT", CHUNK, "NOVALUES")
                except ResponseError as error:
                    if "syntax" not in str(error):
                        raise
                    self._names_only = False
                    continue
                if isinstance(reply[1], dict):  # a client that pairs every HSCAN reply
                    self._names_only = False
                    continue
                cursor, names = reply
            else:
                cursor, items = await self.command("HSCAN", key, cursor, "COUNT", count)
                pairs = _paired(items)
                names = [name for name, _ in pairs]
                fields += len(pairs)
                size += sum(len(name) + len(value) for name, value in pairs)
                fitting = fields * REPLY_BYTES // (32 * size) if size else CHUNK
                count = max(1, min(fields // 4, fitting, CHUNK))
            for name in names:
                yield name
            if int(cursor) == 0:
                return


async def chunked(items: AsyncIterator[T]) -> AsyncIterator[list[T]]:
    """Items in lists of one call each."""
    chunk: list[T] = []
    async for item in items:
        chunk.append(item)
        if len(chunk) == CHUNK:
            yield chunk
            chunk = []
    if chunk:
        yield chunk


def _paired(items: Any) -> list[tuple[bytes, Any]]:
    """The pairs of a reply, whether or not the client has paired it."""
    if isinstance(items, dict):
        return list(items.items())
    if items and not isinstance(items[0], tuple | list):
        return list(zip(items[::2], items[1::2], strict=True))
    return list(items)
