"""Forks in handlers: the child must exit when the handler ends, and not go on as a copy of the worker.

The child shares the sockets and the event loop's poll set with its parent. What it sends or closes there
affects the parent's connections.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import traceback
from contextlib import suppress
from weakref import WeakKeyDictionary

pid = os.getpid()
"""The id of this process, kept here to save a system call per message."""

_loops: WeakKeyDictionary[asyncio.AbstractEventLoop, int] = WeakKeyDictionary()
"""The loops in which workers run, and the thread of each."""


def watch(loop: asyncio.AbstractEventLoop) -> None:
    """Make a child that is forked in this loop exit when it returns to the loop."""
    _loops[loop] = threading.get_ident()


def leave(error: BaseException | None = None) -> None:
    """Exit a forked child as a program that returns, exits or fails would, but without any clean-up."""
    code = 0
    if isinstance(error, SystemExit):
        if isinstance(error.code, int):
            code = error.code & 0xFF
        elif error.code is not None:
            print(error.code, file=sys.stderr)
            code = 1
    elif error is not None:
        traceback.print_exception(error)
        code = 1
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):
            stream.flush()
    os._exit(code)


def _call_first(loop: asyncio.AbstractEventLoop) -> None:
    """Call ``leave`` before all callbacks that were ready at the fork: they would run in both processes."""
    ready = getattr(loop, "_ready", None)
    if ready is None:  # not asyncio's own loop
        loop.call_soon(leave)
    else:
        ready.appendleft(asyncio.Handle(leave, (), loop))


def _after_fork() -> None:
    global pid
    pid = os.getpid()
    for loop, thread in list(_loops.items()):
        if thread == threading.get_ident() and loop.is_running():
            _call_first(loop)


os.register_at_fork(after_in_child=_after_fork)
