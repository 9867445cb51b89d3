from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from mx_rmq import RedisMessageQueue

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from redis.asyncio import Redis

    from mx_rmq.storage.embedded import EmbeddedServer


@pytest.fixture
async def queue(server: EmbeddedServer, redis: Redis) -> AsyncIterator[RedisMessageQueue]:
    """An open queue on an empty server."""
    async with RedisMessageQueue(server.url, name="q", server_check="off") as queue:
        yield queue
