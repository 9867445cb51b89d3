"""Every verdict, without a server: what becomes of a message, and what its new body remembers."""

from __future__ import annotations

from math import inf, nan
from typing import Any

import msgspec
import pytest

from mx_rmq import InvalidPayload, Reject, Retry, RetryLater, UnreadableMessage
from mx_rmq.message import Death, Message, decode_death, decode_message, encode_death
from mx_rmq.worker import outcome
from mx_rmq.worker.outcome import Again, Died, Done, Later, Returned, Run

TWICE = Retry(2, backoff="fixed", base=3)
RUN = Run(at=1000.12345, worker="w1", took=0.5)
LIMIT = 3


def message(attempts: int = 0, **fields: Any) -> Message:
    return Message(id="A1", topic="t", payload=msgspec.Raw(b"1"), created_at=1.0, attempts=attempts, **fields)


def failed(error: BaseException, attempt: int = 1) -> Again | Died:
    """The verdict on an error in that attempt."""
    return outcome.failed(message(attempt - 1), error, RUN, TWICE)


def death_of(verdict: object) -> Death:
    assert isinstance(verdict, Died)
    return verdict.death


# -- a handler ended


def test_what_succeeded_is_done() -> None:
    assert outcome.succeeded(message()) == Done(0.0)
    assert outcome.succeeded(message(dedup_for=60)) == Done(60)


def test_any_exception_is_tried_again_as_the_policy_says() -> None:
    verdict = failed(KeyError("x"))
    assert isinstance(verdict, Again)
    assert (verdict.delay, verdict.error) == (3, "KeyError: 'x'")


@pytest.mark.parametrize("attempt", [1, 2], ids=["again", "dead"])
def test_the_body_remembers_the_attempt(attempt: int) -> None:
    stored = decode_message(failed(KeyError("x"), attempt).body, "A1", "t")
    assert stored.attempts == attempt
    (past,) = stored.history
    assert (past.at, past.worker, past.took, past.error) == (1000.123, "w1", 0.5, "KeyError: 'x'")


def test_the_last_attempt_fails_for_good() -> None:
    expected = Death(reason="failed", error="KeyError: 'x'", kind="KeyError")
    assert death_of(failed(KeyError("x"), 2)) == expected


def test_retry_later_says_when() -> None:
    for delay, reason in [(0.5, "busy"), (0, "at once")]:
        verdict = failed(RetryLater(delay, reason))
        assert isinstance(verdict, Again)
        assert (verdict.delay, verdict.error) == (delay, f"RetryLater: {reason}")


def test_errors_derived_without_a_word_to_their_parents_are_judged_as_well() -> None:
    class Busy(RetryLater):
        def __init__(self) -> None: ...

    class Hopeless(Reject):
        def __init__(self) -> None: ...

    verdict = failed(Busy())
    assert isinstance(verdict, Again)
    assert (verdict.delay, verdict.error) == (3, "Busy")
    assert death_of(failed(Hopeless())) == Death(reason="rejected", kind="Reject")


def test_retry_later_may_leave_the_wait_to_the_policy() -> None:
    verdict = failed(RetryLater())
    assert isinstance(verdict, Again)
    assert (verdict.delay, verdict.error) == (3, "RetryLater: the handler asked for it")


def test_retry_later_is_an_attempt_like_any_other() -> None:
    expected = Death(reason="failed", error="RetryLater: busy", kind="RetryLater")
    assert death_of(failed(RetryLater(0.5, "busy"), 2)) == expected


def test_retry_later_with_a_delay_asks_no_function() -> None:
    retry = Retry(2, backoff=lambda attempt, error: None)
    verdict = outcome.ended(message(), RetryLater(5), RUN, retry)
    assert isinstance(verdict, Again)
    assert verdict.delay == 5
    assert death_of(outcome.ended(message(), KeyError(), RUN, retry)).reason == "failed"


def test_what_is_put_off_spends_no_attempt() -> None:
    verdict = outcome.ended(message(1, put_off=2), RetryLater(5, count=False), RUN, Retry(1))
    assert isinstance(verdict, Later)
    stored = decode_message(verdict.body, "A1", "t")
    assert (verdict.delay, stored.attempts, stored.put_off, stored.history) == (5, 1, 3, [])


@pytest.mark.parametrize("delay", ["1", nan, inf, 1e12, -1, True])
def test_retry_later_takes_seconds_only(delay: Any) -> None:
    with pytest.raises(ValueError, match=r"delay of RetryLater must be seconds >= 0, or None"):
        RetryLater(delay)


def test_what_is_rejected_needs_no_further_attempt() -> None:
    expected = Death(reason="rejected", error="no such customer", kind="Reject")
    assert death_of(failed(Reject("no such customer"))) == expected


