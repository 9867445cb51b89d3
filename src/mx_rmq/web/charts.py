"""Charts as SVG made on the server: no script, no style of their own, colours by class."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, floor, log10
from typing import TYPE_CHECKING, Final

from markupsafe import Markup

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    Values = Sequence[float | None]

_WIDTH: Final = 980.0
_HEIGHT: Final = 190.0
_LEFT: Final = 56.0
_RIGHT: Final = 10.0
_TOP: Final = 14.0
_BOTTOM: Final = 24.0
_LINES: Final = 4
"""Lines of the grid above zero."""


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a chart; None where nothing is known."""

    name: str
    """As the legend has it."""
    kind: str
    """The class that gives it its colour and its pattern: in, done, failed, p50, p95."""
    values: Values


def sparkline(values: Sequence[float], width: int = 120, height: int = 26) -> Markup:
    """A small line without axes; the numbers beside it say the rest, so it is hidden from screen readers."""
    if not any(values):
        return Markup("")
    most, steps = max(values), max(1, len(values) - 1)
    points = " ".join(
        f"{n * width / steps:.1f},{height - 2 - (height - 4) * value / most:.1f}"
        for n, value in enumerate(values)
    )
    return Markup(
        '<svg class="spark" viewBox="0 0 {} {}" width="{}" height="{}" aria-hidden="true" focusable="false">'
        '<polyline points="{}"/></svg>'
    ).format(width, height, width, height, points)


def chart(
    title: str, lines: Sequence[Line], ticks: Sequence[tuple[int, str]], unit: Callable[[float], str]
) -> Markup:
    """Lines over a grid.

    Args:
        title: what it shows, for screen readers.
        lines: of the same length.
        ticks: places and texts below the horizontal axis.
        unit: how a value is written at the vertical axis.
    """
    known = [value for line in lines for value in line.values if value is not None]
    count = max((len(line.values) for line in lines), default=0)
    frame = _Frame(nice_ceiling(max(known, default=0.0)), max(1, count - 1))
    x, y = frame.x, frame.y
    parts = [frame.grid(ticks, unit)]
    for line in lines:
        for start, values in _runs(line.values):
            points = " ".join(f"{x(start + n):.1f},{y(value):.1f}" for n, value in enumerate(values))
            if len(values) == 1:  # a line of one point would not be seen
                points += f" {x(start) + 2:.1f},{y(values[0]):.1f}"
            parts.append(Markup('<polyline class="{}" points="{}"/>').format(line.kind, points))
    return _svg(title, parts)


def bars(
    title: str,
    values: Sequence[int],
    names: Sequence[str],
    ticks: Sequence[tuple[int, str]],
    unit: Callable[[float], str],
) -> Markup:
    """Bars over a grid.

    Args:
        title: what it shows, for screen readers.
        values: how high the bars are.
        names: what each bar says to those who point at it.
        ticks: places and texts below the horizontal axis; each is at the left of its bar.
        unit: how a value is written at the vertical axis.
    """
    most = max(values, default=0)
    frame = _Frame(max(4.0, nice_ceiling(most)), max(1, len(values)))
    width = frame.x(1) - frame.x(0)
    parts = [frame.grid(ticks, unit)]
    for n, (value, name) in enumerate(zip(values, names, strict=True)):
        if value:
            # One of a million is seen, too.
            top = min(frame.y(value), frame.y(0) - 1.5)
            parts.append(
                Markup(
                    '<rect x="{:.1f}" y="{:.1f}" width="{:.1f}" height="{:.1f}"><title>{}</title></rect>'
                ).format(frame.x(n) + 1, top, width - 2, frame.y(0) - top, name)
            )
    return _svg(title, parts)


class _Frame:
    """Where values are on a chart, and the grid below them."""

    def __init__(self, top: float, steps: int) -> None:
        self._top = top
        self._steps = steps

    def x(self, n: float) -> float:
        return _LEFT + n * (_WIDTH - _LEFT - _RIGHT) / self._steps

    def y(self, value: float) -> float:
        return _HEIGHT - _BOTTOM - value / self._top * (_HEIGHT - _TOP - _BOTTOM)

    def grid(self, ticks: Sequence[tuple[int, str]], unit: Callable[[float], str]) -> Markup:
        parts = []
        for n in range(_LINES + 1):
            value = self._top * n / _LINES
            y = self.y(value)
            parts.append(
                Markup(
                    '<line x1="{}" x2="{}" y1="{:.1f}" y2="{:.1f}"/><text x="{}" y="{:.1f}">{}</text>'
                ).format(_LEFT, _WIDTH - _RIGHT, y, y, _LEFT - 6, y + 4, unit(value))
            )
        for n, text in ticks:
            place = "end" if n >= self._steps else "begin" if n == 0 else "mid"
            parts.append(
                Markup('<text class="t {}" x="{:.1f}" y="{}">{}</text>').format(
                    place, self.x(n), _HEIGHT - 6, text
                )
            )
        return Markup('<g class="grid">{}</g>').format(Markup("").join(parts))


def _svg(title: str, parts: Sequence[Markup]) -> Markup:
    return Markup(
        '<svg class="chart" viewBox="0 0 {:.0f} {:.0f}" role="img" aria-label="{}">{}</svg>'
    ).format(_WIDTH, _HEIGHT, title, Markup("").join(parts))


def nice_ceiling(value: float) -> float:
    """The next number above that divides well by four."""
    if value <= 0:
        return 1.0
    size = 10.0 ** floor(log10(value))
    for step in (1, 2, 4, 6, 8, 10):
        if value <= step * size * (1 + 1e-9):
            return step * size
    return ceil(value)


def _runs(values: Values) -> list[tuple[int, list[float]]]:
    """The parts of a line between its gaps, with the place where each begins."""
    found: list[tuple[int, list[float]]] = []
    is_open = False
    for n, value in enumerate(values):
        if value is None:
            is_open = False
        elif is_open:
            found[-1][1].append(value)
        else:
            found.append((n, [value]))
            is_open = True
    return found
