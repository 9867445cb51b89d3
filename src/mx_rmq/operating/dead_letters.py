"""The DLQ as an operator sees it: read, replay, delete, export and restore."""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Mapping
from contextlib import ExitStack
from math import inf
from typing import TYPE_CHECKING, Any, Final

from mx_rmq.checks import check_seconds, check_whole, given_id, is_number, refusal
from mx_rmq.errors import ConfigError, MxRmqError, ServerUnavailable
from mx_rmq.limits import BATCH, LONGEST_MEMORY
from mx_rmq.operating.dead_reading import count_matches, dead_by_shard, read_groups, read_page
from mx_rmq.operating.dlq_reader import Filter, Walk
from mx_rmq.operating.letters import DeadGroups, DeadLetter, Page, RestoreResult, letter_of, not_dead
from mx_rmq.operating.replaying import NOT_GIVEN, replay_own, replay_rounds, watch_canaries
from mx_rmq.operating.restoring import restore
from mx_rmq.operating.topics import refuse_unknown_topic
from mx_rmq.storage.queries import Queries
from mx_rmq.storage.shards import ask_all, ask_those_there, find_first

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from mx_rmq.checks import Duration
    from mx_rmq.storage.contract import DeadRow
    from mx_rmq.storage.shard import Shard
    from mx_rmq.storage.shards import Shards

_PAGE: Final = 200
"""Messages deleted per call. The server needs 20 ms to free this many bodies of a megabyte."""

Progress = Callable[[int], None]
"""Called with the number of messages done so far."""
list_of = list  # inside the class, ``list`` is a method
Matching = Callable[[DeadLetter], bool]
"""Says of a dead message whether it is meant. It is called for each that the other filters mean."""


