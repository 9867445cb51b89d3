"""Mistakes of the first hour: each is refused at the door, with what must be, what was given, the remedy."""

from __future__ import annotations

import asyncio
import inspect
import os
import subprocess
import sys
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pytest

from mx_rmq import (
    ConfigError,
    Context,
    InvalidName,
    InvalidPayload,
    RedisMessageQueue,
    Retry,
    RetryLater,
    run,
    run_processes,
)
from mx_rmq.worker.invocation import wrap
from tests.words import complete, eventually

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from redis.asyncio import Redis


@dataclass
class Order:
    order_id: str
    amount: float


class Unknown:
    """A class that JSON cannot become."""


def refused(call: Callable[[], Any]) -> str:
    """What the refusal of a call says."""
    with pytest.raises(ConfigError) as refusal:
        call()
    return str(refusal.value)


@pytest.fixture
def bare() -> RedisMessageQueue:
    """A queue that is not open."""
    return RedisMessageQueue("redis://localhost", name="q")


# -- handlers


def test_a_handler_without_parentheses(bare: RedisMessageQueue) -> None:
    handler: Any = bare.handler
    assert refused(lambda: handler(lambda payload: None)) == (
        '@queue.handler needs a topic: write @queue.handler("orders")'
    )


def context_first(ctx: Context, payload: Any) -> None: ...
def context_before_another(ctx: Context, request_context: dict[str, Any]) -> None: ...
def celery_style(order_id: str, amount: float) -> None: ...
def celery_style_too(order_id, amount): ...  # type: ignore[no-untyped-def]
def bound(self: Any, payload: Any) -> None: ...
def three(a: Any, b: Any, c: Any) -> None: ...
def with_default(payload: Any, retries: int = 3) -> None: ...
def with_default_payload(payload: Any = None) -> None: ...
def none() -> None: ...
def named(**fields: Any) -> None: ...
def demanding(payload: Any, *, bank: str) -> None: ...


@pytest.mark.parametrize(
    ("function", "problem"),
    [
        (context_first, "the payload comes first"),
        (context_before_another, "the payload comes first"),
        (celery_style, "put order_id and amount into one payload, or annotate the second with Context"),
        (celery_style_too, "the second one is the context"),
        (bound, "it is a method; register a function, or a method of an object"),
        (three, "put what belongs together into one payload, such as a dict or a dataclass"),
        (with_default, "a default would never be used, or be replaced by the context; make it keyword-only"),
        (with_default_payload, "a default would never be used"),
        (none, "put what belongs together into one payload"),
        (named, "only positional parameters are filled"),
        (demanding, "only positional parameters are filled"),
    ],
)
def test_a_handler_takes_a_payload_or_a_payload_and_a_context(
    bare: RedisMessageQueue, function: Any, problem: str
) -> None:
    said = refused(lambda: bare.handler("t")(function))
    assert said.startswith(f"handler {function.__name__} must take (payload) or (payload, context), got (")
    assert problem in said
    assert "t" not in bare._handlers


def with_context(payload: Any, ctx: Context) -> None: ...
def with_any(payload: Any, anything: Any) -> None: ...
def with_unused(payload, _unused): ...  # type: ignore[no-untyped-def]
def with_plain(payload, context): ...  # type: ignore[no-untyped-def]
def with_optional(payload: Any, ctx: Context | None = None) -> None: ...
def with_keyword(payload: Any, *, bank: str = "A") -> None: ...
def with_a_context_as_payload(context: dict[str, Any], ctx: Context) -> None: ...


HANDLERS = [with_context, with_any, with_unused, with_plain, with_optional, with_keyword]


@pytest.mark.parametrize("function", [*HANDLERS, with_a_context_as_payload])
def test_these_are_handlers(bare: RedisMessageQueue, function: Any) -> None:
    assert bare.handler("t")(function).takes_context == (function is not with_keyword)


