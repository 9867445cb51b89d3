"""The page of a topic, on a real server."""

from __future__ import annotations

import html
import re
from typing import TYPE_CHECKING

import pytest

from mx_rmq import RedisMessageQueue, WebUser
from tests.web.conftest import Browser
from tests.web.test_overview import text_of
from tests.words import ONE_SERVER, bury, claim, eventually

if TYPE_CHECKING:
    from collections.abc import Callable

    from redis.asyncio import Redis

pytestmark = ONE_SERVER


def ids_on(page: str) -> list[str]:
    return [html.unescape(id_) for id_ in re.findall(r'<a href="message\?id=[^"]*">([^<]*)</a>', page)]


def counts_on(page: str) -> dict[str, str]:
    return dict(re.findall(r'<b id="count-(\w+)">([\d,]+)</b>', page))


def next_of(page: str) -> str | None:
    found = re.search(r'rel="next" href="([^"]+)"', page)
    return f"/{html.unescape(found[1])}" if found else None


async def test_every_state_has_a_tab_with_its_count_and_its_messages(
    mq: RedisMessageQueue, redis: Redis, browse: Callable[..., Browser]
) -> None:
    await mq.produce("t", {"order": 1}, message_id="dead1")
    await bury(redis)
    await mq.produce("t", 1, message_id="run1")
    await claim(redis)
    await mq.produce("t", 1, message_id="late1", delay=600)
    for n in range(3):
        await mq.produce("t", {"name": f"n{n}"}, message_id=f"p{n}")
    browser = browse()
    page = (await browser.get("/topic", params={"name": "t"})).text
    assert counts_on(page) == {"pending": "3", "running": "1", "held": "0", "delayed": "1", "dead": "1"}
    assert ids_on(page) == ["p0", "p1", "p2"]
    assert "{&#34;name&#34;:&#34;n0&#34;}" in page
    shown = {}
    for state in ("running", "held", "delayed", "dead"):
        page = (await browser.get("/topic", params={"name": "t", "state": state})).text
        shown[state] = ids_on(page)
        assert re.search(rf'aria-current="page">{state.capitalize()} <b', page)
    assert shown == {"running": ["run1"], "held": [], "delayed": ["late1"], "dead": ["dead1"]}
    assert "ValueError: no" in page
    assert 'href="dlq?topic=t"' in page


@pytest.mark.parametrize("order", ["", "reverse"])
async def test_pages_lead_through_all_messages_in_both_orders(
    mq: RedisMessageQueue, browse: Callable[..., Browser], order: str
) -> None:
    receipts = await mq.produce_many("t", range(120))
    browser, found = browse(), list[str]()
    path: str | None = f"/topic?name=t&order={order}"
    sizes = []
    while path:
        page = (await browser.get(path)).text
        sizes.append(len(ids_on(page)))
        found += ids_on(page)
        path = next_of(page)
    ids = [str(receipt) for receipt in receipts]
    assert found == (ids[::-1] if order else ids)
    assert sizes == [50, 50, 20]


async def test_a_topic_is_paused_resumed_and_the_trail_says_by_whom(
    mq: RedisMessageQueue, browse: Callable[..., Browser]
) -> None:
    await mq.produce("a/b", 1)
    browser = browse(auth=lambda _: WebUser("anna"))
    token = await browser.token("/topic?name=a/b")
    answer = await browser.post("/topic/pause", {"form_token": token, "topic": "a/b"})
    assert answer.status_code == 303
    page = (await browser.get(answer.headers["location"])).text
    assert "a/b is paused" in page
    assert "Paused by anna" in text_of(page)
    assert (await mq.counts()).topics["a/b"].paused
    assert 'action="topic/resume"' in page
    assert 'action="topic/pause"' not in page
    answer = await browser.post("/topic/resume", {"form_token": token, "topic": "a/b"})
    assert "a/b is delivered again" in (await browser.get(answer.headers["location"])).text
    assert not (await mq.counts()).topics["a/b"].paused
    assert [(a.who, a.what, a.target) for a in await mq.trail()] == [
        ("anna", "resume", "a/b"),
        ("anna", "pause", "a/b"),
    ]


