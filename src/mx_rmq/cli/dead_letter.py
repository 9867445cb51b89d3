"""One dead message, whole: why it died, its payload, headers and history."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mx_rmq.cli.editing import pretty
from mx_rmq.cli.files import line_of
from mx_rmq.cli.output import At
from mx_rmq.errors import UnreadableMessage
from mx_rmq.message import ERROR_LIMIT, decode_message
from mx_rmq.tables import one_line

if TYPE_CHECKING:
    from mx_rmq.cli.output import Cell, Output
    from mx_rmq.message import PastAttempt
    from mx_rmq.operating.letters import DeadLetter

_MOST_BYTES: Final = 1024
"""Bytes of a message that are shown as hex."""


def print_letter(out: Output, letter: DeadLetter) -> None:
    """Print all that is known about a dead message."""
    data = letter.as_dict()
    facts: dict[str, Cell] = {
        "message": letter.id,
        "topic": letter.topic,
        "died": At(letter.died_at),
        "reason": letter.reason,
        "error": letter.error,
        "place": letter.place,
        "group": letter.group,
    }
    try:
        message = decode_message(letter.body)
    except UnreadableMessage as error:
        facts["unreadable"] = str(error)
        out.facts(facts, data=data | {"unreadable": str(error)})
        if not out.is_json:
            _print_hex(out, letter.body)
        return
    facts |= {
        "produced": At(message.created_at),
        "priority": message.priority,
        "attempts": message.attempts + message.crashes,
        "replays": message.replays,
    }
    facts |= {f"header {name}": value for name, value in message.headers.items()}
    if not out.is_terminal:
        facts["payload"] = line_of(letter.payload)
    out.facts(facts, data=data)
    if out.is_json:
        return
    if out.is_terminal:
        out.raw("payload")
        out.raw(_indented(pretty(letter.payload).splitlines()))
    for number, attempt in enumerate(message.history, 1):
        _print_attempt(out, number, attempt)


def _print_attempt(out: Output, number: int, attempt: PastAttempt) -> None:
    if not out.is_terminal:
        cells = (At(attempt.at).plain, attempt.worker, f"{attempt.took:.3f}", attempt.error, attempt.trace)
        out.raw("\t".join([f"attempt {number}", *(" ".join(cell.split()) for cell in cells)]))
        return
    error = one_line(attempt.error, ERROR_LIMIT)
    out.raw(f"attempt {number}  {At(attempt.at)}, {attempt.took:.3f} s on {attempt.worker}: {error}")
    if attempt.trace:
        out.raw(_indented(attempt.trace.split(" > ")))


def _print_hex(out: Output, body: bytes) -> None:
    """Bytes as an operator reads them: where, as hex, as text."""
    for start in range(0, min(len(body), _MOST_BYTES), 16):
        some = body[start : start + 16]
        text = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in some)
        out.raw(f"  {start:06x}  {some.hex(' '):<47}  {text}")
    if len(body) > _MOST_BYTES:
        out.raw(f"  … {len(body) - _MOST_BYTES:,} bytes more; mx-rmq dlq export has them all")


def _indented(lines: list[str]) -> str:
    """Lines below a heading; what a terminal could take for a command is replaced."""
    return "\n".join("  " + "".join(c if c.isprintable() else "?" for c in line) for line in lines)