def test_one_function_may_handle_two_topics_and_keeps_its_signature(bare: RedisMessageQueue) -> None:
    @bare.handler("a")
    @bare.handler("b")
    async def on_order(order: Order) -> str:
        """What is done with an order."""
        return order.order_id

    assert {topic: handler.function.__name__ for topic, handler in bare._handlers.items()} == {
        "a": "on_order",
        "b": "on_order",
    }
    assert on_order.topic == "a"
    assert str(inspect.signature(on_order)) == "(order: 'Order') -> 'str'"
    assert on_order.__doc__ == "What is done with an order."
    assert asyncio.iscoroutinefunction(on_order)
    assert not asyncio.iscoroutinefunction(bare.handler("c")(with_any))


def test_a_topic_that_is_no_text(bare: RedisMessageQueue) -> None:
    handler: Any = bare.handler
    with pytest.raises(InvalidName, match=r"a topic must be .*, got \['a', 'b'\]"):
        handler(["a", "b"])


def undecodable(payload: Unknown) -> None: ...
def inside(payload: dict[str, list[Unknown]]) -> None: ...


@pytest.mark.parametrize("function", [undecodable, inside])
def test_an_annotation_that_cannot_be_decoded(bare: RedisMessageQueue, function: Any) -> None:
    said = refused(lambda: bare.handler("t")(function))
    assert "Unknown cannot be decoded from JSON; use plain types, a dataclass, a msgspec.Struct or a" in said


def test_a_timeout_that_is_no_duration(bare: RedisMessageQueue) -> None:
    timeout: Any = "30s"
    assert refused(lambda: bare.handler("t", timeout=timeout)(with_any)) == (
        "timeout of topic 't' must be seconds > 0, or None for no limit, got '30s'"
    )


@pytest.mark.parametrize(
    ("option", "instead"),
    [
        ("max_retries", "did you mean retry=Retry(max_attempts=…)?"),
        ("time_limit", "did you mean timeout?"),
        ("concurency", "did you mean 'concurrency'?"),
        ("colour", "known are: retry, timeout, concurrency, batch, linger"),
    ],
)
def test_an_unknown_option_of_a_handler(bare: RedisMessageQueue, option: str, instead: str) -> None:
    options: dict[str, Any] = {option: 3}
    said = refused(lambda: bare.handler("t", **options))
    assert said.startswith(f"there is no option of handler {option!r}; ")
    assert instead.rpartition(", batch")[0] in said


# -- retries


@pytest.mark.parametrize("delay", [-1, "1m", True, float("nan")])
def test_retrying_later_takes_seconds(delay: Any) -> None:
    said = refused(lambda: RetryLater(delay))
    assert (
        said == f"the delay of RetryLater must be seconds >= 0, or None for the policy's wait, got {delay!r}"
    )


def test_a_reason_is_a_text() -> None:
    mistake: Any = False
    said = refused(lambda: RetryLater(60, mistake))
    assert said == "the reason of RetryLater must be a text; count is given by name, got False"


def test_one_class_where_a_tuple_is_wanted() -> None:
    never: Any = ValueError
    assert "never must be a tuple of exception classes, such as (ValueError,)" in refused(
        lambda: Retry(never=never)
    )


@pytest.mark.parametrize(
    ("option", "instead"), [("max_retries", "max_attempts"), ("delay", "base"), ("max_delay", "cap")]
)
def test_an_unknown_option_of_retry(option: str, instead: str) -> None:
    options: dict[str, Any] = {option: 3}
    said = refused(lambda: Retry(**options))
    assert said.startswith(f"there is no option of Retry {option!r}; did you mean ")
    assert instead in said


# -- the queue


@pytest.mark.parametrize(
    ("option", "instead"),
    [
        ("max_retries", "retry=Retry(max_attempts=…)"),
        ("grace", "stop_grace"),
        ("concurency", "'concurrency'"),
    ],
)
def test_an_unknown_option_of_the_queue(option: str, instead: str) -> None:
    options: dict[str, Any] = {option: 3}
    said = refused(lambda: RedisMessageQueue("redis://localhost", **options))
    assert said == f"there is no option {option!r}; did you mean {instead}?"


