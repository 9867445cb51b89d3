"""Payload types: a handler's annotation, checked when a payload is produced and when it is handled."""

from __future__ import annotations

import inspect
import re
from dataclasses import is_dataclass
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, get_args, get_origin, get_type_hints

import msgspec

from mx_rmq.errors import ConfigError, InvalidPayload
from mx_rmq.payloads import encode_payload, unknown_types_in

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


class PayloadType:
    """Decodes stored JSON as the type that a handler wants; ``Any`` if it has no annotation."""

    def __init__(self, wanted: Any = Any) -> None:
        self.wanted = wanted
        validate = getattr(wanted, "model_validate_json", None)  # pydantic, without depending on it
        if validate is not None:
            self._decode: Callable[[msgspec.Raw], Any] = lambda raw: validate(bytes(raw))
        else:
            try:
                self._decode = msgspec.json.Decoder(wanted).decode
            except (TypeError, msgspec.MsgspecError) as error:
                raise ConfigError(f"{wanted!r} cannot be a payload: {error}") from error
            if unknown := unknown_types_in(wanted):
                raise ConfigError(
                    f"{wanted!r} cannot be a payload: {unknown} cannot be decoded from JSON; "
                    "use plain types, a dataclass, a msgspec.Struct or a pydantic model as the whole payload"
                )
        # For such a class only instances are accepted; for other types, whatever the handler can decode.
        self._is_record = isinstance(wanted, type) and (
            validate is not None or is_dataclass(wanted) or issubclass(wanted, msgspec.Struct)
        )

    def decode(self, raw: msgspec.Raw) -> Any:
        """Decode a payload.

        Raises:
            InvalidPayload: it does not fit the type.
        """
        try:
            return self._decode(raw)
        except Exception as error:  # a type's own checks may raise anything
            raise InvalidPayload(f"the payload does not fit {self._name}: {error}") from error

    def encode(self, payload: Any) -> msgspec.Raw:
        """Encode a payload, after checking that the handler will accept it."""
        if self._is_record and not isinstance(payload, self.wanted):
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
    """The type of a handler's first parameter, and whether it has a second one, for the context.

    Raises:
        ConfigError: the function cannot be a handler.
    """
    name = getattr(function, "__name__", repr(function))
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"the parameters of handler {name} cannot be read: {error}") from error
    parameters = [
        p for p in signature.parameters.values() if p.kind is not p.KEYWORD_ONLY or p.default is p.empty
    ]
    problem = _misfit(parameters)
    if problem:
        form = "([payloads]) or ([payloads], [contexts])" if batch else "(payload) or (payload, context)"
        raise ConfigError(f"handler {name} must take {form}, got {signature}: {problem}")
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise ConfigError(
            f"handler {name} is a generator: calling it runs nothing; use return instead of yield"
        )
    wanted = _annotation(function, parameters[0])
    if batch:
        if wanted is not Any and get_origin(wanted) is not list and wanted is not list:
            raise ConfigError(f"a batch handler takes a list of payloads, not {wanted!r}")
        wanted = (get_args(wanted) or (Any,))[0]
    return PayloadType(wanted), len(parameters) == 2


def _misfit(parameters: Sequence[inspect.Parameter]) -> str:
    """Why these parameters do not fit a handler; empty if they do."""
    if parameters and parameters[0].name in ("self", "cls"):
        return "it is a method; register a function, or a method of an object"
    if any(p.kind not in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) for p in parameters):
        return "only positional parameters are filled"
    if not 1 <= len(parameters) <= 2:
        return "put what belongs together into one payload, such as a dict or a dataclass"
    if any(p.default is not p.empty for p in parameters if p is parameters[0] or not _is_context(p)):
        return "a default would never be used, or be replaced by the context; make it keyword-only"
    if len(parameters) == 2 and _comes_first(parameters[0], parameters[1]):
        return "the payload comes first"
    if len(parameters) == 2 and not _may_be_context(parameters[1]):
        return (
            f"the second one is the context; put {parameters[0].name} and {parameters[1].name} into one "
            "payload, or annotate the second with Context"
        )
    return ""


def _is_context(parameter: inspect.Parameter) -> bool:
    """Whether a parameter says that it is a context."""
    return "Context" in _written(parameter) or "ctx" in parameter.name or "context" in parameter.name


def _comes_first(first: inspect.Parameter, second: inspect.Parameter) -> bool:
    """Whether the first of two parameters is the context, not the payload."""
    if _is_context(second):  # a payload may be called so too; then the annotation decides
        return _is_ours(first) and not _is_ours(second)
    return _is_context(first)


def _is_ours(parameter: inspect.Parameter) -> bool:
    """Whether a parameter is annotated with this package's ``Context``, or a list of them."""
    return re.search(r"\bContext\b", _written(parameter)) is not None


def _may_be_context(parameter: inspect.Parameter) -> bool:
    """Whether a second parameter may be a context, by its name or its annotation."""
    if _is_context(parameter) or parameter.name.startswith("_"):
        return True
    return _written(parameter).rpartition(".")[2] in ("Any", "object")


def _written(parameter: inspect.Parameter) -> str:
    """A parameter's annotation as text."""
    annotation = parameter.annotation
    return annotation if isinstance(annotation, str) else getattr(annotation, "__name__", str(annotation))


def _annotation(function: Callable[..., Any], parameter: inspect.Parameter) -> Any:
    """The type of one parameter; the names in the other annotations need not exist at run time."""
    if parameter.annotation is parameter.empty:
        return Any
    while isinstance(function, partial):
        function = function.func
    written = function if hasattr(function, "__globals__") else type(function).__call__
    names = getattr(inspect.unwrap(written), "__globals__", {})
    only = SimpleNamespace(__annotations__={"payload": parameter.annotation})
    try:
        return get_type_hints(only, names, include_extras=True)["payload"]
    except (TypeError, NameError, SyntaxError) as error:
        raise ConfigError(
            f"the payload type {parameter.annotation!r} of handler {function!r} cannot be found: {error}"
        ) from error
