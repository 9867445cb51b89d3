"""A wrong payload is an error twice: mypy sees it, and so does the handler's ``produce``.

Every ``type: ignore`` below is a claim about mypy: one that is not needed is an error in its turn.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TypedDict

import msgspec
import pytest

from mx_rmq import (
    ConfigError,
    Context,
    InvalidPayload,
    MessageTooLarge,
    ProduceOptions,
    Receipt,
    RedisMessageQueue,
)
from tests.harness import all_keys
from tests.words import in_order

if TYPE_CHECKING:
    from redis.asyncio import Redis


@dataclass
class Order:
    order_id: str
    amount: float
    at: datetime = datetime(2025, 11, 15, tzinfo=UTC)
    tags: list[str] = field(default_factory=list)


class Shipment(msgspec.Struct):
    weight: float


class Mail(TypedDict):
    to: str


class Model:
    """What pydantic's models have, as far as this package knows them."""

    def __init__(self, name: str) -> None:
        self.name = name

    def model_dump_json(self) -> str:
        return msgspec.json.encode({"name": self.name}).decode()

    @classmethod
    def model_validate_json(cls, raw: bytes) -> Model:
        found = msgspec.json.decode(raw)
        if not isinstance(found, dict) or not isinstance(found.get("name"), str):
            raise ValueError("name: Input should be a valid string")
        return cls(found["name"])


async def test_a_handler_produces_what_it_wants(queue: RedisMessageQueue, redis: Redis) -> None:
    @queue.handler("orders")
    async def on_order(order: Order) -> None: ...

    receipt: Receipt = await on_order.produce(Order("A2", 12.0), priority="high", message_id="A2")
    assert receipt == "A2"
    assert not receipt.duplicate
    assert (await on_order.produce(Order("A2", 12.0), message_id="A2")).duplicate
    many = await on_order.produce_many((Order(f"B{n}", n) for n in range(3)), delay=60)
    assert len(many) == 3
    assert await in_order(redis, "orders") == ["A2"]
    facts = await queue.find("A2")
    assert facts.message is not None
    assert on_order.payload_type.decode(facts.message.payload) == Order("A2", 12.0)


async def test_a_payload_of_another_class_is_refused(queue: RedisMessageQueue, redis: Redis) -> None:
    @queue.handler("orders")
    async def on_order(order: Order, context: Context) -> None: ...

    with pytest.raises(InvalidPayload, match="the payload is a dict, but the handler wants Order"):
        await on_order.produce({"order_id": "A1", "amount": 1.0})  # type: ignore[arg-type]
    with pytest.raises(InvalidPayload, match="is a Shipment, but the handler wants Order"):
        await on_order.produce(Shipment(1.0))  # type: ignore[arg-type]
    with pytest.raises(InvalidPayload, match="is a str"):
        await on_order.produce_many(["A1"])  # type: ignore[list-item]
    assert await all_keys(redis) == []


async def test_a_field_of_the_wrong_type_is_refused(queue: RedisMessageQueue, redis: Redis) -> None:
    """A dataclass checks nothing by itself."""

    @queue.handler("orders")
    async def on_order(order: Order) -> None: ...

    with pytest.raises(InvalidPayload, match="amount"):
        await on_order.produce(Order("A1", "much"))  # type: ignore[arg-type]
    assert await all_keys(redis) == []


async def test_structs_typed_dicts_and_plain_types(queue: RedisMessageQueue, redis: Redis) -> None:
    @queue.handler("shipments")
    def on_shipment(shipment: Shipment) -> None: ...

    @queue.handler("mails")
    async def on_mail(mail: Mail) -> None: ...

    @queue.handler("numbers")
    async def on_number(number: int) -> None: ...

    @queue.handler("prices")
    async def on_prices(prices: dict[str, float]) -> None: ...

    assert await on_shipment.produce(Shipment(1.5))
    assert await on_mail.produce({"to": "ada"})
    assert await on_number.produce(7)
    assert await on_prices.produce({"tea": 3.5})
    stored = sorted(await all_keys(redis))
    with pytest.raises(InvalidPayload):
        await on_shipment.produce({"weight": 1.5})  # type: ignore[arg-type]
    with pytest.raises(InvalidPayload, match="to"):
        await on_mail.produce({})  # type: ignore[typeddict-item]
    with pytest.raises(InvalidPayload, match="str"):
        await on_number.produce("7")  # type: ignore[arg-type]
    with pytest.raises(InvalidPayload, match=r"float"):
        await on_prices.produce({"tea": "cheap"})  # type: ignore[dict-item]
    assert sorted(await all_keys(redis)) == stored


