"""JSON as text: numbers, order and repeated names stay as they are stored; nothing goes through floats."""

from __future__ import annotations

import difflib
import json
import re
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from mx_rmq.message import Message
    from mx_rmq.web.redaction import Redactor

_TOKENS: Final = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"|[{}\[\],:]|[^\s"{}\[\],:]+|"', re.DOTALL)
_DEEPEST: Final = 200
"""Deeper JSON is left on one line: its indentation would be longer than itself."""
_MOST_COMPARED: Final = 1000
"""Lines that are compared one by one; more are shown as replaced."""
_CONTEXT: Final = 3
_WIDEST: Final = 400
"""Characters of a line in a difference."""
UNREADABLE: Final = "(it cannot be read, so its fields cannot be hidden and it is not shown)"


class Number(str):
    """A number as it is written."""

    __slots__ = ()


def payload_text(message: Message, redact: Redactor) -> str:
    """The payload of a message as it is stored, without what is hidden."""
    text = bytes(message.payload).decode(errors="backslashreplace")
    if not redact:
        return text
    try:
        return written(redact.hide(parsed(text)))
    except (ValueError, RecursionError):
        return UNREADABLE


def parsed(text: str) -> Any:
    """JSON as values; its numbers are ``Number``.

    Raises:
        ValueError: it is not JSON; says where.
    """

    def refuse(constant: str) -> None:
        raise ValueError(f"JSON has no {constant}")

    return json.loads(text, parse_int=Number, parse_float=Number, parse_constant=refuse)


def written(value: Any) -> str:
    """Values from ``parsed`` as JSON."""
    if isinstance(value, Number):
        return str(value)
    if isinstance(value, dict):
        return "{" + ",".join(f"{_quoted(name)}:{written(item)}" for name, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(written, value)) + "]"
    return _quoted(value)


def _quoted(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def compact(text: str) -> str:
    """The same JSON without blanks between its parts."""
    return visible("".join(_TOKENS.findall(text)))


def indented(text: str) -> str:
    """The same JSON on many lines; control characters and marks of direction are escapes."""
    lines: list[str] = []
    line, depth, before = "", 0, ""
    for part in _TOKENS.findall(text):
        if before in ("{", "["):
            if part not in ("}", "]"):
                depth += 1
                lines.append(line)
                line = "  " * depth
        elif part in ("}", "]"):
            depth = max(0, depth - 1)
            lines.append(line)
            line = "  " * depth
        elif before == ",":
            lines.append(line)
            line = "  " * depth
        if depth > _DEEPEST:
            return visible(text)
        line += ": " if part == ":" else part
        before = part
    return visible("\n".join([*lines, line]))


def visible(text: str) -> str:
    """JSON whose texts hide nothing: what cannot be seen becomes the escape that means the same."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() or each == "\n" else _quoted_ascii(each) for each in text)


def _quoted_ascii(character: str) -> str:
    return json.dumps(character)[1:-1]


# -- what has changed


class Change(NamedTuple):
    """A line of a difference."""

    sign: str
    """``-`` for removed, ``+`` for added, a blank for neither, ``…`` for lines that are left out."""
    text: str


def difference(before: str, after: str) -> list[Change]:
    """What has changed between two texts, line by line; empty if nothing has."""
    old, new = before.splitlines(), after.splitlines()
    if old == new:
        return []
    first = next(n for n, pair in enumerate(zip_longest(old, new)) if pair[0] != pair[1])
    last = 0
    while last < min(len(old), len(new)) - first and old[-1 - last] == new[-1 - last]:
        last += 1
    removed, added = old[first : len(old) - last], new[first : len(new) - last]
    head, tail = old[max(0, first - _CONTEXT) : first], old[len(old) - last :][:_CONTEXT]
    changes = [Change("…", "")] if first > _CONTEXT else []
    changes += [Change(" ", _window(each)) for each in head]
    if len(removed) > _MOST_COMPARED or len(added) > _MOST_COMPARED:
        changes += _replaced(removed, added)
    else:
        changes += _compared(removed, added)
    changes += [Change(" ", _window(each)) for each in tail]
    return [*changes, Change("…", "")] if last > _CONTEXT else changes


def _compared(old: Sequence[str], new: Sequence[str]) -> Iterator[Change]:
    for kind, a, b, c, d in difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        if kind == "equal":
            same = old[a:b]
            short = len(same) <= 2 * _CONTEXT + 1
            for line in same if short else same[:_CONTEXT]:
                yield Change(" ", _window(line))
            if not short:
                yield Change("…", "")
                for line in same[-_CONTEXT:]:
                    yield Change(" ", _window(line))
        else:
            yield from _replaced(old[a:b], new[c:d])


def _replaced(old: Sequence[str], new: Sequence[str]) -> Iterator[Change]:
    for sign, lines, others in (("-", old, new), ("+", new, old)):
        for n, line in enumerate(lines[:_MOST_COMPARED]):
            yield Change(sign, _window(line, others[n] if n < len(others) else ""))
        if len(lines) > _MOST_COMPARED:
            yield Change("…", f"{len(lines) - _MOST_COMPARED:,} more lines")


def _window(line: str, other: str = "") -> str:
    """A line, of a long one the part where it differs from another."""
    if len(line) <= _WIDEST:
        return line
    same = next((n for n, (one, two) in enumerate(zip(line, other, strict=False)) if one != two), 0)
    start = max(0, same - _WIDEST // 4)
    end = start + _WIDEST
    return ("…" if start else "") + line[start:end] + ("…" if end < len(line) else "")
