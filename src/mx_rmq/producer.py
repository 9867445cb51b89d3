"""Producing: storing messages, many callers in one script call."""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque
from functools import partial
from itertools import count, cycle
from time import monotonic
from typing import TYPE_CHECKING, Final
from zlib import crc32

from mx_rmq.batching import Batcher
from mx_rmq.errors import NotDurable, ServerUnavailable
from mx_rmq.ids import new_id
from mx_rmq.keys import check_name
from mx_rmq.link import CutShort
from mx_rmq.records import Stored
from mx_rmq.resend import given_up, is_unavailable, resend
from mx_rmq.store import check_size

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Sequence

    from mx_rmq.config import Config, Durability
    from mx_rmq.records import NewMessage
    from mx_rmq.shard import Shard

    Key = tuple[Shard, str, bool, Durability]
    """What travels together: shard, topic, whether it is delayed, how durable it must be."""
    Waiting = tuple[NewMessage, float]
    """A message, and since when its caller waits."""

_CHUNK: Final = 200
"""Messages in a call of ``produce_many``: with more of them, each costs the server more."""
LONG_CHUNK: Final = 500
"""The same where each reply is waited for: fewer calls, fewer waits."""
_UNDER_WAY: Final = 2
"""Chunks of one ``produce_many`` on their way at a time."""
_CHUNK_BYTES: Final = 1024 * 1024
_MOST_BATCHERS: Final = 1000


class Receipt(str):
    """The id of a message, which knows whether it was stored now or had been there before."""

    __slots__ = ()  # as light as a string: there may be millions of them

    stored: Stored = Stored.STORED

    @classmethod
    def of(cls, id_: str, stored: Stored) -> Receipt:
        """A receipt for a message id."""
        if stored is Stored.STORED:
            return cls(id_)
        receipt = _Taken(id_)
        receipt.stored = stored
        return receipt

    @property
    def duplicate(self) -> bool:
        """True if the id was taken, so that nothing was stored."""
        return self.stored is not Stored.STORED


class _Taken(Receipt):
    """One for an id that was taken, with room to say by what."""


class Producer:
    """Stores messages; calls that come together travel together."""

    def __init__(self, config: Config, shards: Sequence[Shard]) -> None:
        self._config = config
        self._shards = shards
        self._batchers: dict[Key, Batcher[Waiting, Receipt]] = {}
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
        batcher = self._batchers.get(key) or self._new_batcher(key)
        return batcher.call((message, monotonic()))

    async def produce_many(self, topic: str, messages: Iterable[NewMessage]) -> list[Receipt]:
        """Store many messages in chunks, each stored whole or not at all; all are delayed or none is.

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
                shard = self.shard_of(message.id)
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

    async def close(self) -> None:
        """Let what is under way end; a ``produce_many`` that has more to send fails."""
        self._closed = True
        for batcher in list(self._batchers.values()):
            await batcher.drained()
        if self._chunks:
            await asyncio.wait(self._chunks)

    def _send_soon(self, chunk: _Chunk, before: _Chunk | None) -> None:
        if self._closed:
            raise ServerUnavailable("the queue was closed in the middle of produce_many")
        chunk.sent = asyncio.create_task(self._send_in_order(chunk, before))
        self._chunks.add(chunk.sent)
        chunk.sent.add_done_callback(self._chunks.discard)

    async def _send_in_order(self, chunk: _Chunk, before: _Chunk | None) -> list[Receipt]:
        """Send a chunk right behind the one before it, if that is on its way on the same connection.

        Else only when that is stored: a lost connection does not change their order. The first one goes
        alone, so that the server knows the script when others follow.
        """
        send = self._call(chunk.shard, chunk.topic, chunk.producer, chunk.messages)
        if before is not None:
            if not 0 < before.connection == chunk.shard.link.connection:
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
            within=self._attempt(chunk.messages[0].durability),
        )

    def _attempt(self, durability: Durability) -> float:
        """How many seconds an attempt may take."""
        config = self._config
        return config.socket_timeout + (0.0 if durability == "memory" else config.durability_timeout)

    def _new_batcher(self, key: Key) -> Batcher[Waiting, Receipt]:
        check_name("topic", key[1])
        if len(self._batchers) >= _MOST_BATCHERS:  # as many topics as that have come and gone
            self._batchers = {key: batcher for key, batcher in self._batchers.items() if not batcher.idle}
        senders = [partial(self._send, key, self._calls.name()) for _ in range(2)]
        batcher = self._batchers[key] = Batcher(*senders, weigh=_weight)
        return batcher

    async def _send(self, key: Key, producer: str, batch: Sequence[Waiting]) -> list[Receipt]:
        shard, topic, _, durability = key
        call = self._call(shard, topic, producer, [message for message, _ in batch])
        try:
            return await call()
        except ServerUnavailable as error:
            problem = error
        return await resend(
            call,
            patience=self._config.patience,
            within=self._attempt(durability),
            since=batch[-1][1],  # the last who came; the others are told when their own patience is over
            failed=partial(self._lost, key),
            problem=problem,
        )

    def _lost(self, key: Key, error: Exception, wait: float) -> None:
        """An attempt failed and the next one is *wait* seconds away: tell the callers who wait no longer.

        Also those who wait for a later batch: their patience began when they called.
        """
        batcher, patience = self._batchers[key], self._config.patience
        if isinstance(error, CutShort):
            batcher.shrink()
        first = monotonic() + wait - patience
        batcher.give_up(lambda waiting: waiting[1] < first, given_up(error, patience))

    def _call(
        self, shard: Shard, topic: str, producer: str, messages: Sequence[NewMessage]
    ) -> Callable[[], Awaitable[list[Receipt]]]:
        """One call, named so that it may be sent again after a lost reply without storing twice.

        Its messages are all delayed or none is, and all as durable as the first.
        """
        store = shard.store_for(messages[0].durability)
        produce = store.produce_delayed if messages[0].delay > 0 else store.produce
        call = self._calls.number()

        async def send() -> list[Receipt]:
            try:
                stored = await produce(topic, messages, producer=producer, call=call)
            except NotDurable as error:
                raise error.of(*(message.id for message in messages)) from None
            return [Receipt.of(message.id, status) for message, status in zip(messages, stored, strict=True)]

        return send


class _Chunk:
    """Messages of ``produce_many`` on their way."""

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
            self.connection = self.shard.link.connection


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


def is_full(chunk: Sequence[NewMessage], most: int) -> bool:
    """Whether a chunk of ``produce_many`` is large enough to be sent."""
    return len(chunk) == most or len(chunk) * len(chunk[-1].body) > _CHUNK_BYTES


def _weight(waiting: Waiting) -> int:
    return len(waiting[0].body)
