"""Trying again while the server cannot be reached."""

from __future__ import annotations

import asyncio
import random
from time import monotonic
from typing import TYPE_CHECKING, TypeVar

from mx_rmq.errors import ServerUnavailable

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

R = TypeVar("R")

_dice = random.Random()  # noqa: S311 - spreads reconnects in time, guards nothing


class Backoff:
    """Growing waits with jitter: short enough for a restart, long enough not to hammer."""

    def __init__(self, first: float = 0.05, most: float = 1.0) -> None:
        self._first = self._next = first
        self._most = most

    def reset(self) -> None:
        """Start with short waits again."""
        self._next = self._first

    def wait(self) -> float:
        """The next wait in seconds."""
        wait, self._next = self._next, min(self._most, self._next * 2)
        return wait * _dice.uniform(0.5, 1.0)


def is_unavailable(error: Exception) -> bool:
    """Whether the server could not be reached or did not answer."""
    return isinstance(error, ServerUnavailable)


async def resend(
    call: Callable[[], Awaitable[R]],
    *,
    patience: float,
    passes: Callable[[Exception], bool] = is_unavailable,
) -> R:
    """Await ``call()``, again and again while it fails with what *passes*, for *patience* seconds.

    Only for calls that may be sent twice (I5).
    """
    backoff, began = None, monotonic()
    while True:
        try:
            return await call()
        except Exception as error:
            if not passes(error):
                raise
            backoff = backoff or Backoff()
            wait = backoff.wait()
            if monotonic() + wait > began + patience:
                raise ServerUnavailable(f"{error}; gave up after {patience:g} s") from error
            await asyncio.sleep(wait)
