"""Handlers: a function, the topic it serves and how it wants to be run."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from mx_rmq.errors import ConfigError
from mx_rmq.keys import check_name
from mx_rmq.message import Encoded
from mx_rmq.payloads import payload_type_of
from mx_rmq.retry import Retry

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from mx_rmq.context import Context
    from mx_rmq.producer import Receipt
    from mx_rmq.queue import RedisMessageQueue

    Call = Callable[[Any, Any], Awaitable[Any]]
    Middleware = Callable[[Call, Any, Any], Awaitable[Any]]

P = TypeVar("P")


class Handler(Generic[P]):
    """A registered function; still callable as such, and a typed way to produce to its topic."""

    def __init__(
        self,
        queue: RedisMessageQueue,
        topic: str,
        function: Callable[..., Any],
        *,
        retry: Retry | None,
        timeout: float | None,
        concurrency: int | None,
        batch: int | None,
        linger: float,
    ) -> None:
        if not callable(function):
            raise ConfigError(f"{function!r} cannot handle topic {topic!r}: it is no function")
        if concurrency is not None and concurrency < 1:
            raise ConfigError(f"concurrency of topic {topic!r} is {concurrency!r}, but wants at least 1")
        if batch is not None and not 1 <= batch <= 1000:
            raise ConfigError(f"batch of topic {topic!r} is {batch!r}, but wants 1 to 1000")
        if linger < 0 or (linger and batch is None):
            raise ConfigError(f"linger of topic {topic!r} is {linger!r}: it is for batches, and not negative")
        if timeout is not None and timeout <= 0:
            raise ConfigError(
                f"timeout of topic {topic!r} is {timeout!r}, but wants seconds, or None for ever"
            )
        if retry is not None and not isinstance(retry, Retry):
            raise ConfigError(f"retry of topic {topic!r} is {retry!r}, but wants a Retry(...)")
        self.topic = check_name("topic", topic)
        self.function = function
        self.retry = retry or queue.config.retry
        self.timeout = timeout
        self.concurrency = concurrency
        self.batch = batch or 1
        self.is_batch = batch is not None
        self.linger = linger
        self.is_async = inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
            getattr(function, "__call__", None)  # noqa: B004 - an object whose __call__ is async
        )
        self.payload_type, self.takes_context = payload_type_of(function, batch=self.is_batch)
        self._queue = queue
        self.__doc__ = function.__doc__
        self.__name__ = getattr(function, "__name__", topic)

    def __call__(self, *args: Any) -> Any:
        """Call the function itself, as in a test of it."""
        return self.function(*args)

    async def produce(self, payload: P, **options: Any) -> Receipt:
        """Produce to the handler's topic what the handler wants; see ``RedisMessageQueue.produce``.

        Raises:
            InvalidPayload: the handler would not accept it.
        """
        return await self._queue.produce(self.topic, self._accepted(payload), **options)

    async def produce_many(self, payloads: Iterable[P], **options: Any) -> list[Receipt]:
        """Produce many at once; see ``RedisMessageQueue.produce_many``."""
        accepted = (self._accepted(payload) for payload in payloads)
        return await self._queue.produce_many(self.topic, accepted, **options)

    def _accepted(self, payload: P) -> Any:
        """A payload that the handler will accept; encoded, unless middleware wants to see it."""
        encoded = self.payload_type.encode(payload)
        return payload if self._queue.has_produce_middleware else Encoded(encoded)

    def __repr__(self) -> str:
        return f"<Handler {self.__name__} of topic {self.topic!r}>"


def wrap(call: Call, middleware: Iterable[Middleware]) -> Call:
    """Put middleware around a call, the first one outermost."""
    for layer in reversed(list(middleware)):
        call = _wrapped(layer, call)
    return call


def _wrapped(layer: Middleware, inner: Call) -> Call:
    async def outer(payload: Any, context: Context) -> Any:
        return await layer(inner, payload, context)

    return outer
