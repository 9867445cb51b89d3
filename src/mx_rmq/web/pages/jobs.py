"""The page of a job: how far it is, a stop button, what came of it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from starlette.routing import Route

from mx_rmq.web.acts import Done, act
from mx_rmq.web.desk import Live, Section, desk_of
from mx_rmq.web.security import Refused
from mx_rmq.web.words import link

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from mx_rmq.web.acts import Call
    from mx_rmq.web.desk import Desk
    from mx_rmq.web.jobs import Job


async def job(request: Request) -> Response:
    """One job, or all of them."""
    desk, id_ = desk_of(request), request.query_params.get("id", "")
    if not id_:
        return desk.page(request, "jobs.html", title="Jobs", jobs=desk.jobs.all(), now=time.time())
    found = _job(desk, id_)
    return desk.page(request, "job.html", title=found.title, job=found, now=time.time())


@act("/job/stop", right="look", what="stop a job", target="id")
async def stop(call: Call) -> Done:
    """Stop a job; only its own person may, and those who may mend."""
    found = _job(call.desk, call.target)
    if found.who != call.user.name and "mend" not in call.user.may:
        raise Refused(403, f"{found.who} began this; stopping it needs the right 'mend'")
    found.stop(call.user.name)
    return Done("stopping", link("job", id=found.id))


async def _live(desk: Desk, id_: str) -> Live:
    found = desk.jobs.get(id_)
    if found is None:
        return Live({})
    return Live({"progress": desk.part("job_parts.html", "progress", job=found, now=time.time())})


def _job(desk: Desk, id_: str) -> Job:
    found = desk.jobs.get(id_)
    if found is None:
        raise Refused(
            404,
            "there is no such job in this process: it is long over, the application was restarted, or "
            "another of its processes has the job; the trail on the page Server says how it ended",
        )
    return found


SECTION: Final = Section(routes=[Route("/job", job), stop], live={"job": _live})
