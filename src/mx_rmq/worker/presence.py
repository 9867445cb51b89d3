"""Presence: registers this worker, and detects workers that have vanished."""

from __future__ import annotations

import asyncio
from math import inf
from typing import TYPE_CHECKING, Any, Final

import msgspec
from redis.exceptions import ResponseError

from mx_rmq import events
from mx_rmq.errors import StoreError
from mx_rmq.limits import BATCH
from mx_rmq.storage.contract import Delivery
from mx_rmq.storage.queries import SILENCE, ClientIdentity, Queries
from mx_rmq.storage.vanished import encode_vanished
from mx_rmq.worker.holdings import Registered

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence, Set

    from mx_rmq.config import Config
    from mx_rmq.storage.store import Store
    from mx_rmq.worker.holdings import Holdings

REGISTER: Final = 5.0
"""Seconds between two registrations of a worker."""
_REFRESH: Final = 0.4
"""The shortest time between two registrations of a load that has changed; a step is made twice a second."""
_REGISTRATIONS: Final = 70
"""How often in a second many workers together register."""
_LONGEST: Final = SILENCE / 2
"""Seconds after which a worker registers in any case: one registration may fail, and it still counts."""
_EARLY: Final = 0.65
"""The part of that time after which a worker registers if it asks the server something anyway."""
_AGAIN: Final = 1.0
"""Seconds after which a registration that was refused is tried again."""
_ANEW: Final = 60.0
"""Seconds after which a worker that could not look at connections tries to again."""
_REGISTERING: Final = "registering"
_MONITOR: Final = ".monitor"


