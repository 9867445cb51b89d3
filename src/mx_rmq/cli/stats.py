"""``mx-rmq stats``: totals by topic, and what happens each second."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

from mx_rmq.cli.connecting import opened
from mx_rmq.cli.exits import UsageError
from mx_rmq.cli.output import At, Column, Output
from mx_rmq.cli.settings import Common
from mx_rmq.cli.words import seconds_of, shards_of
from mx_rmq.operating.history import TopicRates
from mx_rmq.storage.facts import TopicCounts
from mx_rmq.storage.history import OTHERS
from mx_rmq.tables import iso, lasted

if TYPE_CHECKING:
    from mx_rmq.cli.output import Cell
    from mx_rmq.queue import RedisMessageQueue
    from mx_rmq.storage.facts import Counts

_DEFAULT = Common()
_SHORTEST: Final = 0.1
_NONE: Final = TopicCounts()
_STILL: Final = TopicRates()


async def stats(*, watch: str | None = None, common: Common = _DEFAULT) -> None:
    """Show by topic what was produced, completed, retried, recovered and dead in all, and the last minute.

    "in/s", "done/s" and "failed/s" are of the last minute, and so is how long handlers ran.

    Args:
        watch: show instead what happens each second, every so often, such as 1 or 10s.
    """
    out = Output(common)
    interval = None if watch is None else seconds_of("--watch", watch)
    if interval is not None and interval < _SHORTEST:
        raise UsageError(f"--watch must be {_SHORTEST:g} seconds or longer, got {watch}")
    async with opened(common) as queue:
        if interval is not None:
            await _watch(queue, interval, out)
            return
        counts, measured = await queue.counts(), await queue.rates()
    rates = measured.topics
    away = shards_of(counts.missing)
    missing = (*counts.missing, *(why for why in measured.missing if not shards_of([why]) <= away))
    columns: list[Column | str] = [
        "topic",
        "produced",
        "completed",
        Column("retried", is_optional=True),
        Column("recovered", is_optional=True),
        Column("dead", style="red"),
        "in/s",
        "done/s",
        Column("failed/s", style="red"),
        Column("run p50", is_optional=True),
        Column("run p95", is_optional=True),
    ]
    # A topic that is not in the history stood still, unless the history does not have all topics.
    still = None if OTHERS in rates or not rates else _STILL
    topics: dict[str, Any] = {}
    rows: list[list[Cell]] = []
    for name, of in counts.topics.items():
        rate = rates.get(name, still)
        speeds: list[Cell] = [None] * 5
        if rate is not None:
            speeds = [round(speed, 2) for speed in (rate.produced, rate.completed, rate.failed)]
            speeds += [None if time is None else lasted(time) for time in (rate.run_p50, rate.run_p95)]
        rows.append([name, *_totals(of).values(), *speeds])
        topics[name] = _totals(of) | {"rates": None if rate is None else rate.as_dict()}
    data = {"topics": topics, "read_at": iso(counts.read_at), "missing": list(missing)}
    out.table(columns, rows, data=data, empty="no topic yet")
    out.missing(missing)
    if still is None and len(topics.keys() - rates.keys()):
        why = "the history has 200 topics at most" if rates else "the history has nothing of the last hour"
        out.remark(f"without figures are topics that are not in the history ({why}); --watch 1 measures them")


async def _watch(queue: RedisMessageQueue, interval: float, out: Output) -> None:
    columns: list[Column | str] = [
        Column("at", is_optional=True),
        "topic",
        "pending",
        "in/s",
        "done/s",
        "retried/s",
        Column("recovered/s", is_optional=True),
        Column("dead/s", style="red"),
        "oldest",
    ]
    before = await queue.counts()
    out.missing(before.missing)
    with out.live(columns) as show:
        while True:
            await asyncio.sleep(interval)
            counts = await queue.counts()
            if shards_of(counts.missing) != shards_of(before.missing):
                out.remark("other shards answer than before, so the next figures have no rates")
                out.missing(counts.missing)
            rates = _rates(before, counts)
            at = At(counts.read_at)
            rows: list[list[Cell]] = []
            for name, rate in rates.items():
                of = counts.topics[name]
                rows.append([at, name, of.pending, *rate.values(), At(of.oldest_at, counts.read_at)])
            if out.is_terminal:  # those where most happens first: not all may fit
                rows.sort(key=lambda row: -sum(cell for cell in row[3:8] if isinstance(cell, float)))
                rows = [[f"{at.moment:%H:%M:%S}" if at.moment else "", *row[1:]] for row in rows]
            data = {
                "at": iso(counts.read_at),
                "topics": _said(counts, rates),
                "missing": list(counts.missing),
            }
            show(rows, data)
            before = counts


def _rates(before: Counts, now: Counts) -> dict[str, dict[str, float | None]]:
    """Events a second, by topic; the totals of a topic that was forgotten begin anew.

    They are None if other shards answered before: the totals of a shard that is back are no new events.
    """
    seconds = max(now.read_at - before.read_at, 0.001)
    is_same = shards_of(before.missing) == shards_of(now.missing)
    rates = {}
    for name, of in now.topics.items():
        earlier = _totals(before.topics.get(name, _NONE))
        rates[name] = {
            event: max(0, total - earlier[event]) / seconds if is_same else None
            for event, total in _totals(of).items()
        }
    return rates


def _said(counts: Counts, rates: dict[str, dict[str, float | None]]) -> dict[str, Any]:
    return {
        name: {"pending": counts.topics[name].pending}
        | {f"{event}_per_second": None if v is None else round(v, 3) for event, v in rate.items()}
        for name, rate in rates.items()
    }


def _totals(of: TopicCounts) -> dict[str, int]:
    return {
        "produced": of.produced,
        "completed": of.completed,
        "retried": of.retried,
        "recovered": of.recovered,
        "dead": of.dead,
    }
