"""Presence: registers this worker, and detects workers that have vanished."""

from __future__ import annotations

import asyncio
from math import inf
from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec
from redis.exceptions import ResponseError

from mx_rmq import events
from mx_rmq.errors import StoreError
from mx_rmq.limits import BATCH
from mx_rmq.storage.contract import Delivery
from mx_rmq.storage.queries import SILENCE, ClientIdentity, Queries

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Set

    from mx_rmq.config import Config
    from mx_rmq.storage.store import Store
    from mx_rmq.worker.holdings import Holdings

REGISTER: Final = 5.0
"""Seconds between two registrations of a worker."""
_REFRESH: Final = 0.4
"""The shortest time between two registrations of a load that has changed; a step is made twice a second."""
_MONITOR: Final = ".monitor"


class _Said(msgspec.Struct):
    """What a worker registered about its connection; other programs may have written invalid data."""

    server: str = ""
    connection: Annotated[int, msgspec.Meta(ge=1, le=1 << 62)] | None = None


_NOTHING: Final = _Said()


class Presence:
    """Registers one worker on one shard, and ends the leases of workers whose connection is gone.

    The server never reuses a client id in one run, so a registered connection that it does not list is
    gone for good. Its worker has vanished, unless it comes back with another connection. Where connections
    cannot be listed, only the leases decide.

    Args:
        holdings: what the worker holds on the shard.
        config: of the queue.
        worker: the worker's name.
        facts: what it registers about itself.
        vitals: returns what it registers about how it is; called by any thread.
        also: asks the server something else at every step, in the same round trip.
    """

    def __init__(
        self,
        holdings: Holdings,
        config: Config,
        worker: str,
        facts: Mapping[str, Any],
        vitals: Callable[[], Mapping[str, Any]] = dict,
        also: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self._also = also or _nothing
        self._holdings = holdings
        self._connection = holdings.shard.connection
        self._store = holdings.shard.store
        self._queries = Queries(self._store)
        self.worker = worker
        """The worker's name."""
        self._queue = config.name
        self._grace = config.recovery_grace
        # A worker that has not registered for this long has no lease left.
        self._silence = max(SILENCE, config.lease + REGISTER)
        self._facts = dict(facts)
        self._vitals = vitals
        self._load: dict[str, tuple[int, int]] = {}
        self._said = msgspec.json.encode(facts)
        self._said_at = -inf
        self._known = -1
        """The number of the connection to which ``_own`` and ``_missing`` belong."""
        self._own: ClientIdentity | None = None
        self._missing: dict[tuple[str, int], float] = {}
        """Workers whose connection is gone, and when this was first seen."""
        self._present: Set[str] = frozenset()
        """Workers whose connection was listed at the last look."""
        self._vanished: dict[str, float] = {}
        """Workers that vanished recently, and when; for the history of their messages."""
        self._recovers = True
        self._told = False
        self._loop = asyncio.get_running_loop()

    async def step(self, *, recover: bool = True) -> bool:
        """Register this worker if it is time to, and end the leases of workers that vanished.

        Args:
            recover: False while disconnected workers may still be coming back.

        Returns whether any lease ended, so that there is something to take over.
        """
        self._recovers = recover
        if self._grace is not None and self._connection.number != self._known:
            await self._identify()
        if self._load_changed() or self._loop.time() - self._said_at >= REGISTER:
            await self.register()
        if self._grace is not None and self._own is not None:
            try:
                return await self._look(self._own, self._grace if recover else inf)
            except ResponseError as error:
                self._cannot(error)
        else:
            await self._also()
        return False

    async def stay(self, store: Store) -> None:
        """Register this worker over another connection; the lease keeper's thread does so if the loop hangs.

        Otherwise the worker would count as gone though its process lives, and its messages as crashed.
        """
        await store.register_worker(self.worker, self._composed(), silence=self._silence)

    async def leave(self) -> None:
        """Remove this worker's registration."""
        await self._store.register_worker(self.worker, b"", silence=self._silence)

    def pause(self, most: float) -> float:
        """How long to wait for the next step, at most *most* seconds."""
        if self._grace is None:
            return most
        most = min(most, self._grace / 2)  # often enough to know all the time that others see this one
        if not self._missing or not self._recovers:
            return most
        return max(0.0, min(most, min(self._missing.values()) + self._grace - self._loop.time()))

    def vanished(self, holder: str) -> bool:
        """Whether a holder of leases is known to have vanished."""
        return _worker_of(holder) in self._vanished

    def sees(self, holder: str) -> bool:
        """Whether a holder of leases was registered and connected at the last look."""
        return _worker_of(holder) in self._present

    async def _identify(self) -> None:
        """Learn which connection this is, and have it registered at once."""
        self._missing.clear()  # workers cut off at the same time get the whole grace to come back
        while True:
            before = self._connection.number
            refusal = None
            try:
                self._own = await self._queries.own_connection()
            except ResponseError as error:
                self._own, refusal = None, error
            if before and before == self._connection.number:  # else two connections answered
                break
        self._known = before
        self._introduce()
        if refusal is not None:
            self._cannot(refusal)

    def _introduce(self) -> None:
        """Register again soon, with the connection by which others see this worker, if they can."""
        self._said_at = -inf

    def _load_changed(self) -> bool:
        """Whether other messages are running or held ready than were last said."""
        if self._loop.time() - self._said_at < _REFRESH or (load := self._holdings.load()) == self._load:
            return False
        self._load = load
        return True

    def _composed(self) -> bytes:
        """What to register."""
        own = {"connection": self._own.id, "server": self._own.server} if self._own else {}
        load = {"load": self._load} if self._load else {}
        return msgspec.json.encode({**self._facts, **self._vitals(), **own, **load})

    def _cannot(self, error: ResponseError) -> None:
        """Rely on the leases alone until there is another connection."""
        self._own = None
        self._present = frozenset()
        self._missing.clear()
        self._introduce()
        if not self._told:
            self._told = True
            events.emit(events.RecoveryByLease(queue=self._queue, error=str(error)))

    async def register(self) -> None:
        """Register this worker as living."""
        self._said_at, self._said = self._loop.time(), self._composed()
        await self._store.register_worker(self.worker, self._said, silence=self._silence)
        self._seen_at(self._said_at)

    def _seen_at(self, at: float) -> None:
        """Note when others saw this worker; for one grace from then, none can take it for vanished."""
        if self._grace is not None and self._connection.number == self._known:
            self._holdings.present_until = inf if self._own is None else at + self._grace

    async def _look(self, own: ClientIdentity, grace: float) -> bool:
        """Find workers whose connection is gone, and recover from those gone for *grace* seconds."""
        asked_at = self._loop.time()
        registered, _ = await asyncio.gather(self._queries.registered(), self._also())
        known = registered.get(self.worker) == self._said
        if not known:  # another worker removed it as vanished, or the server was emptied
            await self.register()
        ids = {name: id_ for name, facts in registered.items() if (id_ := _connection(facts, own.server))}
        there = await self._queries.connected({own.id, *ids.values()})
        if self._connection.number != self._known:
            return False
        if own.id not in there:
            raise ResponseError("the server does not list this connection any more")
        if known:
            self._seen_at(asked_at)
        # An absence lasts from the end of the first look without the connection to the start of this look:
        # time in which this loop was busy must not count as another worker's absence.
        now = self._loop.time()
        gone = {(name, id_) for name, id_ in ids.items() if id_ not in there}
        self._missing = {each: self._missing.get(each, now) for each in gone}
        self._present = ids.keys() - {name for name, _ in gone}
        self._vanished = {name: at for name, at in self._vanished.items() if now - at < SILENCE}
        over = [each for each, since in self._missing.items() if asked_at - since >= grace]
        for each in over:
            del self._missing[each]
        return bool(over) and await self._recover({name: registered[name] for name, _ in over})

    async def _recover(self, vanished: Mapping[str, bytes]) -> bool:
        """End the leases of vanished workers now, so that a monitor takes their messages over."""
        held: dict[str, list[Delivery]] = {}
        for topic in await self._queries.topics():
            try:
                leases = await self._queries.leases(topic)
            except ResponseError as error:  # concerns one topic; the others are recovered
                events.emit(events.TopicFailed(queue=self._queue, topic=topic, error=str(error)))
                continue
            for id_, lease in leases.items():
                if (name := _worker_of(lease.holder)) in vanished:
                    held.setdefault(name, []).append(Delivery(id_, topic, lease.token, b"", inf))
        # A worker that has come back since keeps its leases; those it takes from now on were not read above.
        registered = await self._queries.registered()
        for name, facts in vanished.items():
            if registered.get(name) == facts:
                await self._end(name, held.get(name, []))
        return bool(held)

    async def _end(self, name: str, deliveries: list[Delivery]) -> None:
        events.emit(events.WorkerVanished(queue=self._queue, worker=name, messages=len(deliveries)))
        self._vanished[name] = self._loop.time()
        for topic in {delivery.topic for delivery in deliveries}:
            of_topic = [delivery for delivery in deliveries if delivery.topic == topic]
            for start in range(0, len(of_topic), BATCH):
                try:
                    await self._store.end_leases(topic, of_topic[start : start + BATCH])
                except StoreError as error:
                    events.emit(events.TopicFailed(queue=self._queue, topic=topic, error=str(error)))
        await self._store.register_worker(name, b"", silence=self._silence)


def monitor_of(worker: str) -> str:
    """The holder in leases of messages that the monitor of a worker took over."""
    return worker + _MONITOR


def is_monitor(holder: str) -> bool:
    """Whether a lease is held by the monitor of a worker, not for a handler."""
    return holder.endswith(_MONITOR)


async def _nothing() -> None:
    pass


def _worker_of(holder: str) -> str:
    return holder.removesuffix(_MONITOR)


def _connection(facts: bytes, server: str) -> int | None:
    """The connection a worker registered in this run of the server, None if it did not."""
    try:
        said = msgspec.json.decode(facts, type=_Said)
    except msgspec.MsgspecError:
        said = _NOTHING
    return said.connection if said.server == server else None
