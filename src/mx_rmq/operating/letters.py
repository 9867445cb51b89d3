"""Dead messages as values: letters, pages of them, groups, and how a replay or a restore went."""

from __future__ import annotations

from base64 import b64encode
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from mx_rmq.errors import MxRmqError, UnreadableMessage
from mx_rmq.message import Message, Reason, decode_death, decode_message
from mx_rmq.operating.messages import MessageFacts, message_fields, paged, read_message
from mx_rmq.payloads import plain_payload
from mx_rmq.tables import ago, iso, plain_fields

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from mx_rmq.storage.contract import DeadRow


class NotDead(MxRmqError, LookupError):
    """There is no such message in the DLQ, or it could not be replayed."""


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A message in the DLQ."""

    id: str
    topic: str
    died_at: float
    reason: Reason
    error: str
    kind: str
    """The class of the error, by which dead messages are grouped."""
    body: bytes
    """The stored bytes as they are; empty if they are missing."""
    place: str = ""
    """The last frame of the user's code, if the error came from there."""
    group: str = ""
    """The id of its group; empty if it died before groups were counted."""

    @property
    def message(self) -> Message | None:
        """The message with its history; None if the stored bytes cannot be read."""
        try:
            return decode_message(self.body, self.id, self.topic)
        except UnreadableMessage:
            return None

    @property
    def payload(self) -> Any:
        """The payload as plain values; None if it cannot be read."""
        return plain_payload(self.message)

    @property
    def facts(self) -> MessageFacts:
        """The same in the form of ``find`` and ``list``."""
        message, unreadable = read_message(self.body, self.id, self.topic)
        return MessageFacts(
            self.id,
            "dead",
            self.topic,
            message,
            died_at=self.died_at,
            reason=self.reason,
            error=self.error,
            unreadable=unreadable,
            body=self.body if unreadable else b"",
        )

    def as_dict(self) -> dict[str, Any]:
        """As JSON has it: the payload decoded, instants as ISO texts in UTC.

        ``body`` is the stored message as text, or ``body_base64`` if its bytes are no text. ``dlq.restore()``
        takes the message from there, to the byte; the other facts about it are for people.
        """
        own = plain_fields(self)
        del own["body"]
        try:
            own["body"] = self.body.decode()
        except UnicodeDecodeError:
            own["body_base64"] = b64encode(self.body).decode()
        return own | message_fields(self.message)

    def __str__(self) -> str:
        return str(self.facts)


@dataclass(frozen=True, slots=True)
class Page:
    """Some dead messages, and where the next page begins."""

    letters: list[DeadLetter]
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
        columns: dict[str, Sequence[str]] = {
            "message": [letter.id for letter in self.letters],
            "topic": [letter.topic for letter in self.letters],
            "died": [ago(letter.died_at, self.read_at) for letter in self.letters],
            "reason": [letter.reason for letter in self.letters],
            "place": [letter.place for letter in self.letters],
            "error": [letter.error for letter in self.letters],
        }
        return paged(columns, self.next, "no dead message", self.missing)


@dataclass(frozen=True, slots=True)
class DeadGroup:
    """Dead messages of the same cause."""

    topic: str
    error: str
    """The class of the error, or the reason if there was none."""
    place: str
    """The last frame of the user's code, as ``file:line in function``; empty if there is none."""
    count: int
    first_at: float
    """When the first of them died; that one may have been replayed or deleted since."""
    last_at: float
    id: str = ""
    """What ``list``, ``replay_all``, ``purge`` and ``export`` take as *group*."""
    text: str = ""
    """The error of the first of them. Others differ in numbers, ids, quoted texts and addresses only."""

    def as_dict(self) -> dict[str, Any]:
        """As JSON has it; instants as ISO texts in UTC."""
        return plain_fields(self)

    def __str__(self) -> str:
        return str(DeadGroups([self]))


