from __future__ import annotations

import json
import sys
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from decimal import Decimal
from enum import Enum
from functools import partial
from math import inf, nan
from typing import Any
from uuid import UUID

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, Field

from mx_rmq.errors import InvalidPayload
from mx_rmq.message import decode_message, encode_message
from mx_rmq.payloads import encode_payload
from tests.words import message

patient = settings(deadline=None)


def through_the_server(payload: Any, wanted: Any = Any) -> Any:
    """What a handler gets of a payload."""
    stored = encode_message(message(payload))
    return msgspec.json.decode(decode_message(stored, "m1", "orders").payload, type=wanted)


# -- plain payloads


any_text = st.text(st.characters(exclude_categories=()))
json_like = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | any_text,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(any_text, inner, max_size=4),
    max_leaves=20,
)


@patient
@given(json_like)
def test_a_plain_payload_comes_back_exactly_or_is_refused(payload: Any) -> None:
    """Equal is not enough: 1, 1.0 and true are three things, and so are 0.0 and -0.0."""
    try:
        received = through_the_server(payload)
    except InvalidPayload:
        assert any(word in repr(payload) for word in ("nan", "inf", "\\ud"))
    else:
        assert repr(received) == repr(payload)


class Colour(Enum):
    RED = "red"


class Plain:
    pass


REFUSED_AND_NAMED = [
    (nan, "is nan, which JSON cannot hold; send None or a string"),
    (inf, "is inf"),
    (-inf, "is -inf"),
    ({1, 2}, "is a set, which would come back as something else"),
    (frozenset(), "is a frozenset"),
    (b"bytes", "is a bytes"),
    (bytearray(), "is a bytearray"),
    ((1, 2), "is a tuple"),
    ((), "is a tuple"),
    (datetime(2026, 1, 2, tzinfo=UTC), "is a datetime"),
    (date(2026, 1, 2), "is a date"),
    (Decimal("1.10"), "is a Decimal"),
    (UUID(int=1), "is a UUID"),
    (Colour.RED, "is a Colour"),
    ({1: "x"}, "has the key 1, but JSON keys are strings; write '1'"),
    ({1.5: "x"}, "has the key 1.5"),
]
REFUSED_BY_THE_ENCODER = [
    ({None: "x"}, "has the key None, but JSON keys are strings"),
    ({(1, 2): "x"}, r"has the key \(1, 2\)"),
    ({True: "x"}, "has the key True"),
    ("\ud800", "surrogate"),
    ({"\udfff": 1}, "surrogate"),
    (Plain(), "is a Plain"),
    (1j, "is a complex"),
    (10**5000, "integer"),
]


@pytest.mark.parametrize(("value", "why"), REFUSED_AND_NAMED, ids=str)
def test_what_json_would_rewrite_is_refused_by_name_and_place(value: Any, why: str) -> None:
    with pytest.raises(InvalidPayload, match=f"^payload {why}"):
        encode_payload(value)
    with pytest.raises(InvalidPayload, match=rf"^payload\.lines\[1\]\.price {why}"):
        encode_payload({"lines": [{"price": 1}, {"price": value}]})


@pytest.mark.parametrize(("value", "why"), REFUSED_BY_THE_ENCODER, ids=lambda value: ascii(type(value)))
def test_what_json_cannot_hold_is_refused(value: Any, why: str) -> None:
    for payload in (value, {"lines": [value]}):
        with pytest.raises(InvalidPayload):
            encode_payload(payload)


@pytest.mark.parametrize(("value", "why"), REFUSED_BY_THE_ENCODER, ids=lambda value: ascii(type(value)))
def test_what_json_cannot_hold_is_refused_by_name_and_place(value: Any, why: str) -> None:
    with pytest.raises(InvalidPayload, match=rf"^payload\.lines\[1\]\.price .*{why}"):
        encode_payload({"lines": [{"price": 1}, {"price": value}]})


steps = st.lists(st.integers(0, 3) | st.text("abc", min_size=1, max_size=3), max_size=6)


