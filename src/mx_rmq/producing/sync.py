"""A producer for code without an event loop: scripts, Django, Flask."""

from __future__ import annotations

import os
import random
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from contextvars import copy_context
from functools import partial
from math import inf
from time import monotonic
from typing import TYPE_CHECKING, Any, Final, TypeVar, Unpack, cast

from redis.exceptions import ResponseError

from mx_rmq.checks import check_topic
from mx_rmq.errors import ConfigError, MxRmqError, NotDurable, ServerUnavailable, StoreError
from mx_rmq.events import MessagesProduced, heard
from mx_rmq.payloads import check_payloads, numbered
from mx_rmq.producing.calls import Calls
from mx_rmq.producing.chunks import LONG_CHUNK, is_full
from mx_rmq.producing.middleware import active, around, around_many
from mx_rmq.producing.options import check_options, messages, refuse_one_id, refuse_unknown_options
from mx_rmq.producing.placing import USER, NotSent, id_for, with_id
from mx_rmq.receipt import Receipt, Stored, receipts
from mx_rmq.storage.availability import Availability
from mx_rmq.storage.blocking import BlockingConnections, Waited, run_blocking
from mx_rmq.storage.durability import WAITS
from mx_rmq.storage.keys import Keys
from mx_rmq.storage.layout import COPIES, ONE, Layout
from mx_rmq.storage.locate import Address
from mx_rmq.storage.naming import ShardNaming
from mx_rmq.storage.queries import Queries
from mx_rmq.storage.refusals import Sealed
from mx_rmq.storage.resend import resend_blocking
from mx_rmq.storage.shard import shard_number
from mx_rmq.storage.shards import (
    FRESH,
    NO_COPY,
    checked_number,
    copy_layout,
    latest_layout,
    settled_layout,
    unseal,
    write_again,
)
from mx_rmq.storage.store import Store

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence

    from mx_rmq.config import Config, Durability
    from mx_rmq.produce_options import ProduceManyOptions, ProduceOptions
    from mx_rmq.producing.middleware import ProduceMiddleware
    from mx_rmq.storage.commands import Commands
    from mx_rmq.storage.contract import NewMessage
    from mx_rmq.storage.store import NewStore


R = TypeVar("R")

