"""The DLQ as an operator sees it: read, replay, edit, delete."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from mx_rmq.checks import check_seconds, check_whole, plain, refusal
from mx_rmq.errors import ConfigError, MxRmqError, UnreadableMessage
from mx_rmq.message import Death, Message, Reason, decode_death, decode_message, encode_message
from mx_rmq.operating.messages import MessageFacts, message_fields, paged, read_message
from mx_rmq.operating.topics import refuse_unknown_topic
from mx_rmq.payloads import encode_payload, plain_payload
from mx_rmq.storage.contract import NewMessage, Replay, Replayed
from mx_rmq.storage.queries import Queries
from mx_rmq.storage.shard import shard_number
from mx_rmq.storage.store import check_size
from mx_rmq.tables import ago, iso, plain_fields

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Collection, Iterable, Sequence

    from mx_rmq.storage.shard import Shard

_PAGE: Final = 200
"""Messages per call. The server needs 20 ms to free this many bodies of a megabyte."""
_NOT_GIVEN: Final = object()


class NotDead(MxRmqError, LookupError):
    """There is no such message in the DLQ, or it could not be replayed."""


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A message in the DLQ."""

    id: str
    topic: str
    died_at: float
    reason: Reason
    error: str
    kind: str
    """The class of the error, by which dead messages are grouped."""
    body: bytes
    """The stored bytes as they are; empty if they are missing."""
    place: str = ""
    """The last frame of the user's code, if the error came from there."""

    @property
    def message(self) -> Message | None:
        """The message with its history; None if the stored bytes cannot be read."""
        try:
            return decode_message(self.body)
        except UnreadableMessage:
            return None

    @property
    def payload(self) -> Any:
        """The payload as plain values; None if it cannot be read."""
        return plain_payload(self.message)

    @property
    def facts(self) -> MessageFacts:
        """The same in the form of ``find`` and ``list``."""
        message, unreadable = read_message(self.body)
        return MessageFacts(
            self.id,
            "dead",
            self.topic,
            message,
            died_at=self.died_at,
            reason=self.reason,
            error=self.error,
            unreadable=unreadable,
            body=self.body if unreadable else b"",
        )

    def as_dict(self) -> dict[str, Any]:
        """As JSON has it: the payload decoded, instants as ISO texts in UTC."""
        own = plain_fields(self)
        del own["body"]
        message = self.message
        if message is None:
            own["body"] = self.body.decode(errors="backslashreplace")
        return own | message_fields(message)

    def __str__(self) -> str:
        return str(self.facts)


@dataclass(frozen=True, slots=True)
class Page:
    """Some dead messages, and where the next page begins."""

    letters: list[DeadLetter]
    next: str | None
    """What to pass as *after* for the next page; None after the last."""
    read_at: float = 0.0
    """When it was read, by the server's clock; ages are counted from then."""

    def as_dict(self) -> dict[str, Any]:
        """As JSON has it."""
        return plain_fields(self)

    def __str__(self) -> str:
        columns: dict[str, Sequence[str]] = {
            "message": [letter.id for letter in self.letters],
            "topic": [letter.topic for letter in self.letters],
            "died": [ago(letter.died_at, self.read_at) for letter in self.letters],
            "reason": [letter.reason for letter in self.letters],
            "place": [letter.place for letter in self.letters],
            "error": [letter.error for letter in self.letters],
        }
        return paged(columns, self.next, "no dead message")


@dataclass(frozen=True, slots=True)
class DeadGroup:
    """Dead messages of the same cause."""

    topic: str
    error: str
    """The class of the error, or the reason if there was none."""
    place: str
    """The last frame of the user's code, as ``file:line in function``; empty if there is none."""
    count: int
    first_at: float
    """When the first of them died."""
    last_at: float

    def as_dict(self) -> dict[str, Any]:
        """As JSON has it; instants as ISO texts in UTC."""
        return plain_fields(self)

    def __str__(self) -> str:
        return str(DeadGroups([self]))


