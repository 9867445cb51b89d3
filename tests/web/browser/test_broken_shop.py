"""``mx-rmq web`` on the broken shop: every problem of docs/operations.md is seen and mended there."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from typing import TYPE_CHECKING, Any

import pytest_asyncio

from tests.cli.conftest import Cli
from tests.cli.programs import running
from tests.project.pages import ROOT
from tests.shop import broken_shop
from tests.web.browser.tab import IN_BROWSER
from tests.words import eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from playwright.async_api import Locator
    from redis.asyncio import Redis

    from mx_rmq import RedisMessageQueue
    from mx_rmq.storage.embedded import EmbeddedServer
    from tests.web.browser.tab import OpenTab, Tab
    from tests.words import MakeQueue

pytestmark = IN_BROWSER

ORDERS = 300


@pytest_asyncio.fixture(loop_scope="session")
async def shop(
    server: EmbeddedServer, redis: Redis, make_queue: MakeQueue
) -> AsyncIterator[RedisMessageQueue]:
    async with broken_shop(server, make_queue, orders=ORDERS) as queue:
        yield queue


async def test_every_problem_is_seen_and_mended_in_the_browser(
    shop: RedisMessageQueue, server: EmbeddedServer, open_tab: OpenTab, tmp_path: Path
) -> None:
    cli = Cli(server.url, tmp_path)
    cli.env |= {"MX_RMQ_QUEUE": "shop", "PYTHONPATH": os.pathsep.join([str(ROOT / "examples"), *sys.path])}
    async with running(cli, "web", "--port", "0") as program:
        tab = await open_tab((await program.says("http://127.0.0.1:", on="out")).strip())
        seen = await tab.text("#attention")
        assert "invoice 5 messages waiting" in seen
        assert "no live worker has a handler for the topic" in seen
        assert "does not consume as it should: the event loop was blocked" in seen
        assert "payments 30 dead letters of ConnectionError" in seen
        assert "newsletters 12 dead letters of Reject" in seen
        assert "prices 2 dead letters of KeyError" in seen
        assert "payments 1 dead letter of UnreadableMessage" in seen
        assert "mails 8 dead letters of expired" in seen
        assert "mails paused, 26 waiting" in seen
        await grow_the_workers(tab, cli, shop)
        await resume(tab)
        await move(tab, shop)
        await restart_the_stuck_worker(tab)
        await run_the_late_one(tab)
        await end_the_storm(tab)
        await replay_the_payments(tab)
        await mend_the_prices(tab)
        await delete_what_nothing_needs(tab)

        await tab.go("")
        await eventually(lambda: is_drained(shop), 60)
        await eventually(lambda: is_calm(tab), 30)  # live, without a reload
        await tab.check_script_canaries()
        await tab.page.goto("about:blank")  # no tab listens when the server ends
    after = (await shop.counts()).topics
    assert {name: of.completed for name, of in after.items() if of.completed} == {
        "orders": ORDERS,
        "mails": 26 + 8,
        "invoices": 5,
        "reports": 6,
        "gifts": 1,
        "payments": 30,
        "prices": 2,
    }


async def is_drained(shop: RedisMessageQueue) -> bool:
    counts = await shop.counts()
    return (counts.pending, counts.processing, counts.delayed, counts.dead) == (0, 0, 0, 0)


async def is_calm(tab: Tab) -> bool:
    """Whether nothing but the server's own settings needs attention."""
    matters = await tab.find("#attention li").all_inner_texts()
    return all("appendonly" in each or "Nothing needs attention" in each for each in matters)


async def grow_the_workers(tab: Tab, cli: Cli, shop: RedisMessageQueue) -> None:
    """A backlog: one handler is not enough; the browser shows it go away while a second worker runs."""
    await tab.press("orders", "link")
    await tab.find("#count-pending").wait_for()
    before = int((await tab.text("#count-pending")).replace(",", ""))
    assert before > 50
    arguments = ("run", "broken_shop:mq", "--topics", "orders", "--concurrency", "64", "--burst")
    async with running(cli, *arguments):
        await tab.find("#count-pending", has_text="0").and_(tab.page.get_by_text("0", exact=True)).wait_for()
        await eventually(lambda: is_idle(shop, "orders"))


async def is_idle(shop: RedisMessageQueue, topic: str) -> bool:
    of = (await shop.counts()).topics[topic]
    return not of.pending and not of.processing


async def resume(tab: Tab) -> None:
    """A paused topic, and what expired in it meanwhile."""
    await tab.go("")
    await tab.press("resume (mails)", "link")
    await tab.sees("Paused", "#standing")
    await tab.press("Resume")
    await tab.sees("Running", "#standing")
    await tab.go("dlq?topic=mails")
    await replay_all(tab, 8)


