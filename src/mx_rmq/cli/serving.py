"""``mx-rmq serve``: the bundled server in the foreground."""

from __future__ import annotations

import os
import signal
import socket
import threading
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from mx_rmq.checks import check_whole
from mx_rmq.cli.exits import Exit, Failure
from mx_rmq.cli.output import Output
from mx_rmq.cli.settings import Common
from mx_rmq.storage.embedded import EmbeddedServer


def serve(
    *,
    directory: Annotated[Path, Parameter(name="--dir")] = Path("data"),
    port: int = 0,
    json: bool = False,
    quiet: Annotated[bool, Parameter(name=("--quiet", "-q"))] = False,
) -> int:
    """Run the bundled server in the foreground until Ctrl-C or SIGTERM, and print its URL.

    Args:
        directory: where its data is; made if it is not there. Default: ./data
        port: a TCP port of this computer to listen at too. Default: 0, a unix socket only
        json: print the URL in a JSON document.
        quiet: print no remarks.
    """
    check_whole("--port", port, 0, 65535)
    out = Output(Common(json=json, quiet=quiet))
    over = threading.Event()
    previous = {
        number: signal.signal(number, lambda *_: over.set()) for number in (signal.SIGTERM, signal.SIGINT)
    }
    if port:
        _refuse_taken(port)
    options = ["--port", str(port), "--bind", "127.0.0.1"] if port else []
    server = EmbeddedServer.open(directory, options=options, attach=False)
    try:
        home = directory.resolve()
        url = f"redis://127.0.0.1:{port}/0" if port else server.url
        out.record({"url": url, "dir": str(home), "pid": server.pid}, url)
        out.remark(f"the data is in {home}, the server's log in {home / 'server.log'}; Ctrl-C ends it")
        while not over.wait(0.5):
            if not server.is_running:
                raise Failure(f"the server has ended; {home / 'server.log'} says why")
    finally:
        server.close()
        for number, handler in previous.items():
            signal.signal(number, handler)
    if server.is_running:
        out.remark(f"other programs use embedded://{home}; the server ends with the last of them")
    return Exit.DONE


def _refuse_taken(port: int) -> None:
    try:
        socket.create_server(("127.0.0.1", port)).close()
    except OSError as error:
        raise Failure(
            f"port {port} cannot be used ({os.strerror(error.errno or 0)}); choose another one with --port"
        ) from None
