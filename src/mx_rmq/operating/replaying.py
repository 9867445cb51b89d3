"""Dead messages live again: the new body of each, canaries, and what an export holds of a message."""

from __future__ import annotations

import asyncio
import math
from base64 import b64decode
from collections.abc import Mapping
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import msgspec

from mx_rmq.checks import check_id, check_topic, is_number, refusal, shown
from mx_rmq.errors import ConfigError, UnreadableMessage
from mx_rmq.limits import MOST_SECONDS
from mx_rmq.message import Death, decode_message, encode_death, encode_message
from mx_rmq.operating.dlq_reader import with_bodies
from mx_rmq.operating.inspector import Inspector
from mx_rmq.operating.letters import CanaryDied, CanaryUnfinished, DeadLetter, letter_of
from mx_rmq.payloads import encode_payload
from mx_rmq.storage.contract import NewMessage, Replay, Replayed, Restore
from mx_rmq.storage.dead_queries import DeadQueries
from mx_rmq.storage.queries import Queries
from mx_rmq.storage.shards import ask_all
from mx_rmq.storage.store import check_size

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mx_rmq.storage.contract import DeadRow
    from mx_rmq.storage.shard import Shard
    from mx_rmq.storage.shards import Shards
    from mx_rmq.storage.store import Store

NOT_GIVEN: Final = object()

WHY_NOT: Final = {
    Replayed.CHANGED: "it has died again since it was read",
    Replayed.GONE: "it is not in the DLQ any more",
    Replayed.LIVE: "a message with the same id is alive",
    Replayed.POISONED: "its topic is missing or a key of it has the wrong type; run the audit",
}

_MOST_EXPLAINED: Final = 20
"""Canaries of which an error says why they have not ended."""
_LOOKS: Final = (0.02, 1.0)
"""Seconds between two looks at canaries, at first and at most."""


async def replay(
    store: Store, rows: Sequence[DeadRow], payload: Any = NOT_GIVEN, remember: float = 0.0
) -> list[Replayed]:
    """Make dead messages pending again in one call, as if new: attempts start at one, the history stays.

    Args:
        store: of their shard.
        rows: the messages.
        payload: a new one, if given.
        remember: seconds for which the server remembers what became of them, unless they say longer.

    Raises:
        InvalidPayload, MessageTooLarge: the new payload cannot be stored.
        UnreadableMessage: there is a new payload, but the rest of the message cannot be read.
    """
    return await store.replay([_replay(row, payload, remember, store.max_bytes) for row in rows])


def _replay(row: DeadRow, payload: Any, remember: float, max_bytes: int) -> Replay:
    id_ = row.id.decode(errors="replace")
    try:
        message = decode_message(row.body, id_, row.topic.decode(errors="replace"))
    except UnreadableMessage:
        if payload is not NOT_GIVEN:
            raise UnreadableMessage(f"message {id_!r} cannot be edited: its bytes cannot be read") from None
        return Replay(id_, died_at=row.died_at)
    if payload is not NOT_GIVEN:
        message.payload = encode_payload(payload)
    message.attempts = message.crashes = message.unbegun = message.put_off = 0
    message.replays += 1
    if remember:
        message.remember_for = max(message.remember_for or 0.0, remember)
    new = NewMessage(id_, encode_message(message))
    if payload is not NOT_GIVEN:
        check_size(message.topic, new, max_bytes)
    return Replay(id_, new.body, message.priority, message.ttl, row.died_at)


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


# -- from an export


def restore_of(record: DeadLetter | Mapping[str, Any], number: int) -> Restore:
    """What to put back of a letter, or of its ``as_dict()``.

    Raises:
        ConfigError: names the record by its number, from 1, and says what it must have.
    """
    what = f"record {number}"
    if isinstance(record, DeadLetter):
        record = record.as_dict()
    if not isinstance(record, Mapping):
        raise refusal(what, "a DeadLetter or its as_dict()", record)
    try:
        known = {name: record[name] for name in ("reason", "error", "kind", "place") if name in record}
        death = msgspec.convert(known, Death)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{what} must say why the message died, got {shown(known)}: {error}") from None
    return Restore(
        check_id(record.get("id")),
        check_topic(record.get("topic")),
        _instant(record.get("died_at"), what),
        _body(record, what),
        encode_death(death),
    )


def _instant(value: Any, what: str) -> float:
    """An instant as seconds; ISO text, or seconds since 1970."""
    seconds = value
    if isinstance(value, str):
        try:
            seconds = datetime.fromisoformat(value).timestamp()
        except ValueError:
            seconds = math.nan
    if not is_number(seconds) or not 0 <= seconds < MOST_SECONDS:
        raise refusal(f"died_at of {what}", "a time in ISO form, or seconds since 1970", value)
    return float(seconds)


def _body(record: Mapping[str, Any], what: str) -> bytes:
    text, encoded = record.get("body"), record.get("body_base64")
    try:
        body = b64decode(encoded, validate=True) if encoded else text.encode() if text else b""
    except (AttributeError, TypeError, ValueError):
        body = b""
    if not body:
        raise refusal(
            f"body of {what}", "the stored message as text, or body_base64 its bytes", text or encoded
        )
    return body
