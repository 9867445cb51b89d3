"""Reading the DLQ of a queue over all its shards: a page, the groups, and where messages are."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from mx_rmq.checks import given_id, refusal
from mx_rmq.errors import ServerUnavailable
from mx_rmq.fingerprint import decode_label
from mx_rmq.limits import BATCH
from mx_rmq.operating.dlq_reader import Look, Walk, search, with_bodies
from mx_rmq.operating.letters import DeadGroup, DeadLetter, Page, letter_of
from mx_rmq.storage.dead_queries import DeadQueries, Mark, StoredGroup
from mx_rmq.storage.queries import Queries
from mx_rmq.storage.shards import ask_all, ask_known, ask_those_there

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from mx_rmq.operating.dlq_reader import Filter
    from mx_rmq.storage.contract import DeadRow
    from mx_rmq.storage.shard import Shard
    from mx_rmq.storage.shards import Shards

    Found = list[tuple[Shard, DeadRow]]


async def read_page(
    shards: Shards, where: Filter, after: str | None, *, limit: int, latest: bool, look: int | None
) -> Page:
    """Some dead messages, of the shards that answer.

    Args:
        shards: of the queue.
        where: which messages.
        after: the place behind the page before; None for the first page.
        limit: the most messages on a page.
        latest: whether the latest death comes first.
        look: the most messages to look at, on all shards together; None for all.
    """
    place = _place(after)

    async def some(shard: Shard) -> tuple[Found, Mark | None, float]:
        """One more than the page may need, to know whether more follow; where it stopped, and the time."""
        begin: Mark | None = place
        found: Found = []
        if place is None and where.group is not None and look is not None:
            begin = await DeadQueries(shard.operating).before_group(where.group, latest=latest)
        far = Look() if look is None else Look(max(1, look // len(shards)))
        async for row in search(shard.operating, where, begin, limit, far, latest=latest):
            found.append((shard, row))
            if len(found) > limit:
                break
        stop = far.seen if far.left <= 0 and len(found) <= limit else None
        return found, stop, await Queries(shard.operating).time()

    answers, missing = await ask_those_there(shards, some)
    found = [each for here, _, _ in answers for each in here]
    found.sort(key=lambda each: _mark(each[1]).order, reverse=latest)
    end: Mark | None = None
    if stops := [stop for _, stop, _ in answers if stop is not None]:  # behind the first, one may be missing
        end = sorted(stops, key=lambda stop: stop.order, reverse=latest)[0]
        found = [each for each in found if not _mark(each[1]).is_behind(end, latest=latest)]
    if len(found) > limit:
        end = _mark(found[limit - 1][1])
    page = found[:limit]
    by_shard: dict[Shard, list[bytes]] = defaultdict(list)
    for shard, row in page:
        by_shard[shard].append(row.id)
    read: dict[tuple[Shard, bytes], DeadLetter] = {}

    async def read_bodies(shard: Shard) -> None:
        async for rows in with_bodies(shard.operating, by_shard[shard]):
            read.update({(shard, row.id): letter_of(row) for row in rows})

    _, gone = await ask_known(by_shard, read_bodies)
    letters = [letter for shard, row in page if (letter := read.get((shard, row.id))) is not None]
    read_at = max(at for _, _, at in answers)
    return Page(letters, None if end is None else _next(end), read_at, missing + gone)


def _mark(row: DeadRow) -> Mark:
    """The place of a message."""
    return Mark(row.died_ms, row.id)


def _next(mark: Mark) -> str:
    """The place behind a message, as text; it is the same on all shards, so no shard is named."""
    return f"0,{mark.died_ms.decode()},{mark.id.decode(errors='surrogateescape')}"


def _place(after: str | None) -> Mark | None:
    """The last message before a page."""
    if after is None:
        return None
    try:
        of_all, died_ms, id_ = after.split(",", 2)
        if not float(died_ms) >= 0 or int(of_all):
            raise ValueError
        return Mark(died_ms.encode(), id_.encode(errors="surrogateescape"))
    except (AttributeError, ValueError):
        raise refusal("after", "the next of an earlier page", after) from None


async def read_groups(shards: Shards) -> tuple[list[DeadGroup], int, tuple[str, ...]]:
    """The groups of all shards, the largest first; how many are in none; which shards did not answer."""
    found: dict[str, StoredGroup] = {}
    dead = 0
    looks, missing = await ask_those_there(shards, lambda shard: DeadQueries(shard.operating).groups())
    for size, here in looks:
        dead += size
        for id_, group in here.items():
            found[id_] = _joined(found[id_], group) if id_ in found else group
    groups = []
    for id_, group in found.items():
        label = decode_label(group.label)
        times = group.dead, group.first_at, group.last_at
        groups.append(DeadGroup(label.topic, label.error, label.place, *times, id_, label.text))
    groups.sort(key=lambda group: (-group.count, group.topic, group.error, group.id))
    uncounted = max(0, dead - sum(group.count for group in groups))
    return groups, uncounted, missing


def _joined(one: StoredGroup, other: StoredGroup) -> StoredGroup:
    """A group that is on two shards."""
    times = min(one.first_at, other.first_at), max(one.last_at, other.last_at)
    return StoredGroup(one.dead + other.dead, one.label or other.label, *times)


async def count_matches(shards: Shards, where: Filter) -> int:
    """How many dead messages match; all of them are looked at, without their bodies."""

    async def count(shard: Shard) -> int:
        counted = 0
        with Walk(shard.operating, where, "ids") as walk:
            while rows := await walk.next(BATCH):
                counted += len(rows)
        return counted

    return sum(await ask_all(shards, count))


async def dead_by_shard(shards: Shards, given: Iterable[object]) -> dict[Shard, list[str]]:
    """The ids grouped by the shard that has them dead; each group keeps the given order.

    The shards to which an id leads are asked first, then the others: a message with a key is where that
    leads to. An id that is dead nowhere stays with the shard to which it leads.

    Raises:
        ServerUnavailable: no shard that answers has an id, and one does not answer.
    """
    by_shard: dict[Shard, list[str]] = defaultdict(list)
    ids = list(map(given_id, given))
    if shards.is_one:
        return {shards[0]: ids}
    every = list(shards)  # the layout may change before they answer
    homes = {id_: shards.homes(id_) for id_ in ids}
    where, away, silent = await _dead_on(homes)
    if left := [id_ for id_ in homes if id_ not in where]:
        others = [shard for shard in every if shard not in silent]
        rest = {id_: [shard for shard in others if shard not in homes[id_]] for id_ in left}
        found, more, _ = await _dead_on(rest)
        where |= found
        away += more
        if away and len(found) < len(left):
            raise ServerUnavailable("; ".join(away))
    for id_ in ids:
        by_shard[where.get(id_, homes[id_][0])].append(id_)
    return by_shard


async def _dead_on(
    places: Mapping[str, Sequence[Shard]],
) -> tuple[dict[str, Shard], tuple[str, ...], list[Shard]]:
    """The first of the shards given for an id that has it dead; why some did not answer, and which."""
    asked: dict[Shard, list[str]] = defaultdict(list)
    for id_, some in places.items():
        for shard in some:
            asked[shard].append(id_)
    dead: dict[Shard, set[str]] = {}

    async def look(shard: Shard) -> None:
        own, found = asked[shard], set[str]()
        for start in range(0, len(own), BATCH):
            batch = own[start : start + BATCH]
            are_dead = await DeadQueries(shard.operating).are_dead(batch)
            found |= {id_ for id_, is_dead in zip(batch, are_dead, strict=True) if is_dead}
        dead[shard] = found

    _, away = await ask_known(asked, look)
    where = {
        id_: shard for id_, some in places.items() for shard in reversed(some) if id_ in dead.get(shard, ())
    }
    return where, away, [shard for shard in asked if shard not in dead]
