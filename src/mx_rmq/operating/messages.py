"""What is known about a message, and pages of such facts."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, Literal, get_args

from msgspec import to_builtins

from mx_rmq.errors import UnreadableMessage
from mx_rmq.message import decode_message
from mx_rmq.payloads import plain_payload
from mx_rmq.storage.contract import Lease, instant
from mx_rmq.tables import ago, block, iso, plain_fields, table, utc
from mx_rmq.traces import place_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from mx_rmq.message import Message
    from mx_rmq.storage.contract import Ended
    from mx_rmq.storage.queries import Live
    from mx_rmq.tables import Cell

Listed = Literal["pending", "running", "held", "delayed", "dead"]
"""The states of messages that can be listed."""
State = Literal[Listed, "done", "gone"]
Asked = Literal[Listed, "processing"]
"""What can be asked for; ``processing`` is running and held together."""

STATES: Final[tuple[Listed, ...]] = get_args(Listed)
ASKED: Final[tuple[Asked, ...]] = get_args(Asked)


@dataclass(frozen=True, slots=True)
class MessageFacts:
    """What is known about a message now; instants in seconds since 1970, ``inf`` for never."""

    id: str
    state: State
    topic: str = ""
    message: Message | None = None
    """The stored message with its history; None if it is gone or cannot be read."""
    due_at: float | None = None
    expires_at: float | None = None
    holder: str | None = None
    claimed_at: float | None = None
    lease_until: float | None = None
    died_at: float | None = None
    reason: str = ""
    error: str = ""
    ended_at: float | None = None
    """When it was done, or died, if that is remembered."""
    took: float | None = None
    """How many seconds its last attempt ran, if that is remembered."""
    unreadable: str = ""
    """Why its stored bytes cannot be read; empty if they can."""
    body: bytes = b""
    """The stored bytes as they are, if they cannot be read; else empty."""

    @property
    def created_at(self) -> float | None:
        """When it was produced, by its producer's clock."""
        return None if self.message is None else self.message.created_at

    @property
    def attempts(self) -> int:
        """How many attempts failed, those that ended with their worker included."""
        return 0 if self.message is None else self.message.attempts + self.message.crashes

    @property
    def last_error(self) -> str:
        """Why it is dead, or how its last attempt ended; empty if none failed."""
        if self.error or self.message is None or not self.message.history:
            return self.error
        return self.message.history[-1].error

    @property
    def place(self) -> str:
        """Where in the user's code its last error came from; empty if that is not known."""
        return place_of(self.message.history[-1].trace) if self.message and self.message.history else ""

    @property
    def payload(self) -> Any:
        """The payload as plain values; None if it cannot be read."""
        return plain_payload(self.message)

    def as_dict(self) -> dict[str, Any]:
        """As JSON has it: the payload decoded, instants as ISO texts in UTC, unreadable bytes as hex."""
        own = plain_fields(self) | {"body": self.body.hex() if self.unreadable else None}
        del own["message"]
        return own | message_fields(self.message) | {"last_error": self.last_error, "place": self.place}

    def __str__(self) -> str:
        message = self.message
        return block(
            {
                "message": self.id,
                "state": self.state,
                "topic": self.topic,
                "key": message.key if message else None,
                "produced": _utc(self.created_at),
                "due": _utc(self.due_at),
                "expires": _utc(self.expires_at),
                "holder": self.holder,
                "claimed": _utc(self.claimed_at),
                "lease until": _utc(self.lease_until),
                "died": _utc(self.died_at),
                "ended": _utc(self.ended_at),
                "took": None if self.took is None else f"{self.took:.3g} s",
                "reason": self.reason,
                "attempts": self.attempts or None,
                "last error": self.last_error,
                "place": self.place,
                "unreadable": self.unreadable,
                "bytes": self.body[:200].hex(" "),
                "payload": None
                if message is None
                else bytes(message.payload)[:1000].decode(errors="replace"),
            }
        )


