"""Reading the DLQ of a shard: what matches, a page at a time, in order of death."""

from __future__ import annotations

import asyncio
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from mx_rmq.limits import BATCH
from mx_rmq.message import decode_death
from mx_rmq.operating.letters import letter_of
from mx_rmq.storage.dead_queries import DeadQueries, Mark

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine, Sequence

    from mx_rmq.operating.letters import DeadLetter
    from mx_rmq.storage.contract import DeadRow
    from mx_rmq.storage.store import Store, What

R = TypeVar("R")

_LOOK: Final = 500
"""Messages that one call looks at, unless only few are asked for. The server needs about 2 ms for them."""


class Filter(NamedTuple):
    """Which dead messages are meant."""

    topic: str | None = None
    error: str | None = None
    """A reason, an error class or a place, or a text that the error has."""
    group: str | None = None
    matching: Callable[[DeadLetter], bool] | None = None
    """Says of a message whether it is meant; its body is read for it."""
    until: float | None = None
    """When the last of them died, at the latest; only a ``Walk`` knows it."""

    async def matches(self, store: Store, ids: Sequence[bytes], what: What) -> tuple[int, list[DeadRow]]:
        """Those of the messages that are meant, with *what* of them; and how many were looked at."""
        if self.matching is not None:
            what = "all"
        elif self.error is not None:
            what = "errors" if what == "ids" else "all"
        looked, rows = await store.read_dead(
            ids,
            what,
            topic=self.topic or "",
            group=self.group or "",
            word=self._word,
        )
        if self.error is not None:
            rows = [row for row in rows if self._means(row.error)]
        if self.matching is not None:
            rows = [row for row in rows if self.matching(letter_of(row))]
        return looked, rows

    @property
    def _word(self) -> str:
        """What the stored error must have; the server need not send the others."""
        word = self.error or ""
        if word == "unknown":  # the reason of an error that cannot be read, too
            return ""
        return word if word.isascii() and word.isprintable() and not {'"', "\\"} & {*word} else ""

    def _means(self, error: bytes) -> bool:
        death = decode_death(error)
        return self.error in (death.reason, death.kind, death.place) or str(self.error) in death.error


@dataclass(slots=True)
class Look:
    """How far a search goes: it ends when so many messages were looked at."""

    left: int = sys.maxsize
    seen: Mark | None = None
    """The last message that was looked at."""


async def search(
    store: Store, where: Filter, after: Mark | None, limit: int, look: Look, *, latest: bool = True
) -> AsyncIterator[DeadRow]:
    """What matches behind a place, the latest death first, or the oldest.

    Args:
        store: of the shard.
        where: which messages.
        after: the last one that was seen; None to begin.
        limit: how many the caller wants; it may take more.
        look: how far to search; it is kept up to date.
        latest: whether the latest death comes first.
    """
    queries, count = DeadQueries(store), min(limit + 1, BATCH)
    while look.left > 0 and (marks := await queries.marks(after, min(count, look.left), latest=latest)):
        ids = [mark.id for mark in marks]
        while ids:
            looked, rows = await where.matches(store, ids, "ids")
            for row in rows:
                yield row
            ids = ids[looked:]
        look.left -= len(marks)
        look.seen = after = marks[-1]
        count = _LOOK


async def with_bodies(store: Store, ids: Sequence[bytes]) -> AsyncIterator[list[DeadRow]]:
    """Those of the messages that are dead, as many at a time as fit into a reply."""
    while ids:
        looked, rows = await store.read_dead(ids[:BATCH])
        yield rows
        ids = ids[looked:]


class Walk:
    """Walks through the dead messages that match, the first death first.

    The caller may remove messages while it walks. Only messages that were dead at the beginning are met.
    While the caller works on some of them, the server reads the next ones. Use it in a ``with`` block.

    Args:
        store: of the shard.
        where: which messages.
        what: how much of them to read.
    """

    def __init__(self, store: Store, where: Filter, what: What = "all") -> None:
        self._store = store
        self._queries = DeadQueries(store)
        self._where = where
        self._what = what
        self._ready: list[DeadRow] = []
        """Read, but not given out yet."""
        self._reading: asyncio.Task[list[DeadRow] | None] | None = None
        self._marks: list[Mark] = []
        """Found, but not looked at yet."""
        self._seen: Mark | None = None
        """The last message that was looked at."""
        self._left = -1
        """How many matches there may still be; negative before the walk begins."""
        self._last_ms = 0.0

    def __enter__(self) -> Walk:
        return self

    def __exit__(self, *_: object) -> None:
        if self._reading is not None:
            self._reading.cancel()

    async def begin(self) -> None:
        """Note which messages are dead now."""
        self._left, self._last_ms = await self._queries.extent()
        if self._where.until is not None:
            self._last_ms = min(self._last_ms, self._where.until * 1000)

    async def next(self, limit: int) -> list[DeadRow]:
        """Up to *limit* messages; empty at the end."""
        if self._left < 0:
            await self.begin()
        while not self._ready:
            reading, self._reading = self._reading, None
            found = await (reading or self._look())
            if found is None:
                return []
            self._ready = found
            await self._step()  # now: when the caller removes messages, those behind them move up
            self._reading = await read_ahead(self._look())
        found, self._ready = self._ready[:limit], self._ready[limit:]
        return found

    async def _step(self) -> None:
        """Find the next messages."""
        if not self._marks and self._left > 0:
            marks = await self._queries.marks(self._seen, BATCH)
            self._marks = [mark for mark in marks if mark.order[0] <= self._last_ms]

    async def _look(self) -> list[DeadRow] | None:
        """The matches among the next messages; None at the end."""
        await self._step()
        if not self._marks or not self._left:
            return None
        ids = [mark.id for mark in self._marks[:_LOOK]]
        looked, rows = await self._where.matches(self._store, ids, self._what)
        self._seen = self._marks[looked - 1]
        self._marks = self._marks[looked:]
        # One that was found may have died again before it was looked at.
        rows = [row for row in rows if float(row.died_ms) <= self._last_ms][: self._left]
        self._left -= len(rows)
        return rows


async def read_ahead(read: Coroutine[Any, Any, R]) -> asyncio.Task[R]:
    """Send a read now and let it run while the caller works on what it has; cancel it if it is not wanted."""
    reading = asyncio.create_task(read)
    reading.add_done_callback(_retrieve)
    await asyncio.sleep(0)  # so that it leaves before the caller's work
    return reading


def _retrieve(reading: asyncio.Task[Any]) -> None:
    """Mark its error as seen: if the caller has stopped, asyncio would log it."""
    if not reading.cancelled():
        reading.exception()
