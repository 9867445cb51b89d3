"""The pictures of the dashboard in README and docs: ``./mx screenshots`` runs a small shop and takes them."""

from __future__ import annotations

import asyncio
import itertools
import logging
import math
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from examples import broken_shop
from playwright.async_api import async_playwright

from mx_rmq import WebUser
from mx_rmq.message import Message, encode_message
from mx_rmq.payloads import encode_payload
from mx_rmq.storage.contract import NewMessage
from mx_rmq.storage.history import times_text
from mx_rmq.storage.store import Store
from tests.web.browser.serving import serving
from tests.web.browser.tab import FLAGS, Tab
from tests.words import dead, eventually

if TYPE_CHECKING:
    from playwright.async_api import Browser

    from mx_rmq import RedisMessageQueue

DOCS = Path(__file__).parents[3] / "docs"
MOST_BYTES = 200_000
"""Of one picture; they are part of every clone."""
PACE = {"orders": 11, "payments": 4, "mails": 6}
"""Messages a second of each topic."""
SECONDS = {"orders": 0.1, "payments": 0.004, "mails": 0.03}
"""How long a handler of it runs."""
MINUTES = 60


async def fill(mq: RedisMessageQueue) -> None:
    """An hour of work, what died in it, a paused topic, and one that no worker serves."""
    for topic, pace in PACE.items():
        for minute in range(MINUTES, 0, -1):
            wave = 1 + 0.3 * math.sin(minute / 7 + pace) + 0.1 * math.sin(minute * pace)
            await past(mq, topic, minute, round(60 * pace * wave))
    for minute in range(41, 0, -1):
        await past(mq, "newsletters.weekly", minute, 18, done=False)
    await past(mq, "invoice", 125, 5, done=False)
    await mq.pause("newsletters.weekly")
    await mq.note_act("operator", "pause", "newsletters.weekly", said="paused")
    customer = {"id": 9007199254740993, "mail": "ada@example.org"}
    for n in range(211):
        payment = {"number": 20931 + n, "amount": "129.00", "customer": customer, "note": "<b>urgent</b>"}
        headers = {"traceparent": f"00-4bf92f3577b34da6a3ce929d0e0e47{n:02x}-00f067aa0ba902b7-01"}
        await mq.produce("payments", payment, message_id=f"P-{20931 + n}", headers=headers)
    for n in range(12):
        await mq.produce("newsletters", {"campaign": "summer", "customer": 500 + n}, message_id=f"letter-{n}")
    for n in (1, 2):
        await mq.produce("prices", {"sku": f"A{n}", "cent": 990 + n}, message_id=f"price-{n}")
    for n in range(1, 60):
        await mq.produce("webhooks", {"event": n}, delay=n * 1300 + 2000 * math.sin(n))


async def past(mq: RedisMessageQueue, topic: str, minute: int, count: int, *, done: bool = True) -> None:
    """Messages of some minutes ago, done or still pending."""
    live = mq._lifecycle.shards[0].store
    at = time.time() - minute * 60
    store = Store(live.commands, live.keys, now=lambda: round(at * 1e6), history=True)
    body = encode_message(Message(payload=encode_payload(minute), created_at=at))
    await store.produce(topic, [NewMessage(f"{topic}-{minute}-{n}", body) for n in range(count)])
    if done:
        claim = await store.claim(topic, count, lease=15, holder="past")
        spread = [SECONDS[topic] * (0.7 + n % 7 / 10) for n in range(count)]
        times = times_text(spread, [0.002 + n % 5 / 400 for n in range(count)])
        await store.complete(topic, [(each, 0.0) for each in claim.deliveries], times)


async def sell(mq: RedisMessageQueue) -> None:
    """Produce at the pace of each topic."""
    for n in itertools.count():
        for topic, pace in PACE.items():
            await mq.produce_many(topic, [{"number": n}] * pace)
        await asyncio.sleep(1)


