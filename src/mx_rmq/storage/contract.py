"""The arguments and answers of the scripts, as values."""

from __future__ import annotations

import re
from enum import IntEnum
from typing import Final, Literal, NamedTuple

import msgspec

from mx_rmq.config import Durability
from mx_rmq.message import Lane

_LEASE: Final = re.compile(r"(\d+@\d{1,16}) (\S+) (\S+) (\S+)(?: (\S+))?", re.ASCII)


_ENDED: Final = re.compile(r"(done|dead) (\d{1,16}) (\d{1,16}) (\S+)", re.ASCII)


class Settled(IntEnum):
    """The result of a call that presents the token of a lease."""

    DONE = 1
    STALE = 0
    GONE = -1


class Replayed(IntEnum):
    """The result of replaying a dead message."""

    REPLAYED = 1
    CHANGED = 0
    GONE = -1
    LIVE = -2
    POISONED = -3


class Restored(IntEnum):
    """The result of putting a dead message back into the DLQ."""

    RESTORED = 1
    LIVE = 0
    DEAD = -1


class Cancelled(IntEnum):
    """The result of cancelling a message."""

    CANCELLED = 1
    RUNNING = 0
    GONE = -1
    DEAD = -2
    POISONED = -3


class Hastened(IntEnum):
    """The result of making a delayed message due now."""

    HASTENED = 1
    DUE = 0
    GONE = -1
    DEAD = -2
    NOT_DELAYED = -3


class NewMessage(msgspec.Struct, frozen=True, gc=False):
    """A message to store; ``ttl`` (None for no expiry) and ``delay`` are in seconds."""

    id: str
    body: bytes
    lane: Lane = "normal"
    ttl: float | None = None
    delay: float = 0.0
    durability: Durability = "memory"
    asked_at: float = 0.0
    """When its producer asked for it, by ``time.monotonic``; the producer's patience begins then."""
    key: str = ""
    """What decides its shard in place of its id; empty for none."""
    has_own_id: bool = False
    """Whether its producer gave the id."""

    @property
    def is_bound(self) -> bool:
        """Whether its producer gave an id or a key, so that no other shard may take it."""
        return self.has_own_id or bool(self.key)


class Kept(NamedTuple):
    """What is kept of a message after its end; durations in seconds."""

    dedup_for: float = 0.0
    """How long its id stays taken, if it is done."""
    remember_for: float = 0.0
    """How long the server remembers what became of it."""
    took: float = 0.0
    """How long its handler ran."""


class Ended(NamedTuple):
    """What became of a message, as the server remembers it."""

    how: Literal["done", "dead"]
    at: float
    took: float
    topic: str

    @classmethod
    def parse(cls, text: str) -> Ended | None:
        """Parse what is stored; None if it cannot be read."""
        found = _ENDED.fullmatch(text)
        if found is None:
            return None
        how: Literal["done", "dead"] = "done" if found[1] == "done" else "dead"
        return cls(how, int(found[2]) / 1000, int(found[3]) / 1000, found[4])


class Delivery(msgspec.Struct, frozen=True, gc=False):
    """One message in one attempt under one lease."""

    id: str
    topic: str
    token: str
    body: bytes
    expires_at: float
    """When the message itself expires; seconds, ``inf`` for never."""

    @property
    def fence(self) -> int:
        """Grows with every delivery of an id, whatever the server's clock does; below 2**53."""
        return int(self.token.partition("@")[2])


class Lease(NamedTuple):
    """The lease of a message, as stored in ``processing``."""

    token: str
    lane: str
    expires_at: float | None
    """When the message itself expires; seconds, ``inf`` for never, None if that cannot be read."""
    holder: str
    cause: str = ""
    """``run`` as long as it is not noted that the message has begun."""

    @classmethod
    def parse(cls, text: str) -> Lease | None:
        """Parse a stored lease; None if it cannot be read."""
        found = _LEASE.match(text)
        return found and cls(found[1], found[2], instant(found[3]), found[4], found[5] or "")

    @property
    def fence(self) -> int:
        """The fence of the claim; all messages of one claim have the same."""
        return int(self.token.partition("@")[2])

    @property
    def claimed_at(self) -> float:
        """When it was claimed, in seconds since 1970."""
        return self.fence / 1e6


