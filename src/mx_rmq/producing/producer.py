"""Producing single messages: calls that are made at the same time are sent together."""

from __future__ import annotations

from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Final

from mx_rmq.checks import check_topic
from mx_rmq.errors import NotDurable, ServerUnavailable
from mx_rmq.producing.calls import Calls
from mx_rmq.producing.chunks import Chunks
from mx_rmq.producing.placing import USER, NotSent, Placing
from mx_rmq.receipt import Receipt, Stored
from mx_rmq.storage.batching import Batcher
from mx_rmq.storage.refusals import Sealed
from mx_rmq.storage.resend import given_up, resend
from mx_rmq.storage.store import too_large
from mx_rmq.storage.wire import CutShort

if TYPE_CHECKING:
    from collections.abc import Awaitable, Sequence

    from mx_rmq.config import Config, Durability
    from mx_rmq.storage.contract import NewMessage
    from mx_rmq.storage.shard import Shard
    from mx_rmq.storage.shards import Shards

    Key = tuple[Shard, str, bool, Durability]
    """What messages sent together share: shard, topic, whether they are delayed, durability."""

_MOST_BATCHERS: Final = 1000


class Producer:
    """Stores messages.

    Args:
        config: of the queue.
        shards: where to store messages.
    """

    def __init__(self, config: Config, shards: Shards) -> None:
        self._config = config
        self._max_bytes = config.max_bytes
        self._shards = shards
        self._placing = Placing(config, shards)
        self._batchers: dict[Key, Batcher[NewMessage, Receipt]] = {}
        self._calls = Calls(config)
        self.chunks = Chunks(config, shards, self._calls, self._placing)
        """For ``produce_many``."""

    def produce(self, topic: str, message: NewMessage) -> Awaitable[Receipt]:
        """Store one message, together with others that are produced at the same time.

        What to do after ``NotDurable`` and ``Sealed`` is known to ``after``.
        """
        if len(message.body) > self._max_bytes:  # here, so that it fails alone, not its batch
            raise too_large(topic, message, self._max_bytes)
        if (only := self._shards.only) is not None:
            return self._batcher(only, topic, message).call(message)
        return self._produce(topic, message)

    async def after(self, error: NotDurable | Sealed, topic: str, message: NewMessage) -> Receipt:
        """What becomes of a message after an error that concerned all that were sent with it.

        If its shard took none of them because the queue has another layout, it is stored by that.

        Raises:
            NotDurable: names this message only.
        """
        if isinstance(error, NotDurable):  # after _produce it names one message, perhaps by another id
            raise (error.of(message.id) if message.id in error.ids else error) from None
        await self._placing.relearn()
        return await self._produce(topic, message)

    async def _produce(self, topic: str, message: NewMessage) -> Receipt:
        """Store one message of a queue with several shards."""
        until = monotonic() + self._config.patience
        while True:
            shard, message = self._placing.place(message)
            try:
                if not message.is_bound:
                    await self._placing.reach(shard)
                elif self._shards.older:
                    before = partial(self._placing.before, shard, topic, message)
                    taken = await resend(before, patience=self._config.patience)
                    if taken is not Stored.STORED:
                        return Receipt.of(message.id, taken)
                return await self._batcher(shard, topic, message).call(message)
            except NotSent as error:
                error.check_time(until, self._config.patience)
            except Sealed:
                await self._placing.relearn(shard)
            except NotDurable as error:
                raise error.of(message.id) from None  # its id may not be the one that the caller knows

    async def close(self) -> None:
        """Wait for the calls under way; a ``produce_many`` that has more to send fails."""
        self.chunks.refuse()
        for batcher in list(self._batchers.values()):
            await batcher.drained()
        await self.chunks.sent()
        self._placing.close()

    def _batcher(self, shard: Shard, topic: str, message: NewMessage) -> Batcher[NewMessage, Receipt]:
        key = shard, topic, message.delay > 0, message.durability
        return self._batchers.get(key) or self._new_batcher(key)

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
                shard.availability.back(USER)
            return receipts
        with shard.naming():
            receipts = await resend(
                call,
                patience=self._config.patience,
                within=self._calls.longest(durability),
                since=batch[-1].asked_at,  # of the latest caller; _on_failure gives up earlier ones in time
                failed=partial(self._on_failure, key),
                problem=problem,
            )
        shard.availability.back(USER)
        return receipts

    def _on_failure(self, key: Key, error: Exception, wait: float) -> None:
        """After a failed attempt, fail the callers whose patience ends before the next, in *wait* seconds.

        This includes callers in a later batch: their patience began when they called. A message that was not
        sent yet and may go anywhere goes to another shard.
        """
        shard, batcher, patience = key[0], self._batchers[key], self._config.patience
        self._placing.lost(shard, error)
        if isinstance(error, CutShort):
            batcher.shrink()
        if shard.name and self._placing.has_others(shard):
            batcher.turn_away(lambda message: not message.is_bound, NotSent(str(error)))
        first = monotonic() + wait - patience
        given = given_up(error, patience)
        named = shard.naming.named(given) if isinstance(given, ServerUnavailable) else given
        batcher.give_up(lambda message: message.asked_at < first, named)


def _weight(message: NewMessage) -> int:
    return len(message.body)
