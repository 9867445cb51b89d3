"""One version of the package under measurement: answers requests, a line of JSON each.

It runs with the ``src`` of any commit, so it uses nothing but the public API of the package.
"""

from __future__ import annotations

import asyncio
import gc
import inspect
import json
import os
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import mx_rmq
from mx_rmq import RedisMessageQueue

PAYLOAD = {"order_id": "A-100", "amount": 99.5, "items": [1, 2, 3], "note": "x" * 38}
"""Just 100 bytes as JSON."""

_NO_CHECK: list[dict[str, Any]] = [{"check": "off"}, {"server_check": "off"}]
"""The option that leaves out the look at the server's settings, as versions have named it."""

_LONGEST = 120
"""Seconds for one measurement; a version that hangs is an error then."""


def queue(url: str, **options: Any) -> RedisMessageQueue:
    """A queue that does not judge its server, whatever this version calls that."""
    refused: Exception | None = None
    for no_check in _NO_CHECK:
        try:
            return RedisMessageQueue(url, name="bench", **no_check, **options)
        except (TypeError, mx_rmq.MxRmqError) as error:
            refused = error
    raise RuntimeError(f"this version takes none of the options {_NO_CHECK}: {refused}")


async def start(mq: RedisMessageQueue) -> None:
    started: Any = mq.start()
    if inspect.isawaitable(started):
        await started


async def produce_many(url: str, count: int) -> list[float]:
    """Messages a second."""
    async with queue(url) as mq:
        started = time.perf_counter()
        await mq.produce_many("orders", (PAYLOAD for _ in range(count)))
        return [count / (time.perf_counter() - started)]


async def producers(url: str, count: int, callers: int) -> list[float]:
    """Messages a second, produced one by one by so many callers at a time."""
    async with queue(url) as mq:

        async def one() -> None:
            for _ in range(max(1, count // callers)):
                await mq.produce("orders", PAYLOAD)

        started = time.perf_counter()
        await asyncio.gather(*(one() for _ in range(callers)))
        return [max(1, count // callers) * callers / (time.perf_counter() - started)]


async def handle_all(mq: RedisMessageQueue, count: int, batch: int | None) -> float:
    """Seconds until *count* messages that wait are handled and settled."""
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
        await start(mq)
        await finished.wait()
        await mq.stop()
        return time.perf_counter() - started


async def drain(url: str, count: int, batch: int | None = None) -> list[float]:
    """Messages a second from a backlog."""
    await produce_many(url, count)
    gc.collect()
    return [count / await handle_all(queue(url, concurrency=64), count, batch)]


async def idle(url: str, count: int) -> list[float]:
    """Milliseconds from produce to handler, each message alone."""
    mq, ran = queue(url), asyncio.Event()
    waits: list[float] = []

    @mq.handler("ping")
    async def on_ping(sent: float) -> None:
        waits.append((time.perf_counter() - sent) * 1000)
        ran.set()

    async with mq:
        await start(mq)
        for n in range(count + 20):
            ran.clear()
            await mq.produce("ping", time.perf_counter())
            await ran.wait()
            await asyncio.sleep(0.002 if n else 0.1)  # until the worker is idle again
    return waits[20:]


async def delay(url: str, count: int) -> list[float]:
    """Milliseconds by which delayed messages begin late; they are due over half a second."""
    mq, finished = queue(url), asyncio.Event()
    late: list[float] = []

    @mq.handler("alarms")
    async def on_alarm(due: float) -> None:
        late.append((time.perf_counter() - due) * 1000)
        if len(late) == count:
            finished.set()

    async with mq:
        await start(mq)
        for n in range(count):
            # One by one: the time a message waits to be produced is not part of its lateness.
            after = 0.3 + 0.5 * n / count
            await mq.produce("alarms", time.perf_counter() + after, delay=after)
        await finished.wait()
    return late


async def growth(url: str, count: int) -> list[float]:
    """Megabytes of this process after a fifth of the *count* messages that wait, and after all."""
    mq, finished = queue(url), asyncio.Event()
    sizes: list[float] = []
    handled = 0

    @mq.handler("orders")
    async def on_order(payload: dict[str, Any]) -> None:
        nonlocal handled
        handled += 1
        if handled in (count // 5, count):
            sizes.append(resident() / 1e6)
        if handled == count:
            finished.set()

    async with mq:
        await start(mq)
        await finished.wait()
    return sizes


def resident() -> int:
    """Bytes of memory this process has now."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


MEASURES: dict[str, Callable[[str, int], Awaitable[list[float]]]] = {
    "drain": drain,
    "batch drain": lambda url, count: drain(url, count, batch=100),
    "100 producers": lambda url, count: producers(url, count, callers=100),
    "one producer": lambda url, count: producers(url, count, callers=1),
    "produce_many": produce_many,
    "idle": idle,
    "delay": delay,
    "growth": growth,
}


def main() -> None:
    # The answers have a descriptor of their own: whatever else prints goes to stderr.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    print(json.dumps({"package": mx_rmq.__file__}), file=answers, flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        gc.collect()
        samples = asyncio.run(_measure(request["measure"], request["url"], request["count"]))
        print(json.dumps({"samples": samples}), file=answers, flush=True)


async def _measure(name: str, url: str, count: int) -> list[float]:
    async with asyncio.timeout(_LONGEST):
        return await MEASURES[name](url, count)


if __name__ == "__main__":
    main()
