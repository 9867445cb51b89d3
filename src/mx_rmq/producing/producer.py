"""Producing single messages: calls that are made at the same time are sent together."""

from __future__ import annotations

from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Final

from mx_rmq.checks import check_topic
from mx_rmq.errors import ServerUnavailable
from mx_rmq.producing.calls import Calls
from mx_rmq.producing.chunks import Chunks
from mx_rmq.storage.batching import Batcher
from mx_rmq.storage.resend import given_up, resend
from mx_rmq.storage.shard import Shard, shard_number
from mx_rmq.storage.store import too_large
from mx_rmq.storage.wire import CutShort

if TYPE_CHECKING:
    from collections.abc import Awaitable, Sequence

    from mx_rmq.config import Config, Durability
    from mx_rmq.receipt import Receipt
    from mx_rmq.storage.contract import NewMessage

    Key = tuple[Shard, str, bool, Durability]
    """What messages sent together share: shard, topic, whether they are delayed, durability."""

_MOST_BATCHERS: Final = 1000
_USER: Final = "producer"
"""How the server's availability knows producers."""


class Producer:
    """Stores messages.

    Args:
        config: of the queue.
        shards: where to store messages.
    """

    def __init__(self, config: Config, shards: Sequence[Shard]) -> None:
        self._config = config
        self._max_bytes = config.max_bytes
        self._shards = shards
        self._batchers: dict[Key, Batcher[NewMessage, Receipt]] = {}
        self._calls = Calls(config)
        self.chunks = Chunks(config, shards, self._calls)
        """For ``produce_many``."""

    def produce(self, topic: str, message: NewMessage) -> Awaitable[Receipt]:
        """Store one message, together with others that are produced at the same time.

        ``NotDurable`` names all of them; its ``of`` makes the error for this one.
        """
        if len(message.body) > self._max_bytes:  # here, so that it fails alone, not its batch
            raise too_large(topic, message, self._max_bytes)
        shards = self._shards
        shard = shards[0] if len(shards) == 1 else shards[shard_number(message.id, len(shards))]
        key = shard, topic, message.delay > 0, message.durability
        batcher = self._batchers.get(key) or self._new_batcher(key)
        return batcher.call(message)

    async def close(self) -> None:
        """Wait for the calls under way; a ``produce_many`` that has more to send fails."""
        self.chunks.refuse()
        for batcher in list(self._batchers.values()):
            await batcher.drained()
        await self.chunks.sent()

    def _new_batcher(self, key: Key) -> Batcher[NewMessage, Receipt]:
        check_topic(key[1])
        if len(self._batchers) >= _MOST_BATCHERS:  # drop those of topics no longer in use
            self._batchers = {key: batcher for key, batcher in self._batchers.items() if not batcher.idle}
        senders = [partial(self._send, key, self._calls.name()) for _ in range(2)]
        batcher = self._batchers[key] = Batcher(*senders, weigh=_weight)
        return batcher

    async def _send(self, key: Key, producer: str, batch: Sequence[NewMessage]) -> list[Receipt]:
        shard, topic, _, durability = key
        store = shard.store_for(durability)
        call = self._calls.prepare(store, topic, producer, batch)
        try:
            receipts = await call()
        except ServerUnavailable as error:
            problem = error
        else:
            if shard.availability.away:
                shard.availability.back(_USER)
            return receipts
        receipts = await resend(
            call,
            patience=self._config.patience,
            within=self._calls.longest(durability),
            since=batch[-1].asked_at,  # of the latest caller; _on_failure gives up earlier ones in time
            failed=partial(self._on_failure, key),
            problem=problem,
        )
        shard.availability.back(_USER)
        return receipts

    def _on_failure(self, key: Key, error: Exception, wait: float) -> None:
        """After a failed attempt, fail the callers whose patience ends before the next, in *wait* seconds.

        This includes callers in a later batch: their patience began when they called.
        """
        batcher, patience = self._batchers[key], self._config.patience
        key[0].availability.lost(_USER, error, f"trying for {patience:g} s")
        if isinstance(error, CutShort):
            batcher.shrink()
        first = monotonic() + wait - patience
        batcher.give_up(lambda message: message.asked_at < first, given_up(error, patience))


def _weight(message: NewMessage) -> int:
    return len(message.body)
