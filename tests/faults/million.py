"""A great many messages come and go, and nothing of them stays."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Iterator
from typing import Any

from mx_rmq import Context, RedisMessageQueue, Retry
from tests.faults.arena import TOPIC, Arena
from tests.faults.programs import QUEUE, obey
from tests.faults.run import Row, Run
from tests.harness import command

MOST_GROWTH = 2 * 1024 * 1024

CALLS = 60
HISTORY = 74 * 3600
MAY_STAY = {"topics": 0, "counters": 0, "fence": 0, r"call=\w+": CALLS, r"(history|recent)=.*": HISTORY}
"""What stays for tools, and to answer calls sent twice; and for how many seconds, 0 for good."""


async def million(run: Run) -> Row:
    """Of many messages 80 % are done, 15 % fail once and are done then, 5 % die and are purged."""
    messages = run.size(1_000_000, 50_000)
    failing, dying = messages * 15 // 100, messages * 5 // 100
    async with Arena.open(run) as arena:
        before = await _memory(arena)
        mq = RedisMessageQueue(arena.url, name=QUEUE, server_check="off", concurrency=200)

        @mq.handler(TOPIC, retry=Retry(2, base=0.1))
        async def handle(payload: dict[str, Any], ctx: Context) -> None:
            await obey(payload, ctx)

        async with mq:
            run.tell("producing")
            await mq.produce_many(TOPIC, _payloads(messages))
            most = await _memory(arena)
            mq.start()
            began = time.monotonic()
            await arena.drained(within=400)
            took = time.monotonic() - began
            await mq.stop()
            run.tell("purging")
            purged = await mq.dlq.purge()
            counts = (await mq.counts()).topics[TOPIC]
            findings = [finding for report in await mq.audit() for finding in report.findings]
        if not run.short:
            await _calls_forgotten(arena)
        stays, strays = await _keys(arena)
        growth = await _memory(arena) - before
    outcome = counts.completed, counts.retried, counts.dead, purged
    return Row(
        fault=f"{messages:,} messages: 80 % done, 15 % retried, 5 % dead and purged",
        messages=counts.produced,
        lost=counts.produced - counts.completed - counts.dead,
        figure="every key gone but topics, counters, fence, calls (60 s) and history (74 h); "
        f"server memory back to the start + {MOST_GROWTH >> 20} MB",
        seen=f"completed, retried, dead, purged {outcome} in {took:.0f} s; memory +{growth:,} bytes "
        f"(full: +{most - before:,}); stays: {', '.join(stays)}; strays: {strays}; findings: {findings[:3]}",
        ok=outcome == (messages - dying, failing, dying, dying)
        and counts.produced == messages
        and not strays
        and not findings
        and growth <= MOST_GROWTH,
    )


def _payloads(messages: int) -> Iterator[dict[str, Any]]:
    """Of every twenty three fail once and one dies."""
    for n in range(messages):
        match n % 20:
            case 0 | 7 | 13:
                yield {"fail": 1}
            case 10:
                yield {"dead": "why"}
            case _:
                yield {"n": n}


async def _memory(arena: Arena) -> int:
    await command(arena.redis, "MEMORY", "PURGE")
    info = await arena.redis.info("memory")
    return int(info["used_memory"])


async def _calls_forgotten(arena: Arena) -> None:
    """Wait until the server has forgotten the calls of the producer, one per chunk."""
    async with asyncio.timeout(CALLS + 15):
        while left := [key async for key in arena.redis.scan_iter(arena.keys.of_call("*"))]:
            arena.run.tell(f"{len(left):,} calls are remembered")
            await asyncio.sleep(0.5)


async def _keys(arena: Arena) -> tuple[list[str], list[str]]:
    """What is left on the server: kinds that may stay, and strays."""
    stays: dict[str, int] = {}
    strays = []
    async for raw in arena.redis.scan_iter("*"):
        part = raw.decode().removeprefix(arena.keys.prefix)
        kind = next((kind for kind in MAY_STAY if re.fullmatch(kind, part)), None)
        left = await arena.redis.ttl(raw)
        if kind is None or not (left == -1 if MAY_STAY[kind] == 0 else 0 <= left <= MAY_STAY[kind]):
            strays.append(f"{part} (ttl {left})")
        else:
            stays[kind] = stays.get(kind, 0) + 1
    return [f"{count} {kind}" for kind, count in sorted(stays.items())], strays
