"""Exceptions that a handler raises on purpose. They are not errors of mx-rmq."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mx_rmq.checks import check_seconds, refusal

if TYPE_CHECKING:
    from mx_rmq.checks import Duration


class RetryLater(Exception):
    """Try the message again after *delay* seconds.

    Args:
        delay: seconds, or a ``timedelta``; without one the retry policy sets the wait.
        reason: the text of the error in the message's history.
        count: whether this is a failed attempt. With False the message is only put off: no attempt is
            spent, and it is not added to the history. Only the message's ``ttl`` ends this.
    """

    delay: float | None = None
    count: bool = True

    def __init__(
        self,
        delay: Duration | None = None,
        reason: str = "the handler asked for it",
        *,
        count: bool = True,
    ) -> None:
        if not isinstance(reason, str):
            raise refusal("the reason of RetryLater", "a text; count is given by name", reason)
        super().__init__(reason)
        what = "the delay of RetryLater"
        if not count and delay is None:  # the policy's waits are for failed attempts
            raise refusal(what, "seconds >= 0 with count=False", delay)
        self.delay = check_seconds(what, delay, none="the policy's wait")
        self.reason = reason
        self.count = count


class Reject(Exception):
    """The message can never succeed: move it to the DLQ."""

    def __init__(self, reason: str = "the handler gave it up") -> None:
        super().__init__(reason)
        self.reason = reason
