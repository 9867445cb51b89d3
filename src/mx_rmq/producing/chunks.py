"""``produce_many``: messages in chunks, each stored whole or not at all, two under way at a time."""

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
"""Messages in a chunk; in a larger chunk each message costs the server more."""
LONG_CHUNK: Final = 500
"""Messages in a chunk where the sender waits for each reply: fewer calls, fewer waits."""
_UNDER_WAY: Final = 2
"""Chunks of one ``produce_many`` under way at a time."""
_CHUNK_BYTES: Final = 1024 * 1024


class Chunks:
    """Sends chunks and keeps their order, even if the connection is lost.

    Args:
        config: of the queue.
        shards: where to store messages.
        calls: names and numbers the calls.
    """

    def __init__(self, config: Config, shards: Sequence[Shard], calls: Calls) -> None:
        self._config = config
        self._shards = shards
        self._calls = calls
        self._tasks: set[asyncio.Task[list[Receipt]]] = set()
        self._closed = False

    async def send(self, topic: str, messages: Iterable[NewMessage]) -> list[Receipt]:
        """Store many messages; all are delayed or none is.

        The next chunk is made while others are under way. So the server has no pauses, and an endless
        iterable does not fill the memory with messages.
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
            await asyncio.sleep(0)  # lets the chunk be sent while the next one is made

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
        """Wait for the chunks that are under way."""
        if self._tasks:
            await asyncio.wait(self._tasks)

    def _send_soon(self, chunk: _Chunk, before: _Chunk | None) -> None:
        if self._closed:
            raise ServerUnavailable("the queue was closed in the middle of produce_many")
        chunk.sent = asyncio.create_task(self._send_in_order(chunk, before))
        self._tasks.add(chunk.sent)
        chunk.sent.add_done_callback(self._tasks.discard)

    async def _send_in_order(self, chunk: _Chunk, before: _Chunk | None) -> list[Receipt]:
        """Send a chunk right behind the previous one, if that is under way on the same connection.

        Otherwise wait until the previous one is stored, so that a lost connection does not change their
        order. The first chunk is sent alone, so that the server knows the script when others follow.
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
                    await before.sent  # raises if it failed: nothing is sent behind it
                return await send()
            except ServerUnavailable:
                chunk.connection = 0
                if before is not None:
                    await asyncio.wait([before.sent])  # cancelling this attempt must not cancel it
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
    """Messages that are sent in one call."""

    sent: asyncio.Task[list[Receipt]]

    def __init__(self, shard: Shard, topic: str, producer: str, messages: list[NewMessage]) -> None:
        self.shard = shard
        self.topic = topic
        self.producer = producer
        self.messages = messages
        self.connection = 0
        """Number of the connection on which the next chunk may follow at once; 0 if it must wait."""

    @property
    def failed(self) -> bool:
        """Whether it could not be stored, or was cancelled."""
        return self.sent.done() and (self.sent.cancelled() or self.sent.exception() is not None)

    def leaves(self) -> None:
        """Note which connection is about to be used."""
        if self.messages[0].durability == "memory":  # the others use a connection per call
            self.connection = self.shard.connection.number


def is_full(chunk: Sequence[NewMessage], most: int) -> bool:
    """Whether a chunk is large enough to be sent."""
    return len(chunk) == most or len(chunk) * len(chunk[-1].body) > _CHUNK_BYTES
