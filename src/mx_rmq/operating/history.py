"""What happened in a queue, minute by minute, and how fast things go now."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from functools import reduce
from operator import add
from typing import TYPE_CHECKING, Any, Final

from mx_rmq.checks import check_topic, check_whole
from mx_rmq.storage.history import (
    EVENTS,
    KEPT,
    KEPT_FINE,
    LETTERS,
    NO_TIMES,
    REASONS,
    SHEET,
    Recorded,
    Sheets,
    percentile,
)
from mx_rmq.storage.shards import ask_those_there
from mx_rmq.tables import lasted, plain_fields, table, utc

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mx_rmq.message import Reason
    from mx_rmq.storage.history import Spread
    from mx_rmq.storage.shard import Shard

_HOUR: Final = 60
_DAY: Final = 24 * _HOUR
_BARS: Final = " ▁▂▃▄▅▆▇█"
_SPARK: Final = 30
"""Minutes in a line of bars."""


@dataclass(frozen=True, slots=True)
class HistoryRow:
    """What happened in one step of a history; times in seconds, None if none were measured."""

    begins_at: float
    produced: int = 0
    delivered: int = 0
    """How often a message was claimed by a worker."""
    completed: int = 0
    retried: int = 0
    put_off: int = 0
    recovered: int = 0
    """How often a message was taken over because the lease of its worker ran out."""
    dead: dict[Reason, int] = field(default_factory=dict)
    """How many messages died, by reason."""
    run_p50: float | None = None
    run_p95: float | None = None
    """How long the handlers of completed messages ran."""
    wait_p50: float | None = None
    wait_p95: float | None = None
    """How long completed messages waited for their handler, from produce or the end of their delay; without
    those that had begun before."""

    @property
    def died(self) -> int:
        """How many messages died."""
        return sum(self.dead.values())

    def as_dict(self) -> dict[str, Any]:
        """As JSON has it; instants as ISO texts in UTC."""
        return plain_fields(self)

    def _cells(self, name: str) -> tuple[str | int, ...]:
        counts = (self.produced, self.delivered, self.completed, self.retried, self.put_off)
        times = map(lasted, (self.run_p50, self.run_p95, self.wait_p50, self.wait_p95))
        return (name, *counts, self.died, self.recovered, *times)


@dataclass(frozen=True, slots=True)
class History:
    """What happened to the messages of a topic, or of all topics; the oldest row first."""

    topic: str | None
    """None for all topics."""
    step: int
    """Minutes of a row. The last row is that of the present, so it is not over."""
    rows: tuple[HistoryRow, ...]
    total: HistoryRow
    read_at: float
    """When it was read, by the server's clock."""
    partial: bool = False
    """Whether some of it may be missing: for a while more topics were in use than are counted apart."""
    missing: tuple[str, ...] = ()
    """The shards that did not answer, and why; what happened there is not counted."""

    @property
    def is_empty(self) -> bool:
        """Whether nothing happened."""
        return self.total == HistoryRow(self.total.begins_at)

    def as_dict(self) -> dict[str, Any]:
        """As JSON has it; instants as ISO texts in UTC."""
        return plain_fields(self)

    def __str__(self) -> str:
        columns = (
            *("from, UTC", "produced", "delivered", "completed", "retried", "put off", "dead", "recovered"),
            *("run p50", "run p95", "wait p50", "wait p95"),
        )
        long = len(self.rows) * self.step > _DAY
        rows = [row._cells(utc(row.begins_at)[0 if long else 11 : 16]) for row in self.rows]
        said = table(columns, [*rows, self.total._cells("total")])
        said += "\nincomplete: too many topics to count each" if self.partial else ""
        return "\n".join((said, *(f"missing: {why}" for why in self.missing)))


@dataclass(frozen=True, slots=True)
class TopicRates:
    """How fast a topic goes: events a second in the last minute; times in seconds, None if there are none."""

    produced: float = 0.0
    completed: float = 0.0
    failed: float = 0.0
    """Attempts that were retried, and deaths."""
    run_p50: float | None = None
    run_p95: float | None = None
    wait_p50: float | None = None
    wait_p95: float | None = None
    completions: tuple[int, ...] = ()
    """Messages completed in each of the last 60 minutes, the present one last."""

    def as_dict(self) -> dict[str, Any]:
        """As plain values."""
        return plain_fields(self)


@dataclass(frozen=True, slots=True)
class Rates:
    """How fast the topics of a queue go."""

    topics: dict[str, TopicRates]
    """Those with events in the last hour. ``*`` stands for topics beyond those that are counted apart."""
    read_at: float
    missing: tuple[str, ...] = ()
    """The shards that did not answer, and why; what happened there is not counted."""

    def as_dict(self) -> dict[str, Any]:
        """As JSON has it; instants as ISO texts in UTC."""
        return plain_fields(self)

    def __str__(self) -> str:
        said = self._table() if self.topics else "no topic was used in the last hour"
        return "\n".join((said, *(f"missing: {why}" for why in self.missing)))

    def _table(self) -> str:
        times = ("run p50", "run p95", "wait p50", "wait p95")
        return table(
            ("topic", "in/s", "done/s", "failed/s", *times, "done"),
            [
                (
                    topic,
                    *(f"{rate:.3g}" for rate in (of.produced, of.completed, of.failed)),
                    *map(lasted, (of.run_p50, of.run_p95, of.wait_p50, of.wait_p95)),
                    bars(of.completions[-_SPARK:]) + "|",
                )
                for topic, of in self.topics.items()
            ],
        )


