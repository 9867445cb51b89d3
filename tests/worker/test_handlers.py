"""What a handler is given, where it runs, and what never reaches it."""

from __future__ import annotations

import asyncio
import threading
import time
from dataclasses import dataclass
from functools import partial
from math import inf, nan
from typing import TYPE_CHECKING, Any, TypedDict

import msgspec
import pytest

from mx_rmq import ConfigError, Context, NoHandler, RedisMessageQueue, Reject
from mx_rmq.message import encode_message
from tests.words import (
    dead,
    drained,
    eventually,
    in_state,
    is_sound,
    message,
    produce_elsewhere,
    put_bytes,
)

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from tests.words import MakeQueue


@dataclass
class Order:
    order_id: str
    amount: float


class Address(TypedDict):
    street: str


class Event(msgspec.Struct):
    name: str
    tags: list[str] = []


class Model:
    """As much of a pydantic model as is used."""

    def __init__(self, n: int) -> None:
        self.n = n

    @classmethod
    def model_validate_json(cls, data: bytes) -> Model:
        assert isinstance(data, bytes)
        n = msgspec.json.decode(data)["n"]
        if not isinstance(n, int):
            raise ValueError("n should be an int")
        return cls(n)

    def model_dump_json(self) -> str:
        return f'{{"n":{self.n}}}'


@pytest.mark.sharded
async def test_a_handler_gets_its_payload_as_the_type_it_asks_for(mq: RedisMessageQueue) -> None:
    got: dict[str, Any] = {}

    @mq.handler("dict")
    async def on_dict(payload: dict[str, Any]) -> None:
        got["dict"] = payload

    @mq.handler("list")
    async def on_list(payload: list[int]) -> None:
        got["list"] = payload

    @mq.handler("str")
    async def on_str(payload: str) -> None:
        got["str"] = payload

    @mq.handler("bare")
    async def on_bare(payload) -> None:  # type: ignore[no-untyped-def]
        got["bare"] = payload

    @mq.handler("dataclass")
    async def on_dataclass(payload: Order) -> None:
        got["dataclass"] = payload

    @mq.handler("typed_dict")
    async def on_typed_dict(payload: Address) -> None:
        got["typed_dict"] = payload

    @mq.handler("struct")
    async def on_struct(payload: Event) -> None:
        got["struct"] = payload

    @mq.handler("model")
    async def on_model(payload: Model) -> None:
        got["model"] = payload.n

    await mq.start()
    await mq.produce("dict", {"a": [1, {"b": None}]})
    await mq.produce("list", [3, 1, 2])
    await mq.produce("str", "héllo\n✓")
    await mq.produce("bare", [{"x": 1.5}, True])
    await mq.produce("dataclass", {"order_id": "A1", "amount": 9.9})
    await mq.produce("typed_dict", {"street": "High Street"})
    await mq.produce("struct", Event("paid", ["x"]))
    await mq.produce("model", Model(7))
    await eventually(lambda: len(got) == 8)
    assert got == {
        "dict": {"a": [1, {"b": None}]},
        "list": [3, 1, 2],
        "str": "héllo\n✓",
        "bare": [{"x": 1.5}, True],
        "dataclass": Order("A1", 9.9),
        "typed_dict": {"street": "High Street"},
        "struct": Event("paid", ["x"]),
        "model": 7,
    }


async def test_stored_bytes_that_are_no_message_are_kept_as_unparsable(
    mq: RedisMessageQueue, redis: Redis
) -> None:
    """They vanish nowhere, no handler sees them, and the messages around them are handled."""
    bodies = {
        "empty": b"{}",
        "binary": b"\xff\x00\xfe",
        "later": b'{"v":3,"payload":1,"created_at":1.0}',
        "deep": b"[" * 100_000,
    }
    seen: list[int] = []

    @mq.handler("t")
    async def on_t(payload: int) -> None:
        seen.append(payload)

    await mq.produce("t", 1)
    for id_, body in bodies.items():
        await put_bytes(redis, id_, body)
        await mq.produce("t", 2)
    await mq.start()
    for id_, body in bodies.items():
        letter = await dead(mq, id_)
        assert (letter.reason, letter.body, letter.topic) == ("unparsable", body, "t")
        assert letter.error
    await drained(mq)
    assert seen == [1, 2, 2, 2, 2]
    assert (await mq.counts()).topics["t"].retried == 0


