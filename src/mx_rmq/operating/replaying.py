"""Dead messages live again: the new body of each, many a round at a time, and canaries."""

from __future__ import annotations

import asyncio
import sys
from functools import partial
from itertools import takewhile
from typing import TYPE_CHECKING, Any, Final, TypeVar

from mx_rmq.errors import UnreadableMessage
from mx_rmq.message import decode_message, encode_message
from mx_rmq.operating.dlq_reader import read_ahead, with_bodies
from mx_rmq.operating.inspector import Inspector
from mx_rmq.operating.letters import CanaryDied, CanaryUnfinished, NotDead, letter_of, not_dead
from mx_rmq.payloads import Encoded, encode_payload
from mx_rmq.storage.contract import NewMessage, Replay, Replayed
from mx_rmq.storage.dead_queries import DeadQueries
from mx_rmq.storage.queries import Queries
from mx_rmq.storage.shards import ask_all
from mx_rmq.storage.store import check_size

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence

    from mx_rmq.operating.dlq_reader import Walk
    from mx_rmq.operating.letters import DeadLetter
    from mx_rmq.storage.contract import DeadRow
    from mx_rmq.storage.shard import Shard
    from mx_rmq.storage.shards import Shards
    from mx_rmq.storage.store import Store

R = TypeVar("R")

NOT_GIVEN: Final = object()

WHY_NOT: Final = {
    Replayed.CHANGED: "it has died again since it was read",
    Replayed.GONE: "it is not in the DLQ any more",
    Replayed.LIVE: "a message with the same id is alive",
    Replayed.POISONED: "its topic is missing or a key of it has the wrong type; run the audit",
}

_AT_ONCE: Final = 500
"""Messages read at once, if their bodies fit into one reply."""
_PER_CALL: Final = _AT_ONCE // 2
"""Messages replayed in one call. The server needs 3 ms. Two calls are under way, to keep the order: a third
could overtake the second if the server has to load the script first."""
_MOST_EXPLAINED: Final = 20
"""Canaries of which an error says why they have not ended."""
_LOOKS: Final = (0.02, 1.0)
"""Seconds between two looks at canaries, at first and at most."""


async def replay(
    store: Store, rows: Sequence[DeadRow], payload: Any = NOT_GIVEN, remember: float = 0.0
) -> list[Replayed]:
    """Make dead messages pending again, as if new: attempts start at one, the history stays.

    The server replays some while the next are encoded. If it refuses a call, those of the next may live.

    Args:
        store: of their shard.
        rows: the messages.
        payload: a new one, if given.
        remember: seconds for which the server remembers what became of them, unless they say longer.

    Raises:
        InvalidPayload, MessageTooLarge: the new payload cannot be stored.
        UnreadableMessage: there is a new payload, but the rest of the message cannot be read.
    """
    calls: list[asyncio.Task[list[Replayed]]] = []
    try:
        while rows:
            some = [_replay(row, payload, remember, store.max_bytes) for row in rows[:_PER_CALL]]
            calls.append(asyncio.create_task(store.replay(some)))
            await asyncio.sleep(0)  # so that it leaves now
            rows = rows[_PER_CALL:]
        return [status for some in await asyncio.gather(*calls) for status in some]
    finally:
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)


def _replay(row: DeadRow, payload: Any, remember: float, max_bytes: int) -> Replay:
    id_ = row.id.decode(errors="replace")
    try:
        message = decode_message(row.body, "", "")  # a body is encoded without id and topic
    except UnreadableMessage:
        if payload is not NOT_GIVEN:
            raise UnreadableMessage(f"message {id_!r} cannot be edited: its bytes cannot be read") from None
        return Replay(id_, died_at=row.died_at)
    if payload is not NOT_GIVEN:
        message.payload = payload.raw if type(payload) is Encoded else encode_payload(payload)
    message.attempts = message.crashes = message.unbegun = message.put_off = 0
    message.replays += 1
    if remember:
        message.remember_for = max(message.remember_for or 0.0, remember)
    body = encode_message(message)
    if payload is not NOT_GIVEN:
        check_size(row.topic.decode(errors="replace"), NewMessage(id_, body), max_bytes)
    return Replay(id_, body, message.priority, message.ttl, row.died_at)


async def replay_own(shard: Shard, ids: Sequence[str], payload: Any, remember: float) -> None:
    """Replay dead messages of one shard, in their order. While it replays some, the next are read.

    Raises:
        NotDead: one cannot be replayed; those before it have been.
    """
    at, reading = 0, None
    with shard.naming():
        try:
            while at < len(ids):
                looked, rows = await (reading or _read(shard, ids, at))
                some, at = ids[at : at + looked], at + looked
                reading = await read_ahead(_read(shard, ids, at)) if at < len(ids) else None
                await _replay_some(shard, some, rows, payload, remember)
        finally:
            if reading is not None:
                reading.cancel()


