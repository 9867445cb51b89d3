"""Message ids: short, unique, and sorted by the time they were made."""

from __future__ import annotations

import os
import random
import time
from itertools import product
from threading import Lock
from typing import Final

_ALPHABET: Final = "0123456789abcdefghjkmnpqrstvwxyz"
_PAIRS: Final = ["".join(pair) for pair in product(_ALPHABET, repeat=2)]


class IdMaker:
    """Makes ids of 22 characters: 50 bits of milliseconds, then 60 bits that grow within one.

    Each millisecond starts at a random number, so processes do not meet; inside it the number
    grows by one, so ids of one maker are strictly increasing.
    """

    def __init__(self) -> None:
        self._millisecond = -1
        self._number = 0
        self._head = ""
        self.forget()

    def __call__(self) -> str:
        """Make one."""
        millisecond = time.time_ns() // 1_000_000
        with self._lock:
            if millisecond > self._millisecond:
                self._millisecond = millisecond
                self._number = self._dice.getrandbits(59)
                self._head = self._first_characters()
            else:
                # Also while the clock steps back: order within the maker comes first.
                self._number += 1
                if not self._number & 0xFFFFF:
                    self._head = self._first_characters()
            return self._head + _PAIRS[self._number >> 10 & 1023] + _PAIRS[self._number & 1023]

    def _first_characters(self) -> str:
        """All but the last four, which few ids have to themselves."""
        bits = self._millisecond << 40 | self._number >> 20
        return "".join([_PAIRS[bits >> shift & 1023] for shift in (80, 70, 60, 50, 40, 30, 20, 10, 0)])

    def forget(self) -> None:
        """Start afresh; a forked child must not go on counting where its parent does."""
        self._lock = Lock()  # a thread of the parent may have held it
        self._dice = random.Random()  # noqa: S311 - seeded by the system; ids are unique, not secret
        self._millisecond = -1


new_id: Final = IdMaker()
os.register_at_fork(after_in_child=new_id.forget)