@pytest.mark.sharded
async def test_a_payload_that_does_not_fit_is_kept_as_invalid_and_never_tried(
    mq: RedisMessageQueue,
) -> None:
    seen: list[Any] = []

    @mq.handler("t")
    async def on_t(payload: Order) -> None:
        seen.append(payload)

    @mq.handler("model")
    async def on_model(payload: Model) -> None:
        seen.append(payload)

    await produce_elsewhere(mq, "t", {"order_id": "A1", "amount": "much"}, message_id="bad")
    await mq.produce("t", {"order_id": "A2", "amount": 1.0}, message_id="good")
    await produce_elsewhere(mq, "model", {"n": "x"}, message_id="model")
    before = await mq.find("bad")
    await mq.start()
    letter = await dead(mq, "bad")
    assert letter.reason == "invalid"
    assert "amount" in letter.error
    assert letter.message == before.message
    assert letter.message is not None
    assert letter.message.attempts == 0
    assert (await dead(mq, "model")).reason == "invalid"
    await drained(mq)
    assert seen == [Order("A2", 1.0)]


@pytest.mark.sharded
async def test_async_functions_run_in_the_loop_and_plain_ones_in_threads(mq: RedisMessageQueue) -> None:
    ran: dict[str, threading.Thread] = {}

    @mq.handler("async")
    async def in_loop(payload: int) -> None:
        ran["async"] = threading.current_thread()

    @mq.handler("plain")
    def in_thread(payload: int) -> None:
        ran["plain"] = threading.current_thread()

    await mq.start()
    await mq.produce("async", 1)
    await mq.produce("plain", 1)
    await eventually(lambda: len(ran) == 2)
    assert ran["async"] is threading.current_thread()
    assert ran["plain"] is not threading.current_thread()


@pytest.mark.sharded
async def test_objects_methods_and_partials_are_handlers(mq: RedisMessageQueue) -> None:
    seen: list[str] = []

    class Service:
        async def method(self, payload: Order, ctx: Context) -> None:
            seen.append(f"method {payload.order_id} {ctx.topic}")

        async def __call__(self, payload: Order) -> None:
            seen.append(f"call {payload.order_id}")

    async def needs(bank: str, payload: Order) -> None:
        seen.append(f"{bank} {payload.order_id}")

    mq.handler("method")(Service().method)
    mq.handler("call")(Service())
    mq.handler("partial")(partial(needs, "bank"))
    await mq.start()
    for topic in ("method", "call", "partial"):
        await mq.produce(topic, Order("A1", 1.0))
    await eventually(lambda: len(seen) == 3)
    assert sorted(seen) == ["bank A1", "call A1", "method A1 method"]


@pytest.mark.sharded
async def test_a_plain_function_that_returns_a_coroutine_has_it_awaited(mq: RedisMessageQueue) -> None:
    """As a decorator that is no coroutine function itself makes of an async handler."""
    seen: list[int] = []

    async def real(payload: int) -> None:
        await asyncio.sleep(0)
        seen.append(payload)

    @mq.handler("t")
    def decorated(payload: int) -> Any:
        return real(payload)

    await mq.start()
    await mq.produce("t", 1)
    await eventually(lambda: seen == [1])


