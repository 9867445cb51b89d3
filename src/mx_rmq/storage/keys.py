"""The key of every structure on the server, and the names of the fields in its hashes."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from mx_rmq.checks import check_name

if TYPE_CHECKING:
    from collections.abc import Sequence

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
    "layout": "string",
    "workers": "hash",
    "workers_seen": "zset",
    "workers_connections": "hash",
    "observer": "string",
    "scheduler": "string",
    "tails": "zset",
    "trail": "list",
    "vanished": "hash",
}
"""The keys that every queue has once, with their Redis types."""

# ``payload`` and ``dlq_payload`` hold a message's body under its id, and these fields under its id + suffix.
TOPIC_FIELD: Final = ":queue"
KEPT_FIELD: Final = ":keep"
ERROR_FIELD: Final = ":error"
GROUP_FIELD: Final = ":group"


HELD: Final = "=held:"
"""What stands before a topic in ``paused`` that waits for the shards of an older generation."""

SEAL: Final = "=sealed"
"""The member of ``done`` by which a shard takes no messages."""

QUEUES: Final = "mx-rmq:{*}:[tw]o[pr][ik]*"
"""A pattern for SCAN that finds the ``topics`` and ``workers`` of every queue, and few other keys."""

_OF_QUEUE: Final = re.compile(
    r"mx-rmq:\{([A-Za-z0-9_.-]{1,128})(?::[0-9]+(?:\.[0-9]+)?)?\}:(?:topics|workers)", re.ASCII
)


def queue_of(key: str) -> str:
    """The name of the queue whose ``topics`` or ``workers`` this key is; empty if it is another key."""
    found = _OF_QUEUE.fullmatch(key)
    return found[1] if found else ""


class Keys:
    """The keys of one queue, or of one shard of it; all in one cluster slot.

    Args:
        queue: the queue's name.
        shard: the shard as its layout names it, such as ``3`` or ``1.3``; empty for a queue's own tag.
        in_cluster: the slot can move to another node while it is in use. Each script then gets one more key,
            which never exists: a node that has moved a part of the slot refuses a call whose keys it does not
            all have, before the script begins. Without it, a script could find a key gone half way.
    """

    def __init__(self, queue: str, shard: str | int | None = None, *, in_cluster: bool = False) -> None:
        self._guard: Final = ("moving=",) if in_cluster else ()
        self.queue: Final = check_name("queue", queue)
        tag = queue if shard in (None, "") else f"{queue}:{shard}"
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
        """The KEYS of a script, in the order of its header; in a cluster one more."""
        return self._of_script(script, topic, producer)

    def of_topics(self, script: Script, topics: Sequence[str]) -> list[str]:
        """The KEYS of a script that serves several topics: those of the queue, then those of each topic."""
        if len(topics) == 1:
            return [*self.of_script(script, topics[0])]
        own = len(script.keys)
        shared = sum(name not in TOPIC_PARTS for name, _ in script.keys)
        keys = [*self.of_script(script, topics[0])[:own]]
        for topic in topics[1:]:
            keys += self.of_script(script, topic)[shared:own]
        return [*keys, *map(self.of_queue, self._guard)]

    def _resolve(self, script: Script, topic: str, producer: str) -> tuple[str, ...]:
        resolved = []
        for name, _ in script.keys:
            if name == "call":
                resolved.append(self.of_call(producer))
            elif name in TOPIC_PARTS:
                resolved.append(self.of_topic(topic, name))
            else:
                resolved.append(self.of_queue(name))
        return (*resolved, *map(self.of_queue, self._guard))
