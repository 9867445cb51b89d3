"""Facts for people and for other programs: aligned tables, ages, and plain values for JSON."""

from __future__ import annotations

import time
from dataclasses import fields
from datetime import UTC, datetime
from math import inf, isfinite
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

Cell = str | int | None

_WIDEST: Final = 60
"""Characters of a cell; the last column may be twice as wide."""
_UNITS: Final = ((86400, "d"), (3600, "h"), (60, "m"), (1, "s"))


def table(columns: Sequence[str], rows: Iterable[Sequence[Cell]]) -> str:
    """Aligned columns under their names: numbers right, texts left and shortened to one line."""
    cells = [list(row) for row in rows]
    texts = [list(columns)]
    for row in cells:
        widths = [_WIDEST] * (len(row) - 1) + [2 * _WIDEST]
        texts.append([one_line(cell, width) for cell, width in zip(row, widths, strict=True)])
    right = [all(isinstance(row[n], int) for row in cells) and bool(cells) for n in range(len(columns))]
    widths = [max(len(text[n]) for text in texts) for n in range(len(columns))]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if is_right else cell.ljust(width)
            for cell, width, is_right in zip(text, widths, right, strict=True)
        ).rstrip()
        for text in texts
    )


def block(facts: Mapping[str, Cell]) -> str:
    """One fact a line, those that are None or empty left out."""
    shown = {name: one_line(cell, 4 * _WIDEST) for name, cell in facts.items() if cell not in (None, "")}
    width = max(map(len, shown), default=0)
    return "\n".join(f"{name.ljust(width)}  {cell}" for name, cell in shown.items())


def one_line(cell: Cell, width: int) -> str:
    """A cell as text: on one line, without control characters, at most *width* characters."""
    if cell is None or cell == "":
        return "-"
    text = " ".join(str(cell).split())
    text = "".join(character if character.isprintable() else "?" for character in text)
    return text if len(text) <= width else text[: width - 1] + "…"


def printable(text: str) -> str:
    """A text that cannot steer a terminal: control characters are ``?``; lines and tabs stay."""
    return "".join(character if character.isprintable() or character in "\n\t" else "?" for character in text)


def ago(instant: float | None, now: float = 0.0) -> str:
    """How long ago an instant was, such as ``3m ago``, or how far off it is, such as ``in 2h``.

    Args:
        instant: seconds since 1970, None for none.
        now: the time to count from; 0 for the time of this computer.
    """
    if instant is None or instant == inf:
        return "-" if instant is None else "never"
    passed = (now or time.time()) - instant
    if not isfinite(passed) or abs(passed) >= 1e10:
        return "?"
    seconds = int(abs(passed))
    for size, unit in _UNITS:
        if seconds >= size:
            return f"{seconds // size}{unit} ago" if passed > 0 else f"in {seconds // size}{unit}"
    return "now"


def counted(number: int, what: str) -> str:
    """How many there are of something, such as ``1 message`` or ``2,500 messages``."""
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def speed(rate: float) -> str:
    """Events a second, such as ``0``, ``3.1`` or ``1,204``."""
    return f"{rate:,.0f}" if rate >= 99.5 or rate == 0 else f"{rate:.1f}"


def lasted(seconds: float | None) -> str:
    """A duration in words, such as ``0.25ms``, ``1.5s`` or ``12m``; two digits say enough."""
    if seconds is None:
        return "-"
    for size, unit in ((3600.0, "h"), (60.0, "m"), (1.0, "s")):
        if seconds >= size:
            return f"{_two_digits(seconds / size)}{unit}"
    return f"{_two_digits(seconds * 1000)}ms"


def _two_digits(number: float) -> str:
    return f"{number:.0f}" if number >= 9.95 else f"{number:.2g}"


def utc(instant: float | None) -> str:
    """An instant in words."""
    if instant is None or instant == inf:
        return "never"
    moment = _moment(instant)
    return "an unreadable time" if moment is None else moment.strftime("%Y-%m-%d %H:%M:%S UTC")


def plain(value: Any) -> Any:
    """A value as JSON has it: what these facts are made of, all the way down."""
    if hasattr(value, "as_dict"):
        return value.as_dict()
    if isinstance(value, dict):
        return {name: plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple | set):
        return [plain(item) for item in value]
    if isinstance(value, float) and not isfinite(value):
        return None
    return value


def plain_fields(facts: Any) -> dict[str, Any]:
    """The fields of a dataclass as JSON has them; instants become ISO texts in UTC, or None."""
    found = {}
    for field in fields(facts):
        value = getattr(facts, field.name)
        is_instant = field.name.endswith(("_at", "_until"))
        found[field.name] = iso(value) if is_instant else plain(value)
    return found


def iso(instant: float | None) -> str | None:
    """An instant as ISO text in UTC; None for never, and for one that cannot be written."""
    moment = None if instant is None else _moment(instant)
    return None if moment is None else moment.isoformat(timespec="milliseconds")


def _moment(instant: float) -> datetime | None:
    try:
        return datetime.fromtimestamp(instant, UTC)
    except (ValueError, OverflowError, OSError):  # another program's number, or a time after the year 9999
        return None
