"""What idle workers cost the server: processor time, commands and bytes, with real connections."""

from __future__ import annotations

import asyncio
import os
import resource
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

from benchmarks.bench import Bench, fresh
from benchmarks.rows import Row
from mx_rmq import RedisMessageQueue
from mx_rmq.storage.queries import Queries

WORKERS = 200
PROCESSES = 4
MANY_TOPICS = 20
SETTLES = 12.0
"""Seconds until all workers have heard how many they are, and have registered twice."""
LASTS = 20.0
"""Seconds for which it is measured."""
CORE = 5
"""Per cent of a core that idle workers may take, however many they are up to 1,000."""


async def idle(scale: float, workers: int = WORKERS) -> Iterator[Row]:
    """Idle workers in a few processes, with one topic and with twenty."""
    count = max(PROCESSES, round(workers * scale))
    rows: list[Row] = []
    for topics in (1, MANY_TOPICS):
        named = f"{count:,} idle workers, {topics} topic{'s' if topics > 1 else ''}"
        async with fresh() as bench, running(bench, count, topics):
            await asyncio.sleep(max(2.0, SETTLES * scale))
            cpu, commands, writes, amount = await measured(bench, max(2.0, LASTS * scale))
        rows += [
            Row(f"{named}: core", 100 * cpu, "%", f"<= {CORE}"),
            # As the server counts: a script is a command, and so is every command in it.
            Row(f"{named}: commands for each", commands / count, "/s", "<= 6"),
            Row(f"{named}: writes by each", writes / count, "/s"),
            Row(f"{named}: traffic", amount / 1e6, "MB/s"),
        ]
    return iter(rows)


@asynccontextmanager
async def running(bench: Bench, count: int, topics: int) -> AsyncIterator[None]:
    """So many workers, all of which have started; they end with this process."""
    shares = [count // PROCESSES + (n < count % PROCESSES) for n in range(PROCESSES)]
    processes = [
        await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "benchmarks.idle", bench.url, str(share), str(topics)),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        for share in shares
    ]
    try:
        for process in processes:
            assert process.stdout is not None
            assert await process.stdout.readline(), "workers did not start"
        yield
    finally:
        for process in processes:
            assert process.stdin is not None
            process.stdin.close()
            await process.wait()


async def measured(bench: Bench, lasts: float) -> list[float]:
    """Of the server, in a second: processor time, commands, reads from its sockets, bytes."""
    before = await counted(bench)
    await asyncio.sleep(lasts)
    after = await counted(bench)
    return [(late - early) / lasts for early, late in zip(before, after, strict=True)]


async def counted(bench: Bench) -> list[float]:
    said = await Queries(bench.store).info()
    info = {name: float(said[name]) for name in _COUNTS}
    return [
        info["used_cpu_user"] + info["used_cpu_sys"],
        info["total_commands_processed"],
        info["total_reads_processed"],
        info["total_net_input_bytes"] + info["total_net_output_bytes"],
    ]


_COUNTS = (
    *("used_cpu_user", "used_cpu_sys", "total_commands_processed", "total_reads_processed"),
    *("total_net_input_bytes", "total_net_output_bytes"),
)


async def work(url: str, count: int, topics: int) -> None:
    """Run workers until the parent has seen enough, or is gone."""
    queues = [worker(url, topics) for _ in range(count)]
    for mq in queues:
        await mq.start()
    print("started", flush=True)
    await asyncio.to_thread(sys.stdin.read)
    os._exit(0)  # to sign off a thousand workers is not what is measured


def worker(url: str, topics: int) -> RedisMessageQueue:
    mq = RedisMessageQueue(url, name="bench", server_check="off", concurrency=4)

    async def handle(payload: Any) -> None:
        pass

    for n in range(topics):
        mq.handler(f"topic-{n}")(handle)
    return mq


if __name__ == "__main__":
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    asyncio.run(work(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
