"""The DLQ as an operator sees it: read, replay, edit, delete."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import msgspec

from mx_rmq.errors import MxRmqError, UnreadableMessage
from mx_rmq.message import Message, decode_death, decode_message, encode_message, encode_payload
from mx_rmq.reader import Reader
from mx_rmq.records import Replay, Replayed

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable

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
    """The stored bytes as they are."""

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
        """Dead messages, latest first, of a topic, with an error (its reason, class or part of its text)."""
        number, rank = (int(part) for part in after.split(".")) if after else (0, 0)
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
                    groups[(topic or b"").decode(), death.kind or death.reason] += 1
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
                (letter,) = await self._read(shard, [(id_, died_at)])
                return letter
        raise NotDead(f"message {id_!r} is not in the DLQ; queue.get() says where it is")

    async def replay(self, *ids: str, payload: Any = _NOT_GIVEN) -> int:
        """Give dead messages another life, as if new: attempts start at one, the history stays.

        Args:
            ids: which.
            payload: for a single message, what to run it with instead.

        Raises:
            NotDead: one of them is not dead, or is alive again under the same id.
        """
        if payload is not _NOT_GIVEN and len(ids) != 1:
            raise ValueError("a new payload is for one message at a time")
        for id_ in ids:
            letter = await self.get(id_)
            status = await self._replay(letter, payload)
            if status is not Replayed.REPLAYED:
                raise NotDead(f"message {id_!r} cannot be replayed: {_WHY_NOT[status]}")
        return len(ids)

    async def replay_all(
        self, *, topic: str | None = None, error: str | None = None, rate: float | None = None
    ) -> int:
        """Replay everything that matches, at most *rate* a second; returns how many were."""
        replayed = 0
        for shard in self._shards:
            async for letters in self._pages(shard, topic, error):
                for letter in letters:
                    replayed += await self._replay(letter) is Replayed.REPLAYED
                    if rate:
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
        deleted = 0
        for shard in self._shards:
            while some := await shard.store.trim_dead(max_age=max_age, max_count=max_count):
                deleted += some
        return deleted

    # -- reading

    async def _pages(self, shard: Shard, topic: str | None, error: str | None) -> AsyncIterator[Letters]:
        """Everything that matches now, collected before anything is changed, so that ranks hold."""
        letters = [(letter.id, letter.died_at) async for _, letter in self._scan(shard, 0, topic, error)]
        for start in range(0, len(letters), _PAGE):
            yield await self._read(shard, letters[start : start + _PAGE])

    async def _scan(
        self, shard: Shard, rank: int, topic: str | None, error: str | None
    ) -> AsyncIterator[tuple[int, DeadLetter]]:
        reader = Reader(shard.store)
        while page := await reader.dead_ids(rank, _PAGE):
            for place, letter in enumerate(await self._read(shard, page), rank):
                if topic in (None, letter.topic) and _matches(letter, error):
                    yield place, letter
            rank += _PAGE

    async def _read(self, shard: Shard, page: Iterable[tuple[str, float]]) -> Letters:
        page = [*page]
        reader, ids = Reader(shard.store), [id_ for id_, _ in page]
        bodies = await reader.dead_fields(ids, "")
        topics = await reader.dead_fields(ids, ":queue")
        errors = await reader.dead_fields(ids, ":error")
        letters = []
        for (id_, died_at), body, topic, error in zip(page, bodies, topics, errors, strict=True):
            if body is not None:
                death = decode_death(error)
                name = (topic or b"").decode()
                letters.append(DeadLetter(id_, name, died_at, death.reason, death.error, death.kind, body))
        return letters

    async def _replay(self, letter: DeadLetter, payload: Any = _NOT_GIVEN) -> Replayed:
        message = letter.message
        if message is None and payload is not _NOT_GIVEN:
            raise NotDead(f"message {letter.id!r} cannot be edited: its stored bytes cannot be read")
        if message is None:
            replay = Replay(letter.id, died_at=letter.died_at)
        else:
            if payload is not _NOT_GIVEN:
                message.payload = encode_payload(payload)
            message.attempts = message.crashes = 0
            message.replays += 1
            body = encode_message(message)
            replay = Replay(letter.id, body, message.priority, message.ttl, letter.died_at)
        for shard in self._shards:
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


def _matches(letter: DeadLetter, error: str | None) -> bool:
    return error is None or error in (letter.reason, letter.kind) or error in letter.error
