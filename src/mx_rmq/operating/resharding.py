"""Resharding: a live queue gets another number of shards, by a new generation of them.

New messages go to the new generation; the older ones take none and drain. Workers serve all of them. What is
dead is moved. Every step can be done again: a reshard that was interrupted goes on when it is called again.
The layout and what is moved are written with the queue's durability, so that no failover undoes them.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from dataclasses import dataclass
from functools import partial, reduce
from operator import add
from typing import TYPE_CHECKING, Any, Final, Literal

from mx_rmq.checks import check_whole, is_label
from mx_rmq.errors import ConfigError, NotDurable, ServerUnavailable
from mx_rmq.limits import BATCH, MOST_SHARDS
from mx_rmq.operating.dlq_reader import Filter, Walk
from mx_rmq.operating.messages import read_message
from mx_rmq.storage.contract import Restore
from mx_rmq.storage.dead_queries import DeadQueries
from mx_rmq.storage.facts import TopicCounts
from mx_rmq.storage.keys import QUEUE_PARTS, TOPIC_PARTS
from mx_rmq.storage.layout import COPIES
from mx_rmq.storage.queries import Queries
from mx_rmq.storage.refusals import Sealed
from mx_rmq.storage.resend import GrowingWait, resend
from mx_rmq.storage.shard import shard_number
from mx_rmq.storage.shards import ask_all, ask_known, ask_those_there, copy_layout, parsed_layout, unseal
from mx_rmq.tables import plain_fields, table

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence, Set

    from mx_rmq.storage.contract import DeadRow, Left
    from mx_rmq.storage.layout import Layout
    from mx_rmq.storage.shard import Shard
    from mx_rmq.storage.shards import Shards

ShardState = Literal["serving", "draining", "away"]

_AT_ONCE: Final = 250
"""Dead messages moved per call."""
_LOOKS: Final = (0.05, 1.0)
"""Seconds between two looks at what is left, at first and at most."""
_GRACE: Final = 2.0
"""Seconds in which workers learn that a generation is gone, before what they left there is deleted."""
_PATIENCE: Final = 30.0
"""Seconds for which a shard that is away is tried when its last keys are deleted."""
_CHANGED: Final = "another program reshards the queue; call reshard again to go on"
_SEALED: Final = {"done"}
"""What stays of a tag that is no shard any more: its seal."""
_MESSAGES: Final = {"payload", "all_expire_monitor", "delay_tasks", "dlq", "dlq_payload"}
"""What has messages: an empty shard has none of these keys, and those of another must stay."""
_OF_WORKERS: Final = {"workers", "workers_seen", "workers_connections", "observer", "scheduler"}
"""What workers write as long as they serve a shard."""
_OF_QUEUE: Final = {"layout", "tails", "trail"}
"""What belongs to the whole queue, at its own tag."""


@dataclass(frozen=True, slots=True)
class ShardFacts:
    """One shard of a queue."""

    name: str
    """As its keys have it, such as ``3`` or ``1.3``; empty for a queue that was made with one shard."""
    generation: int
    state: ShardState
    """``draining`` if it takes no new messages, ``away`` if it does not answer."""
    server: str
    """Where it is: host and port in a cluster and with Sentinel, else the URL without user and password."""
    pending: int = 0
    processing: int = 0
    delayed: int = 0
    dead: int = 0
    error: str = ""
    """Why it does not answer."""

    def as_dict(self) -> dict[str, Any]:
        """As JSON has it."""
        return plain_fields(self)

    def __str__(self) -> str:
        return str(ShardList([self]))


class ShardList(list[ShardFacts]):
    """The shards of a queue, the current generation first; prints as a table."""

    def as_dict(self) -> dict[str, Any]:
        """As JSON has it."""
        return {"shards": [shard.as_dict() for shard in self]}

    def __str__(self) -> str:
        columns = ("shard", "generation", "state", "pending", "processing", "delayed", "dead", "server")
        rows = [
            (
                shard.name or "-",
                shard.generation,
                shard.state,
                *(
                    ("-",) * 4
                    if shard.error
                    else (shard.pending, shard.processing, shard.delayed, shard.dead)
                ),
                shard.server,
            )
            for shard in self
        ]
        away = (f"away: {shard.error}" for shard in self if shard.error)
        return "\n".join((table(columns, rows), *away))


@dataclass(frozen=True, slots=True)
class Resharding:
    """How far a reshard is: what the older generations have left."""

    shards: int
    """How many shards the queue gets."""
    active: int = 0
    """Messages that are pending or processing."""
    delayed: int = 0
    dead: int = 0
    moved: int = 0
    """Dead messages that were moved to the new shards so far."""
    away: tuple[str, ...] = ()
    """Older shards that did not answer, and why; what they have left is not known."""
    strays: int = 0
    """Fields that belong to no message; a reshard does not end before the audit has mended them."""

    @property
    def left(self) -> int:
        """Messages that the older generations have left, as far as that is known."""
        return self.active + self.delayed + self.dead

    def as_dict(self) -> dict[str, Any]:
        """As JSON has it."""
        return plain_fields(self) | {"left": self.left}

    def __str__(self) -> str:
        parts = f"{self.active} pending or processing, {self.delayed} delayed, {self.dead} dead"
        away = f"; {'; '.join(self.away)}" if self.away else ""
        strays = f"; {self.strays} strays: mend them with `mx-rmq audit --repair`" if self.strays else ""
        return f"to {self.shards} shards: {parts} left in the older ones{strays}{away}"


async def list_shards(shards: Shards) -> ShardList:
    """The shards of all generations; see ``RedisMessageQueue.shards``."""
    await shards.now()
    numbers = [each.number for each in reversed(shards.layout.generations)]

    async def look(shard: Shard, generation: int) -> ShardFacts:
        state: ShardState = "serving" if shard in shards.current else "draining"
        try:
            counts = await Queries(shard.operating).counts()
        except ServerUnavailable as error:
            why = str(shard.naming.named(error))
            return ShardFacts(shard.name, generation, "away", shard.node, error=why)
        whole = reduce(add, counts.topics.values(), TopicCounts())
        active = whole.pending, whole.processing
        return ShardFacts(shard.name, generation, state, shard.node, *active, counts.delayed, counts.dead)

    each = zip(numbers, shards.generations, strict=True)
    looks = [look(shard, number) for number, some in each for shard in some]
    return ShardList(await asyncio.gather(*looks))


async def reshard(shards: Shards, number: int, progress: Callable[[Resharding], None] | None = None) -> None:
    """Spread a queue over another number of shards; see ``RedisMessageQueue.reshard``."""
    check_whole("shards", number, 1, MOST_SHARDS)
    begun = await _begin(shards, number)
    waits = GrowingWait(*_LOOKS)
    moved, before = 0, -1

    async def look(shard: Shard) -> Left:
        nonlocal moved
        await shard.operating.seal()
        here = await _move_dead(shards, shard)
        moved += here
        return await shard.operating.left()

    while shards.older:
        known, older = shards.layout, [shard for some in shards.older for shard in some]
        try:
            left, away = await ask_known(older, look)
        except Sealed:  # a new shard refused a dead message
            await shards.look()
            _refuse_overtaken(shards, begun)
            raise
        now = Resharding(
            number,
            sum(each.active for each in left),
            sum(each.delayed for each in left),
            sum(each.dead for each in left),
            moved,
            away,
            sum(each.strays for each in left),
        )
        if progress is not None:
            progress(now)
        if not away and all(each.nothing for each in left) and await _finish(shards, known, older):
            break
        if now.left != before:
            waits.reset()
        before = now.left
        await asyncio.sleep(waits.next())
        await shards.now()  # another program may have gone on with it, or have begun the next
        if shards.layout.current.number < begun:  # a replica took over that had not heard of the layout
            begun = await _begin(shards, number)
        _refuse_overtaken(shards, begun)
    await shards.now()
    _refuse_overtaken(shards, begun)


def _refuse_overtaken(shards: Shards, begun: int) -> None:
    """Raise if another program has begun a further generation."""
    current = shards.layout.current
    if current.number > begun:
        raise ConfigError(
            f"another program reshards the queue to {current.shards} shards; call reshard again to go back"
        )


async def _begin(shards: Shards, number: int) -> int:
    """Add a generation, unless the current one has the number already; returns which generation has it."""
    store = shards.base.operating
    while True:
        text = await Queries(store).layout()
        if text:
            shards.use(parsed_layout(shards.base.keys.queue, text))
        else:
            await shards.look()
        if shards.layout.current.shards == number:
            return shards.layout.current.number
        layout, before = shards.layout.grown(number), shards.current
        coming = shards.of(layout.current)
        # A queue of this name that was deleted may have left its seals. Once a layout names the shards, a
        # seal may be that of the next reshard.
        await ask_all(coming, lambda shard: unseal(shard.operating))
        paused = await _carry_pauses(before, coming)
        if await _set_layout(shards, text, layout):
            shards.use(layout)
            # What is paused from now on is paused on the new shards too: ``pause`` reads the layout last.
            await _carry_pauses(before, coming, paused)
            await _copy(shards, layout)
            return layout.current.number


async def _set_layout(shards: Shards, known: str, layout: Layout) -> bool:
    """Write the layout if the one that was read is there still; returns whether it is written.

    Raises:
        ServerUnavailable: the server has it, but not as durably as the queue wants its messages.
    """
    try:
        status, _ = await shards.base.durable.set_layout(known, str(layout))
    except NotDurable as error:
        raise ServerUnavailable(f"the layout is written, but {error.lacking}; call reshard again") from error
    return status > 0


async def _carry_pauses(
    before: Sequence[Shard], coming: Sequence[Shard], carried: Set[str] | None = None
) -> Set[str]:
    """Pause on new shards what is paused on those before them, and resume what is not; returns the topics.

    Args:
        before: shards of the generation before.
        coming: shards of the new one.
        carried: what an earlier call has paused there. By default it is asked, since a reshard that failed
            may have paused topics that were resumed since. Once the layout names the shards, operators pause
            topics there too, and only what was carried may be resumed.
    """
    found, _ = await ask_those_there(before, lambda shard: Queries(shard.operating).paused_topics())
    paused = set[str]().union(*found)

    async def carry(shard: Shard) -> None:
        there = await Queries(shard.operating).paused_topics() if carried is None else carried
        for topic in paused - there:
            await shard.operating.pause(topic)
        for topic in there - paused:
            await shard.operating.resume(topic)

    if paused != carried:
        await ask_all(coming, carry)
    return paused


async def _copy(shards: Shards, layout: Layout) -> None:
    """Note the layout elsewhere too, where programs look that cannot reach the queue's own tag."""
    places = [*shards.copies, *(shard for shard in shards if shard is not shards.base)]
    copies = (copy_layout(shard.operating, layout) for shard in dict.fromkeys(places))
    await asyncio.gather(*copies, return_exceptions=True)  # no message needs them


