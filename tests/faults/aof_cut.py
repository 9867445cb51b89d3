"""The server's append-only file loses its end, as it may when the power fails."""

from __future__ import annotations

import asyncio
import os
import shutil
from typing import TYPE_CHECKING, Any, NamedTuple

from mx_rmq import Context, RedisMessageQueue, Retry
from tests.faults.arena import TOPIC, Arena, open_messages
from tests.faults.ledger import ids
from tests.faults.programs import QUEUE, obey
from tests.faults.run import Row, Run
from tests.faults.servers import Server

if TYPE_CHECKING:
    from pathlib import Path

MOST = 500
LEASE = 1.0
AT_ONCE = 4
EACH = 400
"""Messages of each kind; too many for the workers in the time they are given."""


class Left(NamedTuple):
    """What a cut left behind."""

    produced: int
    lost: int
    """Of those: neither done nor dead after a drain."""
    wrong: list[str]


async def aof_cut(run: Run) -> Row:
    """A load of all transitions ends in mid-work; every cut is made in a fresh copy of the server's files.

    Every other cut takes up to 500 bytes, the rest are anywhere, so that each kind of transition is hit.
    """
    cuts = run.size(40, 8)
    async with Arena.open(run, appendonly="yes") as arena:
        await _work(arena)
        acked = len(ids(arena.events(), "acked"))
        arena.server.kill()
        file = _last_file(arena.server.home)
        size = file.stat().st_size
        lengths = [run.dice.randint(1, size if n % 2 else MOST) for n in range(cuts)]
        gate = asyncio.Semaphore(AT_ONCE)

        async def cut(n: int, length: int) -> Left:
            async with gate:
                run.tell(f"cut {n + 1} of {cuts}")
                return await _cut(arena.server.home, arena.home / f"cut-{n}", length)

        lefts = await asyncio.gather(*(cut(n, length) for n, length in enumerate(lengths)))
    wrong = [
        f"{length} bytes: {what}" for length, left in zip(lengths, lefts, strict=True) for what in left.wrong
    ]
    short = [left.produced for length, left in zip(lengths, lefts, strict=True) if length <= MOST]
    return Row(
        fault=f"AOF tail cut by 1–{MOST} bytes, and anywhere",
        runs=cuts,
        messages=acked,
        kills=cuts,
        lost=sum(left.lost for left in lefts),
        figure="after a cut no half transition: the audit is clean, what is left is drained",
        seen=f"{cuts} cuts of {size} bytes; up to {MOST} bytes took at most {acked - min(short)} messages; "
        + "; ".join(wrong or ["all clean"]),
        ok=not wrong and not any(left.lost for left in lefts),
    )


async def _work(arena: Arena) -> None:
    """Every transition, and none of them finished: messages are in all places when it ends."""
    kinds: list[tuple[dict[str, Any], int]] = [
        ({"sleep": 0.01}, EACH),
        ({"fail": 1}, EACH),
        ({"dead": "why"}, EACH),
    ]
    producers = [arena.producer(f"k{n}", kind, callers=5, rate=300.0) for n, kind in enumerate(kinds)]
    delayed = arena.producer("later", ({"sleep": 0.01}, EACH), callers=5, rate=300.0, sending={"delay": 0.3})
    for _ in range(2):
        arena.worker(concurrency=4, lease=LEASE)
    for producer in (*producers, delayed):
        assert await producer.ended(30) == 0
    arena.kill_all()


async def _cut(home: Path, copy: Path, length: int) -> Left:
    """Start a server on files without their last *length* bytes; judge what it has, and drain it."""
    await asyncio.to_thread(shutil.copytree, home, copy)
    file = _last_file(copy)
    os.truncate(file, file.stat().st_size - length)
    server = Server(copy)
    try:
        await asyncio.to_thread(server.start)
        mq = RedisMessageQueue(server.url, name=QUEUE, server_check="off", lease=LEASE)

        @mq.handler(TOPIC, retry=Retry(3, base=0.01, cap=0.05))
        async def handle(payload: dict[str, Any], ctx: Context) -> None:
            await obey(payload, ctx)

        async with mq:
            wrong = [f"cut: {finding}" for finding in await _findings(mq)]
            mq.start()
            try:
                async with asyncio.timeout(20):
                    while await open_messages(mq):
                        await asyncio.sleep(0.05)
            except TimeoutError:
                wrong.append(f"not drained: {await mq.counts()}")
            await mq.stop()
            wrong += [f"drained: {finding}" for finding in await _findings(mq)]
            counts = await mq.counts()
    finally:
        server.kill()
        shutil.rmtree(copy)
    topic = counts.topics.get(TOPIC)
    if topic is None:
        return Left(0, 0, wrong)
    return Left(topic.produced, topic.produced - topic.completed - topic.dead, wrong)


async def _findings(mq: RedisMessageQueue) -> list[str]:
    (report,) = await mq.audit()
    unchecked = [] if report.counters_checked else ["the counters were not checked"]
    return [f"{one.kind} {one.what} {one.detail}" for one in report.findings] + unchecked


def _last_file(home: Path) -> Path:
    """The file that the server appends to."""
    files = (home / "appendonlydir").glob("*.incr.aof")
    return max(files, key=lambda file: int(file.name.split(".")[-3]))
