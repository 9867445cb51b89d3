"""Reading the DLQ of a shard: what matches, a page at a time, in order of death."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from mx_rmq.limits import BATCH
from mx_rmq.message import decode_death
from mx_rmq.storage.dead_queries import DeadQueries, Mark

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from mx_rmq.storage.contract import DeadRow
    from mx_rmq.storage.store import Store

_LOOK: Final = 250
"""Messages that one call looks at, unless only few are asked for. The server needs about 2 ms for them."""


class Filter(NamedTuple):
    """Which dead messages are meant."""

    topic: str | None = None
    error: str | None = None
    """A reason, an error class or a place, or a text that the error has."""
    group: str | None = None

    async def matches(self, store: Store, ids: Sequence[bytes], *, bodies: bool) -> tuple[int, list[DeadRow]]:
        """Those of the messages that are meant, and how many were looked at."""
        looked, rows = await store.read_dead(
            ids,
            "bodies" if bodies else "ids" if self.error is None else "errors",
            topic=self.topic or "",
            group=self.group or "",
            word=self._word,
        )
        return looked, rows if self.error is None else [row for row in rows if self._means(row.error)]

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


async def latest(store: Store, where: Filter, after: Mark | None, limit: int) -> AsyncIterator[DeadRow]:
    """What matches behind a place, the latest death first, without bodies.

    Args:
        store: of the shard.
        where: which messages.
        after: the last one that was seen; None to begin.
        limit: how many the caller wants; it may take more.
    """
    queries, count = DeadQueries(store), min(limit + 1, BATCH)
    while marks := await queries.marks(after, count, latest=True):
        ids = [mark.id for mark in marks]
        while ids:
            looked, rows = await where.matches(store, ids, bodies=False)
            for row in rows:
                yield row
            ids = ids[looked:]
        after, count = marks[-1], _LOOK


async def with_bodies(store: Store, ids: Sequence[bytes]) -> AsyncIterator[list[DeadRow]]:
    """Those of the messages that are dead, as many at a time as fit into a reply."""
    while ids:
        looked, rows = await store.read_dead(ids[:BATCH])
        yield rows
        ids = ids[looked:]


class Walk:
    """A walk through the dead messages that match, the first death first, while they leave the DLQ.

    It ends with the messages that were dead when it began: one that dies again is not met again.

    Args:
        store: of the shard.
        where: which messages.
        bodies: whether to read their bodies.
    """

    def __init__(self, store: Store, where: Filter, *, bodies: bool = True) -> None:
        self._store = store
        self._queries = DeadQueries(store)
        self._where = where
        self._bodies = bodies
        self._ready: list[DeadRow] = []
        """Read, but not given out yet."""
        self._passed: Mark | None = None
        """The last message that was seen and stays in the DLQ."""
        self._left = -1
        """How many matches there may still be; negative before the walk begins."""
        self._last_ms = 0.0

    async def begin(self) -> None:
        """Note which messages are dead now."""
        self._left, self._last_ms = await self._queries.extent()

    async def next(self, limit: int) -> list[DeadRow]:
        """Up to *limit* messages; empty at the end. The caller removes them or says that they stay."""
        if self._left < 0:
            await self.begin()
        while not self._ready and await self._look():
            pass
        found, self._ready = self._ready[:limit], self._ready[limit:]
        return found

    async def _look(self) -> bool:
        """Read on; False at the end."""
        marks = await self._queries.marks(self._passed, _LOOK) if self._left > 0 else []
        marks = [mark for mark in marks if mark.order[0] <= self._last_ms]
        if not marks:
            return False
        looked, rows = await self._where.matches(
            self._store, [mark.id for mark in marks], bodies=self._bodies
        )
        self._ready = rows[: self._left]
        self._left -= len(self._ready)
        if looked == len(marks) < _LOOK:  # these were the last
            self._left = 0
        matches = {row.id for row in rows}
        for mark in reversed(marks[:looked]):
            if mark.id not in matches:
                self._passed = mark
                break
        return True

    def stays(self, row: DeadRow) -> None:
        """A message has not left the DLQ: the walk goes on behind it."""
        mark = Mark(row.died_ms, row.id)
        if self._passed is None or mark.order > self._passed.order:
            self._passed = mark
