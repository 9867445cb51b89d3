"""Whether a queue's servers are there and fit, when it is opened."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING

from redis.exceptions import ResponseError

from mx_rmq import events
from mx_rmq.errors import ConfigError, ServerUnavailable, UnsafeServer
from mx_rmq.storage.queries import Queries
from mx_rmq.storage.resend import resend
from mx_rmq.storage.server_check import check_recovery, check_server

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from mx_rmq.config import Config
    from mx_rmq.storage.shard import Shard
    from mx_rmq.storage.shards import Shards

_SLOWER = 1.0
"""Seconds by which the check of one server may take longer than that of another."""


async def settle(shards: Shards, config: Config) -> None:
    """Learn how many shards the queue has."""
    try:
        await _resend(shards.base, config, shards.settle)
    except ResponseError:  # the user may not read it; a queue with several shards would refuse a produce
        if config.shards is not None:
            raise


async def check_servers(shards: Shards, config: Config) -> set[asyncio.Task[None]]:
    """Check every server once; with several, those that answer do not wait long for the others.

    Returns the checks that have not ended yet.
    """
    servers = {shard.server: shard for shard in shards}
    checks = {asyncio.create_task(_check(shard, config)) for shard in servers.values()}
    try:
        done, waiting = await asyncio.wait(checks, return_when=asyncio.FIRST_COMPLETED)
        while waiting and any(each.exception() is not None for each in done):
            some, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            done |= some
        if waiting:
            some, waiting = await asyncio.wait(waiting, timeout=_SLOWER)
            done |= some
        errors = [error for each in done if (error := each.exception()) is not None]
        away = [error for error in errors if isinstance(error, ServerUnavailable)]
        if errors and (len(away) < len(errors) or len(errors) == len(checks)):
            raise next((error for error in errors if error not in away), errors[0])
    except BaseException:
        for check in checks:
            check.cancel()
        raise
    for check in waiting:
        check.add_done_callback(partial(_tell, config.name))
    return waiting


def _tell(queue: str, check: asyncio.Task[None]) -> None:
    """Tell of a server that answered late and is not fit; of one that is away its availability tells."""
    if not check.cancelled() and isinstance(error := check.exception(), UnsafeServer | ConfigError):
        events.emit(events.ServerUnsafe(queue=queue, problem=str(error)))


async def _check(shard: Shard, config: Config) -> None:
    queries = Queries(shard.store)
    checks: list[Callable[[], Awaitable[object]]] = [
        partial(
            check_server,
            queries,
            mode=config.server_check,
            private=config.server.is_private,
            durability=config.durability,
            replicas=config.replicas,
        )
    ]
    if config.recovery_grace is not None:
        checks.append(partial(check_recovery, queries, lease=config.lease))

    for check in checks:
        await _resend(shard, config, check)


async def _resend(shard: Shard, config: Config, call: Callable[[], Awaitable[object]]) -> None:
    """Try a call for ``patience`` seconds."""
    availability, patience = shard.availability, config.patience

    def failed(error: Exception, _wait: float) -> None:
        availability.lost("start", error, f"trying for {patience:g} s")

    try:
        with shard.naming():
            await resend(call, patience=patience, failed=failed)
    except BaseException:
        availability.leave("start")
        raise
    availability.back("start")
