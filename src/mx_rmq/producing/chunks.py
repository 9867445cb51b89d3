"""``produce_many``: messages in chunks, each stored whole or not at all, two under way on each shard."""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque
from functools import partial
from itertools import cycle
from time import monotonic
from typing import TYPE_CHECKING, Final

from mx_rmq.errors import ServerUnavailable
from mx_rmq.producing.placing import NotSent
from mx_rmq.storage.refusals import Sealed
from mx_rmq.storage.resend import is_unavailable, resend

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from mx_rmq.config import Config
    from mx_rmq.producing.calls import Calls
    from mx_rmq.producing.placing import Placing
    from mx_rmq.receipt import Receipt
    from mx_rmq.storage.contract import NewMessage
    from mx_rmq.storage.shard import Shard
    from mx_rmq.storage.shards import Shards

_CHUNK: Final = 200
"""Messages in a chunk; in a larger chunk each message costs the server more."""
LONG_CHUNK: Final = 500
"""Messages in a chunk where the sender waits for each reply: fewer calls, fewer waits."""
_UNDER_WAY: Final = 2
"""Chunks of one ``produce_many`` under way on a shard at a time."""
_GLANCE: Final = 0.1
"""Seconds between two looks whether the shard that holds a ``produce_many`` up still answers."""
_CHUNK_BYTES: Final = 1024 * 1024


class Chunks:
    """Sends chunks and keeps their order, even if the connection is lost.

    Args:
        config: of the queue.
        shards: where to store messages.
        calls: names and numbers the calls.
        placing: finds the shard of each message.
    """

    def __init__(self, config: Config, shards: Shards, calls: Calls, placing: Placing) -> None:
        self._config = config
        self.shards = shards
        self._calls = calls
        self.placing = placing
        self._tasks: set[asyncio.Task[list[Receipt]]] = set()
        self._closed = False

    async def send(self, topic: str, messages: Iterable[NewMessage]) -> list[Receipt]:
        """Store many messages; all are delayed or none is.

        The next chunk is made while others are under way. So the server has no pauses, and an endless
        iterable does not fill the memory with messages.
        """
        sending = _Sending(self, topic)
        try:
            await sending.add(messages)
            await sending.flush()
        except asyncio.CancelledError:
            sending.cancel()
            raise
        finally:
            await sending.ended()
        return sending.in_order()

    def name(self) -> str:
        """A new name of a producer, for calls that are under way one at a time."""
        return self._calls.name()

    def refuse(self) -> None:
        """Send no further chunk."""
        self._closed = True

    async def sent(self) -> None:
        """Wait for the chunks that are under way."""
        if self._tasks:
            await asyncio.wait(self._tasks)

    def send_soon(self, chunk: _Chunk, before: _Chunk | None) -> None:
        """Send a chunk, behind the one before it on its shard."""
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

        async def again() -> list[Receipt]:
            """Send the messages, of which none was stored here, to the shards that take them now."""
            if before is not None:
                await asyncio.wait([before.sent])
                before.sent.result()
            return await self._send_elsewhere(chunk)

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

        def failed(error: Exception, _wait: float) -> None:
            if len(self.shards) > 1:
                self.placing.lost(chunk.shard, error)

        chunk.until = chunk.until or monotonic() + self._config.patience
        try:
            first = chunk.messages[0]
            if len(self.shards) > 1 and not first.is_bound:
                await self.placing.reach(chunk.shard)
            elif self.shards.older and first.key:  # the same for all of them
                prepare = partial(self.placing.before, chunk.shard, chunk.topic, first)
                with chunk.shard.naming():
                    await resend(prepare, patience=self._config.patience)
            with chunk.shard.naming():
                return await resend(
                    attempt,
                    patience=self._config.patience,
                    passes=passes,
                    within=self._calls.longest(durability),
                    failed=failed,
                )
        except NotSent as error:
            error.check_time(chunk.until, self._config.patience)
            return await again()
        except Sealed:
            await self.placing.relearn(chunk.shard)
            return await again()

    async def _send_elsewhere(self, chunk: _Chunk) -> list[Receipt]:
        """Send the messages of a chunk again, each to the shard that is its own now."""
        sending = _Sending(self, chunk.topic, chunk.first_ids, chunk.until)
        try:
            await sending.add(chunk.messages)
            await sending.flush()
        finally:
            await sending.ended()
        return sending.in_order()


