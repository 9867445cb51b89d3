"""What users pass in is checked in one way, and every refusal has one form."""

from __future__ import annotations

import re
import string
from decimal import Decimal
from enum import Enum
from math import inf, nan
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mx_rmq.checks import (
    are_labels,
    check_choice,
    check_id,
    check_name,
    check_seconds,
    check_topic,
    check_whole,
    is_label,
    is_number,
    plain,
    shown,
)
from mx_rmq.errors import ConfigError, InvalidName, MxRmqError

NAME = re.compile(r"[A-Za-z0-9_.-]{1,128}\Z")
LABEL = re.compile(r"[A-Za-z0-9_.:@/#+-]{1,128}\Z")
"""Written out again on purpose: what may be a name is a promise, not a detail."""
ENDINGS = (":queue", ":keep", ":error", ":group")

patient = settings(deadline=None)
any_text = st.text(st.characters(exclude_categories=()))
good_names = st.text(string.ascii_letters + string.digits + "_.-", min_size=1, max_size=128)
good_labels = st.text(string.ascii_letters + string.digits + "_.:-@/#+", min_size=1, max_size=128).filter(
    lambda text: not text.endswith(ENDINGS)
)
bad_labels = any_text.filter(lambda text: not LABEL.match(text)) | good_names.map(
    lambda text: text[:100] + ":keep"
)


# -- names


@patient
@given(good_names)
def test_letters_digits_and_a_few_signs_make_a_name(name: str) -> None:
    assert check_name("queue", name) is name


@patient
@given(any_text.filter(lambda text: not NAME.match(text)))
def test_any_other_text_is_refused_with_what_it_was_to_name(name: str) -> None:
    with pytest.raises(InvalidName, match=r"a queue must be 1 to 128 letters, digits and _ \. - only, got "):
        check_name("queue", name)


@patient
@given(good_labels)
def test_topics_and_ids_may_have_more_signs(label: str) -> None:
    assert check_topic(label) is label
    assert check_id(label) is label


@patient
@given(bad_labels)
def test_other_topics_and_ids_are_refused(label: str) -> None:
    rule = r"1 to 128 letters, digits and _ \. - : @ / # \+ only, "
    rule += "not ending in :queue, :keep, :error or :group, got "
    with pytest.raises(InvalidName, match="a topic must be " + rule):
        check_topic(label)
    with pytest.raises(InvalidName, match="a message id must be " + rule):
        check_id(label)


def test_a_whole_number_and_a_uuid_are_ids_too() -> None:
    assert check_id(17) == "17"
    assert check_id(UUID(int=17)) == "00000000-0000-0000-0000-000000000011"
    for no_id in (True, 1.5, None, b"A1"):
        with pytest.raises(InvalidName):
            check_id(no_id)


@patient
@given(good_labels.filter(lambda name: len(name) < 128), st.sampled_from(list("{} \n\0*é٣\ud800")), st.data())
def test_one_wrong_character_anywhere_spoils_a_label(name: str, wrong: str, data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(name)))
    with pytest.raises(InvalidName):
        check_id(name[:at] + wrong + name[at:])


@pytest.mark.parametrize(("length", "good"), [(0, False), (1, True), (128, True), (129, False)])
def test_a_name_has_1_to_128_characters(length: int, good: bool) -> None:
    if good:
        assert check_name("queue", "x" * length) == "x" * length
        assert check_topic("x" * length) == "x" * length
    else:
        with pytest.raises(InvalidName, match="a queue must be 1 to 128"):
            check_name("queue", "x" * length)
        with pytest.raises(InvalidName, match="a topic must be 1 to 128"):
            check_topic("x" * length)


@pytest.mark.parametrize("value", [None, 7, 1.5, True, b"orders", ["orders"], object()])
def test_what_is_no_string_is_no_name(value: object) -> None:
    with pytest.raises(InvalidName):
        check_name("queue", value)
    with pytest.raises(InvalidName):
        check_topic(value)


