"""When to retry, and when to give up."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from math import isfinite, isnan
from typing import TYPE_CHECKING, Any, Literal

from mx_rmq.checks import Duration, check_seconds, check_whole, refusal, refuse_unknown
from mx_rmq.events import BackoffFailed, emit
from mx_rmq.message import describe
from mx_rmq.raised import RetryLater

BackoffFunction = Callable[[int, BaseException], Duration | None]
"""Takes the number of the attempt that failed, 1 for the first, and its error. Returns how long to wait, or
None to give up."""

Backoff = Literal["exponential", "fixed"] | Sequence[Duration] | BackoffFunction

_BACKOFF = "'exponential', 'fixed', a list of waits in seconds (none negative) or a function"

_ELSEWHERE = {
    "max_retries": "max_attempts, which counts the first attempt too",
    "max_tries": "max_attempts",
    "retries": "max_attempts, which counts the first attempt too",
    "delay": "base",
    "min_backoff": "base",
    "max_delay": "cap",
    "max_backoff": "cap",
    "throws": "never",
}
"""Names that other libraries use."""

_dice = random.Random()  # noqa: S311 - spreads retries in time, guards nothing


@dataclass(frozen=True, slots=True)
class Retry:
    """How often a message is tried, and how long to wait between attempts.

    Args:
        max_attempts: the most times that the handler runs; 1 means no retry.
        backoff: ``"exponential"`` (a random wait of up to base, 2 base, 4 base, … at most cap),
            ``"fixed"`` (base each time), a list of waits (the last one repeats), or a function
            ``(attempt: int, error: BaseException) -> float | timedelta | None``, where None gives up. If the
            function fails, waits are exponential.
        base: seconds.
        cap: the longest wait in seconds.
        never: exception classes that are not retried.
        only: the only exception classes that are retried, except those in *never*; None for all. A handler
            that runs past its timeout counts as a ``TimeoutError``.

    A handler that raises ``RetryLater`` asks to be retried, whatever *never* and *only* say.
    """

    max_attempts: int = 5
    backoff: Backoff = "exponential"
    base: float = 1.0
    cap: float = 300.0
    never: tuple[type[BaseException], ...] = ()
    only: tuple[type[BaseException], ...] | None = None

    if TYPE_CHECKING:  # base and cap may be given as a timedelta and are kept in seconds

        def __init__(
            self,
            max_attempts: int = 5,
            backoff: Backoff = "exponential",
            base: Duration = 1.0,
            cap: Duration = 300.0,
            never: tuple[type[BaseException], ...] = (),
            only: tuple[type[BaseException], ...] | None = None,
        ) -> None: ...

    else:

        def __new__(cls, *_given: Any, **options: Any) -> Retry:
            """Refuse unknown options by name, before the constructor does."""
            refuse_unknown("option of Retry", options, cls.__match_args__, _ELSEWHERE)
            return object.__new__(cls)

    def __post_init__(self) -> None:
        check_whole("max_attempts", self.max_attempts, 1)
        if isinstance(self.backoff, str):
            if self.backoff not in ("exponential", "fixed"):
                raise refusal("backoff", _BACKOFF, self.backoff)
        elif not callable(self.backoff) and not _are_waits(self.backoff):
            raise refusal("backoff", _BACKOFF, self.backoff)
        for name in ("base", "cap"):
            object.__setattr__(self, name, check_seconds(name, getattr(self, name)))
        _check_classes("never", self.never)
        if self.only is not None:
            _check_classes("only", self.only)
            if not self.only:
                raise refusal("only", "at least one exception class, or None to retry all", self.only)

    def delay(self, attempts: int, error: BaseException) -> float | None:
        """Seconds to wait after *attempts* failed attempts, or None to give up."""
        if attempts >= self.max_attempts or not self._retries(error):
            return None
        if callable(self.backoff):
            asked = self._ask(self.backoff, attempts, error)
            if asked is None:
                return None
            wait = asked
        elif self.backoff == "exponential":
            wait = self._jitter(attempts)
        elif isinstance(self.backoff, str):
            wait = self.base
        else:
            wait = _seconds(self.backoff[min(attempts, len(self.backoff)) - 1])
        return max(0.0, min(self.cap, wait))

    def _retries(self, error: BaseException) -> bool:
        """Whether an error is of a kind that is retried."""
        if isinstance(error, RetryLater):
            return True
        return not isinstance(error, self.never) and (self.only is None or isinstance(error, self.only))

    def _jitter(self, attempts: int) -> float:
        # Full jitter. The exponent is bounded: 2.0**1024 overflows.
        return _dice.uniform(0, min(self.cap, self.base * 2.0 ** min(attempts - 1, 60)))

    def _ask(self, backoff: BackoffFunction, attempts: int, error: BaseException) -> float | None:
        try:
            answer = backoff(attempts, error)
            if answer is None:
                return None
            wait = _seconds(answer)
            if isnan(wait):
                raise ValueError("it returned NaN")
        except Exception as failure:  # a user's function; its failure must not affect the message
            name = getattr(backoff, "__qualname__", repr(backoff))
            emit(BackoffFailed(function=name, error=describe(failure)), failure)
            return self._jitter(attempts)
        return wait


def _seconds(duration: Duration) -> float:
    return duration.total_seconds() if isinstance(duration, timedelta) else float(duration)


def _are_waits(values: object) -> bool:
    return isinstance(values, Sequence) and len(values) > 0 and all(map(_is_wait, values))


def _is_wait(value: object) -> bool:
    return (
        isinstance(value, int | float | timedelta) and isfinite(seconds := _seconds(value)) and seconds >= 0
    )


def _check_classes(what: str, kinds: Any) -> None:
    if _is_error(kinds):
        raise refusal(what, f"a tuple of exception classes, such as ({kinds.__name__},)", kinds)
    if not isinstance(kinds, tuple) or not all(_is_error(kind) for kind in kinds):
        raise refusal(what, "a tuple of exception classes", kinds)


def _is_error(kind: object) -> bool:
    return isinstance(kind, type) and issubclass(kind, BaseException)
