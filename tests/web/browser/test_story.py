"""The whole story in a browser: found, understood, mended, and seen to succeed, live."""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest

from mx_rmq import Retry
from tests.web.browser.serving import serving
from tests.web.browser.tab import IN_BROWSER
from tests.words import dead, eventually, in_state

if TYPE_CHECKING:
    from collections.abc import Callable

    from redis.asyncio import Redis

    from mx_rmq import RedisMessageQueue
    from tests.web.browser.tab import OpenTab, ServeQueue, Tab

pytestmark = IN_BROWSER


class Shop:
    """A worker that fails for prices without cents, and waits in the middle of those with some."""

    def __init__(self, mq: RedisMessageQueue) -> None:
        self.mq = mq
        self.go_on = asyncio.Event()
        self.set: list[Any] = []

        @mq.handler("prices", retry=Retry(2, backoff="fixed", base=0.01))
        async def set_price(price: dict[str, Any]) -> None:
            cents = price["cents"]
            await self.go_on.wait()
            self.set.append(cents)

    async def open(self, number: int = 3) -> None:
        for n in range(1, number + 1):
            payload = {"sku": f"A{n}", "cent": 990 + n, "ean": 9007199254740993}
            await self.mq.produce("prices", payload, message_id=f"price-{n}")
        await self.mq.start()
        for n in range(1, number + 1):
            await dead(self.mq, f"price-{n}")


@pytest.fixture
def shop(mq: RedisMessageQueue) -> Shop:
    return Shop(mq)


async def not_reloaded(tab: Tab) -> Callable[[], Any]:
    """Mark the page; what is returned asks whether it is still the same."""
    await tab.page.evaluate("window.__same = true")
    return lambda: tab.page.evaluate("window.__same === true")


async def test_a_message_is_found_edited_replayed_and_seen_to_succeed(
    shop: Shop, serve: ServeQueue, open_tab: OpenTab
) -> None:
    await shop.open()
    tab = await open_tab(await serve(shop.mq))

    await tab.sees("3 dead letters of KeyError: 'cents'", "#attention")
    await tab.press("open the group (prices)", "link")
    await tab.sees("KeyError", "h1")
    await tab.press("price-2", "link")
    assert "failed: KeyError: 'cents'" in await tab.text("#now")
    assert '"ean": 9007199254740993' in await tab.find("#payload").inner_text()
    assert "attempt 2 failed" in await tab.text("#life")

    await tab.press("Edit and replay…", "link")
    editor = tab.find("#payload")
    before = await editor.input_value()
    await editor.fill(before.replace('"cent"', "cents"))
    await tab.sees("Not JSON", "#valid")
    await tab.press("Check, and show what changes")
    assert await editor.evaluate("editor => editor.validity.customError")  # the browser holds it back
    assert tab.page.url.endswith("message/edit?id=price-2")
    await editor.fill(before.replace('"cent"', '"cents"'))
    await tab.sees("This is JSON.", "#valid")
    await tab.press("Check, and show what changes")
    assert await tab.text(".diff .removed code") == '"cent": 992,'
    assert await tab.text(".diff .added code") == '"cents": 992,'

    await tab.press("Replay with this payload")
    await tab.sees("replayed with the new payload; this page follows it", ".note")
    is_same = await not_reloaded(tab)
    await tab.find("#now[data-state=running]").wait_for()
    shop.go_on.set()
    await tab.find("#now[data-state=ended]").wait_for()
    assert await tab.find("#life li.good").count() == 1
    assert await is_same()
    assert shop.set == [992]
    assert await tab.find("button:visible", has_text="Replay").count() == 0  # nothing is left to do

    await tab.press("Dead letters", "link")
    await tab.sees("2 dead letters in 1 group")


async def test_a_group_is_replayed_and_its_job_is_watched(
    shop: Shop, serve: ServeQueue, open_tab: OpenTab
) -> None:
    await shop.open(12)
    tab = await open_tab(await serve(shop.mq), "dlq")
    await tab.find("tbody input[type=checkbox]").check()
    await tab.press("Replay 1…")
    await tab.sees("Replay 12 dead letters of prices: KeyError", "h1")
    await tab.find("#canary").fill("2")
    await tab.press("Replay 12")
    await tab.sees("2 of 2 canaries died again")
    address = tab.page.url
    await tab.page.reload()
    assert tab.page.url == address
    await tab.sees("2 of 2 canaries died again")
    await tab.go("dlq?show=messages")
    assert await tab.find("small", has_text="died again ×1").count() == 2