class DeadGroups(list[DeadGroup]):
    """Groups of dead messages, the largest first; prints as a table.

    Args:
        groups: in this order.
        read_at: when they were counted, by the server's clock; ages are counted from then.
    """

    def __init__(self, groups: Iterable[DeadGroup] = (), read_at: float = 0.0) -> None:
        super().__init__(groups)
        self.read_at = read_at

    def as_dict(self) -> dict[str, Any]:
        """As JSON has it; instants as ISO texts in UTC."""
        return {"groups": [group.as_dict() for group in self], "read_at": iso(self.read_at)}

    def __str__(self) -> str:
        columns: dict[str, Sequence[str | int]] = {
            "dead": [group.count for group in self],
            "topic": [group.topic for group in self],
            "error": [group.error for group in self],
            "first": [ago(group.first_at, self.read_at) for group in self],
            "last": [ago(group.last_at, self.read_at) for group in self],
            "place": [group.place for group in self],
        }
        return paged(columns, None, "no dead message")


Letters = list[DeadLetter]  # inside the class, ``list`` is a method
Ids = list[str]
Mark = tuple[str, float]
"""A dead message's id and when it died."""


class _Found(NamedTuple):
    """A dead message without its body."""

    id: str
    died_at: float
    rank: int
    topic: str
    death: Death


Finds = list[_Found]


class DeadLetters:
    """``queue.dlq``.

    Args:
        shards: of the queue.
        handled: the topics that have a handler in this process.
    """

    def __init__(self, shards: list[Shard], handled: Collection[str] = ()) -> None:
        self._shards = shards
        self._handled = handled

    async def list(
        self, *, topic: str | None = None, error: str | None = None, limit: int = 50, after: str | None = None
    ) -> Page:
        """Dead messages, latest first, a page at a time.

        Args:
            topic: only messages of this topic.
            error: only messages with this reason, error class or place, or with this text in their error.
            limit: the most messages on a page.
            after: the ``next`` of the page before; None for the first page.
        """
        check_whole("limit", limit, 1)
        number, rank = _place(after)
        letters: Letters = []
        for at in range(number, len(self._shards)):
            queries = Queries(self._shards[at].operating)
            found: Finds = []
            async for one in _scan(queries, rank, topic, error):
                if len(letters) + len(found) == limit:
                    letters += await _letters(queries, found)
                    return Page(letters, f"{at}.{one.rank}", await queries.time())
                found.append(one)
            letters += await _letters(queries, found)
            rank = 0
        return Page(letters, None, await Queries(self._shards[0].operating).time())

    async def groups(self) -> DeadGroups:
        """How many are dead of the same cause: by topic, error class (or reason) and place in the code."""
        deaths: dict[tuple[str, str, str], tuple[int, float, float]] = {}
        for shard in self._shards:
            async for one in _scan(Queries(shard.operating)):
                key = one.topic, one.death.kind or one.death.reason, one.death.place
                count, first_at, last_at = deaths.get(key, (0, one.died_at, one.died_at))
                deaths[key] = count + 1, min(first_at, one.died_at), max(last_at, one.died_at)
        groups = [DeadGroup(*key, *found) for key, found in deaths.items()]
        groups.sort(key=lambda group: (-group.count, group.topic, group.error))
        return DeadGroups(groups, await Queries(self._shards[0].operating).time())

    async def get(self, id_: str) -> DeadLetter:
        """One dead message.

        Raises:
            NotDead: there is none with that id.
        """
        id_ = plain(id_)
        queries = Queries(self._shard_of(id_).operating)
        (died_at,) = await queries.died_at([id_])
        if died_at is not None:
            for letter in await _letters(queries, await _labelled(queries, [(id_, died_at)])):
                return letter
        raise _not_dead(id_)

    async def replay(self, *ids: str, payload: Any = _NOT_GIVEN) -> int:
        """Make dead messages pending again, as if new: attempts start at one, the history stays.

        Args:
            ids: the messages to replay.
            payload: a new payload; only for a single message.

        Raises:
            NotDead: a message is not dead, or there is a live one with the same id; others may have been
                replayed.
            InvalidPayload, MessageTooLarge: the new payload cannot be stored.
            UnreadableMessage: there is a new payload, but the rest of the message cannot be read.
        """
        if payload is not _NOT_GIVEN and len(ids) != 1:
            raise ConfigError("a new payload is for one message at a time")
        for shard, own in self._by_shard(ids):
            for start in range(0, len(own), _PAGE):
                await _replay_page(shard, own[start : start + _PAGE], payload)
        return len(ids)

    async def replay_all(
        self, *, topic: str | None = None, error: str | None = None, rate: float | None = None
    ) -> int:
        """Replay all messages that match now, oldest death first, at most *rate* a second.

        Returns how many were replayed.

        Raises:
            UnknownTopic: there is no such topic.
        """
        if rate is not None and not rate > 0:
            raise refusal("rate", "messages a second > 0, or None for no limit", rate)
        # A tenth of a second's worth at a time, so that there are no visible bursts.
        at_once = _PAGE if rate is None else max(1, min(_PAGE, int(rate / 10)))
        replayed = 0
        for shard in self._shards:
            async for found in _pages(shard, topic, error, at_once):
                async for some in _bodies(Queries(shard.operating), found):
                    replayed += (await _replay(shard, some)).count(Replayed.REPLAYED)
                    if rate is not None:
                        await asyncio.sleep(len(some) / rate)
        if topic is not None and not replayed:
            await refuse_unknown_topic(self._shards, topic, self._handled)
        return replayed

    async def delete(self, *ids: str) -> int:
        """Delete dead messages for good; returns how many there were."""
        deleted = 0
        for shard, own in self._by_shard(ids):
            for start in range(0, len(own), _PAGE):
                deleted += await shard.operating.delete_dead(own[start : start + _PAGE])
        return deleted

    async def purge(self, *, topic: str | None = None, error: str | None = None) -> int:
        """Delete all dead messages that match for good; returns how many there were.

        Raises:
            UnknownTopic: there is no such topic.
        """
        deleted = 0
        for shard in self._shards:
            async for found in _pages(shard, topic, error, _PAGE):
                ids, deaths = zip(*found, strict=True)
                deleted += await shard.operating.delete_dead(ids, deaths)
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

    def _shard_of(self, id_: str) -> Shard:
        return self._shards[shard_number(id_, len(self._shards))]

    def _by_shard(self, ids: Sequence[str]) -> Iterable[tuple[Shard, Ids]]:
        """The ids grouped by shard; each group keeps the given order."""
        by_shard: dict[Shard, Ids] = defaultdict(list)
        for id_ in map(plain, ids):
            by_shard[self._shard_of(id_)].append(id_)
        return by_shard.items()


