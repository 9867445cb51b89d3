"""The DLQ as an operator sees it: read, replay, edit, delete."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import msgspec

from mx_rmq.errors import ConfigError, MxRmqError, UnreadableMessage
from mx_rmq.message import Message, decode_death, decode_message, encode_message, encode_payload
from mx_rmq.reader import Reader
from mx_rmq.records import NewMessage, Replay, Replayed
from mx_rmq.store import check_size

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from mx_rmq.shard import Shard

_PAGE: Final = 200
_NOT_GIVEN: Final = object()


class NotDead(MxRmqError, LookupError):
    """There is no such message in the DLQ, or it could not be replayed."""


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A message in the DLQ."""

    id: str
    topic: str
    died_at: float
    reason: str
    """failed | crashed | expired | rejected | unparsable | invalid"""
    error: str
    kind: str
    """The class of the error, by which dead messages are grouped."""
    body: bytes
    """The stored bytes as they are; empty if they are missing."""

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
        message = self.message
        try:
            return None if message is None else msgspec.json.decode(message.payload)
        except msgspec.MsgspecError:
            return None


@dataclass(frozen=True, slots=True)
class Page:
    """Some dead messages, and where to go on."""

    letters: list[DeadLetter]
    next: str | None
    """What to pass as *after* for the next page; None after the last."""


Letters = list[DeadLetter]  # inside the class, ``list`` is a method


