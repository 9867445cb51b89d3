"""Producing: storing messages, many callers in one script call."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Final
from zlib import crc32

from mx_rmq.batching import Batcher
from mx_rmq.errors import NotDurable, ServerUnavailable
from mx_rmq.ids import new_id
from mx_rmq.keys import check_name
from mx_rmq.records import Stored
from mx_rmq.resend import resend
from mx_rmq.store import check_size

if TYPE_CHECKING:
    from collections.abc import Awaitable, Iterable, Sequence

    from mx_rmq.config import Config, Durability
    from mx_rmq.records import NewMessage
    from mx_rmq.shard import Shard

_CHUNK: Final = 500
_CHUNK_BYTES: Final = 1024 * 1024
_MOST_BATCHERS: Final = 1000


class Receipt(str):
    """The id of a message, which knows whether it was stored now or had been there before."""

    stored: Stored = Stored.STORED

    @classmethod
    def of(cls, id_: str, stored: Stored) -> Receipt:
        """A receipt for a message id."""
        receipt = cls(id_)
        if stored is not Stored.STORED:
            receipt.stored = stored
        return receipt

    @property
    def duplicate(self) -> bool:
        """True if the id was taken, so that nothing was stored."""
        return self.stored is not Stored.STORED


class Producer:
    """Stores messages; calls that come together travel together."""

    def __init__(self, config: Config, shards: Sequence[Shard]) -> None:
        self._config = config
        self._shards = shards
        self._batchers: dict[tuple[Shard, str, bool, Durability], Batcher[NewMessage, Receipt]] = {}
        self._calls = Calls()
        self._chunks: set[asyncio.Task[list[Receipt]]] = set()
        self._closed = False

    def shard_of(self, id_: str) -> Shard:
        """The shard that holds a message."""
        shards = self._shards
        return shards[0] if len(shards) == 1 else shards[crc32(id_.encode()) % len(shards)]

    def produce(self, topic: str, message: NewMessage) -> Awaitable[Receipt]:
        """Store one message, together with others that are produced meanwhile.

        ``NotDurable`` names all of them; its ``of`` is for the one.
        """
        check_size(topic, message, self._config.max_bytes)  # here, so that no one else's call fails for it
        key = self.shard_of(message.id), topic, message.delay > 0, message.durability
        batcher = self._batchers.get(key) or self._new_batcher(*key)
        return batcher.call(message)

    async def produce_many(self, topic: str, messages: Iterable[NewMessage]) -> list[Receipt]:
        """Store many messages in chunks, each stored whole or not at all; all are delayed or none is.

        While one chunk is on its way the next is being made, so an endless iterable needs no endless
        memory. It leaves when the one before it is stored: a lost reply does not change their order.
        """
        receipts: list[Receipt] = []
        under_way: list[asyncio.Task[list[Receipt]]] = []
        chunks: dict[Shard, list[NewMessage]] = defaultdict(list)

        async def send(shard: Shard, chunk: list[NewMessage]) -> None:
            if under_way:
                receipts.extend(await under_way.pop())
            under_way.append(self._send_soon(shard, topic, chunk))
            await asyncio.sleep(0)  # lets the chunk leave while the next one is made

        try:
            for message in messages:
                shard = self.shard_of(message.id)
                chunk = chunks[shard]
                chunk.append(message)
                if is_full(chunk):
                    await send(shard, chunks.pop(shard))
            for shard, chunk in chunks.items():
                await send(shard, chunk)
            while under_way:
                receipts.extend(await under_way.pop())
        except asyncio.CancelledError:
            for task in under_way:
                task.cancel()
            raise
        finally:
            await asyncio.gather(*under_way, return_exceptions=True)
        if len(self._shards) > 1:
            receipts.sort()  # ids grow in the order in which they are made
        return receipts

    async def close(self) -> None:
        """Let what is under way end; a ``produce_many`` that has more to send fails."""
        self._closed = True
        for batcher in list(self._batchers.values()):
            await batcher.drained()
        if self._chunks:
            await asyncio.wait(self._chunks)

    def _send_soon(self, shard: Shard, topic: str, chunk: list[NewMessage]) -> asyncio.Task[list[Receipt]]:
        if self._closed:
            raise ServerUnavailable("the queue was closed in the middle of produce_many")
        send = self._send(shard, topic, self._calls.name(), chunk)
        task = asyncio.create_task(send)
        self._chunks.add(task)
        task.add_done_callback(self._chunks.discard)
        return task

    def _new_batcher(
        self, shard: Shard, topic: str, delayed: bool, durability: Durability
    ) -> Batcher[NewMessage, Receipt]:
        check_name("topic", topic)
        if len(self._batchers) >= _MOST_BATCHERS:  # as many topics as that have come and gone
            self._batchers = {key: batcher for key, batcher in self._batchers.items() if not batcher.idle}
        senders = [partial(self._send, shard, topic, self._calls.name()) for _ in range(2)]
        batcher = self._batchers[shard, topic, delayed, durability] = Batcher(*senders, weigh=_weight)
        return batcher

    async def _send(
        self, shard: Shard, topic: str, producer: str, messages: Sequence[NewMessage]
    ) -> list[Receipt]:
        """One call, named so that it may be sent again after a lost reply without storing twice.

        Its messages are all delayed or none is, and all as durable as the first.
        """
        store = shard.store_for(messages[0].durability)
        produce = store.produce_delayed if messages[0].delay > 0 else store.produce
        call = self._calls.number()
        try:
            stored = await resend(
                lambda: produce(topic, messages, producer=producer, call=call), patience=self._config.patience
            )
        except NotDurable as error:
            raise error.of(*(message.id for message in messages)) from None
        return [Receipt.of(message.id, status) for message, status in zip(messages, stored, strict=True)]


class Calls:
    """Names for calls: a producer has one call under way at a time, and each call its number."""

    def __init__(self) -> None:
        self._numbers = count(1)

    def name(self) -> str:
        """A name no other producer has."""
        return new_id()

    def number(self) -> str:
        """The next number, whichever thread asks."""
        return str(next(self._numbers))


def is_full(chunk: Sequence[NewMessage]) -> bool:
    """Whether a chunk of ``produce_many`` is large enough to be sent."""
    return len(chunk) == _CHUNK or len(chunk) * len(chunk[-1].body) > _CHUNK_BYTES


def _weight(message: NewMessage) -> int:
    return len(message.body)
