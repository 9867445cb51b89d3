"""Running a queue's worker as a program: in this process, or in several."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
import threading
from contextlib import nullcontext, suppress
from typing import TYPE_CHECKING, Any, Final

import msgspec

from mx_rmq.checks import check_installed, check_whole, refusal
from mx_rmq.errors import ConfigError, MxRmqError
from mx_rmq.finding import being_imported, find_queue
from mx_rmq.lifecycle import chosen
from mx_rmq.message import describe
from mx_rmq.observing.logs import configure, configure_program
from mx_rmq.queue import RedisMessageQueue
from mx_rmq.supervisor import LONGEST, Ending, Supervisor, WorkerOptions

if TYPE_CHECKING:
    from collections.abc import Collection
    from contextlib import AbstractContextManager

_MORE: Final = 10.0
"""Seconds that a process has to stop beyond what a stop takes at most: a loop that hangs says so first."""


def run(
    queue: RedisMessageQueue,
    *,
    until_idle: bool = False,
    topics: Collection[str] | None = None,
    metrics_port: int | None = None,
) -> None:
    """Run a queue's worker until SIGTERM or SIGINT, on uvloop where it is installed.

    Where the program has not configured logging, what happens is written to standard error.

    Args:
        queue: which.
        until_idle: return also when nothing is pending, running or due in the topics handled here.
        topics: serve only these; None for all that have a handler.
        metrics_port: where to serve ``/metrics``, ``/livez`` and ``/readyz``; None for nowhere.
    """
    if not hasattr(queue, "run"):
        raise refusal("queue", "the queue itself (run_processes takes its name)", queue)
    with suppress(RuntimeError):  # none runs
        asyncio.get_running_loop()
        raise ConfigError("an event loop runs here already; use 'await queue.run()' or 'await queue.start()'")
    configure()
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        try:
            runner.run(_work(queue, until_idle, topics, metrics_port))
        except MxRmqError as error:
            raise error.with_traceback(None) from None  # what to do is in its text; the frames are ours


async def _work(
    queue: RedisMessageQueue, until_idle: bool, topics: Collection[str] | None, metrics_port: int | None
) -> None:
    if metrics_port is None:
        await queue.run(until_idle=until_idle, topics=topics)
    else:
        async with queue.serve_metrics(metrics_port):
            await queue.run(until_idle=until_idle, topics=topics)


def run_with(queue: RedisMessageQueue, options: WorkerOptions) -> None:
    """Run a queue's worker with options of a program in place of the queue's own."""
    if options.log is not None:
        configure_program(options.log, options.level)
    with _overridden(queue, options):
        run(
            queue,
            until_idle=options.until_idle,
            topics=options.topics,
            metrics_port=options.metrics_port,
        )


def _overridden(queue: RedisMessageQueue, options: WorkerOptions) -> AbstractContextManager[None]:
    """The queue with the options in place of its own; untouched if there are none."""
    if options.url is None and options.name is None and options.concurrency is None:
        return nullcontext()
    return queue.override(options.url, name=options.name, concurrency=options.concurrency)


def run_processes(queue: str, processes: int, *, metrics_port: int | None = None) -> int:
    """Run a queue's worker in several processes until SIGTERM or SIGINT.

    A process that dies is replaced. Each process imports the queue itself, so nothing is shared.

    Args:
        queue: where to import it from, as ``package.module:name``.
        processes: how many.
        metrics_port: where the first process serves its metrics, as in ``run``. The second one has the next
            port, and so on; a process that replaces another has its port. None for nowhere.

    Returns:
        0 if all ended well after the signal, else 1.
    """
    if not isinstance(queue, str):
        raise refusal("queue", "where to import it from, such as 'package.module:name'", queue)
    return run_processes_with(WorkerOptions(queue=queue, metrics_port=metrics_port), processes)


def run_processes_with(options: WorkerOptions, processes: int) -> int:
    """Run ``run_processes`` with options of a program in place of the queue's own."""
    check_whole("processes", processes, 1)
    check_whole("metrics_port", options.metrics_port, 1, 65536 - processes, none="no metrics")
    if options.metrics_port is not None:
        check_installed("prometheus_client", "metrics")
    if options.queue.startswith("__main__:"):
        raise ConfigError("the processes cannot import __main__; put the queue into a module of its own")
    if being_imported:
        raise ConfigError(
            f"importing {being_imported[0]!r} calls run_processes again, as it would in every process; "
            'put the call under if __name__ == "__main__":'
        )
    found = find_queue(options.queue)  # what is wrong fails here, not in every process
    with _overridden(found, options):
        if found.config.server.is_private:
            raise ConfigError(
                f"with {found.config.url} each process would have a private server of its own; "
                "use embedded:///path, which they share"
            )
        patience = found.config.stop_grace + 5 * found.config.socket_timeout + _MORE
    chosen(found._handlers, options.topics)
    if options.log is None:
        configure()
    else:
        configure_program(options.log, options.level)
    return Supervisor(options, processes, patience=patience).run()


def _loop_factory() -> Any:
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


# -- a process


def child(lifeline: int) -> None:
    """Run a queue's worker in a process of a supervisor, which sends the options.

    Args:
        lifeline: a socket whose other end the supervisor holds: it ends with the supervisor.
    """
    # Ctrl-C reaches every process of the terminal; this one obeys only the SIGTERM of the supervisor.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
    with socket.socket(fileno=lifeline) as line:
        line.set_inheritable(False)
        options = _received(line)
        threading.Thread(target=_follow, args=[line], daemon=True).start()
        try:
            run_with(find_queue(options.queue), options)
        except MxRmqError as error:  # the supervisor tells it; the frames are ours
            line.sendall(_sent(error))
            sys.exit(1)
        except Exception as error:
            line.sendall(_sent(error))
            raise


def _received(line: socket.socket) -> WorkerOptions:
    text = b""
    while not text.endswith(b"\n"):
        some = line.recv(65536)
        if not some:  # the supervisor has ended
            sys.exit(1)
        text += some
    return msgspec.json.decode(text, type=WorkerOptions)


def _sent(error: Exception) -> bytes:
    text = str(error) if isinstance(error, MxRmqError) else describe(error).partition(": ")[2]
    return msgspec.json.encode(Ending(type(error).__name__, text[: LONGEST // 8]))


def _follow(line: socket.socket) -> None:
    """Stop this process when the supervisor has ended for any reason; nothing else would stop it."""
    with suppress(OSError):
        line.recv(1)
        os.kill(os.getpid(), signal.SIGTERM)
