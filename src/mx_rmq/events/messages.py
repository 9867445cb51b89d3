"""Events of messages: produced, claimed, run, ended."""

from __future__ import annotations

import logging

from mx_rmq.events.event import Event, listed


@listed
class MessagesProduced(Event, tag="messages.produced"):
    """The server has stored the messages of one call; told once per call, not per message."""

    level = logging.DEBUG
    is_frequent = True
    says = "{messages} of {topic}"
    topic: str
    messages: int
    """How many were stored now; those whose id was taken are not among them."""
    duplicates: int = 0
    """How many were not stored, because their id was taken."""


@listed
class MessagesClaimed(Event, tag="messages.claimed"):
    """A worker has leased messages; told once per claim, not per message."""

    level = logging.DEBUG
    is_frequent = True
    says = "{messages} of {topic} by {worker}"
    topic: str
    messages: int
    worker: str


@listed
class MessageCompleted(Event, tag="message.completed"):
    """A handler succeeded and the server has recorded it."""

    level = logging.DEBUG
    is_frequent = True
    says = "{topic} {id} ran for {seconds:time}"
    topic: str
    id: str
    seconds: float
    """How long the handler ran."""
    waited: float | None = None
    """How long it was ready before this run, by the server's clock; None if this is not its first run, or if
    nothing listens to ``MessageCompleted``."""


@listed
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
    waited: float | None = None
    """How long it was ready before this run, by the server's clock; None if this is not its first run, or if
    nothing listens to ``MessageCompleted``."""

    @property
    def at(self) -> str:
        """Where, for the text."""
        return f" ({self.place})" if self.place else ""


@listed
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
    seconds: float | None = None
    """How long the handler ran; None if it did not, or in another process."""
    waited: float | None = None
    """How long it was ready before this run, by the server's clock; None if this is not its first run, or if
    nothing listens to ``MessageCompleted``."""

    @property
    def at(self) -> str:
        """Where, for the text."""
        return f" ({self.place})" if self.place else ""

    @property
    def after(self) -> str:
        """After how many attempts, for the text."""
        return f" after {self.attempts} attempt{'' if self.attempts == 1 else 's'}" if self.attempts else ""


@listed
class MessagePutOff(Event, tag="message.put_off"):
    """A handler put its message off without spending an attempt."""

    level = logging.DEBUG
    says = "{topic} {id} was put off by its handler, again in {delay:.2g} s"
    topic: str
    id: str
    delay: float
    seconds: float | None = None
    """How long the handler ran."""
    waited: float | None = None
    """How long it was ready before this run, by the server's clock; None if this is not its first run, or if
    nothing listens to ``MessageCompleted``."""


@listed
class MessagesRecovered(Event, tag="messages.recovered"):
    """A monitor took messages over from a worker that let their leases run out."""

    level = logging.WARNING
    says = "{messages} of {topic} were taken over from {previous} and run again"
    topic: str
    messages: int
    previous: str
    ids: list[str]


@listed
class MessagePoisoned(Event, tag="message.poisoned"):
    """The stored data of a message cannot be used; the audit can repair it."""

    level = logging.ERROR
    says = "{id} ({place}) cannot be read or has no topic; run queue.audit(repair=True)"
    id: str
    place: str


@listed
class MessageCleaned(Event, tag="message.cleaned"):
    """An entry without a message was removed."""

    level = logging.WARNING
    says = "removed what was left of {id}, which has no body"
    id: str
