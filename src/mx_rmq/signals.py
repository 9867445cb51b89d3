"""SIGTERM and SIGINT while a worker runs: they reach it, and then the handler that was there before.

If the event loop hangs, so that they do not reach it, the process ends without it.
"""

from __future__ import annotations

import _thread
import asyncio
import os
import signal
import sys
import threading
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from mx_rmq import events
from mx_rmq.traces import place_of, trace_of_stack

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType

    Handler = Callable[[int, FrameType | None], Any]

_MORE: Final = 5.0
"""Seconds in addition: a loop that is only busy reacts within them."""
_TELLING: Final = 2.0
"""Seconds for listeners to hear of the end; one may wait for the thread that hangs."""


@contextmanager
def on_signals(react: Callable[[], None], grace: float = 25.0) -> Iterator[None]:
    """Have the running loop call *react* at each SIGTERM or SIGINT, until the end of the block.

    A signal that is ignored stays ignored. A handler that was there before, such as a web server's, is called
    too. If it raises, as ``sys.exit()`` does, that is raised at the end of the block. Handlers of the loop
    itself (``add_signal_handler``) are called by the loop and stay as they are. Only the main thread gets
    signals; in another one nothing is done.

    If the loop hangs and has not called *react* when *grace* and a few seconds are over, the process ends
    with code 1.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    loop = asyncio.get_running_loop()
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    raised: list[BaseException] = []
    waits: list[threading.Event] = []

    def on_signal(number: int, frame: FrameType | None) -> None:
        reacted = threading.Event()
        waits.append(reacted)
        # Not threading.Thread: it takes a lock that the interrupted code may hold.
        _thread.start_new_thread(_end_unless, (reacted, number, grace + _MORE))
        loop.call_soon_threadsafe(_react, reacted, react)
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
        for reacted in waits:
            reacted.set()
    if raised:
        raise raised[0]


def _react(reacted: threading.Event, react: Callable[[], None]) -> None:
    reacted.set()
    react()


def _end_unless(reacted: threading.Event, number: int, patience: float) -> None:
    """End the process unless the loop reacts in time; runs in a thread of its own."""
    step = min(1.0, patience / 5)
    waited = 0.0
    while waited < patience:  # in steps: a time in which the process stood still counts as one
        if reacted.wait(step):
            return
        waited += step
    stack = sys._current_frames().get(threading.main_thread().ident or 0)
    place = place_of(trace_of_stack(stack, None))
    name = signal.Signals(number).name
    event = events.LoopIgnoresStop(signal=name, seconds=round(waited, 3), place=place)
    telling = threading.Thread(target=events.emit, args=[event], daemon=True)
    telling.start()
    telling.join(_TELLING)
    os._exit(1)


def _ends_the_program(handler: Handler) -> bool:
    """Whether this is Python's or asyncio's own reaction to Ctrl-C, in whose place the worker stops."""
    if handler is signal.default_int_handler:
        return True
    function = handler.func if isinstance(handler, partial) else handler
    return isinstance(getattr(function, "__self__", None), asyncio.Runner)
