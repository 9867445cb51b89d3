"""Events of topics."""

from __future__ import annotations

import logging

from mx_rmq.events.event import Event, listed


@listed
class TopicFailed(Event, tag="topic.failed"):
    """The server refuses the commands for one topic; the other topics go on."""

    level = logging.ERROR
    says = "the server refuses topic {topic}: {error}"
    topic: str
    error: str


@listed
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


@listed
class WakeFailed(Event, tag="wake.failed"):
    """Waiting for wake tokens fails; the topics are polled ten times a second instead."""

    level = logging.ERROR
    says = "wake tokens cannot be waited for, looking ten times a second: {error}"
    keys: list[str]
    error: str
