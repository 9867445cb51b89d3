"""Middleware around produce."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from mx_rmq.checks import shown
from mx_rmq.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Sequence

    from mx_rmq.produce_options import ProduceManyOptions, ProduceOptions
    from mx_rmq.receipt import Receipt


class ProduceNext(Protocol):
    """The rest of a produce: the inner middleware, then the queue."""

    def __call__(self, topic: str, payload: Any, options: ProduceOptions, /) -> Awaitable[Receipt]:
        """Produce; *options* holds at least those that were given."""


class ProduceManyNext(Protocol):
    """The rest of a ``produce_many``."""

    def __call__(
        self, topic: str, payloads: Iterable[Any], options: ProduceManyOptions, /
    ) -> Awaitable[list[Receipt]]:
        """Produce all of them."""


class ProduceMiddleware(Protocol):
    """A layer around every produce.

    A layer may have a method ``many(call_next, topic, payloads, options)`` too, for a whole ``produce_many``.
    If every layer has one, it stays one; otherwise its messages are produced one by one. While its method
    ``is_on()``, if it has one, returns False, a layer is left out and costs nothing.
    """

    def __call__(
        self, call_next: ProduceNext, topic: str, payload: Any, options: ProduceOptions, /
    ) -> Awaitable[Receipt]:
        """Produce with *call_next*, and return its receipt."""


class ProduceLayers:
    """The middleware of a queue, the outermost layer first."""

    def __init__(self) -> None:
        self._layers: list[ProduceMiddleware] = []
        self._switches: list[Callable[[], bool]] = []
        """``is_on`` of the layers that have it."""
        self.are_any = False
        """Whether there are layers, on or off."""

    def add(self, layer: ProduceMiddleware) -> None:
        """Put a layer inside the others."""
        self._layers.append(layer)
        self.are_any = True
        if (is_on := getattr(layer, "is_on", None)) is not None:
            self._switches.append(is_on)

    def active(self) -> Sequence[ProduceMiddleware]:
        """The layers that are not off."""
        if len(self._switches) == len(self._layers):  # asked for every message, and nearly always all are off
            for is_on in self._switches:
                if is_on():
                    break
            else:
                return ()
        return [layer for layer in self._layers if _is_on(layer)]


def _is_on(layer: ProduceMiddleware) -> bool:
    is_on: Callable[[], bool] | None = getattr(layer, "is_on", None)
    return is_on is None or is_on()


def around(layers: Sequence[ProduceMiddleware], last: ProduceNext) -> ProduceNext:
    """Put layers around *last*, the first one outermost."""
    call = last
    for layer in reversed(layers):
        call = _bind(layer, call)
    return call


def around_many(layers: Sequence[ProduceMiddleware], last: ProduceManyNext) -> ProduceManyNext | None:
    """Put layers around a whole ``produce_many``; None if one of them takes only single messages."""
    call = last
    for layer in reversed(layers):
        many = getattr(layer, "many", None)
        if many is None:
            return None
        call = partial(many, call)
    return call


def _bind(layer: ProduceMiddleware, inner: ProduceNext) -> ProduceNext:
    async def outer(topic: str, payload: Any, options: ProduceOptions) -> Receipt:
        call = layer(inner, topic, payload, options)
        if not hasattr(call, "__await__"):
            name = getattr(layer, "__qualname__", repr(layer))
            raise ConfigError(
                f"produce middleware {name} returned {shown(call)}, not an awaitable; write async def"
            )
        return await call

    return outer
