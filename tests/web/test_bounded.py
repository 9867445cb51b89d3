"""No page reads in proportion to the queue: what it asks the server for is counted, not timed."""

from __future__ import annotations

import html
import re
import time
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import urlencode

import pytest

from mx_rmq.message import Death, encode_death, encode_message
from mx_rmq.storage.contract import Restore
from mx_rmq.web.looks import Looks
from tests.harness import command
from tests.words import ONE_SERVER, claim, message, new, store_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from redis.asyncio import Redis

    from mx_rmq import RedisMessageQueue
    from tests.web.conftest import Browser

    Fill = Callable[[int], Awaitable[None]]

pytestmark = ONE_SERVER

SMALL, MIDDLE, LARGE = 1_000, 11_000, 21_000
"""Messages of each kind. The middle is more than any page looks at in search of what is rare."""


class Cost(NamedTuple):
    """What the server did for a page."""

    commands: int
    """Those in scripts too."""
    sent: int
    """Bytes that it sent."""


@pytest.fixture
async def fill(redis: Redis) -> Fill:
    """Makes the queue have so many pending, so many delayed and so many dead messages, of two topics."""
    store, there = store_of(redis), 0
    errors = [
        encode_death(Death(reason="failed", error=f"ValueError: {'no ' * n}", kind="ValueError"))
        for n in range(1, 9)
    ]
    body = encode_message(message({"order": 1}))

    async def fill(count: int) -> None:
        nonlocal there
        while there < count:
            topic = ("orders", "mails")[there // 1000 % 2]
            ids = [f"{topic}-{n}" for n in range(there, there + 1000)]
            await store.produce(topic, [new(f"p-{id_}") for id_ in ids])
            await store.produce_delayed(topic, [new(f"y-{id_}", delay=7200 + there) for id_ in ids])
            died = time.time() - 3600 + there / 100
            rows = [Restore(f"d-{id_}", topic, died, body, errors[n % 8]) for n, id_ in enumerate(ids)]
            await store.restore(rows)
            there += 1000

    # A few of a third topic, before and behind all others.
    await store.produce_delayed("rare", [new(f"y-rare-{n}", delay=7 * 86400) for n in range(3)])
    await store.restore([Restore(f"d-rare-{n}", "rare", 1.0, body, errors[0]) for n in range(3)])
    await store.produce("busy", [new(f"b-{n}") for n in range(5)])
    await claim(redis, "busy")
    return fill


async def cost_of(redis: Redis, browser: Browser, path: str) -> tuple[Cost, str]:
    desk = browser.app.desk
    desk.looks = Looks(desk.queue)  # what pages share is not read yet
    before = await counted(redis)
    page = await browser.get(path)
    after = await counted(redis)
    assert page.status_code in (200, 303), (path, page.text)
    return Cost(after.commands - before.commands, after.sent - before.sent), page.text


async def counted(redis: Redis) -> Cost:
    info = await command(redis, "INFO", "stats")
    return Cost(info["total_commands_processed"], info["total_net_output_bytes"])


def link(path: str, **query: str) -> str:
    return f"/{path}?{urlencode(query)}"


def next_of(page: str) -> str | None:
    found = re.search(r'rel="next" href="([^"]+)"', page)
    return f"/{html.unescape(found[1])}" if found else None


async def paths(mq: RedisMessageQueue) -> list[str]:
    """Every page that reads the queue."""
    group = next(group.id for group in await mq.dlq.groups() if group.topic == "orders")
    found = ["/", link("", range="72h"), "/dlq", link("dlq", error="ValueError"), "/job"]
    found += [link("dlq", group=group), link("dlq", group=group, order="oldest")]
    found += ["/scheduled", link("scheduled", range="7d"), "/workers", "/server"]
    found += [link("search", q=text) for text in ("orders", "ValueError", "nothing like it")]
    found += [link("message", id=id_) for id_ in ("p-orders-0", "y-orders-0", "d-orders-0", "b-0")]
    for state in ("pending", "running", "held", "delayed", "dead"):
        for order in ("", "reverse"):
            of = "busy" if state in ("running", "held") else "orders"
            found.append(link("topic", name=of, state=state, order=order))
    found.append(link("topic", name="rare", state="dead"))
    return [*found, link("dlq/replay", topic="orders"), link("dlq/delete", group=group)]


SEARCHES = [
    link("dlq", show="messages", error="NoSuchError"),
    link("dlq", show="messages", text="no such text"),
    link("dlq", show="messages", topic="rare"),
    link("topic", name="rare", state="delayed"),
]
"""Pages that look for what is rare or not there: they stop after so many messages."""


async def test_no_page_costs_more_the_more_messages_there_are(
    mq: RedisMessageQueue, redis: Redis, browse: Callable[..., Browser], fill: Fill
) -> None:
    browser, costs = browse(), dict[int, dict[str, Cost]]()
    for count in (SMALL, LARGE):
        await fill(count)
        costs[count] = {}
        for path in await paths(mq):
            following: str | None = path
            for name in (path, f"{path}, next page"):
                if following:
                    costs[count][name], page = await cost_of(redis, browser, following)
                    following = next_of(page)
    assert len(costs[LARGE]) > 35
    compare(costs[SMALL], costs[LARGE])


async def test_a_search_for_what_is_rare_stops_after_so_many_messages(
    mq: RedisMessageQueue, redis: Redis, browse: Callable[..., Browser], fill: Fill
) -> None:
    browser, costs = browse(), dict[int, dict[str, Cost]]()
    for count in (MIDDLE, LARGE):
        await fill(count)
        costs[count] = {path: (await cost_of(redis, browser, path))[0] for path in SEARCHES}
    compare(costs[MIDDLE], costs[LARGE])


def compare(few: dict[str, Cost], many: dict[str, Cost]) -> None:
    """Longer numbers and a further chunk are nothing beside twenty times as many messages."""
    for name, before in few.items():
        after = many[name]
        assert after.commands <= before.commands * 1.1 + 20, (name, before, after)
        assert after.sent <= before.sent * 1.1 + 4096, (name, before, after)
