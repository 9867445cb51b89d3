"""Looking for a text in payloads: a scan that is bounded in messages, bytes, hits and calls."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final, NamedTuple

from mx_rmq.operating.messages import STATES
from mx_rmq.tables import counted
from mx_rmq.web.previews import payload_text
from mx_rmq.web.words import cut

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from mx_rmq.operating.messages import Listed, MessageFacts
    from mx_rmq.storage.facts import Counts
    from mx_rmq.web.desk import Desk
    from mx_rmq.web.jobs import Job

MOST_MESSAGES: Final = 100_000
MOST_BYTES: Final = 256 * 1024 * 1024
MOST_HITS: Final = 100
_AT_ONCE: Final = 500
"""Messages read in one call, at most."""
_BYTES_AT_ONCE: Final = 4 * 1024 * 1024
"""Bytes that a call should read: the next calls ask for as many messages as have about this many."""
_MOST_CALLS: Final = 10_000
"""So many calls, also if few of the messages that they pass are of the topic."""
_AROUND: Final = 60
"""Characters shown before and after a hit."""


class Hit(NamedTuple):
    """A message that has the text."""

    id: str
    state: str
    topic: str
    around: str
    """The part of its payload that has it."""

    @classmethod
    def parse(cls, line: str) -> Hit:
        """Read a hit from the results of a job."""
        return cls(*line.split("\t", 3))

    def __str__(self) -> str:
        return "\t".join(self)


class Scan:
    """Looks for a text in the payloads of a queue.

    Args:
        desk: of the dashboard.
        text: to look for; upper and lower case are the same.
        topic: only messages of this topic; empty for all.
        state: only messages in this state; None for all.
    """

    def __init__(self, desk: Desk, text: str, topic: str = "", state: Listed | None = None) -> None:
        self._desk = desk
        self._texts = {text.casefold(), json.dumps(text, ensure_ascii=False)[1:-1].casefold()}
        self._topic = topic
        self._states = STATES if state is None else (state,)
        self._looked = self._bytes = self._hits = self._calls = 0
        self._missing: dict[str, None] = {}

    def total(self, counts: Counts) -> int:
        """How many messages it looks at."""
        of = counts.topics.items()
        own = [each for name, each in of if not self._topic or name == self._topic]
        return min(
            MOST_MESSAGES,
            sum(each.in_dlq if s == "dead" else getattr(each, s) for each in own for s in self._states),
        )

    async def run(self, job: Job) -> str:
        """Look, as a job; hits are its results. Returns how it ended."""
        async for page in self._pages():
            for facts in page:
                self._look(job, facts)
                if why := self._is_over():
                    job.progress(self._looked)
                    return f"{self._said}; the search ended there, {why}"
            self._calls += 1
            job.progress(self._looked)
            if self._calls >= _MOST_CALLS:
                return f"{self._said}; the search ended there, after {_MOST_CALLS:,} looks"
        return self._said if self._missing else f"{self._said}; that is all there is"

    @property
    def _said(self) -> str:
        said = f"{counted(self._hits, 'message')} found among {self._looked:,}"
        away = "; ".join(self._missing)
        return f"{said}; not searched: {cut(away, 300)}" if away else said

    def _look(self, job: Job, facts: MessageFacts) -> None:
        self._looked += 1
        if facts.message is None:
            return
        self._bytes += len(bytes(facts.message.payload))
        text = payload_text(facts, self._desk.redact)
        folded = text.casefold()
        place = min((at for each in self._texts if (at := folded.find(each)) >= 0), default=-1)
        if place >= 0:
            self._hits += 1
            around = cut(text[max(0, place - _AROUND) : place + 3 * _AROUND], 3 * _AROUND)
            job.results.append(str(Hit(facts.id, facts.state, facts.topic, around)))

    def _is_over(self) -> str:
        """Why it ends here; empty if it goes on."""
        if self._hits >= MOST_HITS:
            return f"at {MOST_HITS} hits"
        if self._looked >= MOST_MESSAGES:
            return f"at {MOST_MESSAGES:,} messages"
        if self._bytes >= MOST_BYTES:
            return f"at {MOST_BYTES // 1024 // 1024} MiB of payloads"
        return ""

    async def _pages(self) -> AsyncIterator[list[MessageFacts]]:
        queue = self._desk.queue
        for state in self._states:
            if self._topic or state not in ("delayed", "dead"):
                for topic in [self._topic] if self._topic else await queue.topics():
                    after: str | None = None
                    while True:
                        page = await queue.list(topic, state=state, limit=self._limit, after=after)
                        self._missing |= dict.fromkeys(page.missing)
                        yield page.messages
                        if (after := page.next) is None:
                            break
            elif state == "delayed":  # those of all topics are in one set; read it once
                after = None
                while True:
                    schedule = await queue.schedule(limit=self._limit, after=after)
                    self._missing |= dict.fromkeys(schedule.missing)
                    yield schedule.messages
                    if (after := schedule.next) is None:
                        break
            else:
                after = None
                while True:
                    letters = await queue.dlq.list(limit=self._limit, after=after)
                    self._missing |= dict.fromkeys(letters.missing)
                    yield [letter.facts for letter in letters.letters]
                    if (after := letters.next) is None:
                        break

    @property
    def _limit(self) -> int:
        """How many messages the next call reads."""
        if not self._looked:
            return 20
        return max(1, min(_AT_ONCE, _BYTES_AT_ONCE * self._looked // max(1, self._bytes)))
