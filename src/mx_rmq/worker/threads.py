"""Plain functions run in threads, and can be ended there."""

from __future__ import annotations

import asyncio
import ctypes
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

_PATIENCE = 5.0
"""How long an ended function may take to leave; a C call cannot be interrupted."""


class Ended(BaseException):
    """Raised inside a thread whose handler is to end; no ``except Exception`` stops it."""


class Threads:
    """As many threads as handlers may run at once."""

    def __init__(self, count: int) -> None:
        self._executor = ThreadPoolExecutor(count, thread_name_prefix="mx-rmq")

    async def run(self, function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
        """Call a function in a thread; cancelling this coroutine ends it there, and waits for that."""
        call = _Call(function, arguments)
        future = asyncio.get_running_loop().run_in_executor(self._executor, call)
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            call.end()
            await asyncio.wait([future], timeout=_PATIENCE)
            if future.done() and not future.cancelled():
                future.exception()
            raise

    def close(self) -> None:
        """Let the threads end; one that hangs in a C call is not waited for."""
        self._executor.shutdown(wait=False, cancel_futures=True)


class _Call:
    """One call in a thread that can be ended from outside while, and only while, it runs."""

    def __init__(self, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
        self._function = function
        self._arguments = arguments
        self._lock = threading.Lock()
        self._thread: int | None = None
        self._ended = False

    def __call__(self) -> Any:
        with self._lock:
            if self._ended:
                raise Ended
            self._thread = threading.get_ident()
        try:
            return self._function(*self._arguments)
        except StopIteration as error:  # which no future can carry
            raise RuntimeError(f"the handler raised StopIteration: {error}") from error
        finally:
            with self._lock:
                self._thread = None

    def end(self) -> None:
        with self._lock:
            self._ended = True
            if self._thread is not None:
                ctypes.pythonapi.PyThreadState_SetAsyncExc(
                    ctypes.c_ulong(self._thread), ctypes.py_object(Ended)
                )