async def _replay_page(shard: Shard, ids: Sequence[str], payload: Any) -> None:
    """Replay some of one shard's dead messages; raise at the first that cannot be replayed."""
    queries = Queries(shard.operating)
    died_at = await queries.died_at(ids)
    found = [(id_, at) for id_, at in zip(ids, died_at, strict=True) if at is not None]
    missing = next((id_ for id_, at in zip(ids, died_at, strict=True) if at is None), None)
    if missing is not None:
        found = found[: ids.index(missing)]  # those before it are replayed
    async for some in _bodies(queries, found):
        statuses = await _replay(shard, some, payload)
        for (id_, _, _), status in zip(some, statuses, strict=True):
            if status is not Replayed.REPLAYED:
                raise NotDead(f"message {id_!r} cannot be replayed: {_WHY_NOT[status]}")
    if missing is not None:
        raise _not_dead(missing)


async def _pages(shard: Shard, topic: str | None, error: str | None, size: int) -> AsyncIterator[list[Mark]]:
    """All matches, oldest death first; collected before anything changes, so that ranks stay valid."""
    found = [(one.id, one.died_at) async for one in _scan(Queries(shard.operating), 0, topic, error)]
    found.reverse()
    for start in range(0, len(found), size):
        yield found[start : start + size]


async def _scan(
    queries: Queries, rank: int = 0, topic: str | None = None, error: str | None = None
) -> AsyncIterator[_Found]:
    """The matches from a rank on, without reading bodies."""
    while page := await queries.dead_ids(rank, _PAGE):
        for one in await _labelled(queries, page, rank):
            if topic in (None, one.topic) and _matches(one.death, error):
                yield one
        rank += _PAGE


