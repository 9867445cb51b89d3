"""Two versions side by side: by which ratio, and which ratios are too low."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from math import inf, isfinite, sqrt
from statistics import mean, median, quantiles
from typing import NamedTuple

from rich.table import Table

Samples = Sequence[float]


def percentile(which: float) -> Callable[[Samples], float]:
    """What takes the value below which *which* percent of the samples lie."""

    def of(samples: Samples) -> float:
        ordered = sorted(samples)
        return ordered[min(len(ordered) - 1, int(len(ordered) * which / 100))]

    return of


def rise(samples: Samples) -> float:
    """From the least to the most."""
    return max(samples) - min(samples)


@dataclass(frozen=True, slots=True)
class Figure:
    """A line of the table."""

    name: str
    unit: str
    reduce: Callable[[Samples], float] = mean
    """What makes one value of the samples of a round."""
    judged: bool = True
    """Whether its ratio can fail the run; not where two runs of the same code differ by more."""

    @property
    def higher_is_better(self) -> bool:
        return self.unit == "msg/s"


class Pair(NamedTuple):
    """What one round measured of both versions."""

    this: float
    other: float

    @property
    def ratio(self) -> float:
        return self.this / self.other if self.other else 1.0


@dataclass(slots=True)
class Compared:
    """A figure of both versions over all rounds."""

    figure: Figure
    reach: float
    """The least share of the other version's speed that this one must have."""
    rounds: list[Pair] = field(default_factory=list)

    def add(self, this: Samples, other: Samples) -> None:
        """Note what a round measured."""
        self.rounds.append(Pair(self.figure.reduce(this), self.figure.reduce(other)))

    @property
    def this(self) -> float:
        return median(pair.this for pair in self.rounds)

    @property
    def other(self) -> float:
        return median(pair.other for pair in self.rounds)

    @property
    def ratio(self) -> float:
        """The median of the rounds' ratios: each round is compared with itself only."""
        return median(pair.ratio for pair in self.rounds)

    @property
    def error(self) -> float:
        """The standard error of that median, as far as the quartiles of the rounds tell it."""
        if len(self.rounds) < 2:
            return inf
        low, _, high = quantiles((pair.ratio for pair in self.rounds), n=4)
        deviation = (high - low) / 1.349  # of a normal distribution with these quartiles
        return 1.253 * deviation / sqrt(len(self.rounds))

    @property
    def settled(self) -> bool:
        """Whether more rounds would hardly change the verdict."""
        return not self.figure.judged or self.error <= (1 - self.reach) / 3

    @property
    def bound(self) -> str:
        """What the ratio must reach, as ``>= 0.97``; empty where nothing is judged."""
        if not self.figure.judged:
            return ""
        return f">= {self.reach:.3g}" if self.figure.higher_is_better else f"<= {1 / self.reach:.3g}"

    @property
    def ok(self) -> bool:
        if not self.figure.judged:
            return True
        return self.ratio >= self.reach if self.figure.higher_is_better else self.ratio <= 1 / self.reach


def as_json(rows: Iterable[Compared]) -> str:
    names = ("this", "other", "ratio", "error")
    return json.dumps(
        [
            {"name": row.figure.name, "unit": row.figure.unit}
            | {name: finite(getattr(row, name)) for name in names}
            | {"rounds": len(row.rounds), "reach": row.bound, "ok": row.ok}
            for row in rows
        ],
        indent=1,
    )


def finite(value: float) -> float | None:
    """A number for JSON, which has no infinity."""
    return round(value, 4) if isfinite(value) else None


def as_table(rows: Iterable[Compared], other: str) -> Table:
    table = Table("what", "this tree", other, "unit", "ratio", "error", "reach", "ok")
    table.title = f"mx-rmq bench against {other}"
    table.caption = "ratio: this tree / the other, median of the rounds; judged where there is a reach"
    for column in (1, 2, 4, 5):
        table.columns[column].justify = "right"
    for row in rows:
        this, it = (f"{value:,.0f}" if value >= 100 else f"{value:.3g}" for value in (row.this, row.other))
        ratio, error = f"{row.ratio:.3f}", f"±{row.error:.3f}"
        mark = "" if not row.bound else "yes" if row.ok else "[bold red]NO[/]"
        table.add_row(row.figure.name, this, it, row.figure.unit, ratio, error, row.bound, mark)
    return table