class _Sending:
    """One ``produce_many`` under way.

    Args:
        chunks: sends its chunks.
        topic: of all messages.
        first_ids: the first id of each message that got another one.
        until: the end of the patience with its messages; 0 if it begins when they are sent.
    """

    def __init__(
        self, chunks: Chunks, topic: str, first_ids: dict[str, str] | None = None, until: float = 0.0
    ) -> None:
        self._until = until
        self.receipts: list[Receipt] = []
        self._moved = False
        """Whether there were other shards at the end than at first."""
        self._first_ids: dict[str, str] = {} if first_ids is None else first_ids
        self._chunks = chunks
        self._topic = topic
        self._layout = chunks.shards.layout
        self._under_way: dict[Shard, deque[_Chunk]] = defaultdict(deque)
        self._latest: dict[Shard, _Chunk] = {}
        self._names: dict[Shard, Iterator[str]] = {}
        self._unsent: dict[Shard, list[NewMessage]] = defaultdict(list)

    async def add(self, messages: Iterable[NewMessage]) -> None:
        """Put messages into the next chunks of their shards; sends each chunk that is full."""
        shards, place = self._chunks.shards, self._chunks.placing.place
        for message in messages:
            if self._layout is not shards.layout:
                await self._follow_layout()
            shard, placed = place(message)
            if placed is not message:
                self._first_ids[placed.id] = self._first_ids.get(message.id, message.id)
            waiting = self._unsent[shard]
            waiting.append(placed)
            if is_full(waiting, _CHUNK if placed.durability == "memory" else LONG_CHUNK):
                await self._send(shard)

    async def flush(self) -> None:
        """Send what is left, and wait until everything is stored."""
        while self._unsent:
            for shard in list(self._unsent):
                if shard in self._unsent:  # what another shard had no room for may have sent it
                    await self._send(shard)
        for under_way in self._under_way.values():
            while under_way:
                self.receipts.extend(await under_way.popleft().sent)

    def in_order(self) -> list[Receipt]:
        """The receipts in the order of the messages: ids grow in the order in which they are made."""
        if self._moved or len(self._names) > 1:
            first = self._first_ids
            self.receipts.sort(key=(lambda receipt: first.get(receipt, receipt)) if first else None)
        return self.receipts

    def cancel(self) -> None:
        """Send no more."""
        for under_way in self._under_way.values():
            for chunk in under_way:
                chunk.sent.cancel()

    async def ended(self) -> None:
        """Wait for what is under way, however it ends."""
        chunks = [chunk.sent for under_way in self._under_way.values() for chunk in under_way]
        await asyncio.gather(*chunks, return_exceptions=True)

    async def _send(self, shard: Shard) -> None:
        under_way = self._under_way[shard]
        if len(under_way) == _UNDER_WAY and not await self._room(shard, under_way):
            await self.add(self._unsent.pop(shard))
            return
        if shard not in self._names:
            self._names[shard] = cycle([self._chunks.name() for _ in range(_UNDER_WAY)])
        messages = self._unsent.pop(shard)
        name = next(self._names[shard])
        chunk = _Chunk(shard, self._topic, name, messages, self._first_ids, self._until)
        self._chunks.send_soon(chunk, self._latest.get(shard))
        under_way.append(chunk)
        self._latest[shard] = chunk
        await asyncio.sleep(0)  # lets the chunk be sent while the next one is made

    async def _room(self, shard: Shard, under_way: deque[_Chunk]) -> bool:
        """Wait until a shard has room for a chunk; False if the messages should go to another shard."""
        oldest = under_way[0].sent
        while not oldest.done():
            await asyncio.wait([oldest], timeout=_GLANCE if shard.name else None)
            if not oldest.done() and self._chunks.placing.place(self._unsent[shard][0])[0] is not shard:
                return False
        self.receipts.extend(await under_way.popleft().sent)
        return True

    async def _follow_layout(self) -> None:
        """Go on with other shards only when everything is stored that came before."""
        self._layout = self._chunks.shards.layout
        self._moved = True
        await self.flush()


class _Chunk:
    """Messages that are sent in one call."""

    sent: asyncio.Task[list[Receipt]]

    def __init__(
        self,
        shard: Shard,
        topic: str,
        producer: str,
        messages: list[NewMessage],
        first_ids: dict[str, str],
        until: float,
    ) -> None:
        self.shard = shard
        self.topic = topic
        self.producer = producer
        self.messages = messages
        self.first_ids = first_ids
        self.until = until
        """The end of the patience with its messages; 0 before they are sent."""
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