def test_a_name_where_the_number_of_a_database_is_wanted() -> None:
    assert refused(lambda: RedisMessageQueue("redis://localhost:6379/shop")) == (
        "the database in the server's URL must be a number such as /0, got '/shop'; to give the queue a "
        "name, pass name='shop'"
    )


@pytest.mark.parametrize("url", ["redis://:pass/word@localhost", "redis://:pa#ss@localhost/0"])
def test_a_url_that_can_be_read_in_two_ways_shows_nothing_of_the_password(url: str) -> None:
    said = refused(lambda: RedisMessageQueue(url))
    assert "with special characters in the password as %XX" in said
    assert "pa" not in said.replace("password", "")


async def test_running_twice(mq: RedisMessageQueue) -> None:
    mq.handler("t")(with_any)
    running = asyncio.create_task(mq.run())
    await eventually(lambda: mq._lifecycle.worker is not None)
    with pytest.raises(ConfigError, match=r"runs already; call run\(\) once, or start\(\) inside"):
        await mq.run()
    await mq.stop()
    running.cancel()
    await asyncio.wait([running])


async def test_running_in_a_loop_that_runs(bare: RedisMessageQueue) -> None:
    assert refused(lambda: run(bare)) == (
        "an event loop runs here already; use 'await queue.run()' or 'await queue.start()'"
    )


def test_starting_without_a_loop(bare: RedisMessageQueue) -> None:
    bare.handler("t")(with_any)
    assert refused(bare.start).startswith("no event loop runs here; await this in an async function, run the")


def test_a_name_where_the_queue_is_wanted_and_the_other_way_round(bare: RedisMessageQueue) -> None:
    anything: Any = bare
    name: Any = "tasks:mq"
    assert refused(lambda: run_processes(anything, 2)).startswith(
        "queue must be where to import it from, such as 'package.module:name', got <RedisMessageQueue"
    )
    assert refused(lambda: run(name)) == (
        "queue must be the queue itself (run_processes takes its name), got 'tasks:mq'"
    )


# -- middleware


def test_middleware_takes_three_and_around_produce_four(bare: RedisMessageQueue) -> None:
    middleware: Any = bare.middleware
    around_produce: Any = bare.produce_middleware
    for wrong in (None, lambda payload: payload):
        assert "must be a function that takes (call_next, payload, context), got" in refused(
            partial(middleware, wrong)
        )
        assert "must be a function that takes (call_next, topic, payload, options), got" in refused(
            partial(around_produce, wrong)
        )
    lifespan: Any = lambda: None  # noqa: E731 - takes nothing
    assert "lifespan must be a function that takes one argument, the queue, got" in refused(
        lambda: RedisMessageQueue("redis://localhost", lifespan=lifespan)
    )


async def test_middleware_comes_before_the_start(mq: RedisMessageQueue) -> None:
    mq.handler("t")(with_any)
    await mq.start()

    async def layer(call_next: Any, payload: Any, context: Any) -> Any:
        return await call_next(payload, context)

    assert (
        refused(lambda: mq.middleware(layer)) == "the worker is running; register middleware before start()"
    )


async def test_a_layer_that_is_not_async_is_named(mq: RedisMessageQueue) -> None:
    def layer(*_: Any) -> None: ...

    mq.produce_middleware(layer)  # type: ignore[type-var] # that is the mistake
    with pytest.raises(ConfigError, match=r"layer returned None, not an awaitable; write async def"):
        await mq.produce("t", 1)
    with pytest.raises(TypeError, match=r"middleware .*layer returned None, not an awaitable; write async"):
        await wrap(layer, [layer])(1, None)  # type: ignore[arg-type, list-item] # that is the mistake


# -- producing


