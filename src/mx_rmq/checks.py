"""Checks of what users pass in. Every error says what the value must be, then what was given."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from mx_rmq.errors import ConfigError, InvalidName
from mx_rmq.limits import MOST_SECONDS

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

_NAME = re.compile(r"[A-Za-z0-9_.-]{1,128}", re.ASCII)
_NAMES = re.compile(rf"{_NAME.pattern}(?: {_NAME.pattern})*", re.ASCII)


def refusal(what: str, rule: str, given: object) -> ConfigError:
    """The error for a value that breaks a rule."""
    return ConfigError(f"{what} must be {rule}, got {shown(given)}")


def check_seconds(
    what: str, value: Any, *, least: float = 0.0, above: float | None = None, none: str = ""
) -> None:
    """Refuse a value that is not a duration.

    Args:
        what: the option's name.
        value: seconds.
        least: the shortest that is allowed.
        above: the value must be greater than this.
        none: what None means; empty if None is not allowed.

    Raises:
        ConfigError: says what the value must be.
    """
    if value is None and none:
        return
    if not is_number(value) or not least <= value < MOST_SECONDS or (above is not None and value <= above):
        bound = f">= {least:g}" if above is None else f"> {above:g}"
        raise refusal(what, f"seconds {bound}{f', or None for {none}' if none else ''}", value)


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


def check_name(what: str, value: object) -> str:
    """Return *value* as a plain string if it is a valid name of a *what* ("topic", "message id", …).

    Raises:
        InvalidName: it is not a string of 1 to 128 letters, digits and ``_ . -``.
    """
    if isinstance(value, str) and _NAME.fullmatch(value):
        return plain(value)
    raise InvalidName(f"a {what} must be 1 to 128 letters, digits and _ . - only, got {shown(value)}")


def is_name(value: str | bytes) -> bool:
    """Whether this is a valid topic name or message id; takes bytes as the server returns them too."""
    text = value.decode(errors="replace") if isinstance(value, bytes) else value
    return _NAME.fullmatch(text) is not None


def are_names(values: Collection[str]) -> bool:
    """Whether all of these are valid names; much cheaper than one check per name."""
    try:
        joined = " ".join(values)
    except TypeError:  # one of them is not a string
        return False
    return _NAMES.fullmatch(joined) is not None and joined.count(" ") == len(values) - 1


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
