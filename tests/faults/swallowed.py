"""A network that swallows replies, also those to new connections."""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from mx_rmq import RedisMessageQueue, ServerUnavailable
from tests.faults.arena import Arena
from tests.faults.programs import QUEUE
from tests.faults.run import Row, Run
from tests.harness import command
from tests.proxy import Proxy

if TYPE_CHECKING:
    from collections.abc import Awaitable

SLACK = 1.0
"""Seconds that a busy machine may take beyond the promise."""


async def swallowed(run: Run) -> Row:
    """Many topics, each with callers that wait behind others; a worker runs what arrives at once.

    The long form lasts longer than the server remembers calls. In the short one the server is made to forget
    them as soon as the settings allow.
    """
    short: dict[str, Any] = {"patience": 2.0, "socket_timeout": 1.0, "durability_timeout": 0.5}
    topics, options, silent = run.size((25, {}, 75.0), (20, short, 5.0))
    patience, timeout = options.get("patience", 30.0), options.get("socket_timeout", 5.0)
    names = [f"t{n}" for n in range(topics)]
    ends: list[float] = []
    wrong: list[str] = []
    async with Arena.open(run) as arena:
        with Proxy(arena.server) as proxy:
            arena.worker({name: {} for name in names}, concurrency=topics)
            queue = RedisMessageQueue(proxy.url, name=QUEUE, server_check="off", **options)
            async with queue:
                await asyncio.gather(
                    *(queue.produce(name, {}) for name in names)
                )  # it is open, and knows them
                pool = ThreadPoolExecutor(topics)
                began = time.monotonic()

                async def timed(call: Awaitable[Any]) -> None:
                    called_at = time.monotonic()
                    try:
                        await call
                    except ServerUnavailable:
                        ends.append(time.monotonic() - called_at)
                    except Exception as error:
                        wrong.append(repr(error))

                proxy.swallow_replies()
                calls = []
                for name in names:
                    calls += [timed(queue.produce(name, {})), timed(queue.produce_many(name, [{}, {}]))]
                    sync = asyncio.get_running_loop().run_in_executor(pool, queue.sync.produce, name, {})
                    calls.append(timed(sync))
                tasks = [asyncio.ensure_future(call) for call in calls]
                await asyncio.sleep(patience / 2)
                tasks += [asyncio.ensure_future(timed(queue.produce(name, {}))) for name in names]
                await asyncio.sleep(max(0.0, began + patience + timeout + SLACK - time.monotonic()))
                if run.short:
                    for key in await command(arena.redis, "KEYS", f"{arena.keys.of_queue('call')}*"):
                        await command(arena.redis, "DEL", key)
                await asyncio.sleep(max(0.0, began + silent - time.monotonic()))
                proxy.return_replies()
                async with asyncio.timeout(120):
                    await asyncio.gather(*tasks)
                pool.shutdown()
        await arena.drained(within=30)
        stored = await arena.produced()
        starts = len([event for event in arena.events() if event.what == "start"])
    asked = topics * 6
    late = max(ends, default=0.0)
    return Row(
        fault=f"replies of {topics} topics swallowed for {silent:g} s, patience {patience:g} s",
        messages=stored,
        kills=1,
        duplicates=max(0, stored - asked),
        recovery=late,
        figure="0 stored twice, every caller is told within patience + socket_timeout",
        seen=f"{stored} stored and {starts} started of {asked}; {len(ends)} told; {wrong[:3]}",
        ok=stored <= asked
        and starts == stored
        and not wrong
        and len(ends) == topics * 4
        and late <= patience + timeout + SLACK,
    )
