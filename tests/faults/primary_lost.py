"""The primary is lost and its replica promoted: what each class of durability has kept."""

from __future__ import annotations

import asyncio

from mx_rmq.config import Durability
from tests.faults.arena import Arena
from tests.faults.ledger import ids
from tests.faults.run import Row, Run
from tests.faults.servers import Server

CALLERS = 20
SPLIT = 0.3
"""Seconds for which the primary goes on beside the promoted replica: every failover has such a moment."""


async def primary_lost_replicated(run: Run) -> Row:
    """Producers that wait for the replica, which is promoted; then the primary is killed."""
    lost, acked, kills = await lose_primaries(run, "replicated")
    return Row(
        fault="replica promoted, then primary killed, durability='replicated'",
        runs=kills,
        messages=acked,
        kills=kills,
        lost=lost,
        figure="0 acknowledged lost",
        ok=lost == 0 and acked > 100 * kills,
    )


async def primary_lost_memory(run: Run) -> Row:
    """The same without waiting: what may be lost then."""
    lost, acked, kills = await lose_primaries(run, "memory")
    return Row(
        fault="replica promoted, then primary killed, durability='memory'",
        runs=kills,
        messages=acked,
        kills=kills,
        figure=f"no promise; {lost} of {acked:,} were on the primary only",
        ok=acked > 100 * kills,
    )


async def lose_primaries(run: Run, durability: Durability) -> tuple[int, int, int]:
    """How many acknowledged messages a promoted replica lacked, of how many, in how many runs."""
    lost = acked = 0
    kills = run.size(10, 2)
    for n in range(kills):
        run.tell(f"kill {n + 1} of {kills}")
        async with Arena.open(run) as arena:
            home, source = arena.home / "replica", f"127.0.0.1 {arena.server.port}"
            with Server(home, appendonly="no", replicaof=source) as replica:
                await caught_up(replica)
                producer = arena.producer(
                    "m", ({}, 1_000_000), callers=CALLERS, sending={"durability": durability}
                )
                await asyncio.sleep(1.0 + run.dice.random())
                replica.command("REPLICAOF", "NO", "ONE")
                await asyncio.sleep(SPLIT)
                arena.server.kill()
                producer.kill()
                there = {name.decode() for name in replica.command("HKEYS", arena.keys.of_queue("payload"))}
                confirmed = ids(arena.events(), "acked")
                lost += len(confirmed - there)
                acked += len(confirmed)
    return lost, acked, kills


async def caught_up(replica: Server) -> None:
    """Wait until a replica has everything its primary has."""
    for _ in range(500):
        if replica.command("INFO", "replication")["master_link_status"] == "up":
            return
        await asyncio.sleep(0.02)
    raise AssertionError("the replica does not catch up")