@pytest.mark.parametrize("payloads", ["hello", b"hello", {"a": 1}, 5, None])
async def test_one_payload_where_many_are_wanted(mq: RedisMessageQueue, payloads: Any) -> None:
    said = f"payloads must be an iterable with one payload per message, got {payloads!r}"
    with pytest.raises(ConfigError) as refusal:
        await mq.produce_many("t", payloads)
    assert str(refusal.value) == said
    with pytest.raises(ConfigError) as refusal:
        mq.sync.produce_many("t", payloads)
    assert str(refusal.value) == said
    with pytest.raises(ConfigError) as refusal:
        await mq.handler("t")(with_any).produce_many(payloads)
    assert str(refusal.value) == said

    async def layer(call_next: Any, *given: Any) -> Any:
        return await call_next(*given)

    mq.produce_middleware(layer)
    for produce_many in (mq.produce_many, _awaitable(mq.sync.produce_many)):
        with pytest.raises(ConfigError) as refusal:
            await produce_many("t", payloads)
        assert str(refusal.value) == said


@pytest.mark.parametrize("inside", ["nothing", "a layer"])
async def test_a_bad_item_is_named_by_its_place(mq: RedisMessageQueue, inside: str) -> None:
    @mq.handler("orders")
    async def on_order(n: int) -> None: ...

    if inside == "a layer":

        @mq.produce_middleware
        async def layer(call_next: Any, *given: Any) -> Any:
            return await call_next(*given)

    for produce_many in (mq.produce_many, _awaitable(mq.sync.produce_many)):
        with pytest.raises(InvalidPayload, match=r"^payloads\[2\]: payload is a set"):
            await produce_many("t", [1, 2, {3}, 4])
    wrong: Any = [1, 2, "x", 4]
    with pytest.raises(InvalidPayload, match=r"^payloads\[2\]: the payload does not fit int"):
        await on_order.produce_many(wrong)


def _awaitable(function: Any) -> Any:
    async def call(*arguments: Any) -> Any:
        return function(*arguments)

    return call


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"dedup_for": 5}, "dedup_for needs a message_id: a message without one gets a new id each time"),
    ({"delay": 1.8e9}, "delay must be seconds from now (use at= for a point in time), got 1800000000.0"),
    ({"delay": datetime(2030, 1, 1, tzinfo=UTC)}, "delay must be seconds from now (use at= for a point"),
    ({"at": datetime(2030, 1, 1)}, "at must be a datetime with a time zone, such as datetime.now(UTC)"),
    ({"at": 5}, "at must be a datetime with a time zone, got 5"),
    ({"at": datetime.max.replace(tzinfo=UTC)}, "at must be at most 100000000000 seconds from now, got"),
    ({"at": datetime(2030, 1, 1, tzinfo=UTC), "delay": 1}, "delay and at exclude each other"),
    ({"eta": 5}, "there is no option of produce 'eta'; did you mean at?"),
    ({"countdown": 5}, "there is no option of produce 'countdown'; did you mean delay?"),
    ({"prioritty": "high"}, "there is no option of produce 'prioritty'; did you mean 'priority'?"),
    ({"max_retries": 3}, "did you mean retry=Retry(max_attempts=…) on the handler?"),
]


