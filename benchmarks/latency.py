"""How soon a message runs: when the worker is idle, and when it is due."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator

from redis.asyncio import Redis

from benchmarks.bench import Bench, fresh
from benchmarks.rows import Row
from mx_rmq import RedisMessageQueue
from mx_rmq.storage.scripts import SCRIPTS

_MOST_ROUNDS = 3


async def latency(scale: float, rounds: int) -> Iterator[Row]:
    count = round(1000 * scale)
    async with fresh() as bench:
        runs = [await one_run(bench, count) for _ in range(min(rounds, _MOST_ROUNDS))]
    # The least of each: whatever else runs on the machine only adds.
    trip, p50, p99, late = (min(values) for values in zip(*runs, strict=True))
    tail = min(p99 / p50 for _, p50, p99, _ in runs)
    return iter(
        [
            Row("round trip of a bare EVALSHA, p50", trip * 1000, "ms"),
            Row("idle latency, produce to handler, p50", p50 * 1000, "ms"),
            Row("idle latency p50 / round trip", p50 / trip, "x", "<= 5"),
            Row("idle latency, produce to handler, p99", p99 * 1000, "ms"),
            Row("idle latency p99 / round trip", p99 / trip, "x", "<= 20"),
            Row("idle latency p99 / p50", tail, "x", "<= 3"),
            Row("delay lateness, p99", late * 1000, "ms", "<= 5"),
        ]
    )


async def one_run(bench: Bench, count: int) -> tuple[float, float, float, float]:
    """A round trip's p50, the idle latency's p50 and p99, the lateness's p99."""
    trips = await round_trips(bench, count)
    idle = await idle_latencies(bench, count)
    late = await lateness(bench, count)
    return percentile(trips, 50), percentile(idle, 50), percentile(idle, 99), percentile(late, 99)


def percentile(values: list[float], which: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * which / 100))]


async def round_trips(bench: Bench, count: int) -> list[float]:
    script = SCRIPTS["get_next_delay_task"]
    keys = bench.store.keys.of_script(script)
    trips = []
    async with Redis.from_url(bench.url) as redis:
        await redis.script_load(script.text)
        for _ in range(count):
            started = time.perf_counter()
            await redis.evalsha(script.sha, len(keys), *keys, "")
            trips.append(time.perf_counter() - started)
    return trips


async def idle_latencies(bench: Bench, count: int) -> list[float]:
    await bench.clear()
    mq = RedisMessageQueue(bench.url, name="bench", server_check="off")
    ran = asyncio.Event()
    waits: list[float] = []

    @mq.handler("ping")
    async def on_ping(sent: float) -> None:
        waits.append(time.perf_counter() - sent)
        ran.set()

    async with mq:
        await mq.start()
        for n in range(count + 20):
            ran.clear()
            await mq.produce("ping", time.perf_counter())
            await ran.wait()
            await asyncio.sleep(0.002 if n else 0.1)  # until the worker is idle again
    return waits[20:]


async def lateness(bench: Bench, count: int) -> list[float]:
    """Messages due over two seconds; how long after its time each began."""
    await bench.clear()
    mq = RedisMessageQueue(bench.url, name="bench", server_check="off")
    late: list[float] = []
    finished = asyncio.Event()

    @mq.handler("alarms")
    async def on_alarm(due: float) -> None:
        late.append(time.perf_counter() - due)
        if len(late) == count:
            finished.set()

    async with mq:
        await mq.start()
        for n in range(count):
            # One by one: the time a message waits to be produced is not part of its lateness.
            delay = 1.0 + 2.0 * n / count
            await mq.produce("alarms", time.perf_counter() + delay, delay=delay)
        await finished.wait()
    return late