async def test_figures_come_live_and_disturb_nobody(
    shop: Shop, serve: ServeQueue, open_tab: OpenTab, redis: Redis
) -> None:
    mq = shop.mq
    await shop.open(1)
    await mq.produce_many("orders", range(3))
    url = await serve(mq)
    tab = await open_tab(url)
    is_same = await not_reloaded(tab)
    await tab.find("#live-status.live").wait_for()
    await mq.produce_many("orders", range(4))
    await tab.find("#topic-orders td", has_text="7").first.wait_for()
    await mq.produce("a-new-one", 1)
    await tab.find("tr#topic-a-new-one").wait_for()
    assert await is_same()

    await tab.go("dlq")
    await tab.find("tbody input[type=checkbox]").check()
    await tab.find("#text").fill("half of a wo")
    await mq.produce("prices", {"sku": "new"}, message_id="another")
    await tab.find("#groups b", has_text="2").wait_for()
    assert await tab.find("tbody input[type=checkbox]").is_checked()
    assert await tab.find("#text").input_value() == "half of a wo"


async def test_figures_that_are_late_say_so_and_come_back_by_themselves(
    mq: RedisMessageQueue, open_tab: OpenTab
) -> None:
    await mq.produce("orders", 1)
    app: Any = mq.dashboard()
    async with serving(app) as url:
        tab = await open_tab(url)
        is_same = await not_reloaded(tab)
        await tab.find("#live-status.live").wait_for()
    await tab.find("#live-status.stale", has_text=re.compile(r"^last figures \d+ s ago$")).wait_for()
    await mq.produce("orders", 2)
    async with serving(app, port=urlsplit(url).port or 0):
        await tab.find("#live-status.live").wait_for()
        await tab.find("#topic-orders td", has_text="2").first.wait_for()
        assert await is_same()
        await tab.page.goto("about:blank")
    app.close()
    refused = ("ERR_CONNECTION_REFUSED", "ERR_INCOMPLETE_CHUNKED_ENCODING", "ERR_CONNECTION_RESET")
    tab.wrong = [each for each in tab.wrong if not any(word in each for word in refused)]


async def test_a_hidden_tab_costs_nothing(mq: RedisMessageQueue, open_tab: OpenTab) -> None:
    await mq.produce("orders", 1)
    app: Any = mq.dashboard()
    async with serving(app) as url:
        tab = await open_tab(url)
        await tab.find("#live-status.live").wait_for()
        await tab.page.evaluate(
            """() => {
                Object.defineProperty(document, "hidden", {configurable: true, get: () => true});
                document.dispatchEvent(new Event("visibilitychange"));
            }"""
        )
        await eventually(lambda: not app.poller.is_polling)
        await mq.produce("orders", 2)
        await tab.page.evaluate(
            "delete document.hidden, document.dispatchEvent(new Event('visibilitychange'))"
        )
        await tab.find("#topic-orders td", has_text="2").first.wait_for()
        await tab.page.goto("about:blank")
    app.close()


async def test_an_id_and_a_payload_are_copied(
    mq: RedisMessageQueue, serve: ServeQueue, open_tab: OpenTab
) -> None:
    await mq.produce("orders", {"big": 9007199254740993}, message_id="A1")
    tab = await open_tab(await serve(mq), "message?id=A1", permissions=["clipboard-read", "clipboard-write"])
    for button, text in ((0, "A1"), (1, '{\n  "big": 9007199254740993\n}')):
        await tab.page.get_by_role("button", name="Copy").nth(button).click()
        await tab.page.get_by_role("button", name="Copied").wait_for()
        assert await tab.page.evaluate("navigator.clipboard.readText()") == text
        await tab.page.get_by_role("button", name="Copied").wait_for(state="detached")


