"""Search: by id at once, by topic and error, and for a text in payloads as a job."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Final

from starlette.responses import RedirectResponse
from starlette.routing import Route

from mx_rmq.checks import check_topic, is_label
from mx_rmq.operating.messages import STATES
from mx_rmq.web.acts import Done, act
from mx_rmq.web.desk import Live, Section, address, desk_of
from mx_rmq.web.finding import MOST_BYTES, MOST_HITS, MOST_MESSAGES, Hit, Scan
from mx_rmq.web.security import Refused
from mx_rmq.web.words import cut, link

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from mx_rmq.operating.letters import DeadGroup
    from mx_rmq.operating.messages import Listed
    from mx_rmq.web.acts import Call
    from mx_rmq.web.desk import Desk
    from mx_rmq.web.jobs import Job

_LONGEST: Final = 300
"""Characters of what is searched for."""
_MOST: Final = 50
"""Topics and groups that are listed."""


async def search(request: Request) -> Response:
    """What was found, or the form; an id leads to its message."""
    desk, asked = desk_of(request), request.query_params
    text = asked.get("q", "").strip()[:_LONGEST]
    job = desk.jobs.get(asked.get("job", ""))
    if text and job is None and is_label(text) and (await desk.queue.find(text)).state != "gone":
        return RedirectResponse(address(request, link("message", id=text)), 303)
    figures, groups = await asyncio.gather(desk.looks.figures(), desk.looks.groups())
    wanted = text.casefold()
    topics = [each for each in figures.topics if wanted in each.name.casefold()] if text else []
    topics.sort(key=lambda each: (each.name != text, each.name))
    errors = [group for group in groups if wanted in _words(group)] if text else []
    return desk.page(
        request,
        "search.html",
        title=f"Search: {cut(text, 60)}" if text else "Search",
        text=text,
        topics=topics[:_MOST],
        more_topics=max(0, len(topics) - _MOST),
        errors=errors[:_MOST],
        more_errors=max(0, len(errors) - _MOST),
        is_id=is_label(text),
        states=STATES,
        topic=asked.get("topic", "")[:128],
        state=asked.get("state", ""),
        names=[each.name for each in figures.topics][:200],
        job=job,
        hits=_hits(job),
        now=time.time(),
        at=groups.read_at,
        most=(MOST_MESSAGES, MOST_BYTES // 1024 // 1024, MOST_HITS),
    )


def _words(group: DeadGroup) -> str:
    return f"{group.topic} {group.error} {group.place} {group.text}".casefold()


def _hits(job: Job | None) -> list[Hit]:
    return [Hit.parse(line) for line in job.results if line.count("\t") >= 3] if job else []


@act("/search/payloads", right="look", what="search payloads", target="q")
async def payloads(call: Call) -> Done:
    """Look for a text in payloads."""
    text = call.target.strip()[:_LONGEST]
    topic = call.form.get("topic").strip()
    if not text:
        raise Refused(400, "type the text to look for")
    state: Listed | None = next((each for each in STATES if each == call.form.get("state")), None)
    scan = Scan(call.desk, text, check_topic(topic) if topic else "", state)
    total = scan.total(await call.desk.queue.counts())
    back = link("search", q=text, topic=topic, state=state)
    job = call.begin(f"Search payloads for {cut(text, 60)}", scan.run, total=total, back=back)
    return Done("", link("search", q=text, topic=topic, state=state, job=job.id))


async def _live(desk: Desk, id_: str) -> Live:
    job = desk.jobs.get(id_)
    if job is None:
        return Live({})
    return Live({"found": desk.part("search_parts.html", "found", job=job, hits=_hits(job), now=time.time())})


SECTION: Final = Section(routes=[Route("/search", search), payloads], live={"search": _live})