async def test_a_purge_wants_the_topics_name_and_says_how_many(
    mq: RedisMessageQueue, browse: Callable[..., Browser]
) -> None:
    await mq.produce_many("orders", range(1500))
    await mq.produce("orders", 1, delay=60)
    await mq.produce("mails", 1)
    browser = browse()
    page = (await browser.get("/topic/purge?name=orders")).text
    assert "1,500 pending and 1 delayed messages" in text_of(page)
    token = await browser.token("/topic/purge?name=orders")
    wrong = await browser.post("/topic/purge", {"form_token": token, "topic": "orders", "typed": "order"})
    assert wrong.status_code == 400
    assert (await mq.counts()).pending == 1501
    right = await browser.post("/topic/purge", {"form_token": token, "topic": "orders", "typed": "orders"})
    assert right.status_code == 303

    async def over() -> bool:
        return "1,501 messages withdrawn" in (await browser.get(right.headers["location"])).text

    await eventually(over)
    counts = await mq.counts()
    assert (counts.pending, counts.delayed) == (1, 0)
    assert ("purge", "orders", 1501) in [(act.what, act.target, act.count) for act in await mq.trail()]


async def test_who_may_only_look_gets_no_buttons_and_no_acts(
    mq: RedisMessageQueue, browse: Callable[..., Browser]
) -> None:
    await mq.produce("t", 1)
    browser = browse(read_only=True)
    page = (await browser.get("/topic?name=t")).text
    assert "<button>Pause" not in page
    assert "topic/purge" not in page
    assert "it needs the right" in (await browser.get("/topic/purge?name=t")).text
    for path in ("/topic/pause", "/topic/resume", "/topic/purge"):
        answer = await browser.post(path, {"topic": "t", "typed": "t"})
        assert answer.status_code == 403
    assert (await mq.counts()).pending == 1


async def test_what_is_no_topic_is_said(mq: RedisMessageQueue, browse: Callable[..., Browser]) -> None:
    await mq.produce("orders", 1)
    browser = browse()
    page = await browser.get("/topic?name=order")
    assert page.status_code == 404
    assert "did you mean &#39;orders&#39;?" in page.text
    for path in ("/topic", "/topic?name=a%20b", "/topic?name=orders&after=x", "/topic/purge?name="):
        assert (await browser.get(path)).status_code == 400
    token = await browser.token("/topic?name=orders")
    for path in ("/topic/pause", "/topic/resume"):
        assert (await browser.post(path, {"form_token": token, "topic": "order"})).status_code == 404


async def test_a_topic_without_a_worker_says_how_to_fix_it(
    mq: RedisMessageQueue, browse: Callable[..., Browser]
) -> None:
    await mq.produce("orders", 1)
    said = text_of((await browse().get("/topic?name=orders")).text)
    assert "No worker: 1 waiting, and no live worker has a handler for them" in said
    assert '@mq.handler("orders")' in said


@pytest.mark.parametrize("over", ["1h", "24h", "72h"])
async def test_it_has_the_charts_of_its_own_history(
    mq: RedisMessageQueue, browse: Callable[..., Browser], over: str
) -> None:
    await mq.produce_many("orders", range(60))
    await mq.produce_many("others", range(600))
    page = (await browse().get("/topic", params={"name": "orders", "range": over})).text
    assert page.count('<svg class="chart"') == 3
    assert f"In the last {over}: 60 in, 0 done" in text_of(page)


async def test_payloads_are_text_cut_and_without_hidden_fields(
    mq: RedisMessageQueue, browse: Callable[..., Browser]
) -> None:
    await mq.produce("t", {"password": "s3cret", "note": "<script>alert(1)</script>\u202e" + "x" * 5000})
    page = (await browse(redact=["password"]).get("/topic?name=t")).text
    assert "s3cret" not in page
    assert "<script>alert" not in page
    assert "\u202e" not in page
    assert "x" * 200 not in page
    large = {"password": "s3cret", "note": "y" * 200_000}
    await mq.produce("large", large)
    page = (await browse(redact=["password"]).get("/topic?name=large")).text
    assert "s3cret" not in page
    assert re.search(r"<code>200,\d\d\d bytes</code>", page)
    assert "s3cret" in (await browse().get("/topic?name=large")).text


async def test_its_figures_are_live(mq: RedisMessageQueue, browse: Callable[..., Browser]) -> None:
    await mq.produce("orders", 1)
    browser = browse()
    assert 'data-parts="topic:orders"' in (await browser.get("/topic?name=orders")).text
    live = await browser.app.desk.live["topic"](browser.app.desk, "orders")
    assert live.html["count-pending"] == '<b id="count-pending">1</b>'
    assert live.html["standing"].strip().startswith('<div id="standing"')
