from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mx_rmq.errors import UnreadableMessage
from mx_rmq.message import (
    Death,
    Message,
    PastAttempt,
    decode_death,
    decode_message,
    describe,
    encode_death,
    encode_message,
    topic_within,
)
from tests.values.test_payloads import json_like
from tests.words import message

patient = settings(deadline=None)


# -- the envelope


def test_a_stored_message_is_plain_json_without_its_id_and_topic() -> None:
    """Whoever looks into the server with redis-cli can read it, and sees both beside it."""
    assert json.loads(encode_message(message({"total": 5}))) == {
        "payload": {"total": 5},
        "created_at": 1763230000.25,
    }


OLD = b'{"v":1,"id":"m1","topic":"orders","payload":{"total":5},"created_at":1763230000.25}'


def test_a_message_of_format_1_is_read_and_written_in_format_2() -> None:
    read = decode_message(OLD, "m1", "orders")
    assert read == message({"total": 5})
    assert encode_message(read) == encode_message(message({"total": 5}))


def test_id_and_topic_are_those_beside_the_body_even_if_an_old_one_names_others() -> None:
    read = decode_message(OLD, "m2", "mails")
    assert (read.id, read.topic) == ("m2", "mails")


def test_only_a_body_of_format_1_names_its_topic() -> None:
    assert topic_within(OLD) == "orders"
    assert topic_within(encode_message(message())) == ""
    with pytest.raises(UnreadableMessage):
        topic_within(b"")


def test_every_field_of_a_message_comes_back() -> None:
    full = message(
        [1],
        priority="high",
        key="customer-7",
        headers={"trace": "ü"},
        ttl=1.5,
        dedup_for=60.0,
        remember_for=30.0,
        delay=2.5,
        attempts=2,
        crashes=1,
        unbegun=2,
        put_off=4,
        replays=3,
        history=[PastAttempt(at=1.5, worker="w1", took=0.25, error="ValueError: no")],
    )
    stored = encode_message(full)
    assert decode_message(stored, "m1", "orders") == full
    assert set(json.loads(stored)) == set(Message.__struct_fields__) - {"v", "id", "topic"}


@pytest.mark.parametrize("version", [0, 3, -1, 99])
def test_a_message_of_another_format_is_refused(version: int) -> None:
    """A newer producer may mean something else by the same fields."""
    stored = encode_message(message(v=version))
    refusal = f"message m1 has format {version}, this version reads 1 to 2; upgrade mx-rmq in this program"
    with pytest.raises(UnreadableMessage, match=refusal):
        decode_message(stored, "m1", "orders")


@pytest.mark.parametrize(
    "change",
    [
        {"v": "1"},
        {"id": 5},
        {"topic": []},
        {"payload": None},
        {"created_at": None},
        {"priority": "urgent"},
        {"headers": {"a": 1}},
        {"history": [{"at": 1}]},
    ],
    ids=str,
)
def test_a_message_with_a_missing_or_wrong_field_is_refused(change: dict[str, Any]) -> None:
    fields = json.loads(encode_message(message("x"))) | change
    stored = json.dumps({name: value for name, value in fields.items() if value is not None}).encode()
    with pytest.raises(UnreadableMessage, match="stored bytes are not a message"):
        decode_message(stored, "m1", "orders")


@patient
@given(st.binary() | st.text().map(str.encode) | json_like.map(lambda value: json.dumps(value).encode()))
def test_bytes_that_are_no_message_are_refused_and_never_worse(stored: bytes) -> None:
    with pytest.raises(UnreadableMessage):
        decode_message(stored, "m1", "orders")


@pytest.mark.parametrize("cut", range(1, 40, 3))
def test_a_message_cut_short_is_refused(cut: int) -> None:
    with pytest.raises(UnreadableMessage):
        decode_message(encode_message(message("x"))[:-cut], "m1", "orders")


def test_a_body_nested_without_end_is_refused() -> None:
    start = encode_message(message("x")).split(b'"x"', maxsplit=1)[0]
    for stored in (start + b"[" * 100_000, start + b"[" * 100_000 + b"]" * 100_000 + b"}", b"[" * 100_000):
        with pytest.raises(UnreadableMessage):
            decode_message(stored, "m1", "orders")


def test_a_field_of_a_later_version_is_no_reason_to_refuse() -> None:
    """Within one format, fields may be added."""
    fields = json.loads(encode_message(message("x"))) | {"colour": "red"}
    assert decode_message(json.dumps(fields).encode(), "m1", "orders") == message("x")


# -- what is remembered of failures


def test_the_history_keeps_the_latest_attempts_only() -> None:
    """A message that fails for a year must not grow for a year."""
    it = message()
    for n in range(100):
        it.remember(PastAttempt(at=float(n), worker="w1", error=f"error {n}"))
    assert [attempt.at for attempt in it.history] == [float(n) for n in range(80, 100)]
    sizes = set()
    for n in range(100, 200):
        it.remember(PastAttempt(at=float(n), worker="w1", error="x" * 10_000))
        sizes.add(len(encode_message(it)))
    assert max(sizes) < 20 * 600 + 200


def test_messages_do_not_share_a_history() -> None:
    first, second = message(), message()
    first.remember(PastAttempt(at=1.0, worker="w1", error="x"))
    first.headers["a"] = "b"
    assert (second.history, second.headers, message().history) == ([], {}, [])


@pytest.mark.parametrize(("length", "kept"), [(499, 499), (500, 500), (501, 500), (100_000, 500)])
def test_an_error_is_cut_at_500_characters(length: int, kept: int) -> None:
    it = message()
    text = ("é" * length)[:length]
    it.remember(PastAttempt(at=1.0, worker="w1", error=text))
    (attempt,) = it.history
    assert len(attempt.error) == kept
    assert attempt.error == (text if length <= 500 else text[:499] + "…")


def test_an_error_is_described_by_its_class_and_what_it_says() -> None:
    class Unreadable(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    assert describe(ValueError("no such order")) == "ValueError: no such order"
    assert describe(TimeoutError()) == "TimeoutError"
    assert describe(Unreadable()) == "Unreadable: (its text cannot be read)"
    assert describe(ValueError("x" * 1000)) == "ValueError: " + "x" * 487 + "…"
    encode_death(Death(reason="failed", error=describe(ValueError("\ud800"))))


def test_why_a_message_died_comes_back() -> None:
    death = Death(reason="failed", error="ValueError: no", kind="ValueError")
    assert decode_death(encode_death(death)) == death
    assert json.loads(encode_death(death)) == {
        "reason": "failed",
        "error": "ValueError: no",
        "kind": "ValueError",
    }


@pytest.mark.parametrize("stored", [None, b"", b"why", b"\xff\xfe", b"[1]", b'{"error": "x"}', b"x" * 10_000])
def test_a_death_that_cannot_be_read_is_shown_as_it_is(stored: bytes | None) -> None:
    """An operator must see the dead message, whatever is wrong with its reason."""
    text = (stored or b"").decode(errors="replace")[:500]
    assert decode_death(stored) == Death(reason="unknown", error=text)


def test_a_death_nested_without_end_is_shown_as_it_is() -> None:
    assert decode_death(b"[" * 100_000) == Death(reason="unknown", error="[" * 500)
