"""Facts as pages show them: numbers, ages, instants, and texts from strangers."""

from __future__ import annotations

import unicodedata
from typing import Any, Final
from urllib.parse import quote, urlencode

from markupsafe import Markup, escape

from mx_rmq.tables import ago, iso, lasted, speed, utc

_CUT: Final = 300
"""Characters of a text that is shown in a line."""


def shown(value: Any) -> Any:
    """What templates put in place of an expression: nothing for None, and texts that hide nothing.

    Control characters and marks that turn the direction of writing would make a page show something else
    than it says; each becomes the sign that Unicode has for it. Lines and tabs stay.
    """
    if value is None:
        return ""
    if not isinstance(value, str) or isinstance(value, Markup) or value.isprintable():
        return value
    return "".join(map(_visible, value))


def _visible(character: str) -> str:
    if character.isprintable() or character in "\n\t\r":
        return character
    code = ord(character)
    if code < 32:
        return chr(0x2400 + code)
    if unicodedata.category(character).startswith("Z"):  # spaces of other widths
        return " "
    return f"\\u{{{code:x}}}"


def exact(value: Any) -> Markup:
    """A value in a form, which sends it back as it is; what ``shown`` would change is written as a number."""
    text = str(escape(value))
    if text.isprintable():
        return Markup(text)  # noqa: S704 - it was escaped
    return Markup("".join(each if each.isprintable() else f"&#x{ord(each):x};" for each in text))  # noqa: S704 - escaped


def cut(text: str, most: int = _CUT) -> str:
    """A text on one line, at most so many characters."""
    line = " ".join(text[: 4 * most].split())
    return line if len(line) <= most and len(text) <= 4 * most else line[: most - 1] + "…"


def begun(text: str) -> str:
    """A text as the beginning of a sentence; names in it stay as they are written."""
    return text[:1].upper() + text[1:]


def number(value: int | None) -> str:
    """A whole number with separators, ``–`` for none."""
    return "–" if value is None else f"{value:,}"


def age(instant: float | None, now: float) -> str:
    """How old something is, such as ``41m``; ``–`` for none."""
    return "–" if instant is None else ago(instant, now).removesuffix(" ago")


def took(seconds: float | None) -> str:
    """A duration, such as ``1.5s``; ``–`` for none."""
    return "–" if seconds is None else lasted(seconds)


def since(instant: float | None, now: float) -> Markup:
    """How long ago an instant was, with the instant itself for those who point at it, and for machines."""
    text = "–" if instant is None else ago(instant, now)
    stamp = iso(instant)
    if stamp is None:
        return escape(text)
    return Markup('<time datetime="{}" title="{}">{}</time>').format(stamp, utc(instant), text)


def link(path: str, **query: Any) -> str:
    """The address of a page, relative to the dashboard's root; names are never part of a path.

    Topics and ids may have slashes and other signs, so they are always in the query: ``topic?name=a/b``.
    """
    given = {name: value for name, value in query.items() if value not in (None, "")}
    return f"{quote(path)}?{urlencode(given)}" if given else quote(path) or "."


FILTERS: Final = {
    "cut": cut,
    "begun": begun,
    "exact": exact,
    "number": number,
    "age": age,
    "took": took,
    "since": since,
    "speed": speed,
    "utc": utc,
}
