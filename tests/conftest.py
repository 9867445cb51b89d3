from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from redis.asyncio import Redis

from mx_rmq import RedisMessageQueue
from mx_rmq.storage.embedded import EmbeddedServer
from mx_rmq.storage.keys import Keys
from mx_rmq.storage.store import Store
from tests.harness import Clock, free_port, server_binaries
from tests.proxy import Proxy

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from tests.words import MakeQueue


@pytest.hookimpl(optionalhook=True)  # a plain pytest may run without the plugin
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """How many processes ``-n auto`` means: none but this one for files, tests and words (``-k``) named.

    Every other process collects all tests anew, which takes longer than a few tests do. ``-s`` stays here
    too: what another process prints is not shown. The whole suite gets a process for each core: at least
    two, because most tests wait, and at most four, because more was not tried.
    """
    files = all(Path(arg.partition("::")[0]).is_file() for arg in config.args)
    if files or config.option.keyword or config.option.capture == "no":
        return 0
    return min(max(2, os.cpu_count() or 1), 4)


@pytest.fixture(scope="session", params=server_binaries().items(), ids=lambda item: item[0])
def server(request: pytest.FixtureRequest) -> Iterator[EmbeddedServer]:
    """A private server of each kind at hand, shared by all tests."""
    _, binary = request.param
    with EmbeddedServer.open(binary=binary) as server:
        yield server


@pytest.fixture
async def redis(server: EmbeddedServer) -> AsyncIterator[Redis]:
    """A client of an empty server."""
    async with Redis(unix_socket_path=str(server.socket)) as client:
        await client.flushall()
        await client.script_flush()
        yield client


@pytest.fixture
async def tcp(redis: Redis) -> AsyncIterator[str]:
    """The URL of the same server over TCP."""
    port = free_port()
    await redis.config_set("port", port)
    yield f"redis://127.0.0.1:{port}"
    await redis.config_set("port", 0)


@pytest.fixture
def proxy(server: EmbeddedServer) -> Iterator[Proxy]:
    """A socket in front of the server that can fail."""
    with Proxy(server) as proxy:
        yield proxy


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def keys() -> Keys:
    return Keys("q")


@pytest.fixture
def store(redis: Redis, keys: Keys, clock: Clock) -> Store:
    return Store(redis, keys, now=clock)


@pytest.fixture
async def queue(server: EmbeddedServer, redis: Redis) -> AsyncIterator[RedisMessageQueue]:
    """An open queue on an empty server, as its users get it."""
    async with RedisMessageQueue(server.url, name="q", server_check="off") as queue:
        yield queue


@pytest.fixture
async def make_queue(server: EmbeddedServer, redis: Redis) -> AsyncIterator[MakeQueue]:
    """Makes queues on an empty server, for tests that run workers, and closes them."""
    made: list[RedisMessageQueue] = []

    def make(url: str = "", **options: Any) -> RedisMessageQueue:
        defaults: dict[str, Any] = {"name": "q", "server_check": "off", "stop_grace": 0.0, "concurrency": 8}
        queue = RedisMessageQueue(url or server.url, **(defaults | options))
        made.append(queue)
        return queue

    yield make
    for queue in reversed(made):
        await queue.close()


@pytest.fixture
async def mq(make_queue: MakeQueue) -> RedisMessageQueue:
    """One of those, open."""
    queue = make_queue()
    await queue.open()
    return queue