async def _labelled(queries: Queries, page: Sequence[Mark], rank: int = 0) -> list[_Found]:
    """Dead messages without their bodies; one of which nothing is left is skipped."""
    labels = await queries.dead_labels([id_ for id_, _ in page])
    return [
        _Found(id_, died_at, rank + place, _name(topic), decode_death(error))
        for place, ((id_, died_at), (topic, error)) in enumerate(zip(page, labels, strict=True))
        if topic is not None or error is not None
    ]


async def _bodies(
    queries: Queries, found: Sequence[Mark]
) -> AsyncIterator[list[tuple[str, float, bytes | None]]]:
    """Dead messages with their bodies, as many at a time as fit into a reply."""
    rest = iter(found)
    async for bodies in queries.values("dlq_payload", [id_ for id_, _ in found]):
        yield [(id_, died_at, body) for body, (id_, died_at) in zip(bodies, rest, strict=False)]


async def _letters(queries: Queries, found: Sequence[_Found]) -> Letters:
    """Letters with their bodies; one that is gone by now is skipped."""
    pairs = [(one.id, one.died_at) for one in found]
    bodies = [body async for some in _bodies(queries, pairs) for _, _, body in some]
    bare = [one.id for one, body in zip(found, bodies, strict=True) if body is None]
    gone = {
        id_ for id_, label in zip(bare, await queries.dead_labels(bare), strict=True) if label == (None, None)
    }
    return [
        DeadLetter(
            one.id,
            one.topic,
            one.died_at,
            one.death.reason,
            one.death.error,
            one.death.kind,
            body or b"",
            one.death.place,
        )
        for one, body in zip(found, bodies, strict=True)
        if one.id not in gone
    ]


async def _replay(
    shard: Shard, dead: Sequence[tuple[str, float, bytes | None]], payload: Any = _NOT_GIVEN
) -> Sequence[Replayed]:
    """Replay dead messages in one call."""
    replays = []
    for id_, died_at, body in dead:
        try:
            message = decode_message(body or b"")
        except UnreadableMessage:
            if payload is not _NOT_GIVEN:
                raise UnreadableMessage(
                    f"message {id_!r} cannot be edited: its bytes cannot be read"
                ) from None
            replays.append(Replay(id_, died_at=died_at))
            continue
        if payload is not _NOT_GIVEN:
            message.payload = encode_payload(payload)
        message.attempts = message.crashes = message.unbegun = message.put_off = 0
        message.replays += 1
        new = NewMessage(id_, encode_message(message))
        if payload is not _NOT_GIVEN:
            check_size(message.topic, new, shard.operating.max_bytes)
        replays.append(Replay(id_, new.body, message.priority, message.ttl, died_at))
    return await shard.operating.replay(replays)


_WHY_NOT: Final = {
    Replayed.CHANGED: "it has died again since it was read",
    Replayed.GONE: "it is not in the DLQ any more",
    Replayed.LIVE: "a message with the same id is alive",
    Replayed.POISONED: "its topic is missing or a key of it has the wrong type; run the audit",
}


def _place(after: str | None) -> tuple[int, int]:
    """The shard and the rank at which a page begins."""
    try:
        shard, rank = (after or "0.0").split(".")
        return int(shard), int(rank)
    except (AttributeError, ValueError):
        raise refusal("after", "the next of an earlier page", after) from None


def _name(topic: bytes | None) -> str:
    return (topic or b"").decode(errors="replace")


def _matches(death: Death, error: str | None) -> bool:
    return error is None or error in (death.reason, death.kind, death.place) or error in death.error


def _not_dead(id_: str) -> NotDead:
    return NotDead(f"message {id_!r} is not in the DLQ; queue.find() says where it is")
