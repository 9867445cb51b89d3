"""Running a queue's worker as a program: in this process, or in several."""

from __future__ import annotations

import asyncio
import importlib
import multiprocessing
import multiprocessing.connection
import os
import signal
import threading
import time
from typing import TYPE_CHECKING, Any

from mx_rmq.checks import check_whole
from mx_rmq.errors import ConfigError
from mx_rmq.events import ProcessDied, emit
from mx_rmq.queue import RedisMessageQueue

if TYPE_CHECKING:
    from multiprocessing.process import BaseProcess

_QUICK = 5.0
"""Seconds; a process that ends sooner than this after its start is replaced only after a pause."""


def run(queue: RedisMessageQueue) -> None:
    """Run a queue's worker until SIGTERM or SIGINT, on uvloop where it is installed."""
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        runner.run(queue.run())


def run_processes(queue: str, processes: int) -> int:
    """Run a queue's worker in several processes until SIGTERM or SIGINT.

    A process that dies is replaced. Each process imports the queue itself, so nothing is shared.

    Args:
        queue: where to import it from, as ``package.module:name``.
        processes: how many.

    Returns:
        0 if all ended well after the signal, else 1.
    """
    check_whole("processes", processes, 1)
    find_queue(queue)  # a wrong name fails here, not in every process
    return _Supervisor(queue, processes).run()


def find_queue(where: str) -> RedisMessageQueue:
    """Import a queue named as ``package.module:name``.

    Raises:
        ConfigError: there is no queue of this name.
    """
    module, _, name = where.partition(":")
    if not module or not name:
        raise ConfigError(f"{where!r} does not name a queue; write it as package.module:name")
    try:
        found: Any = importlib.import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        raise ConfigError(f"{where!r} cannot be found: {error}") from error
    if not isinstance(found, RedisMessageQueue):
        raise ConfigError(f"{where!r} is a {type(found).__name__}, not a RedisMessageQueue")
    return found


def _loop_factory() -> Any:
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


def _child(where: str) -> None:
    # Ctrl-C reaches every process of the terminal; this one obeys only the SIGTERM of the supervisor.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
    threading.Thread(target=_follow, daemon=True).start()
    run(find_queue(where))


def _follow() -> None:
    """Stop this process when the supervisor has ended for any reason; nothing else would stop it."""
    supervisor = multiprocessing.parent_process()
    assert supervisor is not None
    supervisor.join()
    os.kill(os.getpid(), signal.SIGTERM)


class _Supervisor:
    def __init__(self, queue: str, processes: int) -> None:
        self._queue = queue
        self._count = processes
        self._context = multiprocessing.get_context("spawn")
        self._running: dict[BaseProcess, float] = {}
        self._signals = 0

    def run(self) -> int:
        previous = {
            number: signal.signal(number, self._on_signal) for number in (signal.SIGTERM, signal.SIGINT)
        }
        worst = 0
        try:
            for _ in range(self._count):
                self._start()
            while self._running:
                multiprocessing.connection.wait([process.sentinel for process in self._running], timeout=1.0)
                for process in [p for p in self._running if not p.is_alive()]:
                    worst = max(worst, self._ended(process))
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)
        return worst

    def _start(self) -> None:
        process = self._context.Process(target=_child, args=(self._queue,))
        before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])  # the child starts with it blocked
        try:
            process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        self._running[process] = time.monotonic()
        if self._signals:  # a signal came while it was starting
            process.terminate()

    def _ended(self, process: BaseProcess) -> int:
        """Handle the end of a process: start another unless a stop was requested."""
        lived = time.monotonic() - self._running.pop(process)
        if self._signals:
            # Killed by SIGTERM itself: it came before the worker had started.
            return 0 if process.exitcode in (0, -signal.SIGTERM) else 1
        emit(ProcessDied(pid=process.pid or 0, exit_code=process.exitcode))
        if lived < _QUICK:
            time.sleep(1.0)
        if not self._signals:
            self._start()
        return 0

    def _on_signal(self, number: int, _: object) -> None:
        """Pass a signal on to every process; a second signal reaches the workers as their second one."""
        self._signals += 1
        for process in self._running:
            if process.is_alive() and process.pid is not None:
                process.terminate()
