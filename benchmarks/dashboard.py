"""What the dashboard takes: the time of every page of a large queue, and what open tabs cost the queue."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Iterator
from statistics import median
from typing import Any
from urllib.parse import urlencode

from benchmarks.bench import Bench, fill, fresh, in_turns, message, ratio, steady_cores
from benchmarks.browsing import Browser, dashboards, open_tabs
from benchmarks.crowd import DAY, RARE, Crowd, crowd
from benchmarks.idle import measured
from benchmarks.rows import Row
from mx_rmq import RedisMessageQueue

REACH = 300
"""Milliseconds in which a page must answer."""
LOOKS = 5
"""How often each page is loaded, in turns with the others."""
MANY_TOPICS = 100
TABS = 50
LASTS = 12.0
"""Seconds for which the cost of open tabs is measured."""
TURNS = 3
DASHBOARDS = 5
BACKLOG = 200_000
"""Messages of one drain."""


async def dashboard(scale: float, rounds: int) -> Iterator[Row]:
    rows: list[Row] = []
    async with fresh() as bench:
        async with crowd(bench, scale) as whole, dashboards(bench.url) as (browser,):
            rows += await answers(
                browser, await addresses(bench, browser, whole), LOOKS if scale > 0.1 else 1
            )
        rows += await drains(bench, scale, rounds)
    async with fresh() as bench:
        rows += await tabs(bench, scale)
    return iter(rows)


# -- pages


async def addresses(bench: Bench, browser: Browser, whole: Crowd) -> dict[str, str]:
    """Every page by a name: its first part, a next one, and one in the middle."""
    found = {
        "overview": "",
        "overview of 72 hours": link("", range="72h"),
        "dead letters": "dlq",
        "dead letters by error": link("dlq", error="ValueError"),
        "dead letters with a text that none has": link("dlq", show="messages", text="no such text"),
        "dead letters with a text that all have": link("dlq", show="messages", text="order_id"),
        "dead letters of an error that none has": link("dlq", show="messages", error="NoSuchError"),
        "dead letters of a rare topic": link("dlq", show="messages", topic=RARE),
        "confirm a replay of all that match": link("dlq/replay", show="messages", text="A-100"),
        "scheduled": "scheduled",
        "scheduled in 7 days": link("scheduled", range="7d"),
        "workers": "workers",
        "server": "server",
        "search by topic": link("search", q="orders"),
        "search by error": link("search", q="ValueError"),
        "search for what is not there": link("search", q="no such thing"),
        "search by id": link("search", q=whole.ids["pending"]),
        "jobs": "job",
    }
    async with RedisMessageQueue(bench.url, name="bench", server_check="off") as mq:
        groups = await mq.dlq.groups()
        largest, smallest = (choose(groups, key=lambda group: group.count) for choose in (max, min))
        letters = await mq.dlq.list(limit=1)
    found["the largest group"] = link("dlq", group=largest.id)
    found["the largest group, oldest first"] = link("dlq", group=largest.id, order="oldest")
    found["the smallest group"] = link("dlq", group=smallest.id)
    for state, id_ in whole.ids.items():
        found[f"a {state} message"] = link("message", id=id_)
    for state in ("pending", "running", "held", "delayed", "dead"):
        of = "slow" if state in ("running", "held") else "orders"
        for order in ("", "reverse"):
            name = f"topic, {state}{', reverse order' if order else ''}"
            found[name] = link("topic", name=of, state=state, order=order)
    for state in ("delayed", "dead"):
        found[f"topic, few {state} behind all others"] = link("topic", name=RARE, state=state)
    for name, path in list(found.items()):
        if following := (await browser.get(path)).following:
            found[f"{name}, next page"] = following
    # Cursors of pages in the middle, as a person has them who went on for long.
    half, due = whole.half, (whole.loaded_at + 3600 + DAY / 2) * 1000
    far = {
        "pending": f"pending,0,normal,{half},{whole.middle}",
        "delayed": f"delayed,0,{due:.0f},0",
        "dead": f"dead,0,{whole.letter}",
    }
    for state, after in far.items():
        found[f"topic, {state}, far"] = link("topic", name="orders", state=state, after=after)
    found["topic, pending, reverse order, far"] = link(
        "topic", name="orders", state="pending", order="reverse", after=f"-{far['pending']}"
    )
    found["dead letters, far"] = link("dlq", group=largest.id, after=whole.letter)
    again = f"{whole.letter.rpartition(',')[0]},{letters.letters[0].id}"
    found["dead letters, far, after one that died again"] = link("dlq", group=largest.id, after=again)
    found["scheduled, far"] = link("scheduled", after=f"due,{due:.0f},0")
    return found


def link(path: str, **query: str) -> str:
    asked = urlencode({name: value for name, value in query.items() if value})
    return f"{path}?{asked}" if asked else path


async def answers(browser: Browser, found: dict[str, str], looks: int) -> list[Row]:
    took: dict[str, list[float]] = {name: [] for name in (*found, "live figures", "search payloads")}
    for _ in range(looks):
        for name, path in found.items():
            took[name].append((await browser.get(path)).took)
        took["live figures"].append(await browser.first_figures())
        began = await browser.post("search/payloads", q="no such text anywhere")
        took["search payloads"].append(began.took + (await browser.get(began.place)).took)
        await stop_jobs(browser)
    slowest = max(max(each) for each in took.values())
    return [
        *(Row(f"page: {name}", median(each) * 1e3, "ms", f"<= {REACH}") for name, each in took.items()),
        Row("the slowest answer of all", slowest * 1e3, "ms"),
    ]


async def stop_jobs(browser: Browser) -> None:
    """End the searches, which go on behind their pages: the other pages are measured without them."""
    for id_ in set(re.findall(r"job\?id=(\w+)", (await browser.get("job")).text)):
        await browser.post("job/stop", id=id_)


# -- what open tabs cost


async def tabs(bench: Bench, scale: float) -> list[Row]:
    for n in range(MANY_TOPICS):
        await bench.store.produce(f"topic-{n}", [message() for _ in range(10)])
    lasts = max(1.0, LASTS * scale)

    async def watched(browser: Browser, count: int) -> list[float]:
        async with open_tabs([browser], count):
            return await measured(bench, lasts)

    async with dashboards(bench.url) as (browser,):
        await asyncio.sleep(min(3.0, lasts))  # until the looks of the first page have ended
        idle, *_ = await measured(bench, lasts)
        # In turns and the middle of some: what is read once in a minute falls into one of them.
        turns = [
            (await watched(browser, 1), await watched(browser, TABS))
            for _ in range(TURNS if scale > 0.1 else 1)
        ]
    (one, one_commands), (many, many_commands) = (
        [median(each[n] for each in some) for n in (0, 1)] for some in zip(*turns, strict=True)
    )
    return [
        Row(f"open overview of {MANY_TOPICS} topics: core", 100 * (one - idle), "%", "<= 0.5"),
        Row(f"{TABS} open overviews: core", 100 * (many - idle), "%", "<= 0.5"),
        Row("commands for one open overview", one_commands, "/s"),
        Row(f"commands for {TABS} / commands for one", many_commands / one_commands, "x", "<= 1.1"),
    ]


# -- what open tabs cost the drain


async def drains(bench: Bench, scale: float, rounds: int) -> list[Row]:
    """From beside the large backlog, by turns with and without open overviews."""
    count = round(BACKLOG * scale)
    async with dashboards(bench.url, DASHBOARDS) as browsers:

        async def watched(some: list[Browser], each: int) -> float:
            async with open_tabs(some, each):
                return await drain(bench, count)

        with steady_cores():
            plain, tabbed, apart = await in_turns(
                rounds,
                lambda: drain(bench, count),
                lambda: watched(browsers[:1], DASHBOARDS),
                lambda: watched(browsers, 1),
            )
    return [
        Row("drain beside them", median(plain), "msg/s"),
        Row(f"drain with {DASHBOARDS} open tabs / without", ratio(tabbed, plain), "x", ">= 0.95"),
        Row(
            f"drain with {DASHBOARDS} dashboards, each its own process / without",
            ratio(apart, plain),
            "x",
            ">= 0.95",
        ),
    ]


async def drain(bench: Bench, count: int) -> float:
    """Messages a second."""
    await fill(bench.store, count, "drained")
    mq = RedisMessageQueue(bench.url, name="bench", server_check="off", concurrency=64)
    left, finished = count, asyncio.Event()

    @mq.handler("drained")
    async def on_message(payload: dict[str, Any]) -> None:
        nonlocal left
        left -= 1
        if left <= 0:
            finished.set()

    async with mq:
        began = time.perf_counter()
        await mq.start()
        await finished.wait()
        await mq.stop()
        return count / (time.perf_counter() - began)
