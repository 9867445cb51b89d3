"""The counters of a topic, and the laws that they obey; see docs/design.md."""

from __future__ import annotations

from typing import Final, NamedTuple

HAPPENINGS: Final = (
    *("produced", "replayed", "completed", "dead", "cancelled", "deleted", "restored"),
    *("retried", "put_off", "released", "promoted", "lapsed", "expired"),
)
"""The counters that only grow: every event of a topic is in one of them."""

STALE: Final = "stale"
"""How many entries of a topic's lists no claim will deliver."""


class Counters(NamedTuple):
    """The counters that say how a topic stands; each is the field ``<topic>:<name>`` of a hash."""

    produced: int = 0  # the usual ones first
    completed: int = 0
    retried: int = 0
    dead: int = 0
    replayed: int = 0
    cancelled: int = 0
    stale: int = 0
    lapsed: int = 0
    put_off: int = 0
    deleted: int = 0
    restored: int = 0
    adjusted: int = 0
    adjusted_dead: int = 0

    @property
    def live(self) -> int:
        """How many messages are pending, processing or delayed."""
        gained = self.produced + self.replayed + self.adjusted
        return gained - self.completed - self.dead - self.cancelled

    @property
    def in_dlq(self) -> int:
        """How many messages are dead now."""
        return self.dead + self.restored + self.adjusted_dead - self.replayed - self.deleted


EVENTS: Final = Counters._fields
USUAL: Final = EVENTS[:4]
"""What most topics have."""
RARE: Final = EVENTS[4:]
RARE_FIELDS: Final = "*:???[^dpr]*"
"""What the fields of the rare ones match: their fourth letter is none of those of the usual ones."""


def whole(text: bytes | None) -> int:
    """Parse a counter; 0 if it is missing or another program wrote something else there."""
    if text is None or len(text) > 20:
        return 0
    return int(text) if text.isdigit() or text.removeprefix(b"-").isdigit() else 0
