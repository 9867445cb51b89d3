"""The workers: who lives, what each has, what is wrong with it, and who vanished."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from starlette.routing import Route

from mx_rmq.checks import is_label
from mx_rmq.errors import ServerUnavailable
from mx_rmq.operating.doctor import LATE, not_consuming, unserved
from mx_rmq.web.desk import Live, Section, desk_of

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from mx_rmq.operating.figures import Figures
    from mx_rmq.operating.vanished import VanishedWorker
    from mx_rmq.storage.facts import WorkerFacts
    from mx_rmq.web.desk import Desk

_MOST: Final = 200
"""Workers in the table."""
_IDS: Final = 10
"""Messages of a vanished worker that are looked for."""
_FATES: Final = {"gone": "completed or deleted since"}
_VANISHED: Final = 20
"""Vanished workers in the table."""
_LAG: Final = 0.5
"""Seconds that an event loop may be late before it is remarked."""


@dataclass(frozen=True, slots=True)
class Row:
    """A worker in the table."""

    of: WorkerFacts
    problems: list[str]
    level: str

    @property
    def id(self) -> str:
        """Of its element."""
        return f"worker-{self.of.name}"


@dataclass(frozen=True, slots=True)
class Gone:
    """A vanished worker in the table."""

    of: VanishedWorker
    fates: list[tuple[str, str]]
    """Some of its messages, and where each is now."""


async def workers(request: Request) -> Response:
    """The page."""
    desk = desk_of(request)
    figures, (gone, more_gone, unknown) = await asyncio.gather(desk.looks.figures(), _vanished(desk))
    rows = _rows(figures)
    return desk.page(
        request,
        "workers.html",
        title="Workers",
        rows=rows[:_MOST],
        count=len(rows),
        figures=figures,
        alone=unserved(figures.counts, figures.workers)[:_MOST],
        now=figures.read_at,
        gone=gone,
        more_gone=more_gone,
        unknown=unknown,
    )


async def _vanished(desk: Desk) -> tuple[list[Gone], int, str]:
    """Who vanished lately, how many before these, and which shards did not say."""
    try:
        vanished = await desk.queue.vanished()
    except ServerUnavailable as error:
        return [], 0, str(error)
    gone = await asyncio.gather(*(_gone(desk, each) for each in vanished[:_VANISHED]))
    return gone, max(0, len(vanished) - _VANISHED), "; ".join(vanished.missing)


async def _gone(desk: Desk, worker: VanishedWorker) -> Gone:
    ids = [id_ for id_ in worker.ids if is_label(id_)][:_IDS]
    fates = await asyncio.gather(*(_fate(desk, id_) for id_ in ids))
    return Gone(worker, list(zip(ids, fates, strict=True)))


async def _fate(desk: Desk, id_: str) -> str:
    """What became of a message."""
    try:
        facts = await desk.queue.find(id_)
    except ServerUnavailable:  # it may be on a shard that does not answer
        return "not known now"
    return _FATES.get(facts.state, facts.state)


def _rows(figures: Figures) -> list[Row]:
    """The workers, those with problems first."""
    rows = []
    for worker in figures.workers:
        problems = not_consuming(worker, figures.counts, figures.read_at)
        if worker.loop_lag > _LAG:
            problems.append(f"its event loop was blocked for {worker.loop_lag:.1f} s")
        late = figures.read_at - worker.seen_at > LATE
        rows.append(Row(worker, problems, "bad" if problems else "warn" if late else "ok"))
    return sorted(rows, key=lambda row: (row.level == "ok", row.of.name))


async def _live(desk: Desk, _argument: str) -> Live:
    figures = await desk.looks.figures()
    rows = _rows(figures)
    html = {
        row.id: desk.part("workers_parts.html", "worker_row", row=row, now=figures.read_at)
        for row in rows[:_MOST]
    }
    html["worker-totals"] = desk.part("workers_parts.html", "totals", count=len(rows), figures=figures)
    return Live(html, {"workers": [row.id for row in rows[:_MOST]]})


SECTION: Final = Section(
    routes=[Route("/workers", workers)], nav=("Workers", "workers"), live={"workers": _live}
)
