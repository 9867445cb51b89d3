"""Where a message is and why it has not run, for whoever asks at 3 a.m."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from math import inf
from typing import TYPE_CHECKING, Literal

from mx_rmq.dead_letters import DeadLetters, NotDead
from mx_rmq.errors import UnreadableMessage
from mx_rmq.message import Message, decode_message
from mx_rmq.reader import Counts, Reader, TopicCounts, WorkerFacts

if TYPE_CHECKING:
    from mx_rmq.shard import Shard

State = Literal["pending", "processing", "delayed", "dead", "gone"]


@dataclass(frozen=True, slots=True)
class MessageFacts:
    """What is known of a message now."""

    id: str
    state: State
    topic: str = ""
    message: Message | None = None
    """The stored message with its history; None if it is gone or cannot be read."""
    due_at: float | None = None
    expires_at: float | None = None
    holder: str | None = None
    claimed_at: float | None = None
    lease_until: float | None = None
    died_at: float | None = None
    reason: str = ""
    error: str = ""


class Inspector:
    """Answers questions about a queue."""

    def __init__(self, shards: list[Shard]) -> None:
        self._shards = shards

    async def get(self, id_: str) -> MessageFacts:
        """Everything known of a message; its state is ``gone`` if there is none."""
        for shard in self._shards:
            facts = await self._live(Reader(shard.store), id_)
            if facts is not None:
                return facts
        try:
            letter = await DeadLetters(self._shards).get(id_)
        except NotDead:
            return MessageFacts(id_, "gone")
        return MessageFacts(
            id_,
            "dead",
            letter.topic,
            letter.message,
            died_at=letter.died_at,
            reason=letter.reason,
            error=letter.error,
        )

    async def _live(self, reader: Reader, id_: str) -> MessageFacts | None:
        body, topic, lease, due, deadline = await reader.message(id_)
        if body is None:
            return None
        try:
            message = decode_message(body)
        except UnreadableMessage:
            message = None
        if lease is not None:
            token, _, expires, holder, _ = [*lease.split(), "", "", "inf", "", ""][:5]
            return MessageFacts(
                id_,
                "processing",
                topic,
                message,
                expires_at=float(expires) / 1000,
                holder=holder,
                claimed_at=int(token.partition("@")[2] or 0) / 1e6,
                lease_until=deadline,
            )
        if due is not None:
            return MessageFacts(id_, "delayed", topic, message, due_at=due)
        return MessageFacts(id_, "pending", topic, message, expires_at=deadline)

    async def counts(self) -> Counts:
        """How the queue stands, topic by topic."""
        total = Counts()
        for shard in self._shards:
            counts = await Reader(shard.store).counts()
            topics = dict(total.topics)
            for topic, own in counts.topics.items():
                topics[topic] = _sum(topics.get(topic, TopicCounts()), own)
            total = Counts(topics, total.delayed + counts.delayed, total.dead + counts.dead)
        return total

    async def workers(self) -> list[WorkerFacts]:
        """The workers that have lately said that they live."""
        found: dict[str, WorkerFacts] = {}
        for shard in self._shards:
            found |= {worker.name: worker for worker in await Reader(shard.store).workers()}
        return sorted(found.values(), key=lambda worker: worker.name)

    async def explain(self, id_: str) -> str:
        """Why a message has not run, in a sentence."""
        facts = await self.get(id_)
        name = f"message {id_} of topic {facts.topic!r}"
        match facts.state:
            case "gone":
                return f"there is no message {id_}: it was completed, cancelled, deleted or never produced"
            case "dead":
                why = f"{facts.reason}: {facts.error}" if facts.error else facts.reason
                return (
                    f"{name} is dead since {_when(facts.died_at)}, {why}; replay it with queue.dlq.replay()"
                )
            case "processing":
                return (
                    f"{name} is leased by {facts.holder} since {_when(facts.claimed_at)}; "
                    f"unless extended, the lease ends at {_when(facts.lease_until)}"
                )
            case "delayed":
                failed = facts.message.attempts + facts.message.crashes if facts.message else 0
                why = f"after {failed} failed attempts " if failed else ""
                return f"{name} is delayed {why}until {_when(facts.due_at)}"
            case "pending":
                return f"{name} is pending: {await self._why_pending(facts)}"

    async def _why_pending(self, facts: MessageFacts) -> str:
        for shard in self._shards:
            if await Reader(shard.store).paused(facts.topic):
                return "the topic is paused; resume it with queue.resume()"
        workers = await self.workers()
        serving = [worker for worker in workers if facts.topic in worker.topics]
        if not serving:
            others = f"; {len(workers)} workers live, but serve other topics" if workers else ""
            return f"no live worker has a handler for the topic{others}"
        topic = (await self.counts()).topics.get(facts.topic, TopicCounts())
        return (
            f"{len(serving)} workers serve the topic, with {topic.processing} messages running "
            f"and {topic.pending} waiting"
        )


def _sum(one: TopicCounts, other: TopicCounts) -> TopicCounts:
    return TopicCounts(
        one.pending + other.pending,
        one.processing + other.processing,
        one.paused or other.paused,
        one.produced + other.produced,
        one.completed + other.completed,
        one.retried + other.retried,
        one.dead + other.dead,
    )


def _when(instant: float | None) -> str:
    if instant is None or instant == inf:
        return "never"
    return datetime.fromtimestamp(instant, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
