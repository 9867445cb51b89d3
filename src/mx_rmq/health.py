"""How well a process and its worker are: what ``health()`` answers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from mx_rmq.tables import block, plain_fields


@dataclass(frozen=True, slots=True)
class ShardHealth:
    """One shard, as this process sees it; ages in seconds."""

    round_trip: float | None = None
    """Seconds that the server took to answer; None if it did not."""
    error: str = ""
    """Why it did not."""
    name: str = ""
    """The shard as its layout names it; empty for the only one."""
    last_claim: float | None = None
    """How long ago the server last answered a claim, with messages or without; None before the first."""
    looks: dict[str, float] = field(default_factory=dict)
    """How long ago each service of the worker last did its work: fetcher, scheduler and monitor."""
    refused: dict[str, str] = field(default_factory=dict)
    """Topics whose claims the server refuses, and why."""

    def as_dict(self) -> dict[str, Any]:
        """As JSON has it."""
        return plain_fields(self)


@dataclass(frozen=True, slots=True)
class WorkerHealth:
    """The worker of this process, without a look at the server."""

    name: str
    loop_lag: float
    running: int
    held: int
    leases_lost: int
    shards: tuple[ShardHealth, ...]
    problems: tuple[str, ...]
    stuck: tuple[str, ...]
    """Those of the problems that only a restart would mend."""


@dataclass(frozen=True, slots=True)
class Health:
    """How this process and its worker are; prints as a block."""

    queue: str
    worker: str = ""
    """The worker's name, empty if none has started here."""
    loop_lag: float | None = None
    """The longest that the worker's event loop was late in the last seconds."""
    running: int = 0
    held: int = 0
    leases_lost: int = 0
    """Messages of the last minute that another worker took over while they were here."""
    shards: tuple[ShardHealth, ...] = ()
    problems: list[str] = field(default_factory=list)
    """What is wrong, in words; empty if nothing is."""
    is_open: bool = True
    is_alive: bool = True
    """Whether the worker's services make progress; False if only a restart would help."""

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong."""
        return not self.problems

    @property
    def answers(self) -> bool:
        """Whether the queue is open and a server answers; the shards on it go on without the others."""
        return self.is_open and any(shard.round_trip is not None for shard in self.shards)

    def as_dict(self) -> dict[str, Any]:
        """As JSON has it."""
        return {"ok": self.ok, **plain_fields(self)}

    def __str__(self) -> str:
        trips = [shard.round_trip for shard in self.shards]
        claims = [shard.last_claim for shard in self.shards if shard.last_claim is not None]
        looks = {name: max(s.looks[name] for s in self.shards) for s in self.shards for name in s.looks}
        return block(
            {
                "health": "ok" if self.ok else "; ".join(self.problems),
                "queue": self.queue,
                "server": ", ".join("no answer" if t is None else f"{t * 1000:.1f} ms" for t in trips),
                "worker": self.worker or "none here",
                "running": self.running if self.worker else None,
                "held": self.held if self.worker else None,
                "last claim": f"{max(claims):.1f} s ago" if claims else None,
                "last looks": ", ".join(f"{name} {age:.1f} s ago" for name, age in looks.items()),
                "loop lag": None if self.loop_lag is None else f"{self.loop_lag * 1000:.0f} ms",
                "leases lost": self.leases_lost or None,
            }
        )
