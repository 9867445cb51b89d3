"""Texts, numbers, charts and hidden fields as pages show them."""

from __future__ import annotations

from typing import Any

import pytest

from mx_rmq.web.charts import Line, chart, nice_ceiling, sparkline
from mx_rmq.web.redaction import HIDDEN, Redactor, Uncertain
from mx_rmq.web.words import begun, cut, link, shown


def test_texts_show_what_they_hide() -> None:
    assert shown("a\u202eb\x00c\x1b[1m\n\td") == "a\\u{202e}b␀c␛[1m\n\td"
    assert shown(None) == ""
    assert shown(7) == 7


def test_a_sentence_begins_with_a_capital_and_keeps_its_names() -> None:
    assert begun("paused by Anna at 256 MiB") == "Paused by Anna at 256 MiB"
    assert begun("") == ""


def test_long_texts_are_cut() -> None:
    assert cut("a  b\nc", 10) == "a b c"
    assert cut("x" * 1_000_000, 10) == "x" * 9 + "…"


def test_names_are_in_the_query() -> None:
    assert link("topic", name="a/b?c&d", after=None) == "topic?name=a%2Fb%3Fc%26d"
    assert link("") == "."


@pytest.mark.parametrize(("value", "top"), [(0, 1), (1, 1), (1.2, 2), (37, 40), (812, 1000), (0.004, 0.004)])
def test_axes_end_at_round_numbers(value: float, top: float) -> None:
    assert nice_ceiling(value) == pytest.approx(top)


def test_a_chart_has_gaps_where_nothing_is_known() -> None:
    drawn = chart("T <1>", [Line("in", "in", [1.0, None, 2.0, 3.0])], [(0, "a"), (3, "now")], str)
    assert drawn.count("<polyline") == 2
    assert "T &lt;1&gt;" in drawn
    assert sparkline([0, 0]) == ""
    assert "polyline" in sparkline([0, 5])


PAYLOAD: dict[str, Any] = {
    "Password": "p",
    "customer": {"mail": "m", "id": 9007199254740993},
    "others": [{"mail": "n", "password": ["x"]}],
}


def test_fields_are_hidden_by_name_and_by_path() -> None:
    redact = Redactor(["password", "customer.mail"])
    hidden = redact.hide(PAYLOAD)
    assert hidden == {
        "Password": HIDDEN,
        "customer": {"mail": HIDDEN, "id": 9007199254740993},
        "others": [{"mail": "n", "password": HIDDEN}],
    }
    assert redact.headers({"PassWord": "x", "tenant": "7"}) == {"PassWord": HIDDEN, "tenant": "7"}
    dotted = Redactor(["user.email"])
    assert dotted.headers({"User.Email": "a@b", "email": "c"}) == {"User.Email": HIDDEN, "email": "c"}
    assert dotted.hide({"user.email": 1, "a": {"user.email": 2}}) == {
        "user.email": HIDDEN,
        "a": {"user.email": HIDDEN},
    }
    assert dotted.keep({"user.email": HIDDEN}, {"user.email": "a@b"}) == {"user.email": "a@b"}
    assert not Redactor()
    assert Redactor().hide(PAYLOAD) is PAYLOAD


def test_an_edited_payload_keeps_what_its_editor_did_not_see() -> None:
    redact = Redactor(["password", "customer.mail"])
    edited = redact.hide(PAYLOAD)
    edited["customer"]["id"] = 8
    kept = redact.keep(edited, PAYLOAD)
    assert kept == PAYLOAD | {"customer": {"mail": "m", "id": 8}}


A, B, C = ({"name": name, "password": secret} for name, secret in (("a", "1"), ("b", "2"), ("b", "3")))
A_SEEN, B_SEEN = ({"name": name, "password": HIDDEN} for name in "ab")


@pytest.mark.parametrize(
    ("edited", "original", "kept"),
    [
        ([B_SEEN], [A, B], [B]),
        ([B_SEEN, A_SEEN], [A, B], [B, A]),
        ([A_SEEN | {"name": "z"}, B_SEEN], [A, B], [A | {"name": "z"}, B]),
        ([A_SEEN, B_SEEN, {"name": "new"}], [A, B], [A, B, {"name": "new"}]),
        ([B_SEEN, B_SEEN], [B, C], [B, C]),
        ({"was": HIDDEN}, {"was": HIDDEN}, {"was": HIDDEN}),
    ],
)
def test_hidden_values_stay_with_what_they_belong_to(edited: Any, original: Any, kept: Any) -> None:
    """Elements of a list may be moved, removed and added."""
    assert Redactor(["password"]).keep(edited, original) == kept


@pytest.mark.parametrize(
    ("edited", "original"),
    [
        ([B_SEEN], [B, C]),
        ([B_SEEN | {"name": "z"}], [A, B]),
        ([B_SEEN | {"name": "z"}, A_SEEN], [A, B]),
        ({"pass": HIDDEN}, {"password": "1"}),
        ({"moved": {"password": HIDDEN}}, {"password": "1"}),
        ([HIDDEN], {"password": "1"}),
        (HIDDEN, {"password": "1"}),
    ],
)
def test_the_sign_for_a_hidden_value_is_never_stored_in_its_place(edited: Any, original: Any) -> None:
    with pytest.raises(Uncertain, match="not certain which hidden value"):
        Redactor(["password"]).keep(edited, original)