@dataclass(frozen=True, slots=True)
class MessagePage:
    """Some messages of a topic, and where the next page begins."""

    messages: list[MessageFacts]
    next: str | None
    """What to pass as *after* for the next page; None after the last."""
    read_at: float = 0.0
    """When it was read, by the server's clock; ages are counted from then."""
    missing: tuple[str, ...] = ()
    """The shards that did not answer, and why; their messages are not on the page."""

    def as_dict(self) -> dict[str, Any]:
        """As JSON has it."""
        return plain_fields(self)

    def __str__(self) -> str:
        now = self.read_at
        columns: dict[str, list[str | int]] = {
            "message": [facts.id for facts in self.messages],
            "state": [facts.state for facts in self.messages],
            "produced": [ago(facts.created_at, now) for facts in self.messages],
            "due": [ago(facts.due_at, now) for facts in self.messages],
            "claimed": [ago(facts.claimed_at, now) for facts in self.messages],
            "died": [ago(facts.died_at, now) for facts in self.messages],
            "holder": [facts.holder or "-" for facts in self.messages],
            "attempts": [facts.attempts for facts in self.messages],
            "last error": [facts.last_error for facts in self.messages],
        }
        used = {
            name: cells for name, cells in columns.items() if any(cell not in ("-", "") for cell in cells)
        }
        return paged(used, self.next, "no message", self.missing)


def message_fields(message: Message | None) -> dict[str, Any]:
    """What a stored message says, as JSON has it; None for all of it if it cannot be read."""
    if message is None:
        return dict.fromkeys(
            ("payload", "priority", "headers", "key", "created_at", "attempts", "replays", "history")
        )
    return {
        "payload": plain_payload(message),
        "priority": message.priority,
        "headers": dict(message.headers),
        "key": message.key,
        "created_at": iso(message.created_at),
        "attempts": message.attempts + message.crashes,
        "replays": message.replays,
        "history": [{**to_builtins(attempt), "at": iso(attempt.at)} for attempt in message.history],
    }


def paged(
    columns: Mapping[str, Sequence[Cell]], following: str | None, empty: str, missing: Sequence[str] = ()
) -> str:
    """A page as a table, how to get the next one, and which shards did not answer."""
    rows = list(zip(*columns.values(), strict=True))
    text = table(list(columns), rows) if rows else empty
    more = () if following is None else (f"… more with after={following!r}",)
    return "\n".join((text, *more, *(f"missing: {why}" for why in missing)))


def _utc(instant: float | None) -> str | None:
    return None if instant is None else utc(instant)


def read_message(body: bytes, id_: str, topic: str) -> tuple[Message | None, str]:
    """The message of stored bytes, or None and why they cannot be read."""
    try:
        return decode_message(body, id_, topic), ""
    except UnreadableMessage as error:
        return None, str(error) if body else "its bytes are missing"


def live_facts(id_: str, live: Live, *, held: bool = False) -> MessageFacts:
    """What is known about a message that is not dead."""
    message, unreadable = read_message(live.body, id_, live.topic)
    facts = _live_facts(id_, live, message, held=held)
    return replace(facts, unreadable=unreadable, body=live.body) if unreadable else facts


def _live_facts(id_: str, live: Live, message: Message | None, *, held: bool) -> MessageFacts:
    if live.lease is not None:
        lease = Lease.parse(live.lease)
        return MessageFacts(
            id_,
            "held" if held else "running",
            live.topic,
            message,
            expires_at=lease.expires_at if lease else None,
            holder=lease.holder if lease else "an unknown holder",
            claimed_at=lease.claimed_at if lease else None,
            lease_until=live.deadline,
        )
    if live.due_at is not None:
        expires = (live.kept or "").split()[2:3]
        return MessageFacts(
            id_,
            "delayed",
            live.topic,
            message,
            due_at=live.due_at,
            expires_at=instant(expires[0] if expires else None),
        )
    return MessageFacts(id_, "pending", live.topic, message, expires_at=live.deadline)


def ended_facts(id_: str, ended: Ended) -> MessageFacts:
    """What is remembered of a message that is no longer stored."""
    died_at = ended.at if ended.how == "dead" else None
    return MessageFacts(id_, ended.how, ended.topic, died_at=died_at, ended_at=ended.at, took=ended.took)
