"""The page of a topic: its figures, its messages by state, pause, resume and purge."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, NamedTuple

from starlette.routing import Route

from mx_rmq.checks import check_topic
from mx_rmq.operating.doctor import named
from mx_rmq.operating.figures import TopicFigures
from mx_rmq.operating.messages import STATES
from mx_rmq.storage.facts import TopicCounts
from mx_rmq.tables import ago, counted
from mx_rmq.web.acts import Done, act
from mx_rmq.web.attention import pausings
from mx_rmq.web.desk import Live, Section, desk_of
from mx_rmq.web.happened import drawn_history, range_of
from mx_rmq.web.looks import RANGES
from mx_rmq.web.pages.overview import LEVELS
from mx_rmq.web.previews import message_row
from mx_rmq.web.security import Refused
from mx_rmq.web.words import link

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from mx_rmq.operating.messages import Listed
    from mx_rmq.web.acts import Call
    from mx_rmq.web.desk import Desk
    from mx_rmq.web.jobs import Job

ROWS: Final = 50
"""Messages on a page."""
_ORDERS: Final[dict[Listed, tuple[str, str]]] = {
    "pending": ("next to run first", "last to run first"),
    "running": ("oldest claim first", "newest claim first"),
    "held": ("oldest claim first", "newest claim first"),
    "delayed": ("next due first", "last due first"),
    "dead": ("latest death first", "oldest death first"),
}
"""In which order each list is, and what the other one is called."""


class Standing(NamedTuple):
    """How a topic stands."""

    of: TopicFigures
    state: str
    """In a word or two."""
    level: str
    workers: str
    """Who serves it, in words."""
    now: float


async def topic(request: Request) -> Response:
    """The page."""
    desk, asked = desk_of(request), request.query_params
    name = check_topic(asked.get("name", ""))
    state: Listed = next((each for each in STATES if each == asked.get("state")), "pending")
    over = range_of(asked.get("range", ""))
    reverse = asked.get("order") == "reverse"
    after = asked.get("after") or None
    # The history refuses a topic that does not exist.
    history, standing, page = await asyncio.gather(
        desk.queue.history(name, minutes=RANGES[over]),
        _standing(desk, name),
        desk.queue.list(name, state=state, limit=ROWS, after=after, reverse=reverse),
    )
    return desk.page(
        request,
        "topic.html",
        title=name,
        topic=name,
        standing=standing,
        states=STATES,
        state=state,
        orders=_ORDERS[state],
        order="reverse" if reverse else "",
        after=after,
        rows=[message_row(facts, desk.redact) for facts in page.messages],
        following=page.next,
        missing=page.missing,
        read_at=page.read_at,
        ranges=list(RANGES),
        over=over,
        charts=drawn_history(history, over),
        history=history,
    )


async def _standing(desk: Desk, name: str) -> Standing:
    figures, trail = await asyncio.gather(desk.looks.figures(), desk.looks.trail())
    serving = [worker.name for worker in figures.workers if name in worker.topics]
    of = next((each for each in figures.topics if each.name == name), None)
    if of is None:  # served, but not produced to yet
        of = TopicFigures(name, TopicCounts(), bool(serving))
    state = of.state
    if state == "paused" and (last := pausings(trail).get(name)):
        state = f"paused by {last.who} {ago(last.at, figures.read_at)}"
    workers = f"{counted(len(serving), 'worker')}: {named(serving)}" if serving else ""
    return Standing(of, state, LEVELS.get(of.state, "idle"), workers, figures.read_at)


async def _live(desk: Desk, name: str) -> Live:
    standing = await _standing(desk, check_topic(name))
    html = {"standing": desk.part("topic_parts.html", "standing", standing=standing)}
    for state in STATES:
        html[f"count-{state}"] = desk.part("topic_parts.html", "count", standing=standing, state=state)
    return Live(html)


# -- acts


@act("/topic/pause", right="mend", what="pause", target="topic")
async def pause(call: Call) -> Done:
    """Stop the delivery of a topic."""
    await call.desk.queue.pause(call.target)
    return Done(
        f"{call.target} is paused: what runs goes on, nothing new begins", link("topic", name=call.target)
    )


@act("/topic/resume", right="mend", what="resume", target="topic")
async def resume(call: Call) -> Done:
    """Deliver a paused topic again."""
    await call.desk.queue.resume(call.target)
    return Done(f"{call.target} is delivered again", link("topic", name=call.target))


async def confirm_purge(request: Request) -> Response:
    """Say what a purge withdraws, and ask for the topic's name."""
    desk, name = desk_of(request), check_topic(request.query_params.get("name", ""))
    await desk.queue.history(name, minutes=1)  # refuses a topic that does not exist
    of = (await desk.queue.counts()).topics.get(name, TopicCounts())
    return desk.page(request, "purge.html", title=f"Purge {name}", topic=name, of=of)


@act("/topic/purge", right="delete", what="purge", target="topic")
async def purge(call: Call) -> Done:
    """Withdraw all pending and delayed messages of a topic, as a job."""
    name, queue = check_topic(call.target), call.desk.queue
    if call.form.get("typed").strip() != name:
        raise Refused(400, f"type the name of the topic, {name}, to purge it; nothing was withdrawn")
    of = (await queue.counts()).topics.get(name, TopicCounts())

    async def work(job: Job) -> str:
        purged = await queue.purge(name, progress=job.progress)
        job.progress(purged)
        return f"{counted(purged, 'message')} withdrawn"

    return call.start(f"Purge {name}", work, total=of.pending + of.delayed, back=link("topic", name=name))


SECTION: Final = Section(
    routes=[Route("/topic", topic), Route("/topic/purge", confirm_purge), pause, resume, purge],
    live={"topic": _live},
)
