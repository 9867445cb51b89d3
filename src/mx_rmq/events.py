"""Every event that mx-rmq reports: its name, its level, its fields.

No field holds a payload, a header or a password. Logs are one listener; metrics, traces and live views are
others.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

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
    says: ClassVar[str] = ""
    """What happened, as a template over the fields and properties."""

    @property
    def name(self) -> str:
        """The event's name in logs."""
        return str(self.__struct_config__.tag)

    @property
    def text(self) -> str:
        """What happened, with the facts in the text."""
        return self.says.format_map(_Facts(self))

    @property
    def fields(self) -> dict[str, object]:
        """The event's fields by name."""
        return {field: getattr(self, field) for field in self.__struct_fields__}


class _Facts(dict[str, object]):
    """The fields and properties of an event by name, as ``format_map`` wants them."""

    def __init__(self, event: Event) -> None:
        super().__init__()
        self._event = event

    def __missing__(self, name: str) -> object:
        return _Fact(getattr(self._event, name))


class _Fact:
    """A value in a template: ``{seconds:time}`` writes a duration as a person would."""

    def __init__(self, value: Any) -> None:
        self._value = value

    def __str__(self) -> str:
        return str(self._value)

    def __repr__(self) -> str:
        return repr(self._value)

    def __format__(self, how: str) -> str:
        value = self._value
        if how != "time":
            return format(value, how)
        if value >= 0.1:
            return f"{value:.0f} s" if value >= 100 else f"{value:.1f} s"
        return f"{value * 1000:.0f} ms" if value >= 0.001 else "<1 ms"


def emit(event: Event, exception: BaseException | None = None) -> None:
    """Call every listener of this kind; *exception* is the cause, for its traceback.

    An error of a listener is logged and changes nothing: the message goes on.
    """
    for listener in _listeners.get(type(event), ()):
        try:
            listener(event, exception)
        except Exception:
            logging.getLogger("mx_rmq").exception("listener.failed: a listener of %s raised", event.name)


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
    says = "{topic} {id} ran for {seconds:time}"
    topic: str
    id: str
    seconds: float
    """How long the handler ran."""


@_kind
class MessageRetried(Event, tag="message.retried"):
    """A handler failed; the message runs again after *delay* seconds."""

    says = (
        "{topic} {id} attempt {attempt} of {max_attempts} failed after {seconds:time}, again in "
        "{delay:time}: {error}{at}"
    )
    topic: str
    id: str
    attempt: int
    max_attempts: int
    seconds: float
    """How long the handler ran."""
    delay: float
    error: str
    place: str = ""
    """The last line of the user's code: file, line and function."""

    @property
    def at(self) -> str:
        """Where, for the text."""
        return f" ({self.place})" if self.place else ""


@_kind
class MessageDead(Event, tag="message.dead"):
    """A message went to the DLQ."""

    level = logging.WARNING
    says = "{topic} {id} is dead ({reason}){after}: {error}{at}; replay it with queue.dlq.replay({id!r})"
    topic: str
    id: str
    reason: str
    error: str
    attempts: int = 0
    place: str = ""
    """The last line of the user's code: file, line and function."""
    previous: str = ""
    """The worker that held it, if a monitor took it over."""

    @property
    def at(self) -> str:
        """Where, for the text."""
        return f" ({self.place})" if self.place else ""

    @property
    def after(self) -> str:
        """After how many attempts, for the text."""
        return f" after {self.attempts} attempt{'' if self.attempts == 1 else 's'}" if self.attempts else ""


@_kind
class MessagePutOff(Event, tag="message.put_off"):
    """A handler put its message off without spending an attempt."""

    level = logging.DEBUG
    says = "{topic} {id} was put off by its handler, again in {delay:.2g} s"
    topic: str
    id: str
    delay: float


@_kind
class MessagesRecovered(Event, tag="messages.recovered"):
    """A monitor took messages over from a worker that let their leases run out."""

    level = logging.WARNING
    says = "{messages} of {topic} were taken over from {previous} and run again"
    topic: str
    messages: int
    previous: str
    ids: list[str]


