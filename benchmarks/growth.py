"""Whether a worker's memory grows with what it has handled."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.bench import Bench, fill, fresh
from benchmarks.rows import Row
from mx_rmq import RedisMessageQueue


async def growth(scale: float) -> Iterator[Row]:
    """A worker process of its own handles ten portions; its memory after the first and after the last."""
    portion = round(100_000 * scale)
    async with fresh() as bench:
        sizes = await portions(bench, portion)
    return iter(
        [Row("worker memory growth over 1,000,000 messages", (sizes[-1] - sizes[0]) / 1e6, "MB", "<= 10")]
    )


async def portions(bench: Bench, portion: int) -> list[int]:
    worker = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "benchmarks.growth",
        bench.url,
        str(portion),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert worker.stdin is not None
    assert worker.stdout is not None
    sizes = []
    try:
        for _ in range(10):
            await fill(bench.store, portion)
            sizes.append(int(await worker.stdout.readline()))
    finally:
        worker.stdin.close()
        await worker.wait()
    return sizes


async def work(url: str, portion: int) -> None:
    mq = RedisMessageQueue(url, name="bench", server_check="off")
    handled = 0

    @mq.handler("orders")
    async def on_order(payload: dict[str, Any]) -> None:
        nonlocal handled
        handled += 1
        if handled % portion == 0:
            print(resident(), flush=True)

    async with mq:
        await mq.start()
        await asyncio.to_thread(sys.stdin.read)  # until the parent has seen enough, or is gone


def resident() -> int:
    """Bytes of memory this process has now."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) * 1024


if __name__ == "__main__":
    asyncio.run(work(sys.argv[1], int(sys.argv[2])))
