"""The broken shop of examples/, as a program."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from tests.project.pages import ROOT

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from mx_rmq import RedisMessageQueue
    from mx_rmq.storage.embedded import EmbeddedServer
    from tests.words import MakeQueue


@asynccontextmanager
async def broken_shop(
    server: EmbeddedServer, make_queue: MakeQueue, *, orders: int
) -> AsyncIterator[RedisMessageQueue]:
    """The shop's queue, open while the shop runs: for five minutes at most."""
    child = await asyncio.create_subprocess_exec(
        *(sys.executable, "examples/broken_shop.py", "--seconds", "300", "--orders", str(orders)),
        cwd=ROOT,
        env=os.environ | {"MX_RMQ_URL": server.url},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    assert child.stdout is not None
    try:
        assert await child.stdout.readline() == b"The shop is broken. In another terminal:\n"
        queue = make_queue(name="shop")
        await queue.open()
        yield queue
    finally:
        child.send_signal(signal.SIGINT)
        await child.communicate()
    assert child.returncode == 0
