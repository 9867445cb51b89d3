"""What a user may rely on: the exported names, and the methods of the front door."""

from __future__ import annotations

import ast
import inspect
import re
from pathlib import Path

import mx_rmq
from mx_rmq import DeadLetters, RedisMessageQueue, events

PACKAGE = Path(mx_rmq.__file__).parent

NAMES = """
    Act AsgiApp AuditReport AuditReports BatchHandler CallNext CanaryDied CanaryUnfinished Checkup Config
    ConfigError
    Context Counts DeadEvent DeadGroup DeadGroups DeadLetter DeadLetters Diagnosis EmbeddedServerError
    Finding Handler Health History HistoryRow InvalidName InvalidPayload JsonFormatter LeaseLost Load
    Message MessageFacts MessagePage MessageTooLarge Middleware MxRmqError NoHandler NotDead NotDrained
    NotDurable NotOnDisk NotReplicated OutOfMemory Override Page PastAttempt ProduceManyOptions
    ProduceMiddleware ProduceNext ProduceOptions QueueOptions Rates Receipt RedisMessageQueue Reject
    Resharding RestoreResult Retry RetryEvent RetryLater Schedule ServerRefused ServerUnavailable
    ShardFacts ShardHealth ShardList StoreError Stored SyncProducer TailEvent TopicCounts TopicRates Trail
    UnknownTopic UnreadableMessage UnsafeServer Vanished VanishedWorker WebUser WorkerFacts Workers
    WrongKeyType run run_processes
"""
QUEUE = """
    audit cancel cancel_many close config counts dashboard delete dlq doctor drain explain find handler
    has_produce_middleware health health_app history list metrics_app middleware note_act on_dead on_retry
    open override pause produce produce_many produce_middleware purge queues rates reshard resume run
    run_now schedule serve_metrics shards start stop sync tail topics trail vanished workers
"""
OPTIONS = """
    url name shards username password sentinel_username sentinel_password ssl_ca_certs ssl_certfile
    ssl_keyfile worker_name concurrency prefetch lease timeout retry recovery_grace crash_limit ttl max_bytes
    stop_grace socket_timeout patience durability_timeout durability replicas poll dlq_max_age
    dlq_max_count server_check history lifespan
"""


def test_the_exported_names_are_these() -> None:
    assert mx_rmq.__all__ == NAMES.split()
    for name in mx_rmq.__all__:
        assert getattr(mx_rmq, name).__name__ == name


def test_the_front_door_has_these_methods() -> None:
    queue = RedisMessageQueue("embedded://")
    assert {name for name in dir(queue) if not name.startswith("_")} == set(QUEUE.split())


def test_the_module_of_events_has_every_kind_and_what_listeners_need() -> None:
    """``from mx_rmq import events`` is public: users listen to what happens."""
    kinds = [kind.__name__ for kind in events.KINDS]
    assert sorted(events.__all__) == sorted([*kinds, "KINDS", "Event", "Listener", "emit", "heard", "listen"])


def test_the_options_are_these() -> None:
    assert list(inspect.signature(mx_rmq.Config).parameters) == OPTIONS.split()


def classes() -> set[str]:
    """The names of all public classes of the package."""
    return {
        node.name
        for path in PACKAGE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    }


def test_every_type_that_a_public_call_returns_is_exported() -> None:
    own, seen = classes(), set()
    for kind in (RedisMessageQueue, DeadLetters, mx_rmq.SyncProducer, mx_rmq.Handler):
        for name, member in vars(kind).items():
            call = member.fget if isinstance(member, property) else member
            if name.startswith("_") or not callable(call):
                continue
            returns = str(inspect.signature(call).return_annotation)
            seen |= {word for word in re.findall(r"(?<![.\w])[A-Z]\w+", returns) if word in own}
    assert {"Receipt", "MessageFacts", "Page"} <= seen
    assert seen - set(mx_rmq.__all__) == set()
