"""What people ask about a queue: its counts and its workers."""

from __future__ import annotations

from dataclasses import dataclass, field


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


@dataclass(frozen=True, slots=True)
class TopicCounts:
    """The counts of a topic, all of one instant; from ``produced`` on they are totals over time."""

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
    recovered: int = 0
    """How often a message was taken over because the lease of its worker ran out; not a retry."""
    dead: int = 0
    """How often a message died."""

    @property
    def processing(self) -> int:
        """Messages that workers have: running or held."""
        return self.running + self.held

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

    def __add__(self, other: Counts) -> Counts:
        """The counts of two shards."""
        topics = dict(self.topics)
        for topic, own in other.topics.items():
            topics[topic] = topics.get(topic, TopicCounts()) + own
        return Counts(topics, self.delayed + other.delayed, self.dead + other.dead)
