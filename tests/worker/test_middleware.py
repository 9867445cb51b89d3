"""Middleware around handlers and around produce."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from mx_rmq import Context, ProduceOptions, RedisMessageQueue, Reject, Retry
from tests.words import dead, drained, eventually, in_state

if TYPE_CHECKING:
    from tests.words import MakeQueue

ONCE = Retry(1)


@pytest.mark.sharded
@pytest.mark.parametrize("kind", ["async", "plain"])
async def test_the_first_middleware_is_outermost_and_may_change_what_the_handler_gets(
    mq: RedisMessageQueue, kind: str
) -> None:
    log: list[str] = []

    @mq.middleware
    async def outer(call_next: Any, payload: Any, context: Context) -> Any:
        log.append(f"outer {context.message_id} {payload}")
        await call_next(payload + 1, context)
        log.append("outer after")

    @mq.middleware
    async def inner(call_next: Any, payload: Any, context: Context) -> Any:
        log.append(f"inner {payload}")
        try:
            return await call_next(payload * 10, context)
        finally:
            log.append("inner after")

    if kind == "async":

        @mq.handler("t")
        async def on_t(payload: int) -> None:
            log.append(f"handler {payload}")

    else:

        @mq.handler("t")
        def on_t_plain(payload: int) -> None:
            log.append(f"handler {payload}")

    await mq.start()
    await mq.produce("t", 1, message_id="A1")
    await eventually(lambda: "outer after" in log)
    assert log == ["outer A1 1", "inner 2", "handler 20", "inner after", "outer after"]


@pytest.mark.sharded
async def test_middleware_may_answer_in_place_of_the_handler(mq: RedisMessageQueue) -> None:
    ran: list[int] = []

    @mq.middleware
    async def skip(call_next: Any, payload: Any, context: Context) -> Any:
        if context.headers.get("skip"):
            return None
        return await call_next(payload, context)

    @mq.handler("t")
    async def on_t(payload: int) -> None:
        ran.append(payload)

    await mq.start()
    await mq.produce("t", 1, message_id="A1", headers={"skip": "yes"})
    await mq.produce("t", 2, message_id="A2")
    await in_state(mq, "A1", "gone")
    await in_state(mq, "A2", "gone")
    assert ran == [2]


@pytest.mark.sharded
@pytest.mark.parametrize("error", [RuntimeError, asyncio.CancelledError, SystemExit])
async def test_what_middleware_raises_counts_as_raised_by_the_handler(
    mq: RedisMessageQueue, error: type[BaseException]
) -> None:
    @mq.middleware
    async def fail(call_next: Any, payload: Any, context: Context) -> Any:
        await call_next(payload, context)
        raise error

    @mq.handler("t", retry=Retry(2, backoff="fixed", base=0))
    async def on_t(payload: int) -> None: ...

    await mq.start()
    for n in range(20):
        await mq.produce("t", 1, message_id=f"A{n}")
    for n in range(20):
        letter = await dead(mq, f"A{n}")
        assert letter.kind == error.__name__
        assert letter.message is not None
        assert letter.message.attempts == 2


@pytest.mark.sharded
async def test_middleware_sees_what_the_handler_raises_and_may_say_otherwise(mq: RedisMessageQueue) -> None:
    @mq.middleware
    async def translate(call_next: Any, payload: Any, context: Context) -> Any:
        try:
            return await call_next(payload, context)
        except LookupError as error:
            raise Reject("no such thing") from error
        except ArithmeticError:
            return None

    @mq.handler("t", retry=ONCE)
    async def on_t(payload: int) -> None:
        raise KeyError if payload else ZeroDivisionError

    await mq.start()
    await mq.produce("t", 1, message_id="A1")
    await mq.produce("t", 0, message_id="A2")
    assert (await dead(mq, "A1")).reason == "rejected"
    await in_state(mq, "A2", "gone")


@pytest.mark.sharded
async def test_the_timeout_covers_the_middleware_too(mq: RedisMessageQueue) -> None:
    @mq.middleware
    async def slow(call_next: Any, payload: Any, context: Context) -> Any:
        await asyncio.Event().wait()

    @mq.handler("t", timeout=0.1, retry=ONCE)
    async def on_t(payload: int) -> None: ...

    await mq.start()
    await mq.produce("t", 1, message_id="A1")
    assert (await dead(mq, "A1")).kind == "TimeoutError"


@pytest.mark.one_shard
async def test_middleware_of_a_batch_gets_the_lists_and_passes_the_outcomes(mq: RedisMessageQueue) -> None:
    seen: list[Any] = []

    @mq.middleware
    async def look(call_next: Any, payload: Any, context: Any) -> Any:
        seen.append((payload, [ctx.message_id for ctx in context]))
        return await call_next(payload, context)

    @mq.handler("t", batch=10, retry=ONCE)
    async def on_t(payloads: list[int]) -> list[Exception | None]:
        return [None, KeyError()]

    await mq.produce("t", 1, message_id="A1")
    await mq.produce("t", 2, message_id="A2")
    await mq.start()
    await dead(mq, "A2")
    await drained(mq)
    assert seen == [([1, 2], ["A1", "A2"])]
    assert (await mq.counts()).dead == 1


@pytest.mark.one_shard
async def test_produce_middleware_is_around_every_produce(make_queue: MakeQueue) -> None:
    mq = make_queue()
    log: list[str] = []
    headers: list[dict[str, str]] = []

    @mq.produce_middleware
    async def outer(call_next: Any, topic: str, payload: Any, options: ProduceOptions) -> Any:
        log.append("outer")
        return await call_next(topic, payload, options)

    @mq.produce_middleware
    async def trace(call_next: Any, topic: str, payload: Any, options: ProduceOptions) -> Any:
        log.append(f"{topic} {payload}")
        if payload == "refuse":
            raise PermissionError
        options["headers"] = {**(options.get("headers") or {}), "trace": "abc"}
        return await call_next(topic, payload, options)

    @mq.handler("t")
    async def on_t(payload: str, ctx: Context) -> None:
        headers.append(dict(ctx.headers))

    await mq.start()
    receipt = await mq.produce("t", "one", message_id="A1", headers={"own": "x"})
    assert (receipt, receipt.duplicate) == ("A1", False)
    many = await mq.produce_many("t", ["two", "three"])
    assert len(set(many)) == 2
    await on_t.produce("four")
    with pytest.raises(PermissionError):
        await mq.produce("t", "refuse")
    await eventually(lambda: len(headers) == 4)
    await drained(mq)
    assert headers == [{"own": "x", "trace": "abc"}] + [{"trace": "abc"}] * 3
    assert log[:4] == ["outer", "t one", "outer", "t two"]
    assert log[-1] == "t refuse"


class Switched:
    """A layer around handlers, or around produce, that can be turned off."""

    def __init__(self) -> None:
        self.on = False
        self.calls: list[Any] = []

    def is_on(self) -> bool:
        return self.on

    async def __call__(self, call_next: Any, *arguments: Any) -> Any:
        self.calls.append(arguments[0])
        return await call_next(*arguments)


@pytest.mark.sharded
async def test_a_layer_that_is_off_is_left_out_until_it_is_on(mq: RedisMessageQueue) -> None:
    layer, always = Switched(), Switched()
    always.on = True
    mq.middleware(layer)
    mq.middleware(always)
    done: list[int] = []

    @mq.handler("t")
    async def handle(payload: int) -> None:
        done.append(payload)

    await mq.start()
    await mq.produce("t", 1)
    await eventually(lambda: done == [1])
    assert (layer.calls, always.calls) == ([], [1])
    layer.on = True

    async def called() -> bool:
        await mq.produce("t", 2)
        return bool(layer.calls)

    await eventually(called, within=5)


@pytest.mark.sharded
async def test_a_produce_layer_that_is_off_is_left_out_until_it_is_on(mq: RedisMessageQueue) -> None:
    layer = Switched()
    mq.produce_middleware(layer)

    async def produce() -> None:
        await mq.produce("one", 1)
        await mq.produce_many("many", [1, 2])
        await asyncio.to_thread(mq.sync.produce, "sync", 1)

    assert not mq.has_produce_middleware
    await produce()
    assert layer.calls == []
    layer.on = True
    assert mq.has_produce_middleware
    await produce()
    assert layer.calls == ["one", "many", "many", "sync"]


@pytest.mark.one_shard
async def test_a_produce_many_stays_whole_only_if_every_layer_takes_it_whole(mq: RedisMessageQueue) -> None:
    class Whole(Switched):
        async def many(self, call_next: Any, topic: str, payloads: Any, options: Any) -> Any:
            self.calls.append([*payloads])
            return await call_next(topic, [payload * 10 for payload in payloads], options)

    outer, inner, single = Whole(), Whole(), Switched()
    outer.on = inner.on = True
    for layer in (outer, inner, single):
        mq.produce_middleware(layer)
    assert len(await mq.produce_many("t", [1, 2])) == 2
    assert len(await asyncio.to_thread(mq.sync.produce_many, "t", [3])) == 1
    assert outer.calls == [[1, 2], [3]]
    assert inner.calls == [[10, 20], [30]]
    single.on = True
    await mq.produce_many("t", [4, 5])
    assert single.calls == ["t", "t"]
    stored = [facts.message for facts in (await mq.list("t")).messages]
    assert [bytes(message.payload) for message in stored if message] == [b"100", b"200", b"300", b"4", b"5"]
