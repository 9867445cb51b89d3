"""The DLQ as an operator sees it: read, replay, delete, export and restore."""

from __future__ import annotations

import asyncio
import sys
from collections import defaultdict
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Mapping
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Final, TypeVar

from mx_rmq.checks import check_seconds, check_whole, plain, refusal
from mx_rmq.errors import ConfigError, MxRmqError, ServerUnavailable
from mx_rmq.fingerprint import decode_label
from mx_rmq.limits import BATCH, LONGEST_MEMORY, REPLY_BYTES
from mx_rmq.operating.dlq_reader import Filter, Look, Walk, search, with_bodies
from mx_rmq.operating.letters import (
    DeadGroup,
    DeadGroups,
    DeadLetter,
    NotDead,
    Page,
    RestoreResult,
    letter_of,
)
from mx_rmq.operating.messages import read_message
from mx_rmq.operating.replaying import NOT_GIVEN, WHY_NOT, replay, restore_of, watch_canaries
from mx_rmq.operating.topics import refuse_unknown_topic
from mx_rmq.storage.contract import NewMessage, Replayed, Restore, Restored
from mx_rmq.storage.dead_queries import DeadQueries, Mark, StoredGroup
from mx_rmq.storage.queries import Queries
from mx_rmq.storage.shard import shard_number
from mx_rmq.storage.shards import ask_all, ask_those_there, find_first
from mx_rmq.storage.store import Sealed, check_size

if TYPE_CHECKING:
    from collections.abc import Awaitable, Collection, Sequence

    from mx_rmq.checks import Duration
    from mx_rmq.storage.contract import DeadRow
    from mx_rmq.storage.shard import Shard
    from mx_rmq.storage.shards import Shards

_PAGE: Final = 200
"""Messages deleted per call. The server needs 20 ms to free this many bodies of a megabyte."""
_AT_ONCE: Final = 250
"""Messages replayed or restored per call, if their bodies fit into one reply. The server needs 3 ms."""

Progress = Callable[[int], None]
"""Called with the number of messages done so far."""
list_of = list  # inside the class, ``list`` is a method
Matching = Callable[[DeadLetter], bool]
"""Says of a dead message whether it is meant. It is called for each that the other filters mean."""
Ids = list[str]
Rows = list["DeadRow"]
Restores = list[Restore]
Found = list[tuple["Shard", "DeadRow"]]
R = TypeVar("R")


