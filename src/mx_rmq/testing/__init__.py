"""A test kit: a queue with a private server and a clock that tests move; a context for a single call."""

from mx_rmq.testing.contexts import context
from mx_rmq.testing.records import DeadMessage, DoneMessage, MessageFailed, ProducedMessage
from mx_rmq.testing.running import RunningQueue, running

__all__ = [
    "DeadMessage",
    "DoneMessage",
    "MessageFailed",
    "ProducedMessage",
    "RunningQueue",
    "context",
    "running",
]
