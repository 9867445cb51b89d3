"""Payloads as JSON; a payload that JSON would not return unchanged is refused."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from math import isfinite
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar

import msgspec
from msgspec import inspect

from mx_rmq.checks import refusal, shown
from mx_rmq.errors import InvalidPayload
from mx_rmq.message import ENCODER

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from mx_rmq.message import Message

T = TypeVar("T")

_DEPTH_LIMIT: Final = 200
_SHALLOW: Final = 2 * _DEPTH_LIMIT
"""No JSON of so many bytes is nested deeper than the limit."""
_INTEGER_BITS: Final = 14_000
"""About where Python refuses to convert an integer to or from text (4,300 digits)."""

_plain_decoder = msgspec.json.Decoder()
_value_decoder = msgspec.json.Decoder(msgspec.Raw)


class Encoded(msgspec.Struct, frozen=True, gc=False):
    """A payload that ``encode_payload`` has checked; a ``msgspec.Raw`` may hold any bytes."""

    raw: msgspec.Raw


def encode_payload(payload: Any) -> msgspec.Raw:
    """Encode a payload as JSON, if its handler will receive exactly what was given.

    Accepted are plain JSON values, dataclasses, ``msgspec.Struct`` and pydantic models (by their
    ``model_dump_json``). A field of a typed payload may have any type that msgspec restores (dates,
    sets, …); among plain values these would come back as another type. A subclass of str is stored as
    a plain string. A ``msgspec.Raw`` must hold one JSON value.

    Raises:
        InvalidPayload: names the value that JSON would change or cannot hold, and where it is.
    """
    kind = type(payload)
    try:
        if kind is not dict and hasattr(kind, "model_dump_json"):
            encoded, problem = _model(payload)
        else:
            encoded = ENCODER.encode(payload)
            if kind is dict and len(encoded) <= _SHALLOW and _plain_decoder.decode(encoded) == payload:
                return msgspec.Raw(encoded)  # what _problem finds too, sooner: most payloads are such
            problem = _problem(payload, encoded)
    except (TypeError, ValueError, OverflowError, RecursionError, msgspec.MsgspecError) as error:
        problem = _rewritten(payload) or ("", f"cannot be written as JSON: {error}")
    if problem is not None:
        where, why = problem
        raise InvalidPayload(f"payload{where} {why}")
    return msgspec.Raw(encoded)


def _model(payload: Any) -> tuple[bytes, tuple[str, str] | None]:
    """A pydantic model as JSON, by its aliases or else by its names: whichever it can read again.

    The second is where and why it cannot read either, or None. Other classes with pydantic's method write
    themselves in their own way.
    """
    kind, problem = type(payload), "it may hold a NaN"
    if not hasattr(kind, "model_fields"):
        return payload.model_dump_json().encode(), None
    for by_alias in (True, False):
        encoded: bytes = payload.model_dump_json(by_alias=by_alias).encode()
        try:
            read = kind.model_validate_json(encoded)
            if b"null" not in encoded or read == payload:  # a NaN is written as null
                return encoded, None
        except ValueError as error:  # as pydantic's errors are
            problem = str(error)
    return encoded, ("", f"does not come back equal from JSON: {problem}")


def plain_payload(message: Message | None) -> Any:
    """The payload of a stored message as plain values; None if there is none or it cannot be read."""
    try:
        return None if message is None else _plain_decoder.decode(message.payload)
    except (msgspec.MsgspecError, RecursionError):
        return None


def _problem(payload: Any, encoded: bytes) -> tuple[str, str] | None:
    """Where and why a payload would come back changed, or None.

    Decoding it again is faster than checking every value in Python. The values are searched only if
    the result differs.
    """
    if len(encoded) > _SHALLOW and _depth(encoded) > _DEPTH_LIMIT:
        # How deep a nesting Python can decode depends on the reading process.
        return "", f"is nested more than {_DEPTH_LIMIT} deep"
    kind: Any = type(payload)
    if kind is msgspec.Raw:
        return _unsound(payload)
    if kind is not dict and (issubclass(kind, msgspec.Struct) or hasattr(kind, "__dataclass_fields__")):
        raw = _raw_in(kind)
        if b"null" in encoded or raw == "said":  # msgspec writes NaN as null
            return _unsound(payload)
        return _not_one_value(_value_decoder, encoded) if raw == "possible" else None
    if _plain_decoder.decode(encoded) == payload:
        return None
    return _rewritten(payload) or ("", "does not come back equal from JSON; send plain values")


@lru_cache(maxsize=1024)
def _raw_in(kind: type) -> Literal["said", "possible", "no"]:
    """Whether the fields of a class may hold a ``msgspec.Raw``.

    A Raw is written as it is, so it could end the payload and add to the envelope.
    """
    try:
        inside = _types_in(inspect.type_info(kind), {})
    except Exception:  # a class that msgspec can encode but not inspect
        return "possible"
    if any(isinstance(each, inspect.RawType) for each in inside):
        return "said"
    return (
        "possible" if any(isinstance(each, inspect.AnyType | inspect.CustomType) for each in inside) else "no"
    )


def unknown_types_in(kind: Any) -> str:
    """The classes inside a type that msgspec cannot decode; empty if there are none."""
    try:
        inside = _types_in(inspect.type_info(kind), {})
    except Exception:  # a type that msgspec decodes but cannot explain
        return ""
    return ", ".join(sorted({each.cls.__name__ for each in inside if isinstance(each, inspect.CustomType)}))


def _not_one_value(
    decoder: msgspec.json.Decoder[Any], encoded: bytes | msgspec.Raw
) -> tuple[str, str] | None:
    try:
        decoder.decode(encoded)
    except (ValueError, RecursionError) as error:  # msgspec's errors are ValueErrors
        return "", f"has a msgspec.Raw that is not one JSON value: {error}"
    return None


def _types_in(info: Any, seen: dict[int, Any]) -> Iterable[Any]:
    """A type and all types of its fields and items, each once."""
    if isinstance(info, tuple):
        for each in info:
            _types_in(each, seen)
    elif isinstance(info, inspect.Type | inspect.Field) and id(info) not in seen:
        seen[id(info)] = info
        for name in info.__struct_fields__:
            _types_in(getattr(info, name), seen)
    return seen.values()


def _depth(encoded: bytes) -> int:
    """How deep JSON is nested, 0 if it has few brackets; brackets inside strings count too."""
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
    """Where and why plain JSON would not return *value* unchanged, or None."""
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
        return "", "has a lone surrogate, which UTF-8 cannot hold"
    if kind is float:
        return None if isfinite(value) else ("", f"is {value}, which JSON cannot hold; send None or a string")
    if depth == _DEPTH_LIMIT:
        return "", f"is nested more than {_DEPTH_LIMIT} deep"
    if kind is dict:
        for key, item in value.items():
            if not isinstance(key, str):
                return "", f"has the key {shown(key)}, but JSON keys are strings; write '{shown(key)}'"
            if not _encodable(key):
                return "", f"has the key {shown(key)} with a lone surrogate"
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
    """Where a typed payload has a bad value that msgspec writes unchecked: a NaN as null, a Raw as it is."""
    items: Iterable[tuple[str, Any]] = ()
    if isinstance(value, msgspec.Raw):
        return _not_one_value(_plain_decoder, value)
    if isinstance(value, float) and not isfinite(value):
        return "", f"is {value}, which JSON cannot hold; send None or a string"
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


# -- many of them


def check_payloads(payloads: Any) -> None:
    """Refuse one payload where an iterable of payloads must be.

    Raises:
        ConfigError: says so.
    """
    if isinstance(payloads, str | bytes | Mapping) or not isinstance(payloads, Iterable):
        raise refusal("payloads", "an iterable with one payload per message", payloads)


def numbered(payloads: Iterable[Any], make: Callable[[Any], T]) -> Iterator[T]:
    """What *make* returns for each payload.

    Raises:
        InvalidPayload: *make* refused one; names its place.
    """
    for n, payload in enumerate(payloads):
        try:
            made = make(payload)
        except InvalidPayload as error:
            raise in_place(n, error) from None
        yield made


def in_place(n: int, error: InvalidPayload) -> InvalidPayload:
    """An error that names the place of its payload."""
    return InvalidPayload(f"payloads[{n}]: {error}")
