"""Traces for OpenTelemetry: a span for each produce and for each run of a handler, linked by headers.

It needs the extra ``otel``, which is the API only. The program chooses the SDK and where spans go.
"""

from __future__ import annotations

from contextlib import suppress
from math import inf
from time import monotonic
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakSet

from mx_rmq.checks import check_installed
from mx_rmq.message import describe
from mx_rmq.producing.options import checked_headers
from mx_rmq.raised import RetryLater
from mx_rmq.version import __version__

check_installed("opentelemetry", "otel")

from opentelemetry import propagate, trace  # noqa: E402 - after the check, which says what to install
from opentelemetry.trace import Link, SpanKind, Status, StatusCode  # noqa: E402 - after the check

if TYPE_CHECKING:
    from collections.abc import Awaitable, Iterable

    from opentelemetry.trace import Span, Tracer, TracerProvider

    from mx_rmq.produce_options import ProduceManyOptions, ProduceOptions
    from mx_rmq.producing.middleware import ProduceManyNext, ProduceNext
    from mx_rmq.queue import RedisMessageQueue
    from mx_rmq.receipt import Receipt
    from mx_rmq.worker.context import Context
    from mx_rmq.worker.handlers import CallNext

_SYSTEM: Final = "mx_rmq"
_LOOK: Final = 0.1
"""Seconds between two looks for a provider: a look costs more than the rest of a call."""
_instrumented: WeakSet[RedisMessageQueue] = WeakSet()


def instrument(mq: RedisMessageQueue, tracer_provider: TracerProvider | None = None) -> None:
    """Make spans of what a queue produces and handles; a second call for the same queue does nothing.

    Call it before the worker starts. Without a provider, messages get no headers and there is no layer around
    calls. The program may set its provider at any time; that is noticed within a tenth of a second.

    Args:
        mq: the queue.
        tracer_provider: where spans go; the program's by default.
    """
    if mq not in _instrumented:
        _instrumented.add(mq)
        mq.produce_middleware(_Producing(mq.config.name, tracer_provider))
        mq.middleware(_Handling(mq.config.name, tracer_provider))


class _Layer:
    """A layer that is on as soon as there is a provider."""

    def __init__(self, queue: str, provider: TracerProvider | None) -> None:
        self._queue = queue
        self._provider = provider
        self._looked_at = -inf
        self._tracer: Tracer = trace.NoOpTracer()
        if provider is not None:
            self._use(provider)

    def is_on(self) -> bool:
        """Whether there is a provider; the program's is asked for ten times a second at most."""
        if self._provider is None and (now := monotonic()) - self._looked_at >= _LOOK:
            self._looked_at = now
            provider = trace.get_tracer_provider()
            if not isinstance(provider, trace.ProxyTracerProvider):
                self._use(provider)
        return self._provider is not None

    def _use(self, provider: TracerProvider) -> None:
        self._provider = provider
        self._tracer = provider.get_tracer("mx_rmq", __version__)


class _Producing(_Layer):
    """A layer around produce."""

    async def __call__(
        self, call_next: ProduceNext, topic: str, payload: Any, options: ProduceOptions
    ) -> Receipt:
        with self._span(topic) as span:
            receipt = await call_next(topic, payload, {**options, "headers": _carrying(options)})
            span.set_attribute("messaging.message.id", str(receipt))
            if receipt.duplicate:
                span.set_attribute("messaging.mx_rmq.duplicate", True)
            return receipt

    async def many(
        self, call_next: ProduceManyNext, topic: str, payloads: Iterable[Any], options: ProduceManyOptions
    ) -> list[Receipt]:
        """Wrap a whole ``produce_many``: one span, whose context all its messages carry."""
        with self._span(topic) as span:
            receipts = await call_next(topic, payloads, {**options, "headers": _carrying(options)})
            span.set_attribute("messaging.batch.message_count", len(receipts))
            return receipts

    def _span(self, topic: str) -> Any:
        return self._tracer.start_as_current_span(
            f"{topic} send", kind=SpanKind.PRODUCER, attributes=_attributes(self._queue, topic, "send")
        )


class _Handling(_Layer):
    """A layer around handlers."""

    def __call__(self, call_next: CallNext, payload: Any, context: Any) -> Awaitable[Any]:
        if isinstance(context, list):
            return self._batch(call_next, payload, context)
        return self._one(call_next, payload, context)

    async def _one(self, call_next: CallNext, payload: Any, context: Context) -> Any:
        attributes = _attributes(self._queue, context.topic, "process")
        attributes["messaging.message.id"] = context.message_id
        attributes["messaging.mx_rmq.attempt"] = context.attempt
        with self._tracer.start_as_current_span(
            f"{context.topic} process",
            context=propagate.extract(context.headers),
            kind=SpanKind.CONSUMER,
            attributes=attributes,
            record_exception=False,
            set_status_on_exception=False,
        ) as span:
            try:
                return await call_next(payload, context)
            except BaseException as error:
                _record(span, error)
                raise

    async def _batch(self, call_next: CallNext, payloads: Any, contexts: list[Context]) -> Any:
        topic = contexts[0].topic
        attributes = _attributes(self._queue, topic, "process")
        attributes["messaging.batch.message_count"] = len(contexts)
        with self._tracer.start_as_current_span(
            f"{topic} process",
            kind=SpanKind.CONSUMER,
            attributes=attributes,
            links=[link for context in contexts if (link := _link(context)) is not None],
            record_exception=False,
            set_status_on_exception=False,
        ) as span:
            try:
                results = await call_next(payloads, contexts)
            except BaseException as error:
                _record(span, error)
                raise
            for result in results if isinstance(results, list) else ():
                if isinstance(result, BaseException):
                    _record(span, result)
            return results


def _attributes(queue: str, topic: str, operation: str) -> dict[str, Any]:
    """What every span has, by the semantic conventions for messaging."""
    return {
        "messaging.system": _SYSTEM,
        "messaging.destination.name": topic,
        "messaging.operation.name": operation,
        "messaging.operation.type": operation,
        "messaging.mx_rmq.queue": queue,
    }


def _carrying(options: ProduceManyOptions | ProduceOptions) -> dict[str, str]:
    """The headers of a message, and the context of the span in W3C form."""
    headers = checked_headers(options.get("headers") or {})
    propagate.inject(headers)
    return headers


def _link(context: Context) -> Link | None:
    """The span that produced a message of a batch, None if it was produced without one."""
    span = trace.get_current_span(propagate.extract(context.headers)).get_span_context()
    return Link(span, {"messaging.message.id": context.message_id}) if span.is_valid else None


def _record(span: Span, error: BaseException) -> None:
    """Note how a handler ended; to put a message off is no failure."""
    if isinstance(error, RetryLater) and not error.count:
        span.set_attribute("messaging.mx_rmq.put_off", True)
        return
    with suppress(Exception):  # an error whose text cannot be made must not replace the handler's
        span.record_exception(error)
    span.set_attribute("error.type", type(error).__qualname__)
    span.set_status(Status(StatusCode.ERROR, describe(error)))