async def take(
    browser: Browser, url: str, name: str, path: str, until: str = "footer", **options: Any
) -> None:
    """One picture, down to the first element *until*; *options* are those of the browser's context."""
    options = {"viewport": {"width": 1280, "height": 400}} | options
    tab = await Tab.open(browser, url, path, **options)
    if await tab.find("#live-status[data-parts]:not([data-parts=''])").count():
        await tab.find("#live-status.live").wait_for()
    await tab.page.wait_for_timeout(2500)  # a turn of the live figures
    target = DOCS / f"{name}.png"
    end = await tab.find(until).first.evaluate("element => element.getBoundingClientRect().bottom + scrollY")
    clip: Any = {"x": 0, "y": 0, "width": 1280, "height": math.ceil(end)}
    await tab.page.screenshot(path=target, full_page=True, clip=clip)
    size = target.stat().st_size
    print(f"wrote {target.relative_to(DOCS.parent)}, {size:,} bytes")
    assert size < MOST_BYTES
    assert tab.wrong == []
    await tab.page.context.close()


async def take_all(binary: str, directory: str, everything: bool) -> None:
    """Let some messages die in the broken shop, go on well, and look at it."""
    async with broken_shop.shop(f"embedded://{directory}", worker_name="web") as mq:
        await fill(mq)
        broken_shop.bank_is_down = True
        await mq.start()
        for id_ in ("P-20931", "P-21141", "letter-11", "price-2"):
            await dead(mq, id_, 60)
        await mq.dlq.replay("P-20931")
        await eventually(lambda: has_died_again(mq), 60)
        broken_shop.bank_is_down = False
        selling = asyncio.create_task(sell(mq))
        app = mq.dashboard(auth=lambda _: WebUser("operator"), redact=["mail"])
        async with serving(app) as url, async_playwright() as playwright:
            browser = await playwright.chromium.launch(executable_path=binary, args=FLAGS)
            await asyncio.sleep(12)  # the rates are those of the last ten seconds
            await take(browser, url, "dashboard-overview", "", until="figure")
            await take(browser, url, "dashboard-dead-letters", "dlq")
            await take(browser, url, "dashboard-message", "message?id=P-20931", color_scheme="dark")
            if everything:
                await take_the_rest(browser, url)
            await browser.close()
        selling.cancel()
        app.close()


async def take_the_rest(browser: Browser, url: str) -> None:
    """Every page in both schemes and widths, to look at; these are not kept."""
    pages = {
        "overview": "",
        "dlq": "dlq",
        "letters": "dlq?show=messages",
        "message": "message?id=P-20931",
        "edit": "message/edit?id=P-20931",
        "topic": "topic?name=mails",
        "scheduled": "scheduled",
        "workers": "workers",
        "server": "server",
        "search": "search?q=e",
        "replay": "dlq/replay",
    }
    for scheme in ("light", "dark"):
        for width in (1280, 390):
            for name, path in pages.items():
                look = {"color_scheme": scheme, "viewport": {"width": width, "height": 800}}
                tab = await Tab.open(browser, url, path, **look)
                target = Path(sys.argv[1]) / f"{name}-{width}-{scheme}.png"
                await tab.page.screenshot(path=target, full_page=True)
                await tab.page.context.close()


async def has_died_again(mq: RedisMessageQueue) -> bool:
    facts = await mq.find("P-20931")
    return facts.state == "dead" and facts.message is not None and facts.message.replays == 1


def main(arguments: list[str]) -> int:
    """Take the pictures of the docs; with a directory, also one of every page, to look at."""
    binary = shutil.which("chromium")
    if binary is None:
        print("there is no chromium here; apt install chromium", file=sys.stderr)
        return 1
    logging.getLogger("mx_rmq").setLevel(logging.CRITICAL)
    with tempfile.TemporaryDirectory(prefix="shop-", ignore_cleanup_errors=True) as directory:
        asyncio.run(take_all(binary, directory, everything=bool(arguments)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
