"""An asyncio message queue on Redis or Valkey that never loses a message."""

from importlib import import_module
from typing import TYPE_CHECKING

from mx_rmq.config import Config, QueueOptions
from mx_rmq.errors import (
    ConfigError,
    EmbeddedServerError,
    InvalidName,
    InvalidPayload,
    LeaseLost,
    MessageTooLarge,
    MxRmqError,
    NoHandler,
    NotDrained,
    NotDurable,
    NotOnDisk,
    NotReplicated,
    OutOfMemory,
    ServerUnavailable,
    StoreError,
    UnknownTopic,
    UnreadableMessage,
    UnsafeServer,
    WrongKeyType,
)
from mx_rmq.message import Message, PastAttempt
from mx_rmq.observing.logs import JsonFormatter
from mx_rmq.operating.audit import AuditReport, Finding
from mx_rmq.operating.dead_letters import DeadLetters
from mx_rmq.operating.letters import (
    CanaryDied,
    CanaryUnfinished,
    DeadGroup,
    DeadGroups,
    DeadLetter,
    NotDead,
    Page,
    RestoreResult,
)
from mx_rmq.operating.messages import MessageFacts, MessagePage
from mx_rmq.override import Override
from mx_rmq.processes import run, run_processes
from mx_rmq.produce_options import ProduceManyOptions, ProduceOptions
from mx_rmq.producing.middleware import ProduceMiddleware, ProduceNext
from mx_rmq.producing.sync import SyncProducer
from mx_rmq.queue import RedisMessageQueue
from mx_rmq.raised import Reject, RetryLater
from mx_rmq.receipt import Receipt, Stored
from mx_rmq.retry import Retry
from mx_rmq.storage.facts import Counts, Load, TopicCounts, WorkerFacts, Workers

if TYPE_CHECKING:
    from mx_rmq.worker.context import Context
    from mx_rmq.worker.handlers import BatchHandler, CallNext, Handler, Middleware
    from mx_rmq.worker.hooks import DeadEvent, RetryEvent

__version__ = "2.0.0a1"

__all__ = [
    "AuditReport",
    "BatchHandler",
    "CallNext",
    "CanaryDied",
    "CanaryUnfinished",
    "Config",
    "ConfigError",
    "Context",
    "Counts",
    "DeadEvent",
    "DeadGroup",
    "DeadGroups",
    "DeadLetter",
    "DeadLetters",
    "EmbeddedServerError",
    "Finding",
    "Handler",
    "InvalidName",
    "InvalidPayload",
    "JsonFormatter",
    "LeaseLost",
    "Load",
    "Message",
    "MessageFacts",
    "MessagePage",
    "MessageTooLarge",
    "Middleware",
    "MxRmqError",
    "NoHandler",
    "NotDead",
    "NotDrained",
    "NotDurable",
    "NotOnDisk",
    "NotReplicated",
    "OutOfMemory",
    "Override",
    "Page",
    "PastAttempt",
    "ProduceManyOptions",
    "ProduceMiddleware",
    "ProduceNext",
    "ProduceOptions",
    "QueueOptions",
    "Receipt",
    "RedisMessageQueue",
    "Reject",
    "RestoreResult",
    "Retry",
    "RetryEvent",
    "RetryLater",
    "ServerUnavailable",
    "StoreError",
    "Stored",
    "SyncProducer",
    "TopicCounts",
    "UnknownTopic",
    "UnreadableMessage",
    "UnsafeServer",
    "WorkerFacts",
    "Workers",
    "WrongKeyType",
    "run",
    "run_processes",
]

if not TYPE_CHECKING:  # type checkers get these names from the imports above
    _OF_THE_WORKER = {
        "BatchHandler": "mx_rmq.worker.handlers",
        "CallNext": "mx_rmq.worker.handlers",
        "Context": "mx_rmq.worker.context",
        "DeadEvent": "mx_rmq.worker.hooks",
        "Handler": "mx_rmq.worker.handlers",
        "Middleware": "mx_rmq.worker.handlers",
        "RetryEvent": "mx_rmq.worker.hooks",
    }

    def __getattr__(name: str) -> object:
        """Import these names on first use, so that a program that only produces does not load the worker."""
        if name in _OF_THE_WORKER:
            return getattr(import_module(_OF_THE_WORKER[name]), name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
