"""What is known about a message, and pages of such facts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, get_args

from mx_rmq.errors import UnreadableMessage
from mx_rmq.message import decode_message
from mx_rmq.payloads import plain_payload
from mx_rmq.storage.contract import Lease, instant

if TYPE_CHECKING:
    from mx_rmq.message import Message
    from mx_rmq.operating.dead_letters import DeadLetter
    from mx_rmq.storage.contract import Ended
    from mx_rmq.storage.queries import Live

Listed = Literal["pending", "running", "held", "delayed", "dead"]
"""The states of messages that can be listed."""
State = Literal[Listed, "done", "gone"]

STATES: Final[tuple[Listed, ...]] = get_args(Listed)


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
    def payload(self) -> Any:
        """The payload as plain values; None if it cannot be read."""
        return plain_payload(self.message)


@dataclass(frozen=True, slots=True)
class MessagePage:
    """Some messages of a topic, and where the next page begins."""

    messages: list[MessageFacts]
    next: str | None
    """What to pass as *after* for the next page; None after the last."""


def live_facts(id_: str, live: Live, *, held: bool = False) -> MessageFacts:
    """What is known about a message that is not dead."""
    try:
        message = decode_message(live.body)
    except UnreadableMessage:
        message = None
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


def dead_facts(letter: DeadLetter) -> MessageFacts:
    """What is known about a dead message."""
    return MessageFacts(
        letter.id,
        "dead",
        letter.topic,
        letter.message,
        died_at=letter.died_at,
        reason=letter.reason,
        error=letter.error,
    )


def ended_facts(id_: str, ended: Ended) -> MessageFacts:
    """What is remembered of a message that is no longer stored."""
    died_at = ended.at if ended.how == "dead" else None
    return MessageFacts(id_, ended.how, ended.topic, died_at=died_at, ended_at=ended.at, took=ended.took)
