"""Small ASGI applications, and a server for them where there is no web server."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, MutableMapping
from contextlib import asynccontextmanager, suppress
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

from mx_rmq.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]
"""An ASGI application."""
Answer = tuple[int, str, bytes]
"""The status, the content type and the body of a response."""

_PATIENCE: Final = 10.0
"""Seconds that a client has to send its request and to take the response."""
_MOST_HEAD: Final = 16 * 1024
"""Bytes of a request without its body, which is not read."""
_MOST_AT_ONCE: Final = 32


class AsgiApp:
    """An ASGI application that answers GET and HEAD, at any path it is mounted at.

    Args:
        answer: returns the response to a path and the header ``accept``.
    """

    def __init__(self, answer: Callable[[str, str], Awaitable[Answer]]) -> None:
        self._answer = answer

    def close(self) -> None:
        """End what the application does between requests."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, or take part in the start and the end of a server."""
        if scope["type"] == "lifespan":
            await _live(receive, send)
        elif scope["type"] != "http":
            raise ConfigError(f"this application answers HTTP, not {scope['type']}")
        elif scope["method"] not in ("GET", "HEAD"):
            await _respond(scope, send, (405, "text/plain", b"use GET\n"))
        else:
            accept = dict(scope["headers"]).get(b"accept", b"").decode("latin-1")
            await _respond(scope, send, await self._answer(scope["path"], accept))


async def _live(receive: Receive, send: Send) -> None:
    while True:
        kind = (await receive())["type"]
        await send({"type": f"{kind}.complete"})
        if kind == "lifespan.shutdown":
            return


async def _respond(scope: Scope, send: Send, answer: Answer) -> None:
    status, kind, body = answer
    headers = [(b"content-type", kind.encode()), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else body})


# -- without a web server


@asynccontextmanager
async def serving(app: App, host: str, port: int) -> AsyncIterator[int]:
    """Serve an application in this event loop inside the block; yields the port, which 0 leaves open.

    For scrapers and probes: one request per connection, no request bodies.

    Raises:
        ConfigError: the port cannot be used.
    """
    talks: set[asyncio.Task[None]] = set()

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        talks.add(task)
        try:
            if len(talks) <= _MOST_AT_ONCE:
                async with asyncio.timeout(_PATIENCE):
                    await _talk(app, reader, writer)
        except (OSError, TimeoutError):  # the client is gone, or too slow
            pass
        finally:
            talks.discard(task)
            writer.close()

    try:
        server = await asyncio.start_server(talk, host, port, limit=_MOST_HEAD)
    except OSError as error:
        raise ConfigError(
            f"port {port} of {host} cannot be used ({error.strerror or error}); each process needs its own"
        ) from error
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for task in list(talks):
            task.cancel()
        await asyncio.gather(*talks, return_exceptions=True)
        with suppress(TimeoutError):
            async with asyncio.timeout(1.0):
                await server.wait_closed()


async def _talk(app: App, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Read a request, and write the response of the application."""
    answer = 400, [(b"content-type", b"text/plain")], b"this is no request\n"
    with suppress(asyncio.IncompleteReadError, asyncio.LimitOverrunError, ValueError):
        head = await reader.readuntil(b"\r\n\r\n")
        answer = await _call(app, _scope(head))
    status, headers, body = answer
    lines = [f"HTTP/1.1 {status} {HTTPStatus(status).phrase}".encode()]
    lines += [name + b": " + value for name, value in headers]
    writer.write(b"\r\n".join([*lines, b"connection: close", b"", body]))
    await writer.drain()


def _scope(head: bytes) -> dict[str, Any]:
    """The scope of a request.

    Raises:
        ValueError: it is none.
    """
    first, *lines = head.decode("latin-1").split("\r\n")
    method, target, version = first.split(" ")
    if not version.startswith("HTTP/1."):
        raise ValueError(version)
    path, _, query = target.partition("?")
    pairs = [line.partition(":") for line in lines if line]
    return {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "scheme": "http",
        "method": method,
        "path": unquote(path),
        "raw_path": path.encode("latin-1"),
        "query_string": query.encode("latin-1"),
        "headers": [
            (name.lower().encode("latin-1"), value.strip().encode("latin-1")) for name, _, value in pairs
        ],
    }


async def _call(app: App, scope: Scope) -> tuple[int, list[tuple[bytes, bytes]], bytes]:
    sent: list[MutableMapping[str, Any]] = []

    async def receive() -> MutableMapping[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: MutableMapping[str, Any]) -> None:
        sent.append(message)

    try:
        await app(scope, receive, send)
    except Exception:
        logging.getLogger("mx_rmq").exception("%s %s failed", scope["method"], scope["path"])
        return 500, [(b"content-type", b"text/plain")], b"this failed; see the log\n"
    start, *rest = sent
    return start["status"], start["headers"], b"".join(part.get("body", b"") for part in rest)