class DeadLetters:
    """``queue.dlq``.

    Args:
        shards: of the queue.
        handled: the topics that have a handler in this process.
        fit: returns a topic's payload as its handler here accepts it, or raises ``InvalidPayload``.
    """

    def __init__(
        self, shards: Shards, handled: Collection[str] = (), fit: Callable[[str, Any], Any] | None = None
    ) -> None:
        self._shards = shards
        self._handled = handled
        self._fit = fit

    # -- reading

    async def list(
        self,
        *,
        topic: str | None = None,
        error: str | None = None,
        group: str | None = None,
        matching: Matching | None = None,
        limit: int = 50,
        after: str | None = None,
        oldest: bool = False,
        look: int | None = None,
    ) -> Page:
        """Dead messages, latest first, a page at a time; those of the shards that answer.

        Args:
            topic: only messages of this topic.
            error: only messages with this reason, error class or place, or with this text in their error.
            group: only messages of the group with this id.
            matching: only messages for which this function says yes.
            limit: the most messages on a page.
            after: the ``next`` of the page before; None for the first page.
            oldest: whether the oldest death comes first; the pages of one list have the same order.
            look: the most messages to look at, so that a rare match does not search the whole DLQ; a page
                may then have few messages or none, and still a ``next``. A group is searched from its
                first or latest death on, as the server has counted it.
        """
        check_whole("limit", limit, 1)
        check_whole("look", look, 1, none="all")
        where, shards = _meant(topic, error, group, matching), await self._shards.now()
        return await read_page(shards, where, after, limit=limit, latest=not oldest, look=look)

    async def groups(self) -> DeadGroups:
        """How many are dead of the same cause: by topic, error class (or reason), place and text.

        Errors whose texts differ only in numbers, ids, quoted texts and addresses are of one group. The
        server counts them as messages die, so the answer takes one or two round trips per shard.
        """
        groups, uncounted, missing = await read_groups(await self._shards.now())
        return DeadGroups(groups, await self._time(), uncounted=uncounted, missing=missing)

    async def _time(self) -> float:
        """The time by a server that answers."""
        times, _ = await ask_those_there(self._shards, lambda shard: Queries(shard.operating).time())
        return max(times)

    async def count(
        self, *, topic: str | None = None, error: str | None = None, group: str | None = None
    ) -> int:
        """How many dead messages match. With *error* all of them are looked at, without their bodies.

        Args:
            topic: only messages of this topic.
            error: only messages with this reason, error class or place, or with this text in their error.
            group: only messages of the group with this id.
        """
        where = _meant(topic, error, group)
        if error is None:
            groups = await self.groups()
            if groups.missing:
                raise ServerUnavailable("; ".join(groups.missing))
            if group is not None or not groups.uncounted:
                own = [one for one in groups if topic in (None, one.topic) and group in (None, one.id)]
                return sum(one.count for one in own)
        return await count_matches(await self._shards.now(), where)

    async def get(self, id_: str) -> DeadLetter:
        """One dead message.

        Raises:
            NotDead: there is none with that id.
        """
        id_ = given_id(id_)

        async def read(shard: Shard) -> DeadLetter | None:
            _, rows = await shard.operating.read_dead([id_.encode(errors="replace")])
            return letter_of(rows[0]) if rows else None

        letter = await find_first(await self._shards.now(), id_, read)
        if letter is None:
            raise not_dead(id_)
        return letter

    async def export(
        self,
        *,
        topic: str | None = None,
        error: str | None = None,
        group: str | None = None,
        matching: Matching | None = None,
    ) -> AsyncIterator[DeadLetter]:
        """All messages that match now, oldest death first; only a few are in memory at a time.

        With several shards those of one come after those of another. ``letter.as_dict()`` is what
        ``restore`` takes.
        """
        where = _meant(topic, error, group, matching)
        for shard in await self._shards.now():
            with Walk(shard.operating, where) as walk:
                while rows := await _next(shard, walk):
                    for row in rows:
                        yield letter_of(row)

    # -- replaying

    async def replay(self, *ids: str, payload: Any = NOT_GIVEN, remember: Duration | None = None) -> int:
        """Make dead messages pending again, as if new: attempts start at one, the history stays.

        Args:
            ids: the messages to replay.
            payload: a new payload; only for a single message.
            remember: seconds, up to 30 days, for which ``find`` and ``explain`` tell what became of them;
                None leaves that as it is.

        Raises:
            NotDead: a message is not dead, or there is a live one with the same id; those before it have
                been replayed.
            InvalidPayload, MessageTooLarge: the new payload cannot be stored, or a handler that is registered
                here would not accept it.
            UnreadableMessage: there is a new payload, but the rest of the message cannot be read.
        """
        if payload is not NOT_GIVEN and len(ids) != 1:
            raise ConfigError("a new payload is for one message at a time")
        memory = check_seconds("remember", remember, most=LONGEST_MEMORY, none="as it is") or 0.0
        if payload is not NOT_GIVEN and self._fit is not None:
            payload = self._fit((await self.get(ids[0])).topic, payload)
        for shard, own in (await dead_by_shard(await self._shards.now(), ids)).items():
            await replay_own(shard, own, payload, memory)
        return len(ids)

    async def replay_all(
        self,
        *,
        topic: str | None = None,
        error: str | None = None,
        group: str | None = None,
        matching: Matching | None = None,
        rate: float | None = None,
        canary: int | None = None,
        canary_timeout: Duration = 60.0,
        until: float | None = None,
        progress: Progress | None = None,
    ) -> int:
        """Replay all messages that match now, oldest death first; returns how many were replayed.

        If it is cancelled, each message is either dead or pending; call it again to go on.

        Args:
            topic: only messages of this topic.
            error: only messages with this reason, error class or place, or with this text in their error.
            group: only messages of the group with this id.
            matching: only messages for which this function says yes.
            rate: the most messages a second; None for no limit.
            canary: replay only so many first, and the rest if none of them dies again.
            canary_timeout: how long to wait for the canaries to end, retries included.
            until: only messages that died up to this instant by the server's clock, such as the ``read_at``
                of the page that a person has seen.
            progress: called with the number of messages replayed so far.

        Raises:
            UnknownTopic: there is no such topic.
            CanaryDied: a canary died again; nothing else was replayed.
            CanaryUnfinished: a canary did not end in time; nothing else was replayed.
            ServerUnavailable: names a shard that does not answer; if that is known at the beginning, nothing
                was replayed.
        """
        if rate is not None and not (is_number(rate) and 0 < rate < inf):
            raise refusal("rate", "messages a second > 0, or None for no limit", rate)
        check_whole("canary", canary, 1, BATCH, none="no canary")
        timeout = check_seconds("canary_timeout", canary_timeout)
        replayed, where = 0, _meant(topic, error, group, matching, until)
        with ExitStack() as stack:
            walks = {
                shard: stack.enter_context(Walk(shard.operating, where, "bodies"))
                for shard in await self._shards.now()
            }
            await ask_all(walks, lambda shard: walks[shard].begin())
            if canary is not None:
                tried = [id_ async for some in replay_rounds(walks, rate, canary) for id_ in some]
                replayed = len(tried)
                if progress is not None:
                    progress(replayed)
                await watch_canaries(self._shards, tried, timeout)
            async for some in replay_rounds(walks, rate):
                replayed += len(some)
                if progress is not None:
                    progress(replayed)
        if topic is not None and not replayed:
            await refuse_unknown_topic(self._shards, topic, self._handled)
        return replayed

    # -- deleting

    async def delete(self, *ids: str, died_at: Sequence[float] | None = None) -> int:
        """Delete dead messages for good; returns how many there were.

        Args:
            ids: the messages to delete.
            died_at: when each of them died; one that has died again since then stays.
        """
        if died_at is not None and len(died_at) != len(ids):
            raise ConfigError(f"died_at must have one time for each id, got {len(died_at)} for {len(ids)}")
        deaths = dict(zip(map(given_id, ids), died_at or (), strict=False))
        by_shard = await dead_by_shard(await self._shards.now(), ids)

        async def delete(shard: Shard) -> int:
            deleted, own = 0, by_shard[shard]
            for start in range(0, len(own), _PAGE):
                some = own[start : start + _PAGE]
                deleted += await shard.operating.delete_dead(some, [deaths[id_] for id_ in some if deaths])
            return deleted

        return sum(await ask_all(by_shard, delete))

    async def purge(
        self,
        *,
        topic: str | None = None,
        error: str | None = None,
        group: str | None = None,
        matching: Matching | None = None,
        until: float | None = None,
        progress: Progress | None = None,
    ) -> int:
        """Delete all dead messages that match now for good; returns how many there were.

        Args:
            topic: only messages of this topic.
            error: only messages with this reason, error class or place, or with this text in their error.
            group: only messages of the group with this id.
            matching: only messages for which this function says yes.
            until: only messages that died up to this instant by the server's clock.
            progress: called with the number of messages deleted so far.

        Raises:
            UnknownTopic: there is no such topic.
            ServerUnavailable: names a shard that does not answer; if that is known at the beginning, nothing
                was deleted.
        """
        deleted, where = 0, _meant(topic, error, group, matching, until)
        shards = await self._shards.now()

        async def purge(shard: Shard) -> None:
            nonlocal deleted
            with Walk(shard.operating, where, "ids") as walk:
                while rows := await walk.next(_PAGE):
                    ids = [row.id.decode(errors="replace") for row in rows]
                    gone = await shard.operating.delete_dead(ids, [row.died_at for row in rows])
                    deleted += gone
                    if progress is not None:
                        progress(deleted)

        await ask_all(shards, lambda shard: Queries(shard.operating).time())  # all are there, or none acts
        await ask_all(shards, purge)
        if topic is not None and not deleted:
            await refuse_unknown_topic(self._shards, topic, self._handled)
        return deleted

    async def trim(self, *, max_age: Duration | None = None, max_count: int | None = None) -> int:
        """Delete dead messages older than *max_age* seconds or beyond the latest *max_count* (per shard)."""
        seconds = check_seconds("max_age", max_age, none="no limit")
        check_whole("max_count", max_count, 0, none="no limit")

        async def trim(shard: Shard) -> int:
            deleted = 0
            while some := await shard.operating.trim_dead(max_age=seconds, max_count=max_count, limit=_PAGE):
                deleted += some
            return deleted

        return sum(await ask_all(await self._shards.now(), trim))

    # -- putting back

    async def restore(
        self,
        records: Iterable[DeadLetter | Mapping[str, Any]] | AsyncIterable[DeadLetter | Mapping[str, Any]],
        *,
        refused: Callable[[MxRmqError], None] | None = None,
        progress: Progress | None = None,
    ) -> RestoreResult:
        """Put exported messages back into the DLQ, of this queue or another one.

        An id that is live or dead is left as it is and counted.

        Args:
            records: letters, or their ``as_dict()``.
            refused: called when a record cannot be put back, with the reason and before the next record is
                taken; without it the reason is raised.
            progress: called with the number of records done so far.

        Raises:
            ConfigError, InvalidName: a record cannot be read; those before it may have been restored.
            MessageTooLarge: a message is larger than this queue allows.
        """
        return await restore(await self._shards.now(), records, refused=refused, progress=progress)


def _meant(
    topic: str | None,
    error: str | None,
    group: str | None,
    matching: Matching | None = None,
    until: float | None = None,
) -> Filter:
    """Which messages are meant; an empty text, such as of a variable that is not set, would mean all."""
    for name, text in (("topic", topic), ("error", error), ("group", group)):
        if text is not None and not (isinstance(text, str) and text):
            raise refusal(name, "a text, or None for any", text)
    check_seconds("until", until, none="whenever")
    return Filter(topic, error, group, matching, until)


async def _next(shard: Shard, walk: Walk) -> list_of[DeadRow]:
    """The next messages of a walk; an error names the shard."""
    with shard.naming():
        return await walk.next(BATCH)
