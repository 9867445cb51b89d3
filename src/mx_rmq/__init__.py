"""An asyncio message queue on Redis or Valkey that never loses a message."""

from importlib import import_module
from typing import TYPE_CHECKING

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
    ServerRefused,
    ServerUnavailable,
    StoreError,
    UnknownTopic,
    UnreadableMessage,
    UnsafeServer,
    WrongKeyType,
)
from mx_rmq.version import __version__ as __version__

if TYPE_CHECKING:
    from mx_rmq.config import Config, QueueOptions
    from mx_rmq.health import Health, ShardHealth
    from mx_rmq.message import Message, PastAttempt
    from mx_rmq.observing.asgi import AsgiApp
    from mx_rmq.observing.logs import JsonFormatter
    from mx_rmq.operating.audit_report import AuditReport, AuditReports, Finding
    from mx_rmq.operating.dead_letters import DeadLetters
    from mx_rmq.operating.doctor import Checkup, Diagnosis
    from mx_rmq.operating.history import History, HistoryRow, Rates, TopicRates
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
    from mx_rmq.operating.resharding import Resharding, ShardFacts, ShardList
    from mx_rmq.operating.schedule import Schedule
    from mx_rmq.operating.tail import TailEvent
    from mx_rmq.operating.trail import Act, Trail
    from mx_rmq.operating.vanished import Vanished, VanishedWorker
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
    from mx_rmq.web.users import WebUser
    from mx_rmq.worker.context import Context
    from mx_rmq.worker.handlers import BatchHandler, CallNext, Handler, Middleware
    from mx_rmq.worker.hooks import DeadEvent, RetryEvent

__all__ = [
    "Act",
    "AsgiApp",
    "AuditReport",
    "AuditReports",
    "BatchHandler",
    "CallNext",
    "CanaryDied",
    "CanaryUnfinished",
    "Checkup",
    "Config",
    "ConfigError",
    "Context",
    "Counts",
    "DeadEvent",
    "DeadGroup",
    "DeadGroups",
    "DeadLetter",
    "DeadLetters",
    "Diagnosis",
    "EmbeddedServerError",
    "Finding",
    "Handler",
    "Health",
    "History",
    "HistoryRow",
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
    "Rates",
    "Receipt",
    "RedisMessageQueue",
    "Reject",
    "Resharding",
    "RestoreResult",
    "Retry",
    "RetryEvent",
    "RetryLater",
    "Schedule",
    "ServerRefused",
    "ServerUnavailable",
    "ShardFacts",
    "ShardHealth",
    "ShardList",
    "StoreError",
    "Stored",
    "SyncProducer",
    "TailEvent",
    "TopicCounts",
    "TopicRates",
    "Trail",
    "UnknownTopic",
    "UnreadableMessage",
    "UnsafeServer",
    "Vanished",
    "VanishedWorker",
    "WebUser",
    "WorkerFacts",
    "Workers",
    "WrongKeyType",
    "run",
    "run_processes",
]

if not TYPE_CHECKING:  # type checkers get these names from the imports above
    _HOMES = {
        "mx_rmq.config": "Config QueueOptions",
        "mx_rmq.health": "Health ShardHealth",
        "mx_rmq.message": "Message PastAttempt",
        "mx_rmq.observing.asgi": "AsgiApp",
        "mx_rmq.observing.logs": "JsonFormatter",
        "mx_rmq.operating.audit_report": "AuditReport AuditReports Finding",
        "mx_rmq.operating.dead_letters": "DeadLetters",
        "mx_rmq.operating.doctor": "Checkup Diagnosis",
        "mx_rmq.operating.history": "History HistoryRow Rates TopicRates",
        "mx_rmq.operating.letters": (
            "CanaryDied CanaryUnfinished DeadGroup DeadGroups DeadLetter NotDead Page RestoreResult"
        ),
        "mx_rmq.operating.messages": "MessageFacts MessagePage",
        "mx_rmq.operating.resharding": "Resharding ShardFacts ShardList",
        "mx_rmq.operating.tail": "TailEvent",
        "mx_rmq.operating.schedule": "Schedule",
        "mx_rmq.operating.trail": "Act Trail",
        "mx_rmq.operating.vanished": "Vanished VanishedWorker",
        "mx_rmq.override": "Override",
        "mx_rmq.processes": "run run_processes",
        "mx_rmq.produce_options": "ProduceManyOptions ProduceOptions",
        "mx_rmq.producing.middleware": "ProduceMiddleware ProduceNext",
        "mx_rmq.producing.sync": "SyncProducer",
        "mx_rmq.queue": "RedisMessageQueue",
        "mx_rmq.raised": "Reject RetryLater",
        "mx_rmq.receipt": "Receipt Stored",
        "mx_rmq.retry": "Retry",
        "mx_rmq.storage.facts": "Counts Load TopicCounts WorkerFacts Workers",
        "mx_rmq.worker.context": "Context",
        "mx_rmq.worker.handlers": "BatchHandler CallNext Handler Middleware",
        "mx_rmq.web.users": "WebUser",
        "mx_rmq.worker.hooks": "DeadEvent RetryEvent",
    }
    _HOME_OF = {name: module for module, names in _HOMES.items() for name in names.split()}

    def __getattr__(name: str) -> object:
        """Import a name on first use: a producer loads no worker, and a command's help not even redis."""
        if name in _HOME_OF:
            found = globals()[name] = getattr(import_module(_HOME_OF[name]), name)
            return found
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
