"""When to retry, and when to give up."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import isfinite, isnan
from typing import TYPE_CHECKING, Any, Literal

from mx_rmq.checks import Duration, check_seconds, check_whole, refusal
from mx_rmq.events import BackoffFailed, emit

Backoff = Literal["exponential", "fixed"] | Sequence[float] | Callable[[int, BaseException], float]

_BACKOFF = "'exponential', 'fixed', a list of waits in seconds (none negative) or a function"

_dice = random.Random()  # noqa: S311 - spreads retries in time, guards nothing


@dataclass(frozen=True, slots=True)
class Retry:
    """How often a message is tried, and how long to wait between attempts.

    Args:
        max_attempts: the most times that the handler runs; 1 means no retry.
        backoff: ``"exponential"`` (a random wait of up to base, 2 base, 4 base, … at most cap),
            ``"fixed"`` (base each time), a list of waits (the last one repeats), or a function of the
            number of failed attempts and the error. If the function fails, waits are exponential.
        base: seconds.
        cap: the longest wait in seconds.
        never: exception classes that are not retried.
    """

    max_attempts: int = 5
    backoff: Backoff = "exponential"
    base: float = 1.0
    cap: float = 300.0
    never: tuple[type[BaseException], ...] = ()

    if TYPE_CHECKING:  # base and cap may be given as a timedelta and are kept in seconds

        def __init__(
            self,
            max_attempts: int = 5,
            backoff: Backoff = "exponential",
            base: Duration = 1.0,
            cap: Duration = 300.0,
            never: tuple[type[BaseException], ...] = (),
        ) -> None: ...

    def __post_init__(self) -> None:
        check_whole("max_attempts", self.max_attempts, 1)
        if isinstance(self.backoff, str):
            if self.backoff not in ("exponential", "fixed"):
                raise refusal("backoff", _BACKOFF, self.backoff)
        elif not callable(self.backoff) and not _are_waits(self.backoff):
            raise refusal("backoff", _BACKOFF, self.backoff)
        for name in ("base", "cap"):
            object.__setattr__(self, name, check_seconds(name, getattr(self, name)))
        never: Any = self.never
        if _is_error(never):
            raise refusal("never", f"a tuple of exception classes, such as ({never.__name__},)", never)
        if not isinstance(self.never, tuple) or not all(_is_error(kind) for kind in self.never):
            raise refusal("never", "a tuple of exception classes", self.never)

    def delay(self, attempts: int, error: BaseException) -> float | None:
        """Seconds to wait after *attempts* failed attempts, or None to give up."""
        if attempts >= self.max_attempts or isinstance(error, self.never):
            return None
        if callable(self.backoff):
            wait = self._ask(self.backoff, attempts, error)
        elif self.backoff == "exponential":
            wait = self._jitter(attempts)
        elif isinstance(self.backoff, str):
            wait = self.base
        else:
            wait = self.backoff[min(attempts, len(self.backoff)) - 1]
        return max(0.0, min(self.cap, wait))

    def _jitter(self, attempts: int) -> float:
        # Full jitter. The exponent is bounded: 2.0**1024 overflows.
        return _dice.uniform(0, min(self.cap, self.base * 2.0 ** min(attempts - 1, 60)))

    def _ask(
        self, backoff: Callable[[int, BaseException], float], attempts: int, error: BaseException
    ) -> float:
        try:
            wait = float(backoff(attempts, error))
            if isnan(wait):
                raise ValueError("it returned NaN")
        except Exception as failure:  # a user's function; its failure must not affect the message
            emit(BackoffFailed(), failure)
            return self._jitter(attempts)
        return wait


def _are_waits(values: object) -> bool:
    return (
        isinstance(values, Sequence)
        and len(values) > 0
        and all(isinstance(value, int | float) and isfinite(value) and value >= 0 for value in values)
    )


def _is_error(kind: object) -> bool:
    return isinstance(kind, type) and issubclass(kind, BaseException)
