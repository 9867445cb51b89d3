"""What a server may forget and forbid: its scripts, and everything that is not needed."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from tests.faults.arena import Arena
from tests.faults.programs import QUEUE
from tests.faults.run import Row, Run
from tests.faults.verdict import Verdict
from tests.harness import command

RATE = 1500.0
SYNC_RATE = 300.0
FLUSH_EVERY = 0.02
RESET_EVERY = 0.5

PAGE = Path(__file__).parents[2] / "docs" / "deployment.md"


async def scripts_flushed(run: Run) -> Row:
    """The server forgets its scripts every 20 ms; two producers, one without an event loop, two workers."""
    async with Arena.open(run) as arena:

        async def flush() -> None:
            await command(arena.redis, "SCRIPT", "FLUSH")

        flushes, verdict, errors = await _load(arena, flush, every=FLUSH_EVERY)
    return Row(
        fault=f"SCRIPT FLUSH every {FLUSH_EVERY * 1000:g} ms",
        messages=verdict.acked,
        kills=flushes,
        lost=len(verdict.lost),
        duplicates=verdict.duplicates,
        figure="0 errors seen by callers, 0 lost",
        seen=f"{verdict}; {len(errors)} errors {errors[:3]}",
        ok=verdict.ok and not errors and not verdict.duplicates,
    )


async def least_privilege(run: Run) -> Row:
    """The same load by a user with the rights that docs/deployment.md names and no others.

    Its connections are reset now and then, since finding out what a lost reply was takes rights too.
    """
    user, rules = documented_user()
    async with Arena.open(run) as arena:
        await command(arena.redis, "ACL", "SETUSER", user, *rules, ">secret")
        arena.url = arena.url.replace("redis://", f"redis://{user}:secret@")

        async def reset() -> None:
            await command(arena.redis, "CLIENT", "KILL", "USER", user)

        resets, verdict, errors = await _load(arena, reset, every=RESET_EVERY)
        refused = {_refusal(entry) for entry in await command(arena.redis, "ACL", "LOG")}
        # redis-py introduces itself, and a worker asks who it is, to be missed should it vanish; both do
        # without if they may not.
        refused -= {f"{user} client|setinfo", f"{user} client|id"}
        needless = {rule.lstrip("+") for rule in rules} & await _forbidden(arena)
    return Row(
        fault="a user with the least rights, its connections reset now and then",
        messages=verdict.acked,
        kills=resets,
        lost=len(verdict.lost),
        duplicates=verdict.duplicates,
        figure="0 errors seen by callers, 0 lost, nothing refused; no SCRIPT LOAD, nothing dangerous",
        seen=f"{verdict}; {len(errors)} errors {errors[:3]}; "
        f"refused: {sorted(refused)}, too much: {sorted(needless)}",
        ok=verdict.ok and not errors and not refused and not needless,
    )


def documented_user() -> tuple[str, list[str]]:
    """The user on the page and its rules, for the queue of these tests."""
    text = re.sub(r"\\\n\s*", "", PAGE.read_text())
    found = re.search(r"^ACL SETUSER (\w+) (.+)$", text, re.MULTILINE)
    assert found, "the page names no user"
    rules = found[2].replace("{shop}", f"{{{QUEUE}}}").split()
    return found[1], rules


async def _load(
    arena: Arena, trouble: Callable[[], Awaitable[None]], *, every: float
) -> tuple[int, Verdict, list[str]]:
    """Producers and workers for some seconds, and trouble all the while; how often, and what came of it."""
    seconds = arena.run.size(20.0, 3.0)
    for _ in range(2):
        arena.worker(concurrency=16)
    messages, sync_messages = int(RATE * seconds), int(SYNC_RATE * seconds)
    some = messages // 10
    kinds: list[tuple[dict[str, Any], int]] = [
        ({"fail": 1}, some),
        ({"dead": "why"}, some),
        ({"sleep": 0.005}, messages - 2 * some),
    ]
    producers = [
        arena.producer("m", *kinds, callers=50, rate=RATE),
        arena.sync_producer("s", {"sleep": 0.005}, sync_messages, rate=SYNC_RATE),
    ]
    started, times = time.monotonic(), 0
    while any(producer.alive for producer in producers) or await arena.open_messages():
        await trouble()
        times += 1
        arena.run.tell(f"{times} times")
        assert times * every < 10 * seconds, f"no end in sight\n{arena.log_text()[-3000:]}"
        await asyncio.sleep(started + times * every - time.monotonic())
    assert [producer.code for producer in producers] == [0, 0], arena.log_text()[-3000:]
    errors = arena.failures()
    verdict = await arena.verdict()
    if verdict.acked != messages + sync_messages:
        errors.append(f"{messages + sync_messages - verdict.acked} were never acknowledged")
    return times, verdict, errors


async def _forbidden(arena: Arena) -> set[str]:
    """Rights that nobody should need."""
    dangerous = await command(arena.redis, "ACL", "CAT", "dangerous")
    return {name.decode() for name in dangerous} | {"script", "script|load", "@all"}


def _refusal(entry: Any) -> str:
    """Who was refused what."""
    fields = entry if isinstance(entry, dict) else dict(zip(entry[::2], entry[1::2], strict=True))
    said = {_text(name): _text(value) for name, value in fields.items()}
    return f"{said['username']} {said['object']}"


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
