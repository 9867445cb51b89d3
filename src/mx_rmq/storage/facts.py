"""What people ask about a queue: its counts and its workers."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field, replace
from functools import reduce
from math import inf
from operator import add
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from mx_rmq.message import LANES
from mx_rmq.tables import ago, block, iso, one_line, plain_fields, table, utc

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from mx_rmq.storage.contract import Lease


_RANKS: Final[dict[str, int]] = {lane: rank for rank, lane in enumerate(LANES)}


class Load(NamedTuple):
    """What a worker has of a topic."""

    running: int = 0
    """Messages whose handler has begun."""
    held: int = 0
    """Messages that it holds ready; they have not begun."""

    def as_dict(self) -> dict[str, int]:
        """As plain values."""
        return self._asdict()


@dataclass(frozen=True, slots=True)
class WorkerFacts:
    """A worker that registered recently."""

    name: str
    seen_at: float
    topics: tuple[str, ...]
    concurrency: int = 0
    pid: int = 0
    started_at: float = 0.0
    connection: int = 0
    """Client id by which others see that it is alive; 0 if they cannot: its messages wait for the lease."""
    server: str = ""
    """Run id of the server that assigned this client id."""
    limits: dict[str, int] = field(default_factory=dict)
    """How many messages of a topic it runs at once, where that is not its concurrency."""
    load: dict[str, Load] = field(default_factory=dict)
    """What it has, by topic; at most half a second old while it changes."""
    host: str = ""
    version: str = ""
    """Its version of mx-rmq; empty for one that does not say this yet, like what follows."""
    loop_lag: float = 0.0
    """The longest that its event loop was late in the ten seconds before it was seen."""
    claimed_at: float | None = None
    """When the server last answered a claim of it, with messages or without; None before the first."""
    problems: tuple[str, ...] = ()
    """What is wrong with it, in its own words: it lives but does not consume."""

    @property
    def in_flight(self) -> int:
        """How many messages it has: running or held."""
        return self.running + self.held

    @property
    def running(self) -> int:
        """How many messages it runs."""
        return sum(load.running for load in self.load.values())

    @property
    def held(self) -> int:
        """How many messages it holds ready; they have not begun."""
        return sum(load.held for load in self.load.values())

    def as_dict(self) -> dict[str, Any]:
        """As JSON has it; instants as ISO texts in UTC."""
        load = {"running": self.running, "held": self.held, "in_flight": self.in_flight}
        return plain_fields(self) | load

    def __str__(self) -> str:
        return block(
            {
                "worker": self.name,
                "running": self.running,
                "held": self.held,
                "at once": self.concurrency,
                "topics": ", ".join(self.topics),
                "host": self.host,
                "pid": self.pid,
                "version": self.version,
                "started": utc(self.started_at),
                "seen": utc(self.seen_at),
                "claimed": None if self.claimed_at is None else utc(self.claimed_at),
                "loop lag": f"{self.loop_lag * 1000:.0f} ms" if self.version else None,
                "problems": "; ".join(self.problems),
            }
        )

    def __add__(self, other: WorkerFacts) -> WorkerFacts:
        """The same worker on two shards."""
        load = dict(self.load)
        for topic, (running, held) in other.load.items():
            before = load.get(topic, Load())
            load[topic] = Load(before.running + running, before.held + held)
        claims = [at for at in (self.claimed_at, other.claimed_at) if at is not None]
        return replace(
            self,
            seen_at=max(self.seen_at, other.seen_at),
            load=load,
            loop_lag=max(self.loop_lag, other.loop_lag),
            claimed_at=min(claims, default=None),
            problems=tuple(dict.fromkeys(self.problems + other.problems)),
        )

    def at_once(self, topic: str) -> float:
        """The most messages of a topic that it runs at once; ``inf`` if it does not say."""
        return self.limits.get(topic, self.concurrency) or inf


class Workers(list[WorkerFacts]):
    """Live workers; prints as a table.

    Args:
        workers: in the order of their names.
        read_at: when they were looked at, by the server's clock; ages are counted from then.
        missing: the shards that did not answer, and why.
    """

    def __init__(
        self,
        workers: Iterable[WorkerFacts] = (),
        read_at: float = 0.0,
        *,
        missing: tuple[str, ...] = (),
    ) -> None:
        super().__init__(workers)
        self.read_at = read_at
        self.missing = missing

    def as_dict(self) -> dict[str, Any]:
        """As JSON has it; instants as ISO texts in UTC."""
        workers = [worker.as_dict() for worker in self]
        return {"workers": workers, "read_at": iso(self.read_at), "missing": list(self.missing)}

    def __str__(self) -> str:
        missing = [f"missing: {why}" for why in self.missing]
        if not self:
            return "\n".join(("no live worker", *missing))
        rows = table(
            ("worker", "running", "held", "at once", "pid", "started", "seen", "claimed", "lag", "topics"),
            [
                (
                    worker.name,
                    worker.running,
                    worker.held,
                    worker.concurrency,
                    worker.pid,
                    ago(worker.started_at or None, self.read_at),
                    ago(worker.seen_at, self.read_at),
                    ago(worker.claimed_at, self.read_at),
                    f"{worker.loop_lag * 1000:.0f} ms" if worker.version else None,
                    ", ".join(worker.topics),
                )
                for worker in self
            ],
        )
        sick = (f"{each.name}: {one_line(problem, 200)}" for each in self for problem in each.problems)
        return "\n".join((rows, *sick, *missing))


def held_ids(topic: str, leases: Mapping[str, Lease], workers: Iterable[WorkerFacts]) -> set[str]:
    """Which of a topic's leased messages their workers hold ready, as far as that is known.

    Messages begin in the order of their claims, so a worker's newest leases are those that it holds. How many
    it holds it has said, a moment ago; more than it runs at once it holds at any rate.
    """
    of: dict[str, list[tuple[int, int, str]]] = defaultdict(list)
    begun: dict[str, int] = defaultdict(int)
    for id_, lease in leases.items():
        if lease.cause == "run":
            of[lease.holder].append((lease.fence, _RANKS.get(lease.lane, 0), id_))
        else:
            begun[lease.holder] += 1
    held: set[str] = set()
    for worker in workers:
        own = sorted(of[worker.name])
        surplus = len(own) + begun[worker.name] - worker.at_once(topic)
        count = int(max(worker.load.get(topic, Load()).held, surplus, 0))
        held |= {id_ for _, _, id_ in own[max(0, len(own) - count) :]}
    return held


_COLUMNS: Final = (
    *("pending", "running", "held", "delayed", "dead", "oldest", "paused", "produced", "completed"),
    *("retried", "recovered"),
)


@dataclass(slots=True, unsafe_hash=True)  # a frozen one takes several times as long to make
class TopicCounts:
    """The counts of a topic, all of one instant; from ``produced`` on they are totals over time.

    What happens to a topic for the first time while ``counts()`` runs, such as its first cancelled message,
    may be missing until the next call.
    """

    pending: int = 0
    running: int = 0
    held: int = 0
    """Messages that a worker holds ready; they have not begun."""
    delayed: int = 0
    in_dlq: int = 0
    """Messages that are dead now."""
    oldest_at: float | None = None
    """When the message that is next in line was produced. Retried and replayed ones may be older."""
    paused: bool = False
    produced: int = 0
    completed: int = 0
    retried: int = 0
    put_off: int = 0
    """How often a handler put a message off with ``RetryLater(…, count=False)``."""
    recovered: int = 0
    """How often a message was taken over because the lease of its worker ran out; not a retry."""
    dead: int = 0
    """How often a message died."""

    @property
    def processing(self) -> int:
        """Messages that workers have: running or held."""
        return self.running + self.held

    def as_dict(self) -> dict[str, Any]:
        """As JSON has it; instants as ISO texts in UTC."""
        return plain_fields(self)

    def __str__(self) -> str:
        return table(_COLUMNS, [self._row(0.0)])

    def _row(self, now: float) -> tuple[str | int, ...]:
        places = (self.pending, self.running, self.held, self.delayed, self.in_dlq)
        totals = (self.produced, self.completed, self.retried, self.recovered)
        return (*places, ago(self.oldest_at, now), "yes" if self.paused else "", *totals)

    def __add__(self, other: TopicCounts) -> TopicCounts:
        """The counts of a topic on two shards."""
        oldest = [at for at in (self.oldest_at, other.oldest_at) if at is not None]
        return TopicCounts(
            self.pending + other.pending,
            self.running + other.running,
            self.held + other.held,
            self.delayed + other.delayed,
            self.in_dlq + other.in_dlq,
            min(oldest, default=None),
            self.paused or other.paused,
            self.produced + other.produced,
            self.completed + other.completed,
            self.retried + other.retried,
            self.put_off + other.put_off,
            self.recovered + other.recovered,
            self.dead + other.dead,
        )


@dataclass(frozen=True, slots=True)
class Counts:
    """The counts of a queue."""

    topics: dict[str, TopicCounts] = field(default_factory=dict)
    delayed: int = 0
    dead: int = 0
    """Messages that are dead now."""
    read_at: float = 0.0
    """When they were counted, by the server's clock."""
    missing: tuple[str, ...] = ()
    """The shards that did not answer, and why; their messages are not counted."""

    @property
    def pending(self) -> int:
        """Pending messages of all topics."""
        return sum(topic.pending for topic in self.topics.values())

    @property
    def running(self) -> int:
        """Messages whose handlers run, of all topics."""
        return sum(topic.running for topic in self.topics.values())

    @property
    def held(self) -> int:
        """Messages that workers hold ready, of all topics."""
        return sum(topic.held for topic in self.topics.values())

    @property
    def processing(self) -> int:
        """Messages that workers have: running or held."""
        return self.running + self.held

    def as_dict(self) -> dict[str, Any]:
        """As JSON has it; instants as ISO texts in UTC."""
        sums = {"pending": self.pending, "running": self.running, "held": self.held}
        return sums | plain_fields(self)

    def __str__(self) -> str:
        missing = "".join(f"\nmissing: {why}" for why in self.missing)
        if not self.topics:
            return f"no topic{missing}"
        rows = [(topic, *counts._row(self.read_at)) for topic, counts in self.topics.items()]
        if len(rows) > 1:
            total = reduce(add, self.topics.values())
            whole = replace(total, delayed=self.delayed, in_dlq=self.dead, paused=False)
            rows.append(("all", *whole._row(self.read_at)))
        return table(("topic", *_COLUMNS), rows) + missing

    def __add__(self, other: Counts) -> Counts:
        """The counts of two shards."""
        topics = dict(self.topics)
        for topic, own in other.topics.items():
            topics[topic] = topics.get(topic, TopicCounts()) + own
        read_at = max(self.read_at, other.read_at)
        delayed, dead = self.delayed + other.delayed, self.dead + other.dead
        missing = self.missing + other.missing
        return Counts(dict(sorted(topics.items())), delayed, dead, read_at, missing)
