"""Times in which no owner can extend its leases: the server is away, stands still, or refuses to write."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from tests.faults.arena import Arena, eventually
from tests.faults.run import Row, Run
from tests.proxy import Proxy

LEASE = 1.0
AWAY = 2 * LEASE
OUTAGES = 3
PAUSE = 4.0
"""Seconds between two outages."""
OPTIONS: dict[str, Any] = {"lease": LEASE, "socket_timeout": 1.0, "concurrency": 8}


async def long_outage(run: Run) -> Row:
    """Handlers that outlast three outages of two leases each."""

    async def restart(arena: Arena, proxy: Proxy) -> None:
        arena.server.kill()
        await asyncio.sleep(AWAY)
        await asyncio.to_thread(arena.server.start)

    async def stand_still(arena: Arena, proxy: Proxy) -> None:
        arena.server.pause()
        await asyncio.sleep(AWAY)
        arena.server.resume()

    async def cut_off(arena: Arena, proxy: Proxy) -> None:
        await asyncio.to_thread(proxy.away)
        await asyncio.sleep(AWAY)
        await asyncio.to_thread(proxy.back)

    async def swallow(arena: Arena, proxy: Proxy) -> None:
        proxy.freeze()
        await asyncio.sleep(AWAY)
        proxy.thaw()

    kinds = {"restarts": restart, "stands still": stand_still, "is cut off": cut_off, "swallows": swallow}
    problems, messages = [], 0
    for name, outage in kinds.items():
        run.tell(name)
        count, problem = await _survive(run, outage)
        messages += count
        problems += [f"{name}: {problem}"] if problem else []
    return Row(
        fault=f"server restarts, stands still, is cut off, swallows for {AWAY:g} s, lease {LEASE:g} s",
        runs=len(kinds),
        messages=messages,
        kills=len(kinds) * run.size(OUTAGES, 1),
        figure="1 start each, no blame, 0 lost",
        seen="; ".join(problems),
        ok=not problems,
    )


async def disk_full(run: Run) -> Row:
    """The server cannot save and refuses every write (MISCONF) while handlers end."""

    async def full(arena: Arena, proxy: Proxy) -> None:
        blocked = arena.server.home / "dump.rdb"
        blocked.unlink(missing_ok=True)
        blocked.mkdir()
        await _save(arena, "err")
        await asyncio.sleep(AWAY)
        blocked.rmdir()
        await _save(arena, "ok")

    count, problem = await _survive(run, full, save="3600 1")
    return Row(
        fault=f"the server refuses writes (MISCONF) for {AWAY:g} s while handlers end, lease {LEASE:g} s",
        messages=count,
        kills=run.size(OUTAGES, 1),
        figure="1 start each, no blame, 0 lost",
        seen=problem,
        ok=not problem,
    )


async def _save(arena: Arena, status: str) -> None:
    """Let the server save, and wait until it says how that ended."""
    arena.server.command("BGSAVE")

    def ended() -> bool:
        info = arena.server.command("INFO", "persistence")
        return not info["rdb_bgsave_in_progress"] and info["rdb_last_bgsave_status"] == status

    await eventually(ended, 10)


async def _survive(
    run: Run, outage: Callable[[Arena, Proxy], Awaitable[None]], **settings: str
) -> tuple[int, str]:
    """How many messages there were, and what went wrong."""
    outages = run.size(OUTAGES, 1)
    async with Arena.open(run, appendonly="yes", **settings) as arena:
        with Proxy(arena.server) as proxy:
            arena.url = proxy.url
            for _ in range(2):
                arena.worker(**OPTIONS)
            # Some outlast all outages, others end in the middle of one.
            long = outages * (AWAY + PAUSE) + 1.0
            payloads: list[tuple[dict[str, Any], int]] = [({"sleep": long}, 4)]
            payloads += [({"sleep": 1.0 + AWAY / 2 + n * (AWAY + PAUSE)}, 2) for n in range(outages)]
            producer = arena.producer("m", *payloads, callers=50)
            count = sum(number for _, number in payloads)
            assert await producer.ended(30) == 0
            await eventually(lambda: sum(event.what == "start" for event in arena.events()) == count, 20)
            await asyncio.sleep(1.0)
            for _ in range(outages):
                await outage(arena, proxy)
                await asyncio.sleep(PAUSE)
            arena.url = arena.server.url
            await arena.drained(within=60)
            refused = arena.log_text().count("MISCONF")
            blamed = sum(event.what == "blamed" for event in arena.events())
            verdict = await arena.verdict()
    if settings and not refused:
        return count, "no write was refused"
    if verdict.ok and verdict.done == count and not verdict.dead and not verdict.duplicates and not blamed:
        return count, ""
    return count, f"{verdict}; {blamed} blamed"
