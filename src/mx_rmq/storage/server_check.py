"""The start-up check: whether this server could lose messages or delay them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from redis.exceptions import ResponseError

from mx_rmq.errors import UnsafeServer
from mx_rmq.events import RecoveryByLease, ServerNotChecked, ServerUnsafe, emit

if TYPE_CHECKING:
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
    kind = "valkey" if "valkey_version" in info else "redis"
    version = info.get(f"{kind}_version", "unknown")
    numbers = tuple(int(part) for part in re.findall(r"\d+", version)[:2])
    if not numbers:
        emit(ServerNotChecked(queue=queries.queue, error="the server's version is unknown"))
    elif numbers < _LEAST[kind]:
        least = ".".join(map(str, _LEAST[kind]))
        raise UnsafeServer(f"the server is {kind} {version}; mx-rmq needs {least} or later")
    problems = [] if private else _problems(info)
    if durability == "disk":
        if info.get("aof_enabled") == "0":
            problems.append("durability is 'disk', but appendonly is off: produce is refused; set it to yes")
        if () < numbers < (7, 2):
            problems.append(
                f"durability is 'disk', but {kind} {version} has no WAITAOF; it needs 7.2 or later"
            )
    connected = int(info.get("connected_slaves", replicas))
    if durability == "replicated" and connected < replicas:
        problems.append(
            f"durability is 'replicated' and wants {replicas} replicas, but {connected} are connected: "
            "produce will fail; connect more, or ask for fewer"
        )
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
        await queries.registered()
    except ResponseError as error:
        problem = f"messages of a vanished worker are recovered after their lease of {lease:g} s: {error}"
        emit(RecoveryByLease(queue=queries.queue, error=problem))
        return problem
    return ""


def _problems(info: dict[str, str]) -> list[str]:
    problems = []
    policy = info.get("maxmemory_policy", "noeviction")
    if policy != "noeviction":
        problems.append(
            f"maxmemory-policy is {policy}: the server may throw messages away; set it to noeviction"
        )
    if info.get("aof_enabled") == "0":
        problems.append("appendonly is off: a restart of the server loses messages; set appendonly to yes")
    return problems
