"""Monitoring: what ran past its deadline is taken over, and tried again or given up."""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from typing import TYPE_CHECKING, Any

from mx_rmq.errors import UnreadableMessage
from mx_rmq.message import Attempt, Death, Message, decode_message, describe, encode_death, encode_message
from mx_rmq.store import BATCH_LIMIT
from mx_rmq.worker.presence import Presence
from mx_rmq.worker.service import Service

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from mx_rmq.config import Config
    from mx_rmq.records import Delivery, Takeover
    from mx_rmq.shard import Shard

logger = logging.getLogger("mx_rmq.worker")

_INTERVAL = 0.5
_BATCH = 200
_HOUSEKEEPING = 5.0
_UNBEGUN = 10
"""Times the limit of crashes: even what is never seen to begin does not take workers down for ever."""


class Monitor(Service):
    """Recovers one shard's messages, and says that this worker lives.

    Args:
        shard: which.
        config: of the queue.
        worker: its name.
        facts: what others may know of it.
        on_due: called when recovered messages are due. The token that tells of them may go to a worker
            that stands still, and they have waited long enough.
    """

    def __init__(
        self, shard: Shard, config: Config, worker: str, facts: Mapping[str, Any], on_due: Callable[[], None]
    ) -> None:
        super().__init__("monitor")
        self._on_due = on_due
        self._worker = worker
        self._store = shard.store
        self._config = config
        self._presence = Presence(shard, config, worker, facts)
        self._kept_house_at = float("-inf")

    async def step(self) -> None:
        """Take over and settle what is overdue, then wait a little."""
        overdue = await self._store.take_over(
            _BATCH, lease=self._config.lease, holder=f"{self._worker}.monitor"
        )
        for id_ in overdue.poisoned:
            logger.error("message.poisoned", extra={"id": id_, "place": "processing"})
        for id_ in overdue.cleaned:
            logger.warning("message.cleaned", extra={"id": id_})
        if overdue.taken:
            await self._settle(overdue.taken, overdue.now)
        await self._keep_house()
        more = await self._presence.step()
        if not overdue.taken and not more:
            await self.pause(self._presence.pause(_INTERVAL))

    async def _settle(self, taken: list[Takeover], now: float) -> None:
        retries: dict[str, list[tuple[Delivery, float, bytes]]] = defaultdict(list)
        deaths: dict[str, list[tuple[Delivery, bytes, bytes]]] = defaultdict(list)
        for takeover in taken:
            delivery = takeover.delivery
            body, death = self._judge(takeover, now)
            if death is None:
                retries[delivery.topic].append((delivery, 0.0, body))
            else:
                deaths[delivery.topic].append((delivery, body, encode_death(death)))
            fields = {"topic": delivery.topic, "id": delivery.id, "previous": takeover.previous}
            if death is None:
                logger.warning("message.recovered", extra=fields)
            else:
                logger.warning("message.dead", extra={**fields, "reason": death.reason, "error": death.error})
        for topic, retry in retries.items():
            await self._store.retry(topic, retry)
            self._on_due()
        for topic, dead in deaths.items():
            await self._store.move_to_dlq(topic, dead)

    def _judge(self, takeover: Takeover, now: float) -> tuple[bytes, Death | None]:
        """The message's new body, and why it is dead if it is."""
        delivery = takeover.delivery
        try:
            message = decode_message(delivery.body)
        except UnreadableMessage as error:
            return b"", Death(reason="unparsable", error=describe(error), kind="UnreadableMessage")
        if takeover.cause != "expired":
            self._count_crash(message, takeover, now)
        body = encode_message(message)
        if takeover.cause == "expired" or delivery.expires_at <= now:
            return body, Death(reason="expired", error=f"its lifetime of {message.ttl or 0:g} s was over")
        limit = self._config.crash_limit
        if message.crashes >= limit or message.unbegun >= limit * _UNBEGUN:
            times = message.crashes + message.unbegun
            what = f"its worker vanished {times} times, the last one was {takeover.previous}"
            return body, Death(reason="crashed", error=what)
        return body, None

    def _count_crash(self, message: Message, takeover: Takeover, now: float) -> None:
        if takeover.cause == "started" or not message.crashes:
            message.crashes += 1
        else:
            message.unbegun += 1
        gone = self._presence.vanished(takeover.previous)
        error = f"the worker vanished: its {'connection was gone' if gone else 'lease ran out'}"
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
