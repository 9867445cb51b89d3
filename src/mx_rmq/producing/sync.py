"""A producer for code without an event loop: scripts, Django, Flask."""

from __future__ import annotations

import os
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar, Unpack, cast

from mx_rmq.checks import check_topic
from mx_rmq.errors import ConfigError, NotDurable
from mx_rmq.events import MessagesProduced, heard
from mx_rmq.producing.calls import Calls
from mx_rmq.producing.chunks import LONG_CHUNK, is_full
from mx_rmq.producing.middleware import active, around, around_many
from mx_rmq.producing.options import check_options, messages, refuse_one_id, refuse_unknown_options
from mx_rmq.receipt import Receipt
from mx_rmq.storage.availability import Availability
from mx_rmq.storage.blocking import BlockingConnections, Waited, run_blocking
from mx_rmq.storage.durability import WAITS
from mx_rmq.storage.keys import Keys
from mx_rmq.storage.locate import Address
from mx_rmq.storage.resend import resend_blocking
from mx_rmq.storage.shard import shard_number
from mx_rmq.storage.store import Store

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence

    from mx_rmq.config import Config, Durability
    from mx_rmq.produce_options import ProduceManyOptions, ProduceOptions
    from mx_rmq.producing.middleware import ProduceMiddleware
    from mx_rmq.receipt import Stored
    from mx_rmq.storage.contract import NewMessage
    from mx_rmq.storage.store import Commands, NewStore


R = TypeVar("R")

_USER: Final = "producer"
"""How the server's availability knows producers."""


class SyncProducer:
    """A blocking producer. All threads of a process may share it, and it may be used after a fork.

    Args:
        config: of the queue.
        address: of its server, if other objects use it too.
        layers: the produce middleware of its queue; the list may grow.
        fit: returns a payload that the handler of a topic accepts, or raises ``InvalidPayload``.
    """

    def __init__(
        self,
        config: Config,
        address: Address | None = None,
        layers: Sequence[ProduceMiddleware] = (),
        fit: Callable[[str, Any], Any] = lambda _topic, payload: payload,
    ) -> None:
        self._config = config
        self._fit = fit
        self._layers = layers
        self._address = address or Address(config.url)
        self._stores: list[dict[Durability, Store]] = []
        self._connections: list[BlockingConnections] = []
        self._calls = Calls(config)
        self._availability = Availability(config.shown_url, config.name)
        self._names: list[str] = []
        """Producer names that have no call under way."""
        self._new_store: NewStore = Store
        self._pid = os.getpid()

    def produce(self, topic: str, payload: Any, **options: Unpack[ProduceOptions]) -> Receipt:
        """Store a message and return its id; the options are those of ``RedisMessageQueue.produce``."""
        refuse_unknown_options(options)
        if layers := active(self._layers):
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
        if layers := active(self._layers):
            stored: list[str] = []

            async def last(topic: str, payloads: Iterable[Any], options: ProduceManyOptions) -> list[Receipt]:
                receipts = self._produce_many(topic, payloads, options)
                stored.extend(receipts)
                return receipts

            whole = around_many(layers, last)
            if whole is not None:
                return self._through(whole(topic, payloads, options), stored)
            one = partial(self._produce_through, layers)
            return [one(topic, payload, cast("ProduceOptions", {**options})) for payload in payloads]
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
        with self._address.lock:
            for connections in self._connections:
                connections.close()
            self._stores, self._connections = [], []
            self._address.leave(self)

    def use(self, config: Config, address: Address, new_store: NewStore) -> None:
        """Use another server from now on; the connections to this one are closed."""
        self.close()
        self._config, self._address, self._new_store = config, address, new_store
        self._availability = Availability(config.shown_url, config.name)

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

    def _send(self, topic: str, messages: Sequence[NewMessage]) -> list[Receipt]:
        stores = self._stores or self._open()
        places: dict[int, list[int]] = {}
        for place, message in enumerate(messages):
            places.setdefault(shard_number(message.id, len(stores)), []).append(place)
        receipts: dict[int, Receipt] = {}
        for number, own in places.items():
            statuses = self._resend(stores[number], topic, [messages[place] for place in own])
            for place, status in zip(own, statuses, strict=True):
                receipts[place] = Receipt.of(messages[place].id, status)
        return [receipts[place] for place in range(len(messages))]

    def _resend(
        self, stores: dict[Durability, Store], topic: str, messages: Sequence[NewMessage]
    ) -> list[Stored]:
        """Send one call; it has a name, so that sending it again stores nothing twice."""
        store = stores[messages[0].durability]
        produce = store.produce_delayed if messages[0].delay else store.produce
        with self._name() as producer:
            call = self._calls.number()  # after the name is taken: the numbers of a name must grow
            try:
                stored = resend_blocking(
                    lambda: run_blocking(produce(topic, messages, producer=producer, call=call)),
                    patience=self._config.patience,
                    within=self._calls.longest(messages[0].durability),
                    failed=self._on_failure,
                )
            except NotDurable as error:
                raise error.of(*(message.id for message in messages)) from None
            self._availability.back(_USER)
            if heard(MessagesProduced):
                self._calls.tell(topic, stored)
            return stored

    def _on_failure(self, error: Exception) -> None:
        self._availability.lost(_USER, error, f"trying for {self._config.patience:g} s")

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

    def _open(self) -> list[dict[Durability, Store]]:
        config = self._config
        with self._address.lock:
            if not self._stores:
                url = self._address.enter(self)
                revive = self._address.revive if config.url.startswith("embedded:") else None
                plain = BlockingConnections(url, config.socket_timeout, revive=revive)
                waiting = BlockingConnections(
                    url, config.socket_timeout, waits=config.durability_timeout, revive=revive
                )
                self._connections = [plain, waiting]
                keys = Keys(config.name)
                commands: dict[Durability, Commands] = {"memory": plain}
                commands |= {durability: wait(waiting, keys, config) for durability, wait in WAITS.items()}
                new = partial(self._new_store, max_bytes=config.max_bytes, history=config.history)
                self._stores = [{name: new(each, keys) for name, each in commands.items()}]
            return self._stores
