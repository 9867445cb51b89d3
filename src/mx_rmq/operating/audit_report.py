"""What an audit counted and found."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Final

from mx_rmq.tables import plain_fields, table

PLACES: Final = ("pending", "processing", "delayed", "dead")
"""Where a message can be."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One problem that the audit found."""

    kind: str
    what: str
    """The message id, the key or the topic it is about."""
    topic: str = ""
    repaired: bool = False
    detail: str = ""

    def as_dict(self) -> dict[str, Any]:
        """As JSON has it."""
        return plain_fields(self)


@dataclass(slots=True)
class AuditReport:
    """What the audit counted and found."""

    places: Counter[str] = field(default_factory=Counter)
    """How many messages are pending, processing, delayed and dead."""
    stale_hints: int = 0
    """Entries of pending lists that no claim would deliver. They are harmless: a claim drops them."""
    ungrouped: int = 0
    """Dead messages that no group counts: they died before groups were counted. A repair counts them."""
    findings: list[Finding] = field(default_factory=list)
    counters_checked: bool = True
    """False if traffic during the audit made it meaningless to compare the counters."""
    finished: bool = True
    """False if the time was over before everything was looked at."""
    shard: str = ""
    """The shard as its layout names it; empty for the only one."""

    @property
    def clean(self) -> bool:
        """True if nothing is wrong."""
        return not self.findings

    @property
    def live(self) -> int:
        """How many messages are not finished: pending, processing or delayed."""
        return self.places["pending"] + self.places["processing"] + self.places["delayed"]

    def as_dict(self) -> dict[str, Any]:
        """As JSON has it."""
        return {"clean": self.clean} | plain_fields(self)

    @property
    def summary(self) -> str:
        """How it went, in one line."""
        places = ", ".join(f"{self.places[place]} {place}" for place in PLACES)
        hints = f", {self.stale_hints} stale entries" if self.stale_hints else ""
        hints += f", {self.ungrouped} in no group" if self.ungrouped else ""
        checked = (
            "" if self.counters_checked else "; the counters changed during the audit and were not checked"
        )
        if not self.finished:
            checked = "; the time was over before everything was looked at"
        count = len(self.findings)
        found = "clean" if self.clean else f"{count} finding{'' if count == 1 else 's'}"
        shard = f"shard {self.shard}: " if self.shard else ""
        return f"{shard}{found}: {places}{hints}{checked}"

    def __str__(self) -> str:
        if self.clean:
            return self.summary
        columns = ("problem", "what", "topic", "repaired", "detail")
        rows = [
            (each.kind, each.what, each.topic, "yes" if each.repaired else "no", each.detail)
            for each in self.findings
        ]
        return f"{self.summary}\n{table(columns, rows)}"


class AuditReports(list[AuditReport]):
    """The reports of an audit, one for each shard; prints as they do."""

    def as_dict(self) -> dict[str, Any]:
        """As JSON has it."""
        return {"reports": [report.as_dict() for report in self]}

    def __str__(self) -> str:
        return "\n\n".join(map(str, self))
