"""An ASGI application behind a real HTTP server on loopback."""

from __future__ import annotations

import asyncio
import socket
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any

import uvicorn

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator


class _Server(uvicorn.Server):
    """Leaves signals to pytest."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@asynccontextmanager
async def serving(app: Any, *, lifespan: Any = "off", port: int = 0) -> AsyncIterator[str]:
    """Serve an application on a port, a free one for 0; gives its address, with a slash at its end."""
    listening = socket.create_server(("127.0.0.1", port))
    config = uvicorn.Config(app, log_level="critical", access_log=False, lifespan=lifespan, ws="none")
    config.timeout_graceful_shutdown = 1  # tabs may still listen
    server = _Server(config)
    running = asyncio.create_task(server.serve(sockets=[listening]))
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}/"
    finally:
        server.should_exit = True
        await running
        listening.close()
