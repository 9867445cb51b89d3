"""Search: ids, topics, errors, and texts in payloads."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from mx_rmq.web import finding
from tests.web.test_overview import text_of
from tests.web.test_topic import ids_on
from tests.words import ONE_SERVER, bury, claim, eventually

if TYPE_CHECKING:
    from collections.abc import Callable

    from redis.asyncio import Redis

    from mx_rmq import RedisMessageQueue
    from tests.web.conftest import Browser

pytestmark = ONE_SERVER


async def found(browser: Browser, text: str, **form: Any) -> tuple[list[str], str]:
    """The ids that a search in payloads finds, and what it says."""
    token = await browser.token("/search?q=%5B")
    answer = await browser.post("/search/payloads", {"form_token": token, "q": text, **form})
    assert answer.status_code == 303, answer.text
    path = answer.headers["location"]

    async def over() -> bool:
        return "<progress" not in (await browser.get(path)).text

    await eventually(over)
    page = (await browser.get(path)).text
    return ids_on(page), text_of(page)


async def test_an_id_leads_to_its_message(mq: RedisMessageQueue, browse: Callable[..., Browser]) -> None:
    await mq.produce("orders", 1, message_id="a/b#1")
    answer = await browse().get("/search", params={"q": " a/b#1 "})
    assert (answer.status_code, answer.headers["location"]) == (303, "/message?id=a%2Fb%231")
    page = await browse().get("/search", params={"q": "a/b#2"})
    assert page.status_code == 200
    assert "No message has this id" in page.text


async def test_topics_and_errors_are_found_by_a_part_of_them(
    mq: RedisMessageQueue, redis: Redis, browse: Callable[..., Browser]
) -> None:
    for topic in ("orders", "orders.eu", "mails"):
        await mq.produce(topic, 1)
    await mq.produce("t", 1)
    await bury(redis)
    browser = browse()
    page = (await browser.get("/search?q=Orders")).text
    assert 'href="topic?name=orders"' in page
    assert 'href="topic?name=orders.eu&amp;state=dead"' in page
    assert 'href="topic?name=mails"' not in page
    (group,) = await mq.dlq.groups()
    page = (await browser.get("/search?q=valueerror")).text
    assert f'href="dlq?group={group.id}"' in page
    page = (await browser.get("/search?q=nothing%20such")).text
    assert "No topic has this in its name." in page
    assert 'href="dlq?show=messages&amp;error=nothing+such"' in page


async def test_payloads_are_searched_in_every_state(
    mq: RedisMessageQueue, redis: Redis, browse: Callable[..., Browser]
) -> None:
    text = 'Straße "7"'
    await mq.produce("t", {"to": text}, message_id="dead")
    await bury(redis)
    await mq.produce("t", {"to": text}, message_id="running")
    await claim(redis)
    await mq.produce("t", [text], message_id="delayed", delay=60)
    await mq.produce("other", text, message_id="pending")
    await mq.produce_many("other", ["no"] * 700)
    browser = browse()
    ids, said = await found(browser, text.upper().replace("STRASSE", "strasse"))
    assert sorted(ids) == ["dead", "delayed", "pending", "running"]
    assert "4 messages found among 704; that is all there is" in said
    assert sorted((await found(browser, text, topic="t"))[0]) == ["dead", "delayed", "running"]
    assert (await found(browser, text, state="dead"))[0] == ["dead"]
    assert (await found(browser, text, topic="other", state="dead"))[0] == []
    assert await mq.trail() == []  # a search changes nothing


@pytest.mark.parametrize(
    ("bound", "most", "said"),
    [
        ("MOST_HITS", 7, "7 messages found among 7; the search ended there, at 7 hits"),
        ("MOST_MESSAGES", 30, "30 messages found among 30; the search ended there, at 30 messages"),
        ("MOST_BYTES", 1024, "the search ended there, at 0 MiB of payloads"),
    ],
)
async def test_a_search_is_bounded(
    mq: RedisMessageQueue,
    browse: Callable[..., Browser],
    monkeypatch: pytest.MonkeyPatch,
    bound: str,
    most: int,
    said: str,
) -> None:
    monkeypatch.setattr(finding, bound, most)
    await mq.produce_many("t", ["x" * 30] * 90)
    ids, page = await found(browse(), "XX")
    assert said.lower() in page.lower()
    assert len(ids) <= 90


async def test_hidden_fields_are_not_searched_and_hits_are_only_text(
    mq: RedisMessageQueue, browse: Callable[..., Browser]
) -> None:
    await mq.produce("t", {"password": "s3cret", "x": "<script>alert(1)</script>\t\u202e"}, message_id="m1")
    browser = browse(redact=["password"])
    assert (await found(browser, "s3cret"))[0] == []
    token = await browser.token("/search?q=%5B")
    answer = await browser.post("/search/payloads", {"form_token": token, "q": "alert(1)"})
    await eventually(lambda: not browser.app.desk.jobs.all()[0].is_running)
    page = (await browser.get(answer.headers["location"])).text
    assert ids_on(page) == ["m1"]
    assert "<script>alert" not in page
    assert "s3cret" not in page
    assert "\u202e" not in page


async def test_a_search_can_be_stopped_by_who_may_only_look(
    mq: RedisMessageQueue, browse: Callable[..., Browser], monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = asyncio.Event()
    go_on = asyncio.Event()

    async def slowly(scan: finding.Scan) -> Any:
        yield (await mq.list("t")).messages
        begun.set()
        await go_on.wait()

    monkeypatch.setattr(finding.Scan, "_pages", slowly)
    await mq.produce_many("t", ["needle"] * 3)
    browser = browse(read_only=True)
    token = await browser.token("/search?q=%5B")
    answer = await browser.post("/search/payloads", {"form_token": token, "q": "needle"})
    await begun.wait()
    page = (await browser.get(answer.headers["location"])).text
    assert 'value="3"' in page
    assert len(ids_on(page)) == 3
    assert 'action="job/stop"' in page
    (job,) = browser.app.desk.jobs.all()
    live = await browser.app.desk.live["search"](browser.app.desk, job.id)
    assert "3 found" in text_of(live.html["found"])
    await browser.post("/job/stop", {"form_token": token, "id": job.id})
    await eventually(lambda: not job.is_running)
    assert "Stopped after 3 messages, 3 found" in text_of(
        (await browser.get(answer.headers["location"])).text
    )


async def test_what_makes_no_sense_is_said(mq: RedisMessageQueue, browse: Callable[..., Browser]) -> None:
    browser = browse()
    assert "Type a message" in (await browser.get("/search")).text
    page = (await browser.get("/search", params={"q": '"><script>alert(1)</script>' * 99})).text
    assert "<script>alert" not in page
    token = await browser.token("/search?q=x%20y")
    for form in ({"q": " "}, {"q": "x", "topic": "a b"}):
        assert (await browser.post("/search/payloads", {"form_token": token, **form})).status_code == 400
    assert (await browser.post("/search/payloads", {"q": "x"})).status_code == 403