class Presence:
    """Registers one worker on one shard, and ends the leases of workers whose connection is gone.

    The server never reuses a client id in one run, so a registered connection that it does not list is
    gone for good. A worker of which no connection is left has vanished, unless it comes back with another.
    Where connections cannot be listed, only the leases decide.

    Args:
        holdings: what the worker holds on the shard.
        config: of the queue.
        worker: the worker's name.
        facts: what it registers about itself.
        vitals: returns what it registers about how it is; called by any thread.
    """

    def __init__(
        self,
        holdings: Holdings,
        config: Config,
        worker: str,
        facts: Mapping[str, Any],
        vitals: Callable[[], Mapping[str, Any]] = dict,
    ) -> None:
        self._holdings = holdings
        self._connection = holdings.shard.connection
        self._store = holdings.shard.store
        self._queries = Queries(self._store)
        self.worker = worker
        """The worker's name."""
        self._queue = config.name
        self._grace = config.recovery_grace
        holdings.is_watched = self._grace is not None
        # A worker that has not registered for this long has no lease left.
        self._silence = max(SILENCE, config.lease + REGISTER)
        self._facts = dict(facts)
        self._vitals = vitals
        self._load: dict[str, tuple[int, int]] = {}
        self._said_at = -inf
        self._said: ClientIdentity | None = None
        """The connections that were last registered."""
        self._known = -1
        """The number of the connection to which ``_own`` and ``_missing`` belong."""
        self._own: ClientIdentity | None = None
        self._missing: dict[tuple[str, ClientIdentity], float] = {}
        """Workers whose connections are gone, and when this was first seen."""
        self._checked_at = -inf
        """When this worker last saw that it is registered."""
        self._vanished: dict[str, float] = {}
        """Workers that vanished recently, and when; for the history of their messages."""
        self._recovers = True
        self._told = False
        self._availability = holdings.shard.availability
        self._refused_at = -inf
        """When the server refused to register this worker; -inf if it did not."""
        self._looks_anew_at = inf
        """When to try again whether connections can be looked at."""
        self._loop = asyncio.get_running_loop()

    async def step(self, *, recover: bool = True, look: bool = True) -> bool:
        """Register this worker if it is time to, and end the leases of workers that vanished.

        Args:
            recover: False while disconnected workers may still be coming back.
            look: whether to look at all workers. Otherwise only those that this worker has missed before are
                looked at, when their grace is over; and a worker that holds messages looks at itself.

        Returns whether any lease ended, so that there is something to take over.
        """
        self._recovers = recover
        if self._grace is not None and (
            self._connection.number != self._known or self._loop.time() >= self._looks_anew_at
        ):
            await self._identify()
        if self._load_changed() or self.is_due():
            await self.enroll()
        if self._grace is None or self._own is None:
            return False
        grace = self._grace if recover else inf
        try:
            if look:
                return await self._look(self._own, grace)
            if self._missing and self.pause(inf) <= 0:
                return await self._look(self._own, grace, [name for name, _ in self._missing])
            now = self._loop.time()
            if self._holdings.jobs and now - self._checked_at >= self._grace / 4:
                await self._check(await self._connections([self.worker]), now)
        except ResponseError as error:
            self._cannot(error)
        return False

    def is_due(self, *, early: bool = False) -> bool:
        """Whether it is time to register again, by the known connection; with *early*, nearly time."""
        if self._grace is not None and self._connection.number != self._known:
            return False
        if self._said != self._identity():
            return True
        return self._loop.time() - self._said_at >= self._every() * (_EARLY if early else 1.0)

    async def stay(self, store: Store, before: ClientIdentity | None, *, due: bool) -> ClientIdentity | None:
        """Register this worker over another connection; the lease keeper's thread does so if the loop hangs.

        Otherwise the worker would count as gone though its process lives, and its messages as crashed. If the
        loop's connections are cut, it cannot open others, so the thread's connection is registered too.

        Args:
            store: over the thread's connection.
            before: what this returned the last time.
            due: whether to register though the connection is the same.

        Returns the connections by which others see it now, None if they do not.
        """
        own, client = self._own, None
        if own is not None:
            try:
                id_ = await store.commands.execute_command("CLIENT", "ID")
                server = (await Queries(store).info("server")).get("run_id", "")
                if id_ != await store.commands.execute_command("CLIENT", "ID"):  # two connections answered
                    return before
            except ResponseError:  # a right was taken away; the leases decide until the loop recovers
                pass
            else:
                client = ClientIdentity(id_, server, own.id if own.server == server else 0)
        if due or client != before:
            await store.register_worker(
                self.worker, self._composed(), connection=_text(client), silence=self._silence
            )
            self._said = None  # the loop registers its own connections again as soon as it can
            # Until then only one of them shows the loop that others see this worker.
            seen = self._holdings.registered if client is not None and client.parked else None
            self._holdings.registered = None if seen is None else seen._replace(parked=0)
        return client

    async def leave(self) -> None:
        """Remove this worker's registration."""
        await self._store.register_worker(self.worker, b"", silence=self._silence)

    def close(self) -> None:
        """Stop trying to register."""
        self._availability.leave(_REGISTERING)

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

    async def seen(self, holders: Collection[str]) -> Set[str]:
        """Those of the holders of leases whose worker is registered and connected."""
        if self._own is None:
            return frozenset()
        names = {holder: _worker_of(holder) for holder in holders}
        try:
            said = await self._queries.connections(sorted(set(names.values())))
            there = await self._there(_clients(said, self._own.server))
        except ResponseError:  # a right was taken away; the next look says so
            return frozenset()
        return {holder for holder, name in names.items() if name in there}

    async def _identify(self) -> None:
        """Learn which connection this is, and have it registered at once."""
        self._holdings.registered = None
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
        self._looks_anew_at = inf
        self._holdings.is_watched = refusal is None
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

    def _every(self) -> float:
        """Seconds between two registrations: of very many workers each registers more seldom."""
        return max(REGISTER, min(self._holdings.workers / _REGISTRATIONS, _LONGEST))

    def _identity(self) -> ClientIdentity | None:
        """The connections to register."""
        own, parked = self._own, self._holdings.parked
        if own is not None and parked is not None and parked.server == own.server:
            return own._replace(parked=parked.id)
        return own

    def _composed(self) -> bytes:
        """What to register for people."""
        own = {"connection": self._own.id, "server": self._own.server} if self._own else {}
        load = {"load": self._load} if self._load else {}
        return msgspec.json.encode({**self._facts, **self._vitals(), **own, **load})

    def _cannot(self, error: ResponseError) -> None:
        """Rely on the leases alone, for a while or until there is another connection."""
        self._looks_anew_at = self._loop.time() + _ANEW
        self._own = self._holdings.registered = None
        self._holdings.is_watched = False
        self._missing.clear()
        self._introduce()
        if not self._told:
            self._told = True
            events.emit(events.RecoveryByLease(queue=self._queue, error=str(error)))

    async def enroll(self) -> None:
        """Register this worker; a refusal is told, and the next try is a second later.

        It raises no refusal: recovery does not need this worker's registration.
        """
        now = self._loop.time()
        if now - self._refused_at < _AGAIN:
            return
        try:
            await self.register()
        except (StoreError, ResponseError) as error:
            self._refused(error)
            self._introduce()

    def _refused(self, error: Exception) -> None:
        """Tell that the server refuses registrations."""
        self._refused_at = self._loop.time()
        self._availability.lost(_REGISTERING, error, "trying until it is accepted; recovery goes on")

    async def register(self) -> None:
        """Register this worker as living."""
        said_at, said = self._loop.time(), self._identity()
        unseen = self._holdings.present_until == inf
        if said is not None and self._grace is not None and unseen:  # others see it now, even without a reply
            self._holdings.present_until = said_at + self._grace
        try:
            answer = await self._store.register_worker(
                self.worker, self._composed(), connection=_text(said), silence=self._silence
            )
        except StoreError:  # nothing was written
            if unseen:
                self._holdings.present_until = inf
            raise
        if self._refused_at > -inf:
            self._refused_at = -inf
            if self._looks_anew_at < inf:  # it may have been the same that refused a look
                self._looks_anew_at = said_at
            self._availability.back(_REGISTERING)
        self._said_at, self._said = said_at, said
        self._holdings.workers = answer.workers
        self._seen_at(said_at, said)

    def _seen_at(self, at: float, said: ClientIdentity | None) -> None:
        """Note when others saw this worker; for one grace from then, none can take it for vanished."""
        self._checked_at = at
        if self._grace is None or self._connection.number != self._known:
            return
        if said is None:
            self._holdings.present_until = inf
        else:
            until, before = at + self._grace, self._holdings.present_until
            self._holdings.registered = Registered(self._known, said.parked, self._grace)
            self._holdings.present_until = until if before == inf else max(until, before)

    async def _check(self, registered: Mapping[str, bytes], asked_at: float) -> None:
        """Note that this worker is registered, or register it again."""
        if registered.get(self.worker) == _text(said := self._identity()):
            self._seen_at(asked_at, said)
        else:  # another worker removed it as vanished, or the server was emptied
            await self.enroll()

    async def _look(self, own: ClientIdentity, grace: float, names: Sequence[str] | None = None) -> bool:
        """Find workers whose connections are gone, and recover from those gone for *grace* seconds.

        Args:
            own: this worker's connection.
            grace: seconds.
            names: the workers to look at; None for all.
        """
        asked_at = self._loop.time()
        registered = await self._connections(None if names is None else [self.worker, *names])
        others = _clients(registered, own.server)
        others.pop(self.worker, None)
        there = await self._there({**others, self.worker: own}) if others else {self.worker}
        if self._connection.number != self._known:
            return False
        if self.worker not in there:
            raise ResponseError("the server does not list this connection any more")
        self._told = False
        await self._check(registered, asked_at)
        # An absence lasts from the end of the first look without the connection to the start of this look:
        # time in which this loop was busy must not count as another worker's absence.
        now = self._loop.time()
        gone = {(name, client) for name, client in others.items() if name not in there}
        self._missing = {each: self._missing.get(each, now) for each in gone}
        self._vanished = {name: at for name, at in self._vanished.items() if now - at < SILENCE}
        over = [each for each, since in self._missing.items() if asked_at - since >= grace]
        for each in over:
            del self._missing[each]
        return bool(over) and await self._recover({name: registered[name] for name, _ in over})

    async def _there(self, clients: Mapping[str, ClientIdentity]) -> Set[str]:
        """Those of some workers that are connected.

        A worker is there as long as one of its connections is: the other may be half-open, and the worker
        not know yet. Of most workers only the first needs to be asked for.
        """
        ids = await self._queries.connected({client.id for client in clients.values()})
        if parked := {client.parked for client in clients.values() if client.id not in ids} - {0}:
            ids |= await self._queries.connected(parked)
        return {name for name, client in clients.items() if client.id in ids or client.parked in ids}

    async def _recover(self, vanished: Mapping[str, bytes]) -> bool:
        """End the leases of vanished workers now, so that a monitor takes their messages over."""
        held: dict[str, list[Delivery]] = {}
        for topic in await self._topics():
            try:
                leases = await self._queries.leases(topic)
            except ResponseError as error:  # concerns one topic; the others are recovered
                events.emit(events.TopicFailed(queue=self._queue, topic=topic, error=str(error)))
                continue
            for id_, lease in leases.items():
                if (name := _worker_of(lease.holder)) in vanished:
                    held.setdefault(name, []).append(Delivery(id_, topic, lease.token, b"", inf))
        # A worker that has come back since keeps its leases; those it takes from now on were not read above.
        registered = await self._connections(list(vanished))
        for name, connection in vanished.items():
            if registered.get(name) == connection:
                await self._end(name, connection, held.get(name, []))
        return bool(held)

    async def _topics(self) -> list[str]:
        """The topics in which a vanished worker may hold messages."""
        try:
            return await self._queries.topics()
        except ResponseError as error:
            if (named := self._wrong_type("topics", "set", error)) is None:
                raise
            why = f"{named}; in topics that this worker does not serve, messages wait for their leases"
            events.emit(events.RecoveryByLease(queue=self._queue, error=why))
            return list(self._facts["topics"])

    async def _connections(self, names: Sequence[str] | None) -> dict[str, bytes]:
        """The connections by which workers registered; the error about a wrong type names the key."""
        try:
            return await self._queries.connections(names)
        except ResponseError as error:
            if (named := self._wrong_type("workers_connections", "hash", error)) is None:
                raise
            why = f"{named}; messages of vanished workers wait for their leases"
            raise ResponseError(why) from error

    def _wrong_type(self, part: str, kind: str, error: ResponseError) -> str | None:
        """Which key has the wrong type, if *error* says that it has."""
        if "WRONGTYPE" not in str(error):
            return None
        key = self._store.keys.of_queue(part)
        return f"{key} is not a {kind}; something else wrote there, rename or delete it"

    async def _end(self, name: str, connection: bytes, deliveries: list[Delivery]) -> None:
        events.emit(events.WorkerVanished(queue=self._queue, worker=name, messages=len(deliveries)))
        self._vanished[name] = self._loop.time()
        for topic in {delivery.topic for delivery in deliveries}:
            of_topic = [delivery for delivery in deliveries if delivery.topic == topic]
            for start in range(0, len(of_topic), BATCH):
                try:
                    await self._store.end_leases(topic, of_topic[start : start + BATCH])
                except StoreError as error:
                    events.emit(events.TopicFailed(queue=self._queue, topic=topic, error=str(error)))
        try:
            await self._store.register_worker(name, b"", connection=connection, silence=self._silence)
        except StoreError as error:
            self._refused(error)
            if (client := ClientIdentity.parse(connection)) is not None:
                self._missing[name, client] = inf  # still registered, but there is nothing left to end
        await self._note(name, deliveries)

    async def _note(self, name: str, deliveries: list[Delivery]) -> None:
        """Note for operators that a worker vanished."""
        try:
            await self._store.note_vanished(name, encode_vanished(self.worker, deliveries))
        except StoreError as error:
            events.emit(events.VanishedNotNoted(queue=self._queue, worker=name, error=str(error)))


def monitor_of(worker: str) -> str:
    """The holder in leases of messages that the monitor of a worker took over."""
    return worker + _MONITOR


def is_monitor(holder: str) -> bool:
    """Whether a lease is held by the monitor of a worker, not for a handler."""
    return holder.endswith(_MONITOR)


def _worker_of(holder: str) -> str:
    return holder.removesuffix(_MONITOR)


def _text(client: ClientIdentity | None) -> bytes:
    return client.text if client else b""


def _clients(said: Mapping[str, bytes], server: str) -> dict[str, ClientIdentity]:
    """The connections of those workers that registered in this run of the server."""
    found = ((name, ClientIdentity.parse(text)) for name, text in said.items())
    return {name: client for name, client in found if client is not None and client.server == server}
