"""A program with types throughout: what users write, and what mypy and pyright say about it.

``./mx check`` reads it with both. If one of them does not refuse a line of ``mistakes`` any more, its
ignore comment is without use, and that is an error too. ``test_types.py`` runs it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, TypedDict, Unpack, assert_type
from uuid import uuid4

from mx_rmq import (
    BatchHandler,
    CallNext,
    Config,
    Context,
    Finding,
    Handler,
    ProduceNext,
    ProduceOptions,
    QueueOptions,
    Receipt,
    RedisMessageQueue,
    Retry,
    RetryLater,
)

# -- a queue


def wait_longer(failed: int, error: BaseException) -> float:
    return failed * (60.0 if isinstance(error, ConnectionError) else 1.0)


config = Config(url="embedded://", name="shop", lease=timedelta(seconds=15), timeout=None)
assert_type(config.lease, float)
mq = RedisMessageQueue(config=replace(config, stop_grace=5, retry=Retry(3, backoff=wait_longer)))


def make_queue(url: str, **options: Unpack[QueueOptions]) -> RedisMessageQueue:
    """What a wrapper of one's own looks like: it keeps the types and the completion."""
    return RedisMessageQueue(url, **options)


other = make_queue(
    "embedded://",
    name="other",
    worker_name="w",
    concurrency=8,
    prefetch=100,
    lease=15,
    timeout=timedelta(minutes=1),
    retry=Retry(5, backoff="fixed", base=timedelta(seconds=1), cap=60, never=(ValueError,)),
    recovery_grace=None,
    ttl=timedelta(days=1),
    durability="memory",
    server_check="off",
)

# -- handlers


@dataclass
class Order:
    order_id: str
    amount: float


@dataclass
class Point:
    x: int
    y: int


class Mail(TypedDict):
    to: str


done: list[str] = []
handled = asyncio.Event()


@mq.handler("orders", retry=Retry(5, backoff=[0.1, 1, 10]), timeout=timedelta(seconds=30), concurrency=16)
async def on_order(order: Order, ctx: Context) -> str:
    if ctx.attempt == 1 and order.amount > 1000:
        raise RetryLater(60)
    done.append(order.order_id)
    return f"{order.order_id} handled"


@mq.handler("mails", timeout=None)
def on_mail(mail: Mail, *, sender: str = "shop") -> int:
    done.append(f"{sender} to {mail['to']}")
    return len(done)


@mq.handler("points", batch=100, linger=0.01)
async def on_points(points: list[Point], contexts: list[Context]) -> None:
    for point, ctx in zip(points, contexts, strict=True):
        done.append(f"{point.x},{point.y} at attempt {ctx.attempt}")


@mq.handler("rows")
async def on_row(row: list[int]) -> None:
    done.append(f"row {sum(row)}")


handlers: list[Handler[..., Any]] = [on_order, on_mail, on_points, on_row]
batches: BatchHandler[[list[Point], list[Context]], Awaitable[None]] = on_points

# -- middleware


@mq.middleware
async def counted(call_next: CallNext, payload: Any, ctx: Context) -> Any:
    try:
        return await call_next(payload, ctx)
    finally:
        if len(done) == 10:
            handled.set()


@mq.produce_middleware
async def traced(call_next: ProduceNext, topic: str, payload: Any, options: ProduceOptions) -> Receipt:
    options["headers"] = {**(options.get("headers") or {}), "trace": "7"}
    receipt = await call_next(topic, payload, options)
    assert_type(receipt, Receipt)
    return receipt


# Decorated, they stay what they are.
assert_type(mq.config, Config)
layer: Callable[[ProduceNext, str, Any, ProduceOptions], Awaitable[Receipt]] = traced

# -- producing


async def enqueue(order: Order, **options: Unpack[ProduceOptions]) -> Receipt:
    return await on_order.produce(order, **options)


async def main() -> None:
    async with mq:
        order = Order("A1", 9.9)
        receipt = await mq.produce(
            "orders",
            order,
            priority="high",
            delay=timedelta(milliseconds=1),
            ttl=3600,
            message_id=uuid4(),
            headers={"from": "sample"},
            dedup_for=60,
            durability="memory",
        )
        assert_type(receipt, Receipt)
        assert_type(receipt.duplicate, bool)
        assert_type(await on_order.produce(Order("A2", 1), at=datetime.now(UTC), message_id=2), Receipt)
        assert_type(await on_order.produce_many([Order("A3", 1)], delay=0.001), list[Receipt])
        assert_type(await mq.produce_many("rows", [[1, 2]], priority="low", ttl=None), list[Receipt])
        assert_type(await asyncio.to_thread(mq.sync.produce, "mails", Mail(to="ada")), Receipt)
        assert_type(mq.sync.produce_many("mails", [{"to": "bob"}], headers=None), list[Receipt])
        await enqueue(order, priority="normal")
        await on_mail.produce({"to": "eve"}, priority="low")
        await on_points.produce(Point(1, 2))
        await on_row.produce([3, 4], ttl="default")
        await mq.start()
        async with asyncio.timeout(20):
            await handled.wait()
        await look()


