"""Two hundred hostile texts, as payload, header, error and worker: nothing runs, and no page breaks."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import msgspec
import pytest_asyncio

from mx_rmq import RedisMessageQueue, WebUser
from mx_rmq.message import Death, Message, PastAttempt, decode_message, encode_death, encode_message
from mx_rmq.storage.contract import NewMessage
from mx_rmq.storage.embedded import EmbeddedServer
from tests.web.browser.hostile import HOSTILE, NAMES, as_json, on_a_line
from tests.web.browser.serving import serving
from tests.web.browser.tab import IN_BROWSER, Tab

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from playwright.async_api import Browser

    from mx_rmq.storage.contract import Delivery

pytestmark = IN_BROWSER

_LOOK = """() => ({
    hit: window.__hit,
    violations: window.__violations,
    width: document.documentElement.scrollWidth - window.innerWidth,
    ends: document.body.lastElementChild.tagName,
    mains: document.querySelectorAll("body > main").length,
    titles: document.querySelectorAll("h1").length,
    strangers: document.querySelectorAll(
        "script:not([src]), iframe, object, embed, style, img, [onerror], [onload], [onfocus]").length,
    payload: document.getElementById("payload")?.textContent,
    headers: [...document.querySelectorAll(".facts.box dt, .facts.box dd")].map((each) => each.textContent),
    error: document.querySelector("#life .error bdi")?.textContent,
    rows: document.querySelectorAll("tbody tr").length,
})"""


def payload_of(n: int) -> dict[str, Any]:
    return {HOSTILE[n]: HOSTILE[n], "in": [{"deep": HOSTILE[-n - 1]}]}


async def die(queue: RedisMessageQueue, topic: str, errors: Sequence[str]) -> None:
    """Let everything that is pending in a topic fail, each with an error of its own."""
    store = queue._lifecycle.shards[0].operating
    deliveries = (await store.claim(topic, 1000, lease=15.0, holder="w1")).deliveries
    await store.move_to_dlq(
        topic, [_dead(each, error) for each, error in zip(deliveries, errors, strict=True)]
    )


def _dead(delivery: Delivery, error: str) -> tuple[Delivery, bytes, bytes]:
    found = decode_message(delivery.body, delivery.id, delivery.topic)
    found.attempts = 1
    found.remember(PastAttempt(at=1.0, worker=error[:100], error=error[:500], trace=f"{error[:200]}:1 in x"))
    death = Death(reason="failed", error=error[:500], kind=error[:100], place=error[:100])
    return delivery, encode_message(found), encode_death(death)


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def queue() -> AsyncIterator[RedisMessageQueue]:
    """A queue full of them, all dead, and some topics that are allowed but look like addresses."""
    with EmbeddedServer.open() as server:
        async with RedisMessageQueue(server.url, name="q", server_check="off") as queue:
            for n, text in enumerate(HOSTILE):
                headers = {text[:200]: text}
                await queue.produce("orders", payload_of(n), message_id=f"m{n}", headers=headers)
            await die(queue, "orders", HOSTILE)
            for name in NAMES:
                await queue.produce(name, name)
            yield queue


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def url(queue: RedisMessageQueue) -> AsyncIterator[str]:
    app = queue.dashboard(auth=lambda _: WebUser('<img src=x onerror="window.__hit=1">'))
    async with serving(app) as url:
        yield url
    app.close()


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def tabs(browser: Browser, url: str) -> AsyncIterator[list[Tab]]:
    opened = [await Tab.open(browser, url, viewport={"width": 390, "height": 700}) for _ in range(2)]
    yield opened
    for tab in opened:
        await tab.page.context.close()


async def look(tab: Tab, path: str, status: int = 200) -> dict[str, Any]:
    """Open a page; it is whole, nothing ran, and it is not wider than the window."""
    await tab.go(path, status=status)
    seen: dict[str, Any] = await tab.page.evaluate(_LOOK)
    assert tab.wrong == [], path
    assert (seen["hit"], seen["violations"], seen["strangers"]) == (None, [], 0), path
    assert (seen["ends"], seen["mains"], seen["titles"]) == ("FOOTER", 1, 1), path
    assert seen["width"] <= 0, path
    return seen


async def test_two_hundred_hostile_messages_run_nothing_and_are_shown_as_they_are(tabs: list[Tab]) -> None:
    async def go_through(tab: Tab, numbers: Sequence[int]) -> None:
        for n in numbers:
            seen = await look(tab, f"message?id=m{n}")
            text = HOSTILE[n]
            assert seen["payload"] == as_json(payload_of(n))[:20_000]
            assert seen["headers"] == [on_a_line(text[:200], 100), on_a_line(text, 1000)]
            assert seen["error"] == on_a_line(text[:500], 600)

    await asyncio.gather(*(go_through(tab, range(n, 200, 2)) for n, tab in enumerate(tabs)))


async def test_they_break_no_editor(tabs: list[Tab]) -> None:
    async def go_through(tab: Tab, numbers: Sequence[int]) -> None:
        for n in numbers:
            await look(tab, f"message/edit?id=m{n}")
            assert await tab.find("textarea").input_value() == as_json(payload_of(n))

    await asyncio.gather(*(go_through(tab, range(n, 200, 14)) for n, tab in enumerate(tabs)))


async def test_they_break_no_list(tabs: list[Tab]) -> None:
    tab = tabs[0]
    for start in ("dlq?show=messages", "topic?name=orders&state=dead"):
        rows, path = 0, start
        while path:
            rows += (await look(tab, path))["rows"]
            following = tab.find("a", has_text="Next page")
            path = (await following.get_attribute("href") or "") if await following.count() else ""
        assert rows == 200, start
    assert (await look(tab, "dlq"))["rows"] >= 100
    await look(tab, "")
    await look(tab, "workers")


async def test_they_are_harmless_in_addresses(tabs: list[Tab]) -> None:
    tab = tabs[1]
    for text in HOSTILE[::23]:
        word = quote(text[:150])
        await look(tab, f"search?q={word}")
        await look(tab, f"dlq?show=messages&text={word}")
        await look(tab, f"dlq/replay?show=messages&text={word}&note={word}&group={word}")
    for path in ("message?id=", "topic?name=", "job?id=", "message/edit?id="):
        tab.wrong.clear()
        await tab.page.goto(tab.root + path + quote(HOSTILE[1]))
        assert await tab.page.evaluate("[window.__hit, window.__violations]") == [None, []]
        assert [each for each in tab.wrong if "status of 40" not in each] == []
    tab.wrong.clear()
    for name in NAMES:
        await look(tab, "")
        await tab.page.get_by_role("link", name=name, exact=True).first.click()
        assert await tab.text("h1") == name
        assert tab.wrong == []


async def test_they_are_harmless_when_they_come_live(tabs: list[Tab], queue: RedisMessageQueue) -> None:
    tab, (some, more) = tabs[0], (HOSTILE[16], HOSTILE[17])
    await queue.produce_many("live", [{some: some}, {more: more}])
    await tab.go("dlq?topic=live")
    await tab.find("#live-status.live").wait_for()
    await die(queue, "live", [some, more])
    await tab.find("#dead-total", has_text="2 dead letters").wait_for()
    await tab.find("#none", has_text="Show them").wait_for()
    seen = await tab.page.evaluate(_LOOK)
    assert (seen["hit"], seen["violations"], seen["strangers"]) == (None, [], 0)
    assert tab.wrong == []


async def test_a_line_of_a_mebibyte_and_bytes_that_are_no_text_break_no_page(
    tabs: list[Tab], queue: RedisMessageQueue
) -> None:
    tab = tabs[0]
    large = "<b>" * 330_000
    await queue.produce("large", large, message_id="large")
    raw = msgspec.Raw(b'{"pair": "\\ud83d\\ude00", "nul": "\\u0000", "slash": "<\\/script>"}')
    await queue.produce("large", raw, message_id="raw")
    await die(queue, "large", [large, "\\ud800"])
    assert (await look(tab, "message?id=large"))["payload"] == as_json(large)[:20_000]
    assert (await look(tab, "message?id=large&all=1"))["payload"] == as_json(large)
    seen = await look(tab, "message?id=raw")
    assert seen["payload"] == (
        '{\n  "pair": "\\ud83d\\ude00",\n  "nul": "\\u0000",\n  "slash": "<\\/script>"\n}'
    )
    await look(tab, "dlq?topic=large&show=messages")
    await look(tab, "message/edit?id=raw")
    await look(tab, "message/edit?id=large")

    lone = encode_message(Message(payload=msgspec.Raw(b'"\\ud800 <script>"'), created_at=1.0))
    bodies = {"lone": lone, "cut": b"\xf0\x9f<img src=x onerror=alert(1)>", "nul": b"\x00" * 300}
    store = queue._lifecycle.shards[0].operating
    await store.produce("bytes", [NewMessage(id_, body) for id_, body in bodies.items()])
    for id_, body in bodies.items():
        await look(tab, f"message?id={id_}")
        assert body[:16].hex(" ") in await tab.find("pre").inner_text()
    await look(tab, "topic?name=bytes")
