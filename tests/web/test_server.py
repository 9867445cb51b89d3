"""The doctor, the audit, its repair and the trail, as a page."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from tests.harness import command
from tests.web.test_overview import text_of
from tests.words import ONE_SERVER, PREFIX, eventually

if TYPE_CHECKING:
    from collections.abc import Callable

    from redis.asyncio import Redis

    from mx_rmq import RedisMessageQueue
    from tests.web.conftest import Browser

pytestmark = ONE_SERVER


async def ended(browser: Browser, path: str) -> str:
    async def over() -> bool:
        return "<progress" not in (await browser.get(path)).text

    await eventually(over)
    return text_of((await browser.get(path)).text)


async def test_the_doctor_says_what_is_wrong_and_the_remedy(
    mq: RedisMessageQueue, browse: Callable[..., Browser]
) -> None:
    await mq.produce("orders", 1)
    page = (await browse().get("/server")).text
    checkup = await mq.doctor(audit_for=0)
    assert {each.level for each in checkup.diagnoses} >= {"ok", "problem"}
    said = text_of(page)
    for each in checkup.diagnoses:
        if each.what not in ("latency", "memory"):
            assert " ".join(each.remedy.split()) in said
    levels = [word for word in said.split() if word in ("problem", "warning", "ok")]
    assert levels == sorted(levels, key=["problem", "warning", "ok"].index)
    assert "There are problems" in said


async def test_an_audit_is_a_job_that_lists_what_it_found_and_changes_nothing(
    mq: RedisMessageQueue, redis: Redis, browse: Callable[..., Browser]
) -> None:
    await mq.produce_many("orders", range(20))
    await mq.produce("orders", 1, message_id="lost")
    await command(redis, "LREM", f"{PREFIX}orders:pending", 1, "lost")
    browser = browse(read_only=True)
    answer = await browser.post("/server/audit", {"form_token": await browser.token("/server")})
    assert answer.status_code == 303
    said = await ended(browser, answer.headers["location"])
    assert "finding" in said
    assert "lost of orders" in said
    assert "its findings" in (await browser.get("/server")).text
    assert not any(report.clean for report in await mq.audit())
    assert await mq.trail() == []


async def test_one_audit_at_a_time(mq: RedisMessageQueue, browse: Callable[..., Browser]) -> None:
    """Each reads the whole queue."""
    browser, go_on = browse(), asyncio.Event()
    audit = mq.audit

    async def slow(**options: Any) -> Any:
        await go_on.wait()
        return await audit(**options)

    browser.app.desk.queue = Slow(mq, slow)
    fields = {"form_token": await browser.token("/server"), "sure": "yes"}
    first = await browser.post("/server/audit", fields)
    for path in ("/server/audit", "/server/repair"):
        again = await browser.post(path, fields)
        assert again.headers["location"].startswith(first.headers["location"].partition("&")[0])
        assert "under way already" in text_of((await browser.get(again.headers["location"])).text)
    assert len(browser.app.desk.jobs.all()) == 1
    go_on.set()
    await ended(browser, first.headers["location"])


class Slow:
    """A queue whose audit takes as long as a test wants."""

    def __init__(self, mq: RedisMessageQueue, audit: Callable[..., Any]) -> None:
        self._mq = mq
        self.audit = audit

    def __getattr__(self, name: str) -> Any:
        return getattr(self._mq, name)


async def test_a_repair_is_confirmed_mends_and_is_in_the_trail(
    mq: RedisMessageQueue, redis: Redis, browse: Callable[..., Browser]
) -> None:
    await mq.produce("orders", 1, message_id="lost")
    await command(redis, "LREM", f"{PREFIX}orders:pending", 1, "lost")
    browser = browse()
    page = await browser.get("/server/repair")
    assert "audits all" in text_of(page.text)
    token = await browser.token("/server/repair")
    assert (await browser.post("/server/repair", {"form_token": token})).status_code == 400
    assert not any(report.clean for report in await mq.audit())
    answer = await browser.post("/server/repair", {"form_token": token, "sure": "yes"})
    said = await ended(browser, answer.headers["location"])
    assert "repaired" in said
    assert all(report.clean for report in await mq.audit())
    assert [facts.id for facts in (await mq.list("orders")).messages] == ["lost"]
    assert {act.what for act in await mq.trail()} == {"repair"}
    assert "repair" in text_of((await browser.get("/server")).text)


async def test_who_may_only_look_cannot_repair(mq: RedisMessageQueue, browse: Callable[..., Browser]) -> None:
    browser = browse(read_only=True)
    assert "server/repair" not in (await browser.get("/server")).text
    token = await browser.token("/server")
    answer = await browser.post("/server/repair", {"form_token": token, "sure": "yes"})
    assert answer.status_code == 403


async def test_the_trail_is_shown_a_page_at_a_time_as_text(
    mq: RedisMessageQueue, browse: Callable[..., Browser]
) -> None:
    await mq.note_act("<b>anna</b>", "pause", "first")
    for n in range(120):
        await mq.note_act("ben", "replay", f"group {n}", count=n, said="<script>alert(1)</script>")
    browser = browse()
    page = (await browser.get("/server")).text
    assert page.count(">replay</th>") == 100
    assert "<script>alert" not in page
    assert 'href="server?acts=100"' in page
    older = (await browser.get("/server?acts=100")).text
    assert older.count(">replay</th>") == 20
    assert "&lt;b&gt;anna" in older
    assert "No older act." in (await browser.get("/server?acts=999")).text


@pytest.mark.parametrize("acts", ["-1", "x", "9999999", "²"])
async def test_what_is_no_place_in_the_trail_is_refused(browse: Callable[..., Browser], acts: str) -> None:
    assert (await browse().get("/server", params={"acts": acts})).status_code == 400