async def test_the_keyboard_is_enough(shop: Shop, serve: ServeQueue, open_tab: OpenTab) -> None:
    shop.go_on.set()
    await shop.open()
    tab = await open_tab(await serve(shop.mq))
    keys = tab.page.keyboard

    async def focused() -> str:
        text: str = await tab.page.evaluate(
            "(document.activeElement.textContent || document.activeElement.id).trim()"
        )
        return text

    async def tab_to(name: str) -> None:
        for _ in range(60):
            await keys.press("Tab")
            if await focused() == name:
                return
        raise AssertionError(f"{name!r} was not reached")

    await keys.press("Tab")
    assert await focused() == "Skip to the content"
    await keys.press("Enter")
    await eventually(lambda: tab.page.evaluate("document.activeElement.id === 'main'"))
    await keys.press("/")
    assert await tab.page.evaluate("document.activeElement.id") == "search"
    await keys.type("price-1")
    await keys.press("Enter")
    await tab.find("#now[data-state=dead]").wait_for()
    await tab_to("Edit and replay…")
    await keys.press("Enter")
    await tab.page.wait_for_url("**/message/edit?id=price-1")
    await tab_to_editor(tab)
    await keys.press("Control+a")
    await keys.type('{"cents": 5}')
    await keys.press("Tab")
    await keys.press("Enter")
    await tab.sees("What changes")
    await tab_to("Replay with this payload")
    await keys.press("Enter")
    await tab.find("#now[data-state=ended]").wait_for()
    assert shop.set == [5]


async def tab_to_editor(tab: Tab) -> None:
    for _ in range(30):
        await tab.page.keyboard.press("Tab")
        if await tab.page.evaluate("document.activeElement.tagName") == "TEXTAREA":
            return
    raise AssertionError("the editor was not reached")


async def test_everything_but_live_figures_works_without_javascript(
    shop: Shop, serve: ServeQueue, open_tab: OpenTab
) -> None:
    shop.go_on.set()
    await shop.open(3)
    await shop.mq.produce_many("letters", [{"to": f"customer {n}"} for n in range(5)])
    tab = await open_tab(await serve(shop.mq), java_script_enabled=False)

    # search: an id, a part of an error, a text in payloads
    await tab.find("#search").fill("price-3")
    await tab.find("#search").press("Enter")
    await tab.sees("price-3", "#message-id")
    assert await tab.find("button:visible", has_text="Copy").count() == 0  # it would do nothing
    await tab.find("#search").fill("'cents'")
    await tab.find("#search").press("Enter")
    assert "KeyError: 'cents'" in await tab.text("section:has(#errors-title)")
    await tab.find("#search").fill("customer 4")
    await tab.find("#search").press("Enter")
    await tab.press("Search payloads")
    await tab.sees("customer 4", "#found table")
    assert await tab.find("#found tbody tr").count() == 1

    # replay a selection
    await tab.go("dlq?show=messages")
    for id_ in ("price-1", "price-2"):
        await tab.find(f"input[value={id_}]").check()
    await tab.press("Replay…")
    await tab.sees("Replay 2 chosen dead letters", "h1")
    await tab.press("Replay 2")
    await eventually(lambda: _replays(shop.mq, "price-2"))
    assert await _replays(shop.mq, "price-1") == 1
    assert await _replays(shop.mq, "price-3") == 0

    # purge, with the topic's name and with another
    await tab.go("topic?name=letters")
    await tab.press("Purge…", "link")
    await tab.sees("5 pending")
    await tab.find("#typed").fill("letter")
    tab.expected = 400
    await tab.press("Purge")
    await tab.sees("type the name of the topic", "body")  # before the next page is opened
    assert (await shop.mq.counts()).topics["letters"].pending == 5
    await tab.go("topic/purge?name=letters")
    await tab.find("#typed").fill("letters")
    await tab.press("Purge")
    await eventually(lambda: _is_empty(shop.mq, "letters"))

    # edit and replay
    await dead(shop.mq, "price-3")
    await tab.go("message/edit?id=price-3")
    tab.expected = 400
    await tab.find("#payload").fill('{"cents": }')
    await tab.press("Check, and show what changes")
    await tab.sees("This is not JSON", ".wrong")
    await tab.find("#payload").fill('{"cents": 7}')
    await tab.press("Check, and show what changes")
    await tab.press("Replay with this payload")
    await in_state(shop.mq, "price-3", "done")
    assert shop.set == [7]


async def _replays(mq: RedisMessageQueue, id_: str) -> int:
    found = (await mq.find(id_)).message
    return found.replays if found else 0


async def _is_empty(mq: RedisMessageQueue, topic: str) -> bool:
    return (await mq.counts()).topics[topic].pending == 0
