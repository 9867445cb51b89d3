"""Events of workers: started, stopped, vanished, and what goes wrong in them."""

from __future__ import annotations

import logging

from mx_rmq.events.event import Event, listed


@listed
class WorkerStarted(Event, tag="worker.started"):
    """A worker has started and serves its topics."""

    says = "{queue} at {server}, topics {topic_names}; {concurrency} at once"
    worker: str
    server: str
    topics: list[str]
    concurrency: int

    @property
    def topic_names(self) -> str:
        """The topics, for the text."""
        return ", ".join(self.topics)


@listed
class WorkerStopped(Event, tag="worker.stopped"):
    """A worker has stopped."""

    says = "{worker}"
    worker: str


@listed
class WorkerNotStarted(Event, tag="worker.not_started"):
    """A worker could not be started."""

    level = logging.ERROR
    says = "{error}"
    error: str


@listed
class WorkerNotSignedOff(Event, tag="worker.not_signed_off"):
    """A worker stopped, but could not remove its registration from the server."""

    level = logging.WARNING
    says = "the server could not be told that this worker stopped; others notice within seconds: {error}"
    error: str


@listed
class StopGraceOver(Event, tag="worker.grace_over"):
    """Handlers still ran when ``stop_grace`` was over; they are being stopped."""

    level = logging.WARNING
    says = "{running} messages still ran when stop_grace was over; their handlers are being cancelled"
    running: int


@listed
class HandlersIgnoreStop(Event, tag="worker.handlers_ignore_stop"):
    """Handlers did not end when they were cancelled; their leases run out."""

    level = logging.ERROR
    says = "{running} handlers ignore their cancellation; their messages run again after their leases"
    running: int


@listed
class WorkerVanished(Event, tag="worker.vanished"):
    """Another worker's connection is gone; its messages are taken over."""

    level = logging.WARNING
    says = "{worker} is gone; its {messages} messages are taken over"
    worker: str
    messages: int


@listed
class VanishedNotNoted(Event, tag="worker.vanished_not_noted"):
    """A vanished worker could not be noted for operators; its messages are taken over all the same."""

    level = logging.WARNING
    says = "{worker} vanished; operators do not see it in the list of vanished workers: {error}"
    worker: str
    error: str


@listed
class LifespanFailed(Event, tag="lifespan.failed"):
    """The lifespan ended with an error after the worker had started."""

    level = logging.ERROR
    says = "the lifespan failed: {error}"
    error: str


@listed
class ServiceFailed(Event, tag="service.failed"):
    """A service of the worker raised an unexpected error; it goes on."""

    level = logging.ERROR
    says = "the {service} met an unexpected error and goes on"
    service: str


@listed
class RunnerFailed(Event, tag="runner.failed"):
    """An unexpected error occurred while running a message, outside its handler; its lease runs out."""

    level = logging.ERROR
    says = "a message of {topic} met an unexpected error outside its handler; it runs again after its lease"
    topic: str


@listed
class BackoffFailed(Event, tag="retry.backoff_failed"):
    """A backoff function failed; the exponential wait is used instead."""

    level = logging.ERROR
    says = "backoff function {function} failed: {error}; the wait is exponential"
    function: str
    error: str


@listed
class HookFailed(Event, tag="hook.failed"):
    """A hook raised an error; its message is not affected."""

    level = logging.ERROR
    says = "hook {hook} failed for {topic} {id}, which is not affected"
    hook: str
    topic: str
    id: str


@listed
class HooksSkipped(Event, tag="hooks.skipped"):
    """Hooks are slower than the messages they are called for, or the worker stopped before they ended."""

    level = logging.WARNING
    says = "{skipped} calls of hooks were left out, {waiting} wait: the hooks are too slow"
    skipped: int
    waiting: int


@listed
class ProcessDied(Event, tag="process.died"):
    """A process of ``run_processes`` ended by itself; another is started."""

    level = logging.ERROR
    says = "process {pid} ended with exit code {exit_code}{because}; another one is started"
    pid: int
    exit_code: int | None
    reason: str = ""

    @property
    def because(self) -> str:
        """Why, for the text."""
        return f" ({self.reason})" if self.reason else ""


@listed
class ProcessKilled(Event, tag="process.killed"):
    """A process of ``run_processes`` did not stop in time and was killed."""

    level = logging.ERROR
    says = "process {pid} did not stop within {seconds:time} and was killed; others take its messages over"
    pid: int
    seconds: float


@listed
class ProcessesGivenUp(Event, tag="processes.given_up"):
    """The processes of ``run_processes`` died at once, again and again."""

    level = logging.ERROR
    says = "the processes died at once {tries} times: {reason}"
    tries: int
    reason: str


@listed
class EventsNotShared(Event, tag="events.not_shared"):
    """The server does not let this worker publish its events; ``mq.tail`` does not show them."""

    level = logging.WARNING
    says = "mx-rmq tail does not show this worker, which may not publish: {error}"
    error: str


@listed
class EventsLeftOut(Event, tag="events.left_out"):
    """A worker had more events than it publishes; only ``mq.tail`` tells of this."""

    says = "… {count} more: {named}"
    counts: dict[str, int]
    """How many, by the names of the events."""

    @property
    def count(self) -> int:
        """How many, for the text."""
        return sum(self.counts.values())

    @property
    def named(self) -> str:
        """Of which kinds, for the text."""
        return ", ".join(f"{count} {name}" for name, count in sorted(self.counts.items()))
