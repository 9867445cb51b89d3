"""The overview: what needs attention, how every topic stands, and what happened lately."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from starlette.routing import Route

from mx_rmq.tables import ago
from mx_rmq.web.attention import matters, pausings
from mx_rmq.web.charts import sparkline
from mx_rmq.web.desk import Live, Section, desk_of
from mx_rmq.web.happened import drawn_history, range_of
from mx_rmq.web.looks import RANGES

if TYPE_CHECKING:
    from markupsafe import Markup
    from starlette.requests import Request
    from starlette.responses import Response

    from mx_rmq.operating.figures import Figures, TopicFigures
    from mx_rmq.operating.trail import Act
    from mx_rmq.web.attention import Matter
    from mx_rmq.web.desk import Desk

_MOST: Final = 200
"""Topics in the table."""
LEVELS: Final = {"no worker": "bad", "failing": "warn", "paused": "warn", "running": "ok"}
"""The colour of a topic's state."""


@dataclass(frozen=True, slots=True)
class Row:
    """A topic in the table."""

    of: TopicFigures
    state: str
    level: str
    spark: Markup

    @property
    def id(self) -> str:
        """Of its element; a topic has no blank."""
        return f"topic-{self.of.name}"


@dataclass(frozen=True, slots=True)
class Topics:
    """The table of topics."""

    rows: list[Row]
    left_out: int
    figures: Figures


async def overview(request: Request) -> Response:
    """The page."""
    desk = desk_of(request)
    over = range_of(request.query_params.get("range", ""))
    only = request.query_params.get("only", "").strip()[:128]
    topics, found, history = await asyncio.gather(
        _topics(desk, only), _matters(desk), desk.looks.history(over)
    )
    return desk.page(
        request,
        "overview.html",
        title="Overview",
        topics=topics,
        now=topics.figures.read_at,
        matters=found,
        ranges=list(RANGES),
        over=over,
        only=only,
        charts=drawn_history(history, over),
        rows=history.rows,
        step=history.step,
    )


# -- what needs attention


async def _matters(desk: Desk) -> list[Matter]:
    looks = desk.looks
    return matters(*await asyncio.gather(looks.figures(), looks.groups(), looks.checkup(), looks.trail()))


async def _live_attention(desk: Desk, _argument: str) -> Live:
    html = desk.part("overview_parts.html", "attention", matters=await _matters(desk))
    return Live({"attention": html})


# -- topics


async def _topics(desk: Desk, only: str) -> Topics:
    figures, trail = await asyncio.gather(desk.looks.figures(), desk.looks.trail())
    # By name among equals: rows that change places every second cannot be read.
    wanted = sorted(
        (each for each in figures.topics if only in each.name), key=lambda each: (-each.trouble, each.name)
    )
    by = pausings(trail)
    rows = [_row(each, by, figures.read_at) for each in wanted[:_MOST]]
    return Topics(rows, max(0, len(wanted) - _MOST), figures)


def _row(of: TopicFigures, by: dict[str, Act], now: float) -> Row:
    state = of.state
    if state == "paused" and of.name in by:
        state = f"paused by {by[of.name].who} {ago(by[of.name].at, now)}"
    return Row(of, state, LEVELS.get(of.state, "idle"), sparkline(of.completions))


async def _live_topics(desk: Desk, only: str) -> Live:
    topics = await _topics(desk, only)
    now = topics.figures.read_at
    html = {row.id: desk.part("overview_parts.html", "topic_row", row=row, now=now) for row in topics.rows}
    html["totals"] = desk.part("overview_parts.html", "totals", figures=topics.figures)
    return Live(html, {"topics": [row.id for row in topics.rows]})


# -- charts


async def _live_charts(desk: Desk, over: str) -> Live:
    chosen = range_of(over)
    charts = drawn_history(await desk.looks.history(chosen), chosen)
    return Live({"charts": desk.part("overview_parts.html", "charts", charts=charts)})


SECTION: Final = Section(
    routes=[Route("/", overview)],
    nav=("Overview", "."),
    live={"topics": _live_topics, "attention": _live_attention, "charts": _live_charts},
)
