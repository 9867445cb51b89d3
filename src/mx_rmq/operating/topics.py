"""Pause, resume and purge topics, cancel messages that have not started, and which topics there are."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING

from mx_rmq.checks import check_id, check_topic
from mx_rmq.errors import UnknownTopic
from mx_rmq.limits import BATCH
from mx_rmq.storage.contract import Cancelled
from mx_rmq.storage.queries import Queries
from mx_rmq.storage.shard import shard_number

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from mx_rmq.storage.shard import Shard

_PAGE = 500
"""Delayed messages read in one call."""
_MOST_NAMED = 10
"""Topics that an error names."""


class Topics:
    """The topics of a queue, over all its shards.

    Args:
        shards: of the queue.
        handled: the topics that have a handler in this process.
    """

    def __init__(self, shards: Sequence[Shard], handled: Collection[str] = ()) -> None:
        self._shards = shards
        self._handled = handled

    async def cancel(self, id_: str) -> bool:
        """Withdraw a message that has not started; False if it runs, is dead or is gone."""
        id_ = check_id(id_)
        shard = self._shards[shard_number(id_, len(self._shards))]
        return await shard.operating.cancel([id_]) == [Cancelled.CANCELLED]

    async def cancel_many(self, ids: Iterable[str]) -> int:
        """Withdraw messages that have not started; returns how many there were."""
        by_shard: dict[Shard, list[str]] = {}
        for id_ in map(check_id, ids):
            by_shard.setdefault(self._shards[shard_number(id_, len(self._shards))], []).append(id_)
        cancelled = 0
        for shard, own in by_shard.items():
            for start in range(0, len(own), BATCH):
                ends = await shard.operating.cancel(own[start : start + BATCH])
                cancelled += ends.count(Cancelled.CANCELLED)
        return cancelled

    async def pause(self, topic: str) -> None:
        """Stop the delivery of a topic."""
        topic = check_topic(topic)
        await refuse_unknown_topic(self._shards, topic, self._handled)
        for shard in self._shards:
            await shard.operating.pause(topic)

    async def resume(self, topic: str) -> None:
        """Deliver a paused topic again."""
        topic = check_topic(topic)
        resumed = [await shard.operating.resume(topic) for shard in self._shards]
        if not any(resumed):
            await refuse_unknown_topic(self._shards, topic, self._handled)

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
        if not purged:
            await refuse_unknown_topic(self._shards, topic, self._handled)
        return purged


async def refuse_unknown_topic(shards: Sequence[Shard], topic: str, handled: Collection[str]) -> None:
    """Refuse a topic that is neither produced to nor served, so that a misspelt one does not pass.

    Args:
        shards: of the queue.
        topic: the topic in question.
        handled: the topics that have a handler in this process.

    Raises:
        UnknownTopic: names the closest one.
    """
    known = set(handled)
    for shard in shards:
        queries = Queries(shard.operating)
        if topic in known or await queries.knows(topic):
            return
        known |= {served for worker in await queries.workers() for served in worker.topics}
    if topic in known:
        return
    for shard in shards:
        known |= set(await Queries(shard.operating).topics())
    close = difflib.get_close_matches(topic, known, 1)
    if close:
        hint = f"did you mean {close[0]!r}?"
    elif known:
        names = ", ".join(sorted(known)[:_MOST_NAMED])
        hint = f"known are: {names}{', …' if len(known) > _MOST_NAMED else ''}"
    else:
        hint = "the queue has no topics yet"
    why = "nothing was produced to it and no live worker has a handler for it"
    raise UnknownTopic(f"there is no topic {topic!r}: {why}; {hint}")


async def topic_names(shards: Sequence[Shard]) -> list[str]:
    """The names of all topics that were produced to and are not forgotten, or are paused."""
    names: set[str] = set()
    for shard in shards:
        names |= await Queries(shard.operating).topic_names()
    return sorted(names)


async def queue_names(shards: Sequence[Shard]) -> list[str]:
    """The names of all queues on the servers of the shards."""
    names: set[str] = set()
    for shard in shards:
        names |= await Queries(shard.operating).queues()
    return sorted(names)


async def _purge_delayed(shard: Shard, topic: str) -> int:
    queries, start, purged = Queries(shard.operating), 0, 0
    while ids := await queries.delayed_ids(start, _PAGE):
        own = [id_ for id_, of in zip(ids, await queries.topics_of(ids), strict=True) if of == topic]
        cancelled = (await shard.operating.cancel(own)).count(Cancelled.CANCELLED) if own else 0
        purged += cancelled
        start += len(ids) - cancelled
    return purged
