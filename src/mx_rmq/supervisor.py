"""Worker processes: each is started, watched, and replaced if it dies."""

from __future__ import annotations

import json
import logging
import select
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from typing import Final

import msgspec

from mx_rmq.events import ProcessDied, ProcessesGivenUp, ProcessKilled, emit
from mx_rmq.message import shorten
from mx_rmq.observing.logs import Style

_TRIES: Final = 3
"""How often each process may die at once before they are given up."""
_QUICK: Final = 5.0
"""Seconds; a process that ends sooner than this after its start is replaced only after a pause."""
LONGEST: Final = 64_000
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
            return msgspec.json.decode(line.recv(LONGEST), type=Ending)
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
