"""A table whose rows are replaced again and again; its cursor stays on the thing, not on the line."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.text import Text
from textual.coordinate import Coordinate
from textual.widgets import DataTable

from mx_rmq.cli.top.cells import fitting

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mx_rmq.cli.top.cells import Column


class LiveTable(DataTable[Text]):
    """A table of named rows.

    Args:
        columns: those of all screens; a narrow one shows fewer.
        id: of the widget.
    """

    def __init__(self, columns: tuple[Column, ...], *, id: str) -> None:  # noqa: A002 - as textual has it
        super().__init__(cursor_type="row", zebra_stripes=False, id=id)
        self._all = columns
        self._shown: list[int] = []
        self._names: list[str] = []

    @property
    def selected(self) -> str | None:
        """The name of the row under the cursor."""
        return self._names[self.cursor_row] if 0 <= self.cursor_row < len(self._names) else None

    def show(self, names: Sequence[str], rows: Sequence[Sequence[Text]]) -> None:
        """Show these rows now."""
        before = self.selected
        if (columns := fitting(self._all, self.app.size.width)) != self._shown:
            self._shown = columns
            self.clear(columns=True)
            for n in columns:
                title, _, is_text = self._all[n]
                self.add_column(Text(title, justify="left" if is_text else "right"), key=str(n))
        for at, row in enumerate(rows):
            cells = [row[n] for n in columns]
            if at >= self.row_count:
                self.add_row(*cells, key=str(at))
                continue
            for column, (old, new) in enumerate(zip(self.get_row_at(at), cells, strict=True)):
                if (old.plain, old.style) != (new.plain, new.style):
                    self.update_cell_at(Coordinate(at, column), new, update_width=True)
        for at in range(self.row_count - 1, len(rows) - 1, -1):
            self.remove_row(str(at))
        self._names = list(names)
        if before is not None and before != self.selected and before in self._names:
            self.move_cursor(row=self._names.index(before))
