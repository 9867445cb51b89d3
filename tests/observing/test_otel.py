"""Spans for OpenTelemetry: a handler's span continues the trace of what produced its message."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
from opentelemetry import propagate, trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from mx_rmq import Context, InvalidPayload, RedisMessageQueue, Reject, Retry, RetryLater, ServerUnavailable
from mx_rmq.otel import instrument
from tests.words import dead, drained, eventually

if TYPE_CHECKING:
    from collections.abc import Sequence

    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.trace import SpanContext

    from tests.proxy import Proxy
    from tests.words import MakeQueue


class Traces:
    """A provider, and the spans that ended."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))

    def named(self, name: str) -> list[ReadableSpan]:
        return [span for span in self._exporter.get_finished_spans() if span.name == name]

    async def some(self, name: str, count: int = 1) -> Sequence[ReadableSpan]:
        """The spans of a name, once there are so many."""
        await eventually(lambda: len(self.named(name)) >= count)
        found = self.named(name)
        assert len(found) == count
        return found


@pytest.fixture
def traces() -> Traces:
    return Traces()


@pytest.fixture
def traced(make_queue: MakeQueue, traces: Traces) -> RedisMessageQueue:
    mq = make_queue()
    instrument(mq, traces.provider)
    return mq


def context(span: ReadableSpan) -> SpanContext:
    found = span.get_span_context()
    assert found is not None
    return found


