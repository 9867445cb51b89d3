"""What a fault is given and what it has to show."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TypeVar

import msgspec

T = TypeVar("T")


class Row(msgspec.Struct, kw_only=True):
    """One line of the table."""

    fault: str
    runs: int = 1
    messages: int = 0
    kills: int = 0
    """Or cuts, or whatever else was done to it, so many times."""
    lost: int = 0
    duplicates: int = 0
    recovery: float | None = None
    """Seconds until things went on, or until the messages ran elsewhere: p99 where there are many."""
    figure: str
    """What was to be shown."""
    seen: str = ""
    """What was seen, where the columns do not say it."""
    ok: bool


@dataclass
class Run:
    """How large, from which seed, and where to say how far it is."""

    short: bool
    seed: int
    tell: Callable[[str], None] = lambda text: None
    minutes: float = 30.0
    """How long the soak takes."""
    dice: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self.dice = random.Random(self.seed)

    def size(self, long: T, short: T) -> T:
        """One of two sizes: that of ``./mx faults``, or that of the tests."""
        return short if self.short else long


Fault = Callable[[Run], Awaitable[Row]]


def percentile(values: list[float], which: float) -> float:
    """The value below which *which* percent lie; 0 if there are none."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * which / 100))] if ordered else 0.0
