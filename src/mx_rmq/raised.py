"""What a handler raises on purpose. These are not errors of mx-rmq."""

from __future__ import annotations

from mx_rmq.checks import check_seconds


class RetryLater(Exception):
    """Try the message again, after *delay* seconds.

    It counts as a failed attempt; without a delay the retry policy says how long to wait.
    """

    delay: float | None = None

    def __init__(self, delay: float | None = None, reason: str = "the handler asked for it") -> None:
        super().__init__(reason)
        check_seconds("the delay of RetryLater", delay, none="the policy's wait")
        self.delay = delay
        self.reason = reason


class Reject(Exception):
    """The message can never succeed: keep it in the DLQ."""

    def __init__(self, reason: str = "the handler gave it up") -> None:
        super().__init__(reason)
        self.reason = reason
