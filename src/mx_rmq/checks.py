"""Checks of what users pass in. Every error says what the value must be, then what was given."""

from __future__ import annotations

import difflib
import inspect
import re
from datetime import timedelta
from importlib.util import find_spec
from types import MappingProxyType
from typing import TYPE_CHECKING, Any
from uuid import UUID

from mx_rmq.errors import ConfigError, InvalidName
from mx_rmq.limits import MOST_SECONDS

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

Duration = float | timedelta
"""Seconds, or a ``timedelta``."""

_MOST_NUMBER = 10**127
"""An id has at most 128 characters."""

_NAME = re.compile(r"[A-Za-z0-9_.-]{1,128}", re.ASCII)
# What a message stores beside its body has its id and one of these endings as name.
_LABEL = re.compile(r"[A-Za-z0-9_.:@/#+-]{1,128}(?<!:queue)(?<!:keep)(?<!:error)(?<!:group)", re.ASCII)
_LABELS = re.compile(rf"{_LABEL.pattern}(?: {_LABEL.pattern})*", re.ASCII)


def refusal(what: str, rule: str, given: object) -> ConfigError:
    """The error for a value that breaks a rule."""
    return ConfigError(f"{what} must be {rule}, got {shown(given)}")


def check_seconds(
    what: str,
    value: Any,
    *,
    least: float = 0.0,
    above: float | None = None,
    most: float | None = None,
    none: str = "",
) -> Any:
    """Return a duration in seconds; a ``timedelta`` is one too.

    Args:
        what: the option's name.
        value: seconds.
        least: the shortest that is allowed.
        above: the value must be greater than this.
        most: the longest that is allowed.
        none: what None means; empty if None is not allowed.

    Raises:
        ConfigError: says what the value must be.
    """
    if value is None and none:
        return None
    given = value
    if isinstance(value, timedelta):
        value = value.total_seconds()
    if (
        not is_number(value)
        or not least <= value < MOST_SECONDS
        or (above is not None and value <= above)
        or (most is not None and value > most)
    ):
        bound = f">= {least:g}" if above is None else f"> {above:g}"
        if most is not None:
            bound = f"from {least:g} to {most:.0f}"
        raise refusal(what, f"seconds {bound}{f', or None for {none}' if none else ''}", given)
    return value


def check_whole(what: str, value: object, least: int, most: int | None = None, *, none: str = "") -> None:
    """Refuse a value that is not a whole number within the bounds.

    Raises:
        ConfigError: says what the value must be.
    """
    if value is None and none:
        return
    if (
        isinstance(value, bool)
        or not isinstance(value, int)
        or value < least
        or (most is not None and value > most)
    ):
        bound = f">= {least}" if most is None else f"from {least} to {most}"
        raise refusal(what, f"a whole number {bound}{f', or None for {none}' if none else ''}", value)


def check_choice(what: str, value: object, choices: Sequence[str]) -> None:
    """Refuse a value that is not one of the choices.

    Raises:
        ConfigError: lists the choices.
    """
    if value not in choices:
        *others, last = map(repr, choices)
        raise refusal(what, f"{', '.join(others)} or {last}" if others else last, value)


def refuse_unknown(
    what: str, given: Iterable[str], known: Collection[str], hints: Mapping[str, str] = MappingProxyType({})
) -> None:
    """Refuse an option that there is not.

    Args:
        what: which options, such as ``option of produce``.
        given: their names.
        known: those that there are.
        hints: what to write instead, for names that other libraries use.

    Raises:
        ConfigError: names the closest one.
    """
    for name in given:
        if name in known:
            continue
        close = difflib.get_close_matches(name, known, 1)
        instead = hints.get(name) or (repr(close[0]) if close else "")
        hint = f"did you mean {instead}?" if instead else f"known are: {', '.join(known)}"
        raise ConfigError(f"there is no {what} {name!r}; {hint}")


