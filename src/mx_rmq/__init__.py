"""An asyncio message queue on Redis or Valkey that never loses a message."""

from mx_rmq.audit import AuditReport, Finding
from mx_rmq.config import Config
from mx_rmq.context import Context
from mx_rmq.dead_letters import DeadLetter, NotDead
from mx_rmq.errors import (
    ConfigError,
    Dead,
    EmbeddedServerError,
    InvalidName,
    InvalidPayload,
    LeaseLost,
    MessageTooLarge,
    MxRmqError,
    NoHandler,
    NotDurable,
    NotOnDisk,
    NotReplicated,
    OutOfMemory,
    RetryLater,
    ServerUnavailable,
    StoreError,
    UnreadableMessage,
    UnsafeServer,
    WrongKeyType,
)
from mx_rmq.handlers import Handler
from mx_rmq.inspector import MessageFacts
from mx_rmq.processes import run, run_processes
from mx_rmq.producer import Receipt
from mx_rmq.queue import RedisMessageQueue
from mx_rmq.reader import Counts, TopicCounts, WorkerFacts
from mx_rmq.retry import Retry
from mx_rmq.sync import SyncProducer

__version__ = "2.0.0a1"

__all__ = [
    "AuditReport",
    "Config",
    "ConfigError",
    "Context",
    "Counts",
    "Dead",
    "DeadLetter",
    "EmbeddedServerError",
    "Finding",
    "Handler",
    "InvalidName",
    "InvalidPayload",
    "LeaseLost",
    "MessageFacts",
    "MessageTooLarge",
    "MxRmqError",
    "NoHandler",
    "NotDead",
    "NotDurable",
    "NotOnDisk",
    "NotReplicated",
    "OutOfMemory",
    "Receipt",
    "RedisMessageQueue",
    "Retry",
    "RetryLater",
    "ServerUnavailable",
    "StoreError",
    "SyncProducer",
    "TopicCounts",
    "UnreadableMessage",
    "UnsafeServer",
    "WorkerFacts",
    "WrongKeyType",
    "run",
    "run_processes",
]
