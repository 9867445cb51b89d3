"""A queue as large as an operator may have to look at it: a million pending, a million dead."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from benchmarks.bench import Bench, message
from mx_rmq import RedisMessageQueue
from mx_rmq.message import Death, encode_death
from mx_rmq.storage.contract import Restore

PENDING = DEAD = 1_000_000
DELAYED = 500_000
TOPICS = ("orders", "mails", "reports", "bills")
CAUSES = 20
"""Groups of dead messages in each topic."""
RARE = "rare"
"""A topic with a few messages that are behind all others: a list of them has the longest way."""
FEW = 20
DAY = 86400.0
_CHUNK = 1000


@dataclass
class Crowd:
    """Messages that pages are about."""

    ids: dict[str, str]
    """By state: one that has it."""
    middle: str
    """The pending message of ``orders`` with as many before it as behind it."""
    half: int
    """How many are before it."""
    letter: str
    """The place of the dead message with as many before it as behind it, as addresses have it."""
    loaded_at: float


@asynccontextmanager
async def crowd(bench: Bench, scale: float) -> AsyncIterator[Crowd]:
    """Fill the queue; a worker that has some messages runs as long."""
    ids, half = await _fill(bench, scale)
    mq = RedisMessageQueue(bench.url, name="bench", server_check="off", stop_grace=0, concurrency=2)
    begun = asyncio.Semaphore(0)

    @mq.handler("slow")
    async def on_slow(payload: Any) -> None:
        begun.release()
        await asyncio.Event().wait()

    @mq.handler("quick")
    async def on_quick(payload: Any) -> None:
        pass

    async with mq:
        quick = await mq.produce("quick", 1, remember=3600)
        await mq.start()
        for _ in range(FEW):
            await mq.produce("slow", 1)
        await begun.acquire()
        running = await mq.list("slow", state="running", limit=1)
        ids |= {"running": running.messages[0].id, "done": quick}
        store = bench.store
        middle = await store.commands.execute_command(
            "LINDEX", store.keys.of_topic("orders", "pending"), -half
        )
        rank = round(DEAD * scale / 2)
        letter, died = await store.commands.execute_command(
            "ZRANGE", store.keys.of_queue("dlq"), rank, rank, "WITHSCORES"
        )
        yield Crowd(ids, middle.decode(), half, f"0,{died.decode()},{letter.decode()}", time.time())


async def _fill(bench: Bench, scale: float) -> tuple[dict[str, str], int]:
    """One message of each state, and half of the pending ones of ``orders``."""
    store, ids = bench.store, {}
    for topic, count in _shares(round(PENDING * scale)):
        for start in range(0, count, _CHUNK):
            batch = [message() for _ in range(min(_CHUNK, count - start))]
            await store.produce(topic, batch)
            ids["pending"] = batch[0].id
    for topic, count in _shares(round(DELAYED * scale)):
        for start in range(0, count, _CHUNK):
            due = 3600 + DAY * start / max(1, count)
            batch = [message(delay=due) for _ in range(min(_CHUNK, count - start))]
            await store.produce_delayed(topic, batch)
            ids["delayed"] = batch[0].id
    await store.produce_delayed(RARE, [message(delay=2 * DAY) for _ in range(FEW)])
    await store.restore([_dead(RARE, n, time.time() - DAY) for n in range(FEW)])
    for topic, count in _shares(round(DEAD * scale)):
        for start in range(0, count, _CHUNK):
            since = time.time() - DAY / 2 + DAY / 4 * start / max(1, count)
            last = [_dead(topic, n, since + n / 1000) for n in range(min(_CHUNK, count - start))]
            await store.restore(last)
            ids["dead"] = last[0].id
    return ids, round(PENDING * scale * _WEIGHTS[0] / 2)


_WEIGHTS = (0.6, 0.2, 0.1, 0.1)


def _shares(count: int) -> Iterator[tuple[str, int]]:
    return ((topic, round(count * weight)) for topic, weight in zip(TOPICS, _WEIGHTS, strict=True))


def _dead(topic: str, n: int, at: float) -> Restore:
    new = message()
    return Restore(new.id, topic, at, new.body, _ERRORS[n % CAUSES])


_ERRORS = [
    encode_death(Death(reason="failed", error=f"ValueError: {'no ' * (n + 1)}", kind="ValueError"))
    for n in range(CAUSES)
]
