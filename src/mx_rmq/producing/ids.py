"""Message ids: short, unique, and sorted by the time they were made."""

from __future__ import annotations

import os
import random
import time
from itertools import product
from threading import Lock
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

_ALPHABET: Final = "0123456789abcdefghjkmnpqrstvwxyz"
_TAIL: Final = 2**20 - 1
"""The bits of the last four characters; those before them are the same for many ids in a row."""
_PAIRS: Final = ["".join(pair) for pair in product(_ALPHABET, repeat=2)]


class IdMaker:
    """Makes ids of 22 characters: 50 bits of milliseconds, then a number of 60 bits.

    The number starts at random in each millisecond, so that processes do not collide. Within the
    millisecond it grows by one, so that the ids of one maker strictly increase.
    """

    def __init__(self) -> None:
        self._number = 0
        self._span: tuple[int, str, Iterator[int]]
        """The latest millisecond, the first characters of its ids, and the numbers left for their ends."""
        self.forget()

    def __call__(self) -> str:
        """Make an id."""
        while True:
            # Needs no lock: the tuple is replaced as a whole, and next() is one step of the interpreter.
            millisecond, head, tails = self._span
            # Also after the clock stepped back: the ids of one maker must keep their order.
            if time.time_ns() // 1_000_000 <= millisecond and (tail := next(tails, -1)) >= 0:
                return head + _PAIRS[tail >> 10] + _PAIRS[tail & 1023]
            self._turn()

    def _turn(self) -> None:
        """Start a new millisecond, or the next million numbers of the latest one."""
        with self._lock:
            millisecond = time.time_ns() // 1_000_000
            if millisecond > self._span[0]:
                self._number = self._dice.getrandbits(59)
            else:
                millisecond = self._span[0]
                self._number = (self._number | _TAIL) + 1
            bits = millisecond << 40 | self._number >> 20
            head = "".join([_PAIRS[bits >> shift & 1023] for shift in range(80, -1, -10)])
            self._span = millisecond, head, iter(range(self._number & _TAIL, _TAIL + 1))

    def forget(self) -> None:
        """Start again; a forked child must not continue with its parent's numbers."""
        self._lock = Lock()  # a thread of the parent may have held it
        self._dice = random.Random()  # noqa: S311 - seeded by the system; ids are unique, not secret
        self._span = -1, "", iter(())


new_id: Final = IdMaker()
os.register_at_fork(after_in_child=new_id.forget)
