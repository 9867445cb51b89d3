"""Handlers that outlast their lease, and a worker that stands still for longer than that."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from tests.faults.arena import Arena, Child, eventually
from tests.faults.run import Row, Run
from tests.harness import read_state

if TYPE_CHECKING:
    from tests.faults.verdict import Verdict

LEASE = 1.0


async def long_handler(run: Run) -> Row:
    """Handlers of five leases, on two workers of which each has room for the other's messages."""
    messages = run.size(100, 20)
    async with Arena.open(run) as arena:
        for _ in range(2):
            arena.worker(lease=LEASE, concurrency=messages)
        assert await arena.producer("m", ({"sleep": 5 * LEASE}, messages)).ended(30) == 0
        await arena.drained(within=60)
        verdict = await arena.verdict()
    return _one_run(f"a handler of 5 x the lease of {LEASE:g} s", verdict, messages)


async def blocking_handler(run: Run) -> Row:
    """A handler that holds up its worker for three leases, others in its hands too, and a second worker."""
    behind = run.size(50, 20)
    async with Arena.open(run) as arena:
        blocked = arena.worker(lease=LEASE, concurrency=behind)
        producer = arena.producer("m", ({"sleep": 0.2}, behind), ({"block": 3 * LEASE}, 1))
        await eventually(lambda: arena.noted(blocked, "start"), 30)
        arena.worker(lease=LEASE, concurrency=behind)
        assert await producer.ended(30) == 0
        await arena.drained(within=60)
        verdict = await arena.verdict()
    return _one_run(f"a handler that blocks the loop for 3 x the lease of {LEASE:g} s", verdict, behind + 1)


def _one_run(fault: str, verdict: Verdict, messages: int) -> Row:
    return Row(
        fault=fault,
        messages=verdict.acked,
        lost=len(verdict.lost),
        duplicates=verdict.duplicates,
        figure="1 run each",
        seen=str(verdict),
        ok=verdict.ok and verdict.acked == verdict.done == messages and verdict.duplicates == 0,
    )


async def worker_stopped(run: Run) -> Row:
    """Workers stand still (SIGSTOP) in a handler for two leases; another runs their messages meanwhile.

    When they go on, half of the second runs still last and the others are over. The handlers block, so
    that each ends, and its completion is sent, before its worker can learn that it is late.
    """
    count = run.size(8, 4)
    payloads = [({"first": {"block": LEASE / 2}, "then": then}, count // 2) for then in ({"sleep": 5.0}, {})]
    async with Arena.open(run) as arena:
        stopped = [arena.worker(lease=LEASE, concurrency=1) for _ in range(count)]
        producer = arena.producer("m", *payloads)
        for worker in stopped:
            await _noted(arena, worker, "start", 1)
            worker.pause()
        other = arena.worker(lease=LEASE, concurrency=count)
        await asyncio.sleep(2 * LEASE)
        await _noted(arena, other, "start", count)
        await _noted(arena, other, "done", count // 2)
        before = await _state(arena)
        for worker in stopped:
            worker.resume()
        for worker in stopped:
            await _noted(arena, worker, "refused", 1)
        same = await _state(arena) == before and bool(before["jobs:processing"])
        assert await producer.ended(30) == 0
        await arena.drained(within=60)
        events = arena.events()
        verdict = await arena.verdict()
    first = {(event.id, event.token) for event in events if event.what == "refused"}
    accepted = {(event.id, event.token) for event in events if event.what == "done"}
    return Row(
        fault=f"SIGSTOP of a worker for 2 x the lease of {LEASE:g} s, then SIGCONT",
        messages=verdict.acked,
        kills=count,
        lost=len(verdict.lost),
        duplicates=verdict.duplicates,
        figure="2 runs, the first one's completion refused and nothing changed by it",
        seen=f"{verdict}; {len(first)} refused, {len(accepted)} accepted, same state: {same}",
        ok=verdict.ok
        and verdict.acked == verdict.done == verdict.duplicates == count
        and len(first) == len(accepted) == count
        and all(token.startswith("1@") for _, token in first)
        and not first & accepted
        and same,
    )


async def _noted(arena: Arena, child: Child, what: str, times: int) -> None:
    """Wait until a process has noted something so many times."""
    await eventually(lambda: arena.noted(child, what) >= times, 30)


async def _state(arena: Arena) -> dict[str, Any]:
    """All that the server has of messages, but for the deadlines, which their owner goes on extending."""
    state = await read_state(arena.redis, prefix=arena.keys.prefix)
    kept = {name: value for name, value in state.items() if not name.startswith("workers")}
    return {**kept, "all_expire_monitor": set(state["all_expire_monitor"])}