@_kind
class MessagePoisoned(Event, tag="message.poisoned"):
    """The stored data of a message cannot be used; the audit can repair it."""

    level = logging.ERROR
    says = "{id} ({place}) cannot be read or has no topic; run queue.audit(repair=True)"
    id: str
    place: str


@_kind
class MessageCleaned(Event, tag="message.cleaned"):
    """An entry without a message was removed."""

    level = logging.WARNING
    says = "removed what was left of {id}, which has no body"
    id: str


@_kind
class LeaseLost(Event, tag="lease.lost"):
    """A message belongs to another worker now; the result of the handler here is ignored."""

    level = logging.WARNING
    says = "{topic} {id} belongs to another worker now; what its handler did here does not count"
    topic: str
    id: str
    token: str


@_kind
class StartNotNoted(Event, tag="start.not_noted"):
    """The start of a message could not be noted on the server; a crash will not count against it."""

    level = logging.WARNING
    says = "that messages of {topic} begin could not be noted, so a crash is not blamed on them: {error}"
    topic: str
    error: str


@_kind
class SettleFailed(Event, tag="settle.failed"):
    """Messages could not be settled; they run again when their leases run out."""

    level = logging.ERROR
    says = (
        "{messages} messages of {topic} could not be settled ({verdict}); they run again after "
        "their leases: {error}"
    )
    verdict: str
    topic: str
    messages: int
    error: str


@_kind
class SettleGivenUp(Event, tag="settle.given_up"):
    """The worker stopped before messages could be settled; they run again."""

    level = logging.ERROR
    says = (
        "messages of {topic} were not settled ({verdict}) before the stop; they run again after their leases"
    )
    verdict: str
    topic: str


@_kind
class SettleDelayed(Event, tag="settle.delayed"):
    """The lease keeper could not settle messages in place of a hung event loop; it tries again."""

    level = logging.WARNING
    says = "{messages} messages of {topic} could not be settled ({verdict}); trying again: {error}"
    verdict: str
    topic: str
    messages: int
    error: str


# -- the worker


@_kind
class WorkerStarted(Event, tag="worker.started"):
    """A worker has started and serves its topics."""

    says = "{queue} at {server}, topics {topic_names}; {concurrency} at once"
    worker: str
    queue: str
    server: str
    topics: list[str]
    concurrency: int

    @property
    def topic_names(self) -> str:
        """The topics, for the text."""
        return ", ".join(self.topics)


@_kind
class WorkerStopped(Event, tag="worker.stopped"):
    """A worker has stopped."""

    says = "{worker}"
    worker: str


@_kind
class WorkerNotStarted(Event, tag="worker.not_started"):
    """A worker could not be started."""

    level = logging.ERROR
    says = "{error}"
    error: str


@_kind
class WorkerNotSignedOff(Event, tag="worker.not_signed_off"):
    """A worker stopped, but could not remove its registration from the server."""

    level = logging.WARNING
    says = "the server could not be told that this worker stopped; others notice within seconds: {error}"
    error: str


@_kind
class StopGraceOver(Event, tag="worker.grace_over"):
    """Handlers still ran when ``stop_grace`` was over; they are being stopped."""

    level = logging.WARNING
    says = "{running} messages still ran when stop_grace was over; their handlers are being cancelled"
    running: int


@_kind
class HandlersIgnoreStop(Event, tag="worker.handlers_ignore_stop"):
    """Handlers did not end when they were cancelled; their leases run out."""

    level = logging.ERROR
    says = "{running} handlers ignore their cancellation; their messages run again after their leases"
    running: int


@_kind
class WorkerVanished(Event, tag="worker.vanished"):
    """Another worker's connection is gone; its messages are taken over."""

    level = logging.WARNING
    says = "{worker} is gone; its {messages} messages are taken over"
    worker: str
    messages: int


