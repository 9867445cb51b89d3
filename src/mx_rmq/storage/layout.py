"""The layout of a queue: which shards it has, generation by generation, as a small key holds it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, NamedTuple

from mx_rmq.limits import MOST_SHARDS

_TEXT: Final = re.compile(r"\d{1,9}:\d{1,4}( \d{1,9}:\d{1,4})*", re.ASCII)


class Generation(NamedTuple):
    """Shards that were made together; a reshard adds a generation."""

    number: int
    shards: int

    @property
    def names(self) -> tuple[str, ...]:
        """The names of its shards, which are part of their keys; empty for the queue's own tag."""
        if self.number == 0:
            return ("",) if self.shards == 1 else tuple(map(str, range(self.shards)))
        return tuple(f"{self.number}.{n}" for n in range(self.shards))


@dataclass(frozen=True, slots=True)
class Layout:
    """The generations of a queue, the oldest first. New messages go to the last; the others only drain."""

    generations: tuple[Generation, ...]

    @classmethod
    def first(cls, shards: int) -> Layout:
        """The layout of a new queue."""
        return cls((Generation(0, shards),))

    @classmethod
    def parse(cls, text: str) -> Layout | None:
        """Parse what is stored; None if it cannot be read."""
        if not _TEXT.fullmatch(text):
            return None
        pairs = (pair.split(":") for pair in text.split())
        generations = tuple(Generation(int(number), int(shards)) for number, shards in pairs)
        grows = all(one.number < other.number for one, other in pairwise(generations))
        return cls(generations) if grows and all(1 <= g.shards <= MOST_SHARDS for g in generations) else None

    @property
    def current(self) -> Generation:
        """The generation that takes new messages."""
        return self.generations[-1]

    def grown(self, shards: int) -> Layout:
        """The layout with a further generation."""
        return Layout((*self.generations, Generation(self.current.number + 1, shards)))

    def without(self, number: int) -> Layout:
        """The layout without one of its older generations."""
        return Layout(tuple(each for each in self.generations if each.number != number))

    def __str__(self) -> str:
        return " ".join(f"{each.number}:{each.shards}" for each in self.generations)


COPIES: Final = ("0", "1")
"""The shards that have copies of the layout, also when they are no shards any more, or never were."""

ONE: Final = Layout.first(1)
"""The layout of a queue for which none is stored."""