async def replay_all(tab: Tab, number: int) -> None:
    await tab.press(f"Replay {number}…", "link")
    await tab.press(f"Replay {number}")
    await tab.find(".progress .say", has_text=f"replayed {number}").wait_for()


async def move(tab: Tab, shop: RedisMessageQueue) -> None:
    """A topic that no worker serves, because its producer misspelt it: kept, purged, produced anew."""
    await tab.go("")
    await tab.press("how to fix (invoice)", "link")
    await tab.sees("no live worker has a handler for them", "#standing")
    kept: list[Any] = []
    for link in await tab.find("th.id a").all_inner_texts():
        await tab.go(f"message?id={link}")
        kept.append(json.loads(await downloaded(tab, tab.page.get_by_role("link", name="Download"))))
    assert [each["number"] for each in kept] == [71, 72, 73, 74, 75]
    await tab.go("topic?name=invoice")
    await purge(tab, "invoice")
    await shop.produce_many("invoices", kept)


async def downloaded(tab: Tab, link: Locator) -> str:
    async with tab.page.expect_download() as download:
        await link.click()
    path = await (await download.value).path()
    return await asyncio.to_thread(path.read_text)


async def purge(tab: Tab, topic: str) -> None:
    await tab.press("Purge…", "link")
    await tab.find("#typed").fill(topic)
    await tab.press("Purge")
    await tab.find(".progress .say", has_text="withdrawn").wait_for()


async def restart_the_stuck_worker(tab: Tab) -> None:
    """A worker that is up but does nothing: the page names the process, and what became of its messages."""
    await tab.go("workers")
    row = tab.find("#workers tr.bad, #workers tr.warn", has_text="the event loop was blocked").first
    await row.wait_for()
    pid = int(await row.locator("td").nth(1).inner_text())
    os.kill(pid, signal.SIGKILL)
    await tab.find("#workers tr", has_text=str(pid)).wait_for(state="detached", timeout=60_000)
    await tab.page.reload()
    await tab.sees(f".{pid}.", "table.gone")


async def run_the_late_one(tab: Tab) -> None:
    """One message that waits for a week instead of seven minutes."""
    await tab.page.keyboard.press("/")
    await tab.page.keyboard.type("gift-42")
    await tab.page.keyboard.press("Enter")
    await tab.find("#now[data-state=delayed]").wait_for()
    await tab.press("Run now")
    await tab.find("#now[data-state=gone]").wait_for()


async def end_the_storm(tab: Tab) -> None:
    """A storm of retries against a partner that will not come back."""
    await tab.go("topic?name=webhooks&state=delayed")
    assert "did not answer within" in await tab.text("table")
    await purge(tab, "webhooks")


async def replay_the_payments(tab: Tab) -> None:
    """Many died while the bank was down: one first, then the others."""
    await tab.go("dlq")
    await tab.press("ConnectionError", "link")
    await tab.press("Replay 30…", "link")
    await tab.find("#canary").fill("1")
    await tab.press("Replay 30")
    await tab.find(".progress .say", has_text="replayed 30").wait_for(timeout=60_000)


async def mend_the_prices(tab: Tab) -> None:
    """They die again, because their payload is wrong."""
    await tab.go("dlq")
    await tab.press("KeyError", "link")
    address = tab.page.url
    await tab.press("Replay 2…", "link")
    await tab.find("#canary").fill("1")
    await tab.press("Replay 2")
    await tab.find("text=died again").first.wait_for()
    for id_ in ("price-1", "price-2"):
        await tab.page.goto(address)
        await tab.press(id_, "link")
        await tab.press("Edit and replay…", "link")
        editor = tab.find("#payload")
        await editor.fill((await editor.input_value()).replace('"cent"', '"cents"'))
        await tab.press("Check, and show what changes")
        await tab.press("Replay with this payload")
        await tab.find("#now[data-state=ended]").wait_for()


async def delete_what_nothing_needs(tab: Tab) -> None:
    """Letters that their handler rejects, and bytes that are no message; both are kept in files first."""
    for error, number in (("Reject", 12), ("UnreadableMessage", 1)):
        await tab.go("dlq")
        await tab.press(error, "link")
        all_ = tab.page.get_by_role("group", name="All that match")
        kept = await downloaded(tab, all_.get_by_role("link", name="Export"))
        assert len(kept.splitlines()) == number
        await all_.get_by_role("link", name=f"Delete {number}…").click()
        await tab.press(f"Delete {number}")
        await tab.find(".progress .say", has_text=f"deleted {number}").wait_for()
