"""When to try again, and when to give up."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from mx_rmq.errors import ConfigError

Backoff = str | Sequence[float] | Callable[[int, BaseException], float]

_dice = random.Random()  # noqa: S311 - spreads retries in time, guards nothing


@dataclass(frozen=True, slots=True)
class Retry:
    """How often a handler is tried on a message, and how long to wait in between.

    Args:
        max_attempts: how often the handler runs at most; 1 means never again.
        backoff: ``"exponential"`` (a random wait of up to base, 2 base, 4 base, … at most cap),
            ``"fixed"`` (base each time), a list of waits (the last one repeats), or a function of the
            number of failed attempts and the error.
        base: seconds.
        cap: the longest wait in seconds.
        never: errors that are not worth another attempt.
    """

    max_attempts: int = 5
    backoff: Backoff = "exponential"
    base: float = 1.0
    cap: float = 300.0
    never: tuple[type[BaseException], ...] = ()

    def __post_init__(self) -> None:
        if (
            isinstance(self.max_attempts, bool)
            or not isinstance(self.max_attempts, int)
            or self.max_attempts < 1
        ):
            raise ConfigError(f"max_attempts is {self.max_attempts!r}, but wants a whole number, at least 1")
        if isinstance(self.backoff, str):
            if self.backoff not in ("exponential", "fixed"):
                raise ConfigError(
                    f"backoff is {self.backoff!r}, but wants 'exponential', 'fixed', a list or a function"
                )
        elif not callable(self.backoff) and (not self.backoff or min(self.backoff) < 0):
            raise ConfigError(f"backoff is {self.backoff!r}, but wants a list of waits, none negative")
        if self.base < 0 or self.cap < 0:
            raise ConfigError(f"base {self.base!r} and cap {self.cap!r} must not be negative")

    def delay(self, attempts: int, error: BaseException) -> float | None:
        """Seconds to wait after *attempts* failed ones, or None to give up."""
        if attempts >= self.max_attempts or isinstance(error, self.never):
            return None
        if self.backoff == "exponential":
            # Full jitter. The exponent is bounded: 2.0**1024 is no float any more.
            return _dice.uniform(0, min(self.cap, self.base * 2.0 ** min(attempts - 1, 60)))
        if self.backoff == "fixed":
            wait = self.base
        elif callable(self.backoff):
            wait = float(self.backoff(attempts, error))
        else:
            wait = float(self.backoff[min(attempts, len(self.backoff)) - 1])
        return max(0.0, min(self.cap, wait))
