"""What the tests share: real servers, a clock they own, and the whole state of a queue."""

from __future__ import annotations

import asyncio
import re
import shutil
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mx_rmq.storage.embedded import find_binary

if TYPE_CHECKING:
    from redis.asyncio import Redis

START_US = 1_763_230_000_000_000
"""An instant (2025-11-15) at which every test's clock starts."""

BOOKKEEPING = ("topics", "counters", "call", "fence", "history", "recent")
"""Parts that tools need and correctness does not: left out of a state unless asked for."""


def server_binaries() -> dict[str, Path]:
    """The servers at hand: the bundled Valkey always, ``redis-server`` where it is installed."""
    binaries = {"valkey": find_binary()}
    if redis := shutil.which("redis-server"):
        binaries["redis"] = Path(redis)
    return binaries


def free_port() -> int:
    """A TCP port that was free a moment ago."""
    with socket.create_server(("127.0.0.1", 0)) as door:
        port: int = door.getsockname()[1]
        return port


class At:
    """A server that is only known by its URL."""

    def __init__(self, url: str) -> None:
        self.url = url


class Clock:
    """The time of the scripts in µs; every look at it moves it on by one, as time does."""

    def __init__(self) -> None:
        self.us = START_US

    def __call__(self) -> int:
        self.us += 1
        return self.us

    @property
    def ms(self) -> int:
        return self.us // 1000

    def advance(self, seconds: float) -> None:
        self.us += round(seconds * 1_000_000)


async def command(redis: Redis, *args: Any) -> Any:
    """Send any command; redis-py's own types say less than the tests know."""
    return await redis.execute_command(*args)


async def all_keys(redis: Redis) -> list[str]:
    return [key.decode() for key in await command(redis, "KEYS", "*")]


async def read_state(redis: Redis, *, prefix: str = "mx-rmq:{q}:", tools: bool = False) -> dict[str, Any]:
    """Everything the server holds, by key without the queue's prefix.

    A key of another queue keeps its whole name. Lists are shown head first: in the order in which
    they will be claimed.
    """
    state: dict[str, Any] = {}
    for key in await all_keys(redis):
        name = key.removeprefix(prefix)
        if not tools and re.split("[:=]", name)[0] in BOOKKEEPING:
            continue
        state[name] = await read_key(redis, key)
    return state


async def read_key(redis: Redis, key: str) -> Any:
    kind = (await command(redis, "TYPE", key)).decode()
    reads: dict[str, tuple[Any, ...]] = {
        "hash": ("HGETALL", key),
        "zset": ("ZRANGE", key, 0, -1, "WITHSCORES"),
        "list": ("LRANGE", key, 0, -1),
        "set": ("SMEMBERS", key),
        "string": ("GET", key),
    }
    reply = await command(redis, *reads[kind])
    if kind == "hash":
        return {field.decode(): value.decode(errors="replace") for field, value in reply.items()}
    if kind == "zset":
        return {member.decode(): float(score) for member, score in reply}
    if kind == "list":
        return [item.decode() for item in reversed(reply)]
    if kind == "set":
        return {item.decode() for item in reply}
    return reply.decode()


class CancelledByCtrlC(asyncio.Future[Any]):
    """Is cancelled right after it said that it is not done, as a signal may do it."""

    def done(self) -> bool:
        done = super().done()
        self.cancel()
        return done
