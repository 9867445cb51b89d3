"""A context for calling a handler directly, without a queue."""

from __future__ import annotations

import time
from math import inf
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import msgspec

from mx_rmq.checks import Duration, check_id, check_seconds, check_topic, check_whole
from mx_rmq.message import Message
from mx_rmq.producing.options import checked_headers
from mx_rmq.retry import Retry
from mx_rmq.storage.contract import Delivery
from mx_rmq.worker.context import Context
from mx_rmq.worker.holdings import Job

if TYPE_CHECKING:
    from collections.abc import Mapping


def context(
    *,
    attempt: int = 1,
    message_id: str = "test",
    topic: str = "test",
    headers: Mapping[str, str] | None = None,
    max_attempts: int | None = None,
    timeout: Duration | None = None,
    created_at: float | None = None,
    state: Any = None,
) -> Context:
    """A context as a worker would make it: ``await on_order(order, testing.context(attempt=2))``.

    No event loop is needed. ``extend`` works, and ``lost`` is an event that the test may set.

    Args:
        attempt: which attempt this is: 1 for the first.
        message_id: of the message.
        topic: of the message.
        headers: that the producer sent.
        max_attempts: how many attempts there are; by default as many as a ``Retry()`` has.
        timeout: seconds until the handler would time out; None for no limit.
        created_at: when the message was produced, in seconds since 1970; now by default.
        state: what the queue's lifespan would give.
    """
    check_whole("attempt", attempt, 1)
    most = Retry().max_attempts if max_attempts is None else max_attempts
    check_whole("max_attempts", most, 1)
    message = Message(
        id=check_id(message_id),
        topic=check_topic(topic),
        payload=msgspec.Raw(b"null"),
        headers={} if headers is None else checked_headers(headers),
        created_at=time.time() if created_at is None else created_at,
        attempts=attempt - 1,
    )
    delivery = Delivery(message.id, message.topic, f"{attempt}@{time.time_ns() // 1000}", b"", inf)
    seconds = check_seconds("timeout", timeout, above=0.0, none="no limit")
    # What a context reads of its handler, its worker and its event loop, and no more.
    handler = SimpleNamespace(timeout=seconds, retry=Retry(max_attempts=most))
    clock = SimpleNamespace(time=time.monotonic)
    now = time.monotonic()
    job = Job(delivery, cast("Any", None), cast("Any", handler), cast("Any", clock), now, inf)
    job.message, job.started_at = message, now
    job.begin(None, [job])
    return _TestContext(job, most, state)


class _TestContext(Context):
    """A context whose facts a test gives."""

    __slots__ = ("_max_attempts", "_state")

    def __init__(self, job: Job, max_attempts: int, state: Any) -> None:
        super().__init__(job)
        self._max_attempts = max_attempts
        self._state = state

    @property
    def max_attempts(self) -> int:
        """How many attempts the message has."""
        return self._max_attempts

    @property
    def is_last(self) -> bool:
        """Whether there is no attempt after this one."""
        return self.attempt >= self._max_attempts

    @property
    def state(self) -> Any:
        """What the queue's lifespan would have given."""
        return self._state
