"""The overview, on a real server."""

from __future__ import annotations

import html
import re
from typing import TYPE_CHECKING

import httpx
import pytest
from fastapi import FastAPI
from starlette.applications import Starlette
from starlette.routing import Mount

from mx_rmq import RedisMessageQueue, Reject
from tests.web.conftest import LOCAL, Browser
from tests.words import ONE_SERVER, eventually

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.words import MakeQueue

pytestmark = ONE_SERVER


def text_of(page: str) -> str:
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", page)).split())


def row_of(page: str, topic: str) -> list[str]:
    (row,) = re.findall(rf'<tr id="topic-{topic}".*?</tr>', page, re.DOTALL)
    return [text_of(cell) for cell in re.findall(r"<t[hd].*?</t[hd]>", row, re.DOTALL)]


async def test_every_topic_has_a_row_with_its_figures(
    mq: RedisMessageQueue, browse: Callable[..., Browser]
) -> None:
    await mq.produce_many("orders", range(1234))
    await mq.produce("orders", 1, delay=60)
    await mq.produce("mails", 1)
    await mq.pause("mails")
    await mq.note_act("anna", "pause", "mails")
    page = (await browse().get("/")).text
    orders = row_of(page, "orders")
    assert orders[:5] == ["orders", "1,234", "0", "1", "0"]
    assert orders[-1] == "no worker"
    assert row_of(page, "mails")[-1].startswith("paused by anna")


async def test_what_needs_attention_comes_first_with_a_link_to_its_remedy(
    make_queue: MakeQueue, browse: Callable[..., Browser]
) -> None:
    worker = make_queue()

    @worker.handler("payments")
    async def charge(_: int) -> None:
        raise Reject("no account 4711")

    await worker.start()
    await worker.produce("payments", 1)
    await worker.produce("reports/nightly", 1)
    await worker.produce("mails", 1)
    await worker.pause("mails")

    async def is_dead() -> bool:
        return (await worker.counts()).dead == 1

    await eventually(is_dead)
    page = (await browse().get("/")).text
    found = re.findall(r'<li class="(bad|warn|ok)">(.*?)<a href="([^"]*)">([^<]*)', page, re.DOTALL)
    said = [(level, text_of(words), html.unescape(to), link) for level, words, to, link in found]
    (group,) = await worker.dlq.groups()
    assert ("bad", "topic?name=reports%2Fnightly", "how to fix") in [(s[0], s[2], s[3]) for s in said]
    (dead,) = [each for each in said if "payments" in each[1]]
    assert dead[0] == "bad"
    assert "1 dead letter of Reject: no account 4711" in dead[1]
    assert dead[2] == f"dlq?group={group.id}"
    (paused,) = [each for each in said if "paused" in each[1]]
    assert paused[0] == "warn"
    levels = [each[0] for each in said]
    assert levels == sorted(levels)


async def test_an_empty_queue_needs_nothing(mq: RedisMessageQueue, browse: Callable[..., Browser]) -> None:
    page = (await browse().get("/")).text
    assert "No topic yet" in page


@pytest.mark.parametrize("over", ["1h", "24h", "72h", "nonsense"])
async def test_the_charts_have_their_spans(
    mq: RedisMessageQueue, browse: Callable[..., Browser], over: str
) -> None:
    await mq.produce_many("orders", range(60))
    page = (await browse().get("/", params={"range": over})).text
    chosen = "1h" if over == "nonsense" else over
    assert f'aria-label="Messages per second, last {chosen}"' in page
    assert page.count('<svg class="chart"') == 3
    assert re.search(r'<polyline class="in" points="[\d., ]+"/>', page)
    assert 'aria-current="true">' + chosen in page


async def test_topics_are_found_by_a_part_of_their_name(
    mq: RedisMessageQueue, browse: Callable[..., Browser]
) -> None:
    for n in range(20):
        await mq.produce(f"topic{n}", 1)
    page = (await browse().get("/", params={"only": "topic1"})).text
    assert len(re.findall(r'<tr id="topic-', page)) == 11


@pytest.mark.parametrize("kind", [FastAPI, Starlette])
async def test_it_is_mounted_under_any_prefix_and_opens_the_queue_itself(
    make_queue: MakeQueue, kind: type
) -> None:
    mq = make_queue()  # not open
    dashboard = mq.dashboard()
    host = FastAPI() if kind is FastAPI else Starlette(routes=[Mount("/ops/queue", dashboard)])
    if isinstance(host, FastAPI):
        host.mount("/ops/queue", dashboard)
    browser = Browser(host, "/ops/queue")
    page = await browser.get("/")
    assert page.status_code == 200
    assert '<base href="/ops/queue/">' in page.text
    style = re.search(r'href="(static/style\.css\?v=\w+)"', page.text)
    assert style
    assert (await browser.get(f"/{style[1]}")).headers["content-type"].startswith("text/css")
    assert "Path=/ops/queue/" in page.headers["set-cookie"]
    assert (await mq.counts()).topics == {}


async def test_a_missing_page_is_said_with_the_headers_of_all_pages(browse: Callable[..., Browser]) -> None:
    page = await browse().get("/nothing")
    assert page.status_code == 404
    assert page.headers["x-content-type-options"] == "nosniff"
    assert "<base " in page.text


async def test_hostile_names_are_only_text(mq: RedisMessageQueue, browse: Callable[..., Browser]) -> None:
    """Topics have few signs, but an error has any, and so has what a person types."""
    await mq.produce("a/b+c@d:e#f", 1)
    page = (await browse().get("/", params={"only": '"><script>alert(1)</script>\u202e'})).text
    assert "<script>alert" not in page
    assert "\u202e" not in page
    assert "topic?name=a%2Fb%2Bc%40d%3Ae%23f" in (await browse().get("/")).text


async def test_requests_of_others_than_http_are_refused(mq: RedisMessageQueue) -> None:
    transport = httpx.ASGITransport(mq.dashboard(), client=LOCAL)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as http:
        assert (await http.put("/")).status_code == 405
