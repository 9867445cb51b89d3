"""``mx-rmq dev``: the bundled server, a worker that reloads and a view of the topics in one command."""

from __future__ import annotations

import os
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from mx_rmq.cli.board import Board
from mx_rmq.cli.output import Output
from mx_rmq.cli.reloading import Reloading
from mx_rmq.cli.running import (
    Concurrency,
    Directories,
    Log,
    Quiet,
    enter_project,
    level_of,
    topics_of,
    watched_in,
)
from mx_rmq.cli.settings import Common
from mx_rmq.observing.logs import configure_program, is_coloured
from mx_rmq.storage.embedded import EmbeddedServer
from mx_rmq.supervisor import WorkerOptions

_HOME: Final = Path(".mx-rmq")


def dev(
    app: str | None = None,
    /,
    *,
    fresh: bool = False,
    concurrency: Concurrency = None,
    topics: str | None = None,
    reload_dir: Directories = None,
    log: Log = "auto",
    quiet: Quiet = False,
) -> int:
    """Develop a queue: the bundled server, a worker that starts again when the code changes, a live table.

    The queue of the module uses this server, whatever its own is. The server's URL is printed, for producers
    in other terminals.

    Args:
        app: the queue as package.module:name; else app in [tool.mx-rmq] of pyproject.toml.
        fresh: begin with an empty server, and forget it at the end; else the data is in .mx-rmq/ here.
        concurrency: how many handlers run at once, in place of the queue's own.
        topics: serve only these, separated by commas.
        reload_dir: watch this directory instead of the current one; may be given several times.
        log: auto (coloured on a terminal, with the table; else plain), plain or json.
        quiet: log warnings and errors only.
    """
    where = enter_project(app)
    watched = watched_in(reload_dir)
    out = Output(Common(quiet=quiet))
    with ExitStack() as stack:
        server = EmbeddedServer.open(None if fresh else _home())
        stack.callback(server.close, expected=True)
        os.environ["MX_RMQ_URL"] = server.url
        out.raw(f"MX_RMQ_URL={server.url}", flush=True)
        options = WorkerOptions(
            queue=where,
            url=server.url,
            concurrency=concurrency,
            topics=topics_of(topics),
            log=log,
            level=level_of(quiet),
        )
        if log != "auto" or not sys.stderr.isatty():
            configure_program(log, options.level)
            return Reloading(options, 1, watched).run()
        coloured = is_coloured()
        if coloured:
            os.environ["FORCE_COLOR"] = "1"  # the worker writes into a pipe of ours
        os.environ["PYTHONUNBUFFERED"] = "1"
        board = stack.enter_context(Board(server.url))
        stream = stack.enter_context(os.fdopen(os.dup(board.output), "w", buffering=1))
        configure_program("colour" if coloured else "plain", options.level, stream)
        return Reloading(options, 1, watched, output=board.output).run()


def _home() -> Path:
    """The directory of the data, kept out of version control."""
    home = Path.cwd() / _HOME
    if not home.exists():
        home.mkdir(mode=0o700)
        (home / ".gitignore").write_text("*\n")
    return home
