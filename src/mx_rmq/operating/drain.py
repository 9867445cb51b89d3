"""Wait until a queue, or some of its topics, have nothing left to do now."""

from __future__ import annotations

import asyncio
from math import inf
from typing import TYPE_CHECKING, Final

from redis.exceptions import ResponseError

from mx_rmq.errors import NotDrained
from mx_rmq.operating.inspector import Inspector
from mx_rmq.storage.queries import Queries
from mx_rmq.storage.resend import resend
from mx_rmq.storage.shards import ask_all

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from mx_rmq.storage.queries import Unfinished
    from mx_rmq.storage.shard import Shard
    from mx_rmq.storage.shards import Shards

_FIRST, LONGEST = 0.002, 0.1
"""Seconds between two looks: at first, and at most."""
_UNSERVED: Final = 5.0
"""Seconds after which ``drain`` without a timeout gives up what no worker serves. One may be starting."""


class Backlog:
    """What a queue has left to do now: messages that are pending, leased or due.

    Messages that are delayed and not due do not count, so retries that wait do not count either.

    Args:
        shards: of the queue.
        topics: count only these, and of those that are paused only what is leased; None counts all.
    """

    def __init__(self, shards: Shards, topics: Collection[str] | None = None) -> None:
        self._shards = shards
        self._topics = topics

    async def is_left(self) -> bool:
        """Whether anything is left; looks twice, since messages move while they are counted."""
        return await self._look() or await self._look()

    async def _look(self) -> bool:
        return any(await ask_all(await self._shards.now(), self._look_at))

    async def _look_at(self, shard: Shard) -> bool:
        queries, topics = Queries(shard.operating), self._topics
        # What is due is looked at before and after the rest: a failed message may become due at once.
        due, found, rest, later = await asyncio.gather(
            shard.operating.next_delay(),
            queries.any_unfinished(),
            queries.unfinished(*(topics or ())),
            shard.operating.next_delay(),
        )
        if "EXPIRED" in (due.state, later.state):
            return True
        return found and (topics is None or any(each.leased or _would_run(each) for each in rest))

    async def by_topic(self) -> dict[str, Unfinished]:
        """What is pending or leased in each topic that has any."""
        found: dict[str, Unfinished] = {}
        for here in await ask_all(self._shards, self._by_topic):
            for topic, own in here.items():
                found[topic] = _sum(found[topic], own) if topic in found else own
        return found

    async def _by_topic(self, shard: Shard) -> dict[str, Unfinished]:
        queries = Queries(shard.operating)
        topics = await queries.topics() if self._topics is None else list(self._topics)
        each = zip(topics, await queries.unfinished(*topics), strict=True)
        return {topic: own for topic, own in each if own.pending or own.leased}

    async def describe(self, served_here: Collection[str]) -> tuple[str, bool]:
        """What is left, in words, and whether no worker will do it as things are.

        Args:
            served_here: the topics of this process' worker, which may not have registered yet.
        """
        try:
            return await self._describe(served_here)
        except ResponseError as error:  # the user may not read that
            return f"messages, but which cannot be read: {error}", False

    async def _describe(self, served_here: Collection[str]) -> tuple[str, bool]:
        workers = await Inspector(self._shards).workers()
        served = set(served_here).union(*(worker.topics for worker in workers))
        parts, stuck = [], False
        for topic, left in (await self.by_topic()).items():
            ready = sum(worker.load[topic].held for worker in workers if topic in worker.load)
            held = min(left.leased, ready)
            places = {"pending": left.pending, "running": left.leased - held, "held": held}
            here = [f"{number} {place}" for place, number in places.items() if number]
            why = ""
            if left.pending and left.paused:
                why = ", which is paused: resume it"
            elif left.pending and topic not in served:
                why = ", which no live worker serves: start one"
            stuck = stuck or bool(why)
            parts.append(f"{', '.join(here)} in {topic}{why}")
        delays = await ask_all(self._shards, lambda shard: shard.operating.next_delay())
        if any(delay.state == "EXPIRED" for delay in delays):
            why = "" if served else ", but no live worker makes them pending: start one"
            stuck = stuck or bool(why)
            parts.append(f"delayed messages are due{why}")
        return "; ".join(parts) or "nothing any more", stuck


async def drained(
    backlog: Backlog,
    *,
    timeout: float | None = None,  # noqa: ASYNC109 - the error says what is left
    served_here: Callable[[], Collection[str]] = tuple,
    patience: float = 0.0,
    unserved: float = _UNSERVED,
    longest: float = LONGEST,
) -> None:
    """Wait until nothing is left.

    Args:
        backlog: what may be left.
        timeout: seconds; None for no limit, except for what no worker serves.
        served_here: the topics of this process' worker.
        patience: how long to try while the server cannot be reached.
        unserved: without a timeout, seconds after which to give up what no worker serves, or ``inf``.
        longest: most seconds between two looks.

    Raises:
        NotDrained: says what is left.
    """
    loop = asyncio.get_running_loop()
    began = loop.time()
    end = inf if timeout is None else began + timeout
    wait, looked_at, stuck_since = _FIRST, began, inf
    while await resend(backlog.is_left, patience=patience):
        now = loop.time()
        if now >= end:
            left, _ = await backlog.describe(served_here())
            raise NotDrained(f"not drained within {timeout:g} s: {left}")
        if timeout is None and now - looked_at >= unserved / 2:
            looked_at = now
            left, stuck = await resend(lambda: backlog.describe(served_here()), patience=patience)
            stuck_since = min(stuck_since, now) if stuck else inf
            if now - stuck_since >= unserved:
                raise NotDrained(f"cannot be drained: {left}")
        await asyncio.sleep(min(wait, max(0.0, end - now)))
        wait = min(longest, wait * 1.5)


def _would_run(topic: Unfinished) -> bool:
    return topic.pending > 0 and not topic.paused


def _sum(one: Unfinished, other: Unfinished) -> Unfinished:
    return type(one)(one.pending + other.pending, one.leased + other.leased, one.paused or other.paused)
