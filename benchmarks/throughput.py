"""How fast messages go in and out, against the same scripts driven raw in the same run."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from typing import Any

from redis.asyncio import Redis

from benchmarks.bench import (
    BATCH,
    PAYLOAD,
    WORKER,
    Bench,
    batches,
    fill,
    fresh,
    in_turns,
    message,
    ratio,
    steady_cores,
)
from benchmarks.rows import Row
from mx_rmq import RedisMessageQueue
from mx_rmq.storage.scripts import SCRIPTS


async def throughput(scale: float, rounds: int) -> Iterator[Row]:
    count = round(50_000 * scale)
    with steady_cores():
        async with fresh() as bench:
            raw_in, many, crowd, raw_out, drained, uncounted, batched, pool, single = await in_turns(
                rounds,
                lambda: raw_produce(bench, count),
                lambda: produce_many(bench, count),
                lambda: concurrent(bench, count),
                lambda: raw_drain(bench, count),
                lambda: drain(bench, count),
                lambda: drain(bench, count, history=False),
                lambda: drain(bench, count, batch=BATCH),
                lambda: bare_evalsha(bench, count // 20),
                lambda: one_producer(bench, count // 20),
            )
    return iter(
        [
            Row("limit of produce, raw batches of 100", max(raw_in), "msg/s"),
            Row("limit of claim+complete, raw batches of 100", max(raw_out), "msg/s"),
            Row("drain, no-op async handlers", max(drained), "msg/s", ">= 40000"),
            Row("drain / limit of claim+complete", ratio(drained, raw_out), "x", ">= 0.5"),
            Row("drain / drain without the history", ratio(drained, uncounted), "x", ">= 0.95"),
            Row("100 producers awaiting each", max(crowd), "msg/s"),
            Row("100 producers / limit of produce", ratio(crowd, raw_in), "x", ">= 0.5"),
            Row("produce_many", max(many), "msg/s"),
            Row("produce_many / limit of produce", ratio(many, raw_in), "x", ">= 0.8"),
            Row("drain, batch handler of 100", max(batched), "msg/s"),
            Row("batch drain / limit of claim+complete", ratio(batched, raw_out), "x", ">= 0.8"),
            Row("bare EVALSHA through redis-py's pool", max(pool), "msg/s"),
            Row("one producer awaiting each", max(single), "msg/s"),
            Row("one producer / bare EVALSHA", ratio(single, pool), "x", ">= 1.2"),
        ]
    )


async def raw_produce(bench: Bench, count: int) -> float:
    await bench.clear()
    ready = list(batches(count))
    started = time.perf_counter()
    for batch in ready:
        await bench.store.produce("orders", batch)
    return count / (time.perf_counter() - started)


async def raw_drain(bench: Bench, count: int) -> float:
    await bench.clear()
    await fill(bench.store, count)
    done, started = 0, time.perf_counter()
    while done < count:
        claim = await bench.store.claim("orders", BATCH, lease=15, holder=WORKER)
        await bench.store.complete("orders", [(delivery, 0.0) for delivery in claim.deliveries])
        done += len(claim.deliveries)
    return count / (time.perf_counter() - started)


async def produce_many(bench: Bench, count: int) -> float:
    await bench.clear()
    async with RedisMessageQueue(bench.url, name="bench", server_check="off") as mq:
        started = time.perf_counter()
        await mq.produce_many("orders", (PAYLOAD for _ in range(count)))
        return count / (time.perf_counter() - started)


async def concurrent(bench: Bench, count: int) -> float:
    await bench.clear()
    async with RedisMessageQueue(bench.url, name="bench", server_check="off") as mq:

        async def one() -> None:
            for _ in range(count // 100):
                await mq.produce("orders", PAYLOAD)

        started = time.perf_counter()
        await asyncio.gather(*(one() for _ in range(100)))
        return count / (time.perf_counter() - started)


async def drain(bench: Bench, count: int, batch: int | None = None, *, history: bool = True) -> float:
    await bench.clear()
    await fill(bench.store, count)
    mq = RedisMessageQueue(bench.url, name="bench", server_check="off", concurrency=64, history=history)
    left, finished = count, asyncio.Event()

    def handled(number: int) -> None:
        nonlocal left
        left -= number
        if left <= 0:
            finished.set()

    if batch:

        @mq.handler("orders", batch=batch)
        async def on_orders(payloads: list[dict[str, Any]]) -> None:
            handled(len(payloads))
    else:

        @mq.handler("orders")
        async def on_order(payload: dict[str, Any]) -> None:
            handled(1)

    async with mq:
        started = time.perf_counter()
        await mq.start()
        await finished.wait()
        await mq.stop()  # until everything is settled
        took = time.perf_counter() - started
    return count / took


async def bare_evalsha(bench: Bench, count: int) -> float:
    """The same script with the same arguments, the way any user of redis-py would call it."""
    await bench.clear()
    script, keys = SCRIPTS["produce_normal_message"], bench.store.keys
    names = keys.of_script(SCRIPTS["produce_normal_message"], "orders", "bare")
    ready = [message() for _ in range(count)]
    async with Redis.from_url(bench.url) as redis:
        await redis.script_load(script.text)
        started = time.perf_counter()
        for n, one in enumerate(ready):
            args = ("orders", n, 1_048_576, keys.prefix, one.id, one.lane, 604_800_000, one.body, "")
            await redis.evalsha(script.sha, len(names), *names, *args)
        return count / (time.perf_counter() - started)


async def one_producer(bench: Bench, count: int) -> float:
    await bench.clear()
    async with RedisMessageQueue(bench.url, name="bench", server_check="off") as mq:
        started = time.perf_counter()
        for _ in range(count):
            await mq.produce("orders", PAYLOAD)
        return count / (time.perf_counter() - started)
