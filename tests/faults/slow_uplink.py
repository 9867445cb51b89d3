"""Large messages over a thin line: the bytes leave, but slowly."""

from __future__ import annotations

import asyncio
import time

from mx_rmq import RedisMessageQueue
from tests.faults.arena import TOPIC, Arena
from tests.faults.programs import QUEUE
from tests.faults.run import Row, Run
from tests.proxy import Proxy

MESSAGES = 8


async def slow_uplink(run: Run) -> Row:
    """Eight large messages at once by ``mq.produce``, then some by ``mq.sync``."""
    size, rate, timeout = run.size((900_000, 400_000, 5.0), (450_000, 1_000_000, 0.6))
    outcomes: list[object] = []
    async with Arena.open(run) as arena:
        with Proxy(arena.server) as proxy:
            proxy.throttle(rate)
            queue = RedisMessageQueue(proxy.url, name=QUEUE, server_check="off", socket_timeout=timeout)
            began = time.monotonic()
            async with queue:
                await queue.produce(TOPIC, {})  # the connection is there, the caller no longer alone
                payload = {"text": "x" * size}
                calls = [queue.produce(TOPIC, payload) for _ in range(MESSAGES)]
                outcomes += await asyncio.gather(*calls, return_exceptions=True)
                run.tell("without an event loop")
                for _ in range(MESSAGES // 4):
                    many = asyncio.to_thread(queue.sync.produce_many, TOPIC, [payload] * 2)
                    (receipts,) = await asyncio.gather(many, return_exceptions=True)
                    outcomes += [receipts] if isinstance(receipts, BaseException) else receipts
            took, connections = time.monotonic() - began, proxy.connections
        ids = [outcome for outcome in outcomes if isinstance(outcome, str)]
        errors = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
        stored = await arena.produced() - 1
    return Row(
        fault=f"{len(outcomes)} x {size // 1000} kB at {rate // 1000} kB/s, socket_timeout {timeout:g} s",
        messages=len(ids),
        figure="all stored once, no error, no connection given up",
        seen=f"{stored} stored in {took:.1f} s over {connections} connections; {errors[:2]}",
        ok=len(ids) == stored == len(outcomes) and not errors and connections == 2,
    )
