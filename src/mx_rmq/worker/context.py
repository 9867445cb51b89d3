"""The context of a handler: what it can read about its message, and what it can ask for."""

from __future__ import annotations

from math import inf
from time import monotonic
from typing import TYPE_CHECKING, Any

from mx_rmq.checks import check_seconds
from mx_rmq.errors import LeaseLost

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Mapping

    from mx_rmq.checks import Duration
    from mx_rmq.worker.holdings import Job


class Context:
    """One delivery as its handler sees it."""

    __slots__ = ("_job", "_message")

    def __init__(self, job: Job) -> None:
        assert job.message is not None
        self._job = job
        self._message = job.message

    @property
    def message_id(self) -> str:
        """The message's id."""
        return self._job.delivery.id

    @property
    def topic(self) -> str:
        """The message's topic."""
        return self._job.delivery.topic

    @property
    def attempt(self) -> int:
        """Which attempt this is: 1 for the first."""
        return self._message.attempts + self._message.crashes + 1

    @property
    def max_attempts(self) -> int:
        """How many attempts may fail, by the handler's retry policy."""
        return self._job.handler.retry.max_attempts

    @property
    def is_last(self) -> bool:
        """Whether the message is dead if this attempt fails, by ``max_attempts``.

        Attempts that ended with a crash of the worker do not count towards ``max_attempts``.
        """
        return self._message.attempts + 1 >= self.max_attempts

    @property
    def state(self) -> Any:
        """What the queue's ``lifespan`` yielded, None without one."""
        return self._job.holdings.state

    @property
    def headers(self) -> Mapping[str, str]:
        """The headers that the producer sent with the payload."""
        return self._message.headers

    @property
    def created_at(self) -> float:
        """When the message was produced, by its producer's clock, in seconds since 1970."""
        return self._message.created_at

    @property
    def token(self) -> str:
        """Proof of ownership; no two deliveries of a message have the same token."""
        return self._job.delivery.token

    @property
    def fence(self) -> int:
        """A number that grows with every delivery of this id: after a retry, a replay or reuse of the id.

        A database that keeps the highest fence it has seen can refuse the writes of a late handler.
        """
        return self._job.delivery.fence

    @property
    def remaining(self) -> float:
        """Seconds until the handler times out, ``inf`` if it has no timeout."""
        return self._job.deadline - monotonic()

    @property
    def lost(self) -> asyncio.Event:
        """Set when the message belongs to another worker; the result of this handler is then ignored."""
        return self._job.lost_event

    def extend(self, seconds: Duration) -> None:
        """Replace the rest of the timeout by *seconds* (or a ``timedelta``) from now, ``inf`` for no timeout.

        Works in threads too. In a batch this applies to all messages.

        Raises:
            ConfigError: this is no duration.
            LeaseLost: too late, the handler has timed out or the message belongs to another worker.
        """
        allowed: float = inf
        if seconds != inf:
            allowed = check_seconds("the time for extend()", seconds, above=0.0)
        if self._job.end is not None or self.remaining <= 0:
            raise LeaseLost(
                f"message {self.message_id} of topic {self.topic!r} cannot be extended: "
                "its handler timed out, or another worker has it"
            )
        self._job.extend(allowed)

    def __repr__(self) -> str:
        return f"<Context {self.topic} {self.message_id} attempt {self.attempt}>"