async def _move_dead(shards: Shards, old: Shard) -> int:
    """Move the dead messages of an older shard to their new homes; returns how many.

    They are put there first, then deleted here. A message that is there already was moved before.
    """
    moved = 0
    with Walk(old.operating, Filter()) as walk:
        while found := await walk.next(_AT_ONCE):
            rows = [row for row in found if is_label(row.id)]  # others are for the audit
            # They were read a while ago: an operator may have replayed or deleted some since.
            deaths = await DeadQueries(old.operating).deaths([_text(row.id) for row in rows])
            rows = [row for row, died_at in zip(rows, deaths, strict=True) if died_at == row.died_at]
            homes: dict[Shard, list[DeadRow]] = defaultdict(list)
            for row in rows:
                homes[_home(shards, row)].append(row)

            await asyncio.gather(*(_put(home, own) for home, own in homes.items()))
            ids = [_text(row.id) for row in rows]
            gone = await old.operating.delete_dead(ids, [row.died_at for row in rows])
            moved += gone
            if gone < len(rows):
                await _take_back(shards, old, rows)
    return moved


async def _put(home: Shard, rows: Sequence[DeadRow]) -> None:
    with home.naming():
        try:
            await home.durable.restore([_restore(row) for row in rows])
        except NotDurable as error:
            why = f"dead messages are copied to it, but {error.lacking}"
            raise ServerUnavailable(why) from error


