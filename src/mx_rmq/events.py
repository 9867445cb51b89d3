"""Every event that mx-rmq reports: its name, its level, its fields.

No field holds a payload, a header or a password. Logs are one listener; metrics, traces and live views are
others.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, ClassVar, TypeVar

import msgspec

if TYPE_CHECKING:
    from collections.abc import Callable

    Listener = Callable[["Event", BaseException | None], None]

E = TypeVar("E", bound="type[Event]")

KINDS: list[type[Event]] = []
"""Every kind of event."""

_listeners: dict[type[Event], tuple[Listener, ...]] = {}


class Event(msgspec.Struct, kw_only=True, tag_field="event"):
    """Something that happened; the tag is the event's name."""

    level: ClassVar[int] = logging.INFO

    @property
    def name(self) -> str:
        """The event's name in logs."""
        return str(self.__struct_config__.tag)

    @property
    def fields(self) -> dict[str, object]:
        """The event's fields by name."""
        return {field: getattr(self, field) for field in self.__struct_fields__}


def emit(event: Event, exception: BaseException | None = None) -> None:
    """Call every listener of this kind; *exception* is the cause, for its traceback."""
    for listener in _listeners.get(type(event), ()):
        listener(event, exception)


def heard(kind: type[Event]) -> bool:
    """Whether this kind has a listener; events that occur for every message are emitted only then."""
    return kind in _listeners


def listen(listener: Listener, *kinds: type[Event]) -> Callable[[], None]:
    """Call *listener* with each event of these kinds; returns a function that ends this.

    The listener is called in the thread in which the event happens, and must not block.
    """

    def own(event: Event, exception: BaseException | None) -> None:  # so that a listener may register twice
        listener(event, exception)

    for kind in kinds:
        _listeners[kind] = (*_listeners.get(kind, ()), own)

    def end() -> None:
        for kind in kinds:
            left = tuple(each for each in _listeners.get(kind, ()) if each is not own)
            if left:
                _listeners[kind] = left
            else:
                _listeners.pop(kind, None)

    return end


def _kind(kind: E) -> E:
    KINDS.append(kind)
    return kind


# -- messages


@_kind
class MessageCompleted(Event, tag="message.completed"):
    """A handler succeeded and the server has recorded it."""

    level = logging.DEBUG
    topic: str
    id: str
    seconds: float
    """How long the handler ran."""


@_kind
class MessageRetried(Event, tag="message.retried"):
    """A handler failed; the message runs again after *delay* seconds."""

    topic: str
    id: str
    error: str
    delay: float


@_kind
class MessageDead(Event, tag="message.dead"):
    """A message went to the DLQ."""

    level = logging.WARNING
    topic: str
    id: str
    reason: str
    error: str
    previous: str = ""
    """The worker that held it, if a monitor took it over."""


@_kind
class MessageRecovered(Event, tag="message.recovered"):
    """A monitor took a message over from a worker that let its lease run out."""

    level = logging.WARNING
    topic: str
    id: str
    previous: str


@_kind
class MessagePoisoned(Event, tag="message.poisoned"):
    """The stored data of a message cannot be used; the audit can repair it."""

    level = logging.ERROR
    id: str
    place: str


@_kind
class MessageCleaned(Event, tag="message.cleaned"):
    """An entry without a message was removed."""

    level = logging.WARNING
    id: str


@_kind
class LeaseLost(Event, tag="lease.lost"):
    """A message belongs to another worker now; the result of the handler here is ignored."""

    level = logging.WARNING
    topic: str
    id: str
    token: str


@_kind
class StartNotNoted(Event, tag="start.not_noted"):
    """The start of a message could not be noted on the server; a crash will not count against it."""

    level = logging.WARNING
    topic: str
    error: str


@_kind
class SettleFailed(Event, tag="settle.failed"):
    """Messages could not be settled; they run again when their leases run out."""

    level = logging.ERROR
    verdict: str
    topic: str
    messages: int
    error: str


@_kind
class SettleGivenUp(Event, tag="settle.given_up"):
    """The worker stopped before messages could be settled; they run again."""

    level = logging.ERROR
    verdict: str
    topic: str


@_kind
class SettleDelayed(Event, tag="settle.delayed"):
    """The lease keeper could not settle messages in place of a hung event loop; it tries again."""

    level = logging.WARNING
    verdict: str
    topic: str
    messages: int
    error: str


# -- the worker


@_kind
class WorkerStarted(Event, tag="worker.started"):
    """A worker has started and serves its topics."""

    worker: str
    topics: list[str]


