"""Running a queue's worker as a program: in this process, or in several."""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress
from typing import Any

from mx_rmq.checks import check_installed, check_whole
from mx_rmq.errors import ConfigError, MxRmqError
from mx_rmq.events import ProcessDied, ProcessesGivenUp, emit
from mx_rmq.message import describe
from mx_rmq.observing.logs import configure
from mx_rmq.queue import RedisMessageQueue

_TRIES = 3
"""How often each process may die at once before ``run_processes`` gives up."""
_QUICK = 5.0
"""Seconds; a process that ends sooner than this after its start is replaced only after a pause."""
_finding: list[str] = []
"""The queues that are being imported now."""


def run(queue: RedisMessageQueue, *, until_idle: bool = False, metrics_port: int | None = None) -> None:
    """Run a queue's worker until SIGTERM or SIGINT, on uvloop where it is installed.

    Where the program has not configured logging, what happens is written to standard error.

    Args:
        queue: which.
        until_idle: return also when nothing is pending, running or due in the topics handled here.
        metrics_port: where to serve ``/metrics``, ``/livez`` and ``/readyz``; None for nowhere.
    """
    configure()
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        try:
            runner.run(_work(queue, until_idle, metrics_port))
        except MxRmqError as error:
            raise error.with_traceback(None) from None  # what to do is in its text; the frames are ours


async def _work(queue: RedisMessageQueue, until_idle: bool, metrics_port: int | None) -> None:
    if metrics_port is None:
        await queue.run(until_idle=until_idle)
    else:
        async with queue.serve_metrics(metrics_port):
            await queue.run(until_idle=until_idle)


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
    check_whole("processes", processes, 1)
    check_whole("metrics_port", metrics_port, 1, 65536 - processes, none="no metrics")
    if metrics_port is not None:
        check_installed("prometheus_client", "metrics")
    if queue.startswith("__main__:"):
        raise ConfigError("the processes cannot import __main__; put the queue into a module of its own")
    if _finding:
        raise ConfigError(
            f"importing {_finding[0]!r} calls run_processes again, as it would in every process; "
            'put the call under if __name__ == "__main__":'
        )
    found = find_queue(queue)  # a wrong name fails here, not in every process
    if found.config.url == "embedded://":
        raise ConfigError(
            "with embedded:// each process would have a private server of its own; "
            "use embedded:///path, which they share"
        )
    configure()
    return _Supervisor(queue, processes, metrics_port).run()


def find_queue(where: str) -> RedisMessageQueue:
    """Import a queue named as ``package.module:name``.

    Raises:
        ConfigError: there is no queue of this name.
    """
    module, _, name = where.partition(":")
    if not module or not name:
        raise ConfigError(f"{where!r} does not name a queue; write it as package.module:name")
    _finding.append(where)
    try:
        found: Any = importlib.import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    except MxRmqError:  # the module itself was told what is wrong with it
        raise
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        raise ConfigError(f"{where!r} cannot be found: {error}") from error
    finally:
        _finding.pop()
    if not isinstance(found, RedisMessageQueue):
        raise ConfigError(f"{where!r} is a {type(found).__name__}, not a RedisMessageQueue")
    return found


def _loop_factory() -> Any:
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


def child(lifeline: int, where: str, metrics_port: int | None = None) -> None:
    """Run a queue's worker in a process of ``run_processes``.

    Args:
        lifeline: a socket whose other end the supervisor holds: it ends with the supervisor.
        where: the queue.
        metrics_port: as for ``run``.
    """
    # Ctrl-C reaches every process of the terminal; this one obeys only the SIGTERM of the supervisor.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
    with socket.socket(fileno=lifeline) as line:
        line.set_inheritable(False)
        threading.Thread(target=_follow, args=[line], daemon=True).start()
        try:
            run(find_queue(where), metrics_port=metrics_port)
        except Exception as error:
            line.sendall(describe(error).encode())
            raise