def test_the_refusal_of_a_huge_name_is_short() -> None:
    """It goes into logs, and the name may be a payload that was put in the wrong place."""
    with pytest.raises(InvalidName) as refused:
        check_topic("x" * 1_000_000)
    assert len(str(refused.value)) < 200
    assert isinstance(refused.value, MxRmqError)
    assert isinstance(refused.value, ValueError)


@pytest.mark.parametrize("bad", ["", " ", "a b", "a\n", "é", "x" * 129, "a ", "a:keep", b"a", None])
def test_one_bad_label_among_many_is_found(bad: Any) -> None:
    good = ["A1", "b.2", "c-3_", "d:4/e"]
    assert are_labels(good)
    assert not any(are_labels([*good[:place], bad, *good[place:]]) for place in range(5))
    assert not are_labels([bad])


@patient
@given(good_labels | bad_labels)
def test_a_label_found_on_the_server_is_judged_by_the_same_grammar(label: str) -> None:
    good = LABEL.match(label) is not None and not label.endswith(ENDINGS)
    assert is_label(label) is good
    assert is_label(label.encode(errors="surrogatepass")) is good


def test_a_name_is_returned_without_its_subclass() -> None:
    """A member of an enum formats as its own name, not as its text."""

    class Topic(str, Enum):  # noqa: UP042 - a StrEnum formats as its text
        ORDERS = "orders"

    assert type(check_topic(Topic.ORDERS)) is str
    assert plain(Topic.ORDERS) == "orders"
    assert f"{plain(Topic.ORDERS)}" == "orders"


# -- numbers


def refused(check: Any, *arguments: Any, **options: Any) -> str:
    """What the refusal of a value says."""
    with pytest.raises(ConfigError) as refusal:
        check(*arguments, **options)
    assert isinstance(refusal.value, MxRmqError)
    assert isinstance(refusal.value, ValueError)
    return str(refusal.value)


NO_NUMBERS = [True, False, nan, "1", "", b"1", [1], {}, object, 1j, Decimal(1)]


@pytest.mark.parametrize("value", [0, 0.0, -0.0, 1, 0.001, 86400, 99_999_999_999])
def test_seconds_from_zero_on_are_taken(value: float) -> None:
    check_seconds("delay", value)


@pytest.mark.parametrize(
    ("value", "given"),
    [(-1, "-1"), (-0.001, "-0.001"), (nan, "nan"), (inf, "inf"), (-inf, "-inf"), (10**11, "100000000000")],
)
def test_other_seconds_are_refused_with_what_they_must_be_and_what_was_given(
    value: float, given: str
) -> None:
    """From 10**11 on an instant in ms would not be exact in a script."""
    assert refused(check_seconds, "delay", value) == f"delay must be seconds >= 0, got {given}"


@pytest.mark.parametrize("value", [None, *NO_NUMBERS], ids=repr)
def test_what_is_no_number_is_no_duration(value: Any) -> None:
    assert refused(check_seconds, "delay", value) == f"delay must be seconds >= 0, got {value!r}"


@pytest.mark.parametrize("value", NO_NUMBERS, ids=repr)
def test_nor_is_it_one_where_none_is_allowed(value: Any) -> None:
    said = refused(check_seconds, "ttl", value, none="no limit")
    assert said == f"ttl must be seconds >= 0, or None for no limit, got {value!r}"


def test_the_shortest_duration_is_part_of_the_rule() -> None:
    check_seconds("lease", 0.5, least=0.5)
    assert refused(check_seconds, "lease", 0.49, least=0.5) == "lease must be seconds >= 0.5, got 0.49"


def test_so_is_what_a_duration_must_exceed() -> None:
    check_seconds("timeout", 1e-9, above=0)
    for value in (0, -1, nan, inf):
        assert (
            refused(check_seconds, "timeout", value, above=0) == f"timeout must be seconds > 0, got {value}"
        )
    assert refused(check_seconds, "lease", 2, above=2.5) == "lease must be seconds > 2.5, got 2"


def test_none_is_a_duration_only_where_it_stands_for_something() -> None:
    check_seconds("timeout", None, above=0, none="no limit")
    said = refused(check_seconds, "timeout", 0, above=0, none="no limit")
    assert said == "timeout must be seconds > 0, or None for no limit, got 0"
    assert refused(check_seconds, "timeout", None, above=0) == "timeout must be seconds > 0, got None"