@pytest.mark.sharded
async def test_the_context_says_what_is_known_of_the_delivery(mq: RedisMessageQueue) -> None:
    contexts: list[tuple[Any, ...]] = []

    @mq.handler("t", timeout=60)
    async def on_t(payload: int, ctx: Context) -> None:
        contexts.append(
            (ctx.message_id, ctx.topic, ctx.attempt, dict(ctx.headers), ctx.created_at, ctx.token)
        )
        contexts.append((ctx.remaining, ctx.lost.is_set()))
        facts = await mq.find("A1")
        assert facts.claimed_at is not None
        assert ctx.token == f"1@{facts.claimed_at * 1e6:.0f}"
        assert "A1" in repr(ctx)
        contexts.append(())

    @mq.handler("bare")
    async def on_bare(payload: int, ctx: Context) -> None:
        contexts.append((dict(ctx.headers), ctx.remaining))

    before = time.time()
    await mq.produce("t", 1, message_id="A1", headers={"trace": "abc"})
    after = time.time()
    await mq.start()
    await eventually(lambda: len(contexts) == 3)
    id_, topic, attempt, headers, created_at, _ = contexts[0]
    assert (id_, topic, attempt, headers) == ("A1", "t", 1, {"trace": "abc"})
    assert before - 0.001 <= created_at <= after + 0.001
    assert 50 < contexts[1][0] <= 60
    assert contexts[1][1] is False
    await mq.produce("bare", 1)
    await eventually(lambda: len(contexts) == 4)
    assert contexts[3][0] == {}


@pytest.mark.sharded
async def test_without_a_timeout_there_is_no_end_of_the_time_that_remains(mq: RedisMessageQueue) -> None:
    remaining: list[float] = []

    @mq.handler("t", timeout=None)
    async def on_t(payload: int, ctx: Context) -> None:
        remaining.append(ctx.remaining)

    await mq.start()
    await mq.produce("t", 1)
    await eventually(lambda: remaining == [inf])


@pytest.mark.parametrize("timeout", ["30s", 0, -1, nan, True])
def test_a_timeout_that_is_no_duration_is_refused(timeout: Any) -> None:
    mq = RedisMessageQueue("embedded://")
    with pytest.raises(ConfigError) as refused:

        @mq.handler("t", timeout=timeout)
        async def on_t(payload: int) -> None: ...

    rule = "timeout of topic 't' must be seconds > 0, or None for no limit, got "
    assert str(refused.value) == rule + repr(timeout)


@pytest.mark.sharded
async def test_every_delivery_has_a_token_of_its_own(mq: RedisMessageQueue) -> None:
    tokens: list[str] = []
    attempts: list[int] = []

    @mq.handler("t", retry=_often())
    async def on_t(payload: int, ctx: Context) -> None:
        tokens.append(ctx.token)
        attempts.append(ctx.attempt)
        if len(tokens) < 3:
            raise RuntimeError

    await mq.start()
    await mq.produce("t", 1, message_id="A1")
    await in_state(mq, "A1", "gone")
    assert len(set(tokens)) == 3
    assert attempts == [1, 2, 3]


@pytest.mark.sharded
async def test_a_handler_knows_its_last_attempt(mq: RedisMessageQueue) -> None:
    last: dict[str, list[tuple[int, int, bool]]] = {"t": [], "once": []}

    async def fails(payload: int, ctx: Context) -> None:
        last[ctx.topic].append((ctx.attempt, ctx.max_attempts, ctx.is_last))
        raise ValueError

    mq.handler("t", retry=_often(3))(fails)
    mq.handler("once", retry=_often(1))(fails)
    for topic in last:
        await mq.produce(topic, 1, message_id=topic)
    await mq.start()
    for topic in last:
        await dead(mq, topic)
    assert last["t"] == [(1, 3, False), (2, 3, False), (3, 3, True)]
    assert last["once"] == [(1, 1, True)]


async def test_crashes_of_workers_do_not_make_an_attempt_the_last(
    mq: RedisMessageQueue, redis: Redis
) -> None:
    seen: list[tuple[int, bool]] = []

    @mq.handler("t", retry=_often(3))
    async def on_t(payload: int, ctx: Context) -> None:
        seen.append((ctx.attempt, ctx.is_last))

    crashed = message(1, id="A1", topic="t", attempts=1, crashes=2)
    await put_bytes(redis, "A1", encode_message(crashed))
    await mq.start()
    await eventually(lambda: seen == [(4, False)])


