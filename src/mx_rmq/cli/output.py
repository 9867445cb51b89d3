"""What commands print: a table on a terminal, tab-separated lines in a pipe, JSON on demand.

Results go to stdout, all remarks to stderr.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from mx_rmq.cli.exits import Failure, UsageError
from mx_rmq.tables import ago, one_line

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from mx_rmq.cli.settings import Common

_NARROW = 80
"""Columns below which a table leaves out what is least needed."""


@dataclass(frozen=True, slots=True)
class At:
    """An instant in a cell: people see its age, programs ISO text with the zone."""

    instant: float | None
    now: float = 0.0
    """The time to count the age from; 0 for the time of this computer."""

    @property
    def age(self) -> str:
        """For people."""
        return ago(self.instant, self.now)

    @property
    def plain(self) -> str:
        """For programs."""
        moment = self._moment()
        return "" if moment is None else moment.isoformat(timespec="milliseconds")

    def _moment(self) -> datetime | None:
        if self.instant is None:
            return None
        try:
            return datetime.fromtimestamp(self.instant).astimezone()
        except (ValueError, OverflowError, OSError):  # never, or another program's number
            return None


Cell = str | int | float | At | None


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table."""

    name: str
    style: str = ""
    is_optional: bool = False
    """Whether a narrow terminal may go without it."""


class Output:
    """Where a command prints."""

    def __init__(self, common: Common) -> None:
        self.is_json = common.json
        self.is_quiet = common.quiet
        self._out = Console(highlight=False, soft_wrap=False)
        self._err = Console(stderr=True, highlight=False)

    @property
    def is_terminal(self) -> bool:
        """Whether a person reads stdout."""
        return self._out.is_terminal and not self.is_json

    # -- results

    def table(
        self,
        columns: Sequence[Column | str],
        rows: Iterable[Sequence[Cell]],
        *,
        data: Any,
        empty: str = "nothing",
    ) -> None:
        """Print rows.

        Args:
            columns: their names.
            rows: as many cells as columns.
            data: what ``--json`` prints instead.
            empty: what to remark where there are no rows.
        """
        if self.is_json:
            self.document(data)
            return
        described = [Column(one) if isinstance(one, str) else one for one in columns]
        all_rows = list(rows)
        if not all_rows:
            self.remark(empty)
        elif self._out.is_terminal:
            self._out.print(self._drawn(described, all_rows))
        else:
            for row in all_rows:
                self.raw("\t".join(map(_for_programs, row)))

    def line(self, text: str, *, data: Any) -> None:
        """Print a sentence."""
        if self.is_json:
            self.document(data)
        else:
            self.raw(text)

    def document(self, data: Any) -> None:
        """Print one JSON document."""
        self.raw(json.dumps(data, indent=2, ensure_ascii=False))

    def raw(self, text: str) -> None:
        """Print a text as it is, whatever is in it."""
        encoding = sys.stdout.encoding or "utf-8"
        print(text.encode(encoding, "backslashreplace").decode(encoding))

    # -- remarks

    def remark(self, text: str) -> None:
        """Tell the person something beside the result."""
        if not self.is_quiet:
            print(text, file=sys.stderr)

    def confirm(self, question: str, *, yes: bool) -> None:
        """Ask before something that cannot be undone.

        Raises:
            UsageError: there is no terminal to ask on, and no ``--yes``.
            Failure: the answer was not yes.
        """
        if yes:
            return
        if not sys.stdin.isatty() or not sys.stderr.isatty():
            raise UsageError(f"{question} Nothing was done: give --yes, since there is no terminal to ask on")
        print(f"{question} [y/N] ", end="", file=sys.stderr, flush=True)
        if sys.stdin.readline().strip().lower() not in ("y", "yes"):
            raise Failure("nothing was done")

    def _drawn(self, columns: Sequence[Column], rows: Sequence[Sequence[Cell]]) -> Table:
        shown = [
            n for n, column in enumerate(columns) if self._out.width >= _NARROW or not column.is_optional
        ]
        drawn = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
        for n in shown:
            is_number = all(isinstance(row[n], int | float | None) for row in rows)
            drawn.add_column(
                columns[n].name,
                justify="right" if is_number else "left",
                style=columns[n].style,
                overflow="fold",
                no_wrap=is_number,
            )
        for row in rows:
            drawn.add_row(*(_for_people(row[n]) for n in shown))
        return drawn


def _for_people(cell: Cell) -> Text:
    if isinstance(cell, At):
        return Text(cell.age)
    if isinstance(cell, int):
        return Text(f"{cell:,}")
    if isinstance(cell, float):
        return Text(f"{cell:,.1f}")
    return Text(one_line(cell, 400))


def _for_programs(cell: Cell) -> str:
    if isinstance(cell, At):
        return cell.plain
    if cell is None:
        return ""
    return " ".join(str(cell).split()) if isinstance(cell, str) else str(cell)