@pytest.mark.parametrize("value", [1, 2, 10**30])
def test_a_whole_number_without_an_upper_bound_may_be_any_from_the_least_on(value: int) -> None:
    check_whole("batch", value, 1)


@pytest.mark.parametrize("value", [0, -1, None, 1.0, inf, *NO_NUMBERS], ids=repr)
def test_what_is_no_whole_number_or_too_small_is_refused(value: Any) -> None:
    assert refused(check_whole, "batch", value, 1) == f"batch must be a whole number >= 1, got {value!r}"


@pytest.mark.parametrize(("value", "good"), [(0, False), (1, True), (1000, True), (1001, False)])
def test_a_whole_number_with_an_upper_bound_is_within_both(value: int, good: bool) -> None:
    if good:
        check_whole("batch", value, 1, 1000)
    else:
        said = refused(check_whole, "batch", value, 1, 1000)
        assert said == f"batch must be a whole number from 1 to 1000, got {value}"


def test_none_is_a_whole_number_only_where_it_stands_for_something() -> None:
    check_whole("limit", None, 1, none="all")
    check_whole("limit", None, 1, 9, none="all")
    rule = "limit must be a whole number"
    assert refused(check_whole, "limit", 0, 1, none="all") == f"{rule} >= 1, or None for all, got 0"
    assert refused(check_whole, "limit", 0, 1, 9, none="all") == f"{rule} from 1 to 9, or None for all, got 0"
    assert refused(check_whole, "limit", None, 1) == f"{rule} >= 1, got None"


@pytest.mark.parametrize(
    ("value", "good"), [(0, True), (1.5, True), (nan, True), (True, False), ("1", False), (None, False)]
)
def test_a_number_is_an_int_or_a_float_and_no_bool(value: object, good: bool) -> None:
    assert is_number(value) is good


# -- choices


def test_each_of_the_choices_is_taken() -> None:
    for choice in ("off", "warn", "refuse"):
        check_choice("server_check", choice, ("off", "warn", "refuse"))


@pytest.mark.parametrize("value", ["of", "Off", "off ", "", None, 0, True, b"off", ["off"], {}], ids=repr)
def test_any_other_value_is_answered_with_the_choices(value: Any) -> None:
    said = refused(check_choice, "server_check", value, ("off", "warn", "refuse"))
    assert said == f"server_check must be 'off', 'warn' or 'refuse', got {value!r}"


def test_two_choices_are_joined_by_or() -> None:
    assert refused(check_choice, "way", "x", ("up", "down")) == "way must be 'up' or 'down', got 'x'"


# -- what an error quotes


class Unshown:
    def __repr__(self) -> str:
        raise RuntimeError("no")


@pytest.mark.parametrize("length", [0, 1, 78])
def test_a_value_of_up_to_80_characters_is_quoted_whole(length: int) -> None:
    assert shown("x" * length) == repr("x" * length)


@pytest.mark.parametrize("length", [79, 80, 1_000_000])
def test_a_longer_one_is_cut(length: int) -> None:
    """It goes into logs, and the value may be a payload in the wrong place."""
    text = shown("x" * length)
    assert text == "'" + "x" * 76 + "…"
    assert len(text) <= 80


@pytest.mark.parametrize("value", [10**5000, Unshown()], ids=["digits", "failing repr"])
def test_a_value_without_a_repr_is_quoted_by_its_class(value: object) -> None:
    assert shown(value) == f"a {type(value).__name__} that cannot be shown"


def test_every_refusal_quotes_a_huge_value_in_short() -> None:
    text = "x" * 1_000_000
    for said in (
        refused(check_seconds, "delay", text),
        refused(check_whole, "batch", text, 1),
        refused(check_choice, "way", text, ("up", "down")),
    ):
        assert len(said) < 200
    assert refused(check_whole, "batch", -(10**5000), 1).endswith(", got a int that cannot be shown")
