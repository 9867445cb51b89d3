"""The audit of the groups of dead messages: every one is counted in its group, once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from mx_rmq.fingerprint import decode_label, group_of
from mx_rmq.message import decode_death
from mx_rmq.storage.dead_queries import PARTS, DeadQueries, StoredGroup, stored_groups
from mx_rmq.storage.keys import ERROR_FIELD, GROUP_FIELD, TOPIC_FIELD
from mx_rmq.storage.queries import Queries

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mx_rmq.fingerprint import Group
    from mx_rmq.storage.contract import Suspect
    from mx_rmq.storage.store import Store

_CHUNK: Final = 500


class Disagreement(NamedTuple):
    """A group whose count is not the number of its messages."""

    id: str
    topic: str
    detail: str


@dataclass(slots=True)
class _Found:
    count: int
    first_ms: float
    last_ms: float
    example: str
    """One of its messages."""


async def with_groups(store: Store, suspects: Sequence[Suspect]) -> list[Suspect]:
    """The dead messages; one that is in no group gets the group it should be in."""
    ids = [_text(suspect.id) for suspect in suspects]
    groups = await _fields(store, ids, GROUP_FIELD)
    lost = [n for n, group in enumerate(groups) if group is None]
    named = dict(zip(lost, await _groups_of(store, [ids[n] for n in lost]), strict=True))
    return [
        suspect._replace(group=bytes(named[n])) if n in named else suspect
        for n, suspect in enumerate(suspects)
    ]


async def check_groups(store: Store, *, repair: bool) -> list[Disagreement] | None:
    """Count the groups anew; None if they changed during the count.

    With *repair* the counts are put right by what they are off, so that deaths during the repair count too.
    """
    before = await DeadQueries(store).group_fields()
    found = await _count(store)
    if await DeadQueries(store).group_fields() != before:
        return None
    said = stored_groups(before)
    broken = {name.rpartition(b":")[0].decode(errors="replace") for name in before} - said.keys()
    wrong = []
    for id_ in sorted(said.keys() | found.keys() | broken):
        group, here = said.get(id_), found.get(id_)
        counted, there = group.dead if group else 0, here.count if here else 0
        if counted != there or id_ in broken or (group and group.label is None):
            label = decode_label(group.label if group else None)
            detail = f"the group says {counted} dead, found {there}"
            wrong.append(Disagreement(id_, label.topic, detail))
            if repair:
                await _mend(store, id_, group, here)
    return wrong


async def _count(store: Store) -> dict[str, _Found]:
    """The groups as the messages name them."""
    found: dict[str, _Found] = {}
    seen: set[bytes] = set()
    cursor: Any = b"0"
    while True:
        cursor, flat = await _command(store, "ZSCAN", "dlq", cursor, "COUNT", _CHUNK)
        pairs = (
            flat if flat and isinstance(flat[0], tuple | list) else [*zip(flat[::2], flat[1::2], strict=True)]
        )
        fresh = {id_: float(score) for id_, score in pairs if id_ not in seen}
        seen |= fresh.keys()
        groups = await _fields(store, [_text(id_) for id_ in fresh], GROUP_FIELD)
        for (id_, died_ms), group in zip(fresh.items(), groups, strict=True):
            if group is not None:
                of = found.setdefault(_text(group), _Found(0, died_ms, died_ms, _text(id_)))
                of.count += 1
                of.first_ms, of.last_ms = min(of.first_ms, died_ms), max(of.last_ms, died_ms)
        if int(cursor) == 0:
            return found


async def _mend(store: Store, id_: str, group: StoredGroup | None, here: _Found | None) -> None:
    names = [f"{id_}:{part}" for part in PARTS]
    if here is None:
        await _command(store, "HDEL", "dlq_groups", *names)
        return
    if group is None:  # no number can be subtracted from a count that is none
        await _command(store, "HDEL", "dlq_groups", *names)
    await _command(store, "HINCRBY", "dlq_groups", names[0], here.count - (group.dead if group else 0))
    if group is None or group.label is None:
        (example,) = await _groups_of(store, [here.example])
        await _command(store, "HSET", "dlq_groups", names[1], example.label)
    times = (names[2], f"{here.first_ms:.0f}", names[3], f"{here.last_ms:.0f}")
    await _command(store, "HSET", "dlq_groups", *times)


async def _groups_of(store: Store, ids: Sequence[str]) -> list[Group]:
    """The groups that messages should be in, by what is stored of them."""
    names = [id_ + ERROR_FIELD for id_ in ids]
    errors = [error async for some in Queries(store).values("dlq_payload", names) for error in some]
    topics = await _fields(store, ids, TOPIC_FIELD)
    return [
        group_of(_text(topic or b""), decode_death(error))
        for topic, error in zip(topics, errors, strict=True)
    ]


async def _fields(store: Store, ids: Sequence[str], ending: str) -> list[bytes | None]:
    if not ids:
        return []
    found: list[bytes | None] = await _command(store, "HMGET", "dlq_payload", *(id_ + ending for id_ in ids))
    return found


async def _command(store: Store, command: str, part: str, *args: Any) -> Any:
    return await store.commands.execute_command(command, store.keys.of_queue(part), *args)


def _text(name: str | bytes) -> str:
    return name.decode(errors="replace") if isinstance(name, bytes) else name
