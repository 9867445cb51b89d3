"""Connections that stay open and say nothing more."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from tests.faults.arena import Arena
from tests.faults.ending import end
from tests.faults.run import Row, Run
from tests.faults.verdict import resumption
from tests.proxy import Proxy

POLL = 0.5
RATE = 100.0


async def half_open(run: Run) -> Row:
    """All connections swallow what is sent; new ones are in order. In the end it arrives after all."""
    seconds, timeout = run.size((30.0, 5.0), (4.0, 1.0))
    return await _silent(
        run,
        fault=f"every connection half-open for {seconds:g} s, socket_timeout {timeout:g} s",
        seconds=seconds,
        timeout=timeout,
        new_ones_too=False,
    )


async def black_hole(run: Run) -> Row:
    """All connections swallow what is sent, new ones as well, and go on after a while."""
    seconds, timeout = run.size((12.0, 5.0), (3.0, 1.0))
    return await _silent(
        run,
        fault=f"every connection silent for {seconds:g} s, also new ones, socket_timeout {timeout:g} s",
        seconds=seconds,
        timeout=timeout,
        new_ones_too=True,
    )


async def _silent(run: Run, *, fault: str, seconds: float, timeout: float, new_ones_too: bool) -> Row:
    # A lease is extended after a third of it, and must outlast the silence that this may run into.
    lease = 4 * timeout + (seconds if new_ones_too else 0.0)
    options: dict[str, Any] = {"socket_timeout": timeout, "poll": POLL, "lease": lease}
    most = timeout + POLL + 2.0
    async with Arena.open(run) as arena:
        with Proxy(arena.server) as proxy:
            # One producer is not affected, so that there is always something to consume.
            producers = [arena.steady({"sleep": 0.02}, rate=RATE)]
            arena.url = proxy.url
            producers.append(arena.steady({"sleep": 0.02}, rate=RATE, **options))
            workers = [arena.worker(**options, concurrency=4, prefetch=0) for _ in range(2)]
            await arena.busy(*workers)
            since = time.monotonic()
            if new_ones_too:
                proxy.freeze()
                await asyncio.sleep(seconds)
                since = time.monotonic()
                proxy.thaw()
                await asyncio.sleep(most)
            else:
                proxy.half_open()
                await asyncio.sleep(max(seconds, most))
                proxy.belated()
                await asyncio.sleep(1.0)
            ending = await end(arena, *producers)
    verdict = ending.verdict
    recovery = resumption(ending.events, since, {worker.pid for worker in workers})
    return Row(
        fault=fault,
        messages=verdict.acked,
        kills=1,
        lost=len(verdict.lost),
        duplicates=verdict.duplicates,
        recovery=recovery,
        figure=f"0 lost, 0 stored twice, no duplicates, no error, each worker goes on within {most:g} s",
        seen=str(ending),
        ok=ending.ok and verdict.duplicates == 0 and recovery <= most,
    )
