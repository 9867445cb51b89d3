"""Monitoring: what ran past its deadline is taken over, and tried again or given up."""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from typing import TYPE_CHECKING, Any

from mx_rmq.errors import MxRmqError, UnreadableMessage
from mx_rmq.message import Attempt, Death, Message, decode_message, describe, encode_death, encode_message
from mx_rmq.records import Settled
from mx_rmq.store import BATCH_LIMIT
from mx_rmq.worker.calm import Calm
from mx_rmq.worker.presence import Presence, is_monitor
from mx_rmq.worker.service import Service

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from mx_rmq.config import Config
    from mx_rmq.records import Delivery, Overdue, Takeover
    from mx_rmq.retry import Retry
    from mx_rmq.shard import Shard

logger = logging.getLogger("mx_rmq.worker")

_INTERVAL = 0.5
_BATCH = 200
_HOUSEKEEPING = 5.0
_SHORTEST = 0.5
"""Seconds that a monitor has at least to settle what it took over."""
_UNBEGUN = 10
"""Times the limit of crashes: even what is never seen to begin does not take workers down for ever."""


class Monitor(Service):
    """Recovers one shard's messages, and says that this worker lives.

    Args:
        shard: which.
        config: of the queue.
        worker: its name.
        facts: what others may know of it.
        retries: the retry policy of each topic that has a handler here.
        on_recovered: called with a topic in which messages were recovered. The token that tells of them may
            go to a worker that stands still, and they have waited long enough.
    """

    def __init__(
        self,
        shard: Shard,
        config: Config,
        worker: str,
        facts: Mapping[str, Any],
        retries: Mapping[str, Retry],
        on_recovered: Callable[[str], None],
    ) -> None:
        super().__init__("monitor")
        self._on_recovered = on_recovered
        self._worker = worker
        self._store = shard.store
        self._config = config
        self._retries = retries
        self._presence = Presence(shard, config, worker, facts)
        # A take-over is settled by the next call. If this worker dies in between, others need not wait long.
        self._lease = min(config.lease, max(_SHORTEST, config.lease / 4))
        self._batch = _BATCH
        self._has_looked = False
        self._calm = Calm(config, asyncio.get_running_loop().time)
        self._kept_house_at = float("-inf")

    async def step(self) -> None:
        """Take over and settle what is overdue, then wait a little."""
        if not self._has_looked:  # who is there, before anyone is blamed
            await self._presence.step(recover=False)
            self._has_looked = True
        overdue = await self._take_over()
        for id_ in overdue.poisoned:
            logger.error("message.poisoned", extra={"id": id_, "place": "processing"})
        for id_ in overdue.cleaned:
            logger.warning("message.cleaned", extra={"id": id_})
        if overdue.taken:
            await self._settle(overdue.taken, overdue.now)
        await self._keep_house()
        more = await self._presence.step(recover=not self._calm.holding)
        if not overdue.taken and not more:
            await self.pause(self._presence.pause(_INTERVAL))

    async def _take_over(self) -> Overdue:
        if self._calm.refused:
            await self._presence.register()  # raises for as long as the server refuses what writes
        sent_at = asyncio.get_running_loop().time()
        try:
            overdue = await self._store.take_over(
                self._batch,
                lease=self._lease,
                holder=f"{self._worker}.monitor",
                before=self._calm.bound(),
            )
        except MxRmqError as error:
            self._calm.failed(error)
            raise
        self._calm.answered(sent_at, overdue)
        return overdue

    async def _settle(self, taken: list[Takeover], now: float) -> None:
        recovered: dict[str, list[tuple[Delivery, bytes]]] = defaultdict(list)
        retries: dict[str, list[tuple[Delivery, float, bytes]]] = defaultdict(list)
        deaths: dict[str, list[tuple[Delivery, bytes, bytes]]] = defaultdict(list)
        for takeover in taken:
            delivery = takeover.delivery
            body, verdict = self._judge(takeover, now)
            fields = {"topic": delivery.topic, "id": delivery.id, "previous": takeover.previous}
            if isinstance(verdict, Death):
                deaths[delivery.topic].append((delivery, body, encode_death(verdict)))
                fields |= {"reason": verdict.reason, "error": verdict.error}
                logger.warning("message.dead", extra=fields)
            else:
                if verdict is None:
                    recovered[delivery.topic].append((delivery, body))
                else:
                    retries[delivery.topic].append((delivery, verdict, body))
                logger.warning("message.recovered", extra=fields)
        statuses: list[Settled] = []
        for topic, recover in recovered.items():
            deliveries, bodies = zip(*recover, strict=True)
            statuses += await self._store.release(topic, deliveries, bodies=bodies)
            self._on_recovered(topic)
        for topic, retry in retries.items():
            statuses += await self._store.retry(topic, retry)
        for topic, dead in deaths.items():
            statuses += await self._store.move_to_dlq(topic, dead)
        if Settled.STALE in statuses:  # it took too long, as large bodies do over a slow line
            self._lease = min(self._config.lease, 2 * self._lease)
            self._batch = max(1, self._batch // 2)

    def _judge(self, takeover: Takeover, now: float) -> tuple[bytes, float | Death | None]:
        """The message's new body, and what follows.

        None for the head of its lane, the seconds to wait before it is tried again, or why it is dead.
        """
        delivery = takeover.delivery
        try:
            message = decode_message(delivery.body)
        except UnreadableMessage as error:
            return b"", Death(reason="unparsable", error=describe(error), kind="UnreadableMessage")
        verdict: float | Death | None = None
        if takeover.cause != "expired":
            if self._presence.sees(takeover.previous):
                verdict = self._count_lapse(message, takeover, now)
            else:
                verdict = self._count_crash(message, takeover, now)
        if takeover.cause == "expired" or delivery.expires_at <= now:
            verdict = Death(reason="expired", error=f"its lifetime of {message.ttl or 0:g} s was over")
        return encode_message(message), verdict

    def _count_lapse(self, message: Message, takeover: Takeover, now: float) -> float | Death | None:
        """Its worker lives but let the lease run out: a failed attempt, if it is known to have begun.

        The first time that is not known. From then on the start is noted, as after a crash.
        """
        if is_monitor(takeover.previous) or takeover.cause != "started":
            message.unbegun += 1
            self._remember(message, takeover, now, "the lease ran out although the worker is connected")
            return _crashed(message, takeover) if self._is_hopeless(message) else None
        error = TimeoutError(
            "its lease ran out although its worker is connected: the handler ran past its timeout and "
            "cannot be stopped, or the process stands still"
        )
        message.attempts += 1
        self._remember(message, takeover, now, describe(error))
        policy = self._retries.get(takeover.delivery.topic, self._config.retry)
        delay = policy.delay(message.attempts, error)
        if delay is None:
            return Death(reason="failed", error=describe(error), kind="TimeoutError")
        return delay

    def _count_crash(self, message: Message, takeover: Takeover, now: float) -> Death | None:
        """Its worker vanished, and so may have been taken down by it."""
        if takeover.cause == "started" or not message.crashes:
            message.crashes += 1
        else:
            message.unbegun += 1
        gone = self._presence.vanished(takeover.previous)
        error = f"the worker vanished: its {'connection was gone' if gone else 'lease ran out'}"
        self._remember(message, takeover, now, error)
        return _crashed(message, takeover) if self._is_hopeless(message) else None

    def _is_hopeless(self, message: Message) -> bool:
        limit = self._config.crash_limit
        return message.crashes >= limit or message.unbegun >= limit * _UNBEGUN

    def _remember(self, message: Message, takeover: Takeover, now: float, error: str) -> None:
        message.remember(Attempt(at=round(now, 3), worker=takeover.previous, error=error))

    async def _keep_house(self) -> None:
        """Every few seconds: delete dead messages beyond retention."""
        now = asyncio.get_running_loop().time()
        if now - self._kept_house_at < _HOUSEKEEPING:
            return
        self._kept_house_at = now
        if self._config.dlq_max_age is not None or self._config.dlq_max_count is not None:
            deleted = BATCH_LIMIT
            while deleted == BATCH_LIMIT:
                deleted = await self._store.trim_dead(
                    max_age=self._config.dlq_max_age, max_count=self._config.dlq_max_count
                )

    async def leave(self) -> None:
        """Say that this worker is gone."""
        await self._presence.leave()


def _crashed(message: Message, takeover: Takeover) -> Death:
    times = message.crashes + message.unbegun
    what = f"its worker vanished {times} times, the last one was {takeover.previous}"
    return Death(reason="crashed", error=what)
