"""``mx-rmq check``: is all well? One line for Nagios, and an exit code for probes and cron."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

from cyclopts import Parameter

from mx_rmq.cli.completion import Topic
from mx_rmq.cli.connecting import known_topic, opened
from mx_rmq.cli.exits import Failure, UsageError
from mx_rmq.cli.output import Output
from mx_rmq.cli.settings import Common
from mx_rmq.cli.words import seconds_of
from mx_rmq.errors import MxRmqError
from mx_rmq.operating.doctor import named, not_consuming, unserved

if TYPE_CHECKING:
    from collections.abc import Callable

    from mx_rmq.storage.facts import Counts, Workers

_DEFAULT = Common()


class Status(IntEnum):
    """How the queue is; the exit code of ``check``."""

    OK = 0
    WARNING = 1
    CRITICAL = 2
    UNKNOWN = 3


class Limits(NamedTuple):
    """Above which values a figure is a warning, and critical; None for never."""

    warning: float | None = None
    critical: float | None = None

    def judge(self, value: float) -> Status:
        """How serious a value is."""
        if self.critical is not None and value > self.critical:
            return Status.CRITICAL
        return Status.WARNING if self.warning is not None and value > self.warning else Status.OK


class Finding(NamedTuple):
    """Something that is not well."""

    status: Status
    said: str


@dataclass(frozen=True, slots=True)
class Figure:
    """A number that is watched."""

    name: str
    value: float
    limits: Limits
    unit: str = ""

    @property
    def finding(self) -> Finding | None:
        """What to say of it, if it is above a limit."""
        status = self.limits.judge(self.value)
        if status is Status.OK:
            return None
        limit = self.limits.critical if status is Status.CRITICAL else self.limits.warning
        return Finding(status, f"{self} (at most {limit:,.0f}{self.unit})")

    @property
    def performance(self) -> str:
        """As Nagios keeps it: value, limits for warning and critical, least value."""
        cells = ["" if limit is None else f"{limit:.0f}" for limit in self.limits]
        return f"{self.name}={self.value:.0f}{self.unit};{';'.join(cells)};0"

    def __str__(self) -> str:
        return f"{self.name} {self.value:,.0f}{self.unit}"


async def check(
    *,
    max_pending: str | None = None,
    max_age: str | None = None,
    max_dead: str | None = None,
    topic: Annotated[tuple[Topic, ...], Parameter(consume_multiple=False)] = (),
    common: Common = _DEFAULT,
) -> int:
    """Exit with 0 if all is well, 1 for a warning, 2 if it is critical and 3 if that is not known.

    A limit is one number, above which it is critical, or two: 100,1000 is a warning above 100. It is
    critical too if messages wait in a topic that no live worker serves, or if a worker does not consume.
    A paused topic with messages is a warning.

    Args:
        max_pending: how many messages may be pending, in all topics together.
        max_age: how old the message next in line may be, counted from when it was produced.
        max_dead: how many messages may be in the DLQ.
        topic: look only at this topic; may be given again.
    """
    out = Output(common)
    try:
        pending, dead = _limits("--max-pending", max_pending, _whole), _limits("--max-dead", max_dead, _whole)
        age = _limits("--max-age", max_age, seconds_of)
        async with opened(common) as queue:
            for name in topic:
                await known_topic(queue, name)
            counts, workers = await queue.counts(), await queue.workers()
    except (Failure, MxRmqError) as error:
        return _say(out, Status.UNKNOWN, [Finding(Status.UNKNOWN, str(error))], [])
    topics = {name: of for name, of in counts.topics.items() if not topic or name in topic}
    ages = [counts.read_at - of.oldest_at for of in topics.values() if of.oldest_at is not None]
    figures = [
        Figure("pending", sum(of.pending for of in topics.values()), pending),
        Figure("oldest", max([0.0, *ages]), age, "s"),
        Figure("dead", sum(of.in_dlq for of in topics.values()) if topic else counts.dead, dead),
        Figure("workers", len(workers), Limits()),
    ]
    findings = [figure.finding for figure in figures if figure.finding is not None]
    findings += _looked_at(counts, workers, set(topics))
    findings += [Finding(Status.CRITICAL, why) for why in counts.missing]
    return _say(out, max((each.status for each in findings), default=Status.OK), findings, figures)


def _looked_at(counts: Counts, workers: Workers, topics: set[str]) -> list[Finding]:
    """What is wrong whatever the limits are."""
    findings = []
    if alone := [name for name in unserved(counts, workers) if name in topics]:
        findings.append(Finding(Status.CRITICAL, f"no live worker serves {named(alone)}"))
    for worker in workers:
        if topics.intersection(worker.topics) and (
            problems := not_consuming(worker, counts, workers.read_at)
        ):
            said = f"worker {worker.name} does not consume as it should: {', '.join(problems)}"
            findings.append(Finding(Status.CRITICAL, said))
    paused = [name for name in topics if counts.topics[name].paused and counts.topics[name].pending]
    if paused:
        findings.append(Finding(Status.WARNING, f"paused with messages: {named(sorted(paused))}"))
    return findings


def _say(out: Output, status: Status, findings: list[Finding], figures: list[Figure]) -> int:
    findings = sorted(findings, key=lambda each: -each.status)
    said = "; ".join(each.said for each in findings) or ", ".join(map(str, figures))
    performance = " ".join(figure.performance for figure in figures)
    line = f"{status.name} - {' '.join(said.split()).replace('|', '/')}"
    data: dict[str, Any] = {
        "status": status.name.lower(),
        "findings": [{"status": each.status.name.lower(), "said": each.said} for each in findings],
        "figures": {figure.name: figure.value for figure in figures},
    }
    out.line(f"{line} | {performance}" if performance else line, data=data)
    return int(status)


def _limits(option: str, text: str | None, number: Callable[[str, str], float]) -> Limits:
    """``1000`` is critical, ``100,1000`` a warning and critical."""
    if text is None:
        return Limits()
    parts = text.split(",")
    if len(parts) > 2:
        raise UsageError(f"{option} must be one limit or two such as 100,1000, got {text!r}")
    *warning, critical = (number(option, part) for part in parts)
    if warning and warning[0] > critical:
        raise UsageError(f"{option} must be the limit for a warning, then the critical one, got {text!r}")
    return Limits(warning[0] if warning else None, critical)


def _whole(option: str, text: str) -> float:
    if not text.strip().isdecimal():
        raise UsageError(f"{option} must be a whole number or two such as 100,1000, got {text!r}")
    return float(text)
