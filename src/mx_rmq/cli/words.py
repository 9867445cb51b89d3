"""What people type and read: durations, rates, headers, numbers of things."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from mx_rmq.cli.exits import UsageError
from mx_rmq.limits import MOST_SECONDS
from mx_rmq.tables import counted as counted

if TYPE_CHECKING:
    from collections.abc import Iterable

_DURATION: Final = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d|w)?", re.ASCII)
_SECONDS: Final = {"": 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
_RATE: Final = re.compile(r"(\d+(?:\.\d+)?)(?:/(s|m|h))?", re.ASCII)
_SHARD: Final = re.compile(r"shard (\S+) at ")


def seconds_of(option: str, text: str) -> float:
    """A duration such as ``90``, ``90s``, ``5m``, ``2h`` or ``1d`` in seconds."""
    found = _DURATION.fullmatch(text.strip())
    seconds = float(found[1]) * _SECONDS[found[2] or ""] if found else MOST_SECONDS
    if seconds >= MOST_SECONDS:
        raise UsageError(f"{option} must be a duration such as 90, 90s, 5m, 2h or 1d, got {text!r}")
    return seconds


def rate_of(option: str, text: str) -> float:
    """A rate such as ``100/s``, ``30/m`` or ``100`` in messages a second."""
    found = _RATE.fullmatch(text.strip())
    rate = float(found[1]) / _SECONDS[found[2] or ""] if found else 0.0
    if not 0 < rate < MOST_SECONDS:
        raise UsageError(f"{option} must be a rate such as 100/s or 30/m, got {text!r}")
    return rate


def header_of(option: str, text: str) -> tuple[str, str]:
    """A header such as ``tenant=7``."""
    name, sign, value = text.partition("=")
    if not name or not sign:
        raise UsageError(f"{option} must be name=value, got {text!r}")
    return name, value


def shards_of(missing: Iterable[str]) -> frozenset[str]:
    """Which shards did not answer, by what ``missing`` says; the reason may be another at each look."""
    found = (_SHARD.match(why) for why in missing)
    return frozenset(match[1] if match else "" for match in found)
