"""Pause, resume and purge topics, and cancel messages that have not started."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mx_rmq.checks import check_id, check_topic
from mx_rmq.storage.contract import Cancelled
from mx_rmq.storage.queries import Queries
from mx_rmq.storage.shard import shard_number

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mx_rmq.storage.shard import Shard

_PAGE = 500
"""Delayed messages read in one call."""


class Topics:
    """The topics of a queue, over all its shards."""

    def __init__(self, shards: Sequence[Shard]) -> None:
        self._shards = shards

    async def cancel(self, id_: str) -> bool:
        """Withdraw a message that has not started; False if it runs, is dead or is gone."""
        id_ = check_id(id_)
        shard = self._shards[shard_number(id_, len(self._shards))]
        return await shard.operating.cancel([id_]) == [Cancelled.CANCELLED]

    async def pause(self, topic: str) -> None:
        """Stop the delivery of a topic."""
        for shard in self._shards:
            await shard.operating.pause(topic)

    async def resume(self, topic: str) -> None:
        """Deliver a paused topic again."""
        topic = check_topic(topic)
        for shard in self._shards:
            await shard.operating.resume(topic)

    async def purge(self, topic: str) -> int:
        """Withdraw all pending and delayed messages of a topic; returns how many there were."""
        topic = check_topic(topic)
        purged = 0
        for shard in self._shards:
            left = 1
            while left:
                gone, left = await shard.operating.purge(topic)
                purged += gone
            purged += await _purge_delayed(shard, topic)
        return purged


async def _purge_delayed(shard: Shard, topic: str) -> int:
    queries, start, purged = Queries(shard.operating), 0, 0
    while ids := await queries.delayed_ids(start, _PAGE):
        own = [id_ for id_, of in zip(ids, await queries.topics_of(ids), strict=True) if of == topic]
        cancelled = (await shard.operating.cancel(own)).count(Cancelled.CANCELLED) if own else 0
        purged += cancelled
        start += len(ids) - cancelled
    return purged