async def history(
    shards: Sequence[Shard], topic: str | None = None, *, minutes: int = 60, step: int | None = None
) -> History:
    """Read what happened in the last minutes."""
    if topic is not None:
        topic = check_topic(topic)
    check_whole("minutes", minutes, 1, KEPT)
    check_whole("step", step, 1, _HOUR, none="1, or 20 for more than two hours")
    step = step or (1 if minutes <= KEPT_FINE else SHEET)
    recorded = Recorded()
    now, read_at = await _minute(shards)
    first = (now - minutes + 1) // step * step
    numbers = range(first // SHEET, now // SHEET + 1)
    fine = range(max(first, now - KEPT_FINE + 1) // SHEET, now // SHEET + 1)

    async def read(shard: Shard) -> bool:
        sheets = Sheets(shard.operating)
        if topic is not None:
            return await sheets.topic(topic, numbers, fine, recorded)
        await sheets.all_topics(numbers, fine, recorded)
        return False

    shared, missing = await ask_those_there(shards, read)
    spans = [range(at, min(at + step, now + 1)) for at in range(first, now + 1, step)]
    spreads = [_spread(recorded, span, now) for span in spans]
    rows = tuple(_row(recorded, span, spread) for span, spread in zip(spans, spreads, strict=True))
    known = [spread for spread in spreads if spread is not None]
    whole = reduce(add, known, NO_TIMES) if len(known) == len(spreads) else None
    total = _row(recorded, range(first, now + 1), whole)
    return History(topic, step, rows, total, read_at, any(shared), missing)


async def _minute(shards: Sequence[Shard]) -> tuple[int, float]:
    """The present minute since 1970, and the time, by a server that answers."""
    times, _ = await ask_those_there(shards, lambda shard: Sheets(shard.operating).minute())
    return max(times)


async def rates(shards: Sequence[Shard]) -> Rates:
    """Read how fast each topic goes."""
    now, read_at = await _minute(shards)
    found: defaultdict[str, Recorded] = defaultdict(Recorded)
    _, missing = await ask_those_there(
        shards, lambda shard: Sheets(shard.operating).each_topic(now, _HOUR, found)
    )
    hour = range(now - _HOUR + 1, now + 1)
    used = sorted(name for name, recorded in found.items() if any(at in recorded.counts for at in hour))
    return Rates({name: _rates(found[name], now, read_at) for name in used}, read_at, missing)


def bars(numbers: Sequence[int]) -> str:
    """Numbers as a line of bars, each as high as it is great."""
    most = max(numbers, default=0) or 1
    return "".join(_BARS[-(-number * (len(_BARS) - 1) // most)] for number in numbers)


def _spread(recorded: Recorded, span: range, now: int) -> Spread | None:
    """The times of a span of minutes; None if they are not known for just this span."""
    if span.start > now - KEPT_FINE:
        return reduce(add, (recorded.fine[minute] for minute in span if minute in recorded.fine), NO_TIMES)
    if span.start % SHEET == 0 and (span.stop % SHEET == 0 or span.stop > now):
        sheets = range(span.start // SHEET, (span.stop - 1) // SHEET + 1)
        return reduce(add, (recorded.spreads[n] for n in sheets if n in recorded.spreads), NO_TIMES)
    return None


def _row(recorded: Recorded, span: range, spread: Spread | None) -> HistoryRow:
    counts = _sum(recorded, span)
    events = dict(zip(EVENTS, counts, strict=False))
    dead = {reason: n for reason, n in zip(REASONS, counts[len(EVENTS) :], strict=True) if n}
    return HistoryRow(span.start * 60.0, **events, dead=dead, **_percentiles(spread or NO_TIMES))


def _sum(recorded: Recorded, span: range) -> list[int]:
    found = (recorded.counts[minute] for minute in span if minute in recorded.counts)
    return [sum(counts) for counts in zip([0] * len(LETTERS), *found, strict=True)]


def _rates(recorded: Recorded, now: int, read_at: float) -> TopicRates:
    """The rates of a topic.

    The last 60 seconds are the present minute, and of the one before the share that is not over.
    """
    share = 1.0 - (read_at / 60.0 - now)
    both = zip(_sum(recorded, range(now, now + 1)), _sum(recorded, range(now - 1, now)), strict=True)
    per_second = [(present + share * before) / 60.0 for present, before in both]
    of_event = dict(zip(EVENTS, per_second, strict=False))
    spreads = [recorded.fine[at] for at in (now - 1, now) if at in recorded.fine]
    done = EVENTS.index("completed")
    hour = range(now - _HOUR + 1, now + 1)
    return TopicRates(
        of_event["produced"],
        of_event["completed"],
        of_event["retried"] + sum(per_second[len(EVENTS) :]),
        **_percentiles(reduce(add, spreads, NO_TIMES)),
        completions=tuple(recorded.counts[at][done] if at in recorded.counts else 0 for at in hour),
    )


def _percentiles(spread: Spread) -> dict[str, Any]:
    return {
        "run_p50": percentile(spread.runs, 0.5),
        "run_p95": percentile(spread.runs, 0.95),
        "wait_p50": percentile(spread.waits, 0.5),
        "wait_p95": percentile(spread.waits, 0.95),
    }
