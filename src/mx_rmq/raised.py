"""Exceptions that a handler raises on purpose. They are not errors of mx-rmq."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mx_rmq.checks import check_seconds

if TYPE_CHECKING:
    from mx_rmq.checks import Duration


class RetryLater(Exception):
    """Try the message again after *delay* seconds.

    This counts as a failed attempt. Without a delay, the retry policy sets the wait.
    """

    delay: float | None = None

    def __init__(self, delay: Duration | None = None, reason: str = "the handler asked for it") -> None:
        super().__init__(reason)
        self.delay = check_seconds("the delay of RetryLater", delay, none="the policy's wait")
        self.reason = reason


class Reject(Exception):
    """The message can never succeed: move it to the DLQ."""

    def __init__(self, reason: str = "the handler gave it up") -> None:
        super().__init__(reason)
        self.reason = reason
