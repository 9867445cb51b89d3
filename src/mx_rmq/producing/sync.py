"""A producer for code without an event loop: scripts, Django, Flask."""

from __future__ import annotations

import os
import random
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import copy_context
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Any, TypeVar, Unpack, cast

from mx_rmq.checks import check_topic
from mx_rmq.errors import ConfigError, NotDurable
from mx_rmq.events import MessagesProduced, heard
from mx_rmq.payloads import check_payloads, numbered
from mx_rmq.producing.calls import Calls
from mx_rmq.producing.chunks import LONG_CHUNK, is_full
from mx_rmq.producing.middleware import ProduceLayers, around, around_many
from mx_rmq.producing.options import check_options, messages, refuse_one_id, refuse_unknown_options
from mx_rmq.producing.placing import USER, NotSent, id_for, with_id
from mx_rmq.producing.sync_shards import SyncShards
from mx_rmq.receipt import Receipt, Stored, receipts
from mx_rmq.storage.blocking import Waited, run_blocking
from mx_rmq.storage.locate import Address
from mx_rmq.storage.refusals import Sealed
from mx_rmq.storage.resend import resend_blocking
from mx_rmq.storage.shard import shard_number
from mx_rmq.storage.store import Store

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence

    from mx_rmq.config import Config
    from mx_rmq.produce_options import ProduceManyOptions, ProduceOptions
    from mx_rmq.producing.middleware import ProduceMiddleware
    from mx_rmq.producing.sync_shards import SyncShard
    from mx_rmq.storage.contract import NewMessage
    from mx_rmq.storage.store import NewStore


R = TypeVar("R")