@pytest.mark.sharded
async def test_the_fence_grows_with_every_delivery_of_an_id(mq: RedisMessageQueue) -> None:
    """Through retries, a replay and a new message of the same id; a store compares them as numbers."""
    fences: list[int] = []

    @mq.handler("t", retry=_often())
    async def on_t(payload: int, ctx: Context) -> None:
        assert ctx.token.endswith(f"@{ctx.fence}")
        fences.append(ctx.fence)
        if len(fences) < 3:
            raise RuntimeError
        if len(fences) == 3:
            raise Reject("no")

    await mq.start()
    await mq.produce("t", 1, message_id="A1")
    await in_state(mq, "A1", "dead")
    await mq.dlq.replay("A1")
    await in_state(mq, "A1", "gone")
    await mq.produce("t", 1, message_id="A1")
    await eventually(lambda: len(fences) == 5)
    assert fences == sorted(set(fences))
    assert fences[-1] < 2**53


@pytest.mark.sharded
async def test_a_handler_can_still_be_called_as_the_function_it_is(mq: RedisMessageQueue) -> None:
    @mq.handler("t")
    async def double(payload: int) -> int:
        """Twice as much."""
        return payload * 2

    assert await double(21) == 42
    assert (double.__name__, double.__doc__, double.topic) == ("double", "Twice as much.", "t")


@pytest.mark.sharded
async def test_a_handler_can_produce_while_it_runs(mq: RedisMessageQueue) -> None:
    seen: list[int] = []

    @mq.handler("first")
    async def first(payload: int) -> None:
        await second.produce(payload + 1)

    @mq.handler("second")
    async def second(payload: int) -> None:
        seen.append(payload)

    await mq.start()
    await first.produce(1)
    await eventually(lambda: seen == [2])


@pytest.mark.sharded
async def test_a_topic_has_one_handler_and_gets_no_more_while_the_worker_runs(mq: RedisMessageQueue) -> None:
    async def on_t(payload: int) -> None: ...

    with pytest.raises(NoHandler, match="register one"):
        mq.start()
    mq.handler("t")(on_t)
    with pytest.raises(ConfigError, match="already has the handler on_t"):
        mq.handler("t")(on_t)
    await mq.start()
    with pytest.raises(ConfigError, match="is running"):
        mq.handler("u")(on_t)


@pytest.mark.sharded
@pytest.mark.parametrize(
    "options",
    [
        {"concurrency": 0},
        {"timeout": 0},
        {"timeout": -1},
        {"retry": 5},
        {"batch": 0},
        {"batch": 1001},
        {"linger": 1},
        {"batch": 10, "linger": -1},
    ],
    ids=str,
)
async def test_an_option_of_a_handler_that_makes_no_sense_is_refused(
    mq: RedisMessageQueue, options: dict[str, Any]
) -> None:
    def on_t(payload) -> None: ...  # type: ignore[no-untyped-def]

    with pytest.raises(ConfigError, match=next(reversed(options))):
        mq.handler("t", **options)(on_t)  # type: ignore[no-untyped-call]


async def test_nothing_of_a_payload_is_in_the_log(
    make_queue: MakeQueue, redis: Redis, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever becomes of the message: done, tried again, dead, invalid or unparsable."""
    mq = make_queue()
    caplog.set_level("DEBUG")

    @mq.handler("t", retry=_often(2))
    async def on_t(payload: Order) -> None:
        if payload.amount > 5:
            raise RuntimeError("too much")

    await mq.start()
    await mq.produce("t", {"order_id": "SECRET", "amount": 1.0})
    await mq.produce("t", {"order_id": "SECRET", "amount": 9.0}, headers={"h": "SECRET"})
    await produce_elsewhere(mq, "t", {"order_id": "x", "amount": "SECRET"})
    await put_bytes(redis, "garbage", b'"SECRET')
    await dead(mq, "garbage")
    await drained(mq)
    assert await is_sound(mq)
    await mq.stop()
    assert len(caplog.records) > 3
    everything = "".join(str(vars(record)) for record in caplog.records)
    assert "SECRET" not in everything


def _often(attempts: int = 5) -> Any:
    from mx_rmq import Retry

    return Retry(attempts, backoff="fixed", base=0)