@patient
@given(steps, st.sampled_from(REFUSED_AND_NAMED))
def test_the_place_is_found_however_deep_it_is(path: list[int | str], refused: tuple[Any, str]) -> None:
    payload, where = refused[0], ""
    for step in reversed(path):
        payload = {"first": 1, step: payload} if isinstance(step, str) else [[]] * step + [payload]
    for step in path:
        where += f".{step}" if isinstance(step, str) else f"[{step}]"
    with pytest.raises(InvalidPayload) as error:
        encode_payload(payload)
    assert str(error.value).startswith(f"payload{where} ")


@pytest.mark.parametrize("number", [2**53 + 1, 2**63, -(2**63) - 1, 2**64, 10**400])
def test_a_large_integer_is_not_rounded(number: int) -> None:
    received = through_the_server([number])
    assert received == [number]
    assert type(received[0]) is int


@pytest.mark.parametrize("make", [lambda inner: [inner], lambda inner: {"a": inner}], ids=["list", "dict"])
def test_a_payload_nested_without_end_is_refused(make: Any) -> None:
    payload: Any = 1
    for _ in range(10_000):
        payload = make(payload)
    with pytest.raises(InvalidPayload):
        encode_payload(payload)
    circle: list[Any] = []
    circle.append(circle)
    with pytest.raises(InvalidPayload):
        encode_payload(circle)


def read_payload(stored: bytes, wanted: Any) -> Any:
    return msgspec.json.decode(decode_message(stored, "m1", "orders").payload, type=wanted)


def at_depth(frames: int, function: Any) -> Any:
    """Call a function from further down the stack, as a worker inside its event loop does."""
    return function() if frames == 0 else at_depth(frames - 1, function)


@pytest.mark.parametrize("typed", [False, True], ids=["plain", "typed"])
def test_what_a_producer_may_send_a_worker_can_read(typed: bool) -> None:
    """A payload taken here and unreadable there would go to the DLQ without a single try."""
    room = sys.getrecursionlimit()
    depth = 0
    while depth < room:
        depth += 10
        payload: Any = None if typed else 1
        for _ in range(depth):
            payload = Node(next=payload) if typed else [payload]
        try:
            stored = encode_message(message(payload))
        except InvalidPayload:
            break
        wanted = Node if typed else Any
        at_depth(100, partial(read_payload, stored, wanted))


def test_a_refusal_does_not_repeat_the_payload() -> None:
    """Errors go into logs, and payloads do not."""
    with pytest.raises(InvalidPayload) as error:
        encode_payload({"card": "4111-1111", "when": datetime(2026, 1, 2, tzinfo=UTC)})
    assert "4111" not in str(error.value)


# -- typed payloads


class Node(msgspec.Struct):
    next: Node | None = None
    weight: float | None = 1.0


@dataclass
class Line:
    sku: str
    price: float
    tags: set[str] = field(default_factory=set)


@dataclass
class Order:
    number: int
    due: datetime
    total: Decimal
    raw: bytes
    place: tuple[int, str]
    note: str | None = None
    lines: list[Line] = field(default_factory=list)
    by_sku: dict[int, float] = field(default_factory=dict)


class Shipment(msgspec.Struct):
    number: int
    due: date
    id: UUID
    orders: list[Order] = []
    colour: Colour = Colour.RED


def order(**fields: Any) -> Order:
    known: dict[str, Any] = {
        "number": 7,
        "due": datetime(2026, 1, 2, 3, 4, 5, 6, UTC),
        "total": Decimal("19.90"),
        "raw": b"\0\xff",
        "place": (1, "a"),
        "lines": [Line("a", 1.5, {"x", "y"}), Line("b", -0.0)],
        "by_sku": {1: 2.0},
    }
    return Order(**known | fields)


def test_a_dataclass_comes_back_as_it_was() -> None:
    assert through_the_server(order(), Order) == order()


def test_a_struct_comes_back_as_it_was() -> None:
    shipment = Shipment(1, date(2026, 1, 2), UUID(int=5), [order(), order(note="fragile")])
    assert through_the_server(shipment, Shipment) == shipment


def test_none_in_a_typed_payload_is_no_reason_to_refuse_it() -> None:
    """NaN is written as null, and so is None."""
    assert through_the_server(Node(Node(None, None)), Node) == Node(Node(None, None))


