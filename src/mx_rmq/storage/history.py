"""The history on the server: sheets of counts and of times, by topic and minute; see docs/design.md.

The layout is that of ``scripts/lib/history.lua``.
"""

from __future__ import annotations

import asyncio
import sys
from array import array
from bisect import bisect_left, bisect_right
from collections import defaultdict
from operator import add
from typing import TYPE_CHECKING, Final, NamedTuple

from mx_rmq.checks import is_label
from mx_rmq.limits import REPLY_BYTES
from mx_rmq.storage.queries import Queries

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from mx_rmq.message import Reason
    from mx_rmq.storage.store import Store

    Numbers = Sequence[int]

SHEET: Final = 20
"""Minutes of a sheet."""
EVENTS: Final = ("produced", "delivered", "completed", "retried", "put_off", "recovered")
REASONS: Final[tuple[Reason, ...]] = (
    *("failed", "crashed", "expired", "rejected", "unparsable", "invalid", "unknown"),
)
"""Behind the events a sheet counts deaths, by their reason."""
LETTERS: Final = "pdcrolFCERUI?"
"""Events and deaths, in the order of a sheet, as the scripts name them."""
BUCKETS: Final = 28
"""Run times have so many buckets, and waiting times too. Each is twice as wide as the one before."""
MOST_TOPICS: Final = 200
"""Topics that are counted apart in one sheet."""
OTHERS: Final = "*"
"""The name under which further topics are counted together."""
KEPT: Final = 72 * 60
"""Minutes for which counts are kept."""
KEPT_FINE: Final = 2 * 60
"""Minutes for which times are kept by the minute; after that they are known for whole sheets."""

_EDGES: Final[tuple[float, ...]] = tuple(2**n / 8000 for n in range(BUCKETS - 1))
"""Seconds at which a bucket ends and the next begins: from 1/8 ms to 2.3 hours."""
_SPREAD: Final = 2 * BUCKETS
"""Numbers of a spread: run times, then waiting times."""


def times_text(runs: list[float], waits: list[float]) -> str:
    """Times in seconds, as ``complete_message`` takes them: buckets and how many.

    The lists may be sorted here. A time below 0, of clocks that differ, counts as 0.
    """
    return " ".join((*_words(0, runs), *_words(BUCKETS, waits)))


def _words(first: int, times: list[float]) -> Iterator[str]:
    if not times:
        return
    bucket = bisect_right(_EDGES, min(times))
    if bucket == bisect_right(_EDGES, max(times)):  # nearly always, and much quicker than to sort them
        yield f"{first + bucket}:{len(times)}"
        return
    times.sort()
    start, end = 0, len(times)
    while start < end:
        bucket = bisect_right(_EDGES, times[start])
        stop = end if bucket == len(_EDGES) else bisect_left(times, _EDGES[bucket], start)
        yield f"{first + bucket}:{stop - start}"
        start = stop


def percentile(buckets: Numbers, share: float) -> float | None:
    """The seconds within which this share of the times was, None if there are none.

    Inside a bucket times count as evenly spread, so the error is at most the width of the bucket. Times
    beyond the last edge count as that edge.
    """
    wanted = sum(buckets) * share
    if not wanted:
        return None
    for n, times in enumerate(buckets):
        if times >= wanted:
            low = _EDGES[n - 1] if n else 0.0
            high = _EDGES[n] if n < len(_EDGES) else low
            return low + (high - low) * wanted / times
        wanted -= times
    return _EDGES[-1]  # rounding left a rest


class Spread(NamedTuple):
    """How long messages ran and how long they waited, as counts of buckets."""

    runs: Numbers
    waits: Numbers

    @classmethod
    def of(cls, numbers: Numbers) -> Spread:
        """Divide the numbers of a sheet."""
        return cls(numbers[:BUCKETS], numbers[BUCKETS:])

    def __add__(self, other: Spread) -> Spread:  # type: ignore[override] # adds counts; tuples would be joined
        return Spread(list(map(add, self.runs, other.runs)), list(map(add, self.waits, other.waits)))


NO_TIMES: Final = Spread((0,) * BUCKETS, (0,) * BUCKETS)


class Recorded:
    """What sheets say, of one topic or summed over many."""

    def __init__(self) -> None:
        self.counts: dict[int, Numbers] = {}
        """By minute since 1970, in the order of ``LETTERS``; minutes without events may be missing."""
        self.spreads: dict[int, Spread] = {}
        """By number of the sheet."""
        self.fine: dict[int, Spread] = {}
        """By minute."""

    def take_sheet(self, number: int, sheet: bytes) -> None:
        """Add the counts of a sheet."""
        numbers = _numbers(sheet)
        for n in range(SHEET):
            start = _SPREAD + n * len(LETTERS)
            counts = numbers[start : start + len(LETTERS)]
            if any(counts):
                minute = number * SHEET + n
                known = self.counts.get(minute)
                self.counts[minute] = counts if known is None else list(map(add, known, counts))
        _put(self.spreads, number, numbers[:_SPREAD])

    def take_recent(self, number: int, recent: bytes) -> None:
        """Add the times of a sheet, minute by minute."""
        numbers = _numbers(recent)
        for n in range(SHEET):
            _put(self.fine, number * SHEET + n, numbers[n * _SPREAD : (n + 1) * _SPREAD])

    def take_minute(self, minute: int, times: bytes) -> None:
        """Add the times of one minute."""
        _put(self.fine, minute, _numbers(times))


