"""What dead messages have in common: they are grouped and counted by it."""

from __future__ import annotations

import re
from hashlib import blake2b
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from mx_rmq.message import ENCODER, ERROR_LIMIT

if TYPE_CHECKING:
    from mx_rmq.message import Death

_LONGEST: Final = 200
"""Characters of a fingerprint, and of each text in a label: groups are as many as causes, not as bytes."""

_TOKEN: Final = re.compile(
    r"""(?<!\w)'[^']*'(?!\w) | "[^"]*" | `[^`]*` | “[^”]*”   # quoted texts, but no apostrophes
      | \w+://[^\s,;"'<>)\]}]+ | [\w.+-]+@[\w.-]+            # addresses
      | \w[\w-]*                                              # words, among them numbers and ids""",
    re.VERBOSE,
)
_HEX: Final = re.compile(r"[0-9a-fA-F]{8,}")
_VARIABLES: Final = re.compile(r"[-+]?\*(?:[\s,.:;/+-]*\*)*")
"""One or more placeholders in a row, such as those of a date, an IP address or a list."""


class Label(msgspec.Struct, omit_defaults=True, kw_only=True):
    """What a group of dead messages is called."""

    topic: str
    error: str
    """The class of the error, or the reason if there was none."""
    place: str = ""
    text: str = ""
    """The error of the message that began the group."""


class Group(NamedTuple):
    """A group of dead messages."""

    id: str
    """16 hexadecimal digits, made from the topic, the error, the place and the fingerprint."""
    label: bytes

    def __bytes__(self) -> bytes:
        """As the scripts take it."""
        return b"%b %b" % (self.id.encode(), self.label)


_label_decoder: Final = msgspec.json.Decoder(Label)


def fingerprint(text: str) -> str:
    """What is left of an error's text without its numbers, ids, quoted texts and addresses.

    Only the beginning of the text counts, so that a long one costs no more.
    """
    words = " ".join(_TOKEN.sub(_common, text[:ERROR_LIMIT]).split())
    return _VARIABLES.sub("*", words)[:_LONGEST]


def group_of(topic: str, death: Death) -> Group:
    """The group of a message that died."""
    error, place = (death.kind or death.reason)[:_LONGEST], death.place[:_LONGEST]
    text = death.error.removeprefix(f"{death.kind}: ") if death.kind else death.error
    cause = "\0".join((topic, error, place, fingerprint(text))).encode(errors="replace")
    label = Label(topic=topic, error=error, place=place, text=text[:_LONGEST])
    return Group(blake2b(cause, digest_size=8).hexdigest(), ENCODER.encode(label))


def decode_label(label: bytes | None) -> Label:
    """Decode what a group is called; one that cannot be read is called unknown."""
    try:
        return _label_decoder.decode(label or b"")
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return Label(topic="", error="unknown")


def _common(token: re.Match[str]) -> str:
    """A token that messages of one group share, or a placeholder."""
    text = token[0]
    if not (text[0].isalnum() or text[0] == "_") or "://" in text or "@" in text:
        return "*"
    return "*" if any(map(str.isdigit, text)) or _HEX.fullmatch(text) else text
