"""The trail: what operators did to a queue, who did it and when."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import msgspec

from mx_rmq.checks import check_whole
from mx_rmq.limits import MOST_ACTS
from mx_rmq.message import ENCODER
from mx_rmq.storage.queries import Queries
from mx_rmq.tables import ago, iso, one_line, plain_fields, table

if TYPE_CHECKING:
    from collections.abc import Iterable

    from mx_rmq.storage.shards import Shards

_WIDTHS: Final = {"who": 100, "what": 60, "target": 300, "said": 300}
"""Characters of each text; a longer one is cut, so that the whole trail has about a megabyte at most."""


@dataclass(frozen=True, slots=True)
class Act:
    """What an operator did."""

    at: float
    """When, by the server's clock."""
    who: str
    what: str
    """In a word or two, such as ``pause`` or ``replay``."""
    target: str = ""
    """What it was done to: a topic, the id of a message, a filter."""
    count: int = 0
    """How many messages it changed."""
    said: str = ""
    """What came of it, such as why it failed."""

    def as_dict(self) -> dict[str, Any]:
        """As JSON has it; the instant as ISO text in UTC."""
        return plain_fields(self) | {"at": iso(self.at)}

    def __str__(self) -> str:
        return str(Trail([self]))


class Trail(list[Act]):
    """What operators did, the latest first; prints as a table.

    Args:
        acts: in this order.
        read_at: when it was read, by the server's clock; ages are counted from then.
    """

    def __init__(self, acts: Iterable[Act] = (), read_at: float = 0.0) -> None:
        super().__init__(acts)
        self.read_at = read_at

    def as_dict(self) -> dict[str, Any]:
        """As JSON has it; instants as ISO texts in UTC."""
        return {"acts": [act.as_dict() for act in self], "read_at": iso(self.read_at)}

    def __str__(self) -> str:
        if not self:
            return "no act was noted"
        rows = [(ago(a.at, self.read_at), a.who, a.what, a.target, a.count, a.said) for a in self]
        return table(("when", "who", "what", "target", "count", "said"), rows)


async def note_act(
    shards: Shards, who: str, what: str, target: str = "", *, count: int = 0, said: str = ""
) -> None:
    """Note what an operator did; see ``RedisMessageQueue.note_act``."""
    check_whole("count", count, 0)
    texts = {"who": who, "what": what, "target": target, "said": said}
    facts: dict[str, Any] = {name: one_line(text, _WIDTHS[name]) for name, text in texts.items() if text}
    if count:
        facts["count"] = count
    await shards.base.operating.note_act(ENCODER.encode(facts))


async def read_trail(shards: Shards, limit: int) -> Trail:
    """The latest acts; see ``RedisMessageQueue.trail``."""
    check_whole("limit", limit, 1, MOST_ACTS)
    queries = Queries(shards.base.operating)
    notes = await queries.trail(limit)
    return Trail((act for note in notes if (act := _act(note)) is not None), await queries.time())


class _Note(msgspec.Struct):
    who: str = ""
    what: str = ""
    target: str = ""
    count: int = 0
    said: str = ""


_decoder = msgspec.json.Decoder(_Note)


def _act(note: bytes) -> Act | None:
    """Read a note; None for one that another program wrote."""
    at, _, text = note.partition(b" ")
    try:
        facts = _decoder.decode(text)
        return Act(int(at) / 1000, facts.who, facts.what, facts.target, facts.count, facts.said)
    except (ValueError, OverflowError, msgspec.MsgspecError):
        return None