def test_an_error_of_the_handlers_own_producing_is_no_fault_of_its_payload() -> None:
    verdict = failed(InvalidPayload("what it sent on"))
    assert isinstance(verdict, Again)
    assert (verdict.delay, verdict.error) == (3, "InvalidPayload: what it sent on")


def test_what_a_handler_raises_on_purpose_is_no_error_of_the_queue() -> None:
    assert Reject.__bases__ == RetryLater.__bases__ == (Exception,)


@pytest.mark.parametrize("kind", [RuntimeError, Reject])
def test_what_an_error_says_is_cut_to_500_characters(kind: type[Exception]) -> None:
    assert len(death_of(failed(kind("x" * 10_000), 2)).error) == 500


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


_WORDS: list[Any] = ["\ud800", 42, None, Unspeakable()]


@pytest.mark.parametrize(
    "error",
    [RuntimeError("\ud800"), Unspeakable(), *map(Reject, _WORDS)],
    ids=["surrogate", "unspeakable", *(f"reject {type(said).__name__}" for said in _WORDS)],
)
def test_whatever_an_error_says_can_be_stored_and_read(error: Exception) -> None:
    death = death_of(failed(error, 2))
    assert decode_death(encode_death(death)) == death


def test_a_timeout_is_a_failed_attempt() -> None:
    verdict = outcome.timed_out(message(), RUN, TWICE)
    assert isinstance(verdict, Again)
    assert verdict.error == "TimeoutError: the handler timed out after 0.5 s"
    assert isinstance(verdict.raised, TimeoutError)


def test_a_timeout_is_where_the_handler_was_stopped() -> None:
    try:
        raise KeyError
    except KeyError as error:
        verdict = outcome.timed_out(message(), RUN, TWICE, error)
    assert isinstance(verdict, Again)
    assert "test_verdicts.py" in verdict.place


# -- it must not run


def test_what_cannot_be_read_or_does_not_fit_is_dead_and_may_quote_the_payload() -> None:
    for verdict, reason, kind in [
        (outcome.unreadable(UnreadableMessage("no JSON")), "unparsable", "UnreadableMessage"),
        (outcome.unfit(InvalidPayload("no int")), "invalid", "InvalidPayload"),
    ]:
        assert (verdict.death.reason, verdict.death.kind, verdict.body) == (reason, kind, b"")
        assert verdict.may_quote


def test_what_expired_is_dead() -> None:
    assert outcome.expired(message(ttl=2.5)).death == Death(
        reason="expired", error="its lifetime of 2.5 s was over"
    )


# -- its lease ran out


def test_the_first_worker_that_vanishes_is_blamed_on_all_it_held() -> None:
    verdict = outcome.vanished(message(), RUN, LIMIT, began=False, connection_gone=True)
    assert isinstance(verdict, Returned)
    stored = decode_message(verdict.body, "A1", "t")
    assert (stored.crashes, stored.unbegun) == (1, 0)
    assert stored.history[0].error == "the worker vanished: its connection was gone"


@pytest.mark.parametrize(("began", "counts"), [(True, (2, 0)), (False, (1, 1))], ids=["began", "unbegun"])
def test_later_ones_only_on_what_had_begun(began: bool, counts: tuple[int, int]) -> None:
    verdict = outcome.vanished(message(crashes=1), RUN, LIMIT, began=began, connection_gone=False)
    assert isinstance(verdict, Returned)
    stored = decode_message(verdict.body, "A1", "t")
    assert (stored.crashes, stored.unbegun) == counts
    assert stored.history[0].error == "the worker vanished: its lease ran out"


def test_at_the_limit_it_is_dead() -> None:
    verdict = outcome.vanished(message(crashes=2), RUN, LIMIT, began=True, connection_gone=True)
    assert death_of(verdict) == Death(
        reason="crashed", error="its worker vanished 3 times, the last one was w1"
    )


def test_what_is_never_seen_to_begin_is_dead_at_ten_times_the_limit() -> None:
    almost = outcome.lapsed(message(unbegun=28), RUN, TWICE, LIMIT, began=False)
    assert isinstance(almost, Returned)
    verdict = outcome.lapsed(message(unbegun=29), RUN, TWICE, LIMIT, began=False)
    assert death_of(verdict).reason == "crashed"


def test_a_lapse_while_the_worker_is_connected_is_a_failed_attempt() -> None:
    verdict = outcome.lapsed(message(), RUN, TWICE, LIMIT, began=True)
    assert isinstance(verdict, Again)
    assert verdict.error.startswith("TimeoutError: its lease ran out although its worker is connected")
    last = outcome.lapsed(message(1), RUN, TWICE, LIMIT, began=True)
    assert (death_of(last).reason, death_of(last).kind) == ("failed", "TimeoutError")