async def look() -> None:
    """Nothing that an operator's call returns is of an unknown type."""
    counts = await mq.counts()
    assert_type(counts.dead, int)
    assert_type(counts.topics["orders"].completed, int)
    assert_type([worker.name for worker in await mq.workers()], list[str])
    assert_type(await mq.explain("A1"), str)
    facts = await mq.find("A1")
    assert_type(facts.id, str)
    if facts.message is not None:
        assert_type([past.error for past in facts.message.history], list[str])
    assert_type([letter.id for letter in (await mq.dlq.list()).letters], list[str])
    assert_type(await mq.dlq.replay_all(error="KeyError"), int)
    assert_type([report.findings for report in await mq.audit()], list[list[Finding]])


async def call_them_as_functions() -> None:
    """A handler is still the function that it was."""
    ctx: Any = None
    assert_type(on_mail({"to": "ada"}, sender="test"), int)
    assert_type(await on_row([1]), None)
    assert_type(await on_points(points=[], contexts=[]), None)
    if ctx is not None:
        assert_type(await on_order(Order("A1", 1), ctx), str)


# -- what both must find


async def mistakes(ctx: Context) -> None:
    """Never called."""
    # Options that there are not, or not there.
    RedisMessageQueue("embedded://", concurency=8)  # type: ignore[call-arg] # pyright: ignore[reportCallIssue]
    Config(nam="shop")  # type: ignore[call-arg] # pyright: ignore[reportCallIssue]
    make_queue("embedded://", leese=1)  # type: ignore[call-arg] # pyright: ignore[reportCallIssue]
    mq.handler("orders", retries=3)  # type: ignore[call-overload] # pyright: ignore[reportCallIssue]
    mq.handler("orders", linger=1)  # type: ignore[call-overload] # pyright: ignore[reportCallIssue]
    await mq.produce("orders", 1, prio="high")  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]
    await mq.produce_many("t", [1], prio="high")  # type: ignore[call-arg] # pyright: ignore[reportCallIssue]
    await mq.produce_many("t", [1], message_id="A")  # type: ignore[call-arg] # pyright: ignore[reportCallIssue]
    await on_row.produce([1], countdown=3)  # type: ignore[call-arg] # pyright: ignore[reportCallIssue]
    await on_row.produce_many([[1]], dedup_for=3)  # type: ignore[call-arg] # pyright: ignore[reportCallIssue]
    mq.sync.produce("t", 1, eta=3)  # type: ignore[call-arg] # pyright: ignore[reportCallIssue]
    mq.sync.produce_many("t", [1], eta=3)  # type: ignore[call-arg] # pyright: ignore[reportCallIssue]
    # Values of the wrong type.
    RedisMessageQueue("embedded://", lease="15")  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]
    RedisMessageQueue("embedded://", retry=3)  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]
    RedisMessageQueue(config)  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]
    Retry(3, backoff="linear")  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]
    Retry(3, never=ValueError)  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]
    await mq.produce("t", 1, priority="urgent")  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]
    await on_row.produce([1], priority="urgent")  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]
    mq.sync.produce("t", 1, ttl="1h")  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]
    # Payloads of the wrong type.
    await on_order.produce({"order_id": "A1"})  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]
    await on_order.produce_many(["A1"])  # type: ignore[list-item] # pyright: ignore[reportArgumentType]
    await on_mail.produce({"too": "ada"})  # type: ignore[typeddict-item] # pyright: ignore[reportArgumentType]
    await on_points.produce([Point(1, 2)])  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]
    await on_points.produce_many([1])  # type: ignore[list-item] # pyright: ignore[reportArgumentType]
    await on_row.produce(1)  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]
    # Calls that do not fit the function.
    await on_order(Order("A1", 1))  # type: ignore[call-arg] # pyright: ignore[reportCallIssue]
    await on_order("A1", ctx)  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]
    on_mail({"to": "ada"}, sender=5)  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]
    # Middleware that does not fit.
    mq.middleware(traced)  # type: ignore[type-var] # pyright: ignore[reportArgumentType]
    mq.produce_middleware(counted)  # type: ignore[type-var] # pyright: ignore[reportArgumentType]


if __name__ == "__main__":
    asyncio.run(main())
    asyncio.run(call_them_as_functions())
    print(*sorted(done), sep="\n")
