"""Worker processes that start again when the code changes."""

from __future__ import annotations

import logging
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from mx_rmq.supervisor import Supervisor

if TYPE_CHECKING:
    from mx_rmq.cli.watching import Watched
    from mx_rmq.supervisor import Process, WorkerOptions

_log: Final = logging.getLogger("mx_rmq.cli")


class Reloading(Supervisor):
    """Keeps worker processes running, and starts them again when a file has changed.

    A process that ends by itself, such as for a syntax error, starts again at the next change.

    Args:
        options: what each runs.
        processes: how many.
        watched: the files.
        output: a file for what they print and log; None for ours.
    """

    _TURN = 0.5

    def __init__(
        self, options: WorkerOptions, processes: int, watched: Watched, *, output: int | None = None
    ) -> None:
        super().__init__(options, processes, output=output)
        self._watched = watched
        self._restarting = False
        self._look_at = 0.0
        # A compiled file is found by the second of the source's change: a quick second change goes unseen.
        os.environ["PYTHONDONTWRITEBYTECODE"] = "1"

    @property
    def _is_waiting(self) -> bool:
        return not self._signals

    def _look(self) -> None:
        if self._signals or time.monotonic() < self._look_at:
            return
        self._look_at = time.monotonic() + self._TURN
        changed = self._watched.changed()
        if not changed:
            return
        more = f" and {len(changed) - 1} more" if len(changed) > 1 else ""
        _say(logging.INFO, "code.changed", f"{_short(changed[0])}{more}; the worker starts again")
        if not self._restarting:  # a second signal would end running handlers at once
            self._restarting = True
            for process in self._running:
                process.terminate()
        self._start_again()

    def _ended(self, process: Process) -> int:
        if self._signals:
            return super()._ended(process)
        self._running.remove(process)
        ending = process.close()
        if self._restarting:
            self._start_again()
        else:
            why = ending.text if ending else f"exit code {process.exit_code}"
            _say(logging.ERROR, "worker.ended", f"{why}\nwaiting for a change of the code")
        return 0

    def _start_again(self) -> None:
        if self._restarting and not self._running and not self._signals:
            self._restarting = False
            self._start_all()


def _say(level: int, event: str, text: str) -> None:
    _log.log(level, "%s: %s", event, text, extra={"event": event})


def _short(file: str) -> str:
    path = Path(file)
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else file
