"""The primary becomes a replica and lives on; the address leads to the new one."""

from __future__ import annotations

import asyncio
import time
from math import inf
from typing import TYPE_CHECKING

from tests.faults.arena import Arena, Child, eventually
from tests.faults.ending import end
from tests.faults.ledger import ids
from tests.faults.primary_lost import caught_up
from tests.faults.run import Row, Run
from tests.faults.servers import Server
from tests.faults.verdict import resumption
from tests.proxy import Proxy

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.faults.ledger import Event

LEASE = 3.0
LONG = 4.0
"""How long some handlers run: beyond their lease, so that a thread which stays with the replica is seen."""
MOST = 3.0


async def demoted_primary(run: Run) -> Row:
    """FAILOVER to and fro. Old connections stay with the old node, which answers reads and refuses writes."""
    failovers, before = run.size((10, 3.0), (2, 1.0))
    later: list[float] = []
    async with Arena.open(run) as arena:
        source = f"127.0.0.1 {arena.server.port}"
        with (
            Server(arena.home / "replica", appendonly="no", replicaof=source) as replica,
            Proxy(arena.server) as address,
        ):
            await caught_up(replica)
            arena.url = address.url
            workers = [arena.worker(lease=LEASE, concurrency=16, prefetch=4) for _ in range(2)]
            everyone = [
                arena.steady({"sleep": 0.01}, rate=60),
                arena.sync_producer("s", {"sleep": 0.01}, 1_000_000, rate=30),
            ]
            long = arena.producer("long", ({"sleep": LONG}, 1_000_000), callers=2, rate=1.0)
            await arena.busy(*workers)
            primary, other = arena.server, replica
            for n in range(failovers):
                await asyncio.sleep(before)
                run.tell(f"failover {n + 1} of {failovers}")
                await fail_over(primary, other)
                primary, other = other, primary
                await asyncio.sleep(run.dice.uniform(0.0, 0.5))  # an address moves later than the server
                address.lead_to(primary)
                later.append(await goes_on(arena, workers, everyone))
                await caught_up(other)
            errors = len(arena.failures())
            long.kill()
            everyone[1].kill()
            ending = await end(arena, everyone[0])
    verdict = ending.verdict
    # Who was killed may have stored what it was not told of.
    twice = max(0, ending.stored_twice + verdict.acked - len(ids(ending.events, "tried")))
    return Row(
        fault=f"the primary is demoted and lives on, {failovers} times; its address moves",
        messages=verdict.acked,
        kills=failovers,
        lost=len(verdict.lost),
        duplicates=verdict.duplicates,
        recovery=max(later),
        figure=f"0 lost, 0 stored twice, no duplicates, no error, everything goes on within {MOST:g} s",
        seen=f"{verdict}; {twice} stored twice, {ending.errors} errors, {errors} refused",
        ok=verdict.ok and twice == verdict.duplicates == ending.errors == errors == 0 and max(later) <= MOST,
    )


async def fail_over(primary: Server, replica: Server) -> None:
    """Swap the two, with nothing lost."""
    primary.command("FAILOVER", "TO", "127.0.0.1", replica.port)
    await eventually(lambda: role(replica) == "master" and role(primary) == "slave", 10)


def role(server: Server) -> str:
    return str(server.command("INFO", "replication")["role"])


async def goes_on(
    arena: Arena, workers: Sequence[Child], producers: Sequence[Child], *, most: float = MOST
) -> float:
    """How long until each worker has claimed and started something, and each producer been acknowledged."""
    since = time.monotonic()
    while True:
        events = arena.events()
        later = max(
            resumption(events, since, {worker.pid for worker in workers}), acked(events, since, producers)
        )
        if later < inf or time.monotonic() - since > 2 * most:
            return later
        await asyncio.sleep(0.1)


def acked(events: Sequence[Event], since: float, producers: Sequence[Child]) -> float:
    """How long after an instant the last of *producers* had a message acknowledged."""
    first: dict[int, float] = {}
    for event in events:
        if event.what == "acked" and event.at > since:
            first.setdefault(event.pid, event.at - since)
    return max(first.get(producer.pid, inf) for producer in producers)
