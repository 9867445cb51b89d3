"""Middleware around produce."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from mx_rmq.receipt import Receipt

    Produce = Callable[[str, Any, dict[str, Any]], Awaitable[Receipt]]
    ProduceLayer = Callable[[Produce, str, Any, dict[str, Any]], Awaitable[Receipt]]


def around(layers: Sequence[ProduceLayer], last: Produce) -> Produce:
    """Put layers around *last*, the first one outermost."""
    call = last
    for layer in reversed(layers):
        call = _bind(layer, call)
    return call


def _bind(layer: ProduceLayer, inner: Produce) -> Produce:
    async def outer(topic: str, payload: Any, options: dict[str, Any]) -> Receipt:
        return await layer(inner, topic, payload, options)

    return outer
