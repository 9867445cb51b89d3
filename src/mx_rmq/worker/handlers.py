"""Handlers: a function, the topic it serves and how to run it."""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, Protocol, TypeVar, Unpack, cast

from mx_rmq.checks import check_seconds, check_topic, check_whole, refusal
from mx_rmq.errors import ConfigError, InvalidPayload
from mx_rmq.limits import BATCH, LONGEST_MEMORY
from mx_rmq.payloads import Encoded, check_payloads, encode_payload, numbered
from mx_rmq.retry import Retry
from mx_rmq.worker.payload_types import payload_type_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Iterable

    from mx_rmq.checks import Duration
    from mx_rmq.produce_options import ProduceManyOptions, ProduceOptions
    from mx_rmq.receipt import Receipt

P = ParamSpec("P")
R = TypeVar("R", covariant=True)
T = TypeVar("T")

Takes = Callable[Concatenate[T, ...], Any]
"""A function whose first parameter is a T. As the type of ``self`` it finds the T of a handler."""


class CallNext(Protocol):
    """The rest of a call: the inner middleware, then the handler."""

    def __call__(self, payload: Any, context: Any, /) -> Awaitable[Any]:
        """Handle a payload in its ``Context``; for a batch handler, lists of both."""


class Middleware(Protocol):
    """A layer around every handler.

    While its method ``is_on()``, if it has one, returns False, a layer is left out and costs nothing.
    """

    def __call__(self, call_next: CallNext, payload: Any, context: Any, /) -> Awaitable[Any]:
        """Handle with *call_next*, and return its result."""


class Outlet(Protocol):
    """The queue to which a handler's own ``produce`` goes."""

    @property
    def has_produce_middleware(self) -> bool:
        """Whether produce has middleware."""

    @property
    def produce(self) -> Callable[..., Awaitable[Receipt]]:
        """Store a message."""

    @property
    def produce_many(self) -> Callable[..., Awaitable[list[Receipt]]]:
        """Store many messages."""


class Handler(Generic[P, R]):
    """A registered function; it can still be called, and has a typed ``produce`` for its topic.

    P stands for its parameters, R for what it returns.
    """

    def __init__(
        self,
        outlet: Outlet,
        topic: str,
        function: Callable[P, R],
        *,
        retry: Retry,
        timeout: Duration | None,
        concurrency: int | None = None,
        batch: int | None = None,
        linger: Duration = 0.0,
        remember: Duration | None = None,
    ) -> None:
        self.topic: str = check_topic(topic)
        if not callable(function):
            raise ConfigError(f"{function!r} cannot handle topic {topic!r}: it is not a function")
        check_whole(f"concurrency of topic {topic!r}", concurrency, 1, none="the queue's")
        check_whole(f"batch of topic {topic!r}", batch, 1, BATCH, none="single messages")
        self.linger: float = check_seconds(f"linger of topic {topic!r}", linger)
        if linger and batch is None:
            raise ConfigError(f"linger of topic {topic!r} is for batches; give batch= too")
        self.timeout: float | None = check_seconds(
            f"timeout of topic {topic!r}", timeout, above=0.0, none="no limit"
        )
        self.remember: float | None = check_seconds(
            f"remember of topic {topic!r}", remember, most=LONGEST_MEMORY, none="not at all"
        )
        if not isinstance(retry, Retry):
            raise refusal(f"retry of topic {topic!r}", "a Retry(...)", retry)
        self.function = function
        self.retry = retry
        self.concurrency = concurrency
        self.batch: int = batch or 1
        self.is_batch: bool = batch is not None
        self.is_async: bool = inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
            getattr(function, "__call__", None)  # noqa: B004 - an object whose __call__ is async
        )
        self.payload_type, self.takes_context = payload_type_of(function, batch=self.is_batch)
        self._outlet = outlet
        self.__name__: str = topic
        functools.update_wrapper(self, function, updated=())  # its own signature for those who ask
        if self.is_async:
            _mark_async(self)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function itself, for example in a test."""
        return self.function(*args, **kwargs)

    async def produce(self: Takes[T], payload: T, **options: Unpack[ProduceOptions]) -> Receipt:
        """Produce a payload of the handler's type to its topic; see ``RedisMessageQueue.produce``.

        Raises:
            InvalidPayload: the handler would not accept it.
        """
        handler = cast("Handler[..., Any]", self)
        return await handler._outlet.produce(handler.topic, handler._accepted(payload), **options)

    async def produce_many(
        self: Takes[T], payloads: Iterable[T], **options: Unpack[ProduceManyOptions]
    ) -> list[Receipt]:
        """Produce many at once; see ``RedisMessageQueue.produce_many``."""
        handler = cast("Handler[..., Any]", self)
        check_payloads(payloads)
        accepted = numbered(payloads, handler._accepted)
        return await handler._outlet.produce_many(handler.topic, accepted, **options)

    def fitting(self, payload: Any) -> Any:
        """A payload that the handler will accept, encoded unless it takes anything.

        Raises:
            InvalidPayload: the handler would not accept it.
        """
        if self.payload_type.wanted is Any or type(payload) is Encoded:
            return payload
        encoded = encode_payload(payload)
        try:
            self.payload_type.decode(encoded)
        except InvalidPayload as error:
            raise InvalidPayload(f"topic {self.topic!r} has the handler {self.__name__}: {error}") from None
        return Encoded(encoded)

    def _accepted(self, payload: Any) -> Any:
        """Check that the handler accepts a payload; returns it encoded, or as it is for middleware."""
        encoded = self.payload_type.encode(payload)
        return payload if self._outlet.has_produce_middleware else Encoded(encoded)

    def __repr__(self) -> str:
        return f"<Handler {self.__name__} of topic {self.topic!r}>"


class BatchHandler(Handler[P, R]):
    """A registered function that takes lists; its ``produce`` takes one payload of such a list."""

    if TYPE_CHECKING:

        async def produce(  # type: ignore[misc] # not every P begins with a list
            self: Takes[list[T]], payload: T, **options: Unpack[ProduceOptions]
        ) -> Receipt:
            """Produce one payload to the topic; see ``RedisMessageQueue.produce``."""

        async def produce_many(  # type: ignore[misc] # not every P begins with a list
            self: Takes[list[T]], payloads: Iterable[T], **options: Unpack[ProduceManyOptions]
        ) -> list[Receipt]:
            """Produce many at once; see ``RedisMessageQueue.produce_many``."""


def _mark_async(handler: Handler[..., Any]) -> None:
    """Let those who ask know that a call returns a coroutine."""
    if mark := getattr(inspect, "markcoroutinefunction", None):  # since Python 3.12
        mark(handler)
    else:
        vars(handler)["_is_coroutine"] = getattr(asyncio.coroutines, "_is_coroutine", True)