async def test_models_like_those_of_pydantic(queue: RedisMessageQueue, redis: Redis) -> None:
    @queue.handler("models")
    async def on_model(model: Model) -> None: ...

    receipt = await on_model.produce(Model("ada"))
    facts = await queue.find(receipt)
    assert facts.message is not None
    assert bytes(facts.message.payload) == b'{"name":"ada"}'
    with pytest.raises(InvalidPayload):
        await on_model.produce({"name": "ada"})  # type: ignore[arg-type]


async def test_a_batch_handler_is_produced_to_one_by_one(queue: RedisMessageQueue, redis: Redis) -> None:
    @queue.handler("orders", batch=100, linger=0.01)
    async def on_orders(orders: list[Order], contexts: list[Context]) -> None: ...

    assert await on_orders.produce(Order("A1", 1.0))
    assert len(await on_orders.produce_many([Order("A2", 1.0), Order("A3", 1.0)])) == 2
    with pytest.raises(InvalidPayload):
        await on_orders.produce([Order("A1", 1.0)])  # type: ignore[arg-type]


async def test_a_handler_without_an_annotation_takes_any_json(queue: RedisMessageQueue) -> None:
    @queue.handler("any")
    async def on_any(payload: Any) -> None: ...

    for payload in (None, 1, "x", [1], {"a": [None]}):
        assert await on_any.produce(payload)
    with pytest.raises(InvalidPayload):
        await on_any.produce({1, 2})


async def test_the_options_are_those_of_produce(queue: RedisMessageQueue) -> None:
    @queue.handler("numbers")
    async def on_number(number: int) -> None: ...

    with pytest.raises(ConfigError, match="priority"):
        await on_number.produce(1, priority="urgent")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"prioritty.*did you mean 'priority'"):
        await on_number.produce(1, prioritty="high")  # type: ignore[call-arg]
    with pytest.raises(MessageTooLarge):
        await on_number.produce(1, headers={"long": "x" * 2_000_000})


async def test_middleware_sees_the_payload_itself(queue: RedisMessageQueue, redis: Redis) -> None:
    """Not its bytes: what wraps ``produce`` need not know from where it is called."""
    seen: list[Any] = []

    @queue.handler("orders")
    async def on_order(order: Order) -> None: ...

    @queue.produce_middleware
    async def look(call_next: Any, topic: str, payload: Any, options: ProduceOptions) -> Receipt:
        seen.append(payload)
        receipt: Receipt = await call_next(topic, payload, options)
        return receipt

    receipt = await on_order.produce(Order("A1", 1.0))
    await on_order.produce_many([Order("A2", 1.0)])
    await queue.produce("orders", Order("A3", 1.0))
    assert seen == [Order("A1", 1.0), Order("A2", 1.0), Order("A3", 1.0)]
    with pytest.raises(InvalidPayload):
        await on_order.produce(7)  # type: ignore[arg-type]
    assert len(seen) == 3
    facts = await queue.find(receipt)
    assert facts.message is not None
    assert on_order.payload_type.decode(facts.message.payload) == Order("A1", 1.0)


async def test_raw_bytes_cannot_rewrite_the_envelope(queue: RedisMessageQueue, redis: Redis) -> None:
    """What a handler's own ``produce`` encoded passes unchecked, and nothing else does."""

    @queue.handler("anything")
    async def on_anything(value: Any) -> None: ...

    forged = msgspec.Raw(b'1,"id":"x","topic":"y"')
    refused = r"payload has a msgspec\.Raw that is not one JSON value: .*trailing"
    with pytest.raises(InvalidPayload, match=refused):
        await queue.produce("anything", forged)
    with pytest.raises(InvalidPayload, match=refused):
        queue.sync.produce("anything", forged)
    with pytest.raises(InvalidPayload, match=refused):
        await on_anything.produce(forged)
    assert await all_keys(redis) == []
    receipt = await queue.produce("anything", msgspec.Raw(b'{"a": 1}'))
    facts = await queue.find(receipt)
    assert facts.message is not None
    assert facts.message.id == receipt
    assert bytes(facts.message.payload) == b'{"a": 1}'
