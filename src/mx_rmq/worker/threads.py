"""Runs plain functions in threads, where they can be ended."""

from __future__ import annotations

import asyncio
import contextvars
import ctypes
import queue
import threading
from time import monotonic
from typing import TYPE_CHECKING, Any, Protocol

from mx_rmq.worker import fork

if TYPE_CHECKING:
    from collections.abc import Callable

    Outcome = tuple[Any, BaseException | None]


class Caller(Protocol):
    """What a function is called for; told where the call is, also while the loop hangs."""

    def entered(self, call: Call) -> None:
        """The call is about to be made; runs in the loop's thread."""

    def left(self, at: float) -> None:
        """The function has ended by itself; runs in its thread, under the lock of the call."""

    def resumed(self, at: float) -> None:
        """The loop knows of the end now; runs in the loop's thread."""


caller: contextvars.ContextVar[Caller | None] = contextvars.ContextVar("mx_rmq_caller", default=None)
"""For what a task calls functions; a task that it starts inherits this."""


class Ended(BaseException):
    """Raised inside a thread to end its handler; ``except Exception`` does not catch it."""


class Threads:
    """A thread for every plain function that runs.

    Not an executor: a function that hangs in a C call would take one of its threads permanently, and keep
    the program from exiting.

    Args:
        patience: how long an ended function may take to return; a C call cannot be interrupted.
    """

    def __init__(self, patience: float) -> None:
        self._patience = patience
        self._idle: list[_Thread] = []
        self._closed = False

    async def run(self, function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
        """Call a function in a thread; cancelling this coroutine ends the function and waits for its end."""
        loop = asyncio.get_running_loop()
        outcome: asyncio.Future[Outcome] = loop.create_future()
        thread = self._idle.pop() if self._idle else _Thread()

        def left(result: Outcome) -> None:
            outcome.set_result(result)
            if self._closed:
                thread.end()
            else:
                self._idle.append(thread)

        call = Call(function, arguments, lambda result: loop.call_soon_threadsafe(left, result), caller.get())
        thread.begin(call)
        try:
            await asyncio.wait([outcome])
        except asyncio.CancelledError:
            call.end()
            await asyncio.wait([outcome], timeout=self._patience)
            raise
        finally:
            call.resume()
        value, error = outcome.result()
        if isinstance(error, Ended):  # by the lease keeper's thread, while the loop hung
            raise asyncio.CancelledError from error
        if error is not None:
            raise error
        return value

    def close(self) -> None:
        """Let the threads end; one that hangs in a C call is not waited for."""
        self._closed = True
        for thread in self._idle:
            thread.end()
        self._idle.clear()


class _Thread:
    """A thread that makes one call after the other; a daemon, so that it does not keep the program alive."""

    def __init__(self) -> None:
        self._calls: queue.SimpleQueue[Call | None] = queue.SimpleQueue()
        threading.Thread(target=self._run, name="mx-rmq-handler", daemon=True).start()

    def begin(self, call: Call) -> None:
        self._calls.put(call)

    def end(self) -> None:
        self._calls.put(None)

    def _run(self) -> None:
        pid = fork.pid
        while (call := self._calls.get()) is not None:
            result = call.outcome()
            if fork.pid != pid:
                fork.leave(result[1])
            try:
                call.report(result)
            except RuntimeError:  # the loop is closed; the result is not needed any more
                return
            del call, result


class Call:
    """One call in a thread that can be ended from outside while, and only while, it runs."""

    def __init__(
        self,
        function: Callable[..., Any],
        arguments: tuple[Any, ...],
        report: Callable[[Outcome], Any],
        caller: Caller | None = None,
    ) -> None:
        self._function = function
        self._arguments = arguments
        self.report = report
        self._caller = caller
        self._context = contextvars.copy_context()
        self.lock = threading.Lock()
        self._thread: int | None = None
        self._ended = False
        if caller is not None:
            caller.entered(self)

    def outcome(self) -> Outcome:
        """What the function returns or raises; no ``Ended`` is left to be raised in the thread later."""
        try:
            self._enter()
            try:
                return self._context.run(self._function, *self._arguments), None
            finally:
                self._leave()
        except BaseException as error:
            return None, error

    def end(self) -> None:
        """Raise ``Ended`` in the function, once, as soon as it executes Python again; from any thread."""
        with self.lock:
            if self._thread is not None and not self._ended:
                _raise_in(self._thread, Ended)
            self._ended = True

    def resume(self) -> None:
        """Tell the caller that the loop goes on with it; how the function ends is not told any more."""
        with self.lock:
            told, self._caller = self._caller, None
        if told is not None:
            told.resumed(monotonic())

    def _enter(self) -> None:
        with self.lock:
            if self._ended:
                raise Ended
            self._thread = threading.get_ident()

    def _leave(self) -> None:
        with self.lock:
            self._thread = None
            if self._ended:  # Ended may still be pending, and would be raised in the next call
                _raise_in(threading.get_ident(), None)
            elif self._caller is not None:
                self._caller.left(monotonic())


def _raise_in(thread: int, error: type[BaseException] | None) -> None:
    what = None if error is None else ctypes.py_object(error)
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), what)
