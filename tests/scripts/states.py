"""States in words: what the server holds of a message in each place, to seed and to compare."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, Any

from mx_rmq.fingerprint import group_of
from mx_rmq.message import Lane, decode_death
from mx_rmq.storage.contract import Delivery
from mx_rmq.storage.keys import PENDING, Keys
from tests.harness import START_US, read_state

if TYPE_CHECKING:
    from redis.asyncio import Redis

State = dict[str, Any]

NOW = START_US // 1000
"""The instant of every call in ms, as long as no test moves its clock."""

FIRST = START_US + 1
"""The instant of the first call in µs, as its tokens show it."""


def pending(
    id_: str, topic: str = "t", *, lane: Lane = "normal", expires: float = inf, leased: int = 0
) -> State:
    fields = {id_: body_of(id_), f"{id_}:queue": topic}
    if leased:
        fields[f"{id_}:keep"] = f"{leased} {lane} {_ms(expires)}"
    return {"payload": fields, "all_expire_monitor": {id_: expires}} | hint(id_, topic, lane=lane)


def hint(id_: str, topic: str = "t", *, lane: Lane = "normal") -> State:
    """An entry of a pending list, whether or not there is a message to it."""
    return {f"{topic}:{PENDING[lane]}": [id_]}


def leased(
    id_: str,
    topic: str = "t",
    *,
    token: str = "1@5",
    lane: Lane = "normal",
    expires: float = inf,
    holder: str = "w",
    cause: str = "run",
    ends: float = NOW + 15_000,
    before: int = 0,
) -> State:
    """A message under a lease; *before*: how often it had been leased when it was last pending."""
    fields = {id_: body_of(id_), f"{id_}:queue": topic}
    if before:
        fields[f"{id_}:keep"] = f"{before} {lane} {_ms(expires)}"
    lease = f"{token} {lane} {_ms(expires)} {holder} {cause}"
    return {"payload": fields, "all_expire_monitor": {id_: ends}, f"{topic}:processing": {id_: lease}}


def delayed(
    id_: str, topic: str = "t", *, due: float, lane: Lane = "normal", expires: float = inf, leased: int = 0
) -> State:
    keep = f"{leased} {lane} {_ms(expires)}"
    fields = {id_: body_of(id_), f"{id_}:queue": topic, f"{id_}:keep": keep}
    return {"payload": fields, "delay_tasks": {id_: due}}


def dead(id_: str, topic: str = "t", *, died: float = NOW, body: str = "", error: str = "why") -> State:
    """A dead message that no group counts, as before there were groups."""
    fields = {id_: body or body_of(id_), f"{id_}:queue": topic, f"{id_}:error": error}
    return {"dlq": {id_: died}, "dlq_payload": fields}


def grouped(
    id_: str, topic: str = "t", *, died: float = NOW, body: str = "", error: str = "why", since: float = inf
) -> State:
    """A dead message in its group; *since*: when the group began, if its first message has left it."""
    state = dead(id_, topic, died=died, body=body, error=error)
    group = group_of(topic, decode_death(error.encode()))
    state["dlq_payload"][f"{id_}:group"] = group.id
    parts = {"count": "1", "label": group.label.decode()}
    parts |= {"first_at": _ms(min(died, since)), "last_at": _ms(died)}
    return state | {"dlq_groups": {f"{group.id}:{part}": value for part, value in parts.items()}}


def counted(events: dict[str, int]) -> State:
    """What the counters show after events."""
    return {"counters": {event: str(amount) for event, amount in events.items()}}


def fenced(us: int = FIRST) -> State:
    """The last fence that was given; as tests move their clock only forward, the time of that call."""
    return {"fence": str(us)}


def awake(topic: str = "t") -> State:
    return {f"{topic}:wake": ["1"]}


def together(*parts: State) -> State:
    """One state of many; lists in the order of the parts, the first is claimed first."""
    whole: State = {}
    for part in parts:
        for key, value in part.items():
            if isinstance(value, list):
                whole.setdefault(key, []).extend(value)
            elif isinstance(value, dict):
                held = whole.setdefault(key, {})
                if key == "dlq_groups":
                    _merge_groups(held, value)
                    continue
                assert not held.keys() & value.keys(), f"{key} holds {held.keys() & value.keys()} twice"
                held.update(value)
            else:
                assert key not in whole
                whole[key] = value
    return whole


def _merge_groups(held: dict[str, str], more: dict[str, str]) -> None:
    """Count groups together; the first part gives a group its label."""
    for field, value in more.items():
        if field not in held or field.endswith(":label"):
            held.setdefault(field, value)
        elif field.endswith(":count"):
            held[field] = str(int(held[field]) + int(value))
        else:
            held[field] = (min if field.endswith(":first_at") else max)(held[field], value, key=int)


def body_of(id_: str) -> str:
    return f"body of {id_}"


def delivery(id_: str, topic: str = "t", *, token: str = "1@5") -> Delivery:
    """What a worker that holds *token* shows."""
    return Delivery(id_, topic, token, body_of(id_).encode(), inf)


async def seed(redis: Redis, *parts: State) -> State:
    """Write a state and return it whole, as ``everything`` will."""
    whole = together(*parts)
    pipeline = redis.pipeline(transaction=False)
    for name, value in whole.items():
        pipeline.execute_command(*command_for(Keys("q").of_queue(name), value))
    await pipeline.execute()
    return whole


def command_for(key: str, value: Any) -> tuple[Any, ...]:
    """What writes a key as ``everything`` shows it; the type follows from the value."""
    match value:
        case str():
            return ("SET", key, value)
        case list():
            return ("RPUSH", key, *reversed(value))
        case set():
            return ("SADD", key, *value)
        case dict() if all(isinstance(cell, str) for cell in value.values()):
            return ("HSET", key, *(cell for pair in value.items() for cell in pair))
        case _:
            return ("ZADD", key, *(cell for member, score in value.items() for cell in (score, member)))


async def everything(redis: Redis) -> State:
    """All the server holds, counters and other tools' parts too."""
    return await read_state(redis, tools=True)


def _ms(instant: float) -> str:
    return "inf" if instant == inf else str(int(instant))
