from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from mx_rmq import RedisMessageQueue

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from redis.asyncio import Redis

    from mx_rmq.storage.embedded import EmbeddedServer
    from tests.worker.helpers import MakeQueue


@pytest.fixture
async def make_queue(server: EmbeddedServer, redis: Redis) -> AsyncIterator[MakeQueue]:
    """Makes queues on an empty server, and closes them."""
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
    """A queue that is open."""
    queue = make_queue()
    await queue.open()
    return queue


@pytest.fixture
def watchful(monkeypatch: pytest.MonkeyPatch) -> None:
    """Monitors look twenty times a second."""
    monkeypatch.setattr("mx_rmq.worker.monitor._INTERVAL", 0.05)
