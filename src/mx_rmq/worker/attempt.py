"""An attempt: how a handler is called, and what follows from how it ended."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from mx_rmq.context import Context
from mx_rmq.handlers import wrap
from mx_rmq.outcome import ABANDONED, DONE, Outcome, judge
from mx_rmq.worker.job import End

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from mx_rmq.handlers import Call, Handler, Middleware
    from mx_rmq.worker.job import Job
    from mx_rmq.worker.threads import Threads


class Attempt:
    """How one handler is called: in the loop or in a thread, alone or inside middleware."""

    def __init__(self, handler: Handler[Any], threads: Threads, middleware: Sequence[Middleware]) -> None:
        self._retry = handler.retry
        self.is_batch = handler.is_batch
        self.call = _call_for(handler, threads, middleware)
        """Calls the handler for a job, or for a batch of them; what it returns matters only for a batch."""

    def judge(self, job: Job, error: BaseException | None) -> Outcome:
        """What becomes of a job whose handler ended like this."""
        if job.end is End.TIMEOUT:
            ran = job.loop.time() - job.started_at
            error = TimeoutError(f"the handler was stopped after {ran:.3g} s, its time was over")
        elif job.end is not None:
            return ABANDONED
        if error is None:
            return DONE
        assert job.message is not None
        return judge(error, job.message.attempts + 1, self._retry)


def _call_for(
    handler: Handler[Any], threads: Threads, middleware: Sequence[Middleware]
) -> Callable[[Sequence[Job]], Awaitable[Any]]:
    """The shortest way from jobs to their handler: another coroutine would cost as much as some handlers."""
    function: Any
    if handler.is_async and not middleware:
        function, takes_context = handler.function, handler.takes_context
    else:
        function, takes_context = wrap(_plain_call(handler, threads), middleware), True
    if handler.is_batch:

        async def call_batch(jobs: Sequence[Job]) -> Any:
            payloads = [job.payload for job in jobs]
            contexts = ([Context(job) for job in jobs],) if takes_context else ()
            results = await function(payloads, *contexts)
            _check_results(results, len(jobs))
            return results

        return call_batch
    if takes_context:
        return lambda jobs: function(jobs[0].payload, Context(jobs[0]))
    return lambda jobs: function(jobs[0].payload)


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
