"""What is due when, as a page."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from tests.web.test_overview import text_of
from tests.web.test_topic import ids_on, next_of
from tests.words import ONE_SERVER

if TYPE_CHECKING:
    from collections.abc import Callable

    from mx_rmq import RedisMessageQueue
    from tests.web.conftest import Browser

pytestmark = ONE_SERVER


async def test_what_is_due_is_a_histogram_and_a_list_of_all_topics(
    mq: RedisMessageQueue, browse: Callable[..., Browser]
) -> None:
    for n in range(3):
        await mq.produce(f"topic{n}", {"n": n}, message_id=f"m{n}", delay=600 + n)
    await mq.produce("topic0", 1, message_id="later", delay=30 * 3600)
    page = (await browse().get("/scheduled")).text
    assert "3 of 4 delayed messages become due in the next 24h, 1 later." in text_of(page)
    assert ids_on(page) == ["m0", "m1", "m2", "later"]
    assert re.findall(r"<rect [^>]*><title>([^<]*)", page) == ["3 messages due in 0 to 30m"]
    assert 'aria-label="Messages due in the next 24h, in steps of 30m"' in page
    week = (await browse().get("/scheduled?range=7d")).text
    assert "4 of 4 delayed messages become due in the next 7d." in text_of(week)


async def test_pages_lead_through_all_of_them(mq: RedisMessageQueue, browse: Callable[..., Browser]) -> None:
    await mq.produce_many("t", range(120), delay=60)
    browser, found = browse(), list[str]()
    path: str | None = "/scheduled?range=6h"
    while path:
        page = (await browser.get(path)).text
        found += ids_on(page)
        path = next_of(page)
    assert len(found) == len(set(found)) == 120


async def test_nothing_delayed_is_said_and_a_wrong_place_is_refused(
    mq: RedisMessageQueue, browse: Callable[..., Browser]
) -> None:
    browser = browse()
    assert "No message is delayed." in (await browser.get("/scheduled?range=none")).text
    assert (await browser.get("/scheduled?after=x")).status_code == 400
    await mq.produce("t", {"password": "s3cret", "x": "<b>"}, delay=60)
    page = (await browse(redact=["password"]).get("/scheduled")).text
    assert "s3cret" not in page
    assert "<code>{&#34;password&#34;" in page
