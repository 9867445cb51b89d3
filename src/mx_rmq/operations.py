"""What operators ask of a queue, and do to it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from mx_rmq.audit import audit
from mx_rmq.dead_letters import DeadLetters
from mx_rmq.inspector import Inspector
from mx_rmq.keys import check_name
from mx_rmq.reader import Reader
from mx_rmq.records import Cancelled

if TYPE_CHECKING:
    from mx_rmq.audit import AuditReport
    from mx_rmq.config import Config
    from mx_rmq.inspector import MessageFacts
    from mx_rmq.reader import Counts, WorkerFacts
    from mx_rmq.shard import Shard


class Operations(ABC):
    """The operators' half of ``RedisMessageQueue``; the queue must be open."""

    config: Config

    @abstractmethod
    def _opened(self) -> list[Shard]:
        """The shards of the open queue."""

    @property
    def dlq(self) -> DeadLetters:
        """The dead messages."""
        return DeadLetters(self._opened())

    async def get(self, id_: str) -> MessageFacts:
        """Where a message is and what is known of it."""
        id_ = check_name("message id", id_)
        return await self._inspector().get(id_)

    async def explain(self, id_: str) -> str:
        """Why a message has not run, in a sentence."""
        id_ = check_name("message id", id_)
        return await self._inspector().explain(id_)

    async def counts(self) -> Counts:
        """How the queue stands, topic by topic."""
        return await self._inspector().counts()

    async def workers(self) -> list[WorkerFacts]:
        """The workers that have lately said that they live."""
        return await self._inspector().workers()

    async def cancel(self, id_: str) -> bool:
        """Withdraw a message that has not started; False if it runs, is dead or is gone."""
        id_ = check_name("message id", id_)
        results = [await shard.store.cancel([id_]) for shard in self._opened()]
        return [Cancelled.CANCELLED] in results

    async def pause(self, topic: str) -> None:
        """Stop the delivery of a topic everywhere; producing to it goes on.

        What workers already hold still runs: about as much as they finish in 30 ms. What has not begun
        after a second is given back.
        """
        for shard in self._opened():
            await shard.store.pause(topic)

    async def resume(self, topic: str) -> None:
        """Deliver a paused topic again."""
        topic = check_name("topic", topic)
        for shard in self._opened():
            await shard.store.resume(topic)

    async def purge(self, topic: str) -> int:
        """Withdraw everything of a topic that is pending or delayed; returns how many there were."""
        topic = check_name("topic", topic)
        purged = 0
        for shard in self._opened():
            left = 1
            while left:
                gone, left = await shard.store.purge(topic)
                purged += gone
            purged += await self._purge_delayed(shard, topic)
        return purged

    async def _purge_delayed(self, shard: Shard, topic: str) -> int:
        reader, start, purged = Reader(shard.operating), 0, 0
        while ids := await reader.delayed_ids(start, 500):
            own = [id_ for id_, of in zip(ids, await reader.topics_of(ids), strict=True) if of == topic]
            cancelled = (await shard.store.cancel(own)).count(Cancelled.CANCELLED) if own else 0
            purged += cancelled
            start += len(ids) - cancelled
        return purged

    async def audit(self, *, repair: bool = False) -> list[AuditReport]:
        """Check that every message is in exactly one place, one report per shard."""
        return [
            await audit(shard.operating, repair=repair, lease=self.config.lease) for shard in self._opened()
        ]

    def _inspector(self) -> Inspector:
        return Inspector(self._opened())
