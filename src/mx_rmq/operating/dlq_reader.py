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

_LOOK: Final = 500
"""Messages that one call looks at, unless only few are asked for. The server needs about 1 ms for them."""


class Filter(NamedTuple):
    """Which dead messages are meant."""

    topic: str | None = None
    error: str | None = None
    """A reason, an error class or a place, or a text that the error has."""
    group: str | None = None

    async def matches(self, store: Store, ids: Sequence[bytes], *, bodies: bool) -> tuple[int, list[DeadRow]]:
        """Those of the messages that are meant, and how many were looked at."""
        looked, rows = await store.read_dead(
            ids, topic=self.topic or "", group=self.group or "", word=self._word, bodies=bodies
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
    """What matches behind a place, the latest death first.

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
            looked, rows = await where.matches(store, ids, bodies=True)
            for row in rows:
                yield row
            ids = ids[looked:]
        after, count = marks[-1], _LOOK


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
        while self._left > 0:
            marks = await self._queries.marks(self._passed, _LOOK)
            marks = [mark for mark in marks if mark.order[0] <= self._last_ms]
            if not marks:
                break
            looked, rows = await self._where.matches(
                self._store, [mark.id for mark in marks], bodies=self._bodies
            )
            found = self._take(marks[:looked], rows, limit)
            if found:
                return found
        return []

    def stays(self, row: DeadRow) -> None:
        """A message has not left the DLQ: the walk goes on behind it."""
        mark = Mark(row.died_ms, row.id)
        if self._passed is None or mark.order > self._passed.order:
            self._passed = mark

    def _take(self, marks: Sequence[Mark], rows: Sequence[DeadRow], limit: int) -> list[DeadRow]:
        """The first matches among those looked at; what does not match before the next one is passed."""
        matches = {row.id: row for row in rows}
        found: list[DeadRow] = []
        for mark in marks:
            row = matches.get(mark.id)
            if row is None:
                self._passed = mark
            elif len(found) == min(limit, self._left):
                break
            else:
                found.append(row)
        self._left -= len(found)
        return found
