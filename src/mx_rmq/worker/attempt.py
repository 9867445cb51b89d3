"""An attempt: calls the handler and says how it ended; it never raises."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from mx_rmq.context import Context
from mx_rmq.handlers import wrap
from mx_rmq.outcome import ABANDONED, DONE, Outcome, judge
from mx_rmq.worker.job import End

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mx_rmq.handlers import Call, Handler, Middleware
    from mx_rmq.worker.job import Job
    from mx_rmq.worker.threads import Threads


class Attempt:
    """How one handler is called: in the loop or in a thread, alone or inside middleware."""

    def __init__(self, handler: Handler[Any], threads: Threads, middleware: Sequence[Middleware]) -> None:
        self._handler = handler
        self._needs_context = handler.takes_context or bool(middleware)
        if handler.is_async and not middleware:
            self._call: Any = handler.function
            self._passes_context = handler.takes_context
        else:
            self._call = wrap(_plain_call(handler, threads), middleware)
            self._passes_context = True

    async def __call__(self, jobs: Sequence[Job]) -> list[Outcome]:
        """Run the handler on a job, or on a batch of them, and judge each."""
        handler = self._handler
        results: Any = None
        error: BaseException | None = None
        try:
            if handler.is_batch:
                contexts = [Context(job) for job in jobs]
                results = await self._run([job.payload for job in jobs], contexts)
                _check_results(results, len(jobs))
            else:
                job = jobs[0]
                await self._run(job.payload, Context(job) if self._needs_context else None)
        except BaseException as raised:
            error = raised
        return [
            self._judge(job, error if error is not None or results is None else results[n])
            for n, job in enumerate(jobs)
        ]

    async def _run(self, payload: Any, context: Any) -> Any:
        if self._passes_context:
            return await self._call(payload, context)
        return await self._call(payload)

    def _judge(self, job: Job, error: Any) -> Outcome:
        if job.end is End.TIMEOUT:
            ran = job.loop.time() - job.started_at
            error = TimeoutError(f"the handler was stopped after {ran:.3g} s, its time was over")
        elif job.end is not None:
            return ABANDONED
        if not isinstance(error, BaseException):
            return DONE
        assert job.message is not None
        return judge(error, job.message.attempts + 1, self._handler.retry)


def _plain_call(handler: Handler[Any], threads: Threads) -> Call:
    async def call(payload: Any, context: Any) -> Any:
        arguments = (payload, context) if handler.takes_context else (payload,)
        if handler.is_async:
            return await handler.function(*arguments)
        result = await threads.run(handler.function, arguments)
        # What a decorator that is no coroutine function makes of an async handler.
        return await result if inspect.isawaitable(result) else result

    return call


def _check_results(results: Any, count: int) -> None:
    if results is None:
        return
    if not isinstance(results, list) or len(results) != count:
        raise TypeError(f"a batch handler returns None, or a list of {count} outcomes")
    for n, result in enumerate(results):
        if result is not None and not isinstance(result, BaseException):
            raise TypeError(f"outcome {n} of the batch is a {type(result).__name__}, not None or an error")
