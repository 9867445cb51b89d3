"""The stored message: an envelope in JSON around the payload, readable in ``redis-cli``."""

from __future__ import annotations

from functools import lru_cache
from math import isfinite
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import msgspec
from msgspec import inspect

from mx_rmq.errors import InvalidPayload, UnreadableMessage
from mx_rmq.keys import Lane, plain, shown

if TYPE_CHECKING:
    from collections.abc import Iterable

FORMAT: Final = 1
HISTORY_LIMIT: Final = 20
ERROR_LIMIT: Final = 500

_DEPTH_LIMIT: Final = 200
_INTEGER_BITS: Final = 14_000
"""About where Python refuses to write or read a number in digits (4,300 of them)."""


Tally = Annotated[int, msgspec.Meta(ge=0, le=2**53)]
"""A count that can be counted on: one of thousands of digits could be read, and not written any more."""

Seconds = Annotated[float, msgspec.Meta(ge=0, lt=1e11)]
"""A duration the server can hold: the call that carries another one fails, with whatever else it carries."""


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
    ttl: Seconds | None = None
    dedup_for: Seconds | None = None
    attempts: Tally = 0
    """Deliveries that failed, by exception or timeout."""
    crashes: Tally = 0
    """Deliveries whose worker vanished: the first time whatever it did, then only if it had begun to run."""
    unbegun: Tally = 0
    """Further deliveries whose worker vanished before it had begun; most likely another's fault."""
    replays: Tally = 0
    history: list[Attempt] = []

    def remember(self, attempt: Attempt) -> None:
        """Append to the history, which keeps the latest entries only."""
        attempt.error = shorten(attempt.error)
        self.history = [*self.history, attempt][-HISTORY_LIMIT:]


def shorten(text: str) -> str:
    """An error's text, cut to what is kept of it."""
    return text if len(text) <= ERROR_LIMIT else text[: ERROR_LIMIT - 1] + "…"


def what_it_says(error: BaseException) -> str:
    """An error's own words, as a short text that can be stored."""
    try:
        said = str(error)
    except Exception:  # a handler's own exception may fail even at this
        said = "(its text cannot be read)"
    return shorten(said.encode(errors="replace").decode())


def describe(error: BaseException) -> str:
    """An error in one short text: its class and what it says."""
    name, said = type(error).__name__, what_it_says(error)
    return shorten(f"{name}: {said}" if said else name)


class Death(msgspec.Struct, omit_defaults=True, kw_only=True):
    """Why a message is in the DLQ."""

    reason: str
    """failed | crashed | expired | rejected | unparsable | invalid"""
    error: str = ""
    kind: str = ""
    """The class of the error, by which dead messages are grouped."""


class Encoded(msgspec.Struct, frozen=True, gc=False):
    """A payload that ``encode_payload`` has checked; a ``msgspec.Raw`` could be anybody's bytes."""

    raw: msgspec.Raw


def _as_plain(value: Any) -> str:
    """What msgspec asks for a type it does not know: only subclasses of str are written all the same."""
    if isinstance(value, str):
        return plain(value)
    raise TypeError(f"a {type(value).__name__} has no form in JSON")


