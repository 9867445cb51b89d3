"""The workers, as a page."""

from __future__ import annotations

import asyncio
import os
import re
from typing import TYPE_CHECKING

from mx_rmq.version import __version__
from tests.harness import command
from tests.web.test_overview import text_of
from tests.words import ONE_SERVER, PREFIX, eventually, store_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from redis.asyncio import Redis

    from mx_rmq import RedisMessageQueue
    from tests.web.conftest import Browser
    from tests.words import MakeQueue

pytestmark = ONE_SERVER


def rows_of(page: str) -> list[list[str]]:
    rows = re.findall(r'<tr id="worker-.*?</tr>', page, re.DOTALL)
    return [[text_of(cell) for cell in re.findall(r"<t[hd].*?</t[hd]>", row, re.DOTALL)] for row in rows]


async def test_a_live_worker_has_a_row_with_what_it_has(
    make_queue: MakeQueue, browse: Callable[..., Browser]
) -> None:
    worker = make_queue(concurrency=7)
    go_on, begun = asyncio.Event(), asyncio.Event()

    @worker.handler("orders")
    async def handle(_: int) -> None:
        begun.set()
        await go_on.wait()

    await worker.start()
    await worker.produce("orders", 1)
    await begun.wait()
    browser = browse()

    async def seen() -> bool:
        return any(row[4] == "1" for row in rows_of((await browser.get("/workers")).text))

    await eventually(seen)
    page = (await browser.get("/workers")).text
    (row,) = rows_of(page)
    assert row[2:7] == [str(os.getpid()), __version__, "1", "0", "7"]
    assert row[-1].startswith("orders")
    assert "1 live worker: 1 running" in text_of(page)
    assert 'href="topic?name=orders"' in page
    live = await browser.app.desk.live["workers"](browser.app.desk, "")
    assert live.order["workers"] == list(live.html)[:-1]
    go_on.set()


async def test_problems_come_first_and_are_only_text(
    mq: RedisMessageQueue, redis: Redis, browse: Callable[..., Browser]
) -> None:
    now = await command(redis, "TIME")
    said = {
        "w1": '{"topics":["t"],"version":"2","loop_lag":0.01}',
        "w2": '{"topics":["t"],"version":"2","loop_lag":3.5,"problems":["<script>alert(1)</script>"]}',
        "w3": '{"topics":["t"]}',
    }
    for name, facts in said.items():
        await command(redis, "HSET", f"{PREFIX}workers", name, facts)
        seen = int(now[0]) - 20 * (name == "w3")
        await command(redis, "ZADD", f"{PREFIX}workers_seen", seen * 1000, name)
    page = (await browse().get("/workers")).text
    assert [row[0].split()[0] for row in rows_of(page)] == ["w2", "w3", "w1"]
    assert "its event loop was blocked for 3.5 s" in page
    assert "<script>alert" not in page
    assert "alert(1)" in page


async def test_topics_without_a_worker_are_named(
    mq: RedisMessageQueue, browse: Callable[..., Browser]
) -> None:
    await mq.produce("orders", 1)
    page = text_of((await browse().get("/workers")).text)
    assert "No live worker." in page
    assert "no live worker has a handler, in: orders" in page


async def test_vanished_workers_are_listed_with_what_became_of_their_messages(
    mq: RedisMessageQueue, redis: Redis, browse: Callable[..., Browser]
) -> None:
    assert "No worker vanished." in (await browse().get("/workers")).text
    await mq.produce("t", 1, message_id="waits")
    note = b'{"messages":7,"ids":["waits","ended","<script>"],"seen_by":"w2"}'
    await store_of(redis).note_vanished("w1", note)
    for n in range(30):
        await store_of(redis).note_vanished(f"x{n}", b"{}")
    await command(redis, "HSET", f"{PREFIX}vanished", "bad", "nonsense", "w1", b"99999999999999 " + note)
    page = (await browse().get("/workers")).text
    said = text_of(page)
    assert "waits pending, ended completed or deleted since and 5 more" in said
    assert "11 more before these." in said
    assert "<script>" not in page.partition("<main")[2]
