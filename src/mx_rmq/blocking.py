"""Running the store's coroutines without an event loop, over a connection that blocks."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Coroutine
    from typing import Any

R = TypeVar("R")


class Waited(RuntimeError):
    """A coroutine waited for an event loop, and there is none."""


def run_blocking(coroutine: Coroutine[Any, Any, R]) -> R:
    """The result of a coroutine that never waits for anything.

    Raises:
        Waited: it did; it was ended.
    """
    try:
        coroutine.send(None)
    except StopIteration as end:
        result: R = end.value
        return result
    coroutine.close()
    raise Waited("the coroutine waited for an event loop; give its store BlockingCommands")
