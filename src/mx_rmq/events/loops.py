"""Events of event loops: what blocks them."""

from __future__ import annotations

import logging

from mx_rmq.events.event import Event, listed


@listed
class LoopHangs(Event, tag="loop.hangs"):
    """A handler blocks the event loop; the lease keeper settles what the loop cannot."""

    level = logging.WARNING
    says = "the event loop has been blocked for {seconds:time}; settled without it: {settled}"
    seconds: float
    settled: dict[str, int]


@listed
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


@listed
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


@listed
class LoopIgnoresStop(Event, tag="loop.ignores_stop"):
    """The event loop hung and did not react to SIGTERM or SIGINT; the process ends without it."""

    level = logging.ERROR
    says = "the event loop did not react to {signal} for {seconds:time}{at}; the process ends"
    signal: str
    seconds: float
    place: str = ""
    """What it executed: file, line and function."""

    @property
    def at(self) -> str:
        """Where, for the text."""
        return f" ({self.place})" if self.place else ""
