"""Workers that vanished lately, as others noted them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from mx_rmq.storage.queries import Queries
from mx_rmq.storage.shards import ask_all
from mx_rmq.storage.vanished import decode_vanished
from mx_rmq.tables import ago, iso, plain_fields, table

if TYPE_CHECKING:
    from collections.abc import Iterable

    from mx_rmq.storage.shards import Shards


@dataclass(frozen=True, slots=True)
class VanishedWorker:
    """A worker that vanished: its connection was gone and did not come back."""

    name: str
    at: float
    """When others ended its leases, by the server's clock."""
    messages: int = 0
    """How many messages it had; others took them over."""
    ids: tuple[str, ...] = ()
    """Some of these messages."""
    seen_by: str = ""
    """The worker that missed it."""

    def as_dict(self) -> dict[str, Any]:
        """As JSON has it; instants as ISO texts in UTC."""
        return plain_fields(self) | {"at": iso(self.at)}

    def __str__(self) -> str:
        return str(Vanished([self]))


class Vanished(list[VanishedWorker]):
    """Workers that vanished, the latest first; prints as a table.

    Args:
        workers: in this order.
        read_at: when it was read, by the server's clock; ages are counted from then.
    """

    def __init__(self, workers: Iterable[VanishedWorker] = (), read_at: float = 0.0) -> None:
        super().__init__(workers)
        self.read_at = read_at

    def as_dict(self) -> dict[str, Any]:
        """As JSON has it; instants as ISO texts in UTC."""
        return {"workers": [worker.as_dict() for worker in self], "read_at": iso(self.read_at)}

    def __str__(self) -> str:
        if not self:
            return "no worker vanished"
        rows = [(w.name, ago(w.at, self.read_at), w.messages, ", ".join(w.ids), w.seen_by) for w in self]
        return table(("worker", "vanished", "messages", "such as", "seen by"), rows)


async def read_vanished(shards: Shards) -> Vanished:
    """Read them; see ``RedisMessageQueue.vanished``."""
    found: dict[str, VanishedWorker] = {}
    noted_by_shard = await ask_all(await shards.now(), lambda shard: Queries(shard.operating).vanished())
    for notes in noted_by_shard:
        for name, stored in notes.items():
            if (noted := decode_vanished(stored)) is None:
                continue
            at, note = noted
            here = VanishedWorker(name, at, note.messages, tuple(note.ids), note.seen_by)
            before = found.get(name)
            found[name] = here if before is None else _joined(before, here)
    with shards[0].naming():
        read_at = await Queries(shards[0].operating).time()
    return Vanished(sorted(found.values(), key=lambda each: (-each.at, each.name)), read_at)


def _joined(one: VanishedWorker, other: VanishedWorker) -> VanishedWorker:
    """The same worker on two shards."""
    return replace(
        one,
        at=max(one.at, other.at),
        messages=one.messages + other.messages,
        ids=one.ids + other.ids,
    )
