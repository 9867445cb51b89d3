"""Whether the servers answer, and what that means for this process."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from time import monotonic
from typing import TYPE_CHECKING, Final

from redis.exceptions import RedisError

from mx_rmq.errors import MxRmqError
from mx_rmq.health import Health, ShardHealth
from mx_rmq.storage.queries import Queries

if TYPE_CHECKING:
    from mx_rmq.health import WorkerHealth
    from mx_rmq.storage.shard import Shard
    from mx_rmq.storage.shards import Shards

PATIENCE: Final = 3.0
"""Seconds that a server has to answer; a probe has to be answered too."""


async def read_health(queue: str, shards: Shards | None, worker: WorkerHealth | None) -> Health:
    """How a process is: its servers, and its worker if it has one.

    Args:
        queue: the queue's name.
        shards: of the queue; None if it is not open.
        worker: how the worker is; None if there is none.
    """
    if shards is None:
        return Health(queue, problems=["the queue is not open"], is_open=False)
    own = {shard.name: shard for shard in worker.shards} if worker is not None else {}
    asked = [_ask(shard, own.get(shard.name, ShardHealth(name=shard.name))) for shard in shards]
    found = tuple(await asyncio.gather(*asked))
    problems = [
        f"the server{f' of shard {shard.name}' if shard.name else ''} does not answer: {shard.error}"
        for shard in found
        if shard.error
    ]
    if worker is None:
        return Health(queue, shards=found, problems=problems)
    return Health(
        queue,
        worker.name,
        worker.loop_lag,
        worker.running,
        worker.held,
        worker.leases_lost,
        found,
        problems + list(worker.problems),
        is_alive=not worker.stuck,
    )


async def _ask(shard: Shard, known: ShardHealth) -> ShardHealth:
    """Measure a round trip on the connection that the worker uses too."""
    began = monotonic()
    try:
        async with asyncio.timeout(PATIENCE):
            await Queries(shard.store).ping()
    except TimeoutError:
        return replace(known, error=f"nothing came for {PATIENCE:g} s")
    except (MxRmqError, RedisError) as error:
        return replace(known, error=str(error))
    return replace(known, round_trip=monotonic() - began)
