from __future__ import annotations

from math import inf, nan
from typing import Any

import pytest

from mx_rmq import Dead, InvalidPayload, Retry, RetryLater
from mx_rmq import outcome as outcomes
from mx_rmq.message import Death, decode_death, encode_death
from mx_rmq.outcome import Again, judge

TWICE = Retry(2, backoff="fixed", base=3)


def test_any_exception_is_tried_again_as_the_policy_says() -> None:
    assert judge(KeyError("x"), 1, TWICE) == Again(3, "KeyError: 'x'")


def test_the_last_attempt_fails_for_good() -> None:
    expected = Death(reason="failed", error="KeyError: 'x'", kind="KeyError")
    assert judge(KeyError("x"), 2, TWICE) == outcomes.Dead(expected)


def test_retry_later_says_when() -> None:
    assert judge(RetryLater(0.5, "busy"), 1, TWICE) == Again(0.5, "RetryLater: busy")
    assert judge(RetryLater(0), 1, TWICE) == Again(0, "RetryLater: the handler asked for it")


def test_retry_later_at_an_instant_that_has_passed_means_now() -> None:
    assert judge(RetryLater(-7), 1, TWICE) == Again(0, "RetryLater: the handler asked for it")


def test_errors_derived_without_a_word_to_their_parents_are_judged_as_well() -> None:
    class Busy(RetryLater):
        def __init__(self) -> None: ...

    class Hopeless(Dead):
        def __init__(self) -> None: ...

    assert judge(Busy(), 1, TWICE) == Again(3, "Busy")
    assert judge(Hopeless(), 1, TWICE) == outcomes.Dead(Death(reason="rejected", kind="Dead"))


def test_retry_later_may_leave_the_wait_to_the_policy() -> None:
    assert judge(RetryLater(), 1, TWICE) == Again(3, "RetryLater: the handler asked for it")


def test_retry_later_is_an_attempt_like_any_other() -> None:
    outcome = judge(RetryLater(0.5, "busy"), 2, TWICE)
    assert outcome == outcomes.Dead(Death(reason="failed", error="RetryLater: busy", kind="RetryLater"))


@pytest.mark.parametrize("delay", ["1", nan, inf, 1e12])
def test_retry_later_takes_seconds_only(delay: Any) -> None:
    with pytest.raises(ValueError, match="RetryLater"):
        RetryLater(delay)


def test_dead_needs_no_further_attempt() -> None:
    expected = Death(reason="rejected", error="no such customer", kind="Dead")
    assert judge(Dead("no such customer"), 1, TWICE) == outcomes.Dead(expected)


def test_an_error_of_the_handlers_own_producing_is_no_fault_of_its_payload() -> None:
    assert judge(InvalidPayload("what it sent on"), 1, TWICE) == Again(3, "InvalidPayload: what it sent on")


@pytest.mark.parametrize("kind", [RuntimeError, Dead])
def test_what_an_error_says_is_cut_to_500_characters(kind: type[Exception]) -> None:
    outcome = judge(kind("x" * 10_000), 2, TWICE)
    assert isinstance(outcome, outcomes.Dead)
    assert len(outcome.death.error) == 500


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise RuntimeError


@pytest.mark.parametrize(
    "error",
    [Dead("\ud800"), RuntimeError("\ud800"), Unspeakable(), Dead(42), Dead(None), Dead(Unspeakable())],  # type: ignore[arg-type]
)
def test_whatever_an_error_says_can_be_stored_and_read(error: Exception) -> None:
    outcome = judge(error, 2, TWICE)
    assert isinstance(outcome, outcomes.Dead)
    assert decode_death(encode_death(outcome.death)) == outcome.death