async def _take_back(shards: Shards, old: Shard, rows: Sequence[DeadRow]) -> None:
    """Delete the copies of messages that an operator replayed on the older shard just then."""
    ids = [_text(row.id) for row in rows]
    taken = await Queries(old.operating).topics_of(ids)
    for row, topic in zip(rows, taken, strict=True):
        if topic:
            home = _home(shards, row)
            await home.operating.delete_dead([_text(row.id)], [row.died_at])


def _home(shards: Shards, row: DeadRow) -> Shard:
    id_ = _text(row.id)
    message, _ = read_message(row.body, id_, _text(row.topic))
    leader = (message.key if message is not None else "") or id_
    return shards.current[shard_number(leader, len(shards.current))]


def _restore(row: DeadRow) -> Restore:
    id_, topic = _text(row.id), _text(row.topic)
    return Restore(id_, topic or "unknown", row.died_at, row.body or b"-", row.error)


async def _finish(shards: Shards, known: Layout, older: Sequence[Shard]) -> bool:
    """Carry over which ids stay taken, clear the older generations, and remove them from the layout.

    They are cleared while the layout names them, so that a reshard that is interrupted finds them again.

    Args:
        shards: of the queue.
        known: the layout by which the older shards were found empty; there may be another one since.
        older: these shards.

    Returns:
        False if one of them has got a message since; they are in the layout then.

    Raises:
        ConfigError: another program has changed the layout.
    """
    for shard in older:
        await _carry_done(shards, shard)
    # After the ids are carried: the next reshard may have carried those of the current shards before.
    if await Queries(shards.base.operating).layout() != str(known):
        raise ConfigError(_CHANGED)

    async def clear(shard: Shard, *, served: bool) -> bool:
        call = partial(_clear, shard, is_base=shard is shards.base, served=served)
        return await resend(call, patience=_PATIENCE)

    if not all(await ask_all(older, partial(clear, served=True))):
        return False
    layout = type(known)((known.current,))
    if not await _set_layout(shards, str(known), layout):
        raise ConfigError(_CHANGED)
    shards.use(layout)
    await _copy(shards, layout)
    await asyncio.sleep(_GRACE)
    if all(await ask_all(older, partial(clear, served=False))):
        return True
    if not await _set_layout(shards, str(layout), known):
        raise ConfigError(_CHANGED)
    shards.use(known)
    return False


