"""The DLQ as an operator sees it: read, replay, delete, export and restore."""

from __future__ import annotations

import asyncio
import sys
from collections import defaultdict
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Mapping
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Final

from mx_rmq.checks import check_seconds, check_whole, plain, refusal
from mx_rmq.errors import ConfigError, MxRmqError
from mx_rmq.fingerprint import decode_label
from mx_rmq.limits import BATCH, REPLY_BYTES
from mx_rmq.operating.dlq_reader import Filter, Walk, latest, with_bodies
from mx_rmq.operating.letters import (
    DeadGroup,
    DeadGroups,
    DeadLetter,
    NotDead,
    Page,
    RestoreResult,
    letter_of,
)
from mx_rmq.operating.replaying import NOT_GIVEN, WHY_NOT, replay, restore_of, watch_canaries
from mx_rmq.operating.topics import refuse_unknown_topic
from mx_rmq.storage.contract import NewMessage, Replayed, Restore, Restored
from mx_rmq.storage.dead_queries import DeadQueries, Mark, StoredGroup
from mx_rmq.storage.queries import Queries
from mx_rmq.storage.shard import shard_number
from mx_rmq.storage.store import check_size

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from mx_rmq.checks import Duration
    from mx_rmq.storage.contract import DeadRow
    from mx_rmq.storage.shard import Shard

_PAGE: Final = 200
"""Messages deleted per call. The server needs 20 ms to free this many bodies of a megabyte."""
_AT_ONCE: Final = 250
"""Messages replayed or restored per call, if their bodies fit into one reply. The server needs 3 ms."""

Progress = Callable[[int], None]
"""Called with the number of messages done so far."""
Letters = list[DeadLetter]  # inside the class, ``list`` is a method
Ids = list[str]
Rows = list["DeadRow"]
Restores = list[Restore]


