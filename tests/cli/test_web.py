"""``mx-rmq web``, with a real HTTP server."""

from __future__ import annotations

import json
import signal
from typing import TYPE_CHECKING

import httpx
import pytest

from mx_rmq import RedisMessageQueue
from tests.cli.programs import running
from tests.words import ONE_SERVER

if TYPE_CHECKING:
    from mx_rmq.storage.embedded import EmbeddedServer
    from tests.cli.conftest import Cli

pytestmark = ONE_SERVER


@pytest.mark.usefixtures("redis")  # the server is empty
async def test_it_shows_the_queue_live_until_it_is_stopped(cli: Cli, server: EmbeddedServer) -> None:
    async with RedisMessageQueue(server.url, name="q", server_check="off") as queue:
        await queue.produce_many("orders", range(77))
    async with running(cli, "web", "--port", "0") as program:
        url = await program.says("http://127.0.0.1:", on="out")
        async with httpx.AsyncClient(base_url=url.strip()) as http:
            page = await http.get("/")
            assert page.status_code == 200
            assert "topic-orders" in page.text
            async with http.stream("GET", "/live", params={"parts": "topics"}) as stream:
                assert stream.headers["content-type"].startswith("text/event-stream")
                async for line in stream.aiter_lines():
                    if line.startswith("data: "):
                        assert "77" in json.loads(line.removeprefix("data: "))["html"]["topic-orders"]
                        break
                program.send(signal.SIGTERM)  # while a tab listens
                assert await program.code() == 0


async def test_other_computers_need_a_login(cli: Cli) -> None:
    ran = await cli("web", "--host", "0.0.0.0")
    assert ran.code == 2
    assert "set MX_RMQ_WEB_TOKEN to a token, or MX_RMQ_WEB_USERS to name:password" in ran.err


async def test_a_taken_port_is_said(cli: Cli) -> None:
    async with running(cli, "web", "--port", "0", "--json", "-q") as program:
        url = json.loads(await program.says("url", on="out"))["url"]
        port = url.rstrip("/").rpartition(":")[2]
        ran = await cli("web", "--port", port)
        assert ran.code == 1
        assert f"port {port} of 127.0.0.1 cannot be used (Address already in use)" in ran.err
