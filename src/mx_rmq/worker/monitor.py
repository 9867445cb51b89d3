"""The monitor: takes over messages past their deadline, and retries them or gives them up."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from contextlib import suppress
from math import inf
from random import random
from typing import TYPE_CHECKING, Final

from redis.exceptions import ResponseError

from mx_rmq import events
from mx_rmq.errors import MxRmqError, ServerUnavailable, StoreError, UnreadableMessage, WrongKeyType
from mx_rmq.limits import BATCH
from mx_rmq.message import decode_message, encode_message, turn_of
from mx_rmq.storage.contract import Delivery, Settled
from mx_rmq.storage.queries import Queries
from mx_rmq.worker import outcome
from mx_rmq.worker.calm import Calm
from mx_rmq.worker.outcome import Again, Returned, Run, Verdict
from mx_rmq.worker.presence import is_monitor, monitor_of
from mx_rmq.worker.rounds import FEW
from mx_rmq.worker.service import Service
from mx_rmq.worker.settler import announce, settle

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence, Set

    from mx_rmq.config import Config
    from mx_rmq.retry import Retry
    from mx_rmq.storage.contract import Overdue, Takeover
    from mx_rmq.worker.holdings import Holdings
    from mx_rmq.worker.hooks import Hooks
    from mx_rmq.worker.presence import Presence
    from mx_rmq.worker.rounds import Rounds

_INTERVAL = 0.5
_SELDOM: Final = 5.0
"""Seconds after which it looks for what is overdue though no deadline that it knows has passed."""
_CLEANING: Final = 30.0
"""Seconds after which it sends a take-over though nothing is late: it also forgets ids that stayed taken."""
_SOON: Final = 0.001
_APART: Final = 0.001
"""Seconds between the looks of many workers at one deadline."""
_BATCH: Final = 200
_HOUSEKEEPING: Final = 5.0
_FORGETTING: Final = 3600.0
"""Seconds between two looks for topics to forget; a worker begins at a random point of this time."""
_UNUSED: Final = 86400.0
"""Seconds after which a topic that is empty and has no worker is forgotten."""
_SHORTEST: Final = 0.5
"""The shortest lease of a take-over: seconds in which the monitor can settle it."""
_PUT_OFF: Final = 60.0
"""Seconds after which it tries again to settle what a key of the wrong type kept it from settling."""
_HOUSE: Final = "housekeeping"


class Monitor(Service):
    """Recovers the messages of one shard, and keeps this worker registered there.

    Args:
        holdings: what the worker holds on the shard.
        config: of the queue.
        presence: of the worker on the shard.
        rounds: when to look after the shard.
        hooks: called for what the server accepted.
        retries: the retry policy of each topic that has a handler here.
        on_recovered: called with a topic in which messages were recovered. Their wake token may go to a
            worker that stands still, and the messages have waited long enough.
    """

    def __init__(
        self,
        holdings: Holdings,
        config: Config,
        presence: Presence,
        rounds: Rounds,
        hooks: Hooks,
        retries: Mapping[str, Retry],
        on_recovered: Callable[[str], None],
    ) -> None:
        super().__init__("monitor", holdings.shard.availability, _INTERVAL)
        self._on_recovered = on_recovered
        self._holdings = holdings
        self._hooks = hooks
        self._store = holdings.shard.store
        self._shard = holdings.shard
        self._queries = Queries(self._store)
        self._config = config
        self._queue = config.name
        self._retries = retries
        self._presence = presence
        self._rounds = rounds
        self._loop = asyncio.get_running_loop()
        # The next call settles a take-over. If this worker dies in between, others must not wait long.
        self._lease = min(config.lease, max(_SHORTEST, config.lease / 4))
        self._batch = _BATCH
        self._has_looked = False
        self._seldom = min(_SELDOM, config.lease / 3)
        self._cleaned_at = -inf
        """When it last sent a take-over."""
        self._looked_for_at = self._looks_at = -inf
        """When it last looked for what is overdue, and when to look even if it is another worker's turn."""
        self.introduced = asyncio.Event()
        """Set when the worker is registered, or that was tried."""
        self._calm = Calm(config, self._loop.time)
        self._kept_house_at = -inf
        self._refused: set[tuple[str, type[Verdict]]] = set()
        """The topics and kinds of verdict that the server refused when they were last settled."""
        self.turn = asyncio.Lock()
        """Held during a step."""
        self._forgets_at = self._loop.time() + random() * _FORGETTING  # noqa: S311 - spreads the work of many workers

    async def step(self) -> float:
        """Take over and settle what is overdue."""
        async with self.turn:
            try:
                return await self._step()
            except ServerUnavailable as error:
                self._calm.failed(error)
                self._looks_at = -inf
                raise

    async def _step(self) -> float:
        if not self._has_looked:
            try:
                await self._presence.step(recover=False)
            finally:
                self.introduced.set()
            self._has_looked = True
        mine = False
        if self._rounds.wait() <= 0:
            if self._rounds.are_shared and not self._holdings.jobs:
                self._shard.connection.hold_back()
            turn = self._rounds.ask()
            if self._presence.is_due(early=self._rounds.are_shared):  # in the same write
                (mine, heard), _ = await asyncio.gather(turn, self._presence.enroll())
            else:
                mine, heard = await turn
            if heard is not None:
                self._calm.heard(*heard)
        taken, refusal = False, None
        try:
            taken = self._is_time(mine=mine) and await self._look()
        except StoreError as error:  # the worker registers and looks at the others all the same
            refusal, self._looks_at = error, -inf
        await self._keep_house()
        more = await self._presence.step(recover=not self._calm.holding, look=mine)
        if refusal is not None:
            raise refusal
        if mine:
            self._calm.reached()
        if taken or more:
            self._looks_at = -inf
            return 0.0
        now = self._loop.time()
        left = min(self._rounds.wait(), max(_SOON, self._looks_at - now))
        return max(0.0, min(left, self._presence.pause(_INTERVAL)))

    def _is_time(self, *, mine: bool) -> bool:
        """Whether to look for what is overdue: at the first deadline that is known, and now and then."""
        if self._loop.time() >= self._looks_at or self._calm.holding or self._calm.refused:
            return True
        return mine and self._loop.time() - self._looked_for_at >= self._seldom

    async def _look(self) -> bool:
        """Take over and settle what is overdue; returns whether there was something."""
        asked_at = self._looked_for_at = self._loop.time()
        (sent_at, now), deadline = await asyncio.gather(
            self._queries.timed(self._loop.time), self._next_deadline()
        )
        self._calm.heard(sent_at, now)
        late = deadline is not None and deadline <= now
        if late or asked_at - self._cleaned_at >= _CLEANING or self._calm.refused:
            overdue = await self._take_over()
            self._cleaned_at = asked_at
            for id_ in overdue.poisoned:
                events.emit(events.MessagePoisoned(queue=self._queue, id=id_, place="processing"))
            for id_ in overdue.cleaned:
                events.emit(events.MessageCleaned(queue=self._queue, id=id_))
            if overdue.taken:
                await self._settle(overdue.taken, overdue.now)
                return True
        # Every new lease is seen in time: it does not end sooner than in a lease.
        wait = inf if self._rounds.are_shared else self._seldom
        if late:  # the call was too late, or there is more
            wait = _INTERVAL
        elif deadline is not None:
            # Many know of the same deadline; they do not all come at once.
            apart = random() * _APART * self._holdings.workers if self._rounds.are_shared else 0.0  # noqa: S311 - spreads the work
            wait = min(wait, deadline - now + apart)
        self._looks_at = asked_at + wait
        return False

    async def _next_deadline(self) -> float | None:
        """When the first lease or lifetime ends; long past if the server refuses to say."""
        try:
            return await self._queries.next_deadline()
        except ResponseError:  # a take-over is refused too, and its error names the key
            return -inf

    async def _take_over(self) -> Overdue:
        if self._calm.refused:
            with suppress(WrongKeyType):  # does not tell whether the server refuses writes
                await self._presence.register()  # raises as long as the server refuses writes
        sent_at = self._loop.time()
        try:
            overdue = await self._store.take_over(
                self._batch,
                lease=self._lease,
                holder=monitor_of(self._presence.worker),
                before=self._calm.bound(),
            )
        except MxRmqError as error:
            self._calm.failed(error)
            raise
        self._calm.answered(sent_at, overdue)
        return overdue

    async def _settle(self, taken: list[Takeover], now: float) -> None:
        groups: dict[tuple[str, type[Verdict]], list[tuple[Takeover, Verdict]]] = defaultdict(list)
        seen = await self._presence.seen({each.previous for each in taken if each.cause != "expired"})
        # Deadlines have another order than the lanes to whose heads messages go back.
        for takeover in sorted(taken, key=lambda each: turn_of(each.delivery.body, each.delivery.id)):
            verdict = self._judge(takeover, now, seen)
            groups[takeover.delivery.topic, type(verdict)].append((takeover, verdict))
        statuses: list[Settled] = []
        for (topic, kind), items in groups.items():
            try:
                settled = await settle(self._store, topic, items)
            except StoreError as error:  # concerns this topic; the others are settled
                await self._put_off(topic, kind, items, error)
                continue
            self._refused.discard((topic, kind))
            self._tell(topic, items, settled)
            self._hooks.accepted(items, settled)
            statuses += settled
            if kind is Returned:
                self._on_recovered(topic)
        if Settled.STALE in statuses:  # it took too long, as large bodies do on a slow line
            self._lease = min(self._config.lease, 2 * self._lease)
            self._batch = max(1, self._batch // 2)

    def _tell(
        self, topic: str, items: Sequence[tuple[Takeover, Verdict]], statuses: Sequence[Settled]
    ) -> None:
        """Emit the events of what the server accepted."""
        recovered: dict[str, list[str]] = defaultdict(list)
        for (takeover, verdict), status in zip(items, statuses, strict=True):
            if status is not Settled.DONE:
                continue
            if isinstance(verdict, Again | Returned):
                recovered[takeover.previous].append(takeover.delivery.id)
            else:
                announce(self._queue, takeover.delivery, verdict, previous=takeover.previous)
        for previous, ids in recovered.items():
            events.emit(
                events.MessagesRecovered(
                    queue=self._queue, topic=topic, messages=len(ids), previous=previous, ids=ids
                )
            )

    async def _put_off(
        self,
        topic: str,
        kind: type[Verdict],
        items: Sequence[tuple[Takeover, Verdict]],
        error: StoreError,
    ) -> None:
        """Keep messages that could not be settled for a while, and tell of their topic once.

        A key of the wrong type stays wrong for long; anything else may pass soon.
        """
        if (topic, kind) not in self._refused:
            events.emit(events.TopicFailed(queue=self._queue, topic=topic, error=str(error)))
            self._refused.add((topic, kind))
        lease = _PUT_OFF if isinstance(error, WrongKeyType) else self._config.lease
        with suppress(StoreError):  # then the lease of the take-over runs out
            await self._store.extend(topic, [takeover.delivery for takeover, _ in items], lease=lease)

    def _judge(self, takeover: Takeover, now: float, seen: Set[str]) -> Verdict:
        """The verdict on a message that ran past its deadline; *seen* are the holders that are connected."""
        delivery, previous = takeover.delivery, takeover.previous
        try:
            message = decode_message(delivery.body, delivery.id, delivery.topic)
        except UnreadableMessage as error:
            return outcome.unreadable(error)
        if takeover.cause == "expired":
            return outcome.expired(message)
        began = takeover.cause == "started"
        run, limit = Run(now, previous), self._config.crash_limit
        verdict: Verdict
        if previous in seen:
            retry = self._retries.get(delivery.topic, self._config.retry)
            began = began and not is_monitor(previous)
            verdict = outcome.lapsed(message, run, retry, limit, began=began)
        else:
            gone = self._presence.vanished(previous)
            verdict = outcome.vanished(message, run, limit, began=began, connection_gone=gone)
        if delivery.expires_at <= now:
            return outcome.expired(message, encode_message(message))
        return verdict

    async def _keep_house(self) -> None:
        """Delete dead messages beyond retention, every few seconds, and forget topics, every hour."""
        now = self._loop.time()
        if now - self._kept_house_at < _HOUSEKEEPING:
            return
        self._kept_house_at = now
        try:
            await self._trim()
        except StoreError as error:
            self._availability.lost(_HOUSE, error, "trying until it is accepted; recovery goes on")
        else:
            self._availability.back(_HOUSE)
        if now >= self._forgets_at:
            self._forgets_at = now + _FORGETTING * max(1.0, self._holdings.workers / FEW)
            await self.forget_topics()

    async def _trim(self) -> None:
        """Delete dead messages beyond retention."""
        if self._config.dlq_max_age is not None or self._config.dlq_max_count is not None:
            deleted, most = BATCH, self._config.dlq_max_count
            if most is not None:  # each shard keeps its share
                most = -(-most // self._shard.siblings)
            while deleted == BATCH:
                deleted = await self._store.trim_dead(max_age=self._config.dlq_max_age, max_count=most)

    async def forget_topics(self, unused: float = _UNUSED) -> None:
        """Forget topics that are empty, not paused, without a live worker, and unused for so many seconds."""
        forgotten: list[str] = []
        with suppress(StoreError, ResponseError):  # no right to look, or a broken key: no message needs this
            topics, workers = await self._queries.topics(), await self._queries.workers()
            served = {topic for worker in workers for topic in worker.topics}
            idle = [topic for topic in topics if topic not in served]
            for start in range(0, len(idle), _BATCH):
                forgotten += await self._store.forget(idle[start : start + _BATCH], idle=unused)
        if forgotten:
            events.emit(events.TopicsForgotten(queue=self._queue, topics=forgotten))

    async def follow_clock(self) -> None:
        """After a test has put the queue's clock forward, extend this worker's own leases.

        The caller holds the monitor's turn. The leases are read from the server: a claim may be under way.
        """
        for topic in self._retries:
            own = [
                Delivery(id_, topic, lease.token, b"", inf)
                for id_, lease in (await self._queries.leases(topic)).items()
                if lease.holder == self._presence.worker
            ]
            for start in range(0, len(own), BATCH):
                await self._store.extend(topic, own[start : start + BATCH], lease=self._config.lease)
        await self._presence.register()
        self._calm = Calm(self._config, self._loop.time)
        self._kept_house_at = self._looks_at = -inf

    async def close(self) -> None:
        """Forget what the server refuses."""
        self._presence.close()
        self._availability.leave(_HOUSE)

    async def leave(self) -> None:
        """Remove this worker's registration."""
        await self._presence.leave()
