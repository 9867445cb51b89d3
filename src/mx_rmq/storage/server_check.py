"""The start-up check: whether this server could lose messages or delay them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Literal, NamedTuple

from redis.exceptions import ResponseError

from mx_rmq.errors import UnsafeServer
from mx_rmq.events import RecoveryByLease, ServerNotChecked, ServerUnsafe, emit

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mx_rmq.config import Durability
    from mx_rmq.storage.queries import Queries

_LEAST = {"redis": (6, 2), "valkey": (7, 2)}


async def check_server(
    queries: Queries,
    *,
    mode: str,
    private: bool = False,
    durability: Durability = "memory",
    replicas: int = 1,
) -> list[str]:
    """Check the server once and return what is wrong with it.

    Args:
        queries: reads the shard.
        mode: ``warn`` logs what is wrong, ``refuse`` raises.
        private: the server is a private embedded one, in memory on purpose.
        durability: what produce waits for by default.
        replicas: how many replicas it waits for, if *durability* is ``replicated``.

    Raises:
        UnsafeServer: the server is too old, or it is unsafe and *mode* is ``refuse``.
    """
    try:
        info = await queries.info()
    except ResponseError as error:
        emit(ServerNotChecked(queue=queries.queue, error=str(error)))
        return []
    if old := too_old(info):
        raise UnsafeServer(old)
    if not version_of(info).numbers:
        emit(ServerNotChecked(queue=queries.queue, error="the server's version is unknown"))
    problems = [
        f"{risk.said}; {risk.remedy}"
        for risk in risks_of(info, private=private, durability=durability, replicas=replicas)
    ]
    if problems and mode == "refuse":
        raise UnsafeServer("; ".join(problems))
    for problem in problems:
        emit(ServerUnsafe(queue=queries.queue, problem=problem))
    return problems


async def check_recovery(queries: Queries, *, lease: float) -> str:
    """Return what prevents workers from noticing a vanished worker; empty if nothing does.

    It is no reason to refuse the server: a vanished worker's messages are then recovered after their leases.
    """
    try:
        await queries.own_connection()
        await queries.connections()
    except ResponseError as error:
        problem = f"messages of a vanished worker are recovered after their lease of {lease:g} s: {error}"
        emit(RecoveryByLease(queue=queries.queue, error=problem))
        return problem
    return ""


class Version(NamedTuple):
    """What a server is."""

    name: str
    """Such as ``valkey 9.1.0``."""
    numbers: tuple[int, ...]
    """The first two of its version; empty if it does not say."""


class Risk(NamedTuple):
    """A way in which a server could lose messages or refuse them, and what to do."""

    what: Literal["eviction", "persistence", "durability"]
    said: str
    remedy: str


def version_of(info: Mapping[str, str]) -> Version:
    """The version in a server's INFO."""
    kind = _kind(info)
    version = info.get(f"{kind}_version", "unknown")
    return Version(f"{kind} {version}", tuple(int(part) for part in re.findall(r"\d+", version)[:2]))


def too_old(info: Mapping[str, str]) -> str:
    """Say that a server is too old; empty if it is not, or does not tell its version."""
    name, numbers = version_of(info)
    least = _LEAST[_kind(info)]
    if not numbers or numbers >= least:
        return ""
    return f"the server is {name}; mx-rmq needs {'.'.join(map(str, least))} or later"


def risks_of(info: Mapping[str, str], *, private: bool, durability: Durability, replicas: int) -> list[Risk]:
    """What is wrong with a server, by its INFO; the arguments are those of ``check_server``."""
    risks = [] if private else _risks(info)
    name, numbers = version_of(info)
    if durability == "disk":
        if info.get("aof_enabled") == "0":
            said = "durability is 'disk', but appendonly is off: produce is refused"
            risks.append(Risk("durability", said, "set it to yes"))
        if () < numbers < (7, 2):
            said = f"durability is 'disk', but {name} has no WAITAOF"
            risks.append(Risk("durability", said, "it needs 7.2 or later"))
    connected = int(info.get("connected_slaves", replicas))
    if durability == "replicated" and connected < replicas:
        said = (
            f"durability is 'replicated' and wants {replicas} replicas, but {connected} are connected: "
            "produce will fail"
        )
        risks.append(Risk("durability", said, "connect more, or ask for fewer"))
    return risks


def _kind(info: Mapping[str, str]) -> str:
    return "valkey" if "valkey_version" in info else "redis"


def _risks(info: Mapping[str, str]) -> list[Risk]:
    risks = []
    policy = info.get("maxmemory_policy", "noeviction")
    if policy != "noeviction":
        said = f"maxmemory-policy is {policy}: the server may throw messages away"
        risks.append(Risk("eviction", said, "set it to noeviction"))
    if info.get("aof_enabled") == "0":
        said = "appendonly is off: a restart of the server loses messages"
        risks.append(Risk("persistence", said, "set appendonly to yes"))
    return risks
