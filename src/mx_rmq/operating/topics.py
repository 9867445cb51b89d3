"""Pause, resume and purge topics, cancel messages that have not started, and which topics there are."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from mx_rmq.checks import check_id, check_topic, refusal
from mx_rmq.errors import ServerUnavailable, UnknownTopic
from mx_rmq.limits import BATCH
from mx_rmq.storage.contract import Cancelled, Hastened
from mx_rmq.storage.queries import Queries
from mx_rmq.storage.shards import ask_all, ask_those_there, find_first

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Sequence

    from mx_rmq.storage.shard import Shard
    from mx_rmq.storage.shards import Shards

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

    def __init__(self, shards: Shards, handled: Collection[str] = ()) -> None:
        self._shards = shards
        self._handled = handled

    async def cancel(self, id_: str) -> bool:
        """Withdraw a message that has not started; False if it runs, is dead or is gone."""
        id_ = check_id(id_)

        async def cancel(shard: Shard) -> Cancelled | None:
            (end,) = await shard.operating.cancel([id_])
            return None if end is Cancelled.GONE else end

        return await find_first(await self._shards.now(), id_, cancel) is Cancelled.CANCELLED

    async def run_now(self, id_: str) -> bool:
        """Make a delayed message due now; False if it is not delayed."""
        id_ = check_id(id_)

        async def hasten(shard: Shard) -> Hastened | None:
            (end,) = await shard.operating.hasten([id_])
            return None if end is Hastened.GONE else end

        end = await find_first(await self._shards.now(), id_, hasten)
        return end in (Hastened.HASTENED, Hastened.DUE)

    async def cancel_many(self, ids: Iterable[str]) -> int:
        """Withdraw messages that have not started; returns how many there were."""
        if isinstance(ids, str | bytes | Mapping) or not isinstance(ids, Iterable):
            raise refusal("ids", "an iterable of message ids", ids)
        shards, cancelled = await self._shards.now(), 0
        left = dict.fromkeys(map(check_id, ids))

        async def cancel(shard: Shard, own: Sequence[str]) -> None:
            nonlocal cancelled
            for start in range(0, len(own), BATCH):
                some = own[start : start + BATCH]
                for id_, end in zip(some, await shard.operating.cancel(some), strict=True):
                    cancelled += end is Cancelled.CANCELLED
                    if end is not Cancelled.GONE:
                        left.pop(id_, None)

        by_shard: dict[Shard, list[str]] = {}
        for id_ in left:
            by_shard.setdefault(shards.home(id_), []).append(id_)
        await ask_all(by_shard, lambda shard: cancel(shard, by_shard[shard]))
        if left and not shards.is_one:  # with a key they are elsewhere
            rest = list(left)
            await ask_all(shards, lambda shard: cancel(shard, [id_ for id_ in rest if id_ in left]))
        return cancelled

    async def pause(self, topic: str) -> None:
        """Stop the delivery of a topic."""
        topic = check_topic(topic)
        shards = await self._shards.now()
        await refuse_unknown_topic(shards, topic, self._handled)
        await self._on_all(lambda shard: shard.operating.pause(topic))

    async def resume(self, topic: str) -> None:
        """Deliver a paused topic again."""
        topic = check_topic(topic)
        if not any(await self._on_all(lambda shard: shard.operating.resume(topic))):
            await refuse_unknown_topic(self._shards, topic, self._handled)

    async def _on_all(self, act: Callable[[Shard], Awaitable[bool]]) -> list[bool]:
        """Act on all shards, also on those of a reshard that begins before it is done; see ``resharding``."""
        known = (await self._shards.now()).layout
        done = await ask_all(self._shards, act)
        with suppress(ServerUnavailable):  # then none begins
            await self._shards.look()
            while self._shards.layout != known:  # another task may have read the new one before this look
                known = self._shards.layout
                done += await ask_all(self._shards, act)
                await self._shards.look()
        return done

    async def purge(self, topic: str, progress: Callable[[int], None] | None = None) -> int:
        """Withdraw all pending and delayed messages of a topic; returns how many there were.

        Raises:
            UnknownTopic: there is no such topic.
            ServerUnavailable: names a shard that does not answer; if that is known at the beginning, nothing
                was withdrawn.
        """
        topic = check_topic(topic)
        shards = await self._shards.now()
        purged = 0

        async def purge(shard: Shard) -> None:
            nonlocal purged
            async for gone in _purge(shard, topic):
                purged += gone
                if progress is not None:
                    progress(purged)

        await ask_all(shards, lambda shard: Queries(shard.operating).time())  # all are there, or none acts
        await ask_all(shards, purge)
        if not purged:
            await refuse_unknown_topic(shards, topic, self._handled)
        return purged


async def refuse_unknown_topic(shards: Shards, topic: str, handled: Collection[str]) -> None:
    """Refuse a topic that is neither produced to nor served, so that a misspelt one does not pass.

    Args:
        shards: of the queue.
        topic: the topic in question.
        handled: the topics that have a handler in this process.

    Raises:
        UnknownTopic: names the closest one.
    """
    known = set(handled)
    if topic in known:
        return
    asked, missing = await ask_those_there(await shards.now(), partial(_knows, topic))
    if missing or any(knows for knows, _ in asked):  # what a shard knows that does not answer is not known
        return
    known = known.union(*(served for _, served in asked))
    if topic in known:
        return
    known = known.union(*await ask_all(shards, lambda shard: Queries(shard.operating).topics()))
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


async def _knows(topic: str, shard: Shard) -> tuple[bool, set[str]]:
    """Whether a shard knows a topic, and which topics its workers serve, if it does not."""
    queries = Queries(shard.operating)
    if await queries.knows(topic):
        return True, set()
    return False, {served for worker in await queries.workers() for served in worker.topics}


async def topic_names(shards: Shards) -> list[str]:
    """The names of all topics that were produced to and are not forgotten, or are paused."""
    names = await ask_all(await shards.now(), lambda shard: Queries(shard.operating).topic_names())
    return sorted(set[str]().union(*names))


async def queue_names(shards: Shards) -> list[str]:
    """The names of all queues on the servers of the shards."""
    servers = {shard.server: shard for shard in await shards.now()}
    names = await ask_all(servers.values(), lambda shard: Queries(shard.operating).queues())
    return sorted(set[str]().union(*names))


async def _purge(shard: Shard, topic: str) -> AsyncIterator[int]:
    """Withdraw messages of a topic, some at a time; yields how many these were."""
    left = 1
    while left:
        gone, left = await shard.operating.purge(topic)
        yield gone
    async for gone in _purge_delayed(shard, topic):
        yield gone


async def _purge_delayed(shard: Shard, topic: str) -> AsyncIterator[int]:
    """Withdraw delayed messages of a topic, some at a time; yields how many these were."""
    queries, start = Queries(shard.operating), 0
    while ids := await queries.delayed_ids(start, _PAGE):
        own = [id_ for id_, of in zip(ids, await queries.topics_of(ids), strict=True) if of == topic]
        cancelled = (await shard.operating.cancel(own)).count(Cancelled.CANCELLED) if own else 0
        yield cancelled
        start += len(ids) - cancelled
