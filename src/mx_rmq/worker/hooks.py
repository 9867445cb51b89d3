"""Hooks: functions of the user that are called when a message is dead or will be retried."""

from __future__ import annotations

import asyncio
import inspect
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import msgspec

from mx_rmq import events
from mx_rmq.errors import UnreadableMessage
from mx_rmq.message import decode_message
from mx_rmq.storage.contract import Settled
from mx_rmq.worker.outcome import Again, Died

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from mx_rmq.message import Reason
    from mx_rmq.storage.contract import Delivery
    from mx_rmq.worker.outcome import Held, Verdict
    from mx_rmq.worker.threads import Threads

    Hook = Callable[[Any], Any]

_AT_ONCE: Final = 16
_MOST_WAITING: Final = 1000
"""Calls that wait; each holds the body of its message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HookEvent:
    """What every hook is told."""

    topic: str
    message_id: str
    payload: Any
    """The payload as plain JSON values, None if it cannot be read."""
    headers: Mapping[str, str]
    error: str
    """The error as text, or why there is none."""
    place: str
    """The last line of the user's code: file, line and function; empty if it is not known."""
    exception: BaseException | None
    """The error itself, if there is one in this process."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadEvent(HookEvent):
    """A message went to the DLQ."""

    reason: Reason
    attempts: int
    """Failed attempts; crashes of its workers are not among them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryEvent(HookEvent):
    """An attempt failed, and the message runs again."""

    attempt: int
    """Failed attempts so far: 1 after the first."""
    max_attempts: int
    delay: float
    """Seconds until it runs again."""


class Hooks:
    """Calls hooks in tasks of the worker; no settlement waits for them.

    Args:
        on_dead: called with a ``DeadEvent``; the list may grow.
        on_retry: called with a ``RetryEvent``; the list may grow.
        threads: for plain functions.
        queue: the queue's name, for events.
    """

    def __init__(
        self, on_dead: Sequence[Hook], on_retry: Sequence[Hook], threads: Threads, queue: str
    ) -> None:
        self._queue = queue
        self._hooks: dict[type[Verdict], Sequence[Hook]] = {Died: on_dead, Again: on_retry}
        self._threads = threads
        self._waiting: deque[tuple[Delivery, Died | Again]] = deque()
        self._tasks: set[asyncio.Task[None]] = set()
        self._skipped = 0

    def accepted(self, items: Sequence[tuple[Held, Verdict]], statuses: Sequence[Settled]) -> None:
        """Call the hooks for what the server accepted; all items have the same kind of verdict."""
        if not self._hooks.get(type(items[0][1])):
            return
        for (held, verdict), status in zip(items, statuses, strict=True):
            if status is not Settled.DONE or not isinstance(verdict, Died | Again):
                continue
            if len(self._waiting) >= _MOST_WAITING:
                self._skip()
                continue
            self._waiting.append((held.delivery, verdict))
            if len(self._tasks) < _AT_ONCE:
                task = asyncio.create_task(self._run(), name="mx-rmq-hooks")
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)

    async def finished(self) -> None:
        """Wait until no call is waiting or under way."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    async def close(self, patience: float) -> None:
        """End what still runs; waits for that at most *patience* seconds."""
        self._skipped += len(self._waiting)
        self._waiting.clear()
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=patience)
        self._tell_skipped()

    async def _run(self) -> None:
        while self._waiting:
            delivery, verdict = self._waiting.popleft()
            event = _event(delivery, verdict)
            for hook in list(self._hooks[type(verdict)]):
                await self._call(hook, event)
            await asyncio.sleep(0)  # hooks that never wait must not keep the loop
        self._tell_skipped()

    async def _call(self, hook: Hook, event: HookEvent) -> None:
        try:
            if inspect.iscoroutinefunction(hook):
                await hook(event)
            else:
                result = await self._threads.run(hook, (event,))
                if inspect.isawaitable(result):
                    await result
        except BaseException as error:  # whatever it is, it must end neither this task nor the worker
            topic, id_ = event.topic, event.message_id
            events.emit(events.HookFailed(queue=self._queue, hook=_name(hook), topic=topic, id=id_), error)
            task = asyncio.current_task()
            if task is not None and task.cancelling():  # the worker stops
                raise

    def _skip(self) -> None:
        self._skipped += 1
        if self._skipped == 1:
            events.emit(events.HooksSkipped(queue=self._queue, skipped=1, waiting=len(self._waiting)))

    def _tell_skipped(self) -> None:
        """Report how many calls were left out, once the hooks have caught up or the worker stops."""
        if self._skipped and not self._waiting:
            events.emit(events.HooksSkipped(queue=self._queue, skipped=self._skipped, waiting=0))
            self._skipped = 0


def _event(delivery: Delivery, verdict: Died | Again) -> DeadEvent | RetryEvent:
    payload: Any = None
    headers: Mapping[str, str] = {}
    attempts = 0
    try:
        message = decode_message(verdict.body or delivery.body, delivery.id, delivery.topic)
        headers, attempts = message.headers, message.attempts
        payload = msgspec.json.decode(message.payload)
    except (UnreadableMessage, msgspec.MsgspecError):
        pass
    told: dict[str, Any] = {
        "topic": delivery.topic,
        "message_id": delivery.id,
        "payload": payload,
        "headers": headers,
        "exception": verdict.raised,
    }
    if isinstance(verdict, Died):
        death = verdict.death
        return DeadEvent(**told, error=death.error, place=death.place, reason=death.reason, attempts=attempts)
    return RetryEvent(
        **told,
        error=verdict.error,
        place=verdict.place,
        attempt=verdict.attempt,
        max_attempts=verdict.max_attempts,
        delay=verdict.delay,
    )


def _name(hook: Hook) -> str:
    return str(getattr(hook, "__name__", type(hook).__name__))
