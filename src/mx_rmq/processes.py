"""Running a queue's worker as a program: in this process, or in several."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import nullcontext, suppress
from typing import TYPE_CHECKING, Any, Final

import msgspec

from mx_rmq.checks import check_installed, check_whole, refusal
from mx_rmq.errors import ConfigError, MxRmqError
from mx_rmq.events import ProcessDied, ProcessesGivenUp, ProcessKilled, emit
from mx_rmq.finding import being_imported, find_queue
from mx_rmq.lifecycle import chosen
from mx_rmq.message import describe, shorten
from mx_rmq.observing.logs import Style, configure, configure_program
from mx_rmq.queue import RedisMessageQueue

if TYPE_CHECKING:
    from collections.abc import Collection
    from contextlib import AbstractContextManager

_TRIES = 3
"""How often each process may die at once before ``run_processes`` gives up."""
_QUICK = 5.0
"""Seconds; a process that ends sooner than this after its start is replaced only after a pause."""
_MORE: Final = 10.0
"""Seconds that a process has to stop beyond what a stop takes at most: a loop that hangs says so first."""
_LONGEST: Final = 64_000
"""Bytes of the text with which a process ends."""


class WorkerOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker program runs, and how."""

    queue: str
    """Where to import the queue from, as ``package.module:name``."""
    url: str | None = None
    """Another server than the queue's own."""
    name: str | None = None
    """Another name than the queue's own."""
    concurrency: int | None = None
    """Another number of handlers at once than the queue's own."""
    topics: tuple[str, ...] | None = None
    """Serve only these; None for all that have a handler."""
    until_idle: bool = False
    """End when nothing is left to do now."""
    metrics_port: int | None = None
    """Where the first process serves its metrics; the others have the ports after it. None for nowhere."""
    log: Style | None = None
    """How log lines look; None as for ``run``."""
    level: int = logging.INFO
    """The least level of what this package logs, if *log* is given."""


class Ending(msgspec.Struct, frozen=True, array_like=True):
    """The error that ended a process."""

    kind: str
    text: str

    @property
    def line(self) -> str:
        """The error on one line."""
        first = self.text.partition("\n")[0]
        return f"{self.kind}: {first}" if first else self.kind


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
    return msgspec.json.encode(Ending(type(error).__name__, text[: _LONGEST // 8]))


def _follow(line: socket.socket) -> None:
    """Stop this process when the supervisor has ended for any reason; nothing else would stop it."""
    with suppress(OSError):
        line.recv(1)
        os.kill(os.getpid(), signal.SIGTERM)


_CHILD = """
import json, sys
sys.path[:] = json.loads(sys.argv[1])
from mx_rmq.processes import child
child(int(sys.argv[2]))
"""


class Process:
    """A worker process, and a line to it that ends with it.

    Args:
        options: what it runs; they go over the line, since the URL may hold a password.
        number: which of the processes it is, from 0.
        output: a file for what it prints and logs; None for ours.
    """

    def __init__(self, options: WorkerOptions, number: int, output: int | None = None) -> None:
        self.number = number
        if options.metrics_port is not None:
            options = msgspec.structs.replace(options, metrics_port=options.metrics_port + number)
        self.line, theirs = socket.socketpair()
        before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])  # the child starts with it blocked
        try:
            with theirs:
                # Not multiprocessing: it would run the main module again, guarded or not.
                self._process = subprocess.Popen(
                    [sys.executable, "-c", _CHILD, json.dumps(sys.path), str(theirs.fileno())],
                    pass_fds=[theirs.fileno()],
                    stdout=output,
                    stderr=output,
                )
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        with suppress(OSError):  # it has ended already
            self.line.sendall(msgspec.json.encode(options) + b"\n")
        self.pid = self._process.pid
        self._started_at = time.monotonic()
        self._asked_at: float | None = None

    @property
    def age(self) -> float:
        """Seconds since its start."""
        return time.monotonic() - self._started_at

    @property
    def stopping_for(self) -> float:
        """Seconds since it was asked to stop; 0 if it was not."""
        return 0.0 if self._asked_at is None else time.monotonic() - self._asked_at

    @property
    def exit_code(self) -> int | None:
        """None while it runs; negative for a signal."""
        return self._process.poll()

    def terminate(self) -> None:
        """Ask it to stop."""
        if self._asked_at is None:
            self._asked_at = time.monotonic()
        self._process.terminate()

    def kill(self) -> None:
        """End it at once."""
        self._process.kill()

    def close(self) -> Ending | None:
        """Close the line to it; returns the error that ended it, if it sent one."""
        with self.line as line, suppress(OSError, msgspec.MsgspecError):
            line.setblocking(False)
            return msgspec.json.decode(line.recv(_LONGEST), type=Ending)
        return None


class Supervisor:
    """Keeps worker processes running until SIGTERM or SIGINT.

    Args:
        options: what each runs.
        processes: how many.
        output: a file for what they print and log; None for ours.
        patience: seconds after which a process that was asked to stop is killed; None for never.
    """

    _TURN = 1.0
    """Seconds after which to look at the processes, whatever they say."""

    def __init__(
        self,
        options: WorkerOptions,
        processes: int,
        *,
        output: int | None = None,
        patience: float | None = None,
    ) -> None:
        self._options = options
        self._count = processes
        self._patience = patience
        self._killed: set[int] = set()
        self._output = output
        self._running: list[Process] = []
        self._signals = 0
        self._quick = 0
        """Processes in a row that died at once, while no other lived long."""

    def run(self) -> int:
        """Start the processes, and return when all have ended: 0 if all ended well after a signal, else 1."""
        previous = {
            number: signal.signal(number, self._on_signal) for number in (signal.SIGTERM, signal.SIGINT)
        }
        worst = 0
        try:
            self._start_all()
            while self._running or self._is_waiting:
                select.select([process.line for process in self._running], [], [], self._TURN)
                time.sleep(0.01)  # its line ends a moment before the process does
                for process in [each for each in self._running if each.exit_code is not None]:
                    worst = max(worst, self._ended(process))
                self._kill_late()
                self._look()
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)
        return worst

    def _kill_late(self) -> None:
        """Kill processes that have not stopped in time: their interpreter hangs, or they stand still."""
        for process in self._running:
            seconds = process.stopping_for
            if self._patience is not None and seconds > self._patience and process.pid not in self._killed:
                self._killed.add(process.pid)
                process.kill()
                emit(ProcessKilled(pid=process.pid, seconds=round(seconds, 1)))

    @property
    def _is_waiting(self) -> bool:
        """Whether to go on though no process runs."""
        return False

    def _look(self) -> None:
        """Do what is to be done at every turn."""

    def _start_all(self) -> None:
        for number in range(self._count):
            self._start(number)

    def _start(self, number: int) -> None:
        process = Process(self._options, number, self._output)
        self._running.append(process)
        if self._signals:  # a signal came while it was starting
            process.terminate()

    def _ended(self, process: Process) -> int:
        """Handle the end of a process: start another unless a stop was requested."""
        self._running.remove(process)
        code, ending = process.exit_code, process.close()
        if self._signals:
            # Killed by SIGTERM itself: it came before the worker had started.
            return 0 if code in (0, -signal.SIGTERM) else 1
        if self._options.until_idle and code == 0:
            return 0
        reason = shorten(ending.line) if ending else ""
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
            self._start(process.number)
        return 0

    def _on_signal(self, number: int, _: object) -> None:
        """Pass a signal on to every process; a second signal reaches the workers as their second one."""
        self._signals += 1
        for process in self._running:
            if process.exit_code is None:
                process.terminate()