@_kind
class WorkerStopped(Event, tag="worker.stopped"):
    """A worker has stopped."""

    worker: str


@_kind
class WorkerNotStarted(Event, tag="worker.not_started"):
    """A worker could not be started."""

    level = logging.ERROR
    error: str


@_kind
class WorkerNotSignedOff(Event, tag="worker.not_signed_off"):
    """A worker stopped, but could not remove its registration from the server."""

    level = logging.WARNING
    error: str


@_kind
class StopGraceOver(Event, tag="worker.grace_over"):
    """Handlers still ran when ``stop_grace`` was over; they are being stopped."""

    level = logging.WARNING
    running: int


@_kind
class HandlersIgnoreStop(Event, tag="worker.handlers_ignore_stop"):
    """Handlers did not end when they were cancelled; their leases run out."""

    level = logging.ERROR
    running: int


@_kind
class WorkerVanished(Event, tag="worker.vanished"):
    """Another worker's connection is gone; its messages are taken over."""

    level = logging.WARNING
    worker: str
    messages: int


@_kind
class RecoveryByLease(Event, tag="recovery.by_lease"):
    """Vanished workers cannot be detected on this server; their messages wait until the leases run out."""

    level = logging.WARNING
    error: str


@_kind
class RecoveryWaits(Event, tag="recovery.waits"):
    """After an outage, take-overs wait so that living workers can extend their leases first."""

    seconds: float


@_kind
class TopicFailed(Event, tag="topic.failed"):
    """The server refuses the commands for one topic; the other topics go on."""

    level = logging.ERROR
    topic: str
    error: str


@_kind
class ClaimGivenBack(Event, tag="claim.given_back"):
    """Messages leased by a claim whose reply was lost went back to their lanes."""

    topic: str
    messages: int


@_kind
class ClaimNotGivenBack(Event, tag="claim.not_given_back"):
    """The leases of a claim whose reply was lost cannot be read; they run out."""

    level = logging.WARNING
    topic: str
    error: str


@_kind
class WakeFailed(Event, tag="wake.failed"):
    """Waiting for wake tokens fails; the topics are polled ten times a second instead."""

    level = logging.ERROR
    keys: list[str]
    error: str


@_kind
class LeasesSlow(Event, tag="leases.slow"):
    """The thread that extends leases gets too little time; handlers hold the interpreter."""

    level = logging.WARNING
    seconds: float
    lease: float


@_kind
class LeasesNotExtended(Event, tag="leases.not_extended"):
    """Leases could not be extended; the worker tries again."""

    level = logging.WARNING
    error: str


@_kind
class LoopHangs(Event, tag="loop.hangs"):
    """A handler blocks the event loop; the lease keeper settles what the loop cannot."""

    level = logging.WARNING
    seconds: float
    settled: dict[str, int]


@_kind
class ServiceFailed(Event, tag="service.failed"):
    """A service of the worker raised an unexpected error; it goes on."""

    level = logging.ERROR
    service: str


@_kind
class RunnerFailed(Event, tag="runner.failed"):
    """An unexpected error occurred while running a message, outside its handler; its lease runs out."""

    level = logging.ERROR
    topic: str


@_kind
class BackoffFailed(Event, tag="retry.backoff_failed"):
    """A backoff function failed; the exponential wait is used instead."""

    level = logging.ERROR


# -- the server


@_kind
class ServerUnavailable(Event, tag="server.unavailable"):
    """The server cannot be reached or refuses commands; the service tries again."""

    level = logging.WARNING
    service: str
    error: str


@_kind
class ServerBack(Event, tag="server.back"):
    """The server answers again."""

    service: str


@_kind
class ServerUnsafe(Event, tag="server.unsafe"):
    """The server could lose messages."""

    level = logging.WARNING
    problem: str


@_kind
class ServerNotChecked(Event, tag="server.not_checked"):
    """It could not be checked whether the server could lose messages."""

    level = logging.WARNING
    error: str


@_kind
class EmbeddedRestarted(Event, tag="embedded.restarted"):
    """The embedded server was gone and runs again."""

    level = logging.ERROR
    pid: int
    lost: str


@_kind
class EmbeddedNotRestarted(Event, tag="embedded.not_restarted"):
    """The embedded server is gone and does not start again."""

    level = logging.ERROR
    error: str


@_kind
class ProcessDied(Event, tag="process.died"):
    """A process of ``run_processes`` ended by itself; another is started."""

    level = logging.ERROR
    pid: int
    exit_code: int | None
