"""The stored message: a JSON envelope around the payload, readable in ``redis-cli``."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

import msgspec

from mx_rmq.checks import plain
from mx_rmq.errors import UnreadableMessage
from mx_rmq.limits import LONGEST_MEMORY, MOST_SECONDS

FORMAT: Final = 2
"""The format of stored bodies, which say it only if it is another one. Format 1 had id and topic in them."""
HISTORY_LIMIT: Final = 20
ERROR_LIMIT: Final = 500

Lane = Literal["high", "normal", "low"]
LANES: Final[tuple[Lane, ...]] = ("high", "normal", "low")

Reason = Literal["failed", "crashed", "expired", "rejected", "unparsable", "invalid", "unknown"]
"""Why a message is dead; ``unknown`` if the stored reason cannot be read."""

Tally = Annotated[int, msgspec.Meta(ge=0, le=2**53)]
"""Bounded: Python can decode a longer number but not encode it again."""

Seconds = Annotated[float, msgspec.Meta(ge=0, lt=MOST_SECONDS)]
"""Bounded: a script refuses a longer duration, and with it all other messages of the call."""


Memory = Annotated[float, msgspec.Meta(ge=0, le=LONGEST_MEMORY)]
"""Bounded for the same reason."""


class PastAttempt(msgspec.Struct, omit_defaults=True, kw_only=True):
    """One delivery that ended without success."""

    at: float
    worker: str
    took: float = 0.0
    error: str
    trace: str = ""
    """The last frames of the user's code; files, lines and functions."""


class Message(msgspec.Struct, omit_defaults=True, kw_only=True, gc=False):
    """A message. The server stores it as one body; id and topic stand beside that, not in it."""

    v: int = FORMAT
    id: str = ""
    topic: str = ""
    payload: msgspec.Raw
    priority: Lane = "normal"
    headers: dict[str, str] = {}
    key: str = ""
    """What decides its shard in place of its id; empty for none."""
    created_at: float
    ttl: Seconds | None = None
    dedup_for: Seconds | None = None
    remember_for: Memory | None = None
    """How long the server remembers what became of it; None leaves that to its handler."""
    delay: Seconds | None = None
    """How long it had to wait at least, from ``created_at`` on; None if it was not delayed."""
    attempts: Tally = 0
    """Deliveries that failed, by exception or timeout."""
    crashes: Tally = 0
    """Deliveries whose worker vanished: the first one always counts, later ones only if they had begun."""
    unbegun: Tally = 0
    """Later deliveries whose worker vanished before they had begun; another message was the likely cause."""
    put_off: Tally = 0
    """Deliveries that the handler put off without spending an attempt; they are not in the history."""
    replays: Tally = 0
    history: list[PastAttempt] = []

    def first_ready_at(self) -> float | None:
        """When it could be delivered first, by the producer's clock; None if it was, or was replayed."""
        if self.attempts or self.crashes or self.unbegun or self.put_off or self.replays:
            return None
        return self.created_at + self.delay if self.delay else self.created_at

    def remember(self, attempt: PastAttempt) -> None:
        """Append to the history; only the latest ``HISTORY_LIMIT`` entries are kept."""
        attempt.error = shorten(attempt.error)
        self.history = [*self.history, attempt][-HISTORY_LIMIT:]


class Death(msgspec.Struct, omit_defaults=True, kw_only=True):
    """Why a message is in the DLQ."""

    reason: Reason
    error: str = ""
    kind: str = ""
    """The class of the error, by which dead messages are grouped."""
    place: str = ""
    """The last frame of the user's code, by which they are grouped too."""


class _Ready(msgspec.Struct):
    """The fields of a message that say when it became ready."""

    created_at: float = 0.0
    delay: float = 0.0


def _as_plain(value: Any) -> str:
    """The hook of msgspec for types that it does not know; only subclasses of str are encoded."""
    if isinstance(value, str):
        return plain(value)
    raise TypeError(f"a {type(value).__name__} has no form in JSON")


ENCODER: Final = msgspec.json.Encoder(enc_hook=_as_plain)
_message_decoder = msgspec.json.Decoder(Message)
_death_decoder = msgspec.json.Decoder(Death)
_ready_decoder = msgspec.json.Decoder(_Ready)


def encode_message(message: Message) -> bytes:
    """Encode a message as the bytes that the server stores: all but its id and topic."""
    if message.id or message.topic:
        message = msgspec.structs.replace(message, id="", topic="")
    return ENCODER.encode(message)


def decode_message(body: bytes, id_: str, topic: str) -> Message:
    """Decode stored bytes, with what stands beside them; the payload inside stays raw.

    Raises:
        UnreadableMessage: they are not a message, or have a format that this version does not know.
    """
    message = _decode(body, id_)
    message.v, message.id, message.topic = FORMAT, id_, topic
    return message


def topic_within(body: bytes) -> str:
    """The topic that a body of format 1 names; empty for one of format 2, which names none.

    Raises:
        UnreadableMessage: the bytes are not a message.
    """
    return _decode(body, "").topic


def turn_of(body: bytes, id_: str) -> tuple[float, int, str]:
    """What sorts the messages of a lane as they became ready, as far as their bytes tell.

    Within a millisecond their ids decide: those that mx-rmq makes grow, and so do numbers behind a name.
    """
    try:
        ready = _ready_decoder.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        ready = _Ready()
    return ready.created_at + ready.delay, len(id_), id_


def _decode(body: bytes, id_: str) -> Message:
    try:
        message = _message_decoder.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise UnreadableMessage(f"stored bytes are not a message: {error}") from error
    if not 1 <= message.v <= FORMAT:
        raise UnreadableMessage(
            f"message {id_ or message.id} has format {message.v}, this version reads 1 to {FORMAT}; "
            "upgrade mx-rmq in this program"
        )
    return message


def encode_death(death: Death) -> bytes:
    """Encode the bytes that are stored beside a dead message."""
    return ENCODER.encode(death)


def decode_death(body: bytes | None) -> Death:
    """Decode the bytes beside a dead message; if that fails, they become the error text."""
    try:
        return _death_decoder.decode(body or b"")
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return Death(reason="unknown", error=(body or b"").decode(errors="replace")[:ERROR_LIMIT])


def shorten(text: str) -> str:
    """An error text, cut to ``ERROR_LIMIT`` characters."""
    return text if len(text) <= ERROR_LIMIT else text[: ERROR_LIMIT - 1] + "…"


def text_of(error: BaseException) -> str:
    """The text of an error, shortened and made valid UTF-8 so that it can be stored."""
    try:
        said = str(error)
    except Exception:  # the __str__ of a handler's own exception may fail
        said = "(its text cannot be read)"
    return shorten(said.encode(errors="replace").decode())


def describe(error: BaseException) -> str:
    """An error as one short text: its class and its message."""
    name, said = type(error).__name__, text_of(error)
    return shorten(f"{name}: {said}" if said else name)
