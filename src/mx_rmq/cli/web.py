"""``mx-rmq web``: the dashboard by itself."""

from __future__ import annotations

import os
import socket
from contextlib import contextmanager
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any, Final

from mx_rmq.checks import check_installed, check_whole
from mx_rmq.cli.connecting import opened, place_of
from mx_rmq.cli.exits import Exit, Failure, UsageError
from mx_rmq.cli.output import Output
from mx_rmq.cli.settings import Common
from mx_rmq.signals import on_signals

if TYPE_CHECKING:
    from collections.abc import Generator

_DEFAULT = Common()
_PORT: Final = 8787
_USERS: Final = "MX_RMQ_WEB_USERS"
_TOKEN: Final = "MX_RMQ_WEB_TOKEN"  # noqa: S105 - the name of a variable


async def web(
    *,
    port: int = _PORT,
    host: str = "127.0.0.1",
    read_only: bool = False,
    redact: tuple[str, ...] = (),
    common: Common = _DEFAULT,
) -> int:
    """Show the queue in a browser until Ctrl-C or SIGTERM, and print the address.

    Only this computer is answered, unless MX_RMQ_WEB_TOKEN has a token to log in with, or MX_RMQ_WEB_USERS
    has names and passwords: anna:long-secret,ben:other-secret.

    Args:
        port: where to listen; 0 takes a free one. Default: 8787
        host: the address to listen at. Default: 127.0.0.1
        read_only: refuse every change.
        redact: a field of payloads and headers to hide, such as password or customer.mail; may be given
            again.
    """
    check_whole("--port", port, 0, 65535)
    for package in ("starlette", "jinja2", "uvicorn"):
        check_installed(package, "web")
    token = os.environ.get(_TOKEN) or None
    if not token and not os.environ.get(_USERS) and not _is_loopback(host):
        raise UsageError(
            f"--host {host} can be reached by other computers; set {_TOKEN} to a token, or {_USERS} to "
            "name:password"
        )
    out = Output(common)
    async with opened(common, must_exist=False) as queue:
        app = queue.dashboard(auth=token, read_only=read_only, redact=redact)
        listening = _listen(host, port)
        place = f"[{host}]" if ":" in host else host
        url = f"http://{place}:{listening.getsockname()[1]}/"
        out.record({"url": url, "queue": queue.config.name}, url)
        out.remark(f"{place_of(queue)}{', read only' if read_only else ''}; Ctrl-C ends it")
        await _serve(app, listening)
        app.close()
    return Exit.DONE


async def _serve(app: Any, listening: socket.socket) -> None:
    import uvicorn  # imported here: it needs the extra

    class Server(uvicorn.Server):
        """Leaves signals to us: uvicorn would raise them again at its end, as if the command had failed."""

        @contextmanager
        def capture_signals(self) -> Generator[None, None, None]:
            yield

    config = uvicorn.Config(app, log_level="warning", access_log=False, lifespan="on", server_header=False)
    config.timeout_graceful_shutdown = 1  # a page that is open keeps its answer open
    server = Server(config)

    def on_signal() -> None:
        server.force_exit = server.should_exit
        server.should_exit = True

    with on_signals(on_signal):
        await server.serve(sockets=[listening])


def _listen(host: str, port: int) -> socket.socket:
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listening = socket.create_server((host, port), family=family)
    except OSError as error:
        said = os.strerror(error.errno) if error.errno and error.errno > 0 else str(error)
        raise Failure(
            f"port {port} of {host} cannot be used ({said}); choose another one with --port"
        ) from None
    # Connections inherit it. asyncio sets it only on sockets that it opens itself; without it an answer that
    # is written in two parts waits 40 ms for the browser's acknowledgement of the first.
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listening


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False