_encoder = msgspec.json.Encoder(enc_hook=_as_plain)
_plain_decoder = msgspec.json.Decoder()
_value_decoder = msgspec.json.Decoder(msgspec.Raw)
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
    their type (dates, sets, …); in plain values such things would come back as something else. A
    subclass of str is stored as the string it is. A ``msgspec.Raw`` must hold one JSON value.

    Raises:
        InvalidPayload: names the value that JSON would rewrite or cannot hold, and where it is.
    """
    kind = type(payload)
    try:
        if kind is not dict and hasattr(kind, "model_dump_json"):
            encoded: bytes = payload.model_dump_json().encode()
            same = b"null" not in encoded or kind.model_validate_json(encoded) == payload
            problem = None if same else ("", "does not come back equal from JSON; it may hold a NaN")
        else:
            encoded = _encoder.encode(payload)
            problem = _problem(payload, encoded)
    except (TypeError, ValueError, OverflowError, RecursionError, msgspec.MsgspecError) as error:
        problem = _rewritten(payload) or ("", f"cannot be written as JSON: {error}")
    if problem is not None:
        where, why = problem
        raise InvalidPayload(f"payload{where} {why}")
    return msgspec.Raw(encoded)


def _problem(payload: Any, encoded: bytes) -> tuple[str, str] | None:
    """Where and why a payload would not come back as it is, or None.

    Reading it back is faster than looking at every value in Python; only what differs is searched.
    """
    if len(encoded) > 2 * _DEPTH_LIMIT and _depth(encoded) > _DEPTH_LIMIT:
        # How deep Python could read it would depend on who reads.
        return "", f"is nested more than {_DEPTH_LIMIT} deep"
    kind: Any = type(payload)
    if kind is msgspec.Raw:
        return _unsound(payload)
    if kind is not dict and (issubclass(kind, msgspec.Struct) or hasattr(kind, "__dataclass_fields__")):
        raw = _raw_in(kind)
        if b"null" in encoded or raw == "said":  # null is how NaN is written
            return _unsound(payload)
        return _not_one_value(_value_decoder, encoded) if raw == "possible" else None
    if _plain_decoder.decode(encoded) == payload:
        return None
    return _rewritten(payload) or ("", "does not come back equal from JSON; send plain values")


@lru_cache(maxsize=1024)
def _raw_in(kind: type) -> Literal["said", "possible", "no"]:
    """Whether the fields of a class may hold a ``msgspec.Raw``.

    It is written as it is, so it could end the payload and go on with the envelope.
    """
    try:
        inside = _types_in(inspect.type_info(kind), {})
    except Exception:  # a class that msgspec writes but cannot explain
        return "possible"
    if any(isinstance(each, inspect.RawType) for each in inside):
        return "said"
    return (
        "possible" if any(isinstance(each, inspect.AnyType | inspect.CustomType) for each in inside) else "no"
    )


def _not_one_value(
    decoder: msgspec.json.Decoder[Any], encoded: bytes | msgspec.Raw
) -> tuple[str, str] | None:
    try:
        decoder.decode(encoded)
    except (ValueError, RecursionError) as error:  # msgspec's errors are ValueErrors
        return "", f"has a msgspec.Raw that is not one JSON value: {error}"
    return None


def _types_in(info: Any, seen: dict[int, Any]) -> Iterable[Any]:
    """A type and all that its fields and items may be, each once."""
    if isinstance(info, tuple):
        for each in info:
            _types_in(each, seen)
    elif isinstance(info, inspect.Type | inspect.Field) and id(info) not in seen:
        seen[id(info)] = info
        for name in info.__struct_fields__:
            _types_in(getattr(info, name), seen)
    return seen.values()


def _depth(encoded: bytes) -> int:
    """How deep JSON is nested, 0 for not worth counting; brackets inside strings count too."""
    if encoded.count(b"[") + encoded.count(b"{") <= _DEPTH_LIMIT:
        return 0
    depth = deepest = 0
    for byte in encoded:
        if byte in b"[{":
            depth += 1
            deepest = max(deepest, depth)
        elif byte in b"]}":
            depth -= 1
    return deepest


def _rewritten(value: Any, depth: int = 0) -> tuple[str, str] | None:
    """Where and why plain JSON would not give *value* back, or None."""
    kind = type(value)
    if kind is bool or value is None:
        return None
    if kind is int:
        if value.bit_length() < _INTEGER_BITS:
            return None
        return "", "is an integer of thousands of digits; send it as a string"
    if issubclass(kind, str):
        if value.isascii() or _encodable(value):
            return None
        return "", "has half a character (a lone surrogate), which UTF-8 cannot hold"
    if kind is float:
        return (
            None
            if isfinite(value)
            else ("", f"is {value}, which JSON has no word for; send None or a string")
        )
    if depth == _DEPTH_LIMIT:
        return "", f"is nested more than {_DEPTH_LIMIT} deep"
    if kind is dict:
        for key, item in value.items():
            if not isinstance(key, str):
                return "", f"has the key {shown(key)}, but JSON keys are strings; write '{shown(key)}'"
            if not _encodable(key):
                return "", f"has the key {shown(key)} with half a character (a lone surrogate)"
            if problem := _rewritten(item, depth + 1):
                return f".{key}{problem[0]}", problem[1]
        return None
    if kind is list:
        for n, item in enumerate(value):
            if problem := _rewritten(item, depth + 1):
                return f"[{n}]{problem[0]}", problem[1]
        return None
    return "", (
        f"is a {kind.__name__}, which would come back as something else; convert it to "
        "str, int, float, bool, None, list or dict, or send a dataclass"
    )


def _encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _unsound(value: Any) -> tuple[str, str] | None:
    """Where a typed payload has what msgspec writes without a look: a NaN as null, a Raw as it is."""
    items: Iterable[tuple[str, Any]] = ()
    if isinstance(value, msgspec.Raw):
        return _not_one_value(_plain_decoder, value)
    if isinstance(value, float) and not isfinite(value):
        return "", f"is {value}, which JSON has no word for; send None or a string"
    if isinstance(value, dict):
        items = ((f".{key}", item) for key, item in value.items())
    elif isinstance(value, list | tuple | set | frozenset):
        items = ((f"[{n}]", item) for n, item in enumerate(value))
    elif isinstance(value, msgspec.Struct):
        items = ((f".{name}", getattr(value, name)) for name in value.__struct_fields__)
    elif hasattr(type(value), "__dataclass_fields__"):
        items = ((f".{name}", getattr(value, name)) for name in value.__dataclass_fields__)
    for step, item in items:
        if problem := _unsound(item):
            return step + problem[0], problem[1]
    return None
