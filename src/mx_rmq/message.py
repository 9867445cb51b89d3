"""The stored message: an envelope in JSON around the payload, readable in ``redis-cli``."""

from __future__ import annotations

from math import isfinite
from typing import Any, Final

import msgspec

from mx_rmq.errors import InvalidPayload, UnreadableMessage
from mx_rmq.keys import Lane

FORMAT: Final = 1
HISTORY_LIMIT: Final = 20
ERROR_LIMIT: Final = 500

_SAFE_INTEGER: Final = 2**63


class Attempt(msgspec.Struct, omit_defaults=True, kw_only=True):
    """One delivery that ended without success."""

    at: float
    worker: str
    took: float = 0.0
    error: str


class Message(msgspec.Struct, omit_defaults=True, kw_only=True):
    """What the server keeps of a message."""

    v: int
    id: str
    topic: str
    payload: msgspec.Raw
    priority: Lane = "normal"
    headers: dict[str, str] = {}
    created_at: float
    ttl: float | None = None
    dedup_for: float = 0.0
    attempts: int = 0
    """Deliveries that failed, by exception or timeout."""
    crashes: int = 0
    """Deliveries whose worker vanished."""
    replays: int = 0
    history: list[Attempt] = []

    def remember(self, attempt: Attempt) -> None:
        """Append to the history, which keeps the latest entries only."""
        cut = attempt.error if len(attempt.error) <= ERROR_LIMIT else attempt.error[: ERROR_LIMIT - 1] + "…"
        attempt.error = cut
        self.history = [*self.history, attempt][-HISTORY_LIMIT:]


class Death(msgspec.Struct, omit_defaults=True, kw_only=True):
    """Why a message is in the DLQ."""

    reason: str
    """failed | crashed | expired | rejected | unparsable | invalid"""
    error: str = ""
    kind: str = ""
    """The class of the error, by which dead messages are grouped."""


_encoder = msgspec.json.Encoder()
_message_decoder = msgspec.json.Decoder(Message)
_death_decoder = msgspec.json.Decoder(Death)


def encode_message(message: Message) -> bytes:
    """The bytes that the server stores."""
    return _encoder.encode(message)


def decode_message(body: bytes) -> Message:
    """Read stored bytes; the payload inside stays raw.

    Raises:
        UnreadableMessage: they are no message, or one of a format this version does not know.
    """
    try:
        message = _message_decoder.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise UnreadableMessage(f"stored bytes are no message: {error}") from error
    if message.v != FORMAT:
        raise UnreadableMessage(
            f"message {message.id} has format {message.v}, this version reads {FORMAT}; upgrade mx-rmq here"
        )
    return message


def encode_death(death: Death) -> bytes:
    """The bytes stored beside a dead message."""
    return _encoder.encode(death)


def decode_death(body: bytes | None) -> Death:
    """Read the bytes beside a dead message; what cannot be read is shown as it is."""
    try:
        return _death_decoder.decode(body or b"")
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return Death(reason="unknown", error=(body or b"").decode(errors="replace")[:ERROR_LIMIT])


def encode_payload(payload: Any) -> msgspec.Raw:
    """A payload as JSON, if its handler will see exactly what was given.

    Plain JSON values, dataclasses, ``msgspec.Struct`` and pydantic models (by their
    ``model_dump_json``) are taken. The fields of a typed payload may be anything msgspec restores by
    their type (dates, sets, …); in plain values such things would come back as something else.

    Raises:
        InvalidPayload: names the value that JSON would rewrite or cannot hold, and where it is.
    """
    dump = getattr(type(payload), "model_dump_json", None)
    if dump is not None:
        encoded: bytes = dump(payload).encode()
    elif isinstance(payload, msgspec.Struct) or hasattr(type(payload), "__dataclass_fields__"):
        encoded = _encode(payload)
        if b"null" in encoded:  # how NaN is written, and None
            _refuse_nan(payload, "payload")
    else:
        _refuse_rewritten(payload, "payload")
        encoded = _encode(payload)
    return msgspec.Raw(encoded)


def _encode(payload: Any) -> bytes:
    try:
        return _encoder.encode(payload)
    except (TypeError, ValueError, OverflowError, RecursionError, msgspec.MsgspecError) as error:
        raise InvalidPayload(f"the payload cannot be written as JSON: {error}") from error


def _refuse_rewritten(value: Any, where: str, depth: int = 0) -> None:
    kind = type(value)
    if kind is str or kind is bool or value is None:
        return
    if kind is int:
        if not -_SAFE_INTEGER <= value < _SAFE_INTEGER:
            raise InvalidPayload(f"{where} is an integer beyond 64 bits; send it as a string")
    elif kind is float:
        if not isfinite(value):
            raise InvalidPayload(f"{where} is {value}, which JSON has no word for; send null or a string")
    elif depth > 200:
        raise InvalidPayload(f"{where} is nested more than 200 deep")
    elif kind is dict:
        for key, item in value.items():
            if type(key) is not str:
                raise InvalidPayload(f"{where} has the key {key!r}, but JSON keys are strings; write {str(key)!r}")
            _refuse_rewritten(item, f"{where}.{key}", depth + 1)
    elif kind is list:
        for n, item in enumerate(value):
            _refuse_rewritten(item, f"{where}[{n}]", depth + 1)
    else:
        raise InvalidPayload(
            f"{where} is a {kind.__name__}, which would come back as something else; "
            "convert it to str, int, float, bool, None, list or dict, or send a dataclass"
        )


def _refuse_nan(value: Any, where: str) -> None:
    """Look for the one value msgspec rewrites silently inside typed payloads."""
    if isinstance(value, float) and not isfinite(value):
        raise InvalidPayload(f"{where} is {value}, which JSON has no word for; send None or a string")
    if isinstance(value, dict):
        for key, item in value.items():
            _refuse_nan(item, f"{where}.{key}")
    elif isinstance(value, list | tuple | set | frozenset):
        for n, item in enumerate(value):
            _refuse_nan(item, f"{where}[{n}]")
    elif isinstance(value, msgspec.Struct):
        for name in value.__struct_fields__:
            _refuse_nan(getattr(value, name), f"{where}.{name}")
    elif hasattr(type(value), "__dataclass_fields__"):
        for name in value.__dataclass_fields__:
            _refuse_nan(getattr(value, name), f"{where}.{name}")
