"""Payload types: what a handler's annotation says, checked on the way in and on the way out."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any, get_args, get_origin, get_type_hints

import msgspec

from mx_rmq.errors import ConfigError, InvalidPayload
from mx_rmq.message import encode_payload

if TYPE_CHECKING:
    from collections.abc import Callable


class PayloadType:
    """Turns stored JSON into what a handler wants; ``Any`` where it does not say."""

    def __init__(self, wanted: Any = Any) -> None:
        self.wanted = wanted
        validate = getattr(wanted, "model_validate_json", None)  # pydantic, without depending on it
        if validate is not None:
            self._decode: Callable[[bytes], Any] = validate
        else:
            try:
                self._decode = msgspec.json.Decoder(wanted).decode
            except (TypeError, msgspec.MsgspecError) as error:
                raise ConfigError(f"{wanted!r} cannot be a payload: {error}") from error

    def decode(self, raw: msgspec.Raw) -> Any:
        """Read a payload.

        Raises:
            InvalidPayload: it does not fit the type.
        """
        try:
            return self._decode(raw)
        except (ValueError, TypeError, RecursionError) as error:
            raise InvalidPayload(f"the payload does not fit {self._name}: {error}") from error

    def encode(self, payload: Any) -> msgspec.Raw:
        """Write a payload, after making sure that the handler will accept it."""
        if isinstance(self.wanted, type) and self.wanted is not dict and not isinstance(payload, self.wanted):
            raise InvalidPayload(
                f"the payload is a {type(payload).__name__}, but the handler wants {self._name}"
            )
        raw = encode_payload(payload)
        self.decode(raw)
        return raw

    @property
    def _name(self) -> str:
        return getattr(self.wanted, "__name__", None) or repr(self.wanted)


def payload_type_of(function: Callable[..., Any], *, batch: bool) -> tuple[PayloadType, bool]:
    """What a handler's first parameter wants, and whether it has a second one, for the context.

    Raises:
        ConfigError: the function cannot be a handler.
    """
    try:
        parameters = list(inspect.signature(function).parameters.values())
        hints = get_type_hints(function)
    except (TypeError, ValueError, NameError) as error:
        raise ConfigError(f"the annotations of handler {function!r} cannot be read: {error}") from error
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    required = [p for p in positional if p.default is p.empty]
    demanded = [p for p in parameters if p.kind is p.KEYWORD_ONLY and p.default is p.empty]
    if not positional or len(required) > 2 or demanded:
        name = getattr(function, "__name__", repr(function))
        raise ConfigError(f"handler {name} must take a payload, or a payload and a context")
    wanted = hints.get(positional[0].name, Any)
    if batch:
        if wanted is not Any and get_origin(wanted) is not list and wanted is not list:
            raise ConfigError(f"a batch handler takes a list of payloads, not {wanted!r}")
        wanted = (get_args(wanted) or (Any,))[0]
    return PayloadType(wanted), len(positional) >= 2
