from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mx_rmq.fingerprint import decode_label, fingerprint, group_of
from mx_rmq.message import Death


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("order 17 not found", "order 4 not found"),
        ("took -5.3 s", "took 120 s"),
        ("no 01m7k52x440rz6asxvxeyy", "no 01m7k52x440rz6asxvxf00"),
        ("no 123e4567-e89b-12d3-a456-426614174000", "no 00000000-0000-0000-0000-000000000001"),
        ("<Order object at 0x7f3c2c>", "<Order object at 0x10>"),
        ("commit deadbeef is bad", "commit cafebabe is bad"),
        ("'pieces'", "'price'"),
        ('unknown field "a b"', 'unknown field "c"'),
        ("column `x`, value “y”", "column `long name`, value “”"),
        ("10.0.0.1:6379 refused", "192.168.17.4:80 refused"),
        ("https://bank.example/a?b=c failed", "http://other.example/ failed"),
        ("no mail to bob@shop.example", "no mail to eve@bank.example"),
        ("on 2026-01-02T03:04:05.123Z", "on 2025-12-31T23:59:59Z"),
        ("bad [1, 2, 3]", "bad [7]"),
        ("bad\n  line 1", "bad line 2"),
    ],
)
def test_numbers_ids_quoted_texts_and_addresses_make_no_difference(one: str, other: str) -> None:
    assert fingerprint(one) == fingerprint(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("order not found", "order not paid"),
        ("can't reach the user's bank", "can't reach the user's shop"),
        ("it is a facade", "it is a decade"),
        ("", "empty"),
    ],
)
def test_words_make_a_difference(one: str, other: str) -> None:
    assert fingerprint(one) != fingerprint(other)


@given(st.text())
def test_a_fingerprint_is_short_and_has_no_digit(text: str) -> None:
    found = fingerprint(text)
    assert len(found) <= 200
    assert not any(map(str.isdigit, found))


@pytest.mark.parametrize(
    "text", ["'" * 10**6, "a" * 10**6, "a." * 10**6, "a@" * 10**6, "://" * 10**6, "-*" * 10**6]
)
def test_a_hostile_text_costs_no_more_than_another(text: str) -> None:
    """Only its beginning is read."""
    started = time.perf_counter()
    fingerprint(text)
    assert time.perf_counter() - started < 0.1


def test_topic_class_place_and_fingerprint_make_a_group() -> None:
    death = Death(reason="failed", error="KeyError: 'a'", kind="KeyError", place="shop.py:3 in pay")
    ids = {
        group_of("orders", death).id,
        group_of("mails", death).id,
        group_of("orders", Death(reason="failed", error="KeyError: 'a'", kind="ValueError")).id,
        group_of("orders", Death(reason="failed", error="KeyError: 'a'", kind="KeyError")).id,
        group_of(
            "orders", Death(reason="failed", error="KeyError: no", kind="KeyError", place=death.place)
        ).id,
    }
    assert len(ids) == 5
    assert all(len(id_) == 16 and int(id_, 16) >= 0 for id_ in ids)
    same = Death(reason="failed", error="KeyError: 'other'", kind="KeyError", place=death.place)
    assert group_of("orders", same).id == group_of("orders", death).id


def test_a_label_says_what_died_of_what_where() -> None:
    death = Death(reason="failed", error="KeyError: 'a'", kind="KeyError", place="shop.py:3 in pay")
    label = decode_label(group_of("orders", death).label)
    assert (label.topic, label.error, label.place, label.text) == ("orders", "KeyError", death.place, "'a'")
    crashed = decode_label(group_of("orders", Death(reason="crashed", error="gone 3 times")).label)
    assert (crashed.error, crashed.text) == ("crashed", "gone 3 times")


def test_a_label_has_a_bound() -> None:
    death = Death(reason="failed", error="é" * 10**5, kind="k" * 10**5, place="p" * 10**5)
    assert len(group_of("t" * 128, death).label) < 1200


@pytest.mark.parametrize("label", [None, b"", b"\xff", b"[]", b'{"topic":1}'])
def test_a_label_that_cannot_be_read_hides_no_group(label: bytes | None) -> None:
    assert decode_label(label).error == "unknown"
