"""``mx-rmq doctor`` and ``mx-rmq audit``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mx_rmq.cli.connecting import opened, place_of
from mx_rmq.cli.exits import Exit
from mx_rmq.cli.output import Column, Output
from mx_rmq.cli.settings import Common
from mx_rmq.cli.words import counted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mx_rmq.operating.audit_report import AuditReport
    from mx_rmq.operating.doctor import Level
    from mx_rmq.queue import RedisMessageQueue

_DEFAULT = Common()
_STYLES: Final[dict[Level, str]] = {"ok": "green", "warning": "yellow", "problem": "bold red"}


async def doctor(*, common: Common = _DEFAULT) -> int:
    """Look at server, rights, topics and workers; exit with 1 if something is a problem.

    Each finding has its remedy. The audit, which reads all messages, is given five seconds.
    """
    out = Output(common)
    async with opened(common) as queue:
        checkup = await queue.doctor()
    if out.is_terminal:
        rows: list[tuple[str, str, str]] = []
        styles: list[str] = []
        for each in checkup.diagnoses:
            rows.append((each.level, each.what, each.said))
            styles.append(_STYLES[each.level])
            if each.remedy:
                rows.append((" ", " ", f"→ {each.remedy}"))
                styles.append("")
        out.table(["level", "what", "found"], rows, data=None, styles=styles)
    else:
        columns = ["level", "what", "found", "remedy"]
        lines = [(each.level, each.what, each.said, each.remedy) for each in checkup.diagnoses]
        out.table(columns, lines, data=checkup.as_dict())
    return Exit.DONE if checkup.ok else Exit.FAILED


async def audit(*, repair: bool = False, yes: bool = False, common: Common = _DEFAULT) -> int:
    """Check that every message is in exactly one place; exit with 1 if something is wrong.

    Args:
        repair: put what is stray back where it is not lost; asks before.
        yes: do not ask.
    """
    out = Output(common)
    async with opened(common) as queue:
        reports = await _audited(queue, out, repair=False)
        wrong = sum(len(report.findings) for report in reports)
        ungrouped = sum(report.ungrouped for report in reports)
        if repair and (wrong or ungrouped):
            what = [f"repair {counted(wrong, 'finding')}"] if wrong else []
            what += [f"put {counted(ungrouped, 'dead message')} into groups"] if ungrouped else []
            question = " and ".join(what)
            out.confirm(f"{question[0].upper()}{question[1:]} in {place_of(queue)}?", yes=yes)
            reports = await _audited(queue, out, repair=True)
    findings = [finding for report in reports for finding in report.findings]
    rows = [
        (each.kind, each.what, each.topic, "yes" if each.repaired else "no", each.detail) for each in findings
    ]
    columns: list[Column | str] = ["problem", "what", "topic", "repaired", Column("detail", is_optional=True)]
    summary = "\n".join(report.summary for report in reports)
    data = {"clean": not findings, "reports": [report.as_dict() for report in reports]}
    out.table(columns, rows, data=data, empty=summary)
    if findings:
        out.remark(summary)
        if not repair:
            out.remark("mx-rmq audit --repair puts this right")
    return Exit.DONE if all(each.repaired for each in findings) else Exit.FAILED


async def _audited(queue: RedisMessageQueue, out: Output, *, repair: bool) -> Sequence[AuditReport]:
    counts = await queue.counts()
    total = counts.pending + counts.processing + counts.delayed + counts.dead
    with out.progress("repairing" if repair else "looking", total) as progress:
        return await queue.audit(repair=repair, progress=progress)
