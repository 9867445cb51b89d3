"""Messages as rows of a table: where each stands, and the beginning of its payload."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import msgspec

from mx_rmq.errors import MxRmqError
from mx_rmq.web.exact import UNREADABLE
from mx_rmq.web.words import cut

if TYPE_CHECKING:
    from mx_rmq.operating.messages import MessageFacts
    from mx_rmq.web.redaction import Redactor

_WIDTH: Final = 120
"""Characters of a payload in a row."""
_LARGE: Final = 64 * 1024
"""Bytes of a payload that is not decoded only to show its beginning."""


@dataclass(frozen=True, slots=True)
class MessageRow:
    """A message in a table."""

    of: MessageFacts
    payload: str
    """The beginning of its payload, without hidden fields."""


def message_row(facts: MessageFacts, redact: Redactor) -> MessageRow:
    """A message as a row."""
    if facts.message is None:
        return MessageRow(facts, f"cannot be read: {cut(facts.unreadable, _WIDTH)}")
    size = len(bytes(facts.message.payload))
    if redact and size > _LARGE:
        return MessageRow(facts, f"{size:,} bytes")
    return MessageRow(facts, cut(payload_text(facts, redact, 4 * _WIDTH), _WIDTH))


def payload_text(facts: MessageFacts, redact: Redactor, most: int | None = None) -> str:
    """The payload as JSON, without hidden fields.

    Args:
        facts: of the message.
        redact: hides fields.
        most: bytes that are enough; None for the whole.
    """
    if facts.message is None:
        return ""
    if redact:
        try:
            return msgspec.json.encode(redact.hide(facts.payload)).decode()
        except (MxRmqError, msgspec.MsgspecError, ValueError, RecursionError):
            return UNREADABLE  # another program stored it, such as one nested thousands deep
    return bytes(facts.message.payload)[:most].decode(errors="replace")
