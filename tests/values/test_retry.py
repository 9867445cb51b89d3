from __future__ import annotations

from datetime import timedelta
from math import inf, nan
from typing import Any

import pytest

from mx_rmq import ConfigError, Retry, RetryLater

BOOM = RuntimeError("boom")


@pytest.mark.parametrize("most", [1, 2, 5])
def test_the_handler_runs_exactly_as_often_as_max_attempts_says(most: int) -> None:
    retry = Retry(most, backoff="fixed", base=0)
    runs = 1
    while retry.delay(runs, BOOM) is not None:
        runs += 1
    assert runs == most


def test_exponential_waits_are_spread_over_all_of_a_doubling_range() -> None:
    retry = Retry(100, base=2, cap=30)
    for attempts, longest in [(1, 2), (2, 4), (3, 8), (4, 16), (5, 30), (6, 30), (99, 30)]:
        waits = [_delay(retry, attempts) for _ in range(2000)]
        assert 0 <= min(waits) < 0.1 * longest
        assert 0.9 * longest < max(waits) <= longest


def test_the_ten_thousandth_exponential_wait_is_still_a_number() -> None:
    assert 0 <= _delay(Retry(20_000, cap=60), 10_000) <= 60


def test_fixed_waits_are_all_the_same() -> None:
    retry = Retry(5, backoff="fixed", base=7)
    assert [_delay(retry, n) for n in (1, 2, 3, 4)] == [7, 7, 7, 7]


def test_the_last_of_a_list_of_waits_repeats() -> None:
    retry = Retry(6, backoff=[1, 10, 60])
    assert [_delay(retry, n) for n in (1, 2, 3, 4, 5)] == [1, 10, 60, 60, 60]


def test_a_function_decides_by_the_number_of_failures_and_the_error() -> None:
    asked: list[tuple[int, BaseException]] = []

    def backoff(attempts: int, error: BaseException) -> float:
        asked.append((attempts, error))
        return attempts * 1.5

    assert _delay(Retry(5, backoff=backoff), 2) == 3.0
    assert asked == [(2, BOOM)]


def test_a_function_may_give_up() -> None:
    retry = Retry(5, backoff=lambda attempt, error: None if attempt == 2 else 1.0)
    assert [retry.delay(n, BOOM) for n in (1, 2, 3)] == [1.0, None, 1.0]


def test_waits_may_be_timedeltas() -> None:
    assert _delay(Retry(backoff=lambda attempt, error: timedelta(minutes=1)), 1) == 60
    assert [_delay(Retry(backoff=[timedelta(seconds=2), 5]), n) for n in (1, 2)] == [2, 5]


@pytest.mark.parametrize("answer", [-5, 0])
def test_a_function_cannot_send_a_message_into_the_past(answer: float) -> None:
    assert _delay(Retry(backoff=lambda *_: answer), 1) == 0


@pytest.mark.parametrize("answer", [1e9, inf])
def test_no_wait_is_longer_than_the_cap(answer: float) -> None:
    assert _delay(Retry(backoff=lambda *_: answer, cap=60), 1) == 60
    assert _delay(Retry(backoff="fixed", base=100, cap=60), 1) == 60
    assert _delay(Retry(backoff=[100], cap=60), 1) == 60


@pytest.mark.parametrize("answer", ["soon", nan, 1j, [1]])
def test_a_function_that_answers_nonsense_leaves_the_waits_exponential(answer: Any) -> None:
    waits = [_delay(Retry(backoff=lambda *_: answer, base=2, cap=30), 2) for _ in range(500)]
    assert 0 <= min(waits) < 2 < max(waits) <= 4


def test_a_function_that_fails_leaves_the_waits_exponential(caplog: pytest.LogCaptureFixture) -> None:
    def backoff(attempts: int, error: BaseException) -> float:
        raise ZeroDivisionError

    waits = [_delay(Retry(backoff=backoff, base=2, cap=30), 2) for _ in range(500)]
    assert 0 <= min(waits) < 2 < max(waits) <= 4
    assert caplog.records[0].event == "retry.backoff_failed"  # type: ignore[attr-defined]
    assert "backoff failed: ZeroDivisionError; the wait is exponential" in caplog.records[0].getMessage()


def test_errors_that_are_never_worth_it_end_the_attempts() -> None:
    retry = Retry(5, never=(ValueError, LookupError))
    assert retry.delay(1, ValueError()) is None
    assert retry.delay(1, KeyError()) is None
    assert retry.delay(1, TypeError()) is not None


def test_only_some_errors_may_be_worth_it() -> None:
    retry = Retry(5, only=(OSError, KeyError))
    assert retry.delay(1, ConnectionError()) is not None
    assert retry.delay(1, KeyError()) is not None
    assert retry.delay(1, ValueError()) is None
    assert retry.delay(5, ConnectionError()) is None


def test_never_wins_over_only() -> None:
    retry = Retry(5, only=(OSError,), never=(TimeoutError,))
    assert retry.delay(1, ConnectionError()) is not None
    assert retry.delay(1, TimeoutError()) is None


def test_a_handler_that_asks_for_another_attempt_gets_it() -> None:
    assert Retry(5, only=(OSError,), never=(Exception,)).delay(1, RetryLater()) is not None


@pytest.mark.parametrize("option", ["never", "only"])
def test_a_class_in_place_of_a_tuple_is_refused_with_what_was_meant(option: str) -> None:
    options: dict[str, Any] = {option: ValueError}
    with pytest.raises(ConfigError) as refused:
        Retry(**options)
    meant = f"{option} must be a tuple of exception classes, such as (ValueError,), got "
    assert str(refused.value) == f"{meant}<class 'ValueError'>"


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"max_attempts": 0}, "max_attempts"),
        ({"max_attempts": -1}, "max_attempts"),
        ({"max_attempts": True}, "max_attempts"),
        ({"max_attempts": 2.0}, "max_attempts"),
        ({"max_attempts": "5"}, "max_attempts"),
        ({"backoff": "linear"}, "backoff"),
        ({"backoff": []}, "backoff"),
        ({"backoff": [1, -1]}, "backoff"),
        ({"backoff": [1, inf]}, "backoff"),
        ({"backoff": [1, nan]}, "backoff"),
        ({"backoff": ["1"]}, "backoff"),
        ({"backoff": 5}, "backoff"),
        ({"base": -1}, "base"),
        ({"base": inf}, "base"),
        ({"base": nan}, "base"),
        ({"base": "1"}, "base"),
        ({"cap": -1}, "cap"),
        ({"cap": inf}, "cap"),
        ({"cap": nan}, "cap"),
        ({"never": ValueError}, "never"),
        ({"never": (ValueError("x"),)}, "never"),
        ({"never": ("ValueError",)}, "never"),
        ({"never": None}, "never"),
        ({"only": ("ValueError",)}, "only"),
        ({"only": [ValueError]}, "only"),
        ({"only": ()}, "only"),
        ({"backoff": [timedelta(seconds=-1)]}, "backoff"),
    ],
)
def test_a_policy_that_makes_no_sense_is_refused_by_name(options: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        Retry(**options)


def _delay(retry: Retry, attempts: int) -> float:
    delay = retry.delay(attempts, BOOM)
    assert delay is not None
    return delay