class Want(NamedTuple):
    """What to claim from one topic."""

    topic: str
    limit: int
    """Messages at most."""
    batch: int = 1
    """How many of them one handler call takes."""


class Claim(NamedTuple):
    """The answer to a claim, for one topic."""

    now: float
    deliveries: list[Delivery]
    left: int
    paused: bool
    refusal: str = ""
    """Why the server could not serve this topic; other topics of the same claim were served."""


Cause = Literal["lapsed", "started", "expired"]


class Takeover(NamedTuple):
    """A message the monitor now holds, and why."""

    delivery: Delivery
    cause: Cause
    """``lapsed``: its lease ran out. ``started``: its lease ran out after a note that it began to run.
    ``expired``: its own lifetime ended while it was pending."""
    previous: str
    """The previous holder, ``-`` if there was none."""


class Overdue(NamedTuple):
    """The answer to a take-over."""

    now: float
    taken: list[Takeover]
    cleaned: list[str]
    poisoned: list[str]
    belated: bool = False
    """The call arrived after the instant it was valid until, so nothing was taken over or changed."""


class Registration(NamedTuple):
    """The answer to a worker that registers or leaves."""

    forgotten: int
    """Workers that were removed."""
    workers: int
    """Workers that are registered now."""


class Promotion(NamedTuple):
    """The answer to promoting due messages."""

    wait: float | None
    """Seconds until the next one is due, None when nothing is delayed."""
    promoted: list[str]
    cleaned: list[str]
    poisoned: list[str]


class NextDelay(NamedTuple):
    """The state of the delayed messages: ``NO_TASK``, ``WAITING`` or ``EXPIRED``."""

    state: str
    seconds: float
    """How long to wait, or how long the first message is overdue."""
    id: str


class Replay(NamedTuple):
    """A dead message to replay; an empty ``body`` keeps the stored one."""

    id: str
    body: bytes = b""
    lane: Lane = "normal"
    ttl: float | None = None
    died_at: float | None = None
    """The time of death that the caller read; if the message died again since, nothing happens."""


class DeadRow(NamedTuple):
    """A dead message as it is stored; empty for what there is not, or was not asked for."""

    id: bytes
    died_ms: bytes
    topic: bytes
    error: bytes
    group: bytes
    """The id of its group."""
    body: bytes

    @property
    def died_at(self) -> float:
        """When it died, in seconds since 1970."""
        return float(self.died_ms) / 1000


class Restore(NamedTuple):
    """A dead message to put back into the DLQ."""

    id: str
    topic: str
    died_at: float
    body: bytes
    error: bytes
    """Why it died, as it is stored."""


class TopicRow(NamedTuple):
    """How a topic stands, all of one instant."""

    pending: int
    leases: int
    delayed: int
    in_dlq: int
    oldest_at: bytes | None
    """When the message that is next in line was produced, as its body has it."""
    produced: int
    completed: int
    retried: int
    put_off: int
    lapsed: int
    dead: int


class Left(NamedTuple):
    """What a shard has left, all of one instant."""

    fields: int
    """In ``payload``; none if there is no live message."""
    delayed: int
    dead: int
    dead_fields: int
    """In ``dlq_payload``."""
    active: int
    """Messages that are pending or processing."""

    @property
    def nothing(self) -> bool:
        """Whether there is no message, live or dead."""
        return not any(self)

    @property
    def strays(self) -> int:
        """Fields that belong to no message, as far as that shows without a look at each."""
        live = 0 if self.active or self.delayed else self.fields
        return live + (0 if self.dead else self.dead_fields)


class Suspect(NamedTuple):
    """A message that the audit examines."""

    id: str | bytes
    found_in: str = ""
    listed: bool = True
    fallback: str = "unknown"
    group: bytes = b""
    """The group of a dead message that has none yet."""


class Examined(NamedTuple):
    """Where a message is, and what is wrong with it."""

    place: str
    topic: str
    deadline: str
    findings: tuple[str, ...]


def instant(ms: str | None) -> float | None:
    """Milliseconds as seconds; None if missing or not a number, as another program may have written it."""
    try:
        return None if ms is None else float(ms) / 1000
    except ValueError:
        return None