class DeadGroups(list[DeadGroup]):
    """Groups of dead messages, the largest first; prints as a table.

    Args:
        groups: in this order.
        read_at: when they were counted, by the server's clock; ages are counted from then.
        uncounted: how many dead messages are in no group.
        missing: the shards that did not answer, and why; their messages are not counted.
    """

    def __init__(
        self,
        groups: Iterable[DeadGroup] = (),
        read_at: float = 0.0,
        *,
        uncounted: int = 0,
        missing: tuple[str, ...] = (),
    ) -> None:
        super().__init__(groups)
        self.read_at = read_at
        self.uncounted = uncounted
        self.missing = missing

    def as_dict(self) -> dict[str, Any]:
        """As JSON has it; instants as ISO texts in UTC."""
        groups = [group.as_dict() for group in self]
        return {
            "groups": groups,
            "uncounted": self.uncounted,
            "read_at": iso(self.read_at),
            "missing": list(self.missing),
        }

    def __str__(self) -> str:
        return "\n".join((self._table(), *(f"missing: {why}" for why in self.missing)))

    def _table(self) -> str:
        columns: dict[str, Sequence[str | int]] = {
            "dead": [group.count for group in self],
            "group": [group.id for group in self],
            "topic": [group.topic for group in self],
            "error": [group.error for group in self],
            "text": [group.text for group in self],
            "first": [ago(group.first_at, self.read_at) for group in self],
            "last": [ago(group.last_at, self.read_at) for group in self],
            "place": [group.place for group in self],
        }
        if not self.uncounted:
            return paged(columns, None, "no dead message")
        more = f"{self.uncounted} more in no group; audit(repair=True) counts them"
        return f"{paged(columns, None, '')}\n{more}" if self else more


class RestoreResult(NamedTuple):
    """How many dead messages of an export were put back, and how many were not."""

    restored: int = 0
    live: int = 0
    """There is a live message with the id."""
    dead: int = 0
    """The id is in the DLQ already."""

    def as_dict(self) -> dict[str, int]:
        """As JSON has it."""
        return self._asdict()


class CanaryDied(MxRmqError):
    """Canaries of a replay died again; nothing else was replayed.

    Args:
        replayed: the ids of the canaries.
        letters: those that died, and how.
    """

    def __init__(self, replayed: tuple[str, ...], letters: tuple[DeadLetter, ...]) -> None:
        super().__init__(replayed, letters)
        self.replayed = replayed
        self.letters = letters

    @property
    def dead(self) -> tuple[str, ...]:
        """The ids of those that died."""
        return tuple(letter.id for letter in self.letters)

    def __str__(self) -> str:
        first = self.letters[0]
        why = first.error or first.reason
        return (
            f"{len(self.letters)} of {len(self.replayed)} canaries died again, nothing else was replayed; "
            f"{first.id}: {why}"
        )


class CanaryUnfinished(MxRmqError):
    """Canaries of a replay did not end in time; nothing else was replayed.

    Args:
        replayed: the ids of the canaries.
        waiting: why each of those that did not end has not, by id.
        timeout: how many seconds they had.
    """

    def __init__(self, replayed: tuple[str, ...], waiting: Mapping[str, str], timeout: float) -> None:
        super().__init__(replayed, waiting, timeout)
        self.replayed = replayed
        self.waiting = waiting
        self.timeout = timeout

    def __str__(self) -> str:
        return (
            f"{len(self.waiting)} of {len(self.replayed)} canaries did not end within {self.timeout:g} s, "
            f"nothing else was replayed; {next(iter(self.waiting.values()))}"
        )


def letter_of(row: DeadRow) -> DeadLetter:
    """A letter from what is stored of it."""
    death = decode_death(row.error)
    id_, topic, group = (cell.decode(errors="replace") for cell in (row.id, row.topic, row.group))
    return DeadLetter(
        id_, topic, row.died_at, death.reason, death.error, death.kind, row.body, death.place, group
    )


def not_dead(id_: str) -> NotDead:
    """The error for a message that is not in the DLQ."""
    return NotDead(f"message {id_!r} is not in the DLQ; queue.find() says where it is")
