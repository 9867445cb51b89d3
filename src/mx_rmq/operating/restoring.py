"""Dead messages of an export come back: what a record holds of a message, and where it goes."""

from __future__ import annotations

import math
from base64 import b64decode
from collections import defaultdict
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

import msgspec

from mx_rmq.checks import check_id, check_topic, is_number, refusal, shown
from mx_rmq.errors import ConfigError, MxRmqError
from mx_rmq.limits import MOST_SECONDS, REPLY_BYTES
from mx_rmq.message import Death, encode_death
from mx_rmq.operating.letters import DeadLetter, RestoreResult
from mx_rmq.operating.messages import read_message
from mx_rmq.storage.contract import NewMessage, Restore, Restored
from mx_rmq.storage.refusals import Sealed
from mx_rmq.storage.shard import shard_number
from mx_rmq.storage.store import check_size

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mx_rmq.storage.shard import Shard
    from mx_rmq.storage.shards import Shards

_AT_ONCE: Final = 250
"""Messages restored per call, if their bodies fit into one reply. The server needs 3 ms."""


async def restore(
    shards: Shards,
    records: Iterable[Any] | AsyncIterable[Any],
    *,
    refused: Callable[[MxRmqError], None] | None = None,
    progress: Callable[[int], None] | None = None,
) -> RestoreResult:
    """Put exported messages back into the DLQ; see ``DeadLetters.restore``."""
    statuses: dict[Restored, int] = defaultdict(int)
    done = 0
    async for shard, rows in _chunks(shards, records, refused):
        for status in await _restore(shards, shard, rows):
            statuses[status] += 1
        done += len(rows)
        if progress is not None:
            progress(done)
    return RestoreResult(*(statuses[each] for each in (Restored.RESTORED, Restored.LIVE, Restored.DEAD)))


async def _restore(shards: Shards, shard: Shard, rows: list[Restore]) -> list[Restored]:
    """Put messages back into the DLQ of a shard; if that is sealed, into those of the new layout."""
    try:
        with shard.naming():
            return await shard.operating.restore(rows)
    except Sealed:
        if not await shards.look() and shard in shards.current:
            raise
    statuses: list[Restored] = []
    for row in rows:
        home = shards.home(_leader(row, shards.current))
        statuses += await _restore(shards, home, [row])
    return statuses


async def _chunks(
    shards: Shards,
    records: Iterable[Any] | AsyncIterable[Any],
    refused: Callable[[MxRmqError], None] | None,
) -> AsyncIterator[tuple[Shard, list[Restore]]]:
    """The messages of records, as many of one shard at a time as one call may carry."""
    current = shards.current
    chunks: dict[Shard, list[Restore]] = {shard: [] for shard in current}
    sizes: dict[Shard, int] = dict.fromkeys(current, 0)
    number = 0
    async for record in _each(records):
        number += 1
        try:
            row = restore_of(record, number)
            shard = current[shard_number(_leader(row, current), len(current))]
            check_size(row.topic, NewMessage(row.id, row.body), shard.operating.max_bytes)
        except MxRmqError as error:
            if refused is None:
                raise
            refused(error)
            continue
        sizes[shard] += len(row.body)
        if chunks[shard] and (len(chunks[shard]) == _AT_ONCE or sizes[shard] > REPLY_BYTES):
            yield shard, chunks[shard]
            chunks[shard], sizes[shard] = [], len(row.body)
        chunks[shard].append(row)
    for shard, rows in chunks.items():
        if rows:
            yield shard, rows


async def _each(records: Iterable[Any] | AsyncIterable[Any]) -> AsyncIterator[Any]:
    if isinstance(records, AsyncIterable):
        async for record in records:
            yield record
    else:
        for record in records:
            yield record


def _leader(row: Restore, current: Sequence[Shard]) -> str:
    """What leads to the shard of a message: its key, or its id."""
    if len(current) == 1:
        return row.id
    message, _ = read_message(row.body, row.id, row.topic)
    return (message.key if message is not None else "") or row.id


# -- a record


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
