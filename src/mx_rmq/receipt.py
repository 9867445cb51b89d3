"""What produce returns."""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


class Stored(IntEnum):
    """The result of producing a message: stored, or how its id was already taken."""

    STORED = 1
    LIVE = 0
    DEAD = -1
    DONE = -2


class Receipt(str):
    """The id of a message, and whether it was stored now or the id was already taken."""

    __slots__ = ()  # as small as a string: there may be millions of them

    stored: Stored = Stored.STORED

    @classmethod
    def of(cls, id_: str, stored: Stored) -> Receipt:
        """A receipt for a message id."""
        if stored is Stored.STORED:
            return cls(id_)
        receipt = _Taken(id_)
        receipt.stored = stored
        return receipt

    @property
    def duplicate(self) -> bool:
        """True if the id was already taken, so that nothing was stored."""
        return self.stored is not Stored.STORED


def receipts(ids: Iterable[str], stored: Iterable[Stored]) -> list[Receipt]:
    """A receipt for each of many ids; quicker than one by one."""
    new = Stored.STORED
    return [
        Receipt(id_) if status is new else Receipt.of(id_, status)
        for id_, status in zip(ids, stored, strict=True)
    ]


class _Taken(Receipt):
    """A receipt for an id that was taken; its ``__dict__`` holds ``stored``."""
