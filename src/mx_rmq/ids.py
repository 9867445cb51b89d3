"""Message ids: short, unique, and sorted by the time they were made."""

from __future__ import annotations

import os
import time
from itertools import product
from secrets import randbits
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
        self._lock = Lock()
        self._millisecond = -1
        self._prefix = ""
        self._number = 0

    def __call__(self) -> str:
        """Make one."""
        millisecond = time.time_ns() // 1_000_000
        with self._lock:
            if millisecond > self._millisecond:
                self._millisecond = millisecond
                self._prefix = "".join(_PAIRS[millisecond >> shift & 1023] for shift in (40, 30, 20, 10, 0))
                self._number = randbits(59)
            else:
                # Also while the clock steps back: order within the maker comes first.
                self._number += 1
            prefix, n = self._prefix, self._number
        return (  # in one expression, because every message passes here
            f"{prefix}{_PAIRS[n >> 50]}{_PAIRS[n >> 40 & 1023]}{_PAIRS[n >> 30 & 1023]}"
            f"{_PAIRS[n >> 20 & 1023]}{_PAIRS[n >> 10 & 1023]}{_PAIRS[n & 1023]}"
        )

    def forget(self) -> None:
        """Start afresh; a forked child must not go on counting where its parent does."""
        self._lock = Lock()  # a thread of the parent may have held it
        self._millisecond = -1


new_id: Final = IdMaker()
os.register_at_fork(after_in_child=new_id.forget)