class DeadLetters:
    """``queue.dlq``.

    Args:
        shards: of the queue.
        handled: the topics that have a handler in this process.
    """

    def __init__(self, shards: Shards, handled: Collection[str] = ()) -> None:
        self._shards = shards
        self._handled = handled

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
        """Dead messages, latest first, a page at a time.

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
        place, where, latest = _place(after), _meant(topic, error, group, matching), not oldest
        shards = await self._shards.now()

        async def some(shard: Shard) -> tuple[Found, Mark | None]:
            """One more than the page may need, to know whether more follow; and where the search stopped."""
            begin, found = place, Found()
            if place is None and group is not None and look is not None:
                begin = await DeadQueries(shard.operating).before_group(group, latest=latest)
            far = Look() if look is None else Look(max(1, look // len(shards)))
            async for row in search(shard.operating, where, begin, limit, far, latest=latest):
                found.append((shard, row))
                if len(found) > limit:
                    return found, None
            return found, far.seen if far.left <= 0 else None

        answers = await ask_all(shards, some)
        found = [each for here, _ in answers for each in here]
        found.sort(key=lambda each: _mark(each[1]).order, reverse=latest)
        end: Mark | None = None
        if stops := [stop for _, stop in answers if stop is not None]:  # behind the first, one may be missing
            end = sorted(stops, key=lambda stop: stop.order, reverse=latest)[0]
            found = [each for each in found if not _mark(each[1]).is_behind(end, latest=latest)]
        if len(found) > limit:
            end = _mark(found[limit - 1][1])
        page = found[:limit]
        by_shard: dict[Shard, list_of[bytes]] = defaultdict(list_of)
        for shard, row in page:
            by_shard[shard].append(row.id)
        read: dict[tuple[Shard, bytes], DeadLetter] = {}

        async def read_bodies(shard: Shard) -> None:
            async for rows in with_bodies(shard.operating, by_shard[shard]):
                read.update({(shard, row.id): letter_of(row) for row in rows})

        await ask_all(by_shard, read_bodies)
        letters = [letter for shard, row in page if (letter := read.get((shard, row.id))) is not None]
        return Page(letters, None if end is None else _next(end), await self._time())

    async def groups(self) -> DeadGroups:
        """How many are dead of the same cause: by topic, error class (or reason), place and text.

        Errors whose texts differ only in numbers, ids, quoted texts and addresses are of one group. The
        server counts them as messages die, so the answer takes one or two round trips per shard.
        """
        found: dict[str, StoredGroup] = {}
        dead = 0
        looks, missing = await ask_those_there(
            await self._shards.now(), lambda shard: DeadQueries(shard.operating).groups()
        )
        for size, here in looks:
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

        async def count(shard: Shard) -> int:
            counted = 0
            with Walk(shard.operating, where, bodies=False) as walk:
                while rows := await walk.next(_AT_ONCE):
                    counted += len(rows)
            return counted

        return sum(await ask_all(await self._shards.now(), count))

    async def get(self, id_: str) -> DeadLetter:
        """One dead message.

        Raises:
            NotDead: there is none with that id.
        """
        id_ = plain(id_)

        async def read(shard: Shard) -> DeadLetter | None:
            _, rows = await shard.operating.read_dead([id_.encode(errors="replace")])
            return letter_of(rows[0]) if rows else None

        letter = await find_first(await self._shards.now(), id_, read)
        if letter is None:
            raise _not_dead(id_)
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
                while rows := await _of(shard, walk.next, _AT_ONCE):
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
            InvalidPayload, MessageTooLarge: the new payload cannot be stored.
            UnreadableMessage: there is a new payload, but the rest of the message cannot be read.
        """
        if payload is not NOT_GIVEN and len(ids) != 1:
            raise ConfigError("a new payload is for one message at a time")
        memory = check_seconds("remember", remember, most=LONGEST_MEMORY, none="as it is") or 0.0
        for shard, own in (await self._by_shard(ids)).items():
            while own:
                own = own[await _of(shard, _replay_some, shard, own[:_AT_ONCE], payload, memory) :]
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
        replayed, where = 0, _meant(topic, error, group, matching)
        with ExitStack() as stack:
            walks = {
                shard: stack.enter_context(Walk(shard.operating, where)) for shard in await self._shards.now()
            }
            await ask_all(walks, lambda shard: walks[shard].begin())
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
        self, walks: Mapping[Shard, Walk], rate: float | None, most: int | None = None
    ) -> AsyncIterator[Ids]:
        """Replay what the walks find, at most *most*; yields what lives now, a round's worth at a time.

        A round has some of each shard, replayed at once.
        """
        # A tenth of a second's worth at a time, so that there are no visible bursts.
        at_once = _AT_ONCE * len(walks) if rate is None else max(1, min(_AT_ONCE, int(rate / 10)))
        left = sys.maxsize if most is None else most
        pause = 0.0
        active = list_of(walks)

        async def replay(found: tuple[Shard, Rows]) -> Ids:
            shard, rows = found
            return await _of(shard, _replay_rows, shard, rows)

        while active and left:
            shares = _shares(active, min(at_once, left))
            # Those that get no share this time are the first in the next round.
            active = active[len(shares) :] + active[: len(shares)]
            found = []
            asked = [_of(shard, walks[shard].next, share) for shard, share in shares]
            for (shard, _), rows in zip(shares, await asyncio.gather(*asked), strict=True):
                if rows:
                    found.append((shard, rows))
                else:
                    active.remove(shard)
            if found:
                if pause:
                    await asyncio.sleep(pause)
                ids = [id_ for own in await asyncio.gather(*map(replay, found)) for id_ in own]
                left -= len(ids)
                pause = 0.0 if rate is None else len(ids) / rate
                yield ids

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
        by_shard = await self._by_shard(ids)

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
        progress: Progress | None = None,
    ) -> int:
        """Delete all dead messages that match now for good; returns how many there were.

        Args:
            topic: only messages of this topic.
            error: only messages with this reason, error class or place, or with this text in their error.
            group: only messages of the group with this id.
            matching: only messages for which this function says yes.
            progress: called with the number of messages deleted so far.

        Raises:
            UnknownTopic: there is no such topic.
        """
        deleted, where = 0, _meant(topic, error, group, matching)

        async def purge(shard: Shard) -> None:
            nonlocal deleted
            with Walk(shard.operating, where, bodies=False) as walk:
                while rows := await walk.next(_PAGE):
                    ids = [row.id.decode(errors="replace") for row in rows]
                    gone = await shard.operating.delete_dead(ids, [row.died_at for row in rows])
                    deleted += gone
                    if progress is not None:
                        progress(deleted)

        await ask_all(await self._shards.now(), purge)
        if topic is not None and not deleted:
            await refuse_unknown_topic(self._shards, topic, self._handled)
        return deleted

    async def trim(self, *, max_age: float | None = None, max_count: int | None = None) -> int:
        """Delete dead messages older than *max_age* seconds or beyond the latest *max_count* (per shard)."""
        check_seconds("max_age", max_age, none="no limit")
        check_whole("max_count", max_count, 0, none="no limit")

        async def trim(shard: Shard) -> int:
            deleted = 0
            while some := await shard.operating.trim_dead(max_age=max_age, max_count=max_count, limit=_PAGE):
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
        statuses: dict[Restored, int] = defaultdict(int)
        done = 0
        await self._shards.now()
        async for shard, rows in self._chunks(records, refused):
            for status in await self._restore(shard, rows):
                statuses[status] += 1
            done += len(rows)
            if progress is not None:
                progress(done)
        return RestoreResult(*(statuses[each] for each in (Restored.RESTORED, Restored.LIVE, Restored.DEAD)))

    async def _restore(self, shard: Shard, rows: Restores) -> list_of[Restored]:
        """Put messages back into the DLQ of a shard; if that is sealed, into those of the new layout."""
        try:
            return await _of(shard, shard.operating.restore, rows)
        except Sealed:
            if not await self._shards.look() and shard in self._shards.current:
                raise
        statuses: list_of[Restored] = []
        for row in rows:
            home = self._shards.home(_leader(row, self._shards.current))
            statuses += await self._restore(home, [row])
        return statuses

    async def _chunks(
        self, records: Iterable[Any] | AsyncIterable[Any], refused: Callable[[MxRmqError], None] | None
    ) -> AsyncIterator[tuple[Shard, Restores]]:
        """The messages of records, as many of one shard at a time as one call may carry."""
        current = self._shards.current
        chunks: dict[Shard, Restores] = {shard: [] for shard in current}
        sizes: dict[Shard, int] = dict.fromkeys(current, 0)
        number = 0
        async for record in _each(records):
            number += 1
            try:
                row = restore_of(record, number)
                shard = current[shard_number(_leader(row, current), len(current))]
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

    async def _by_shard(self, ids: Sequence[str]) -> dict[Shard, Ids]:
        """The ids grouped by the shard that has them dead; each group keeps the given order.

        An id that is dead nowhere stays with the shard to which it leads.
        """
        shards = await self._shards.now()
        by_shard: dict[Shard, Ids] = defaultdict(list_of)
        if shards.is_one:
            return {shards[0]: list_of(map(plain, ids))}
        wanted = list_of(dict.fromkeys(map(plain, ids)))

        async def dead(shard: Shard) -> list_of[bool]:
            found: list_of[bool] = []
            for start in range(0, len(wanted), BATCH):
                found += await DeadQueries(shard.operating).are_dead(wanted[start : start + BATCH])
            return found

        looks = await ask_all(shards, dead)
        where = {id_: shards.home(id_) for id_ in wanted}
        for shard, found in reversed(list_of(zip(shards, looks, strict=True))):
            where |= {id_: shard for id_, is_dead in zip(wanted, found, strict=True) if is_dead}
        for id_ in map(plain, ids):
            by_shard[where[id_]].append(id_)
        return by_shard


