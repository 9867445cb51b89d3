"""What a benchmark says: rows of name, value, unit, reach and ok."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from rich.table import Table

if TYPE_CHECKING:
    from collections.abc import Iterable


@dataclass(frozen=True, slots=True)
class Row:
    name: str
    value: float
    unit: str
    reach: str = ""
    """What it must reach, as ``>= 0.5`` or ``<= 1.5``; empty for a figure that others are measured by."""

    @property
    def ok(self) -> bool:
        if not self.reach:
            return True
        sign, bound = self.reach.split()
        return self.value >= float(bound) if sign == ">=" else self.value <= float(bound)


def as_json(rows: Iterable[Row]) -> str:
    return json.dumps([{**asdict(row), "value": round(row.value, 4), "ok": row.ok} for row in rows], indent=1)


def as_table(rows: Iterable[Row]) -> Table:
    table = Table("what", "value", "unit", "reach", "ok", title="mx-rmq bench")
    table.columns[1].justify = "right"
    for row in rows:
        value = f"{row.value:,.0f}" if abs(row.value) >= 100 else f"{row.value:.3g}"
        mark = "" if not row.reach else "yes" if row.ok else "[bold red]NO[/]"
        table.add_row(row.name, value, row.unit, row.reach, mark)
    return table