async def _read(shard: Shard, ids: Sequence[str], at: int) -> tuple[int, list[DeadRow]]:
    """Read the dead messages from a place on, as many as fit into a reply; see ``Store.read_dead``."""
    some = [id_.encode(errors="replace") for id_ in ids[at : at + _AT_ONCE]]
    return await shard.operating.read_dead(some, "bodies")


async def _replay_some(
    shard: Shard, ids: Sequence[str], rows: Sequence[DeadRow], payload: Any, remember: float
) -> None:
    """Replay dead messages of one shard up to the first that was not found; see ``replay_own``."""
    found = {row.id.decode(): row for row in rows}
    dead = [found[id_] for id_ in takewhile(found.__contains__, ids)]
    statuses = await replay(shard.operating, dead, payload, remember)
    for id_, status in zip(ids, statuses, strict=False):
        if status is not Replayed.REPLAYED:
            raise NotDead(f"message {id_!r} cannot be replayed: {WHY_NOT[status]}")
    if len(dead) < len(ids):
        raise not_dead(ids[len(dead)])


async def _replay_rows(shard: Shard, rows: list[DeadRow]) -> list[str]:
    """Replay dead messages; returns those that live now."""
    ends = zip(rows, await replay(shard.operating, rows), strict=True)
    return [row.id.decode(errors="replace") for row, end in ends if end is Replayed.REPLAYED]


# -- many, a round at a time


async def replay_rounds(
    walks: Mapping[Shard, Walk], rate: float | None, most: int | None = None
) -> AsyncIterator[list[str]]:
    """Replay what the walks find, at most *most*; yields what lives now, a round's worth at a time.

    A round has some of each shard, replayed at once.
    """
    # A tenth of a second's worth at a time, so that there are no visible bursts.
    at_once = _AT_ONCE * len(walks) if rate is None else max(1, min(_AT_ONCE, int(rate / 10)))
    left = sys.maxsize if most is None else most
    pause = 0.0
    active = list(walks)

    async def replay_found(found: tuple[Shard, list[DeadRow]]) -> list[str]:
        shard, rows = found
        return await _of(shard, _replay_rows, shard, rows)

    while active and left:
        shares = _shares(active, min(at_once, left))
        # Those that get no share this time are the first in the next round.
        active = active[len(shares) :] + active[: len(shares)]
        found = []
        asked = [_of(shard, walks[shard].next, share) for shard, share in shares]
        for (shard, _), rows in zip(shares, await asyncio.gather(*asked), strict=True):
            if rows:
                found.append((shard, rows))
            else:
                active.remove(shard)
        if found:
            if pause:
                await asyncio.sleep(pause)
            ids = [id_ for own in await asyncio.gather(*map(replay_found, found)) for id_ in own]
            left -= len(ids)
            pause = 0.0 if rate is None else len(ids) / rate
            yield ids


def _shares(shards: Sequence[Shard], count: int) -> list[tuple[Shard, int]]:
    """How many messages each shard contributes to a round."""
    each, more = divmod(count, len(shards))
    shares = ((shard, each + (n < more)) for n, shard in enumerate(shards))
    return [(shard, min(share, _AT_ONCE)) for shard, share in shares if share]


async def _of(shard: Shard, call: Callable[..., Awaitable[R]], *args: Any) -> R:
    """What a call to a shard returns; an error names the shard."""
    with shard.naming():
        return await call(*args)


# -- canaries


async def watch_canaries(shards: Shards, ids: Sequence[str], within: float) -> None:
    """Wait until messages that were replayed have ended: they are done, cancelled or dead.

    Raises:
        CanaryDied: some died again.
        CanaryUnfinished: some have not ended in time.
    """
    clock = asyncio.get_running_loop()
    deadline, pause = clock.time() + within, _LOOKS[0]
    while True:
        here = await ask_all(shards, partial(_alive, ids))
        alive = [id_ for id_, *lives in zip(ids, *here, strict=True) if any(lives)]
        if not alive or clock.time() >= deadline:
            break
        await asyncio.sleep(min(pause, max(0.0, deadline - clock.time())))
        pause = min(pause * 1.5, _LOOKS[1])
    letters = [letter for some in await ask_all(shards, partial(_dead, ids)) for letter in some]
    if letters:
        raise CanaryDied(tuple(ids), tuple(letters))
    if alive:
        inspector = Inspector(shards)
        waiting = dict.fromkeys(alive, "it has not ended yet")
        for id_ in alive[:_MOST_EXPLAINED]:
            waiting[id_] = await inspector.explain(id_)
        raise CanaryUnfinished(tuple(ids), waiting, within)


async def _alive(ids: Sequence[str], shard: Shard) -> list[bool]:
    return [bool(topic) for topic in await Queries(shard.operating).topics_of(ids)]


async def _dead(ids: Sequence[str], shard: Shard) -> list[DeadLetter]:
    dead = await DeadQueries(shard.operating).are_dead(ids)
    found = [id_.encode() for id_, is_dead in zip(ids, dead, strict=True) if is_dead]
    return [letter_of(row) async for rows in with_bodies(shard.operating, found) for row in rows]
