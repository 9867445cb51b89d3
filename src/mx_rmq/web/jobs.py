"""Long work that goes on while pages come and go: progress, a stop button, and what came of it.

Jobs live in the process that started them, for as long as it lives; the page of a job has its id in the URL.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal

from mx_rmq.errors import ConfigError, MxRmqError
from mx_rmq.tables import counted

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine

    Work = Callable[["Job"], Coroutine[object, object, str]]

State = Literal["running", "done", "stopped", "failed"]

_MOST_RUNNING: Final = 4
"""Jobs that change something; as many again may only look, so that neither waits for the other."""
_MOST_KEPT: Final = 50


@dataclass(slots=True, eq=False)
class Job:
    """Work under way, or over."""

    title: str
    """What is done, such as ``Replay 211 dead letters of orders``."""
    who: str
    total: int | None = None
    """How much there is to do, if that is known."""
    back: str = ""
    """The page to go to afterwards, relative to the dashboard's root."""
    only_looks: bool = False
    """Whether it changes nothing, such as a search."""
    id: str = field(default_factory=lambda: secrets.token_hex(8))
    state: State = "running"
    done: int = 0
    said: str = ""
    """What came of it."""
    began_at: float = field(default_factory=time.time)
    ended_at: float | None = None
    results: list[str] = field(default_factory=list)
    """Lines that the work found, such as ids; the work keeps them few."""
    _stopped_by: str = ""
    _task: asyncio.Task[str] | None = None
    _watch: asyncio.Task[None] | None = None

    @property
    def is_running(self) -> bool:
        """Whether it is not over."""
        return self.state == "running"

    def progress(self, done: int) -> None:
        """Say how much is done; the work calls this."""
        self.done = done

    def stop(self, who: str = "") -> None:
        """End the work where it is; what is done stays done."""
        self._stopped_by = self._stopped_by or who
        if self._task is not None:
            self._task.cancel()


class Jobs:
    """The jobs of a dashboard."""

    def __init__(self) -> None:
        self._jobs: dict[str, Job] = {}

    def all(self) -> list[Job]:
        """The latest first."""
        return list(reversed(self._jobs.values()))

    def get(self, id_: str) -> Job | None:
        """The job with this id, None if it is not of this process or long over."""
        return self._jobs.get(id_)

    def start(self, job: Job, work: Work, *, ended: Callable[[Job], Awaitable[None]]) -> Job:
        """Begin work in the background.

        Args:
            job: new.
            work: does it, calls ``job.progress`` and returns what came of it, in words.
            ended: called when it is over, stopped or failed; notes it in the trail.

        Raises:
            ConfigError: too many jobs are running.
        """
        running = [
            each for each in self._jobs.values() if each.is_running and each.only_looks == job.only_looks
        ]
        if len(running) >= _MOST_RUNNING:
            said = f"{counted(len(running), 'job')} are running, which is the most at a time"
            raise ConfigError(f"{said}; wait for one, or stop it: {running[0].title}")
        self._jobs[job.id] = job
        over = [each.id for each in self._jobs.values() if not each.is_running]
        for id_ in over[: max(0, len(self._jobs) - _MOST_KEPT)]:
            del self._jobs[id_]
        job._task = asyncio.create_task(work(job))
        job._watch = asyncio.create_task(self._watch(job, job._task, ended))
        return job

    def stop(self) -> None:
        """Stop what runs."""
        for job in self._jobs.values():
            if job.is_running:
                job.stop("the end of the dashboard")

    async def ended(self, within: float) -> None:
        """Wait for those that were stopped: the trail shall say how far each came."""
        if watches := [job._watch for job in self._jobs.values() if job._watch is not None]:
            await asyncio.wait(watches, timeout=within)

    async def _watch(
        self, job: Job, task: asyncio.Task[str], ended: Callable[[Job], Awaitable[None]]
    ) -> None:
        """Wait until the work is over; a task of its own, for one that was stopped before it began."""
        try:
            job.said = await task
            job.state = "done"
        except asyncio.CancelledError:
            by = f" by {job._stopped_by}" if job._stopped_by else ""
            job.state, job.said = "stopped", f"stopped after {job.done:,}{by}; what was done stays done"
        except MxRmqError as error:
            job.state, job.said = "failed", str(error)
        except Exception as error:
            job.state, job.said = "failed", f"{type(error).__name__}: {error}"
            logging.getLogger("mx_rmq").exception("the dashboard's job failed: %s", job.title)
        finally:
            job.ended_at = time.time()
            await ended(job)