@_kind
class RecoveryByLease(Event, tag="recovery.by_lease"):
    """Vanished workers cannot be detected on this server; their messages wait until the leases run out."""

    level = logging.WARNING
    says = "{error}"
    error: str


@_kind
class RecoveryWaits(Event, tag="recovery.waits"):
    """After an outage, take-overs wait so that living workers can extend their leases first."""

    says = "the server was away; owners of messages have {seconds:time} to extend their leases"
    seconds: float


@_kind
class TopicFailed(Event, tag="topic.failed"):
    """The server refuses the commands for one topic; the other topics go on."""

    level = logging.ERROR
    says = "the server refuses topic {topic}: {error}"
    topic: str
    error: str


@_kind
class TopicsForgotten(Event, tag="topics.forgotten"):
    """Topics that were empty and unused for a day are not listed any more."""

    says = "{count} topics that were empty and unused for a day are not listed any more: {named}"
    topics: list[str]

    @property
    def count(self) -> int:
        """How many, for the text."""
        return len(self.topics)

    @property
    def named(self) -> str:
        """Some of them, for the text."""
        return ", ".join(self.topics[:10]) + (", …" if len(self.topics) > 10 else "")


@_kind
class ClaimGivenBack(Event, tag="claim.given_back"):
    """Messages leased by a claim whose reply was lost went back to their lanes."""

    says = "{messages} messages of {topic}, claimed without a reply, went back to the queue"
    topic: str
    messages: int


@_kind
class ClaimNotGivenBack(Event, tag="claim.not_given_back"):
    """The leases of a claim whose reply was lost cannot be read; they run out."""

    level = logging.WARNING
    says = "messages of {topic}, claimed without a reply, wait for their leases: {error}"
    topic: str
    error: str


@_kind
class WakeFailed(Event, tag="wake.failed"):
    """Waiting for wake tokens fails; the topics are polled ten times a second instead."""

    level = logging.ERROR
    says = "wake tokens cannot be waited for, looking ten times a second: {error}"
    keys: list[str]
    error: str


@_kind
class LeasesSlow(Event, tag="leases.slow"):
    """The thread that extends leases gets too little time; handlers hold the interpreter."""

    level = logging.WARNING
    says = (
        "extending leases took {seconds:time} of a lease of {lease:time}: handlers hold the "
        "interpreter; use fewer threads or more processes"
    )
    seconds: float
    lease: float


@_kind
class LeasesNotExtended(Event, tag="leases.not_extended"):
    """Leases could not be extended; the worker tries again."""

    level = logging.WARNING
    says = "leases could not be extended, trying again: {error}"
    error: str


@_kind
class LoopHangs(Event, tag="loop.hangs"):
    """A handler blocks the event loop; the lease keeper settles what the loop cannot."""

    level = logging.WARNING
    says = "the event loop has been blocked for {seconds:time}; settled without it: {settled}"
    seconds: float
    settled: dict[str, int]


@_kind
class HandlerBlocked(Event, tag="handler.blocked"):
    """A handler blocked the event loop; said once per handler."""

    level = logging.WARNING
    says = "handler {handler} {did} the event loop for {seconds:.1f} s{at}: {remedy}"
    topic: str
    handler: str
    seconds: float
    is_async: bool
    place: str = ""
    """Where: file, line and function."""
    lasts: bool = False
    """Whether it still blocked the loop when this was said."""

    @property
    def did(self) -> str:
        """What it did, for the text."""
        return "has been blocking" if self.lasts else "blocked"

    @property
    def at(self) -> str:
        """Where, for the text."""
        return f" ({self.place})" if self.place else ""

    @property
    def remedy(self) -> str:
        """What to do, for the text."""
        return "make it a plain def" if self.is_async else "its middleware must not block"


