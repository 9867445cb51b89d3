"""The context of a handler: what it can read about its message, and what it can ask for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mx_rmq.checks import is_number, refusal
from mx_rmq.errors import LeaseLost

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Mapping

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
        return self._job.deadline - self._job.loop.time()

    @property
    def lost(self) -> asyncio.Event:
        """Set when the message belongs to another worker; the result of this handler is then ignored."""
        return self._job.lost_event

    def extend(self, seconds: float) -> None:
        """Replace the rest of the timeout by *seconds* from now; works in threads too.

        In a batch this applies to all messages.

        Raises:
            LeaseLost: too late, the handler has timed out or the message belongs to another worker.
        """
        if not is_number(seconds) or not seconds > 0:
            raise refusal("the time for extend()", "seconds > 0", seconds)
        if self._job.end is not None:
            raise LeaseLost(
                f"message {self.message_id} of topic {self.topic!r} cannot be extended: "
                "its handler timed out, or another worker has it"
            )
        self._job.extend(seconds)

    def __repr__(self) -> str:
        return f"<Context {self.topic} {self.message_id} attempt {self.attempt}>"
