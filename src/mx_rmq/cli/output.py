"""What commands print: a table on a terminal, tab-separated lines in a pipe, JSON on demand.

Results go to stdout, all remarks to stderr.
"""

from __future__ import annotations

import json
import sys
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from mx_rmq.cli.asking import answer
from mx_rmq.cli.exits import Failure, UsageError
from mx_rmq.tables import ago, one_line, printable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from mx_rmq.cli.settings import Common

_NARROW = 80
"""Columns below which a table leaves out what is least needed."""


@dataclass(frozen=True, slots=True)
class At:
    """An instant in a cell: people see local time and age, programs ISO text with the zone."""

    instant: float | None
    now: float = 0.0
    """The time to count the age from; 0 for the time of this computer."""

    def __str__(self) -> str:
        moment = self.moment
        return "-" if moment is None else f"{moment:%Y-%m-%d %H:%M:%S %Z} ({ago(self.instant, self.now)})"

    @property
    def age(self) -> str:
        """Only the age, for narrow columns."""
        return ago(self.instant, self.now)

    @property
    def plain(self) -> str:
        """For programs."""
        moment = self.moment
        return "" if moment is None else moment.isoformat(timespec="milliseconds")

    @property
    def moment(self) -> datetime | None:
        """In local time; None if there is none, or none that can be shown."""
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
    is_cut: bool = False
    """Whether it takes the width that the others leave, and a text that is longer is cut."""
    is_whole: bool = False
    """Whether its cells must stay on one line, so that they can be copied."""


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
        styles: Sequence[str] = (),
    ) -> None:
        """Print rows.

        Args:
            columns: their names.
            rows: as many cells as columns.
            data: what ``--json`` prints instead.
            empty: what to remark where there are no rows.
            styles: of the first cell of each row.
        """
        if self.is_json:
            self.document(data)
            return
        described = [Column(one) if isinstance(one, str) else one for one in columns]
        all_rows = list(rows)
        if not all_rows:
            self.remark(empty)
        elif self._out.is_terminal:
            self._out.print(self._drawn(described, all_rows, styles))
        else:
            for row in all_rows:
                self.raw("\t".join(map(_for_programs, row)))

    def facts(self, facts: Mapping[str, Cell], *, data: Any) -> None:
        """Print facts, one a line."""
        if self.is_json:
            self.document(data)
            return
        width = max(map(len, facts), default=0)
        for name, cell in facts.items():
            if self._out.is_terminal:
                label = one_line(name, 100).ljust(width)
                self._out.print(Text.assemble((label, "dim"), "  ", _for_people(cell)))
            else:
                self.raw(f"{name}\t{_for_programs(cell)}")

    def line(self, text: str, *, data: Any) -> None:
        """Print a sentence."""
        if self.is_json:
            self.document(data)
        else:
            self.raw(printable(text))

    def document(self, data: Any) -> None:
        """Print one JSON document."""
        self.raw(json.dumps(data, indent=2, ensure_ascii=not _takes_all()))

    def record(self, data: Any, text: str) -> None:
        """Print one record of a stream, at once: a line of JSON or of text."""
        if self.is_json:
            self.json_line(data)
        else:
            self.raw(text, flush=True)

    def json_line(self, data: Any) -> None:
        """Print a line of JSON, at once."""
        self.raw(json.dumps(data, ensure_ascii=not _takes_all()), flush=True)

    def heading(self, title: str) -> None:
        """Print a title above the next part, for people."""
        self._out.print()
        self._out.print(Text(title, style="bold"))

    def text(self, text: str) -> None:
        """Print lines of text that another program wrote; control characters are shown, not sent."""
        shown = "".join(c if c.isprintable() or c == "\n" else repr(c)[1:-1] for c in text)
        self.raw(shown)

    @contextmanager
    def live(
        self, columns: Sequence[Column | str]
    ) -> Iterator[Callable[[Iterable[Sequence[Cell]], Any], None]]:
        """Show a table that changes; yields what to call with its rows and with what ``--json`` prints.

        On a terminal the table is drawn anew each time, as many rows as fit. Otherwise each call adds lines.
        """
        described = [Column(one) if isinstance(one, str) else one for one in columns]

        def add(rows: Iterable[Sequence[Cell]], data: Any) -> None:
            lines = ("\t".join(map(_for_programs, row)) for row in rows)
            self.record(data, "\n".join(lines))

        if not self.is_terminal:
            yield add
            return
        with Live(console=self._out, auto_refresh=False) as screen:

            def draw(rows: Iterable[Sequence[Cell]], data: Any) -> None:
                fitting = list(rows)[: max(1, self._out.height - 2)]
                screen.update(self._drawn(described, fitting), refresh=True)

            yield draw

    def raw(self, text: str, *, flush: bool = False) -> None:
        """Print a text as it is, whatever is in it."""
        encoding = sys.stdout.encoding or "utf-8"
        print(text.encode(encoding, "backslashreplace").decode(encoding), flush=flush)

    def styled(self, text: Text) -> None:
        """Print a text with colours, on a terminal that wants them."""
        self._out.print(text, soft_wrap=True)

    # -- remarks

    def missing(self, whys: Iterable[str]) -> None:
        """Tell of shards that did not answer, whose part the result lacks."""
        for why in whys:
            self.remark(f"missing: {why}")

    def remark(self, text: str) -> None:
        """Tell the person something beside the result."""
        if not self.is_quiet:
            print(printable(text), file=sys.stderr)

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
        if answer(f"{question} [y/N] ") not in ("y", "yes"):
            raise Failure("nothing was done")

    @contextmanager
    def progress(self, what: str, total: int | None) -> Iterator[Callable[[int], None]]:
        """Show a bar on stderr, if a person reads it; yields what to call with the number done so far."""
        if self.is_quiet or not self._err.is_terminal:
            yield lambda done: None
            return
        columns = (TextColumn(what), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        with Progress(*columns, console=self._err, transient=True) as bar:
            task = bar.add_task(what, total=total)
            yield lambda done: bar.update(task, completed=done)

    def _drawn(
        self, columns: Sequence[Column], rows: Sequence[Sequence[Cell]], styles: Sequence[str] = ()
    ) -> Table:
        shown = [
            n for n, column in enumerate(columns) if self._out.width >= _NARROW or not column.is_optional
        ]
        is_wide = any(columns[n].is_cut for n in shown)
        drawn = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold", expand=is_wide)
        for n in shown:
            is_number = all(isinstance(row[n], int | float | None) for row in rows)
            is_short = is_number or any(isinstance(row[n], At) for row in rows)
            is_cut = columns[n].is_cut
            drawn.add_column(
                columns[n].name,
                justify="right" if is_number else "left",
                style=columns[n].style,
                overflow="ellipsis" if is_cut else "fold",
                no_wrap=is_short or is_cut or columns[n].is_whole,
                min_width=len(columns[n].name),
                ratio=1 if is_cut else None,
            )
        for number, row in enumerate(rows):
            cells = [_for_people(row[n], short=True) for n in shown]
            if styles:
                cells[0].stylize(styles[number])
            drawn.add_row(*cells)
        return drawn


def _takes_all() -> bool:
    """Whether stdout takes every character; what it does not take, JSON writes as an escape of its own."""
    return (sys.stdout.encoding or "utf-8").lower().replace("-", "") == "utf8"


def _for_people(cell: Cell, *, short: bool = False) -> Text:
    if isinstance(cell, At):
        return Text(cell.age if short else str(cell))
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
