"""The counters of a topic, and the laws that they obey; see docs/design.md."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

HAPPENINGS: Final = (
    *("produced", "replayed", "completed", "dead", "cancelled", "deleted", "restored"),
    *("retried", "put_off", "released", "promoted", "lapsed", "expired"),
)
"""The counters that only grow: every event of a topic is in one of them."""

STALE: Final = "stale"
"""How many entries of a topic's lists no claim will deliver."""

EVENTS: Final = (
    *("produced", "replayed", "adjusted", "completed", "dead", "cancelled"),
    *("restored", "adjusted_dead", "deleted", "retried", "put_off", "lapsed"),
    STALE,  # the last one, as the script count_topics wants it
)
"""The counters that say how a topic stands; a field is named ``<topic>:<event>``."""


def counters_of(text: bytes) -> dict[str, int]:
    """The counters of a topic, from their values in the order of ``EVENTS``."""
    return dict(zip(EVENTS, map(int, text.split()), strict=True))


def live(of: Mapping[str, int]) -> int:
    """How many messages of a topic are pending, processing or delayed, by its counters."""
    gained = of["produced"] + of["replayed"] + of["adjusted"]
    return gained - of["completed"] - of["dead"] - of["cancelled"]


def in_dlq(of: Mapping[str, int]) -> int:
    """How many messages of a topic are dead, by its counters."""
    return of["dead"] + of["restored"] + of["adjusted_dead"] - of["replayed"] - of["deleted"]
