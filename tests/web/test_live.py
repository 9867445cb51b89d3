"""Live figures: one poller for all tabs, honest when late."""

from __future__ import annotations

import asyncio
import json
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from mx_rmq.web.app import Dashboard
from mx_rmq.web.poller import MOST_FOLLOWED, MOST_PARTS, Poller
from tests.harness import command
from tests.web.conftest import Browser
from tests.words import ONE_SERVER, eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from redis.asyncio import Redis

    from mx_rmq import RedisMessageQueue

pytestmark = ONE_SERVER


async def heard(events: AsyncIterator[str]) -> tuple[str, dict[str, Any]]:
    """The next event: its id and its data."""
    async for event in events:
        if event.startswith("id: "):
            first, second, *_ = event.splitlines()
            return first.removeprefix("id: "), json.loads(second.removeprefix("data: "))
    raise AssertionError("the stream has ended")


def poller_of(mq: RedisMessageQueue) -> Poller:
    return Poller(Dashboard(mq).desk, every=0.05)


async def test_a_tab_hears_all_first_and_then_what_changes(mq: RedisMessageQueue) -> None:
    await mq.produce("orders", 1)
    await mq.produce("mails", 1)
    poller = poller_of(mq)
    async with aclosing(poller.listen(("topics",))) as events:
        _, all_ = await heard(events)
        assert {"topic-orders", "topic-mails", "totals"} <= all_["html"].keys()
        assert all_["order"] == {"topics": ["topic-mails", "topic-orders"]}
        await mq.produce_many("orders", range(1000))
        html: dict[str, str] = {}
        while "topic-orders" not in html or "1,001" not in html["topic-orders"]:
            html = (await heard(events))[1]["html"]
        assert "topic-mails" not in html or "<td>1</td>" in html["topic-mails"]


async def test_a_tab_that_asks_again_hears_only_what_it_missed(mq: RedisMessageQueue) -> None:
    await mq.produce("orders", 1)
    await mq.pause("orders")
    poller = poller_of(mq)
    async with (
        aclosing(poller.listen(("charts:1h",))) as events,
        aclosing(poller.listen(("charts:1h",))) as more,
    ):
        last, first = await heard(events)
        assert first["html"]
        assert (await heard(more))[1]["html"]
        async with aclosing(poller.listen(("charts:1h",), last)) as again:
            assert (await heard(again))[1]["html"] == {}
        async with aclosing(poller.listen(("charts:1h",), "another-7")) as other:
            assert (await heard(other))[1]["html"]


async def test_fifty_tabs_are_one_poller(mq: RedisMessageQueue, redis: Redis) -> None:
    await mq.produce("orders", 1)
    poller = poller_of(mq)
    before = await calls_of(redis)
    streams = [poller.listen(("topics", "attention")) for _ in range(50)]
    try:
        for stream in streams:
            await heard(stream)
        turns = poller.turns
        assert turns >= 1
    finally:
        for stream in streams:
            await stream.aclose()
    looked = (await calls_of(redis)) - before
    # Figures are kept for a second, so fifty tabs that come at once have cost one look or two.
    assert looked <= 2
    await eventually(lambda: not poller.is_polling)


async def calls_of(redis: Redis) -> int:
    """How often a script was called: reading the counts is the only one here."""
    stats = await command(redis, "INFO", "commandstats")
    return int(stats.get("cmdstat_evalsha", {"calls": 0})["calls"])


async def test_without_a_listener_nothing_is_read(mq: RedisMessageQueue) -> None:
    poller = poller_of(mq)
    async with aclosing(poller.listen(("topics",))) as events:
        await heard(events)
        assert poller.is_polling
    await eventually(lambda: not poller.is_polling)
    turns = poller.turns
    await asyncio.sleep(0.2)
    assert poller.turns == turns


async def test_a_server_that_is_away_is_said_and_figures_go_on_when_it_is_back(
    mq: RedisMessageQueue, redis: Redis
) -> None:
    await mq.produce("orders", 1)
    poller = poller_of(mq)
    async with aclosing(poller.listen(("topics",))) as events:
        await heard(events)
        await command(redis, "RENAME", "mx-rmq:{q}:topics", "saved")
        await command(redis, "SET", "mx-rmq:{q}:topics", "wrong")
        said: dict[str, Any] = {}
        while "error" not in said:
            said = (await heard(events))[1]
        assert said["html"] == {}
        await command(redis, "RENAME", "saved", "mx-rmq:{q}:topics")
        while "error" in said:
            said = (await heard(events))[1]


async def test_unknown_parts_are_not_followed(mq: RedisMessageQueue) -> None:
    poller = poller_of(mq)
    assert poller.known("topics,nothing,job:7,topics") == ("topics", "job:7")
    assert len(poller.known(",".join(f"job:{n}" for n in range(100)))) == 8


async def test_a_part_that_cannot_be_drawn_is_no_trouble_of_other_tabs(mq: RedisMessageQueue) -> None:
    """One person with a wrong address must not make everyone's figures look late."""
    await mq.produce("orders", 1)
    poller = poller_of(mq)
    async with (
        aclosing(poller.listen(("topic:no such topic",))) as wrong,
        aclosing(poller.listen(("topics",))) as right,
    ):
        assert "topic must be" in (await heard(wrong))[1]["error"]
        for _ in range(3):
            assert "error" not in (await heard(right))[1]


async def test_what_tabs_follow_is_bounded(mq: RedisMessageQueue) -> None:
    dashboard = Dashboard(mq)
    poller = dashboard.poller
    browser = Browser(dashboard)
    streams = []
    try:
        for n in range(0, MOST_FOLLOWED, MOST_PARTS):
            streams.append(poller.listen(tuple(f"message:m{n + k}" for k in range(MOST_PARTS))))
            await anext(streams[-1])
        assert poller.has_room(("message:m1",))
        answer = await browser.get("/live?parts=message:other")
        assert answer.status_code == 503
        assert "too many tabs" in answer.text
    finally:
        for stream in streams:
            await stream.aclose()
        dashboard.close()
    assert poller.has_room(("message:other",))