_AWAY: Final = 1.0
"""Seconds for which a shard that could not be reached is passed over."""


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
        self._address = address or Address(config.server)
        self._shards: list[_SyncShard] = []
        """Of the current generation; empty while it is closed."""
        self._older: list[list[_SyncShard]] = []
        """Of older generations, the latest first."""
        self._prepared: set[tuple[_SyncShard, str]] = set()
        """Older shards that are sealed, and shards on which a topic is held; see ``Placing.before``."""
        self._base: _SyncShard | None = None
        self._read_at = -inf
        """When the layout was last read; later than that if it could not be read."""
        self._looking = 0
        """The id of the process in which a thread reads the layout now; 0 for none."""
        self._calls = Calls(config)
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
        with self._address.lock:
            older = [shard for some in self._older for shard in some]
            for shard in {*self._shards, *older, *([self._base] if self._base else [])}:
                shard.close()
            self._shards, self._older, self._base = [], [], None
            self._prepared.clear()
            self._address.leave(self)

    def use(self, config: Config, address: Address, new_store: NewStore) -> None:
        """Use another server from now on; the connections to this one are closed."""
        self.close()
        self._config, self._address, self._new_store = config, address, new_store

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
        if self._older:
            self._look_again()
        shards = self._shards or self._open()
        if len(shards) == 1:
            try:
                return self._resend(shards[0], topic, messages, until)
            except Sealed:
                self._relearn(shards)
                return self._send(topic, messages, until)
        placed = [_placed(message, shards) for message in messages]
        places: dict[_SyncShard, list[int]] = {}
        for place, (shard, _) in enumerate(placed):
            places.setdefault(shard, []).append(place)
        receipts: dict[int, Receipt] = {}

        def send(shard: _SyncShard) -> None:
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
                self._relearn(shards)
                stored = self._send(topic, some, until)
            receipts.update(zip(own, stored, strict=True))

        if len(places) == 1:
            send(next(iter(places)))
        else:
            with ThreadPoolExecutor(len(places)) as threads:  # to all shards at once
                for done in [threads.submit(copy_context().run, send, shard) for shard in places]:
                    done.result()
        return [receipts[place] for place in range(len(messages))]

    def _before(self, shard: _SyncShard, topic: str, message: NewMessage) -> Stored:
        """Do what ``Placing.before`` does."""
        leader = message.key or message.id
        for some in self._older:
            older = some[shard_number(leader, len(some))]
            with older.naming():
                if (older, "") not in self._prepared:
                    run_blocking(older.store.seal())
                    self._prepared = {each for each in self._prepared if not each[1]} | {(older, "")}
                if message.has_own_id:
                    (taken,) = run_blocking(older.store.taken([message.id]))
                    if taken is not Stored.STORED:
                        return taken
        if message.key and (shard, topic) not in self._prepared and shard in self._shards:
            run_blocking(shard.store.hold(topic))
            self._prepared.add((shard, topic))
        return Stored.STORED

    def _resend(
        self, shard: _SyncShard, topic: str, messages: Sequence[NewMessage], until: float
    ) -> list[Receipt]:
        """Send one call; it has a name, so that sending it again stores nothing twice."""
        first, since = messages[0], until - self._config.patience
        if self._older and first.is_bound:
            taken = resend_blocking(
                lambda: self._before(shard, topic, first),
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

    def _open(self) -> list[_SyncShard]:
        with self._address.lock:
            if not self._shards:
                self._address.enter(self)
                base = self._base = self._new_shard("")
                try:
                    self._use(self._layout(base))
                except BaseException:
                    self.close()
                    raise
            return self._shards

    def _use(self, layout: Layout) -> None:
        assert self._base is not None
        self._read_at = monotonic()
        older = [shard for some in self._older for shard in some]
        known = {shard.name: shard for shard in (*older, *self._shards, self._base)}
        current, *older_ones = [
            [known.get(name) or self._new_shard(name) for name in each.names]
            for each in reversed(layout.generations)
        ]
        # In this order: a thread that sees the new shards must see which are older.
        self._older = older_ones
        self._shards = current

    def _layout(self, base: _SyncShard) -> Layout:
        """The queue's layout; written first if the queue is new and the program wants a number of shards."""
        wanted = self._config.shards
        if wanted is None:
            return ONE  # a queue with several shards refuses the first message, and the layout is read then
        layout, is_new = resend_blocking(
            lambda: self._settled(base, wanted),
            patience=self._config.patience,
            within=self._config.socket_timeout,
            failed=partial(base.failed, patience=self._config.patience),
        )
        if is_new and wanted > 1:
            for name in dict.fromkeys((*layout.current.names, *COPIES)):
                # No message needs the copies.
                with suppress(MxRmqError), closing(self._new_shard(name)) as shard:
                    run_blocking(unseal(shard.store))
                    run_blocking(copy_layout(shard.store, layout))
        return layout

    def _settled(self, base: _SyncShard, wanted: int) -> tuple[Layout, bool]:
        """Do what ``Shards.settle`` does; returns also whether the layout was written now."""

        async def find_again() -> Layout | None:
            return self._found_again(base, wanted) if wanted > 1 else None

        try:
            return run_blocking(settled_layout(base.store, wanted, find_again))
        except ServerUnavailable:
            names = (*COPIES, *Layout.first(wanted).current.names) if wanted > 1 or base.in_cluster else ()
            if (latest := latest_layout(self._read_copies(*names))) is None:
                raise
            return checked_number(self._config.name, latest, wanted), False

    def _read_copies(self, *names: str) -> list[str]:
        """What those copies of the layout say that can be read."""
        texts = []
        for name in names:
            with suppress(ServerUnavailable, ResponseError), closing(self._new_shard(name)) as shard:
                texts.append(run_blocking(Queries(shard.store).layout()))
        return texts

    def _found_again(self, base: _SyncShard, wanted: int = 1) -> Layout | None:
        """The layout by its copies, written again where it was lost; None if there is no copy."""
        texts = self._read_copies(*COPIES)
        if not texts and wanted > 1:
            raise ServerUnavailable(NO_COPY)
        latest = latest_layout(texts)
        return None if latest is None else run_blocking(write_again(base.store, latest))

    def _look_again(self) -> None:
        """Read the layout while there are older generations, at most once a second: they end.

        One thread looks. The others go on by the layout that is known: it is right, if not the newest.
        """
        lock, pid = self._address.lock, os.getpid()
        if monotonic() - self._read_at < FRESH or not lock.acquire(blocking=False):
            return
        try:
            base, known = self._base, self._shards
            if base is None or monotonic() - self._read_at < FRESH or self._looking == pid:
                return
            self._looking = pid
        finally:
            lock.release()
        began, layout = monotonic(), None
        try:
            with suppress(MxRmqError):
                layout = Layout.parse(run_blocking(Queries(base.store).layout()))
        finally:
            with lock:
                self._looking = 0
                now = monotonic()
                # Of a producer that waits for a server in vain, a tenth of the time is lost by that.
                self._read_at = now if layout is not None else now + 9 * (now - began)
                if layout is not None and self._base is base and self._shards is known:
                    self._use(layout)

    def _relearn(self, sealed: list[_SyncShard]) -> None:
        """Read the layout after a shard refused messages because the queue has another one."""
        with self._address.lock:
            base = self._base
            if self._shards is not sealed or base is None:
                return  # another thread has done it
            text = resend_blocking(
                lambda: run_blocking(Queries(base.store).layout()),
                patience=self._config.patience,
                within=self._config.socket_timeout,
                failed=partial(base.failed, patience=self._config.patience),
            )
            layout = Layout.parse(text) if text else self._found_again(base)
            if layout is None or "" in layout.current.names:
                raise StoreError(
                    f"queue {self._config.name!r} has several shards, but its layout is {text!r}; write it "
                    f"again: SET {base.store.keys.of_queue('layout')} 0:8 for 8 shards"
                )
            for shard in sealed:
                if shard.name in layout.current.names:  # as ``Placing.relearn`` does
                    run_blocking(unseal(shard.store))
            self._use(layout)

    def _new_shard(self, name: str) -> _SyncShard:
        return _SyncShard(self._address, self._config, name, self._new_store)


class _SyncShard:
    """The connections and stores of one shard, for blocking calls."""

    def __init__(self, address: Address, config: Config, name: str, new_store: NewStore) -> None:
        self.name = name
        shown = config.shown_url
        self.naming = ShardNaming(name, shown)
        self.availability = Availability(f"{shown}, shard {name}" if name else shown, config.name)
        self._away_until = -inf
        place = address.place(Keys(config.name, name).prefix)
        self.in_cluster = place.in_cluster
        self.keys = Keys(config.name, name, in_cluster=place.in_cluster)
        plain = BlockingConnections(place, config.socket_timeout)
        waiting = BlockingConnections(place, config.socket_timeout, waits=config.durability_timeout)
        self._plain, self._waiting = plain, waiting
        commands: dict[Durability, Commands] = {"memory": plain}
        commands |= {durability: wait(waiting, self.keys, config) for durability, wait in WAITS.items()}
        new = partial(new_store, max_bytes=config.max_bytes, history=config.history)
        self.stores = {kind: new(each, self.keys) for kind, each in commands.items()}
        self.store = self.stores["memory"]

    @property
    def is_well(self) -> bool:
        """Whether it could be used the last time, or it is time to try it again."""
        return not self.availability.away or monotonic() >= self._away_until

    def reach(self, durability: Durability, *, patience: float) -> None:
        """Connect, unless it is connected, before a message is sent that another shard may take.

        Raises:
            NotSent: there is no connection.
        """
        try:
            (self._plain if durability == "memory" else self._waiting).connect()
        except ServerUnavailable as error:
            self.failed(error, patience=patience)
            raise NotSent(str(self.naming.named(error))) from error

    def failed(self, error: Exception, *, patience: float) -> None:
        """Note that a call failed."""
        self._away_until = monotonic() + _AWAY
        self.availability.lost(USER, error, f"trying for {patience:g} s")

    def close(self) -> None:
        """Close the connections."""
        self._plain.close()
        self._waiting.close()


def _placed(message: NewMessage, shards: Sequence[_SyncShard]) -> tuple[_SyncShard, NewMessage]:
    """The shard for a message; without key and id of its own it goes to one that answers."""
    shard = shards[shard_number(message.key or message.id, len(shards))]
    if message.is_bound or shard.is_well:
        return shard, message
    well = [number for number, each in enumerate(shards) if each.is_well]
    if not well:
        return shard, message
    number = random.choice(well)  # noqa: S311 - spreads messages, not for security
    return shards[number], with_id(message, id_for(number, len(shards)))
