"""The server: what the doctor says, the audit and its repair, and what operators did."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Final

from starlette.routing import Route

from mx_rmq.tables import counted
from mx_rmq.web.acts import Done, act
from mx_rmq.web.desk import Section, desk_of
from mx_rmq.web.security import Refused
from mx_rmq.web.words import link

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from mx_rmq.operating.audit_report import AuditReport
    from mx_rmq.web.acts import Call
    from mx_rmq.web.desk import Desk
    from mx_rmq.web.jobs import Job, Work

_ACTS: Final = 100
"""Acts of the trail on a page."""
_FINDINGS: Final = 200
"""Findings of an audit that are listed."""
_RANKS: Final = {"problem": 0, "warning": 1, "ok": 2}
_CLASSES: Final = {"problem": "bad", "warning": "warn", "ok": "ok"}
_AUDIT: Final = "Audit"
_REPAIR: Final = "Audit and repair"


async def server(request: Request) -> Response:
    """The page."""
    desk = desk_of(request)
    checkup, trail = await asyncio.gather(desk.queue.doctor(audit_for=0), desk.looks.trail())
    start = _whole(request.query_params.get("acts", "0"))
    return desk.page(
        request,
        "server.html",
        title="Server",
        checkup=checkup,
        diagnoses=sorted(checkup.diagnoses, key=lambda each: _RANKS[each.level]),
        classes=_CLASSES,
        audit=_last_audit(desk),
        acts=trail[start : start + _ACTS],
        start=start,
        older=start + _ACTS if start + _ACTS < len(trail) else None,
        now=trail.read_at,
        clock=time.time(),
    )


def _last_audit(desk: Desk) -> Job | None:
    """The latest audit of this process."""
    return next((job for job in desk.jobs.all() if job.title in (_AUDIT, _REPAIR)), None)


def _running(desk: Desk) -> Done | None:
    """Leads to the audit or repair that is under way: each reads the whole queue, so one at a time does."""
    last = _last_audit(desk)
    if last is None or not last.is_running:
        return None
    return Done(f"{last.title}: under way already, nothing else was begun", link("job", id=last.id))


def _whole(text: str) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > 6:
        raise Refused(400, f"acts must be a whole number, got {text[:20]!r}")
    return int(text)


@act("/server/audit", right="look", what="audit")
async def audit(call: Call) -> Done:
    """Check that every message is in exactly one place; changes nothing."""
    if running := _running(call.desk):
        return running
    return call.start(_AUDIT, _audit(call.desk, repair=False), total=await _total(call.desk), back="server")


async def confirm_repair(request: Request) -> Response:
    """Say what a repair does."""
    desk = desk_of(request)
    return desk.page(
        request,
        "repair.html",
        title="Repair",
        total=await _total(desk),
        audit=_last_audit(desk),
        clock=time.time(),
    )


@act("/server/repair", right="mend", what="repair")
async def repair(call: Call) -> Done:
    """Audit, and put what is stray back where it is not lost."""
    if call.form.get("sure") != "yes":
        raise Refused(400, "tick the box to confirm the repair; nothing was changed")
    if running := _running(call.desk):
        return running
    return call.start(_REPAIR, _audit(call.desk, repair=True), total=await _total(call.desk), back="server")


async def _total(desk: Desk) -> int:
    """How many messages an audit looks at."""
    counts = await desk.queue.counts()
    return counts.pending + counts.processing + counts.delayed + counts.dead


def _audit(desk: Desk, *, repair: bool) -> Work:
    async def work(job: Job) -> str:
        before, last = 0, 0

        def progress(looked: int) -> None:  # begins anew with every shard
            nonlocal before, last
            if looked < last:
                before += last
            last = looked
            job.progress(before + looked)

        reports = await desk.queue.audit(repair=repair, progress=progress)
        found = sum(len(report.findings) for report in reports)
        job.results = [line for report in reports for line in _lines(report)][:_FINDINGS]
        if found > _FINDINGS:
            job.results.append(f"and {found - _FINDINGS:,} more; mx-rmq audit lists them all")
        repaired = sum(finding.repaired for report in reports for finding in report.findings)
        said = "; ".join(report.summary for report in reports)
        return f"{said}; {counted(repaired, 'finding')} repaired" if repair else said

    return work


def _lines(report: AuditReport) -> list[str]:
    return [
        f"{each.kind}: {each.what}"
        f"{f' of {each.topic}' if each.topic else ''}"
        f"{f', {each.detail}' if each.detail else ''}"
        f"{', repaired' if each.repaired else ''}"
        for each in report.findings[:_FINDINGS]
    ]


SECTION: Final = Section(
    routes=[Route("/server", server), Route("/server/repair", confirm_repair), audit, repair],
    nav=("Server", "server"),
)