def check_takes(what: str, function: Any, parameters: str) -> None:
    """Refuse what cannot be called with so many arguments.

    Args:
        what: what it is to be, such as a hook.
        function: what was given.
        parameters: the names of the arguments.

    Raises:
        ConfigError: says what it must take.
    """
    takes = f"({parameters})" if "," in parameters else f"one argument, the {parameters}"
    rule = f"a function that takes {takes}"
    if not callable(function):
        raise refusal(what, rule, function)
    try:
        inspect.signature(function).bind(*parameters.split(", "))
    except TypeError:
        raise refusal(what, rule, function) from None
    except ValueError:  # a function written in C does not say what it takes
        pass


def check_name(what: str, value: object) -> str:
    """Return *value* as a plain string if it is a valid name of a *what*, such as a queue.

    Raises:
        InvalidName: it is not a string of 1 to 128 letters, digits and ``_ . -``.
    """
    if isinstance(value, str) and _NAME.fullmatch(value):
        return plain(value)
    raise InvalidName(f"a {what} must be 1 to 128 letters, digits and _ . - only, got {shown(value)}")


def check_topic(value: object) -> str:
    """Return a topic as a plain string.

    Raises:
        InvalidName: it cannot be one.
    """
    return _check_label("topic", value)


def check_id(value: object) -> str:
    """Return a message id as a plain string; a whole number or a UUID is one too.

    Raises:
        InvalidName: it cannot be one.
    """
    return _check_id("message id", value)


def given_id(value: object) -> str:
    """Return the id of a message that another program may have stored: any text, a whole number or a UUID.

    Raises:
        InvalidName: it is something else.
    """
    return plain(value) if isinstance(value, str) else check_id(value)


def check_key(value: object) -> str:
    """Return the key of a message, for which the same holds as for its id.

    Raises:
        InvalidName: it cannot be one.
    """
    return _check_id("key", value)


def _check_id(what: str, value: object) -> str:
    if isinstance(value, UUID) or (
        isinstance(value, int) and not isinstance(value, bool) and -_MOST_NUMBER < value < _MOST_NUMBER
    ):
        value = str(value)
    return _check_label(what, value)


def _check_label(what: str, value: object) -> str:
    if isinstance(value, str) and _LABEL.fullmatch(value):
        return plain(value)
    rule = "1 to 128 letters, digits and _ . - : @ / # + only, not ending in :queue, :keep, :error or :group"
    raise InvalidName(f"a {what} must be {rule}, got {shown(value)}")


def is_label(value: str | bytes) -> bool:
    """Whether this is a valid topic or message id; takes bytes as the server returns them too."""
    text = value.decode(errors="replace") if isinstance(value, bytes) else value
    return _LABEL.fullmatch(text) is not None


def are_labels(values: Collection[str]) -> bool:
    """Whether all of these are valid topics or message ids; much cheaper than one check for each."""
    try:
        joined = " ".join(values)
    except TypeError:  # one of them is not a string
        return False
    return _LABELS.fullmatch(joined) is not None and joined.count(" ") == len(values) - 1


def plain(text: str) -> str:
    """The text as a plain str, not a subclass: a receipt, or an enum member, which formats as its name."""
    return text if type(text) is str else str.__str__(text)


def shown(value: object) -> str:
    """A value as error texts quote it: its repr, cut to 80 characters."""
    try:
        text = repr(value)
    except Exception:  # a number of thousands of digits, or an object whose repr fails
        text = f"a {type(value).__name__} that cannot be shown"
    return text if len(text) <= 80 else text[:77] + "…"


def is_number(value: object) -> bool:
    """Whether this is an int or a float, but not a bool."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def check_installed(package: str, extra: str) -> None:
    """Refuse to go on without a package of an extra.

    Raises:
        ConfigError: says how to install it.
    """
    if find_spec(package) is None:
        raise ConfigError(f'{package} is not installed; pip install "mx-rmq[{extra}]"')
