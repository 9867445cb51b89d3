"""Names: what may be called what, and the key of every structure on the server."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING, Final, Literal

from mx_rmq.errors import InvalidName

if TYPE_CHECKING:
    from collections.abc import Collection

    from mx_rmq.scripts import Script

Lane = Literal["high", "normal", "low"]
LANES: Final[tuple[Lane, ...]] = ("high", "normal", "low")

_NAME = re.compile(r"[A-Za-z0-9_.-]{1,128}", re.ASCII)
_NAMES = re.compile(rf"{_NAME.pattern}(?: {_NAME.pattern})*", re.ASCII)

TOPIC_PARTS: Final = {
    "pending:high": "list",
    "pending": "list",
    "pending:low": "list",
    "processing": "hash",
    "wake": "list",
}
"""What every topic has, with its Redis type."""

PENDING: Final[dict[Lane, str]] = {"high": "pending:high", "normal": "pending", "low": "pending:low"}

QUEUE_PARTS: Final = {
    "payload": "hash",
    "all_expire_monitor": "zset",
    "delay_tasks": "zset",
    "dlq": "zset",
    "dlq_payload": "hash",
    "done": "zset",
    "delay_wake": "list",
    "topics": "set",
    "paused": "set",
    "counters": "hash",
    "fence": "string",
    "workers": "hash",
    "workers_seen": "zset",
}
"""What every queue has once, with its Redis type."""


def is_name(value: str | bytes) -> bool:
    """Whether this may name a topic or a message, wherever it was found."""
    text = value.decode(errors="replace") if isinstance(value, bytes) else value
    return _NAME.fullmatch(text) is not None


def check_name(what: str, value: object) -> str:
    """Return *value*, as a plain string, if it may name a *what* ("topic", "message id", …).

    Raises:
        InvalidName: it is no string of 1 to 128 letters, digits and ``_ . -``.
    """
    if isinstance(value, str) and _NAME.fullmatch(value):
        return plain(value)
    raise InvalidName(f"{shown(value)} cannot name a {what}: use 1 to 128 letters, digits and _ . - only")


def plain(text: str) -> str:
    """The same text without a subclass: a receipt, or a member of an enum, which formats as its name."""
    return text if type(text) is str else str.__str__(text)


def shown(value: object) -> str:
    """A value as an error quotes it: cut short, and whatever it is."""
    try:
        text = repr(value)
    except Exception:  # a number of thousands of digits, or an object with a mind of its own
        text = f"a {type(value).__name__} that cannot be shown"
    return text if len(text) <= 80 else text[:77] + "…"


def are_names(values: Collection[str]) -> bool:
    """Whether all of these may name something; costs a fraction of looking at each."""
    try:
        joined = " ".join(values)
    except TypeError:  # one of them is no string
        return False
    return _NAMES.fullmatch(joined) is not None and joined.count(" ") == len(values) - 1


class Keys:
    """The keys of one queue, or of one shard of it; all in one cluster slot."""

    def __init__(self, queue: str, shard: int | None = None) -> None:
        check_name("queue", queue)
        tag = queue if shard is None else f"{queue}:{shard}"
        self.prefix: Final = f"mx-rmq:{{{tag}}}:"
        # Bounded, because the topics of a long-lived producer may be many.
        self._of_script = lru_cache(maxsize=4096)(self._resolve)

    def of_queue(self, part: str) -> str:
        """The key of a part the queue has once, such as ``delay_tasks``."""
        return self.prefix + part

    def of_topic(self, topic: str, part: str) -> str:
        """The key of a part every topic has, such as ``pending:high``."""
        return self.prefix + topic + ":" + part  # added, since a member of an enum formats as its name

    def of_call(self, producer: str) -> str:
        """The key that remembers the last call of a producer."""
        return f"{self.prefix}call:of:{producer}"  # no topic has a part "of:…"

    def of_script(self, script: Script, topic: str = "", producer: str = "") -> tuple[str, ...]:
        """The KEYS of a script, in the order of its header."""
        return self._of_script(script, topic, producer)

    def _resolve(self, script: Script, topic: str, producer: str) -> tuple[str, ...]:
        resolved = []
        for name, _ in script.keys:
            if name == "call":
                resolved.append(self.of_call(producer))
            elif name in TOPIC_PARTS:
                resolved.append(self.of_topic(topic, name))
            else:
                resolved.append(self.of_queue(name))
        return tuple(resolved)