def attributes(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


async def test_a_handler_continues_the_trace_of_its_producer(
    traced: RedisMessageQueue, traces: Traces
) -> None:
    seen: list[dict[str, str]] = []

    @traced.handler("orders")
    async def handle(payload: int, ctx: Context) -> None:
        seen.append(dict(ctx.headers))
        with traces.provider.get_tracer("shop").start_as_current_span("inside"):
            pass

    with traces.provider.get_tracer("shop").start_as_current_span("request") as request:
        receipt = await traced.produce("orders", 1, headers={"tenant": "a"})
    await traced.start()
    (sent,) = await traces.some("orders send")
    (processed,) = await traces.some("orders process")
    (inside,) = traces.named("inside")
    assert sent.kind is SpanKind.PRODUCER
    assert processed.kind is SpanKind.CONSUMER
    assert sent.parent is not None
    assert sent.parent.span_id == request.get_span_context().span_id
    assert processed.parent is not None
    assert processed.parent.span_id == context(sent).span_id
    assert inside.parent is not None
    assert inside.parent.span_id == context(processed).span_id
    assert {context(span).trace_id for span in (sent, processed, inside)} == {
        request.get_span_context().trace_id
    }
    (headers,) = seen
    assert headers.keys() == {"tenant", "traceparent"}
    common = {
        "messaging.system": "mx_rmq",
        "messaging.destination.name": "orders",
        "messaging.message.id": str(receipt),
        "messaging.mx_rmq.queue": "q",
    }
    send = {"messaging.operation.name": "send", "messaging.operation.type": "send"}
    process = {"messaging.operation.name": "process", "messaging.operation.type": "process"}
    assert attributes(sent) == common | send
    assert attributes(processed) == common | process | {"messaging.mx_rmq.attempt": 1}


async def test_a_handler_in_a_thread_is_inside_its_span(traced: RedisMessageQueue, traces: Traces) -> None:
    inside: list[int] = []

    @traced.handler("t")
    def handle(payload: int) -> None:
        inside.append(trace.get_current_span().get_span_context().span_id)

    await traced.produce("t", 1)
    await traced.start()
    (processed,) = await traces.some("t process")
    assert inside == [context(processed).span_id]


async def test_produce_many_is_one_span_and_one_batch_of_calls(
    traced: RedisMessageQueue, traces: Traces, proxy: Proxy
) -> None:
    """The messages carry its context, and are not produced one by one."""

    @traced.handler("t")
    async def handle(payload: int) -> None: ...

    receipts = await traced.produce_many("t", range(500), headers={"tenant": "a"})
    assert len(receipts) == 500
    await traced.start()
    (sent,) = await traces.some("t send")
    assert attributes(sent)["messaging.batch.message_count"] == 500
    processed = await traces.some("t process", 500)
    assert {span.parent.span_id for span in processed if span.parent} == {context(sent).span_id}

    async with RedisMessageQueue(proxy.url, name="p", server_check="off") as far:
        instrument(far, traces.provider)
        await far.produce("t", 0)
        before = len(proxy.commands)
        await far.produce_many("t", range(500))
        assert len(proxy.commands) - before < 10


async def test_the_blocking_producer_makes_the_same_spans(traced: RedisMessageQueue, traces: Traces) -> None:
    headers: list[str] = []

    @traced.handler("t")
    async def handle(payload: int, ctx: Context) -> None:
        headers.append(ctx.headers["traceparent"])

    await asyncio.to_thread(traced.sync.produce, "t", 1)
    await asyncio.to_thread(traced.sync.produce_many, "t", [2, 3])
    await traced.start()
    await traces.some("t process", 3)
    one, many = traces.named("t send")
    assert attributes(many)["messaging.batch.message_count"] == 2
    spans = [f"{context(span).span_id:016x}" for span in (one, many, many)]
    assert sorted(header.split("-")[2] for header in headers) == sorted(spans)


async def test_a_batch_links_to_what_produced_its_messages(traced: RedisMessageQueue, traces: Traces) -> None:
    @traced.handler("t", batch=10)
    async def handle(payloads: list[int]) -> list[ValueError | None]:
        return [ValueError("no") if payload == 1 else None for payload in payloads]

    receipts = [await traced.produce("t", n) for n in range(3)]
    await traced.produce("t", 9, headers={"traceparent": "nonsense"})
    await traced.start()
    (processed,) = await traces.some("t process")
    sent = traces.named("t send")
    assert processed.parent is None
    linked = {link.context.span_id for link in processed.links}
    assert linked == {context(span).span_id for span in sent}
    ids = {dict(link.attributes or {})["messaging.message.id"] for link in processed.links}
    assert set(receipts) < ids
    assert attributes(processed)["messaging.batch.message_count"] == 4
    assert processed.status.status_code is StatusCode.ERROR, "one of them failed"


async def test_an_error_is_recorded_and_each_attempt_has_its_span(
    traced: RedisMessageQueue, traces: Traces
) -> None:
    @traced.handler("t", retry=Retry(2, backoff=[0.0]))
    async def handle(payload: int) -> None:
        raise ValueError("no stock")

    await traced.produce("t", 1, message_id="A1")
    await traced.start()
    await dead(traced, "A1")
    first, second = await traces.some("t process", 2)
    assert [attributes(span)["messaging.mx_rmq.attempt"] for span in (first, second)] == [1, 2]
    for span in (first, second):
        assert span.status.status_code is StatusCode.ERROR
        assert span.status.description == "ValueError: no stock"
        assert attributes(span)["error.type"] == "ValueError"
        (event,) = span.events
        assert event.name == "exception"
    assert context(first).trace_id == context(second).trace_id


async def test_an_error_without_a_text_is_still_the_handlers(
    traced: RedisMessageQueue, traces: Traces
) -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no text")

    @traced.handler("t", retry=Retry(1))
    async def handle(payload: int) -> None:
        raise Mute

    await traced.produce("t", 1, message_id="A1")
    await traced.start()
    await dead(traced, "A1")
    assert (await traced.dlq.get("A1")).kind == "Mute"
    (span,) = await traces.some("t process", 1)
    assert (span.status.status_code, attributes(span)["error.type"].rpartition(".")[2]) == (
        StatusCode.ERROR,
        "Mute",
    )


async def test_a_timeout_and_a_rejection_are_errors_and_to_put_off_is_none(
    traced: RedisMessageQueue, traces: Traces
) -> None:
    @traced.handler("slow", timeout=0.05, retry=Retry(1))
    async def slow(payload: int) -> None:
        await asyncio.Event().wait()

    @traced.handler("rejected")
    async def rejected(payload: int) -> None:
        raise Reject("never")

    waited: list[int] = []

    @traced.handler("later")
    async def later(payload: int) -> None:
        waited.append(payload)
        if len(waited) == 1:
            raise RetryLater(0.0, count=False)

    for topic in ("slow", "rejected", "later"):
        await traced.produce(topic, 1)
    await traced.start()
    (timed_out,) = await traces.some("slow process")
    (refused,) = await traces.some("rejected process")
    put_off, done = await traces.some("later process", 2)
    assert attributes(timed_out)["error.type"] == "CancelledError"
    assert attributes(refused)["error.type"] == "Reject"
    assert {span.status.status_code for span in (timed_out, refused)} == {StatusCode.ERROR}
    assert {span.status.status_code for span in (put_off, done)} == {StatusCode.UNSET}
    assert attributes(put_off)["messaging.mx_rmq.put_off"] is True


async def test_a_produce_that_fails_has_an_error_and_a_duplicate_says_so(
    traces: Traces, mq: RedisMessageQueue
) -> None:
    away = RedisMessageQueue("redis://127.0.0.1:1", patience=0.0, server_check="off")
    instrument(away, traces.provider)
    with pytest.raises(ServerUnavailable):
        await away.produce("t", 1)
    await away.close()
    (failed,) = await traces.some("t send")
    assert failed.status.status_code is StatusCode.ERROR
    instrument(mq, traces.provider)
    for _ in range(2):
        await mq.produce("d", 1, message_id="A1")
    first, second = traces.named("d send")
    assert "messaging.mx_rmq.duplicate" not in attributes(first)
    assert attributes(second)["messaging.mx_rmq.duplicate"] is True
    with pytest.raises(InvalidPayload, match="headers must be a mapping"):
        mq.sync.produce("d", 1, headers=["no"])  # type: ignore[arg-type]


async def test_instrumenting_twice_makes_one_span(traced: RedisMessageQueue, traces: Traces) -> None:
    instrument(traced, traces.provider)
    await traced.produce("t", 1)
    assert len(traces.named("t send")) == 1


async def test_without_a_provider_nothing_is_added(make_queue: MakeQueue) -> None:
    """No header, so no byte; and no span is current in the handler."""
    mq = make_queue()
    instrument(mq)
    seen: list[tuple[dict[str, str], bool]] = []

    @mq.handler("t")
    async def handle(payload: int, ctx: Context) -> None:
        seen.append((dict(ctx.headers), trace.get_current_span().get_span_context().is_valid))

    await mq.produce("t", 1)
    await mq.produce_many("t", [2])
    await asyncio.to_thread(mq.sync.produce, "t", 3)
    await mq.start()
    await drained(mq)
    assert seen == [({}, False)] * 3


LATE = """
import asyncio
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from mx_rmq import RedisMessageQueue
from mx_rmq.otel import instrument

async def main():
    mq = RedisMessageQueue("embedded://")
    instrument(mq)
    got = []

    @mq.handler("t")
    async def handle(payload: int, ctx) -> None:
        got.append("traceparent" in ctx.headers)

    async with mq:
        await mq.start()
        await mq.produce("t", 1)
        await mq.drain()
        assert got == [False]
        trace.set_tracer_provider(TracerProvider())
        while not got[-1]:
            await mq.produce("t", 2)
            await mq.drain()
    print("found")

asyncio.run(main())
"""


def test_a_provider_that_the_program_sets_later_is_used() -> None:
    done = subprocess.run(
        [sys.executable, "-c", LATE], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout == "found\n"


def test_without_the_package_the_error_names_the_extra() -> None:
    program = "import sys; sys.modules['opentelemetry'] = None\nimport mx_rmq.otel"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.endswith('ConfigError: opentelemetry is not installed; pip install "mx-rmq[otel]"\n')


async def test_other_propagators_are_used_if_the_program_sets_them(
    traced: RedisMessageQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The headers are those of the API's propagator; W3C is its default."""
    seen: list[dict[str, str]] = []

    @traced.handler("t")
    async def handle(payload: int, ctx: Context) -> None:
        seen.append(dict(ctx.headers))

    monkeypatch.setattr(propagate, "inject", lambda carrier: carrier.update(b3="1"))
    await traced.produce("t", 1)
    await traced.start()
    await drained(traced)
    assert seen == [{"b3": "1"}]
