"""Middleware around produce."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Awaitable, Sequence

    from mx_rmq.produce_options import ProduceOptions
    from mx_rmq.receipt import Receipt


class ProduceNext(Protocol):
    """The rest of a produce: the inner middleware, then the queue."""

    def __call__(self, topic: str, payload: Any, options: ProduceOptions, /) -> Awaitable[Receipt]:
        """Produce; *options* holds at least those that were given."""


class ProduceMiddleware(Protocol):
    """A layer around every produce."""

    def __call__(
        self, call_next: ProduceNext, topic: str, payload: Any, options: ProduceOptions, /
    ) -> Awaitable[Receipt]:
        """Produce with *call_next*, and return its receipt."""


def around(layers: Sequence[ProduceMiddleware], last: ProduceNext) -> ProduceNext:
    """Put layers around *last*, the first one outermost."""
    call = last
    for layer in reversed(layers):
        call = _bind(layer, call)
    return call


def _bind(layer: ProduceMiddleware, inner: ProduceNext) -> ProduceNext:
    async def outer(topic: str, payload: Any, options: ProduceOptions) -> Receipt:
        return await layer(inner, topic, payload, options)

    return outer
