"""Workers that vanished lately, as others noted them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from mx_rmq.storage.queries import Queries
from mx_rmq.storage.shards import ask_those_there
from mx_rmq.storage.vanished import decode_vanished
from mx_rmq.tables import ago, iso, plain_fields, table

if TYPE_CHECKING:
    from collections.abc import Iterable

    from mx_rmq.storage.shard import Shard
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
        missing: the shards that did not answer, and why; what is noted there is not known.
    """

    def __init__(
        self,
        workers: Iterable[VanishedWorker] = (),
        read_at: float = 0.0,
        *,
        missing: tuple[str, ...] = (),
    ) -> None:
        super().__init__(workers)
        self.read_at = read_at
        self.missing = missing

    def as_dict(self) -> dict[str, Any]:
        """As JSON has it; instants as ISO texts in UTC."""
        workers = [worker.as_dict() for worker in self]
        return {"workers": workers, "read_at": iso(self.read_at), "missing": list(self.missing)}

    def __str__(self) -> str:
        return "\n".join((self._table(), *(f"missing: {why}" for why in self.missing)))

    def _table(self) -> str:
        if not self:
            return "no worker vanished"
        rows = [(w.name, ago(w.at, self.read_at), w.messages, ", ".join(w.ids), w.seen_by) for w in self]
        return table(("worker", "vanished", "messages", "such as", "seen by"), rows)


async def read_vanished(shards: Shards) -> Vanished:
    """Read them; see ``RedisMessageQueue.vanished``."""
    found: dict[str, VanishedWorker] = {}
    looks, missing = await ask_those_there(await shards.now(), _look)
    for notes, _ in looks:
        for name, stored in notes.items():
            if (noted := decode_vanished(stored)) is None:
                continue
            at, note = noted
            here = VanishedWorker(name, at, note.messages, tuple(note.ids), note.seen_by)
            before = found.get(name)
            found[name] = here if before is None else _joined(before, here)
    latest = sorted(found.values(), key=lambda each: (-each.at, each.name))
    return Vanished(latest, looks[0][1], missing=missing)


async def _look(shard: Shard) -> tuple[dict[str, bytes], float]:
    """What a shard has noted, and when it was read."""
    queries = Queries(shard.operating)
    return await queries.vanished(), await queries.time()


def _joined(one: VanishedWorker, other: VanishedWorker) -> VanishedWorker:
    """The same worker on two shards."""
    return replace(
        one,
        at=max(one.at, other.at),
        messages=one.messages + other.messages,
        ids=one.ids + other.ids,
    )
