"""The dashboard in a real browser: Debian's Chromium, driven by playwright, on a real HTTP server.

All tests here share one event loop, because the browser does, and have a server of their own.
"""

from __future__ import annotations

import shutil
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

import pytest
import pytest_asyncio
from playwright.async_api import async_playwright
from redis.asyncio import Redis

from mx_rmq import RedisMessageQueue
from mx_rmq.storage.embedded import EmbeddedServer
from tests.web.browser.serving import serving
from tests.web.browser.tab import FLAGS, Tab

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from playwright.async_api import Browser

    from tests.web.browser.tab import OpenTab, ServeQueue
    from tests.words import MakeQueue


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def browser() -> AsyncIterator[Browser]:
    """One browser for all tests of a process."""
    binary = shutil.which("chromium")
    if binary is None:
        pytest.skip("there is no chromium here, so nothing is tried in a browser; apt install chromium")
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=binary, args=FLAGS)
        yield browser
        await browser.close()


@pytest.fixture(scope="session")
def server() -> Iterator[EmbeddedServer]:
    """A server of its own: other tests empty theirs."""
    with EmbeddedServer.open() as server:
        yield server


@pytest_asyncio.fixture(loop_scope="session")
async def redis(server: EmbeddedServer) -> AsyncIterator[Redis]:
    """A client of an empty server."""
    async with Redis(unix_socket_path=str(server.socket)) as client:
        await client.flushall()
        yield client


@pytest_asyncio.fixture(loop_scope="session")
async def make_queue(server: EmbeddedServer, redis: Redis) -> AsyncIterator[MakeQueue]:
    """Makes queues on an empty server, and closes them."""
    async with AsyncExitStack() as made:

        def make(url: str = "", **options: Any) -> RedisMessageQueue:
            defaults: dict[str, Any] = {"name": "q", "server_check": "off", "stop_grace": 0.0}
            queue = RedisMessageQueue(url or server.url, **(defaults | options))
            made.push_async_callback(queue.close)
            return queue

        yield make


@pytest_asyncio.fixture(loop_scope="session")
async def mq(make_queue: MakeQueue) -> RedisMessageQueue:
    """One of those, open."""
    queue = make_queue()
    await queue.open()
    return queue


@pytest_asyncio.fixture(loop_scope="session")
async def serve() -> AsyncIterator[ServeQueue]:
    """Serves the dashboard of a queue over HTTP and gives its address."""
    async with AsyncExitStack() as served:

        async def serve(queue: RedisMessageQueue, **options: Any) -> str:
            app: Any = queue.dashboard(**options)
            served.callback(app.close)
            return await served.enter_async_context(serving(app))

        yield serve


@pytest_asyncio.fixture(loop_scope="session")
async def open_tab(browser: Browser) -> AsyncIterator[OpenTab]:
    """Opens tabs; at the end of the test nothing may have gone wrong in any of them."""
    tabs: list[Tab] = []

    async def open_tab(url: str, path: str = "", **options: Any) -> Tab:
        tab = await Tab.open(browser, url, path, **options)
        tabs.append(tab)
        return tab

    yield open_tab
    for tab in tabs:
        await tab.page.context.close()
    for tab in tabs:
        assert tab.wrong == []
