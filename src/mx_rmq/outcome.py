"""How a delivery ends: decided once, as a value."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from mx_rmq import errors
from mx_rmq.message import Death, describe, what_it_says

if TYPE_CHECKING:
    from mx_rmq.retry import Retry


@dataclass(frozen=True, slots=True)
class Done:
    """The handler succeeded."""


@dataclass(frozen=True, slots=True)
class Again:
    """It failed and is to be tried again."""

    delay: float
    error: str


@dataclass(frozen=True, slots=True)
class Dead:
    """It will not be tried again."""

    death: Death
    attempted: bool = True
    """False if no handler ran, so that no attempt is counted."""


@dataclass(frozen=True, slots=True)
class Abandoned:
    """Its lease was lost or the worker is stopping; whatever it did, the message is not ours."""


Outcome = Done | Again | Dead | Abandoned

DONE = Done()
ABANDONED = Abandoned()


def judge(error: BaseException, attempts: int, retry: Retry) -> Again | Dead:
    """What follows from the error that ended attempt number *attempts*."""
    text = describe(error)
    if isinstance(error, errors.Dead):
        return Dead(Death(reason="rejected", error=what_it_says(error), kind="Dead"))
    delay = retry.delay(attempts, error)
    if delay is None:
        return Dead(Death(reason="failed", error=text, kind=type(error).__name__))
    if isinstance(error, errors.RetryLater) and error.delay is not None:
        delay = max(0.0, error.delay)
    return Again(delay, text)
