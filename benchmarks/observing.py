"""What it costs to be watched: metrics that count, and spans without a provider."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from typing import Any

from benchmarks.bench import PAYLOAD, Bench, fill, fresh, in_turns, ratio, steady_cores
from benchmarks.rows import Row
from mx_rmq import RedisMessageQueue
from mx_rmq.otel import instrument

Watch = Callable[[RedisMessageQueue], Callable[[], None]]
"""Begins to watch a queue; returns what ends it."""


async def observing(scale: float, rounds: int) -> Iterator[Row]:
    count = round(50_000 * scale)
    with steady_cores():
        async with fresh() as bench:
            # Many short rounds: what is compared differs by less than the noise of one.
            plain, traced, counted = await in_turns(
                2 * rounds,
                lambda: drain(bench, count // 2, unwatched),
                lambda: drain(bench, count // 2, without_provider),
                lambda: drain(bench, count // 2, with_metrics),
            )
            alone, traced_alone = await in_turns(
                3 * rounds,
                lambda: concurrent(bench, count // 2, unwatched),
                lambda: concurrent(bench, count // 2, without_provider),
            )
    return iter(
        [
            Row("drain with spans but no provider / drain", ratio(traced, plain), "x", ">= 0.95"),
            Row(
                "100 producers with spans but no provider / without",
                ratio(traced_alone, alone),
                "x",
                ">= 0.93",
            ),
            Row("drain with metrics / drain", ratio(counted, plain), "x", ">= 0.5"),
        ]
    )


def unwatched(_: RedisMessageQueue) -> Callable[[], None]:
    return lambda: None


def without_provider(mq: RedisMessageQueue) -> Callable[[], None]:
    instrument(mq)
    return lambda: None


def with_metrics(mq: RedisMessageQueue) -> Callable[[], None]:
    return mq.metrics_app().close


async def drain(bench: Bench, count: int, watch: Watch) -> float:
    await bench.clear()
    await fill(bench.store, count)
    mq = RedisMessageQueue(bench.url, name="bench", server_check="off", concurrency=64)
    end = watch(mq)
    left, finished = count, asyncio.Event()

    @mq.handler("orders")
    async def on_order(payload: dict[str, Any]) -> None:
        nonlocal left
        left -= 1
        if left <= 0:
            finished.set()

    async with mq:
        started = time.perf_counter()
        await mq.start()
        await finished.wait()
        await mq.stop()
        took = time.perf_counter() - started
    end()
    return count / took


async def concurrent(bench: Bench, count: int, watch: Watch) -> float:
    await bench.clear()
    async with RedisMessageQueue(bench.url, name="bench", server_check="off") as mq:
        end = watch(mq)

        async def one() -> None:
            for _ in range(max(1, count // 100)):
                await mq.produce("orders", PAYLOAD)

        started = time.perf_counter()
        await asyncio.gather(*(one() for _ in range(100)))
        took = time.perf_counter() - started
        end()
    return count / took
