from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, TypedDict

import msgspec
import pytest

from mx_rmq import ConfigError, InvalidPayload
from mx_rmq.worker.payload_types import PayloadType, payload_type_of

if TYPE_CHECKING:
    from mx_rmq import Context as Unseen  # a name that exists for the type checker only


@dataclass
class Order:
    order_id: str
    amount: float


class Address(TypedDict):
    street: str


class Event(msgspec.Struct):
    at: datetime


class Model:
    """What of pydantic's BaseModel is used, with its own opinion of what JSON may come as."""

    def __init__(self, name: str) -> None:
        self.name = name

    @classmethod
    def model_validate_json(cls, data: object) -> Model:
        if not isinstance(data, str | bytes | bytearray):
            raise ValueError("JSON input should be string, bytes or bytearray")
        name = msgspec.json.decode(data)["name"]
        if not isinstance(name, str):
            raise ValueError("name should be a string")
        return cls(name)

    def model_dump_json(self) -> str:
        return msgspec.json.encode({"name": self.name}).decode()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Model) and self.name == other.name

    def __repr__(self) -> str:
        return f"Model({self.name!r})"  # without its address: it is part of a test's name

    __hash__ = None  # type: ignore[assignment]


class Picky(msgspec.Struct):
    n: int

    def __post_init__(self) -> None:
        if not self.n:
            raise ZeroDivisionError("an error that no validator is known for")


@pytest.mark.parametrize(
    ("wanted", "payload"),
    [
        (dict, {"a": [1, None, {"b": True}]}),
        (dict[str, Any], {"a": 1}),
        (list, [1, "x"]),
        (list[int], [1, 2]),
        (str, "text"),
        (int, 7),
        (float, 1.5),
        (float, 2),
        (Any, None),
        (Order, Order("A1", 9.9)),
        (Order | None, None),
        (Address, {"street": "High Street"}),
        (Event, Event(datetime(2026, 11, 15, 12))),
        (Model, Model("Ada")),
    ],
    ids=str,
)
def test_what_a_handler_wants_comes_back_as_it_was_sent(wanted: Any, payload: Any) -> None:
    kind = PayloadType(wanted)
    assert kind.decode(kind.encode(payload)) == payload


@pytest.mark.parametrize(
    ("wanted", "payload"),
    [
        (Order, {"order_id": "A1", "amount": 1.0}),
        (Order, Order("A1", "much")),  # type: ignore[arg-type]
        (Order, Event(datetime(2026, 11, 15))),
        (Address, {"road": "High Street"}),
        (Address, {"street": 7}),
        (Event, Order("A1", 1.0)),
        (Model, {"name": "Ada"}),
        (Model, Model(7)),  # type: ignore[arg-type]
        (str, 7),
        (int, "7"),
        (list[int], [1, "2"]),
        (Picky, Picky),
    ],
    ids=str,
)
def test_what_a_handler_does_not_want_cannot_be_sent_to_it(wanted: Any, payload: Any) -> None:
    with pytest.raises(InvalidPayload):
        PayloadType(wanted).encode(payload)


@pytest.mark.parametrize(
    ("wanted", "raw"),
    [
        (Order, b'{"order_id":"A1"}'),
        (Order, b'{"order_id":"A1","amount":"9"}'),
        (Order, b"[]"),
        (Address, b"{}"),
        (Model, b'{"name":1}'),
        (Picky, b'{"n":0}'),
        (int, b"1.5"),
        (list[int], b"[" * 2000 + b"]" * 2000),
    ],
    ids=str,
)
def test_a_payload_that_does_not_fit_is_invalid_whatever_its_type_raises(wanted: Any, raw: bytes) -> None:
    with pytest.raises(InvalidPayload, match="does not fit"):
        PayloadType(wanted).decode(msgspec.Raw(raw))


def test_constraints_of_an_annotation_count() -> None:
    def handler(payload: Annotated[int, msgspec.Meta(gt=0)]) -> None: ...

    kind, _ = payload_type_of(handler, batch=False)
    assert kind.decode(msgspec.Raw(b"1")) == 1
    with pytest.raises(InvalidPayload):
        kind.decode(msgspec.Raw(b"-1"))


def test_a_type_no_payload_can_have_is_refused() -> None:
    def handler(payload: Order | Event) -> None: ...

    with pytest.raises(ConfigError, match="cannot be a payload"):
        payload_type_of(handler, batch=False)


def test_one_parameter_is_the_payload_and_a_second_one_the_context() -> None:
    def one(payload: Order) -> None: ...

    def two(payload: Order, ctx: Any) -> None: ...

    def optional(payload: Order, ctx: Any = None) -> None: ...

    def bare(payload, ctx): ...  # type: ignore[no-untyped-def]

    assert _seen(one) == (Order, False)
    assert _seen(two) == (Order, True)
    assert _seen(optional) == (Order, True)
    assert _seen(bare) == (Any, True)


def test_methods_partials_and_callable_objects_are_handlers_too() -> None:
    class Service:
        def method(self, payload: Order, ctx: Any) -> None: ...

        def __call__(self, payload: Order) -> None: ...

    def needs(bank: str, payload: Order) -> None: ...

    assert _seen(Service().method) == (Order, True)
    assert _seen(Service()) == (Order, False)
    assert _seen(partial(needs, "bank")) == (Order, False)


def test_only_the_type_of_the_payload_need_be_known_at_run_time() -> None:
    def handler(payload: Order, ctx: Unseen) -> None: ...

    assert _seen(handler) == (Order, True)


def test_a_payload_type_that_is_unknown_at_run_time_is_refused() -> None:
    def handler(payload: Unseen) -> None: ...

    with pytest.raises(ConfigError, match="Unseen"):
        payload_type_of(handler, batch=False)


def test_a_batch_handler_takes_a_list() -> None:
    def typed(payloads: list[Order]) -> None: ...

    def plain(payloads: list) -> None: ...  # type: ignore[type-arg]

    def bare(payloads): ...  # type: ignore[no-untyped-def]

    def wrong(payload: Order) -> None: ...

    assert payload_type_of(typed, batch=True)[0].wanted is Order
    assert payload_type_of(plain, batch=True)[0].wanted is Any
    assert payload_type_of(bare, batch=True)[0].wanted is Any
    with pytest.raises(ConfigError, match="takes a list"):
        payload_type_of(wrong, batch=True)


def _no_parameter() -> None: ...


def _three(payload: str, ctx: Any, more: Any) -> None: ...


def _keyword(payload: str, *, more: Any) -> None: ...


def _generator(payload: str) -> Iterator[str]:
    yield payload


async def _async_generator(payload: str) -> AsyncIterator[str]:
    yield payload


@pytest.mark.parametrize(
    "function", [_no_parameter, _three, _keyword, _generator, _async_generator, "handler"]
)
def test_a_function_that_cannot_be_a_handler_is_refused(function: Any) -> None:
    """A generator above all: calling it runs nothing, and its messages would count as done."""
    with pytest.raises(ConfigError):
        payload_type_of(function, batch=False)


def _seen(function: Any) -> tuple[Any, bool]:
    kind, takes_context = payload_type_of(function, batch=False)
    return kind.wanted, takes_context