class SyncProducer:
    """A blocking producer. All threads of a process may share it, and it may be used after a fork.

    Args:
        config: of the queue.
        address: of its server, if other objects use it too.
        layers: the produce middleware of its queue.
        fit: returns a payload that the handler of a topic accepts, or raises ``InvalidPayload``.
    """

    def __init__(
        self,
        config: Config,
        address: Address | None = None,
        layers: ProduceLayers | None = None,
        fit: Callable[[str, Any], Any] = lambda _topic, payload: payload,
    ) -> None:
        self._config = config
        self._fit = fit
        self._layers = layers or ProduceLayers()
        self._shards = SyncShards(config, address or Address(config.server), Store)
        self._calls = Calls(config)
        self._names: list[str] = []
        """Producer names that have no call under way."""
        self._pid = os.getpid()

    def produce(self, topic: str, payload: Any, **options: Unpack[ProduceOptions]) -> Receipt:
        """Store a message and return its id; the options are those of ``RedisMessageQueue.produce``."""
        refuse_unknown_options(options)
        if layers := self._layers.active():
            return self._produce_through(layers, topic, payload, options)
        (receipt,) = self._send(topic, [self._message(topic, payload, options)])
        return receipt

    def produce_many(
        self, topic: str, payloads: Iterable[Any], **options: Unpack[ProduceManyOptions]
    ) -> list[Receipt]:
        """Store many messages in chunks, each stored whole or not at all."""
        check_topic(topic)
        refuse_unknown_options(options)
        refuse_one_id(options)
        if layers := self._layers.active():
            stored: list[str] = []

            async def last(topic: str, payloads: Iterable[Any], options: ProduceManyOptions) -> list[Receipt]:
                receipts = self._produce_many(topic, payloads, options)
                stored.extend(receipts)
                return receipts

            check_options(self._config, topic, **options)
            check_payloads(payloads)
            whole = around_many(layers, last)
            if whole is not None:
                return self._through(whole(topic, payloads, options), stored)

            def one(payload: Any) -> Receipt:
                return self._produce_through(layers, topic, payload, cast("ProduceOptions", {**options}))

            return list(numbered(payloads, one))
        return self._produce_many(topic, payloads, options)

    def _produce_many(
        self, topic: str, payloads: Iterable[Any], options: ProduceManyOptions
    ) -> list[Receipt]:
        """Produce many without middleware."""
        receipts: list[Receipt] = []
        chunk: list[NewMessage] = []
        checked = check_options(self._config, topic, **options)
        for message in messages(checked, payloads, partial(self._fit, topic)):
            chunk.append(message)
            if is_full(chunk, LONG_CHUNK):
                receipts += self._send(topic, chunk)
                chunk = []
        return receipts + self._send(topic, chunk) if chunk else receipts

    def close(self) -> None:
        """Close the connections; a later call opens them again."""
        self._shards.close()

    def use(self, config: Config, address: Address, new_store: NewStore) -> None:
        """Use another server from now on; the connections to this one are closed."""
        self.close()
        self._config, self._shards = config, SyncShards(config, address, new_store)

    def __enter__(self) -> SyncProducer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _produce_through(
        self, layers: Sequence[ProduceMiddleware], topic: str, payload: Any, options: ProduceOptions
    ) -> Receipt:
        """Produce through the middleware, which cannot await anything but ``call_next`` here."""
        stored: list[str] = []

        async def last(topic: str, payload: Any, options: ProduceOptions) -> Receipt:
            (receipt,) = self._send(topic, [self._message(topic, payload, options)])
            stored.append(receipt)
            return receipt

        return self._through(around(layers, last)(topic, payload, options), stored)

    def _through(self, call: Awaitable[R], stored: Sequence[str] = ()) -> R:
        """Run a call through the middleware; *stored* has what the call stored before it failed."""

        async def produce() -> R:
            return await call

        try:
            return run_blocking(produce())
        except Waited:
            what = f"message {stored[0]} was stored before that" if stored else "nothing was stored"
            raise ConfigError(
                "a produce middleware awaited something else than call_next, but mq.sync has no event loop; "
                f"{what}; use await mq.produce"
            ) from None

    def _message(self, topic: str, payload: Any, options: ProduceOptions) -> NewMessage:
        return check_options(self._config, topic, **options).message(self._fit(topic, payload))

    def _send(self, topic: str, messages: Sequence[NewMessage], until: float = 0.0) -> list[Receipt]:
        """Store messages, each on its shard.

        Args:
            topic: of all of them.
            messages: at most as many as one call takes.
            until: the end of the patience with them, by ``time.monotonic``; 0 if it begins now.
        """
        until = until or monotonic() + self._config.patience
        shards = self._shards.now()
        if len(shards) == 1:
            try:
                return self._resend(shards[0], topic, messages, until)
            except Sealed:
                self._shards.relearn(shards)
                return self._send(topic, messages, until)
        placed = [_placed(message, shards) for message in messages]
        places: dict[SyncShard, list[int]] = {}
        for place, (shard, _) in enumerate(placed):
            places.setdefault(shard, []).append(place)
        receipts: dict[int, Receipt] = {}

        def send(shard: SyncShard) -> None:
            own = places[shard]
            some = [placed[place][1] for place in own]
            try:
                if not some[0].is_bound and any(each.is_well for each in shards if each is not shard):
                    shard.reach(some[0].durability, patience=self._config.patience)
                stored = self._resend(shard, topic, some, until)
            except NotSent as error:
                error.check_time(until, self._config.patience)
                stored = self._send(topic, some, until)
            except Sealed:
                self._shards.relearn(shards)
                stored = self._send(topic, some, until)
            receipts.update(zip(own, stored, strict=True))

        if len(places) == 1:
            send(next(iter(places)))
        else:
            with ThreadPoolExecutor(len(places)) as threads:  # to all shards at once
                for done in [threads.submit(copy_context().run, send, shard) for shard in places]:
                    done.result()
        return [receipts[place] for place in range(len(messages))]

    def _resend(
        self, shard: SyncShard, topic: str, messages: Sequence[NewMessage], until: float
    ) -> list[Receipt]:
        """Send one call; it has a name, so that sending it again stores nothing twice."""
        first, since = messages[0], until - self._config.patience
        if self._shards.has_older and first.is_bound:
            taken = resend_blocking(
                lambda: self._shards.before(shard, topic, first),
                patience=self._config.patience,
                within=self._config.socket_timeout,
                failed=partial(shard.failed, patience=self._config.patience),
                since=since,
            )
            if taken is not Stored.STORED:
                return [Receipt.of(first.id, taken)]
        store = shard.stores[messages[0].durability]
        produce = store.produce_delayed if messages[0].delay else store.produce
        with self._name() as producer:
            call = self._calls.number()  # after the name is taken: the numbers of a name must grow
            try:
                with shard.naming():
                    stored = resend_blocking(
                        lambda: run_blocking(produce(topic, messages, producer=producer, call=call)),
                        patience=self._config.patience,
                        within=self._calls.longest(messages[0].durability),
                        failed=partial(shard.failed, patience=self._config.patience),
                        since=since,
                    )
            except NotDurable as error:
                raise error.of(*(message.id for message in messages)) from None
            shard.availability.back(USER)
            if heard(MessagesProduced):
                self._calls.tell(topic, stored)
            return receipts([message.id for message in messages], stored)

    @contextmanager
    def _name(self) -> Iterator[str]:
        """A producer name for one call at a time; names are reused, since the server remembers each one."""
        if self._pid != os.getpid():  # a forked child must not use its parent's names
            self._pid, self._names = os.getpid(), []
        names = self._names
        try:
            name = names.pop()
        except IndexError:
            name = self._calls.name()
        yield name
        names.append(name)


def _placed(message: NewMessage, shards: Sequence[SyncShard]) -> tuple[SyncShard, NewMessage]:
    """The shard for a message; without key and id of its own it goes to one that answers."""
    shard = shards[shard_number(message.key or message.id, len(shards))]
    if message.is_bound or shard.is_well:
        return shard, message
    well = [number for number, each in enumerate(shards) if each.is_well]
    if not well:
        return shard, message
    number = random.choice(well)  # noqa: S311 - spreads messages, not for security
    return shards[number], with_id(message, id_for(number, len(shards)))
