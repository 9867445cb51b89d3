"""The dashboard inside an application, under a path of its choice."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest
from fastapi import FastAPI
from starlette.applications import Starlette
from starlette.routing import Mount

from tests.web.browser.serving import serving
from tests.web.browser.tab import IN_BROWSER
from tests.words import bury, in_state

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from redis.asyncio import Redis

    from mx_rmq import RedisMessageQueue
    from tests.web.browser.tab import OpenTab

pytestmark = IN_BROWSER


def in_fastapi(mq: RedisMessageQueue) -> FastAPI:
    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        async with mq:
            yield

    app = FastAPI(lifespan=lifespan)
    app.mount("/ops/queue", mq.dashboard())
    return app


def in_starlette(mq: RedisMessageQueue) -> Starlette:
    return Starlette(routes=[Mount("/ops", routes=[Mount("/queue", mq.dashboard())])])


@pytest.mark.parametrize("application", [in_fastapi, in_starlette])
async def test_it_works_under_a_prefix(
    mq: RedisMessageQueue, redis: Redis, open_tab: OpenTab, application: Any
) -> None:
    """Every link, form, asset and live figure stays below the prefix, or the tab notes it as wrong."""
    await mq.produce("orders/eu", {"n": 1}, message_id="a/b")
    await bury(redis, topic="orders/eu")
    app = application(mq)
    async with serving(app, lifespan="on") as url:
        tab = await open_tab(f"{url}ops/queue/")
        await tab.find("#live-status.live").wait_for()
        for page in ("Dead letters", "Scheduled", "Workers", "Server", "Overview"):
            await tab.page.get_by_role("navigation", name="Pages").get_by_role("link", name=page).click()
            assert await tab.find("nav a[aria-current=page]").inner_text() == page
        await tab.find("#search").fill("a/b")
        await tab.find("#search").press("Enter")
        await tab.find("#live-status.live").wait_for()
        await tab.press("Replay")
        await tab.find("#now[data-state=pending]").wait_for()
        await in_state(mq, "a/b", "pending")
        await tab.press("orders/eu", "link")
        await tab.press("Pause")
        await tab.sees("Paused", "#standing")
        await tab.check_script_canaries()
        await tab.page.goto("about:blank")  # no tab listens when the server ends
