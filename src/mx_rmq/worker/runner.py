"""Running jobs: open the message, attempt it, settle the outcome."""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from contextlib import nullcontext, suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from mx_rmq import errors
from mx_rmq.errors import UnreadableMessage
from mx_rmq.message import Attempt as PastAttempt
from mx_rmq.message import Death, decode_message, describe, encode_death, encode_message
from mx_rmq.outcome import ABANDONED, Abandoned, Again, Dead, Done, Outcome
from mx_rmq.records import Settled
from mx_rmq.resend import resend
from mx_rmq.worker import fork
from mx_rmq.worker.attempt import Attempt
from mx_rmq.worker.job import End

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mx_rmq.config import Config
    from mx_rmq.handlers import Middleware
    from mx_rmq.shard import Shard
    from mx_rmq.worker.job import Job
    from mx_rmq.worker.pool import Pool
    from mx_rmq.worker.threads import Threads

logger = logging.getLogger("mx_rmq.worker")

_TURNS = 16
"""Runs after which a runner lets others have the loop, should handlers never wait for anything: few enough
for claims and settlements to leave while the next handlers run."""


class Runner:
    """Takes jobs from the pool for ever; a worker runs it in as many coroutines as handlers may run."""

    def __init__(
        self,
        pool: Pool,
        threads: Threads,
        config: Config,
        worker: str,
        middleware: Sequence[Middleware],
        ending: Callable[[], bool],
    ) -> None:
        self._pool = pool
        self._config = config
        self._worker = worker
        self._ending = ending
        self._loop = asyncio.get_running_loop()
        self._pid = fork.pid
        fork.watch(self._loop)
        self._attempts = {
            topic: Attempt(work.handler, threads, middleware) for topic, work in pool.topics.items()
        }

    async def run(self) -> None:
        """Run jobs until the worker ends; whatever a handler does, its runner goes on."""
        task = asyncio.current_task()
        assert task is not None
        turns = 0
        while True:
            taken = self._pool.take() if turns < _TURNS else None
            if taken is None:
                turns = 0
                try:
                    await self._pool.some_work()
                except asyncio.CancelledError:
                    await self._shake_off(task)
                continue
            work, jobs = taken
            try:
                attempt, (fit, suspect) = self._attempts[work.handler.topic], self._open(jobs)
                if suspect or (fit and _in_doubt(fit[0])):
                    await self._run_with_care(attempt, fit, task)
                elif fit:
                    await self._run(attempt, fit, task)
            except Exception:
                logger.exception("runner.failed", extra={"topic": work.handler.topic})
                for job in jobs:  # their leases run out, and the monitor sees to them
                    job.shard.forget([job])
            finally:
                self._pool.finished(work, len(jobs))
            if task.cancelling():
                await self._shake_off(task)
            turns += 1

    async def _shake_off(self, task: asyncio.Task[Any]) -> None:
        """Take back what cancelled this task: it was meant for a handler, unless the worker ends."""
        if self._ending():
            raise asyncio.CancelledError
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(0)  # a request that has not struck yet does here
        while task.cancelling():
            task.uncancel()

    async def _run(self, attempt: Attempt, jobs: list[Job], task: asyncio.Task[Any]) -> None:
        for job in jobs:
            job.begin(task, jobs)
        ends: list[BaseException | None] | None = None
        try:
            returned = await attempt.call(jobs)
            if attempt.is_batch:
                ends = returned
        except BaseException as error:
            ends = [error] * len(jobs)
        if fork.pid != self._pid:
            fork.leave(ends[0] if ends else None)
        if task.cancelling() and jobs[0].end is None and self._ending():
            raise asyncio.CancelledError  # the program ends; there is nobody left to settle
        for n, job in enumerate(jobs):
            job.finish()
            self._settle(job, attempt.judge(job, None if ends is None else ends[n]))

    async def _run_with_care(self, attempt: Attempt, jobs: list[Job], task: asyncio.Task[Any]) -> None:
        """Run what may have taken workers down, or may be someone else's by now, noting that it begins.

        If another crash would be its last it begins alone, so that it dies of no other message's crash.
        """
        crashes = max(job.message.crashes if job.message else 0 for job in jobs)
        last_chance = crashes > 0 and crashes + 1 >= self._config.crash_limit
        async with self._pool.alone() if last_chance else nullcontext():
            await self._note_start(jobs)
            now = self._loop.time()
            fit = [job for job in jobs if job.end is None]
            for job in jobs:
                job.started_at = now
                if job.end is not None:
                    self._settle(job, ABANDONED)
            if fit:
                await self._run(attempt, fit, task)

    async def _note_start(self, jobs: list[Job]) -> None:
        by_shard: dict[Shard, list[Job]] = defaultdict(list)
        for job in jobs:
            message = job.message
            if (message is not None and (message.crashes or message.unbegun)) or _in_doubt(job):
                by_shard[job.shard].append(job)
        for shard, suspects in by_shard.items():
            topic, doubt = suspects[0].delivery.topic, _in_doubt(suspects[0])
            start = partial(shard.store.start, topic, [job.delivery for job in suspects])
            try:
                statuses = await resend(start, patience=self._config.patience if doubt else 0.0)
            except errors.MxRmqError as error:  # then a crash is not blamed on it
                logger.warning("start.not_noted", extra={"topic": topic, "error": str(error)})
                for job in suspects if doubt else ():
                    job.stop(End.LATE)
                continue
            for job, status in zip(suspects, statuses, strict=True):
                if status is not Settled.DONE:
                    job.stop(End.LOST)

    def _open(self, jobs: list[Job]) -> tuple[list[Job], bool]:
        """Read the messages and settle those that must not run.

        Returns the others, and whether one of them was leased before without an end: should that happen
        again, it matters whether it had begun.
        """
        now = self._loop.time()
        fit: list[Job] = []
        suspect = False
        for job in jobs:
            outcome = self._read(job, now)
            if outcome is not None:
                self._settle(job, outcome)
                continue
            fit.append(job)
            message = job.message
            if message is not None and (message.crashes or message.unbegun):
                suspect = True
        return fit, suspect

    def _read(self, job: Job, now: float) -> Outcome | None:
        """Read a message and its payload; an outcome if it must not run."""
        job.started_at = now
        if job.leased_until <= now:  # this process stood still: another may have run it to its end
            job.stop(End.LATE)
        if job.end is not None:
            return ABANDONED
        try:
            job.message = message = decode_message(job.delivery.body)
            if job.delivery.expires_at <= job.shard.server_time(now):
                return _unfit("expired", f"its lifetime of {message.ttl or 0:g} s was over")
            job.payload = job.handler.payload_type.decode(message.payload)
        except UnreadableMessage as error:
            return _unfit("unparsable", describe(error), error)
        except errors.InvalidPayload as error:
            return _unfit("invalid", describe(error), error)
        return None

    def _settle(self, job: Job, outcome: Outcome) -> None:
        if job not in job.shard.held:  # the worker has stopped, and gave it up
            return
        settler = job.shard.settler
        match outcome:
            case Done():
                settler.complete(job, (job.message and job.message.dedup_for) or 0.0)
            case Again(delay, error):
                settler.retry(job, delay, self._failed(job, error))
                self._log(logging.INFO, "message.retried", job, error=error, delay=delay)
            case Dead(death, attempted):
                body = self._failed(job, death.error) if attempted else b""
                settler.move_to_dlq(job, body, encode_death(death))
                # A handler chooses its words; why a payload does not fit may quote it, so its kind must do.
                said = death.error if attempted else death.kind
                self._log(logging.WARNING, "message.dead", job, error=said, reason=death.reason)
            case Abandoned() if job.end is not End.LOST:
                settler.release(job)
            case Abandoned():
                job.shard.forget([job])
                self._log(logging.WARNING, "lease.lost", job)

    def _failed(self, job: Job, error: str) -> bytes:
        """The message's new body, with this attempt in its history."""
        message = job.message
        assert message is not None
        message.attempts += 1
        message.remember(
            PastAttempt(
                at=round(job.shard.server_time(job.started_at), 3),
                worker=self._worker,
                took=round(self._loop.time() - job.started_at, 4),
                error=error,
            )
        )
        return encode_message(message)

    def _log(self, level: int, event: str, job: Job, **fields: object) -> None:
        delivery = job.delivery
        logger.log(level, event, extra={"topic": delivery.topic, "id": delivery.id, **fields})


def _in_doubt(job: Job) -> bool:
    """Whether others may have taken this worker for vanished when the job was opened, and its messages over.

    It stood still, say, just after it had lost its connection.
    """
    return job.shard.present_until <= job.started_at


def _unfit(reason: str, text: str, error: Exception | None = None) -> Dead:
    """Why a message goes to the DLQ without having run."""
    kind = type(error).__name__ if error else ""
    return Dead(Death(reason=reason, error=text, kind=kind), attempted=False)
