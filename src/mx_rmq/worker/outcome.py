"""How deliveries end: every verdict is made here, for runners and for monitors."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from mx_rmq.message import Death, PastAttempt, describe, encode_message, text_of
from mx_rmq.raised import Reject, RetryLater
from mx_rmq.storage.contract import Kept
from mx_rmq.traces import place_of, trace_of

if TYPE_CHECKING:
    from mx_rmq.message import Message, Reason
    from mx_rmq.retry import Retry
    from mx_rmq.storage.contract import Delivery

_UNBEGUN: Final = 10
"""Times ``crash_limit``: after this many lost workers a message that was never seen to begin is dead too."""


_NOTHING: Final = Kept()


@dataclass(frozen=True, slots=True)
class Done:
    """The handler succeeded; the message is forgotten."""

    kept: float | Kept = 0.0
    """What is kept of it; a number stands for the seconds for which its id stays taken."""


@dataclass(frozen=True, slots=True)
class Again:
    """The handler failed; the message runs again after a delay."""

    delay: float
    error: str
    body: bytes
    attempt: int = 1
    max_attempts: int = 1
    seconds: float = 0.0
    """How long the handler ran."""
    place: str = ""
    """The last frame of the user's code."""
    raised: BaseException | None = field(default=None, compare=False)
    """The error itself, for its traceback and for hooks."""


@dataclass(frozen=True, slots=True)
class Later:
    """The handler put the message off; it runs again after a delay, and no attempt is counted."""

    delay: float
    body: bytes


@dataclass(frozen=True, slots=True)
class Died:
    """The message goes to the DLQ."""

    death: Death
    body: bytes = b""
    """Its new body; empty to keep the stored one."""
    attempts: int = 0
    may_quote: bool = False
    """Whether the error's text may quote the payload, so that it must not be logged."""
    raised: BaseException | None = field(default=None, compare=False)
    """The error itself, if there is one, for its traceback and for hooks."""
    kept: Kept = _NOTHING
    """What is kept of it besides the DLQ."""


@dataclass(frozen=True, slots=True)
class Returned:
    """The message goes back to the head of its lane; no attempt is counted."""

    body: bytes = b""
    """Its new body; empty to keep the stored one."""


@dataclass(frozen=True, slots=True)
class Lost:
    """The message belongs to another worker now; nothing is sent to the server."""


Verdict = Done | Again | Later | Died | Returned | Lost

DONE: Final = Done()
RETURNED: Final = Returned()
LOST: Final = Lost()


class Held(Protocol):
    """A job of a runner, or a message that a monitor took over."""

    @property
    def delivery(self) -> Delivery:
        """The delivery to settle."""


class Run(NamedTuple):
    """When a handler ran, where, and for how many seconds."""

    at: float
    worker: str
    took: float = 0.0


# -- the message must not run


def unreadable(error: Exception) -> Died:
    """The stored bytes are not a message."""
    return Died(_death_by("unparsable", error), may_quote=True, raised=error)


def unfit(error: Exception, message: Message | None = None) -> Died:
    """The payload does not fit the handler's type."""
    kept = _NOTHING if message is None else _kept(message)
    return Died(_death_by("invalid", error), may_quote=True, raised=error, kept=kept)


def expired(message: Message, body: bytes = b"") -> Died:
    """The message's lifetime is over."""
    death = Death(reason="expired", error=f"its lifetime of {message.ttl or 0:g} s was over")
    return Died(death, body, kept=_kept(message))


# -- the handler ended


def succeeded(message: Message, took: float = 0.0) -> Done:
    """The handler returned."""
    if message.remember_for:
        return Done(Kept(message.dedup_for or 0.0, message.remember_for, took))
    return DONE if message.dedup_for is None else Done(message.dedup_for)


def ended(message: Message, error: BaseException, run: Run, retry: Retry) -> Again | Later | Died:
    """The handler raised *error*, which may be a request to put the message off."""
    if isinstance(error, RetryLater) and not error.count and error.delay is not None:
        message.put_off += 1
        return Later(error.delay, encode_message(message))
    return failed(message, error, run, retry)


