"""Which rights the server's user lacks, and what for; docs/deployment.md lists them for people."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from redis.exceptions import ResponseError

if TYPE_CHECKING:
    from mx_rmq.storage.store import Store

_KEY: Final = "KEY"
"""Stands for a key of the queue that never exists."""
_CHANNEL: Final = "CHANNEL"
"""Stands for the channel of the queue's events."""

_WORK: Final[dict[str, str]] = {
    "eval": "return(1) 0",
    "evalsha": "0000000000000000000000000000000000000000 0",
    "time": "",
    "type": "KEY",
    "get": "KEY",
    "set": "KEY 1",
    "expire": "KEY 1",
    "del": "KEY",
    "hget": "KEY f",
    "hmget": "KEY f",
    "hset": "KEY f 1",
    "hdel": "KEY f",
    "hexists": "KEY f",
    "hlen": "KEY",
    "hincrby": "KEY f 1",
    "hscan": "KEY 0",
    "zadd": "KEY 1 m",
    "zrem": "KEY m",
    "zcard": "KEY",
    "zscore": "KEY m",
    "zmscore": "KEY m",
    "zrange": "KEY 0 1",
    "lpush": "KEY 1",
    "rpush": "KEY 1",
    "lpop": "KEY",
    "rpop": "KEY",
    "llen": "KEY",
    "lindex": "KEY 0",
    "blpop": "KEY 1",
    "sadd": "KEY m",
    "srem": "KEY m",
    "sismember": "KEY m",
    "smismember": "KEY m",
    "exists": "KEY",
}
_SEE: Final[dict[str, str]] = {
    "info": "server",
    "client|id": "",
    "client|list": "ID 1",
    "client|unblock": "1",
    "hgetall": "KEY",
    "smembers": "KEY",
}
_OPERATE: Final[dict[str, str]] = {
    "hstrlen": "KEY f",
    "hgetall": "KEY",
    "smembers": "KEY",
    "lrange": "KEY 0 0",
    "zrank": "KEY m",
    "zrevrank": "KEY m",
    "zcount": "KEY 0 1",
    "scan": "0 COUNT 1",
    "zscan": "KEY 0",
    "mget": "KEY",
    "getrange": "KEY 0 0",
    "ltrim": "KEY 0 1",
}
RIGHTS: Final[dict[str, dict[str, str]]] = {
    "produce and work": _WORK,
    "keep a history": {"strlen": "KEY", "bitfield": "KEY GET u8 0", "scard": "KEY"},
    "see vanished workers": _SEE,
    "operate": _OPERATE,
    "tell a tail": {"publish": "CHANNEL x"},
    "tail": {"subscribe": "CHANNEL"},
    "repair": {"rename": "KEY KEY"},
    "delete a queue": {"unlink": "KEY"},
}
"""The commands that each use of a queue needs, and the arguments with which the server is asked for them."""

_NOT_TRIED: Final = frozenset(
    [
        *("set", "hset", "hincrby", "zadd", "lpush", "rpush", "blpop", "sadd", "rename", "publish"),
        *("ltrim", "subscribe", "client|unblock"),
    ]
)
"""Commands that would change something, or wait."""
_REFUSED: Final = re.compile(r"NOPERM|no permissions", re.IGNORECASE)
_ABOUT_KEYS: Final = re.compile(r"access (?:one of the keys|a key|the '[^']*' key)")
_ABOUT_CHANNELS: Final = re.compile(r"access (?:one of the channels|a channel|the '[^']*' channel)")


@dataclass(frozen=True, slots=True)
class Rights:
    """What the server's user may not do."""

    user: str = ""
    """Empty if the server does not say."""
    lacking: dict[str, list[str]] = field(default_factory=dict)
    """The commands that are missing, by what they are needed for; ``~…`` for keys, ``&…`` for a channel."""
    untold: tuple[str, ...] = ()
    """Commands of which it is not known: the user may not ask, and to try them would change something."""


async def read_rights(store: Store) -> Rights:
    """Ask the server which rights are missing.

    ``ACL DRYRUN`` (Redis 7) tells without doing anything. If the server does not have it, or the user may
    not use it, the commands that change nothing are tried on a key that never exists.
    """
    samples = {name: args for commands in RIGHTS.values() for name, args in commands.items()}
    try:
        user = _text(await store.commands.execute_command("ACL", "WHOAMI"))
    except ResponseError:
        user = ""
    missing: dict[str, str] = {}
    untold: list[str] = []
    may_ask = bool(user)
    for name, args in samples.items():
        sample = _sample(store, name, args)
        if may_ask:
            try:
                said = _text(await store.commands.execute_command("ACL", "DRYRUN", user, *sample))
            except ResponseError as error:
                may_ask = "not found" in str(error).lower()  # the server does not have the command
                if may_ask:
                    continue
            else:
                if said != "OK":
                    missing[name] = _right(store, name, said)
                continue
        if name in _NOT_TRIED:
            untold.append(name)
        elif said := await _refusal(store, sample):
            missing[name] = _right(store, name, said)
    lacking = {
        use: list(dict.fromkeys(missing[name] for name in names if name in missing))
        for use, names in RIGHTS.items()
    }
    return Rights(user, {use: names for use, names in lacking.items() if names}, tuple(untold))


async def _refusal(store: Store, sample: list[Any]) -> str:
    """Why a command is not allowed; empty if it is, whatever else the server says to it."""
    try:
        await store.commands.execute_command(*sample)
    except ResponseError as error:
        return str(error) if _REFUSED.search(str(error)) else ""
    return ""


def _sample(store: Store, name: str, args: str) -> list[Any]:
    key = store.keys.of_queue("no=thing")  # no topic and no id has an equals sign
    words = [*name.split("|"), *args.split()]
    stand_ins = {_KEY: key, _CHANNEL: store.keys.of_queue("events")}
    return [stand_ins.get(word, word) for word in words]


def _right(store: Store, name: str, said: str) -> str:
    if _ABOUT_CHANNELS.search(said):
        return f"&{store.keys.of_queue('events')}"
    return f"~{store.keys.prefix}*" if _ABOUT_KEYS.search(said) else f"+{name}"


def _text(value: Any) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)
