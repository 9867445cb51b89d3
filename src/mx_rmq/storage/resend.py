"""Send calls again while the server cannot be reached."""

from __future__ import annotations

import asyncio
import random
import time
from contextlib import contextmanager
from contextvars import ContextVar
from math import inf
from time import monotonic
from typing import TYPE_CHECKING, TypeVar

from mx_rmq.errors import ServerUnavailable

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

R = TypeVar("R")

_dice = random.Random()  # noqa: S311 - spreads reconnects in time, not for security


class GrowingWait:
    """Growing waits with jitter: short enough for a restart, long enough not to flood the server."""

    def __init__(self, first: float = 0.05, most: float = 1.0) -> None:
        self._first = self._next = first
        self._most = most

    def reset(self) -> None:
        """Start with short waits again."""
        self._next = self._first

    def next(self) -> float:
        """The next wait in seconds."""
        wait, self._next = self._next, min(self._most, self._next * 2)
        return wait * _dice.uniform(0.5, 1.0)


def is_unavailable(error: Exception) -> bool:
    """Whether the server could not be reached, which may be temporary."""
    return isinstance(error, ServerUnavailable)


async def resend(
    call: Callable[[], Awaitable[R]],
    *,
    patience: float,
    passes: Callable[[Exception], bool] = is_unavailable,
    within: float | None = None,
    since: float | None = None,
    failed: Callable[[Exception, float], None] | None = None,
    problem: Exception | None = None,
) -> R:
    """Await ``call()``, and repeat it after errors that may be temporary, for *patience* seconds.

    Only for calls that may be sent twice (I5).

    Args:
        call: sends once.
        patience: seconds after which no attempt begins.
        passes: whether an error may be temporary.
        within: how many seconds beyond the patience the last attempt may take. It is cancelled then, wherever
            it waits, so that nothing is sent again after the server has forgotten the first sending.
        since: when the patience began, by ``time.monotonic``; now by default.
        failed: called after each failed attempt, with the error and the wait before the next.
        problem: the error of a first attempt that the caller has already made.
    """
    began = monotonic() if since is None else since
    if problem is None:
        try:
            return await call()
        except Exception as error:
            if not passes(error):
                raise
            problem = error
    waits = GrowingWait()
    while True:
        wait = waits.next()
        if failed is not None:
            failed(problem, wait)
        if monotonic() + wait > began + patience:
            raise given_up(problem, patience) from None
        await asyncio.sleep(wait)
        left = None if within is None else began + patience + within - monotonic()
        if left is not None and left <= 0:  # the process was paused
            raise given_up(problem, patience) from None
        try:
            async with asyncio.timeout(left) as end:
                return await call()
        except Exception as error:
            if end.expired():
                raise given_up(problem, patience) from None
            if not passes(error):
                raise
            problem = error


def given_up(problem: Exception, patience: float) -> Exception:
    """The error to raise at the end: the last problem, and how long it was retried."""
    if isinstance(problem, ServerUnavailable):
        return ServerUnavailable(f"{problem}; gave up after {patience:g} s")
    return problem


# -- without an event loop

_latest: ContextVar[float] = ContextVar("latest", default=inf)
"""The latest instant, by ``time.monotonic``, at which a call may be sent again."""


def too_late() -> bool:
    """Whether a call must not be sent any more: the server may have forgotten that it was sent before.

    Check this right before sending, after everything that could take time.
    """
    return monotonic() > _latest.get()


def resend_blocking(
    call: Callable[[], R],
    *,
    patience: float,
    within: float,
    failed: Callable[[Exception], None],
    since: float | None = None,
) -> R:
    """Do what ``resend`` does, for a call that blocks the thread; *failed* is told of each failed attempt."""
    began = monotonic() if since is None else since
    try:
        return call()
    except ServerUnavailable as error:
        problem = error
    waits = GrowingWait()
    while True:
        failed(problem)
        wait = waits.next()
        if monotonic() + wait > began + patience:
            raise given_up(problem, patience) from None
        time.sleep(wait)
        try:
            with _sending_until(began + patience + within):
                return call()
        except ServerUnavailable as error:
            problem = error


@contextmanager
def _sending_until(latest: float) -> Iterator[None]:
    token = _latest.set(latest)
    try:
        yield
    finally:
        _latest.reset(token)
