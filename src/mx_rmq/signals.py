"""SIGTERM and SIGINT while a worker runs: they reach it, and then the handler that was there before."""

from __future__ import annotations

import asyncio
import signal
import threading
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType

    Handler = Callable[[int, FrameType | None], Any]


@contextmanager
def on_signals(react: Callable[[], None]) -> Iterator[None]:
    """Have the running loop call *react* at each SIGTERM or SIGINT, until the end of the block.

    A signal that is ignored stays ignored. A handler that was there before, such as a web server's, is called
    too. If it raises, as ``sys.exit()`` does, that is raised at the end of the block. Handlers of the loop
    itself (``add_signal_handler``) are called by the loop and stay as they are. Only the main thread gets
    signals; in another one nothing is done.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    loop = asyncio.get_running_loop()
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    raised: list[BaseException] = []

    def on_signal(number: int, frame: FrameType | None) -> None:
        loop.call_soon_threadsafe(react)
        previous = before[signal.Signals(number)]
        if callable(previous) and not _ends_the_program(previous):
            try:
                previous(number, frame)
            except BaseException as error:
                raised.append(error)

    taken = [number for number, previous in before.items() if previous is not signal.SIG_IGN]
    for number in taken:
        signal.signal(number, on_signal)
    try:
        yield
    finally:
        for number in taken:
            if signal.getsignal(number) is on_signal:  # else other code has its own handler there now
                previous = before[number]
                # None stands for a handler that was not set from Python; it cannot be set again.
                signal.signal(number, signal.SIG_DFL if previous is None else previous)
    if raised:
        raise raised[0]


def _ends_the_program(handler: Handler) -> bool:
    """Whether this is Python's or asyncio's own reaction to Ctrl-C, in whose place the worker stops."""
    if handler is signal.default_int_handler:
        return True
    function = handler.func if isinstance(handler, partial) else handler
    return isinstance(getattr(function, "__self__", None), asyncio.Runner)
