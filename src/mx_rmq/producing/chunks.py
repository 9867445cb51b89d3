"""``produce_many``: messages in chunks, each stored whole or not at all, two on their way at a time."""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque
from itertools import cycle
from typing import TYPE_CHECKING, Final

from mx_rmq.errors import ServerUnavailable
from mx_rmq.storage.resend import is_unavailable, resend
from mx_rmq.storage.shard import Shard, shard_number

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from mx_rmq.config import Config
    from mx_rmq.producing.calls import Calls
    from mx_rmq.receipt import Receipt
    from mx_rmq.storage.contract import NewMessage

_CHUNK: Final = 200
"""Messages in a chunk: with more of them, each costs the server more."""
LONG_CHUNK: Final = 500
"""The same where each reply is waited for: fewer calls, fewer waits."""
_UNDER_WAY: Final = 2
"""Chunks of one ``produce_many`` on their way at a time."""
_CHUNK_BYTES: Final = 1024 * 1024


class Chunks:
    """Sends chunks and keeps their order, also over a lost connection.

    Args:
        config: of the queue.
        shards: where.
        calls: names for the calls.
    """

    def __init__(self, config: Config, shards: Sequence[Shard], calls: Calls) -> None:
        self._config = config
        self._shards = shards
        self._calls = calls
        self._tasks: set[asyncio.Task[list[Receipt]]] = set()
        self._closed = False

    async def send(self, topic: str, messages: Iterable[NewMessage]) -> list[Receipt]:
        """Store many messages; all are delayed or none is.

        While chunks are on their way the next is being made, so an endless iterable needs no endless
        memory, and the server no pause.
        """
        receipts: list[Receipt] = []
        under_way: deque[_Chunk] = deque()
        latest: dict[Shard, _Chunk] = {}
        names = cycle([self._calls.name() for _ in range(_UNDER_WAY)])
        unsent: dict[Shard, list[NewMessage]] = defaultdict(list)

        async def send(shard: Shard) -> None:
            if len(under_way) == _UNDER_WAY:
                receipts.extend(await under_way.popleft().sent)
            chunk = _Chunk(shard, topic, next(names), unsent.pop(shard))
            self._send_soon(chunk, latest.get(shard))
            under_way.append(chunk)
            latest[shard] = chunk
            await asyncio.sleep(0)  # lets the chunk leave while the next one is made

        try:
            for message in messages:
                shard = self._shards[shard_number(message.id, len(self._shards))]
                waiting = unsent[shard]
                waiting.append(message)
                if is_full(waiting, _CHUNK if message.durability == "memory" else LONG_CHUNK):
                    await send(shard)
            for shard in list(unsent):
                await send(shard)
            while under_way:
                receipts.extend(await under_way.popleft().sent)
        except asyncio.CancelledError:
            for chunk in under_way:
                chunk.sent.cancel()
            raise
        finally:
            await asyncio.gather(*[chunk.sent for chunk in under_way], return_exceptions=True)
        if len(self._shards) > 1:
            receipts.sort()  # ids grow in the order in which they are made
        return receipts

    def refuse(self) -> None:
        """Send no further chunk."""
        self._closed = True

    async def sent(self) -> None:
        """Wait for the chunks that are on their way."""
        if self._tasks:
            await asyncio.wait(self._tasks)

    def _send_soon(self, chunk: _Chunk, before: _Chunk | None) -> None:
        if self._closed:
            raise ServerUnavailable("the queue was closed in the middle of produce_many")
        chunk.sent = asyncio.create_task(self._send_in_order(chunk, before))
        self._tasks.add(chunk.sent)
        chunk.sent.add_done_callback(self._tasks.discard)

    async def _send_in_order(self, chunk: _Chunk, before: _Chunk | None) -> list[Receipt]:
        """Send a chunk right behind the one before it, if that is on its way on the same connection.

        Else only when that is stored: a lost connection does not change their order. The first one goes
        alone, so that the server knows the script when others follow.
        """
        durability = chunk.messages[0].durability
        store = chunk.shard.store_for(durability)
        send = self._calls.prepare(store, chunk.topic, chunk.producer, chunk.messages)
        if before is not None:
            if not 0 < before.connection == chunk.shard.connection.number:
                await before.sent
            chunk.leaves()

        async def attempt() -> list[Receipt]:
            try:
                if before is not None and before.sent.done():
                    await before.sent  # nothing is sent behind one that failed
                return await send()
            except ServerUnavailable:
                chunk.connection = 0
                if before is not None:
                    await asyncio.wait([before.sent])  # not the task itself: it outlives this attempt
                    before.sent.result()
                raise

        def passes(error: Exception) -> bool:
            return is_unavailable(error) and (before is None or not before.failed)

        return await resend(
            attempt,
            patience=self._config.patience,
            passes=passes,
            within=self._calls.longest(durability),
        )


class _Chunk:
    """Messages on their way."""

    sent: asyncio.Task[list[Receipt]]

    def __init__(self, shard: Shard, topic: str, producer: str, messages: list[NewMessage]) -> None:
        self.shard = shard
        self.topic = topic
        self.producer = producer
        self.messages = messages
        self.connection = 0
        """On which others may follow right behind; 0 if they must wait."""

    @property
    def failed(self) -> bool:
        """Whether it was given up."""
        return self.sent.done() and (self.sent.cancelled() or self.sent.exception() is not None)

    def leaves(self) -> None:
        """Note the connection, which is now about to be used."""
        if self.messages[0].durability == "memory":  # the others have one for each call
            self.connection = self.shard.connection.number


def is_full(chunk: Sequence[NewMessage], most: int) -> bool:
    """Whether a chunk is large enough to be sent."""
    return len(chunk) == most or len(chunk) * len(chunk[-1].body) > _CHUNK_BYTES
