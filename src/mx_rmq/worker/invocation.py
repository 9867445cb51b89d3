"""How one handler is called: in the loop or in a thread, alone or inside middleware."""

from __future__ import annotations

import inspect
from math import inf
from typing import TYPE_CHECKING, Any, Final

from mx_rmq.checks import shown
from mx_rmq.worker.context import Context

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Sequence

    from mx_rmq.worker.handlers import CallNext, Handler, Middleware
    from mx_rmq.worker.holdings import Job
    from mx_rmq.worker.threads import Threads

    Invocation = Callable[[Sequence[Job]], Awaitable[Any]]
    """Calls a handler for a job, or for a batch of them; the result is used only for a batch."""


_ASK: Final = 0.1
"""Seconds between two questions whether a layer is on."""


def invocation_of(
    handler: Handler[..., Any], threads: Threads, middleware: Sequence[Middleware]
) -> Invocation:
    """Build the shortest call of a handler: one more coroutine would cost as much as some handlers.

    Layers with a method ``is_on`` are left out of calls while it returns False; they are asked ten times a
    second at most.
    """
    if not any(hasattr(layer, "is_on") for layer in middleware):
        return _invocation_of(handler, threads, middleware)
    layers: list[Middleware] = []
    current, asked_at = _invocation_of(handler, threads, layers), -inf

    def call(jobs: Sequence[Job]) -> Awaitable[Any]:
        nonlocal layers, current, asked_at
        if (now := jobs[0].started_at) - asked_at >= _ASK:
            asked_at = now
            if (wanted := [layer for layer in middleware if _is_on(layer)]) != layers:
                layers, current = wanted, _invocation_of(handler, threads, wanted)
        return current(jobs)

    return call


def _is_on(layer: Middleware) -> bool:
    return bool(layer.is_on()) if hasattr(layer, "is_on") else True


def _invocation_of(
    handler: Handler[..., Any], threads: Threads, middleware: Sequence[Middleware]
) -> Invocation:
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


def wrap(call: CallNext, middleware: Iterable[Middleware]) -> CallNext:
    """Put middleware around a call, the first one outermost."""
    for layer in reversed(list(middleware)):
        call = _wrapped(layer, call)
    return call


def _wrapped(layer: Middleware, inner: CallNext) -> CallNext:
    async def outer(payload: Any, context: Any) -> Any:
        call = layer(inner, payload, context)
        if not hasattr(call, "__await__"):
            name = getattr(layer, "__qualname__", repr(layer))
            raise TypeError(f"middleware {name} returned {shown(call)}, not an awaitable; write async def")
        return await call

    return outer


def _plain_call(handler: Handler[..., Any], threads: Threads) -> CallNext:
    async def call(payload: Any, context: Any) -> Any:
        arguments = (payload, context) if handler.takes_context else (payload,)
        if handler.is_async:
            return await handler.function(*arguments)
        result = await threads.run(handler.function, arguments)
        # Awaitable if a decorator that is not a coroutine function wraps an async handler.
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
