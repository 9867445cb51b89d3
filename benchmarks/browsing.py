"""A dashboard in a process of its own, and what a browser does with it."""

from __future__ import annotations

import asyncio
import html
import http.client
import logging
import os
import re
import socket
import sys
import threading
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import NamedTuple
from urllib.parse import urlencode

from mx_rmq import RedisMessageQueue

TIMEOUT = 60.0
FOLLOWED = "topics,attention,charts:1h"
"""The live parts of an overview."""


class Answer(NamedTuple):
    """What the dashboard answered, and after how many seconds."""

    took: float
    text: str
    place: str
    """Where it sends the browser; empty if it does not."""

    @property
    def following(self) -> str:
        """The address of the next page; empty if there is none."""
        found = re.search(r'rel="next" href="([^"]+)"', self.text)
        return html.unescape(found[1]) if found else ""


class Browser:
    """One tab at a time: loads pages and sends forms.

    Args:
        port: of the dashboard, on this computer.
    """

    def __init__(self, port: int) -> None:
        self.port = port
        self._http = http.client.HTTPConnection("127.0.0.1", port, timeout=TIMEOUT)
        self._cookie = ""

    async def get(self, path: str) -> Answer:
        """Load a page that must be there, or lead to another."""
        return await asyncio.to_thread(self._ask, "GET", path)

    async def post(self, path: str, **fields: str) -> Answer:
        """Send a form."""
        found = re.search(r'name="form_token" value="(\w+)"', (await self.get("server")).text)
        assert found, "the page has no form"
        body = urlencode(fields | {"form_token": found[1]})
        return await asyncio.to_thread(self._ask, "POST", path, body)

    async def first_figures(self) -> float:
        """Seconds from opening an overview's stream to its first figures."""
        began = time.perf_counter()
        reader, writer = await _stream(self.port)
        try:
            while not (line := await reader.readline()).startswith(b"data:"):
                assert line, "the stream has ended"
            return time.perf_counter() - began
        finally:
            writer.close()

    def _ask(self, method: str, path: str, body: str | None = None) -> Answer:
        headers = {"accept": "text/html", "cookie": self._cookie}
        if body is not None:
            origin = f"http://127.0.0.1:{self.port}"
            headers |= {"origin": origin, "content-type": "application/x-www-form-urlencoded"}
        began = time.perf_counter()
        self._http.request(method, f"/{path}", body, headers)
        reply = self._http.getresponse()
        text = reply.read().decode()
        took = time.perf_counter() - began
        assert reply.status in (200, 303), f"{reply.status} for {path}: {text[:2000]}"
        if said := reply.getheader("set-cookie"):
            self._cookie = said.partition(";")[0]
        return Answer(took, text, (reply.getheader("location") or "").removeprefix("/"))


@asynccontextmanager
async def dashboards(url: str, count: int = 1) -> AsyncIterator[list[Browser]]:
    """So many dashboards, each in its own process; they end with this one."""
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(_dashboard(url)) for _ in range(count)]


@asynccontextmanager
async def _dashboard(url: str) -> AsyncIterator[Browser]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "benchmarks.browsing", url),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        browser = Browser(int(await process.stdout.readline()))
        await browser.get("")
        yield browser
    finally:
        process.stdin.close()
        await process.wait()


@asynccontextmanager
async def open_tabs(browsers: list[Browser], each: int = 1) -> AsyncIterator[None]:
    """Overviews that stay open, so many of each dashboard; all have figures at the beginning."""
    ready = asyncio.Semaphore(0)
    tabs = [asyncio.create_task(_tab(browser.port, ready)) for browser in browsers for _ in range(each)]
    try:
        for _ in tabs:
            await asyncio.wait_for(ready.acquire(), TIMEOUT)
        yield
    finally:
        for tab in tabs:
            tab.cancel()
        await asyncio.gather(*tabs, return_exceptions=True)


async def _tab(port: int, ready: asyncio.Semaphore) -> None:
    """Listen as a browser does: when an answer ends, ask for what came since."""
    last, is_ready = "", False
    while True:
        reader, writer = await _stream(port, last)
        try:
            while line := await reader.readline():
                if line.startswith(b"id: "):
                    last = line[4:].decode().strip()
                if line.startswith(b"data:") and not is_ready:
                    is_ready = True
                    ready.release()
        finally:
            writer.close()
        await asyncio.sleep(1)


async def _stream(port: int, last: str = "") -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 24)
    said = f"GET /live?parts={FOLLOWED} HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\nconnection: close\r\n"
    said += f"last-event-id: {last}\r\n" if last else ""
    writer.write(f"{said}\r\n".encode())
    return reader, writer


async def serve(url: str) -> None:
    """Run a dashboard until the parent has seen enough, or is gone."""
    import uvicorn  # imported here: the other benchmarks do without the extra

    logging.getLogger("mx_rmq").setLevel(logging.ERROR)
    mq = RedisMessageQueue(url, name="bench", server_check="off")
    listening = socket.create_server(("127.0.0.1", 0))
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # as mx-rmq web
    print(listening.getsockname()[1], flush=True)
    threading.Thread(target=lambda: (sys.stdin.read(), os._exit(0)), daemon=True).start()
    config = uvicorn.Config(mq.dashboard(), log_level="warning", access_log=False, lifespan="off")
    await uvicorn.Server(config).serve(sockets=[listening])


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1]))
