"""Dead messages of almost a megabyte each, and an operator who looks at them."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from mx_rmq import RedisMessageQueue
from mx_rmq.message import Death, encode_death
from mx_rmq.storage.store import Store
from tests.faults.arena import Arena
from tests.faults.programs import QUEUE
from tests.faults.run import Row, Run
from tests.proxy import Proxy

BYTES = 900_000
MOST_BYTES = 4_000_000
PENDING = 10
MOST_MEDIANS, MOST_STALL = 10, 0.1
DEATHS = {
    "left": Death(reason="failed", error="ValueError: no", kind="ValueError"),
    "right": Death(reason="crashed", error="its worker vanished 3 times"),
}
"""Half of the bodies die in each of these topics."""


async def large_bodies(run: Run) -> Row:
    """An operator lists, counts, audits, replays and purges, while others use the same queue object."""
    bodies = run.size(150, 60)
    async with Arena.open(run) as arena:
        with Proxy(arena.server) as proxy:
            await _die(arena, bodies)
            run.tell("measuring replies")
            async with RedisMessageQueue(proxy.url, name=QUEUE, server_check="off") as mq:
                proxy.longest_reply = 0
                wrong = await _operate(mq, bodies)
            longest_reply = proxy.longest_reply
        await _die(arena, bodies)
        run.tell("measuring stalls")
        pair = Pair(RedisMessageQueue(arena.url, name=QUEUE, server_check="off"))
        async with pair.mq:
            wrong += await pair.beside(lambda: _operate(pair.mq, bodies))
    stall, most = max(pair.took), MOST_MEDIANS * statistics.median(pair.took) + MOST_STALL
    return Row(
        fault=f"{bodies} dead bodies of {BYTES // 1000} kB are listed, audited, replayed and purged",
        messages=2 * (bodies + PENDING) + len(pair.took),
        recovery=stall,
        figure=f"replies <= {MOST_BYTES / 1e6:g} MB; no other message waits longer than "
        f"{MOST_MEDIANS} x the median + {MOST_STALL * 1000:g} ms",
        seen=f"longest reply {longest_reply:,} bytes; {len(pair.took)} others took "
        f"{statistics.median(pair.took) * 1000:.1f} ms, at most {stall * 1000:.0f} ms of {most * 1000:.0f}; "
        f"wrong: {wrong}",
        ok=not wrong and longest_reply <= MOST_BYTES and stall <= most,
    )


async def _die(arena: Arena, bodies: int) -> None:
    """Let so many messages die, and others wait, delayed and not."""
    arena.run.tell("filling")
    store = Store(arena.redis, arena.keys)
    payload = "x" * BYTES
    for topic, death in DEATHS.items():
        for _ in range(bodies // 2):
            await arena.queue.produce(topic, payload)
            dead = (await store.claim(topic, 1, lease=60, holder="w")).deliveries
            await store.move_to_dlq(topic, [(one, b"", encode_death(death)) for one in dead])
    for delay in (0, 3600):
        for _ in range(PENDING // 2):
            await arena.queue.produce("waiting", payload, delay=delay)


async def _operate(mq: RedisMessageQueue, bodies: int) -> list[str]:
    """Everything an operator may ask of dead messages; what is not as it should be."""
    half, wrong = bodies // 2, []

    def check(what: str, seen: object, expected: object) -> None:
        if seen != expected:
            wrong.append(f"{what}: {seen}, not {expected}")

    (latest,) = (await mq.dlq.list(limit=1)).letters
    check("body", len(latest.payload), BYTES)
    searches: list[dict[str, Any]] = [{"topic": "left"}, {"error": "ValueError"}]
    for search in searches:
        letters = (await mq.dlq.list(limit=7, **search)).letters
        check(f"list {search}", [letter.topic for letter in letters], ["left"] * 7)
    groups = {(group.topic, group.error): group.count for group in await mq.dlq.groups()}
    check("groups", groups, {("left", "ValueError"): half, ("right", "crashed"): half})
    check("explain", "has been dead since" in await mq.explain(latest.id), True)
    (report,) = await mq.audit()
    check("audit", report.findings, [])
    check("dead", report.places["dead"], bodies)
    check("replay", await mq.dlq.replay(latest.id), 1)
    check("replay_all", await mq.dlq.replay_all(topic="left"), half)
    check("purge", await mq.dlq.purge(topic="right"), half - 1)
    (report,) = await mq.audit()
    check("audit", report.findings, [])
    topics = (await mq.counts()).topics  # the audit also counts messages of the others, which are under way
    live = sum(topics[name].pending + topics[name].delayed for name in ("left", "right", "waiting"))
    check("live", live, half + 1 + PENDING)
    for topic, pending in (("left", half), ("right", 1), ("waiting", PENDING)):
        check(f"purge {topic}", await mq.purge(topic), pending)
    return wrong


@dataclass
class Pair:
    """A producer and a consumer of small messages, in one process and on one queue object."""

    mq: RedisMessageQueue
    took: list[float] = field(default_factory=list)
    """Seconds from before each produce to the start of its handler."""

    async def beside(self, work: Callable[[], Awaitable[Any]]) -> Any:
        """Send one message after the other until *work* is done."""
        done: asyncio.Event = asyncio.Event()

        @self.mq.handler("quick")
        async def handle(_: int) -> None:
            done.set()

        await self.mq.start()
        worked = asyncio.ensure_future(work())
        while not worked.done():
            done.clear()
            sent_at = time.perf_counter()
            await self.mq.produce("quick", 1)
            await asyncio.wait_for(done.wait(), 30)
            self.took.append(time.perf_counter() - sent_at)
            await asyncio.sleep(0.002)
        return await worked
