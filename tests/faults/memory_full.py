"""The server runs out of memory while everybody works."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from tests.faults.arena import TOPIC, Arena, Child
from tests.faults.run import Row, Run
from tests.faults.verdict import gaps
from tests.harness import command

LEASE = 2.0
ROOM = 1024 * 1024
FULL = 1
"""Less than an empty server needs: from then on nothing finds room, however much is removed."""


async def memory_full(run: Run) -> Row:
    """A producer fills the server; workers drain it while nothing new fits, and one of them is killed.

    At the end there is room again, and the producer must go on by itself.
    """
    messages = run.size(30_000, 4_000)
    some = messages // 20
    payloads: list[tuple[dict[str, Any], int]] = [
        ({"fail": 1}, some),
        ({"dead": "why"}, some),
        ({"sleep": 0.005, "ballast": "x" * 1000}, messages - 2 * some),
    ]
    async with Arena.open(run) as arena:
        producer = arena.producer("m", *payloads, callers=20)
        await _until(arena, lambda produced: produced > messages // 4)
        info = await arena.redis.info("memory")
        await _limit(arena, info["used_memory"] + ROOM)
        await _until(arena, lambda _: "OutOfMemory" in arena.log_text())

        run.tell("full")
        await _limit(arena, FULL)
        backlog = await arena.open_messages()
        workers = [arena.worker(lease=LEASE, concurrency=8) for _ in range(3)]
        victim = await _kill_in_the_midst(arena, workers, 2 * some)
        await arena.drained(within=120)
        while_full = len(arena.failures())
        stored_while_full = await _produced(arena)

        run.tell("room again")
        await _limit(arena, 0)
        assert await producer.ended(60) == 0
        await arena.drained(within=120)
        refusals = [line for line in arena.failures() if line.startswith("again ")]
        failed = [line for line in arena.failures() if not line.startswith("again ")]
        events = arena.events()
        verdict = await arena.verdict()
    recovered = gaps(events, {victim.pid: victim.killed_at or 0.0})
    return Row(
        fault="maxmemory reached under load, one worker killed then",
        messages=verdict.acked,
        kills=1,
        lost=len(verdict.lost),
        duplicates=verdict.duplicates,
        recovery=max(recovered, default=None),
        figure="produce raises OutOfMemory; the backlog is drained and recovered while full; 0 lost",
        seen=f"{verdict}; {backlog} drained while full; "
        f"{len(refusals)} times refused; {len(failed)} times failed {failed[:3]}",
        ok=verdict.ok
        and verdict.acked == messages > stored_while_full
        and while_full > 0
        and all("OutOfMemory(" in line for line in refusals)
        and len(recovered) > 0
        and not failed,
    )


async def _kill_in_the_midst(arena: Arena, workers: list[Child], others: int) -> Child:
    """Kill a worker that runs messages which take a while, and which come after so many others.

    It is stopped before the look, so that it still runs them when it is killed.
    """
    async with asyncio.timeout(60):
        while True:
            for worker in workers:
                worker.pause()
                if _runs(arena, worker, others):
                    worker.kill()
                    return worker
                worker.resume()
            await asyncio.sleep(0.01)


def _runs(arena: Arena, worker: Child, others: int) -> bool:
    """Whether a worker has begun a message behind so many others, and not settled it."""
    running: set[str] = set()
    for event in arena.events():
        if event.pid == worker.pid and int(event.id.partition("-")[2]) > others:
            if event.what == "start":
                running.add(event.id)
            elif event.what in ("end", "done", "failed", "refused"):
                running.discard(event.id)
    return bool(running)


async def _limit(arena: Arena, maxmemory: int) -> None:
    await command(arena.redis, "CONFIG", "SET", "maxmemory", maxmemory)


async def _produced(arena: Arena) -> int:
    topic = (await arena.queue.counts()).topics.get(TOPIC)
    return topic.produced if topic else 0


async def _until(arena: Arena, what: Callable[[int], Any]) -> None:
    """Wait until *what* says something true of how many messages are stored."""
    async with asyncio.timeout(60):
        while not what(await _produced(arena)):
            await asyncio.sleep(0.01)