class DeadLetters:
    """``queue.dlq``.

    Args:
        shards: of the queue.
        handled: the topics that have a handler in this process.
    """

    def __init__(self, shards: list[Shard], handled: Collection[str] = ()) -> None:
        self._shards = shards
        self._handled = handled

    # -- reading

    async def list(
        self,
        *,
        topic: str | None = None,
        error: str | None = None,
        group: str | None = None,
        limit: int = 50,
        after: str | None = None,
    ) -> Page:
        """Dead messages, latest first, a page at a time.

        Args:
            topic: only messages of this topic.
            error: only messages with this reason, error class or place, or with this text in their error.
            group: only messages of the group with this id.
            limit: the most messages on a page.
            after: the ``next`` of the page before; None for the first page.
        """
        check_whole("limit", limit, 1)
        number, mark = _place(after)
        letters: Letters = []
        left, end = limit, ""
        for at in range(number, len(self._shards)):
            store = self._shards[at].operating
            found: Rows = []
            more = False
            async for row in latest(store, _meant(topic, error, group), mark, left):
                if more := len(found) == left:
                    break
                found.append(row)
            async for rows in with_bodies(store, [row.id for row in found]):
                letters += map(letter_of, rows)
            end, left, mark = _next(at, found[-1]) if found else end, left - len(found), None
            if more:
                return Page(letters, end, await Queries(store).time())
        return Page(letters, None, await Queries(self._shards[0].operating).time())

    async def groups(self) -> DeadGroups:
        """How many are dead of the same cause: by topic, error class (or reason), place and text.

        Errors whose texts differ only in numbers, ids, quoted texts and addresses are of one group. The
        server counts them as messages die, so the answer takes one or two round trips per shard.
        """
        found: dict[str, StoredGroup] = {}
        dead = 0
        for shard in self._shards:
            size, here = await DeadQueries(shard.operating).groups()
            dead += size
            for id_, group in here.items():
                found[id_] = _joined(found[id_], group) if id_ in found else group
        groups = []
        for id_, group in found.items():
            label = decode_label(group.label)
            times = group.dead, group.first_at, group.last_at
            groups.append(DeadGroup(label.topic, label.error, label.place, *times, id_, label.text))
        groups.sort(key=lambda group: (-group.count, group.topic, group.error, group.id))
        uncounted = max(0, dead - sum(group.count for group in groups))
        read_at = await Queries(self._shards[0].operating).time()
        return DeadGroups(groups, read_at, uncounted=uncounted)

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
            if group is not None or not groups.uncounted:
                own = [one for one in groups if topic in (None, one.topic) and group in (None, one.id)]
                return sum(one.count for one in own)
        counted = 0
        for shard in self._shards:
            with Walk(shard.operating, where, bodies=False) as walk:
                while rows := await walk.next(_AT_ONCE):
                    counted += len(rows)
        return counted

    async def get(self, id_: str) -> DeadLetter:
        """One dead message.

        Raises:
            NotDead: there is none with that id.
        """
        id_ = plain(id_)
        _, rows = await self._shard_of(id_).operating.read_dead([id_.encode(errors="replace")])
        for row in rows:
            return letter_of(row)
        raise _not_dead(id_)

    async def export(
        self, *, topic: str | None = None, error: str | None = None, group: str | None = None
    ) -> AsyncIterator[DeadLetter]:
        """All messages that match now, oldest death first; only a few are in memory at a time.

        ``letter.as_dict()`` is what ``restore`` takes.
        """
        for shard in self._shards:
            with Walk(shard.operating, _meant(topic, error, group)) as walk:
                while rows := await walk.next(_AT_ONCE):
                    for row in rows:
                        yield letter_of(row)

    # -- replaying

    async def replay(self, *ids: str, payload: Any = NOT_GIVEN) -> int:
        """Make dead messages pending again, as if new: attempts start at one, the history stays.

        Args:
            ids: the messages to replay.
            payload: a new payload; only for a single message.

        Raises:
            NotDead: a message is not dead, or there is a live one with the same id; those before it have
                been replayed.
            InvalidPayload, MessageTooLarge: the new payload cannot be stored.
            UnreadableMessage: there is a new payload, but the rest of the message cannot be read.
        """
        if payload is not NOT_GIVEN and len(ids) != 1:
            raise ConfigError("a new payload is for one message at a time")
        for shard, own in self._by_shard(ids):
            while own:
                own = own[await _replay_some(shard, own[:_AT_ONCE], payload) :]
        return len(ids)

    async def replay_all(
        self,
        *,
        topic: str | None = None,
        error: str | None = None,
        group: str | None = None,
        rate: float | None = None,
        canary: int | None = None,
        canary_timeout: Duration = 60.0,
        progress: Progress | None = None,
    ) -> int:
        """Replay all messages that match now, oldest death first; returns how many were replayed.

        If it is cancelled, each message is either dead or pending; call it again to go on.

        Args:
            topic: only messages of this topic.
            error: only messages with this reason, error class or place, or with this text in their error.
            group: only messages of the group with this id.
            rate: the most messages a second; None for no limit.
            canary: replay only so many first, and the rest if none of them dies again.
            canary_timeout: how long to wait for the canaries to end, retries included.
            progress: called with the number of messages replayed so far.

        Raises:
            UnknownTopic: there is no such topic.
            CanaryDied: a canary died again; nothing else was replayed.
            CanaryUnfinished: a canary did not end in time; nothing else was replayed.
        """
        if rate is not None and not rate > 0:
            raise refusal("rate", "messages a second > 0, or None for no limit", rate)
        check_whole("canary", canary, 1, BATCH, none="no canary")
        timeout = check_seconds("canary_timeout", canary_timeout)
        replayed, where = 0, _meant(topic, error, group)
        with ExitStack() as stack:
            walks = [stack.enter_context(Walk(shard.operating, where)) for shard in self._shards]
            for walk in walks:
                await walk.begin()
            if canary is not None:
                tried = [id_ async for some in self._replay(walks, rate, canary) for id_ in some]
                replayed = len(tried)
                if progress is not None:
                    progress(replayed)
                await watch_canaries(self._shards, tried, timeout)
            async for some in self._replay(walks, rate):
                replayed += len(some)
                if progress is not None:
                    progress(replayed)
        if topic is not None and not replayed:
            await refuse_unknown_topic(self._shards, topic, self._handled)
        return replayed

    async def _replay(
        self, walks: Sequence[Walk], rate: float | None, most: int | None = None
    ) -> AsyncIterator[Ids]:
        """Replay what the walks find, at most *most*; yields what lives now, a call's worth at a time."""
        # A tenth of a second's worth at a time, so that there are no visible bursts.
        at_once = _AT_ONCE if rate is None else max(1, min(_AT_ONCE, int(rate / 10)))
        left = sys.maxsize if most is None else most
        pause = 0.0
        for shard, walk in zip(self._shards, walks, strict=True):
            while left and (rows := await walk.next(min(at_once, left))):
                if pause:
                    await asyncio.sleep(pause)
                some = await _replay_rows(shard, rows)
                left -= len(some)
                pause = 0.0 if rate is None else len(some) / rate
                yield some

    # -- deleting

    async def delete(self, *ids: str, died_at: Sequence[float] | None = None) -> int:
        """Delete dead messages for good; returns how many there were.

        Args:
            ids: the messages to delete.
            died_at: when each of them died; one that has died again since then stays.
        """
        if died_at is not None and len(died_at) != len(ids):
            raise ConfigError(f"died_at must have one time for each id, got {len(died_at)} for {len(ids)}")
        deaths = dict(zip(map(plain, ids), died_at or (), strict=False))
        deleted = 0
        for shard, own in self._by_shard(ids):
            for start in range(0, len(own), _PAGE):
                some = own[start : start + _PAGE]
                deleted += await shard.operating.delete_dead(some, [deaths[id_] for id_ in some if deaths])
        return deleted

    async def purge(
        self,
        *,
        topic: str | None = None,
        error: str | None = None,
        group: str | None = None,
        progress: Progress | None = None,
    ) -> int:
        """Delete all dead messages that match now for good; returns how many there were.

        Args:
            topic: only messages of this topic.
            error: only messages with this reason, error class or place, or with this text in their error.
            group: only messages of the group with this id.
            progress: called with the number of messages deleted so far.

        Raises:
            UnknownTopic: there is no such topic.
        """
        deleted = 0
        for shard in self._shards:
            with Walk(shard.operating, _meant(topic, error, group), bodies=False) as walk:
                while rows := await walk.next(_PAGE):
                    ids = [row.id.decode(errors="replace") for row in rows]
                    deleted += await shard.operating.delete_dead(ids, [row.died_at for row in rows])
                    if progress is not None:
                        progress(deleted)
        if topic is not None and not deleted:
            await refuse_unknown_topic(self._shards, topic, self._handled)
        return deleted

    async def trim(self, *, max_age: float | None = None, max_count: int | None = None) -> int:
        """Delete dead messages older than *max_age* seconds or beyond the latest *max_count* (per shard)."""
        check_seconds("max_age", max_age, none="no limit")
        check_whole("max_count", max_count, 0, none="no limit")
        deleted = 0
        for shard in self._shards:
            while some := await shard.operating.trim_dead(max_age=max_age, max_count=max_count, limit=_PAGE):
                deleted += some
        return deleted

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
        statuses: dict[Restored, int] = defaultdict(int)
        done = 0
        async for shard, rows in self._chunks(records, refused):
            for status in await shard.operating.restore(rows):
                statuses[status] += 1
            done += len(rows)
            if progress is not None:
                progress(done)
        return RestoreResult(*(statuses[each] for each in (Restored.RESTORED, Restored.LIVE, Restored.DEAD)))

    async def _chunks(
        self, records: Iterable[Any] | AsyncIterable[Any], refused: Callable[[MxRmqError], None] | None
    ) -> AsyncIterator[tuple[Shard, Restores]]:
        """The messages of records, as many of one shard at a time as one call may carry."""
        chunks: dict[Shard, Restores] = {shard: [] for shard in self._shards}
        sizes: dict[Shard, int] = dict.fromkeys(self._shards, 0)
        number = 0
        async for record in _each(records):
            number += 1
            try:
                row = restore_of(record, number)
                shard = self._shard_of(row.id)
                check_size(row.topic, NewMessage(row.id, row.body), shard.operating.max_bytes)
            except MxRmqError as error:
                if refused is None:
                    raise
                refused(error)
                continue
            sizes[shard] += len(row.body)
            if chunks[shard] and (len(chunks[shard]) == _AT_ONCE or sizes[shard] > REPLY_BYTES):
                yield shard, chunks[shard]
                chunks[shard], sizes[shard] = [], len(row.body)
            chunks[shard].append(row)
        for shard, rows in chunks.items():
            if rows:
                yield shard, rows

    # -- shards

    def _shard_of(self, id_: str) -> Shard:
        return self._shards[shard_number(id_, len(self._shards))]

    def _by_shard(self, ids: Sequence[str]) -> Iterable[tuple[Shard, Ids]]:
        """The ids grouped by shard; each group keeps the given order."""
        by_shard: dict[Shard, Ids] = defaultdict(list)
        for id_ in map(plain, ids):
            by_shard[self._shard_of(id_)].append(id_)
        return by_shard.items()