def _follow(line: socket.socket) -> None:
    """Stop this process when the supervisor has ended for any reason; nothing else would stop it."""
    with suppress(OSError):
        line.recv(1)
        os.kill(os.getpid(), signal.SIGTERM)


_CHILD = """
import json, sys
sys.path[:] = json.loads(sys.argv[1])
from mx_rmq.processes import child
child(int(sys.argv[2]), sys.argv[3], json.loads(sys.argv[4]))
"""


class _Process:
    """A worker process, and a line to it that ends with it."""

    def __init__(self, where: str, metrics_port: int | None) -> None:
        self.metrics_port = metrics_port
        self.line, theirs = socket.socketpair()
        before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])  # the child starts with it blocked
        try:
            with theirs:
                arguments = [json.dumps(sys.path), str(theirs.fileno()), where, json.dumps(metrics_port)]
                # Not multiprocessing: it would run the main module again, guarded or not.
                self._process = subprocess.Popen(
                    [sys.executable, "-c", _CHILD, *arguments], pass_fds=[theirs.fileno()]
                )
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        self.pid = self._process.pid
        self._started_at = time.monotonic()

    @property
    def age(self) -> float:
        """Seconds since its start."""
        return time.monotonic() - self._started_at

    @property
    def exit_code(self) -> int | None:
        """None while it runs; negative for a signal."""
        return self._process.poll()

    def terminate(self) -> None:
        """Ask it to stop."""
        self._process.terminate()

    def close(self) -> str:
        """Close the line to it; returns the error that ended it, if it sent one."""
        with self.line as line, suppress(OSError):
            line.setblocking(False)
            return line.recv(4096).decode(errors="replace")
        return ""


class _Supervisor:
    def __init__(self, queue: str, processes: int, metrics_port: int | None = None) -> None:
        self._queue = queue
        self._metrics_port = metrics_port
        self._count = processes
        self._running: list[_Process] = []
        self._signals = 0
        self._quick = 0
        """Processes in a row that died at once, while no other lived long."""

    def run(self) -> int:
        previous = {
            number: signal.signal(number, self._on_signal) for number in (signal.SIGTERM, signal.SIGINT)
        }
        worst = 0
        try:
            for number in range(self._count):
                self._start(None if self._metrics_port is None else self._metrics_port + number)
            while self._running:
                select.select([process.line for process in self._running], [], [], 1.0)
                time.sleep(0.01)  # its line ends a moment before the process does
                for process in [each for each in self._running if each.exit_code is not None]:
                    worst = max(worst, self._ended(process))
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)
        return worst

    def _start(self, metrics_port: int | None) -> None:
        process = _Process(self._queue, metrics_port)
        self._running.append(process)
        if self._signals:  # a signal came while it was starting
            process.terminate()

    def _ended(self, process: _Process) -> int:
        """Handle the end of a process: start another unless a stop was requested."""
        self._running.remove(process)
        code, reason = process.exit_code, process.close()
        if self._signals:
            # Killed by SIGTERM itself: it came before the worker had started.
            return 0 if code in (0, -signal.SIGTERM) else 1
        emit(ProcessDied(pid=process.pid, exit_code=code, reason=reason))
        lasting = process.age >= _QUICK or any(other.age >= _QUICK for other in self._running)
        self._quick = 0 if lasting else self._quick + 1
        if self._quick >= _TRIES * self._count:
            emit(ProcessesGivenUp(tries=self._quick, reason=reason or f"exit code {code}"))
            self._on_signal(signal.SIGTERM, None)
            return 1
        if not lasting:
            time.sleep(1.0)
        if not self._signals:
            self._start(process.metrics_port)
        return 0

    def _on_signal(self, number: int, _: object) -> None:
        """Pass a signal on to every process; a second signal reaches the workers as their second one."""
        self._signals += 1
        for process in self._running:
            if process.exit_code is None:
                process.terminate()