@pytest.mark.parametrize(("options", "said"), WRONG, ids=[",".join(options) for options, _ in WRONG])
async def test_a_wrong_option_of_produce(mq: RedisMessageQueue, options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        await mq.produce("t", 1, **options)
    assert said in str(refusal.value)
    with pytest.raises(ConfigError):
        await mq.produce_many("t", [1], **options)
    with pytest.raises(ConfigError):
        mq.sync.produce("t", 1, **options)


async def test_a_payload_that_a_handler_here_would_not_accept(mq: RedisMessageQueue) -> None:
    @mq.handler("orders")
    async def on_order(order: Order) -> None: ...

    wrong = {"order_id": "A1", "amount": "much"}
    said = r"topic 'orders' has the handler on_order: the payload does not fit Order: .*amount"
    with pytest.raises(InvalidPayload, match=said):
        await mq.produce("orders", wrong)
    with pytest.raises(InvalidPayload, match=r"payloads\[1\]: " + said):
        await mq.produce_many("orders", [{"order_id": "A1", "amount": 1}, wrong])
    with pytest.raises(InvalidPayload, match=said):
        mq.sync.produce("orders", wrong)
    await mq.produce("orders", {"order_id": "A1", "amount": 1})


# -- what is accepted


@pytest.mark.parametrize(
    "name", ["order:17", "a@b.example", "media/video", "a#1", "a+b", ":", "call:of:x", "a:pending:high"]
)
async def test_ids_and_topics_may_have_these_signs(mq: RedisMessageQueue, redis: Redis, name: str) -> None:
    assert await mq.produce(name, {"n": 1}, message_id=name, delay=0.001) == name
    assert (await mq.find(name)).topic == name
    assert await mq.cancel(name)
    await mq.produce(name, {"n": 1}, message_id=name)
    assert (await mq.counts()).topics[name].pending == 1
    assert await complete(redis, name) == [name]
    assert all(report.clean for report in await mq.audit())


@pytest.mark.parametrize("id_", [17, -3, UUID(int=5)])
async def test_an_id_may_be_a_number_or_a_uuid(mq: RedisMessageQueue, id_: Any) -> None:
    assert await mq.produce("t", 1, message_id=id_) == str(id_)
    assert (await mq.find(id_)).state == "pending"
    assert (await mq.explain(id_)).startswith(f"message {id_} ")
    assert await mq.cancel(id_)


async def test_durations_may_be_timedeltas(mq: RedisMessageQueue) -> None:
    minute = timedelta(minutes=1)
    await mq.produce("t", 1, delay=minute, ttl=minute, message_id="A1", dedup_for=minute)
    facts = await mq.find("A1")
    assert facts.due_at is not None
    assert facts.expires_at == pytest.approx(facts.due_at + 60, abs=0.01)
    assert mq.handler("t", timeout=minute)(with_any).timeout == 60
    assert RetryLater(minute).delay == 60
    assert RedisMessageQueue("redis://localhost", lease=minute, ttl=minute).config.lease == 60


async def test_a_message_may_wait_for_a_point_in_time(mq: RedisMessageQueue) -> None:
    at = datetime.now(UTC) + timedelta(hours=1)
    await mq.produce("t", 1, at=at, message_id="A1")
    due_at = (await mq.find("A1")).due_at
    assert due_at == pytest.approx(at.timestamp(), abs=2)
    await mq.produce("t", 1, at=at - timedelta(days=1), message_id="A2")
    assert (await mq.find("A2")).state == "pending", "a point in time that has passed is now"


# -- processes


def test_processes_cannot_share_a_private_server(tmp_path: Path) -> None:
    assert "use embedded:///path, which they share" in _run_processes(tmp_path, "embedded://")


def test_processes_need_a_module(tmp_path: Path) -> None:
    said = refused(lambda: run_processes("__main__:mq", 2))
    assert said == "the processes cannot import __main__; put the queue into a module of its own"


def test_a_call_without_a_guard_is_refused_before_any_process_starts(tmp_path: Path) -> None:
    said = _run_processes(tmp_path, f"embedded://{tmp_path}/data", queue="main:mq")
    assert "importing 'main:mq' calls run_processes again" in said
    assert 'put the call under if __name__ == "__main__":' in said


def _run_processes(home: Path, url: str, queue: str = "app:mq") -> str:
    """What a program without a guard says."""
    app = f"from mx_rmq import RedisMessageQueue, run_processes\nmq = RedisMessageQueue({url!r})\n"
    (home / "app.py").write_text(app)
    (home / "main.py").write_text(f"{app}run_processes({queue!r}, 2)\n")
    done = subprocess.run(
        [sys.executable, "main.py"],
        cwd=home,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr.count("Traceback") == 1
    return done.stderr
