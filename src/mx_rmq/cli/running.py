"""``mx-rmq run``: a queue's worker as a program."""

from __future__ import annotations

import logging
import os
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from mx_rmq.checks import check_whole
from mx_rmq.cli.exits import Exit, Failure, UsageError
from mx_rmq.cli.reloading import Reloading
from mx_rmq.cli.settings import from_pyproject
from mx_rmq.cli.watching import Watched
from mx_rmq.errors import ConfigError
from mx_rmq.finding import find_queue
from mx_rmq.observing.logs import configure_program
from mx_rmq.processes import run_processes_with, run_with
from mx_rmq.supervisor import WorkerOptions

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

Concurrency = Annotated[int | None, Parameter(name=("--concurrency", "-c"))]
Directories = Annotated[list[Path] | None, Parameter(name="--reload-dir")]
Log = Literal["auto", "plain", "json"]
Quiet = Annotated[bool, Parameter(name=("--quiet", "-q"))]


def run_worker(
    app: str | None = None,
    /,
    *,
    concurrency: Concurrency = None,
    topics: str | None = None,
    processes: int = 1,
    burst: bool = False,
    reload: bool = False,
    reload_dir: Directories = None,
    metrics_port: int | None = None,
    log: Log = "auto",
    url: str | None = None,
    queue: str | None = None,
    quiet: Quiet = False,
) -> int:
    """Run a queue's worker until Ctrl-C or SIGTERM; a second one stops running handlers at once.

    Args:
        app: the queue as package.module:name; else app in [tool.mx-rmq] of pyproject.toml.
        concurrency: how many handlers run at once in a process, in place of the queue's own.
        topics: serve only these, separated by commas.
        processes: how many processes.
        burst: end when nothing is left to do now.
        reload: start again when a .py file below the current directory changes.
        reload_dir: watch this directory instead; may be given several times.
        metrics_port: serve /metrics, /livez and /readyz there; further processes have the ports after it.
        log: auto (coloured on a terminal, else plain; what the module has configured stays), plain or json.
        url: another server than the queue's own.
        queue: another name than the queue's own.
        quiet: log warnings and errors only.
    """
    check_whole("--processes", processes, 1)
    check_whole("--metrics-port", metrics_port, 1, 65536 - processes, none="no metrics")
    where = enter_project(app)
    options = WorkerOptions(
        queue=where,
        url=url,
        name=queue,
        concurrency=concurrency,
        topics=topics_of(topics),
        until_idle=burst,
        metrics_port=metrics_port,
        log=log,
        level=level_of(quiet),
    )
    if reload or reload_dir:
        if burst:
            raise UsageError("--burst ends by itself and --reload does not; give one of them")
        watched = watched_in(reload_dir)
        configure_program(log, options.level)
        return Reloading(options, processes, watched).run()
    with _explained():
        found = find_queue(where)
        if not found._handlers:
            raise UsageError(
                f"{where!r} has no handler; name a module that registers them, "
                f"such as shop.handlers:{where.partition(':')[2]} if that imports the queue"
            )
        if processes != 1:
            return run_processes_with(options, processes)
        run_with(found, options)
    return Exit.DONE


def enter_project(app: str | None) -> str:
    """Import modules from the current directory, and use its settings; returns where the queue is."""
    here = str(Path.cwd())
    if sys.path[:1] != [here]:
        sys.path.insert(0, here)
    table = from_pyproject(Path.cwd())
    if "url" in table and not os.environ.get("MX_RMQ_URL"):
        os.environ["MX_RMQ_URL"] = table["url"]  # for a queue that names no server itself
    where = app or table.get("app")
    if not where:
        raise UsageError(
            "which queue? give it as package.module:name, or set app in [tool.mx-rmq] of pyproject.toml"
        )
    return where


def topics_of(text: str | None) -> tuple[str, ...] | None:
    """Topics such as ``orders,mails``; None for all."""
    if text is None:
        return None
    return tuple(topic for part in text.split(",") if (topic := part.strip()))


def level_of(quiet: bool) -> int:
    """The least level of what is logged."""
    return logging.WARNING if quiet else logging.INFO


def watched_in(directories: Sequence[Path] | None) -> Watched:
    """The files to watch."""
    for directory in directories or ():
        if not directory.is_dir():
            raise UsageError(f"--reload-dir must be a directory, got {str(directory)!r}")
    return Watched([each.absolute() for each in directories or [Path.cwd()]])


@contextmanager
def _explained() -> Iterator[None]:
    """An error inside the user's module is a failure; every other one is what was typed."""
    try:
        yield
    except ConfigError as error:
        if error.__cause__ is None:
            raise
        raise Failure(str(error)) from None