def _meant(topic: str | None, error: str | None, group: str | None) -> Filter:
    """Which messages are meant; an empty text, such as of a variable that is not set, would mean all."""
    for name, text in (("topic", topic), ("error", error), ("group", group)):
        if text is not None and not (isinstance(text, str) and text):
            raise refusal(name, "a text, or None for any", text)
    return Filter(topic, error, group)


async def _replay_some(shard: Shard, ids: Sequence[str], payload: Any) -> int:
    """Replay some of one shard's dead messages, as many as fit into a reply; returns how many.

    Raises:
        NotDead: one cannot be replayed; those before it have been.
    """
    looked, rows = await shard.operating.read_dead([id_.encode(errors="replace") for id_ in ids])
    found = {row.id.decode(): row for row in rows}
    dead = []
    for id_ in ids[:looked]:
        if id_ not in found:
            break
        dead.append(found[id_])
    statuses = await replay(shard.operating, dead, payload)
    for id_, status in zip(ids, statuses, strict=False):
        if status is not Replayed.REPLAYED:
            raise NotDead(f"message {id_!r} cannot be replayed: {WHY_NOT[status]}")
    if len(dead) < looked:
        raise _not_dead(ids[len(dead)])
    return looked


async def _replay_rows(shard: Shard, rows: Rows) -> Ids:
    """Replay dead messages; returns those that live now."""
    ends = zip(rows, await replay(shard.operating, rows), strict=True)
    return [row.id.decode(errors="replace") for row, end in ends if end is Replayed.REPLAYED]


