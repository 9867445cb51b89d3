"""What is due when: a histogram of the next hours, and the messages."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from starlette.routing import Route

from mx_rmq.tables import counted
from mx_rmq.web.charts import bars
from mx_rmq.web.desk import Section, desk_of
from mx_rmq.web.previews import message_row
from mx_rmq.web.words import number, took

if TYPE_CHECKING:
    from markupsafe import Markup
    from starlette.requests import Request
    from starlette.responses import Response

    from mx_rmq.operating.schedule import Schedule

_ROWS: Final = 50
_SPANS: Final = {"6h": 6, "24h": 24, "7d": 7 * 24}
"""Hours that can be looked at."""
_TICKS: Final = 6


async def scheduled(request: Request) -> Response:
    """The page."""
    desk, asked = desk_of(request), request.query_params
    over = next((name for name in _SPANS if name == asked.get("range")), "24h")
    after = asked.get("after") or None
    schedule = await desk.queue.schedule(hours=_SPANS[over], limit=_ROWS, after=after)
    return desk.page(
        request,
        "scheduled.html",
        title="Scheduled",
        schedule=schedule,
        soon=sum(schedule.due),
        rows=[message_row(facts, desk.redact) for facts in schedule.messages],
        chart=_histogram(schedule, over),
        after=after,
        over=over,
        ranges=list(_SPANS),
    )


def _histogram(schedule: Schedule, over: str) -> Markup:
    count, step = len(schedule.due), schedule.step
    names = [
        f"{counted(due, 'message')} due in {took(n * step) if n else '0'} to {took((n + 1) * step)}"
        for n, due in enumerate(schedule.due)
    ]
    places = [n * count // _TICKS for n in range(_TICKS + 1)]
    ticks = [(n, f"in {_hours(n * step)}" if n else "now") for n in places]
    title = f"Messages due in the next {over}, in steps of {took(step)}"
    return bars(title, schedule.due, names, ticks, lambda value: number(round(value)))


def _hours(seconds: float) -> str:
    hours = seconds / 3600
    return f"{hours / 24:.3g} d" if hours > 24 else f"{hours:.3g} h"


SECTION: Final = Section(routes=[Route("/scheduled", scheduled)], nav=("Scheduled", "scheduled"))