async def _carry_done(shards: Shards, old: Shard) -> None:
    """Keep the ids of an older shard taken. To which new shard one belongs is not known if it had a key."""
    cursor, queries = b"0", Queries(old.operating)
    while True:
        cursor, some = await queries.done_until(cursor)
        for start in range(0, len(some), BATCH):
            await ask_all(shards.current, partial(_carry, some[start : start + BATCH]))
        if int(cursor) == 0:
            return


async def _carry(done: Sequence[tuple[str, int]], shard: Shard) -> None:
    await shard.operating.carry(done)


async def _clear(shard: Shard, *, is_base: bool, served: bool = True) -> bool:
    """Delete the small keys of a shard that is done; its seal stays, for programs that know no better.

    Args:
        shard: sealed and empty.
        is_base: whether it is the queue's own tag.
        served: whether workers are registered there; they remove what they have there when they leave.

    Returns:
        False if the shard has got a message; nothing is deleted then.
    """
    await shard.operating.seal()
    if not (await shard.operating.left()).nothing:
        return False
    command, keys = shard.operating.commands.execute_command, shard.keys
    topics = await Queries(shard.operating).topics()
    kept = _SEALED | _MESSAGES | (_OF_QUEUE if is_base else set()) | (_OF_WORKERS if served else set())
    kept |= {"layout"} if shard.name in COPIES else set()
    names = [keys.of_queue(part) for part in QUEUE_PARTS if part not in kept]
    names += [keys.of_topic(topic, part) for topic in topics for part in TOPIC_PARTS]
    for start in range(0, len(names), BATCH):
        await command("DEL", *names[start : start + BATCH])
    # By commands that operators may use anyway, so that a reshard needs no right of its own.
    done = keys.of_queue("done")
    while ids := await command("ZRANGE", done, "-inf", "(inf", "BYSCORE", "LIMIT", 0, BATCH):
        await command("ZREM", done, *ids)
    return True


def _text(stored: bytes) -> str:
    return stored.decode(errors="replace")
