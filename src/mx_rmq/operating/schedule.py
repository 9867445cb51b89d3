"""What is due when: delayed messages counted by due time, and the next of them, over all topics."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from mx_rmq.checks import check_whole, refusal
from mx_rmq.limits import BATCH
from mx_rmq.operating.listing import delayed_place
from mx_rmq.operating.messages import live_facts
from mx_rmq.storage.queries import Queries
from mx_rmq.storage.shards import ask_known, ask_those_there
from mx_rmq.tables import ago, lasted, plain_fields, table

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from mx_rmq.operating.messages import MessageFacts
    from mx_rmq.storage.shard import Shard
    from mx_rmq.storage.shards import Shards

STEPS: Final = 48
"""Steps of a schedule."""
_LONGEST: Final = 24 * 7
"""Hours of a schedule, at most."""

Place = tuple[str, int]
"""A due time as the server writes it, and how many messages with that time were passed."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """How many messages are due when, and some of them."""

    step: float
    """Seconds of a step."""
    due: tuple[int, ...]
    """How many messages become due in each step; the first step begins at ``read_at``."""
    overdue: int
    """Messages that are due already; the scheduler of any worker moves them."""
    later: int
    """Messages that are due after the last step."""
    messages: list[MessageFacts] = field(default_factory=list)
    """Delayed messages of all topics, the next one due first, overdue ones included."""
    next: str | None = None
    """What to pass as *after* for further messages; None if there are none."""
    read_at: float = 0.0
    """When it was read, by the server's clock."""
    missing: tuple[str, ...] = ()
    """The shards that did not answer, and why; their messages are not counted and not listed."""

    @property
    def total(self) -> int:
        """How many messages are delayed."""
        return self.overdue + sum(self.due) + self.later

    def as_dict(self) -> dict[str, Any]:
        """As JSON has it; instants as ISO texts in UTC."""
        return {"total": self.total} | plain_fields(self)

    def __str__(self) -> str:
        rows: list[tuple[str, int]] = [("overdue", self.overdue)]
        rows += [
            (f"in {lasted(n * self.step) if n else 'less than ' + lasted(self.step)}", count)
            for n, count in enumerate(self.due)
            if count
        ]
        said = table(("due", "messages"), [*rows, ("later", self.later), ("all", self.total)])
        listed = [(each.id, each.topic, ago(each.due_at, self.read_at)) for each in self.messages]
        said += f"\n\n{table(('message', 'topic', 'due'), listed)}" if listed else ""
        return "\n".join((said, *(f"missing: {why}" for why in self.missing)))


async def read_schedule(
    shards: Shards, *, hours: int = 24, limit: int = 50, after: str | None = None
) -> Schedule:
    """Read it; see ``RedisMessageQueue.schedule``."""
    check_whole("hours", hours, 1, _LONGEST)
    check_whole("limit", limit, 1, BATCH)
    each = list(await shards.now())
    places = _places(each, after)
    times, missing = await ask_those_there(each, _time)
    there, read_at = [shard for shard, _ in times], times[0][1]
    step = hours * 3600 / STEPS
    edges = [read_at + n * step for n in range(STEPS + 1)]

    async def look(shard: Shard) -> tuple[list[int], Shard, list[tuple[str, str]]]:
        queries = Queries(shard.operating)
        counts = await queries.due_counts(edges)
        return counts, shard, await queries.delayed_from(*places[shard], limit + 1)

    looks, gone = await ask_those_there(there, look)
    overdue, *due, later = map(sum, zip(*(counts for counts, _, _ in looks), strict=True))
    found = {shard: rows for _, shard, rows in looks}
    messages, following, lost = await _next(found, places, limit)
    missing += gone + lost
    return Schedule(step, tuple(due), overdue, later, messages, following, read_at, missing)


async def _time(shard: Shard) -> tuple[Shard, float]:
    return shard, await Queries(shard.operating).time()


async def _next(
    found: Mapping[Shard, Sequence[tuple[str, str]]], places: dict[Shard, Place], limit: int
) -> tuple[list[MessageFacts], str | None, tuple[str, ...]]:
    """The next messages due of all shards together, where to go on, and which shards were lost since.

    The place on a shard that did not answer stays as it was, so its messages follow once it is back.
    """
    shards = list(found)
    rows = sorted(
        (float(due), at, n, due, id_)
        for at, shard in enumerate(shards)
        for n, (id_, due) in enumerate(found[shard])
    )
    ids: dict[Shard, list[str]] = defaultdict(list)
    passed = dict(places)
    for _, at, _, due, id_ in rows[:limit]:
        score, count = passed[shards[at]]
        passed[shards[at]] = due, count + 1 if due == score else 1
        ids[shards[at]].append(id_)
    facts: dict[str, MessageFacts] = {}

    async def read(shard: Shard) -> None:
        facts.update(await _facts(Queries(shard.operating), ids[shard]))
        places[shard] = passed[shard]

    _, lost = await ask_known(ids, read)
    messages = [facts[row[-1]] for row in rows[:limit] if row[-1] in facts]
    if len(rows) <= limit:
        return messages, None, lost
    return messages, "due," + ";".join(f"{score},{count}" for score, count in places.values()), lost


async def _facts(queries: Queries, ids: Sequence[str]) -> dict[str, MessageFacts]:
    """The facts of delayed messages; one that was promoted or is gone by now is left out."""
    by_topic: dict[str, list[str]] = defaultdict(list)
    for id_, topic in zip(ids, await queries.topics_of(ids), strict=True):
        by_topic[topic].append(id_)
    lives = await asyncio.gather(*(queries.lives(topic, own) for topic, own in by_topic.items()))
    known = {
        id_: live
        for own, found in zip(by_topic.values(), lives, strict=True)
        for id_, live in zip(own, found, strict=True)
        if live is not None and live.lease is None and live.due_at is not None
    }
    bodies = [body async for some in queries.values("payload", list(known)) for body in some]
    return {
        id_: live_facts(id_, live._replace(body=body))
        for (id_, live), body in zip(known.items(), bodies, strict=True)
        if body is not None
    }


def _places(shards: Sequence[Shard], after: str | None) -> dict[Shard, Place]:
    """Where the messages of each shard begin."""
    if after is None:
        return dict.fromkeys(shards, ("-inf", 0))
    try:
        name, _, rest = after.partition(",")
        places = [delayed_place(place) for place in rest.split(";")]
        if name != "due" or len(places) != len(shards):
            raise ValueError
    except (AttributeError, ValueError):
        raise refusal("after", "the next of an earlier schedule", after) from None
    return dict(zip(shards, places, strict=True))
