"""The charts of a history: speeds, and how long messages ran and waited."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from mx_rmq.tables import lasted, speed
from mx_rmq.web.charts import Line, chart
from mx_rmq.web.looks import RANGES

if TYPE_CHECKING:
    from collections.abc import Callable

    from markupsafe import Markup

    from mx_rmq.operating.history import History, HistoryRow
    from mx_rmq.web.looks import Range

_TICKS: Final = 6


@dataclass(frozen=True, slots=True)
class Drawn:
    """A chart with its legend."""

    title: str
    svg: Markup
    legend: tuple[tuple[str, str], ...]


def drawn_history(history: History, over: Range) -> list[Drawn]:
    """The charts of a span."""
    speeds = [_per_second(row, history) for row in history.rows]
    ticks = _ticks(history)

    def drawn(title: str, unit: Callable[[float], str], *lines: Line) -> Drawn:
        svg = chart(f"{title}, last {over}", lines, ticks, unit)
        return Drawn(title, svg, tuple((line.name, line.kind) for line in lines))

    return [
        drawn(
            "Messages per second",
            speed,
            Line("in", "in", [each[0] for each in speeds]),
            Line("done", "done", [each[1] for each in speeds]),
            Line("failed", "failed", [each[2] for each in speeds]),
        ),
        drawn(
            "Time to run",
            lasted,
            Line("half within", "p50", [row.run_p50 for row in history.rows]),
            Line("95 % within", "p95", [row.run_p95 for row in history.rows]),
        ),
        drawn(
            "Time waited",
            lasted,
            Line("half within", "p50", [row.wait_p50 for row in history.rows]),
            Line("95 % within", "p95", [row.wait_p95 for row in history.rows]),
        ),
    ]


def _per_second(row: HistoryRow, history: History) -> tuple[float, float, float]:
    """The speeds of a row; the last row is not over."""
    seconds = min(history.step * 60.0, max(1.0, history.read_at - row.begins_at))
    return row.produced / seconds, row.completed / seconds, (row.retried + row.died) / seconds


def _ticks(history: History) -> list[tuple[int, str]]:
    count = len(history.rows)
    long = count * history.step > RANGES["24h"] + history.step
    places = sorted({n * (count - 1) // (_TICKS - 1) for n in range(_TICKS)})
    texts = []
    for place in places[:-1]:
        moment = datetime.fromtimestamp(history.rows[place].begins_at, UTC)
        texts.append((place, f"{moment:%a %H:%M}" if long else f"{moment:%H:%M}"))
    return [*texts, (count - 1, "now")]


def range_of(text: str) -> Range:
    """The span that a part of an address means."""
    return next((name for name in RANGES if name == text), "1h")