async def _of(shard: Shard, call: Callable[..., Awaitable[R]], *args: Any) -> R:
    """What a call to a shard returns; an error names the shard."""
    with shard.naming():
        return await call(*args)


def _leader(row: Restore, current: Sequence[Shard]) -> str:
    """What leads to the shard of a message: its key, or its id."""
    if len(current) == 1:
        return row.id
    message, _ = read_message(row.body, row.id, row.topic)
    return (message.key if message is not None else "") or row.id


def _shares(shards: Sequence[Shard], count: int) -> list_of[tuple[Shard, int]]:
    """How many messages each shard contributes to a round."""
    each, more = divmod(count, len(shards))
    shares = ((shard, each + (n < more)) for n, shard in enumerate(shards))
    return [(shard, min(share, _AT_ONCE)) for shard, share in shares if share]


def _meant(
    topic: str | None, error: str | None, group: str | None, matching: Matching | None = None
) -> Filter:
    """Which messages are meant; an empty text, such as of a variable that is not set, would mean all."""
    for name, text in (("topic", topic), ("error", error), ("group", group)):
        if text is not None and not (isinstance(text, str) and text):
            raise refusal(name, "a text, or None for any", text)
    return Filter(topic, error, group, matching)


async def _replay_some(shard: Shard, ids: Sequence[str], payload: Any, remember: float) -> int:
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
    statuses = await replay(shard.operating, dead, payload, remember)
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


def _mark(row: DeadRow) -> Mark:
    """The place of a message."""
    return Mark(row.died_ms, row.id)


def _next(mark: Mark) -> str:
    """The place behind a message, as text; it is the same on all shards, so no shard is named."""
    return f"0,{mark.died_ms.decode()},{mark.id.decode(errors='surrogateescape')}"


def _place(after: str | None) -> Mark | None:
    """The last message before a page."""
    if after is None:
        return None
    try:
        of_all, died_ms, id_ = after.split(",", 2)
        if not float(died_ms) >= 0 or int(of_all):
            raise ValueError
        return Mark(died_ms.encode(), id_.encode(errors="surrogateescape"))
    except (AttributeError, ValueError):
        raise refusal("after", "the next of an earlier page", after) from None


def _not_dead(id_: str) -> NotDead:
    return NotDead(f"message {id_!r} is not in the DLQ; queue.find() says where it is")
