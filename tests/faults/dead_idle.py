"""Idle connections of ``mq.sync`` that a router has forgotten: they swallow what is sent."""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

from mx_rmq import MxRmqError, RedisMessageQueue, SyncProducer
from tests.faults.arena import TOPIC, Arena
from tests.faults.programs import QUEUE
from tests.faults.run import Row, Run
from tests.proxy import Proxy

THREADS = 8


async def dead_idle(run: Run) -> Row:
    """Eight threads leave eight connections behind; then all of them are dead, and the server is healthy."""
    timeout, times = run.size((5.0, 5), (1.0, 3))
    took: list[float] = []
    errors: list[str] = []
    async with Arena.open(run) as arena:
        with (
            Proxy(arena.server) as proxy,
            RedisMessageQueue(proxy.url, name=QUEUE, server_check="off", socket_timeout=timeout).sync as sync,
        ):
            for n in range(times):
                run.tell(f"{n + 1} of {times}")
                await asyncio.to_thread(all_at_once, arena, sync)
                proxy.half_open()
                began = time.monotonic()
                try:
                    await asyncio.to_thread(produce, arena, sync)
                except MxRmqError as error:
                    errors.append(str(error))
                took.append(time.monotonic() - began)
        arena.worker()
        await arena.drained(within=30)
        stored = await arena.produced()
        verdict = await arena.verdict()
    return Row(
        fault=f"{THREADS} idle connections of mq.sync are dead, socket_timeout {timeout:g} s",
        messages=verdict.acked,
        kills=times,
        lost=len(verdict.lost),
        duplicates=verdict.duplicates,
        recovery=max(took),
        figure="0 lost, 0 stored twice, no error, the next produce succeeds within 2 x socket_timeout",
        seen=f"{verdict}; {stored - verdict.acked} stored twice; {errors}",
        ok=verdict.ok and stored == verdict.acked and not errors and max(took) <= 2 * timeout,
    )


def produce(arena: Arena, sync: SyncProducer) -> None:
    receipt = sync.produce(TOPIC, {})
    arena.ledger.write("tried", receipt)
    arena.ledger.write("acked", receipt)


def all_at_once(arena: Arena, sync: SyncProducer) -> None:
    """Leave a connection for each thread."""
    start = Barrier(THREADS)

    def one() -> None:
        start.wait(10)
        for _ in range(20):
            produce(arena, sync)

    with ThreadPoolExecutor(THREADS) as pool:
        for each in [pool.submit(one) for _ in range(THREADS)]:
            each.result()