class DeadLetters:
    """``queue.dlq``."""

    def __init__(self, shards: list[Shard]) -> None:
        self._shards = shards

    async def list(
        self, *, topic: str | None = None, error: str | None = None, limit: int = 50, after: str | None = None
    ) -> Page:
        """Dead messages, latest first, a page at a time.

        Args:
            topic: only those of a topic.
            error: only those with an error: its reason, its class or a part of its text.
            limit: how many at most.
            after: where the page before this one said to go on.
        """
        if limit < 1:
            raise ConfigError(f"limit is {limit!r}, but wants at least 1")
        number, rank = _place(after)
        letters: Letters = []
        for at in range(number, len(self._shards)):
            async for place, letter in self._scan(self._shards[at], rank, topic, error):
                if len(letters) == limit:
                    return Page(letters, f"{at}.{place}")
                letters.append(letter)
            rank = 0
        return Page(letters, None)

    async def groups(self) -> Counter[tuple[str, str]]:
        """How many are dead, by topic and class of error (or reason, where there was no error)."""
        groups: Counter[tuple[str, str]] = Counter()
        for shard in self._shards:
            reader, rank = Reader(shard.store), 0
            while page := await reader.dead_ids(rank, _PAGE):
                ids = [id_ for id_, _ in page]
                topics = await reader.dead_fields(ids, ":queue")
                errors = await reader.dead_fields(ids, ":error")
                for topic, error in zip(topics, errors, strict=True):
                    death = decode_death(error)
                    groups[_name(topic), death.kind or death.reason] += 1
                rank += _PAGE
        return groups

    async def get(self, id_: str) -> DeadLetter:
        """One dead message.

        Raises:
            NotDead: there is none with that id.
        """
        for shard in self._shards:
            died_at = await Reader(shard.store).died_at(id_)
            if died_at is not None:
                async for _, letter in self._read(shard, [(id_, died_at)]):
                    return letter
        raise NotDead(f"message {id_!r} is not in the DLQ; queue.get() says where it is")

    async def replay(self, *ids: str, payload: Any = _NOT_GIVEN) -> int:
        """Give dead messages another life, as if new: attempts start at one, the history stays.

        Args:
            ids: which.
            payload: for a single message, what to run it with instead.

        Raises:
            NotDead: one of them is not dead, or is alive again under the same id; those before it in
                the list have been replayed.
            InvalidPayload, MessageTooLarge: the new payload cannot be stored.
            UnreadableMessage: there is a new payload, but the rest of the message cannot be read.
        """
        if payload is not _NOT_GIVEN and len(ids) != 1:
            raise ConfigError("a new payload is for one message at a time")
        for id_ in ids:
            letter = await self.get(id_)
            status = await self._replay(letter, payload)
            if status is not Replayed.REPLAYED:
                raise NotDead(f"message {id_!r} cannot be replayed: {_WHY_NOT[status]}")
        return len(ids)

    async def replay_all(
        self, *, topic: str | None = None, error: str | None = None, rate: float | None = None
    ) -> int:
        """Replay everything that matches now, the first to die first, at most *rate* a second.

        Returns how many were.
        """
        if rate is not None and not rate > 0:
            raise ConfigError(f"rate is {rate!r}, but wants messages a second, more than 0")
        replayed = 0
        for shard in self._shards:
            async for letters in self._pages(shard, topic, error):
                for letter in letters:
                    replayed += await self._replay(letter) is Replayed.REPLAYED
                    if rate is not None:
                        await asyncio.sleep(1 / rate)
        return replayed

    async def delete(self, *ids: str) -> int:
        """Delete dead messages for good; returns how many there were."""
        deleted = 0
        for shard in self._shards:
            for start in range(0, len(ids), 1000):
                deleted += await shard.store.delete_dead(ids[start : start + 1000])
        return deleted

    async def purge(self, *, topic: str | None = None, error: str | None = None) -> int:
        """Delete everything that matches for good; returns how many there were."""
        deleted = 0
        for shard in self._shards:
            async for letters in self._pages(shard, topic, error):
                ids, deaths = [one.id for one in letters], [one.died_at for one in letters]
                deleted += await shard.store.delete_dead(ids, deaths)
        return deleted

    async def trim(self, *, max_age: float | None = None, max_count: int | None = None) -> int:
        """Delete what is older than *max_age* seconds or beyond the latest *max_count*."""
        for name, bound in (("max_age", max_age), ("max_count", max_count)):
            if bound is not None and not bound >= 0:
                raise ConfigError(f"{name} is {bound!r}, but must not be negative")
        deleted = 0
        for shard in self._shards:
            while some := await shard.store.trim_dead(max_age=max_age, max_count=max_count):
                deleted += some
        return deleted

    # -- reading

    async def _pages(self, shard: Shard, topic: str | None, error: str | None) -> AsyncIterator[Letters]:
        """Everything that matches now, collected before anything is changed, so that ranks hold."""
        found = [(letter.id, letter.died_at) async for _, letter in self._scan(shard, 0, topic, error)]
        found.reverse()
        for start in range(0, len(found), _PAGE):
            yield [letter async for _, letter in self._read(shard, found[start : start + _PAGE])]

    async def _scan(
        self, shard: Shard, rank: int, topic: str | None, error: str | None
    ) -> AsyncIterator[tuple[int, DeadLetter]]:
        reader = Reader(shard.store)
        while page := await reader.dead_ids(rank, _PAGE):
            async for place, letter in self._read(shard, page):
                if topic in (None, letter.topic) and _matches(letter, error):
                    yield rank + place, letter
            rank += _PAGE

    async def _read(
        self, shard: Shard, page: Sequence[tuple[str, float]]
    ) -> AsyncIterator[tuple[int, DeadLetter]]:
        """The letters of a page with their places in it, but for those that are gone meanwhile."""
        reader, ids = Reader(shard.store), [id_ for id_, _ in page]
        bodies = await reader.dead_fields(ids, "")
        topics = await reader.dead_fields(ids, ":queue")
        errors = await reader.dead_fields(ids, ":error")
        for place, (id_, died_at) in enumerate(page):
            body, topic, error = bodies[place], topics[place], errors[place]
            if body is None and topic is None and error is None:
                continue
            why = decode_death(error)
            letter = DeadLetter(id_, _name(topic), died_at, why.reason, why.error, why.kind, body or b"")
            yield place, letter

    async def _replay(self, letter: DeadLetter, payload: Any = _NOT_GIVEN) -> Replayed:
        message = letter.message
        if message is None and payload is not _NOT_GIVEN:
            raise UnreadableMessage(f"message {letter.id!r} cannot be edited: its bytes cannot be read")
        if message is None:
            replay = Replay(letter.id, died_at=letter.died_at)
        else:
            if payload is not _NOT_GIVEN:
                message.payload = encode_payload(payload)
            message.attempts = message.crashes = message.unbegun = 0
            message.replays += 1
            body = encode_message(message)
            replay = Replay(letter.id, body, message.priority, message.ttl, letter.died_at)
        for shard in self._shards:
            if payload is not _NOT_GIVEN:
                check_size(letter.topic, NewMessage(replay.id, replay.body), shard.store.max_bytes)
            (status,) = await shard.store.replay([replay])
            if status is not Replayed.GONE:
                return status
        return Replayed.GONE


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
        raise ConfigError(f"after is {after!r}, but wants what the page before this one said") from None


def _name(topic: bytes | None) -> str:
    return (topic or b"").decode(errors="replace")


def _matches(letter: DeadLetter, error: str | None) -> bool:
    return error is None or error in (letter.reason, letter.kind) or error in letter.error