class Sheets:
    """Reads the history on one shard."""

    def __init__(self, store: Store) -> None:
        self._commands = store.commands
        self._prefix = store.keys.prefix
        self._queries = Queries(store)

    async def minute(self) -> tuple[int, float]:
        """The minute since 1970 by the server's clock, and the time itself."""
        now = await self._queries.time()
        return int(now // 60), now

    async def topic(self, name: str, numbers: range, fine: range, into: Recorded) -> bool:
        """Read the sheets of one topic; returns whether it may have been counted with others in one of them.

        Args:
            name: of the topic.
            numbers: of the sheets.
            fine: of those whose times are read minute by minute.
            into: what is added to.
        """
        missing = set(numbers)
        for number, sheet in await self._read("history", [(number, name) for number in numbers]):
            into.take_sheet(number[0], sheet)
            missing.discard(number[0])
        for number, recent in await self._read("recent", [(number, name) for number in fine]):
            into.take_recent(number[0], recent)
        shared = [self._key("history", number, OTHERS) for number in missing]
        return bool(shared and await self._commands.execute_command("EXISTS", *shared))

    async def all_topics(self, numbers: range, fine: range, into: Recorded) -> None:
        """Read the sheets of all topics, summed."""
        names = await self._names(numbers)
        for number, sheet in await self._read("history", names):
            into.take_sheet(number[0], sheet)
        for number, recent in await self._read("recent", [which for which in names if which[0] in fine]):
            into.take_recent(number[0], recent)

    async def each_topic(self, minute: int, minutes: int, into: defaultdict[str, Recorded]) -> None:
        """Read the sheets of every topic: the last *minutes*, and the times of the last two.

        All is asked for in a few round trips, whatever the number of topics.
        """
        numbers = range((minute - minutes + 1) // SHEET, minute // SHEET + 1)
        names = await self._names(numbers)
        for (number, name), sheet in await self._read("history", names):
            into[name].take_sheet(number, sheet)
        timed = [(at, name) for at in (minute - 1, minute) for number, name in names if number == at // SHEET]
        size = 3 * _SPREAD
        asked = []
        for at, name in timed:
            start = at % SHEET * size
            key = self._key("recent", at // SHEET, name)
            asked.append(self._commands.execute_command("GETRANGE", key, start, start + size - 1))
        replies = await asyncio.gather(*asked)
        for (at, name), times in zip(timed, replies, strict=True):
            if len(times) == size:
                into[name].take_minute(at, times)

    async def _names(self, numbers: range) -> list[tuple[int, str]]:
        """The sheets that there are, by number and topic; that of other topics may be missing."""
        replies = await asyncio.gather(
            *(
                self._commands.execute_command("SMEMBERS", f"{self._prefix}history={number}")
                for number in numbers
            )
        )
        return [
            (number, name)
            for number, names in zip(numbers, replies, strict=True)
            for name in (*sorted(name.decode() for name in names if is_label(name)), OTHERS)
        ]

    async def _read(self, kind: str, which: Sequence[tuple[int, str]]) -> list[tuple[tuple[int, str], bytes]]:
        """The sheets that there are of those named; a reply is of bounded length."""
        size = SHEETS[kind]
        most = REPLY_BYTES // size
        found = []
        for start in range(0, len(which), most):
            some = which[start : start + most]
            keys = [self._key(kind, number, name) for number, name in some]
            replies = await self._commands.execute_command("MGET", *keys)
            found += [
                (key, sheet)
                for key, sheet in zip(some, replies, strict=True)
                if sheet is not None and len(sheet) == size  # else another program wrote it
            ]
        return found

    def _key(self, kind: str, number: int, name: str) -> str:
        return f"{self._prefix}{kind}={number}={name}"


SHEETS: Final = {"history": 3 * (_SPREAD + SHEET * len(LETTERS)), "recent": 3 * SHEET * _SPREAD}
"""Bytes of each kind of sheet."""


def _put(spreads: dict[int, Spread], at: int, numbers: Numbers) -> None:
    if any(numbers):
        spread = Spread.of(numbers)
        spreads[at] = spreads[at] + spread if at in spreads else spread


def _numbers(text: bytes) -> array[int]:
    """The numbers of a sheet: 24 bits each, the highest first."""
    wide = bytearray(len(text) // 3 * 4)
    wide[1::4], wide[2::4], wide[3::4] = text[0::3], text[1::3], text[2::3]
    numbers = array("I", bytes(wide))
    if sys.byteorder == "little":
        numbers.byteswap()
    return numbers
