"""Lists the messages of a topic in one state, a page at a time.

A look reads ids and places first, in small chunks, and then only the bodies of the page. A call looks at a
limited number of messages, so a page may be short although more follow. Its ``next`` always leads further.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple, assert_never

from mx_rmq.checks import check_choice, check_topic, check_whole, refusal
from mx_rmq.errors import ServerUnavailable
from mx_rmq.limits import BATCH
from mx_rmq.message import LANES
from mx_rmq.operating.dead_letters import DeadLetters
from mx_rmq.operating.messages import ASKED, MessagePage, live_facts
from mx_rmq.storage.facts import held_ids
from mx_rmq.storage.queries import Live, Queries
from mx_rmq.storage.shards import ask_those_there

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mx_rmq.message import Lane
    from mx_rmq.operating.messages import Asked, MessageFacts
    from mx_rmq.storage.shard import Shard
    from mx_rmq.storage.shards import Shards

_CHUNK: Final = 500
"""Entries looked at in one step."""
_STEPS: Final = 20
"""Steps of one call."""
_DEAD: Final = 5000
"""Dead messages looked at in one call."""
_BACK: Final = 500
"""How far a list may have moved on between two pages for the next one to continue exactly."""
_SCORE: Final = re.compile(r"-?(inf|\d+(\.\d+)?(e[+-]?\d+)?)", re.ASCII)


class _Row(NamedTuple):
    """A message for the page, and where to go on after it."""

    id: str
    live: Live
    after: str
    held: bool = False


@dataclass(frozen=True, slots=True)
class _Step:
    """What one look found."""

    rows: list[_Row]
    next: str | None
    """Where the next look begins; None at the end."""


class _List(NamedTuple):
    """What is listed."""

    topic: str
    state: Asked
    reverse: bool

    @property
    def name(self) -> str:
        """How the places of this list begin."""
        return f"-{self.state}" if self.reverse else self.state


async def list_messages(
    shards: Shards, topic: str, state: Asked, limit: int, after: str | None, *, reverse: bool = False
) -> MessagePage:
    """A page of messages; see ``RedisMessageQueue.list``."""
    topic = check_topic(topic)
    check_choice("state", state, ASKED)
    check_whole("limit", limit, 1, BATCH)
    await shards.now()
    of = _List(topic, state, reverse)
    number, place = _begin([_name(shard) for shard in shards], of, after)
    if state == "dead":
        letters = DeadLetters(shards)
        after = place or await _before_dead(letters, of)
        page = await letters.list(topic=topic, limit=limit, after=after, oldest=reverse, look=_DEAD)
        following = None if page.next is None else f"{of.name},0,{page.next}"
        facts = [letter.facts for letter in page.letters]
        return MessagePage(facts, following, page.read_at, page.missing)
    facts = []
    missing: list[str] = []
    read_at, following = 0.0, None
    for shard in shards[number:]:
        if len(facts) == limit:
            following = f"{of.name},{_name(shard)},"
            break
        queries = Queries(shard.operating)
        try:
            with shard.naming():
                now = read_at or await queries.time()
                rows, end = await _rows(queries, of, limit - len(facts), place)
                facts += await _facts(queries, rows)
        except ServerUnavailable as error:
            missing.append(str(error))
        else:
            read_at = now
            if end is not None:
                following = f"{of.name},{_name(shard)},{end}"
                break
        place = ""
    if not read_at:  # no shard of this page answers; earlier pages may have been of one that does
        times, _ = await ask_those_there(shards, lambda shard: Queries(shard.operating).time())
        read_at = max(times)
    return MessagePage(facts, following, read_at, tuple(missing))


def _name(shard: Shard) -> str:
    """How a place names its shard: by its name, because a reshard changes the order."""
    return shard.name or "0"


def _begin(shards: Sequence[str], of: _List, after: str | None) -> tuple[int, str]:
    """The number of the shard, and the place on it, at which a page begins."""
    if after is None:
        return 0, ""
    try:
        name, shard, place = after.split(",", 2)
        if name != of.name:
            raise ValueError
        number = 0 if of.state == "dead" else shards.index(shard)  # a place among the dead is of all shards
        match of.state:
            case _ if not place:  # the beginning of a shard
                pass
            case "pending":
                _pending_place(place)
            case "delayed":
                delayed_place(place)
            case "running" | "held" | "processing":
                _lease_place(place)
        return number, place
    except (AttributeError, ValueError):
        way = " in reverse" if of.reverse else ""
        raise refusal("after", f"the next of an earlier page of {of.state} messages{way}", after) from None


async def _rows(queries: Queries, of: _List, limit: int, place: str) -> tuple[list[_Row], str | None]:
    """Up to *limit* messages of one shard, and where to go on."""
    rows: dict[str, _Row] = {}
    end: str | None = place
    more = len(LANES)
    """Steps once the page is full, to learn whether it is the last one."""
    for _ in range(_STEPS):
        step = await _look(queries, of, end or "")
        for row in step.rows:
            if len(rows) == limit:
                return list(rows.values()), [*rows.values()][-1].after
            rows.setdefault(row.id, row)  # an id may be in a list twice
        end = step.next
        more -= len(rows) == limit
        if end is None or not more:
            break
    return list(rows.values()), end


async def _look(queries: Queries, of: _List, place: str) -> _Step:
    match of.state:
        case "pending":
            return await _look_at_pending(queries, of, place)
        case "delayed":
            return await _look_at_delayed(queries, of, place)
        case "running" | "held" | "processing":
            return await _look_at_leases(queries, of, place)
        case "dead":
            raise AssertionError("dead messages are listed by DeadLetters")
        case _ as never:
            assert_never(never)


async def _look_at_pending(queries: Queries, of: _List, place: str) -> _Step:
    """The entries of one lane, the next to be claimed first, or last.

    The list moves on between two looks: at one end messages are claimed, at the other they arrive. So the
    look begins behind the last entry that was passed, if that is near where it was.
    """
    lanes = LANES[::-1] if of.reverse else LANES
    lane, start, last = _pending_place(place) if place else (lanes[0], 0, "")
    # Claims bring the last entry nearer to the end that is read first, new messages move it away.
    before = 0 if not last else 1 if of.reverse else min(start, _BACK)
    near = 0 if not last else 1 + _BACK if of.reverse else before
    entries = await queries.pending_ids(of.topic, lane, start - before, near + _CHUNK, newest=of.reverse)
    begin = before
    if last in entries[:near]:
        begin = max(n for n, id_ in enumerate(entries[:near]) if id_ == last) + 1
    ids = list(dict.fromkeys(entries[begin:]))
    seen = {id_: start - before + n + 1 for n, id_ in enumerate(entries)}
    rows = [
        _Row(id_, live, f"{lane},{seen[id_]},{id_}")
        for id_, live in zip(ids, await queries.lives(of.topic, ids), strict=True)
        # Other entries are stale: no claim would deliver them.
        if live is not None and live.lease is None and live.due_at is None and live.deadline is not None
    ]
    if len(entries) == near + _CHUNK:
        return _Step(rows, f"{lane},{start - before + len(entries)},{entries[-1]}")
    further = lanes[lanes.index(lane) + 1 :]
    return _Step(rows, f"{further[0]},0," if further else None)


async def _look_at_delayed(queries: Queries, of: _List, place: str) -> _Step:
    """Delayed messages by due time; those of all topics are in one set."""
    score, passed = delayed_place(place) if place else ("inf" if of.reverse else "-inf", 0)
    found = await queries.delayed_from(score, passed, _CHUNK, latest=of.reverse)
    places = {}
    for id_, due in found:
        passed = passed + 1 if due == score else 1
        score = due
        places[id_] = f"{due},{passed}"
    ids = [id_ for id_, _ in found]
    own = [id_ for id_, topic in zip(ids, await queries.topics_of(ids), strict=True) if topic == of.topic]
    rows = [
        _Row(id_, live, places[id_])
        for id_, live in zip(own, await queries.lives(of.topic, own), strict=True)
        if live is not None and live.lease is None and live.due_at is not None
    ]
    return _Step(rows, places[ids[-1]] if len(ids) == _CHUNK else None)


async def _look_at_leases(queries: Queries, of: _List, place: str) -> _Step:
    """The leases of a topic, the oldest claim first, or last; there are no more than workers can hold."""
    leases = await queries.leases(of.topic)
    held = held_ids(of.topic, leases, await queries.workers())
    wanted = [
        (lease.fence, id_)
        for id_, lease in leases.items()
        if of.state in ("processing", "held" if id_ in held else "running")
    ]
    if place:
        passed = _lease_place(place)
        wanted = [each for each in wanted if (each < passed if of.reverse else each > passed)]
    ids = sorted(wanted, reverse=of.reverse)[: BATCH + 1]
    lives = await queries.lives(of.topic, [id_ for _, id_ in ids])
    rows = [
        _Row(id_, live, f"{at},{id_}", id_ in held)
        for (at, id_), live in zip(ids, lives, strict=True)
        if live is not None and live.lease is not None
    ]
    return _Step(rows, None)


async def _facts(queries: Queries, rows: Sequence[_Row]) -> list[MessageFacts]:
    """The facts of a page; a message that is gone by now is left out."""
    bodies = [body async for some in queries.values("payload", [row.id for row in rows]) for body in some]
    return [
        live_facts(row.id, row.live._replace(body=body), held=row.held)
        for row, body in zip(rows, bodies, strict=True)
        if body is not None
    ]


async def _before_dead(letters: DeadLetters, of: _List) -> str | None:
    """The place before a topic's first death, or behind its latest, by the groups that the server counts.

    So the few dead messages of a topic are found behind many others. None if some are in no group.
    """
    groups = await letters.groups()
    own = [
        group for group in groups if group.topic in (of.topic, "")
    ]  # one without a name may be of any topic
    if groups.uncounted or groups.missing or not own:
        return None
    if of.reverse:
        return f"0,{min(group.first_at for group in own) * 1000:.0f},"
    return f"0,{max(group.last_at for group in own) * 1000 + 1:.0f},"


# -- places, as texts in ``next``


def _pending_place(place: str) -> tuple[Lane, int, str]:
    """A lane, how many of its entries were passed, and the last of them."""
    name, passed, last = place.split(",", 2)
    (lane,) = [lane for lane in LANES if lane == name]
    return lane, _number(passed), last


def delayed_place(place: str) -> tuple[str, int]:
    """A due time as the server writes it, and how many messages with that time were passed."""
    score, passed = place.split(",")
    if not _SCORE.fullmatch(score):
        raise ValueError
    return score, _number(passed)


def _lease_place(place: str) -> tuple[int, str]:
    """The fence and the id of the last lease that was passed."""
    fence, last = place.split(",", 1)
    return _number(fence), last


def _number(text: str) -> int:
    if not re.fullmatch("[0-9]{1,16}", text):
        raise ValueError
    return int(text)
