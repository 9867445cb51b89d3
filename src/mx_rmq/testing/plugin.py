"""Fixtures for pytest, for those who ask: ``pytest_plugins = ["mx_rmq.testing.plugin"]``.

They are plain fixtures, so they work with pytest-asyncio, with anyio and without either.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from mx_rmq.queue import RedisMessageQueue
from mx_rmq.storage.embedded import EmbeddedServer

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def mx_rmq_url() -> Iterator[str]:
    """The URL of a real server for this test alone; it is empty, in memory, and gone afterwards."""
    server = EmbeddedServer.open()
    try:
        yield server.url
    finally:
        server.close(expected=True)


@pytest.fixture
def mx_rmq_queue(mx_rmq_url: str) -> Iterator[RedisMessageQueue]:
    """A queue on that server, to be opened by the test: ``async with mx_rmq_queue:``."""
    queue = RedisMessageQueue(mx_rmq_url, server_check="off")
    try:
        yield queue
    finally:
        queue.sync.close()