async def _each(records: Iterable[Any] | AsyncIterable[Any]) -> AsyncIterator[Any]:
    if isinstance(records, AsyncIterable):
        async for record in records:
            yield record
    else:
        for record in records:
            yield record


def _joined(one: StoredGroup, other: StoredGroup) -> StoredGroup:
    """A group that is on two shards."""
    times = min(one.first_at, other.first_at), max(one.last_at, other.last_at)
    return StoredGroup(one.dead + other.dead, one.label or other.label, *times)


def _next(shard: int, row: DeadRow) -> str:
    """The place behind a message, as text."""
    return ",".join((str(shard), row.died_ms.decode(), row.id.decode(errors="surrogateescape")))


def _place(after: str | None) -> tuple[int, Mark | None]:
    """The shard at which a page begins, and the last message before it."""
    if after is None:
        return 0, None
    try:
        shard, died_ms, id_ = after.split(",", 2)
        if not float(died_ms) >= 0 or int(shard) < 0:
            raise ValueError
        return int(shard), Mark(died_ms.encode(), id_.encode(errors="surrogateescape"))
    except (AttributeError, ValueError):
        raise refusal("after", "the next of an earlier page", after) from None


def _not_dead(id_: str) -> NotDead:
    return NotDead(f"message {id_!r} is not in the DLQ; queue.find() says where it is")
