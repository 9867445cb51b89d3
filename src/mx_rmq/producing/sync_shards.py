"""The shards of a queue for code without an event loop, and its layout, which may change."""

from __future__ import annotations

import os
from contextlib import closing, suppress
from functools import partial
from math import inf
from time import monotonic
from typing import TYPE_CHECKING, Final

from redis.exceptions import ResponseError

from mx_rmq.errors import MxRmqError, ServerUnavailable, StoreError
from mx_rmq.producing.placing import USER, NotSent
from mx_rmq.receipt import Stored
from mx_rmq.storage.availability import Availability
from mx_rmq.storage.blocking import BlockingConnections, run_blocking
from mx_rmq.storage.durability import WAITS
from mx_rmq.storage.keys import Keys
from mx_rmq.storage.layout import COPIES, ONE, Layout
from mx_rmq.storage.naming import ShardNaming
from mx_rmq.storage.queries import Queries
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

if TYPE_CHECKING:
    from mx_rmq.config import Config, Durability
    from mx_rmq.storage.commands import Commands
    from mx_rmq.storage.contract import NewMessage
    from mx_rmq.storage.locate import Address
    from mx_rmq.storage.store import NewStore

_AWAY: Final = 1.0
"""Seconds for which a shard that could not be reached is passed over."""


class SyncShards:
    """The shards that a blocking producer uses; they are opened by the first call.

    All threads of a process may share them, and they may be used after a fork.

    Args:
        config: of the queue.
        address: of its server.
        new_store: makes a store of a shard.
    """

    def __init__(self, config: Config, address: Address, new_store: NewStore) -> None:
        self._config = config
        self._address = address
        self._new_store = new_store
        self._current: list[SyncShard] = []
        """Of the current generation; empty while they are closed."""
        self._older: list[list[SyncShard]] = []
        """Of older generations, the latest first."""
        self._prepared: set[tuple[SyncShard, str]] = set()
        """Older shards that are sealed, and shards on which a topic is held; see ``Placing.before``."""
        self._base: SyncShard | None = None
        self._read_at = -inf
        """When the layout was last read; later than that if it could not be read."""
        self._looking = 0
        """The id of the process in which a thread reads the layout now; 0 for none."""

    def now(self) -> list[SyncShard]:
        """The shards that take new messages now."""
        if self._older:
            self._look_again()
        return self._current or self._open()

    @property
    def has_older(self) -> bool:
        """Whether there are shards of older generations."""
        return bool(self._older)

    def before(self, shard: SyncShard, topic: str, message: NewMessage) -> Stored:
        """Do what ``Placing.before`` does, before a message is sent that has its own key or id."""
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
        if message.key and (shard, topic) not in self._prepared and shard in self._current:
            run_blocking(shard.store.hold(topic))
            self._prepared.add((shard, topic))
        return Stored.STORED

    def relearn(self, sealed: list[SyncShard]) -> None:
        """Read the layout after a shard refused messages because the queue has another one."""
        with self._address.lock:
            base = self._base
            if self._current is not sealed or base is None:
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

    def close(self) -> None:
        """Close the connections; a later call opens them again."""
        with self._address.lock:
            older = [shard for some in self._older for shard in some]
            for shard in {*self._current, *older, *([self._base] if self._base else [])}:
                shard.close()
            self._current, self._older, self._base = [], [], None
            self._prepared.clear()
            self._address.leave(self)

    # -- the layout

    def _open(self) -> list[SyncShard]:
        with self._address.lock:
            if not self._current:
                self._address.enter(self)
                base = self._base = self._new_shard("")
                try:
                    self._use(self._layout(base))
                except BaseException:
                    self.close()
                    raise
            return self._current

    def _use(self, layout: Layout) -> None:
        assert self._base is not None
        self._read_at = monotonic()
        older = [shard for some in self._older for shard in some]
        known = {shard.name: shard for shard in (*older, *self._current, self._base)}
        current, *older_ones = [
            [known.get(name) or self._new_shard(name) for name in each.names]
            for each in reversed(layout.generations)
        ]
        # In this order: a thread that sees the new shards must see which are older.
        self._older = older_ones
        self._current = current

    def _layout(self, base: SyncShard) -> Layout:
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

    def _settled(self, base: SyncShard, wanted: int) -> tuple[Layout, bool]:
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

    def _found_again(self, base: SyncShard, wanted: int = 1) -> Layout | None:
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
            base, known = self._base, self._current
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
                if layout is not None and self._base is base and self._current is known:
                    self._use(layout)

    def _new_shard(self, name: str) -> SyncShard:
        return SyncShard(self._address, self._config, name, self._new_store)


class SyncShard:
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
