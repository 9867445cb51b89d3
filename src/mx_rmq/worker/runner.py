"""Running jobs: read the message, call the handler, settle the verdict."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from contextlib import nullcontext, suppress
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Any

from mx_rmq import events
from mx_rmq.errors import InvalidPayload, MxRmqError, UnreadableMessage
from mx_rmq.message import decode_message
from mx_rmq.storage.contract import Settled
from mx_rmq.storage.resend import resend
from mx_rmq.worker import fork, outcome
from mx_rmq.worker.holdings import End
from mx_rmq.worker.invocation import invocation_of
from mx_rmq.worker.outcome import LOST, RETURNED, Done, Run, Verdict
from mx_rmq.worker.settler import announce

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from mx_rmq.config import Config
    from mx_rmq.worker.handlers import Middleware
    from mx_rmq.worker.holdings import Holdings, Job
    from mx_rmq.worker.invocation import Invocation
    from mx_rmq.worker.ready import ReadyJobs
    from mx_rmq.worker.settler import Settler
    from mx_rmq.worker.threads import Threads

_TURNS = 16
"""Runs after which a runner yields to the loop, even if its handlers never wait. Few enough for claims and
settlements to be sent while the next handlers run."""


class Runner:
    """Runs ready jobs; a worker starts ``run`` in as many tasks as handlers may run at once.

    Args:
        ready: where jobs come from.
        settlers: where verdicts go.
        threads: for plain functions.
        config: of the queue.
        worker: the worker's name.
        middleware: around every handler.
        ending: returns whether the runners must end.
    """

    def __init__(
        self,
        ready: ReadyJobs,
        settlers: Mapping[Holdings, Settler],
        threads: Threads,
        config: Config,
        worker: str,
        middleware: Sequence[Middleware],
        ending: Callable[[], bool],
    ) -> None:
        self._ready = ready
        self._settlers = settlers
        self._config = config
        self._worker = worker
        self._ending = ending
        self._loop = asyncio.get_running_loop()
        self._pid = fork.pid
        fork.watch(self._loop)
        self._invocations = {
            topic: invocation_of(work.handler, threads, middleware) for topic, work in ready.topics.items()
        }

    async def run(self) -> None:
        """Run jobs until the worker ends; nothing that a handler does ends its runner."""
        task = asyncio.current_task()
        assert task is not None
        turns = 0
        while True:
            taken = self._ready.take() if turns < _TURNS else None
            if taken is None:
                turns = 0
                try:
                    await self._ready.some_work()
                except asyncio.CancelledError:
                    await self._shake_off(task)
                continue
            work, jobs = taken
            try:
                call, (fit, suspect) = self._invocations[work.handler.topic], self._open(jobs)
                if suspect or any(map(_in_doubt, fit)):  # those of a batch may be of several shards
                    await self._run_with_care(call, fit, task)
                elif fit:
                    await self._run(call, fit, task)
            except Exception as error:
                events.emit(events.RunnerFailed(queue=self._config.name, topic=work.handler.topic), error)
                for job in jobs:  # their leases run out, and a monitor takes them over
                    job.holdings.forget([job])
            finally:
                self._ready.finished(work, len(jobs))
            if task.cancelling():
                await self._shake_off(task)
            turns += 1

    async def _shake_off(self, task: asyncio.Task[Any]) -> None:
        """Undo the cancellation of this task: it was meant for a handler, unless the worker ends."""
        if self._ending():
            raise asyncio.CancelledError
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(0)  # a pending cancellation is raised here
        while task.cancelling():
            task.uncancel()

    # -- before the handler

    def _open(self, jobs: list[Job]) -> tuple[list[Job], bool]:
        """Read the messages and settle those that must not run.

        Returns the others, and whether one of them was leased before and never settled. If that happens
        again, it matters whether it had begun.
        """
        now = monotonic()  # not loop.time(): uvloop reads the clock once a turn
        fit: list[Job] = []
        suspect = False
        for job in jobs:
            verdict = self._read(job, now)
            if verdict is not None:
                self._settle(job, verdict)
                continue
            fit.append(job)
            message = job.message
            if message is not None and (message.crashes or message.unbegun):
                suspect = True
        return fit, suspect

    def _read(self, job: Job, now: float) -> Verdict | None:
        """Read a message and its payload; returns a verdict if it must not run."""
        job.started_at = now
        if job.leased_until <= now:  # this process stood still: another may have finished it
            job.stop(End.LATE)
        if job.end is not None:
            return _abandoned(job.end)
        delivery = job.delivery
        try:
            job.message = message = decode_message(delivery.body, delivery.id, delivery.topic)
            if message.remember_for is None:
                message.remember_for = job.handler.remember
            if delivery.expires_at <= job.holdings.server_time(now):
                return outcome.expired(message)
            job.payload = job.handler.payload_type.decode(message.payload)
        except UnreadableMessage as error:
            return outcome.unreadable(error)
        except InvalidPayload as error:
            return outcome.unfit(error, job.message)
        return None

    # -- the handler

    async def _run(self, call: Invocation, jobs: list[Job], task: asyncio.Task[Any]) -> None:
        for job in jobs:
            job.begin(task, jobs)
        if events.heard(events.MessageCompleted):
            for job in jobs:
                job.waited = job.time_waited()
        ends: list[BaseException | None] | None = None
        try:
            returned = await call(jobs)
            if jobs[0].handler.is_batch:
                ends = returned
        except BaseException as error:
            ends = [error] * len(jobs)
        if fork.pid != self._pid:
            fork.leave(ends[0] if ends else None)
        if task.cancelling() and jobs[0].end is None and self._ending():
            raise asyncio.CancelledError  # the program ends; nothing can be settled any more
        now = monotonic()
        for n, job in enumerate(jobs):
            job.finish(now)
            # The lease keeper's thread may have judged it while the loop was blocked.
            self._settle(job, job.verdict or self._judge(job, None if ends is None else ends[n]))

    def _judge(self, job: Job, error: BaseException | None) -> Verdict:
        """The verdict on a job whose handler returned, or ended with *error*."""
        message, end = job.message, job.end
        assert message is not None
        if end is None and error is None:
            return outcome.succeeded(message, job.took)
        if end is not None and end is not End.TIMEOUT:
            return _abandoned(end)
        run = Run(job.holdings.server_time(job.started_at), self._worker, job.took)
        if end is End.TIMEOUT or error is None:
            # In a thread the handler is elsewhere than the call that waits for it.
            return outcome.timed_out(message, run, job.handler.retry, error if job.handler.is_async else None)
        return outcome.ended(message, error, run, job.handler.retry)

    def _settle(self, job: Job, verdict: Verdict) -> None:
        if job in job.holdings.jobs:  # else the worker has stopped and given it up, or it is settled
            if not isinstance(verdict, Done) and verdict is not job.verdict:
                announce(self._config.name, job.delivery, verdict, job.took, job.waited)
            self._settlers[job.holdings].put(job, verdict)

    # -- messages that may have crashed workers

    async def _run_with_care(self, call: Invocation, jobs: list[Job], task: asyncio.Task[Any]) -> None:
        """Run jobs that may have crashed workers or may be another worker's by now; note their start first.

        A message that one more crash would send to the DLQ begins alone, so that no other message's crash
        counts against it.
        """
        crashes = max(job.message.crashes if job.message else 0 for job in jobs)
        last_chance = crashes > 0 and crashes + 1 >= self._config.crash_limit
        async with self._ready.alone() if last_chance else nullcontext():
            await self._note_start(jobs)
            now = monotonic()
            fit = [job for job in jobs if job.end is None]
            for job in jobs:
                job.started_at = now
                if job.end is not None:
                    self._settle(job, _abandoned(job.end))
            if fit:
                await self._run(call, fit, task)

    async def _note_start(self, jobs: list[Job]) -> None:
        by_shard: dict[Holdings, list[Job]] = defaultdict(list)
        for job in jobs:
            message = job.message
            if (message is not None and (message.crashes or message.unbegun)) or _in_doubt(job):
                by_shard[job.holdings].append(job)
        # Jobs of other shards do not wait until a shard answers again.
        patience = self._config.patience if len({job.holdings for job in jobs}) == 1 else 0.0
        await asyncio.gather(*(self._note_start_on(each, patience) for each in by_shard.values()))

    async def _note_start_on(self, suspects: list[Job], patience: float) -> None:
        """Note the start of jobs of one shard."""
        store, topic = suspects[0].holdings.shard.store, suspects[0].delivery.topic
        doubt = _in_doubt(suspects[0])
        start = partial(store.start, topic, [job.delivery for job in suspects])
        try:
            statuses = await resend(start, patience=patience if doubt else 0.0)
        except MxRmqError as error:  # then a crash does not count against them
            events.emit(events.StartNotNoted(queue=self._config.name, topic=topic, error=str(error)))
            for job in suspects if doubt else ():
                job.stop(End.LATE)
            return
        for job, status in zip(suspects, statuses, strict=True):
            if status is not Settled.DONE:
                job.stop(End.LOST)


def _in_doubt(job: Job) -> bool:
    """Whether other workers may have taken this one for vanished when the job was opened.

    For example, it stood still just after it had lost its connection. They took its messages over then.
    """
    return job.holdings.present_until <= job.started_at


def _abandoned(end: End) -> Verdict:
    """The verdict on a job that was stopped from outside, or never began."""
    return LOST if end is End.LOST else RETURNED