def failed(message: Message, error: BaseException, run: Run, retry: Retry) -> Again | Died:
    """The handler failed with *error*; the attempt is added to the message's history."""
    message.attempts += 1
    attempt, trace = message.attempts, trace_of(error)
    place = place_of(trace)
    if isinstance(error, Reject):
        said = text_of(error)
        death = Death(reason="rejected", error=said, kind=Reject.__name__, place=place)
        body = _history(message, run, said, trace)
        return Died(death, body, attempt, raised=error, kept=_kept(message, run))
    said = describe(error)
    body = _history(message, run, said, trace)
    delay: float | None
    if isinstance(error, RetryLater) and error.delay is not None:
        delay = error.delay if attempt < retry.max_attempts else None
    else:
        delay = retry.delay(attempt, error)
    if delay is None:
        death = Death(reason="failed", error=said, kind=type(error).__name__, place=place)
        return Died(death, body, attempt, raised=error, kept=_kept(message, run))
    return Again(delay, said, body, attempt, retry.max_attempts, run.took, place, raised=error)


def timed_out(message: Message, run: Run, retry: Retry, raised: BaseException | None = None) -> Again | Died:
    """The handler ran past its timeout.

    Args:
        message: the message.
        run: when and where.
        retry: the handler's policy.
        raised: what ended the handler; its traceback shows where the handler was stopped.
    """
    error = TimeoutError(f"the handler timed out after {run.took:.3g} s")
    return failed(message, error.with_traceback(raised.__traceback__ if raised else None), run, retry)


# -- the lease ran out


def lapsed(
    message: Message, run: Run, retry: Retry, crash_limit: int, *, began: bool
) -> Again | Died | Returned:
    """The worker lives but let the lease run out: a failed attempt, if the message is known to have begun.

    The first time this is not known. From then on the start is noted, as after a crash.
    """
    if not began:
        message.unbegun += 1
        said = "the lease ran out although the worker is connected"
        return _returned(message, run, said, crash_limit)
    error = TimeoutError(
        "its lease ran out although its worker is connected: the handler ran past its timeout and "
        "cannot be stopped, or the process stands still"
    )
    return failed(message, error, run, retry)


def vanished(
    message: Message, run: Run, crash_limit: int, *, began: bool, connection_gone: bool
) -> Died | Returned:
    """The worker vanished, and the message may have crashed it."""
    if began or not message.crashes:
        message.crashes += 1
    else:
        message.unbegun += 1
    said = f"the worker vanished: its {'connection was gone' if connection_gone else 'lease ran out'}"
    return _returned(message, run, said, crash_limit)


def _returned(message: Message, run: Run, said: str, crash_limit: int) -> Died | Returned:
    """Return the message to its lane, or let it die if too many workers were lost with it."""
    body = _history(message, run, said)
    if message.crashes < crash_limit and message.unbegun < crash_limit * _UNBEGUN:
        return Returned(body)
    times = message.crashes + message.unbegun
    why = f"its worker vanished {times} times, the last one was {run.worker}"
    return Died(Death(reason="crashed", error=why), body, kept=_kept(message))


def _history(message: Message, run: Run, said: str, trace: str = "") -> bytes:
    """The message's new body, with this run in its history."""
    at, took = round(run.at, 3), round(run.took, 4)
    message.remember(PastAttempt(at=at, worker=run.worker, took=took, error=said, trace=trace))
    return encode_message(message)


def _kept(message: Message, run: Run | None = None) -> Kept:
    """What is kept of a message that dies."""
    if not message.remember_for:
        return _NOTHING
    return Kept(remember_for=message.remember_for, took=run.took if run else 0.0)


def _death_by(reason: Reason, error: Exception) -> Death:
    return Death(reason=reason, error=describe(error), kind=type(error).__name__)
