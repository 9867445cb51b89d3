"""Read the DLQ of one shard for people: places in it, and its groups."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from mx_rmq.storage.contract import instant
from mx_rmq.storage.scanning import scan_hash

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from mx_rmq.storage.store import Store

_FIELDS: Final = 2000
"""Fields that one reply has. A group has four, of at most 1 kB together."""


class Mark(NamedTuple):
    """A place in the DLQ: a time of death as the server writes it, and the message."""

    died_ms: bytes
    id: bytes

    @property
    def order(self) -> tuple[float, bytes]:
        """Compares as the server does."""
        return float(self.died_ms), self.id

    def is_behind(self, other: Mark, *, latest: bool) -> bool:
        """Whether it comes after another, the first death first, or the latest."""
        return self.order < other.order if latest else self.order > other.order


class StoredGroup(NamedTuple):
    """A group of dead messages as it is stored; instants in seconds."""

    dead: int
    label: bytes | None
    first_at: float
    last_at: float


class DeadQueries:
    """Reads the DLQ of one shard by plain commands."""

    def __init__(self, store: Store) -> None:
        self._commands = store.commands
        self._keys = store.keys

    async def marks(self, after: Mark | None, count: int, *, latest: bool = False) -> list[Mark]:
        """Up to *count* messages behind a place in the DLQ, the first death first, or the latest.

        The message at that place may be gone, or may have died again since, and be at another place.
        """
        start = 0
        if after is not None:
            rank, died_ms = await asyncio.gather(
                self._read("ZREVRANK" if latest else "ZRANK", "dlq", after.id),
                self._read("ZSCORE", "dlq", after.id),
            )
            died = after.died_ms.decode()
            if rank is not None and died_ms is not None and float(died_ms) == float(died):
                start = rank + 1
            else:
                others = (f"({died}", "+inf") if latest else ("-inf", f"({died}")
                start = await self._read("ZCOUNT", "dlq", *others)
        order = ("REV", "WITHSCORES") if latest else ("WITHSCORES",)
        while True:
            rows = await self._read("ZRANGE", "dlq", start, start + count - 1, *order)
            found = [Mark(died_ms, id_) for id_, died_ms in zip(rows[::2], rows[1::2], strict=True)]
            behind = [mark for mark in found if after is None or mark.is_behind(after, latest=latest)]
            if behind or len(found) < count:
                return behind
            start += count  # all of them died together with the one that is gone, and stand before it

    async def before_group(self, group: str, *, latest: bool = False) -> Mark | None:
        """The place just before a group's first death, or behind its latest; None if it is not counted."""
        at = await self._read("HGET", "dlq_groups", f"{group}:{'last_at' if latest else 'first_at'}")
        if at is None or not at.isdigit():
            return None
        # No id comes before the empty one, so the mark is that of no message.
        return Mark(str(int(at) + 1).encode() if latest else at, b"")

    async def extent(self) -> tuple[int, float]:
        """How many messages are dead, and the time of the latest death in ms."""
        size, last = await asyncio.gather(
            self._read("ZCARD", "dlq"), self._read("ZRANGE", "dlq", -1, -1, "WITHSCORES")
        )
        return size, float(last[1]) if last else 0.0

    async def are_dead(self, ids: Sequence[str]) -> list[bool]:
        """Whether each message is in the DLQ."""
        return [died_at is not None for died_at in await self.deaths(ids)]

    async def deaths(self, ids: Sequence[str]) -> list[float | None]:
        """When each message died, in seconds since 1970; None if it is not in the DLQ."""
        scores = await self._read("ZMSCORE", "dlq", *ids) if ids else []
        return [None if score is None else float(score) / 1000 for score in scores]

    async def groups(self) -> tuple[int, dict[str, StoredGroup]]:
        """How many messages are dead, and their groups by id."""
        size, fields = await asyncio.gather(self._read("ZCARD", "dlq"), self.group_fields())
        return size, stored_groups(fields)

    async def group_fields(self) -> dict[bytes, bytes]:
        """All that is stored of groups, in replies of a limited length."""
        return await scan_hash(self._commands, self._keys.of_queue("dlq_groups"), _FIELDS)

    async def _read(self, command: str, part: str, *args: Any) -> Any:
        return await self._commands.execute_command(command, self._keys.of_queue(part), *args)


def stored_groups(fields: Mapping[bytes, bytes]) -> dict[str, StoredGroup]:
    """The groups by id, from the fields of ``dlq_groups``; one without a count is left out."""
    groups = {}
    for name, count in fields.items():
        id_, _, part = name.decode(errors="replace").rpartition(":")
        if part == "count" and count.isdigit() and len(count) < 20:
            label, first, last = (fields.get(f"{id_}:{each}".encode()) for each in PARTS[1:])
            groups[id_] = StoredGroup(int(count), label, _seconds(first), _seconds(last))
    return groups


PARTS: Final = ("count", "label", "first_at", "last_at")
"""The fields of a group, each named ``<id>:<part>``."""


def _seconds(ms: bytes | None) -> float:
    return instant((ms or b"").decode(errors="replace")) or 0.0