@pytest.mark.parametrize("number", [nan, inf, -inf])
def test_nan_inside_a_typed_payload_is_refused_by_place(number: float) -> None:
    """It would arrive as None, or as an error at the other end."""
    cases = {
        r"payload\.weight": Node(weight=number),
        r"payload\.next\.next\.weight": Node(Node(Node(weight=number))),
        r"payload\.lines\[1\]\.price": order(lines=[Line("a", 1.0), Line("b", number)]),
        r"payload\.by_sku\.5": order(by_sku={5: number}),
        r"payload\.orders\[0\]\.lines\[0\]\.price": Shipment(
            1, date(2026, 1, 2), UUID(int=5), [order(lines=[Line("a", number)])]
        ),
        r"payload\.place\[0\]": order(place=(number, "a")),
        r"payload\.raw\[0\]": order(raw={number}),
    }
    for where, payload in cases.items():
        with pytest.raises(InvalidPayload, match=f"^{where} is {number}, which JSON cannot hold"):
            encode_payload(payload)


@pytest.mark.parametrize("value", [object(), "\ud800", {(1, 2): 3}], ids=["object", "surrogate", "key"])
def test_what_json_cannot_hold_is_refused_in_a_typed_payload_too(value: Any) -> None:
    with pytest.raises(InvalidPayload):
        encode_payload(order(note=value))


def test_a_typed_payload_nested_without_end_is_refused() -> None:
    node = Node()
    for _ in range(10_000):
        node = Node(node)
    with pytest.raises(InvalidPayload):
        encode_payload(node)
    circle = Node()
    circle.next = circle
    with pytest.raises(InvalidPayload):
        encode_payload(circle)


def test_a_class_is_no_payload() -> None:
    for kind in (Order, Shipment):
        with pytest.raises(InvalidPayload):
            encode_payload(kind)


def test_a_model_writes_itself() -> None:
    """Pydantic's models are known by their method, so that pydantic need not be there."""

    class Model:
        def model_dump_json(self) -> str:
            return '{"naïve":true}'

    assert through_the_server(Model()) == {"naïve": True}


class Aliased(BaseModel):
    order_id: str = Field(alias="orderId")


class Written(BaseModel):
    order_id: str = Field(serialization_alias="orderId")


class Measured(BaseModel):
    weight: float | None


def test_a_model_is_written_by_the_names_that_it_reads() -> None:
    assert through_the_server(Aliased(orderId="A1")) == {"orderId": "A1"}
    assert through_the_server(Written(order_id="A1")) == {"order_id": "A1"}
    assert through_the_server(Measured(weight=None)) == {"weight": None}
    with pytest.raises(InvalidPayload, match="does not come back equal from JSON: it may hold a NaN"):
        encode_payload(Measured(weight=nan))


# -- raw payloads


class Wrapped(msgspec.Struct):
    raw: msgspec.Raw
    note: str = ""


@dataclass
class Anything:
    it: Any


BROKEN = [
    b'1,"id":"x"',
    b'1},"id":"x"',
    b"1 2",
    b"",
    b"[1,]",
    b"nul",
    b'"\xff"',
    b'"\\ud800"',
    b"1e999",
    b"[" * 300 + b"]" * 300,
]


@pytest.mark.parametrize("broken", BROKEN)
def test_a_raw_payload_that_is_not_one_value_is_refused(broken: bytes) -> None:
    """It would be written as it is, and could go on with the envelope."""
    with pytest.raises(InvalidPayload):
        encode_payload(msgspec.Raw(broken))
    with pytest.raises(InvalidPayload):
        encode_payload(Wrapped(msgspec.Raw(broken)))


@pytest.mark.parametrize("broken", [*BROKEN[1:3], *BROKEN[4:6]])
def test_nor_can_one_in_a_field_of_any_type_leave_the_payload(broken: bytes) -> None:
    with pytest.raises(InvalidPayload):
        encode_payload(Anything(msgspec.Raw(broken)))
    with pytest.raises(InvalidPayload):
        encode_payload(Anything({"deep": [msgspec.Raw(broken)]}))


@pytest.mark.parametrize("value", [None, 1, "x", [1, {"a": "ä"}], {"a": [1.5, True]}])
def test_a_raw_payload_that_is_one_value_is_that_value(value: Any) -> None:
    raw = msgspec.Raw(b" " + json.dumps(value).encode() + b" ")
    assert through_the_server(raw) == value
    assert through_the_server(Wrapped(raw)) == {"raw": value, "note": ""}