@_kind
class LoopBlocked(Event, tag="loop.blocked"):
    """Code outside handlers blocked the event loop; said once per place."""

    level = logging.WARNING
    says = "the event loop {did} for {seconds:.1f} s, not by a handler{at}: call what blocks in a thread"
    seconds: float
    place: str = ""
    """Where: file, line and function."""
    lasts: bool = False
    """Whether the loop was still blocked when this was said."""

    @property
    def did(self) -> str:
        """What happened, for the text."""
        return "has been blocked" if self.lasts else "was blocked"

    @property
    def at(self) -> str:
        """Where, for the text."""
        return f" ({self.place})" if self.place else ""


@_kind
class HookFailed(Event, tag="hook.failed"):
    """A hook raised an error; its message is not affected."""

    level = logging.ERROR
    says = "hook {hook} failed for {topic} {id}, which is not affected"
    hook: str
    topic: str
    id: str


@_kind
class HooksSkipped(Event, tag="hooks.skipped"):
    """Hooks are slower than the messages they are called for, or the worker stopped before they ended."""

    level = logging.WARNING
    says = "{skipped} calls of hooks were left out, {waiting} wait: the hooks are too slow"
    skipped: int
    waiting: int


@_kind
class LifespanFailed(Event, tag="lifespan.failed"):
    """The lifespan ended with an error after the worker had started."""

    level = logging.ERROR
    says = "the lifespan failed: {error}"
    error: str


@_kind
class ServiceFailed(Event, tag="service.failed"):
    """A service of the worker raised an unexpected error; it goes on."""

    level = logging.ERROR
    says = "the {service} met an unexpected error and goes on"
    service: str


@_kind
class RunnerFailed(Event, tag="runner.failed"):
    """An unexpected error occurred while running a message, outside its handler; its lease runs out."""

    level = logging.ERROR
    says = "a message of {topic} met an unexpected error outside its handler; it runs again after its lease"
    topic: str


@_kind
class BackoffFailed(Event, tag="retry.backoff_failed"):
    """A backoff function failed; the exponential wait is used instead."""

    level = logging.ERROR
    says = "a backoff function raised; the wait is exponential"


# -- the server


@_kind
class ServerUnavailable(Event, tag="server.unavailable"):
    """The server cannot be reached or refuses commands; told once per outage, then once a minute."""

    level = logging.WARNING
    says = "{server}: {error}"
    server: str
    error: str


@_kind
class ServerBack(Event, tag="server.back"):
    """The server answers again."""

    says = "{server} answers again after {seconds:time}"
    server: str
    seconds: float
    """How long it was away."""


@_kind
class ServerUnsafe(Event, tag="server.unsafe"):
    """The server could lose messages."""

    level = logging.WARNING
    says = "{problem}"
    problem: str


@_kind
class ServerNotChecked(Event, tag="server.not_checked"):
    """It could not be checked whether the server could lose messages."""

    level = logging.WARNING
    says = "whether the server could lose messages is not known: {error}"
    error: str


@_kind
class EmbeddedRestarted(Event, tag="embedded.restarted"):
    """The embedded server was gone and runs again."""

    level = logging.ERROR
    says = "the embedded server was gone and runs again as process {pid}; lost: {lost}"
    pid: int
    lost: str


@_kind
class EmbeddedNotRestarted(Event, tag="embedded.not_restarted"):
    """The embedded server is gone and does not start again."""

    level = logging.ERROR
    says = "the embedded server is gone and does not start again: {error}"
    error: str


@_kind
class EmbeddedEnded(Event, tag="embedded.ended"):
    """A private embedded server ended with messages in it."""

    level = logging.WARNING
    says = (
        "the private server ended with {messages} message{s} in it, which {are} gone; "
        "embedded:///path keeps them"
    )
    messages: int

    @property
    def s(self) -> str:
        """The ending of the plural, for the text."""
        return "" if self.messages == 1 else "s"

    @property
    def are(self) -> str:
        """The verb, for the text."""
        return "is" if self.messages == 1 else "are"


@_kind
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


@_kind
class ProcessesGivenUp(Event, tag="processes.given_up"):
    """The processes of ``run_processes`` died at once, again and again."""

    level = logging.ERROR
    says = "the processes died at once {tries} times: {reason}"
    tries: int
    reason: str
