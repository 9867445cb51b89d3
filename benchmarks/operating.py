"""How fast an operator gets through a large DLQ, and learns how thousands of topics stand."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterator
from statistics import median

from benchmarks.bench import fresh, message
from benchmarks.rows import Row
from mx_rmq import RedisMessageQueue
from mx_rmq.message import Death, encode_death
from mx_rmq.storage.contract import Restore
from mx_rmq.storage.store import Store

CHUNK = 1000
CAUSES = 20
"""Groups of the dead messages."""
TOPICS = 5000
LOOKS = 20
"""How often a page, the groups and the counts are read."""


async def operating(scale: float) -> Iterator[Row]:
    rows = []
    async with fresh() as bench:
        many, most = round(100_000 * scale), round(1_000_000 * scale)
        async with RedisMessageQueue(bench.url, name="bench", server_check="off") as mq:
            for what, act in acts(mq).items():
                ids = await bury(bench.store, many)
                rows.append(
                    Row(f"{what} of 100,000 dead messages", await speed(act, ids), "msg/s", ">= 20000")
                )
                await bench.clear()
            await bury(bench.store, most)
            page = await took(lambda: mq.dlq.list(limit=50))
            groups = await took(mq.dlq.groups)
            rows.append(Row("first page of 50 of 1,000,000 dead messages", page * 1e3, "ms", "<= 20"))
            rows.append(Row("groups of 1,000,000 dead messages", groups * 1e3, "ms", "<= 20"))
            await bench.clear()
            for n in range(round(TOPICS * scale)):
                await bench.store.produce(f"topic-{n}", [message()])
            counts = await took(mq.counts)
            rows.append(Row("counts of 5,000 topics", counts * 1e3, "ms", "<= 100"))
    return iter(rows)


def acts(mq: RedisMessageQueue) -> dict[str, Callable[[list[str]], Awaitable[int]]]:
    return {
        "replay_all": lambda ids: mq.dlq.replay_all(),
        "replay_all by error": lambda ids: mq.dlq.replay_all(error="ValueError"),
        "replay by id": lambda ids: mq.dlq.replay(*ids),
        "purge": lambda ids: mq.dlq.purge(),
        "purge by topic": lambda ids: mq.dlq.purge(topic="orders"),
        "delete by id": lambda ids: mq.dlq.delete(*ids),
    }


async def speed(act: Callable[[list[str]], Awaitable[int]], ids: list[str]) -> float:
    started = time.perf_counter()
    done = await act(ids)
    seconds = time.perf_counter() - started
    assert done == len(ids)
    return done / seconds


async def took(ask: Callable[[], Awaitable[object]]) -> float:
    """Seconds of one call; the middle of some."""
    seconds = []
    for _ in range(LOOKS):
        started = time.perf_counter()
        await ask()
        seconds.append(time.perf_counter() - started)
    return median(seconds)


async def bury(store: Store, count: int) -> list[str]:
    """Dead messages of a few causes, in turns."""
    errors = [
        encode_death(Death(reason="failed", error=f"ValueError: {'no ' * (n + 1)}", kind="ValueError"))
        for n in range(CAUSES)
    ]
    now, ids = time.time(), []
    for start in range(0, count, CHUNK):
        chunk = []
        for n in range(start, min(start + CHUNK, count)):
            new = message()
            ids.append(new.id)
            chunk.append(Restore(new.id, "orders", now - 3600 + n / 1000, new.body, errors[n % CAUSES]))
        await store.restore(chunk)
    return ids
