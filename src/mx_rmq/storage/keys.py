"""The key of every structure on the server, and the names of the fields in its hashes."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from mx_rmq.checks import check_name

if TYPE_CHECKING:
    from mx_rmq.message import Lane
    from mx_rmq.storage.scripts import Script

TOPIC_PARTS: Final = {
    "pending:high": "list",
    "pending": "list",
    "pending:low": "list",
    "processing": "hash",
    "wake": "list",
}
"""The keys that every topic has, with their Redis types."""

PENDING: Final[dict[Lane, str]] = {"high": "pending:high", "normal": "pending", "low": "pending:low"}

QUEUE_PARTS: Final = {
    "payload": "hash",
    "all_expire_monitor": "zset",
    "delay_tasks": "zset",
    "dlq": "zset",
    "dlq_payload": "hash",
    "dlq_groups": "hash",
    "done": "zset",
    "delay_wake": "list",
    "topics": "set",
    "paused": "set",
    "counters": "hash",
    "fence": "string",
    "workers": "hash",
    "workers_seen": "zset",
    "tails": "zset",
}
"""The keys that every queue has once, with their Redis types."""

# ``payload`` and ``dlq_payload`` hold a message's body under its id, and these fields under its id + suffix.
TOPIC_FIELD: Final = ":queue"
KEPT_FIELD: Final = ":keep"
ERROR_FIELD: Final = ":error"
GROUP_FIELD: Final = ":group"


QUEUES: Final = "mx-rmq:{*}:[tw]o[pr][ik]*"
"""A pattern for SCAN that finds the ``topics`` and ``workers`` of every queue, and few other keys."""

_OF_QUEUE: Final = re.compile(r"mx-rmq:\{([A-Za-z0-9_.-]{1,128})(?::[0-9]+)?\}:(?:topics|workers)", re.ASCII)


def queue_of(key: str) -> str:
    """The name of the queue whose ``topics`` or ``workers`` this key is; empty if it is another key."""
    found = _OF_QUEUE.fullmatch(key)
    return found[1] if found else ""


class Keys:
    """The keys of one queue, or of one shard of it; all in one cluster slot."""

    def __init__(self, queue: str, shard: int | None = None) -> None:
        self.queue: Final = check_name("queue", queue)
        tag = queue if shard is None else f"{queue}:{shard}"
        self.prefix: Final = f"mx-rmq:{{{tag}}}:"
        # Bounded: a long-lived producer may use many topics.
        self._of_script = lru_cache(maxsize=4096)(self._resolve)

    def of_queue(self, part: str) -> str:
        """The key of a part the queue has once, such as ``delay_tasks``."""
        return self.prefix + part

    def of_topic(self, topic: str, part: str) -> str:
        """The key of a part every topic has, such as ``pending:high``."""
        return self.prefix + topic + ":" + part  # not an f-string: it would format an enum member as its name

    def of_call(self, producer: str) -> str:
        """The key that holds the last call of a producer."""
        return f"{self.prefix}call={producer}"  # no topic has this sign

    def of_end(self, id_: str) -> str:
        """The key that tells what became of a message."""
        return f"{self.prefix}ended={id_}"  # no id and no topic has an equals sign

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
