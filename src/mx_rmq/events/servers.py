"""Events of servers: lost, back, unsafe, and the embedded one."""

from __future__ import annotations

import logging

from mx_rmq.events.event import Event, listed


@listed
class ServerUnavailable(Event, tag="server.unavailable"):
    """The server cannot be reached or refuses commands; told once per outage, then once a minute."""

    level = logging.WARNING
    says = "{server}: {error}"
    server: str
    error: str


@listed
class ServerBack(Event, tag="server.back"):
    """The server answers again."""

    says = "{server} answers again after {seconds:time}"
    server: str
    seconds: float
    """How long it was away."""


@listed
class ServerReconnected(Event, tag="server.reconnected"):
    """A connection that was lost is open again; a worker has several."""

    level = logging.DEBUG
    says = "{server}"
    server: str


@listed
class ServerUnsafe(Event, tag="server.unsafe"):
    """The server could lose messages."""

    level = logging.WARNING
    says = "{problem}"
    problem: str


@listed
class ServerNotChecked(Event, tag="server.not_checked"):
    """It could not be checked whether the server could lose messages."""

    level = logging.WARNING
    says = "whether the server could lose messages is not known: {error}"
    error: str


@listed
class MetricsNotRead(Event, tag="metrics.not_read"):
    """A scrape did without the figures of the server; told once per failure, not per scrape."""

    level = logging.WARNING
    says = "the queue could not be read for metrics: {error}"
    error: str


@listed
class EmbeddedRestarted(Event, tag="embedded.restarted"):
    """The embedded server was gone and runs again."""

    level = logging.ERROR
    says = "the embedded server was gone and runs again as process {pid}; lost: {lost}"
    pid: int
    lost: str


@listed
class EmbeddedNotRestarted(Event, tag="embedded.not_restarted"):
    """The embedded server is gone and does not start again."""

    level = logging.ERROR
    says = "the embedded server is gone and does not start again: {error}"
    error: str


@listed
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
