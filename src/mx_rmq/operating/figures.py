"""The figures of a live view: how topics and workers stand, and how fast things go."""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass, field
from time import monotonic
from typing import TYPE_CHECKING, Final, Literal, Protocol

from mx_rmq.storage.facts import TopicCounts, WorkerFacts

if TYPE_CHECKING:
    from collections.abc import Iterable

    from mx_rmq.operating.history import Rates
    from mx_rmq.storage.facts import Counts, Workers

Order = Literal["trouble", "busy", "name"]
ORDERS: Final[tuple[Order, ...]] = ("trouble", "busy", "name")

_WINDOW: Final = 10.0
"""Seconds over which a rate is measured."""
_HISTORY: Final = 5.0
"""Seconds between two reads of the history: its times are those of the last minute or two."""
_SHARE: Final = 0.2
"""The most of the time that is spent reading."""
_LONGEST: Final = 10.0


class Looked(Protocol):
    """What is looked at: an open queue."""

    async def counts(self) -> Counts:
        """How many messages there are, topic by topic."""

    async def workers(self) -> Workers:
        """The live workers."""

    async def rates(self) -> Rates:
        """How fast each topic goes."""


@dataclass(frozen=True, slots=True)
class TopicFigures:
    """How a topic stands and how fast it goes."""

    name: str
    counts: TopicCounts
    is_served: bool
    """Whether a live worker has a handler for it."""
    arriving: float = 0.0
    """Messages a second."""
    done: float = 0.0
    failing: float = 0.0
    """Attempts that failed and messages that died, a second."""
    run_p50: float | None = None
    run_p95: float | None = None
    completions: tuple[int, ...] = ()
    """Messages completed in each of the last minutes, the present one last."""

    @property
    def state(self) -> str:
        """In a word: what an operator should know first."""
        if self.counts.paused:
            return "paused"
        if self.counts.pending + self.counts.delayed and not self.is_served:
            return "no worker"
        if self.failing > 0:
            return "failing"
        return "running" if self.counts.processing or self.done else "idle"

    @property
    def trouble(self) -> int:
        """How much it needs an operator: the more, the further up."""
        ranks = {"no worker": 4, "paused": 3 if self.counts.pending else 1, "failing": 2}
        return max(ranks.get(self.state, 0), 1 if self.counts.in_dlq else 0)


@dataclass(frozen=True, slots=True)
class Figures:
    """One look at a queue."""

    topics: list[TopicFigures]
    """Those that are shown, in order."""
    known: int
    """How many topics there are."""
    whole: TopicFigures
    """The sum of all topics."""
    workers: list[WorkerFacts]
    counts: Counts
    read_at: float
    """When they were read, by the server's clock."""
    pause: float = 1.0
    """Seconds to wait before the next look."""


@dataclass(slots=True)
class FiguresReader:
    """Reads the figures of a queue, again and again.

    A look costs a bounded number of round trips, whatever the number of topics. If it takes long, as with
    10,000 topics, looks are made less often.

    Args:
        queue: is open.
        most: how many topics to show.
    """

    queue: Looked
    most: int = 200
    order: Order = "trouble"
    only: str = ""
    """Show only topics with this in their name."""
    _before: deque[tuple[float, dict[str, tuple[int, int, int]]]] = field(default_factory=deque)
    """Totals of earlier looks, and when they were read."""
    _rates: Rates | None = None
    _rates_at: float = 0.0

    async def read(self) -> Figures:
        """Look once."""
        began = monotonic()
        counts, workers = await asyncio.gather(self.queue.counts(), self.queue.workers())
        if self._rates is None or began - self._rates_at >= _HISTORY:
            self._rates, self._rates_at = await self.queue.rates(), began
        served = {topic for worker in workers for topic in worker.topics}
        topics = list(self._topics(counts, served))
        pause = min(_LONGEST, max(1.0, (monotonic() - began) / _SHARE))
        whole = self._whole(counts, topics)
        return Figures(self._shown(topics), len(topics), whole, list(workers), counts, counts.read_at, pause)

    def _topics(self, counts: Counts, served: set[str]) -> Iterable[TopicFigures]:
        now = counts.read_at
        totals = {name: _totals(of) for name, of in counts.topics.items()}
        while len(self._before) > 1 and self._before[1][0] <= now - _WINDOW:
            self._before.popleft()
        since, before = self._before[0] if self._before else (now, {})
        self._before.append((now, totals))
        known = self._rates.topics if self._rates else {}
        for name, of in counts.topics.items():
            of_minutes = known.get(name)
            if now - since >= 0.5:
                speeds = _speeds(before.get(name, (0, 0, 0)), totals[name], now - since)
            elif of_minutes is not None:  # the first look
                speeds = (of_minutes.produced, of_minutes.completed, of_minutes.failed)
            else:
                speeds = (0.0, 0.0, 0.0)
            if of_minutes is None:
                yield TopicFigures(name, of, name in served, *speeds)
            else:
                times = of_minutes.run_p50, of_minutes.run_p95, of_minutes.completions
                yield TopicFigures(name, of, name in served, *speeds, *times)

    def _whole(self, counts: Counts, topics: Iterable[TopicFigures]) -> TopicFigures:
        arriving = done = failing = 0.0
        for each in topics:
            arriving, done, failing = arriving + each.arriving, done + each.done, failing + each.failing
        summed = TopicCounts(
            pending=counts.pending,
            running=counts.running,
            held=counts.held,
            delayed=counts.delayed,
            in_dlq=counts.dead,
        )
        return TopicFigures("all", summed, True, arriving, done, failing)

    def _shown(self, topics: list[TopicFigures]) -> list[TopicFigures]:
        wanted = [each for each in topics if self.only in each.name]
        if self.order == "trouble":
            wanted.sort(key=lambda each: (-each.trouble, *_busy(each)))
        elif self.order == "busy":
            wanted.sort(key=_busy)
        return wanted[: self.most]


def _busy(each: TopicFigures) -> tuple[float, int, str]:
    return -(each.arriving + each.done + each.failing), -each.counts.pending, each.name


def _totals(of: TopicCounts) -> tuple[int, int, int]:
    return of.produced, of.completed, of.retried + of.dead


def _speeds(
    before: tuple[int, int, int], now: tuple[int, int, int], seconds: float
) -> tuple[float, float, float]:
    """Events a second; a topic that was forgotten and is known again counts from nothing."""
    arriving, done, failing = (max(0, new - old) / seconds for old, new in zip(before, now, strict=True))
    return arriving, done, failing
