"""What happens to the messages of a queue under test, noted where it is stored."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec

from mx_rmq import events
from mx_rmq.errors import InvalidPayload, MxRmqError, StoreError, UnreadableMessage
from mx_rmq.message import Lane, Reason, decode_death, decode_message
from mx_rmq.raised import RetryLater
from mx_rmq.receipt import Stored
from mx_rmq.storage.contract import Settled
from mx_rmq.storage.store import Store

if TYPE_CHECKING:
    from mx_rmq.message import Message
    from mx_rmq.storage.commands import Commands, Together
    from mx_rmq.storage.contract import Claim, Delivery, Kept, NewMessage, Overdue
    from mx_rmq.storage.keys import Keys
    from mx_rmq.testing.clock import Clock
    from mx_rmq.worker.handlers import Handler


class MessageFailed(MxRmqError):
    """A message failed and its handler raised nothing: it expired, timed out or could not be read."""


@dataclass(frozen=True, slots=True)
class ProducedMessage:
    """A message that was stored."""

    topic: str
    id: str
    payload: Any
    """As the topic's handler gets it; as plain values if it has none here."""
    headers: Mapping[str, str]
    priority: Lane
    delay: float
    ttl: float | None
    dedup_for: float | None


@dataclass(frozen=True, slots=True)
class DoneMessage:
    """A message whose handler succeeded."""

    topic: str
    id: str
    payload: Any
    attempt: int
    """Which attempt succeeded: 1 for the first."""


@dataclass(frozen=True, slots=True)
class DeadMessage:
    """A message that went to the DLQ."""

    topic: str
    id: str
    payload: Any
    """None if it cannot be read."""
    attempts: int
    reason: Reason
    error: str
    exception: BaseException | None = field(default=None, compare=False)
    """What the handler raised, if it raised."""


class Records:
    """The produced, done and dead messages of one queue, and the errors of its handlers.

    Args:
        handlers: of the queue; their types decode the payloads.
    """

    def __init__(self, handlers: Mapping[str, Handler[..., Any]]) -> None:
        self._handlers = handlers
        self.produced: list[ProducedMessage] = []
        self.done: list[DoneMessage] = []
        self.dead: list[DeadMessage] = []
        self._claimed: set[str] = set()
        self._raised: dict[str, BaseException] = {}
        """What the handler of a message raised last."""
        self._failures: list[tuple[str, BaseException | None]] = []
        """What ``first_failure`` has not returned yet: in words, and what the handler raised."""
        self._under_way: set[object] = set()

    @property
    def is_complete(self) -> bool:
        """Whether no answer of the server is still to be noted."""
        return not self._under_way

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Note the errors of handlers inside the block."""
        end = events.listen(self._note_failure, events.MessageRetried, events.MessageDead)
        try:
            yield
        finally:
            end()

    def first_failure(self) -> BaseException | None:
        """The first failure since the last call, as what to raise."""
        if not self._failures:
            return None
        said, error = self._failures[0]
        self._failures.clear()
        if not isinstance(error, Exception):  # such as the cancellation at a timeout
            return MessageFailed(said)
        error.add_note(said)
        return error

    @contextmanager
    def answer(self) -> Iterator[None]:
        """Inside the block, an answer of the server is awaited and noted."""
        token = object()
        self._under_way.add(token)
        try:
            yield
        finally:
            self._under_way.discard(token)

    def note_claimed(self, deliveries: Iterable[Delivery]) -> None:
        """Note messages that this queue's worker has now."""
        self._claimed.update(delivery.id for delivery in deliveries)

    def note_produced(self, topic: str, new: NewMessage) -> None:
        """Note a message that was stored."""
        message = decode_message(new.body, new.id, topic)
        self.produced.append(
            ProducedMessage(
                topic,
                new.id,
                self._payload(topic, message.payload),
                dict(message.headers),
                message.priority,
                float(new.delay),
                message.ttl,
                message.dedup_for,
            )
        )

    def note_done(self, delivery: Delivery) -> None:
        """Note a message that was completed."""
        message = decode_message(delivery.body, delivery.id, delivery.topic)
        payload, attempt = self._payload(delivery.topic, message.payload), _failed(message) + 1
        self.done.append(DoneMessage(delivery.topic, delivery.id, payload, attempt))

    def note_dead(self, delivery: Delivery, body: bytes, error: bytes) -> None:
        """Note a message that was moved to the DLQ."""
        try:
            message = decode_message(body or delivery.body, delivery.id, delivery.topic)
            payload, attempts = self._payload(delivery.topic, message.payload), _failed(message)
        except UnreadableMessage:
            payload, attempts = None, 0
        death = decode_death(error)
        raised = self._raised.get(delivery.id) if death.reason in ("failed", "rejected") else None
        self.dead.append(
            DeadMessage(delivery.topic, delivery.id, payload, attempts, death.reason, death.error, raised)
        )

    def _note_failure(self, event: events.Event, error: BaseException | None) -> None:
        assert isinstance(event, events.MessageRetried | events.MessageDead)
        if event.id not in self._claimed:  # of another queue in this process
            return
        if error is not None:
            self._raised[event.id] = error
        asked_for = isinstance(event, events.MessageRetried) and isinstance(error, RetryLater)
        if not asked_for:
            self._failures.append((f"{event.name}: {event.text}", error))

    def _payload(self, topic: str, raw: msgspec.Raw) -> Any:
        try:
            if topic in self._handlers:
                return self._handlers[topic].payload_type.decode(raw)
        except InvalidPayload:
            pass
        return msgspec.json.decode(raw)


class RecordingStore(Store):
    """A store that notes what becomes of messages, and goes by the clock of a test."""

    def __init__(
        self,
        commands: Commands,
        keys: Keys,
        *,
        max_bytes: int,
        history: bool,
        records: Records,
        clock: Clock,
    ) -> None:
        super().__init__(commands, keys, max_bytes=max_bytes, history=history, now=clock)
        self._records = records
        self._clock = clock

    async def produce(self, topic: str, messages: Sequence[NewMessage], **call: str) -> list[Stored]:
        """Store messages."""
        return self._note_stored(topic, messages, await super().produce(topic, messages, **call))

    async def produce_delayed(self, topic: str, messages: Sequence[NewMessage], **call: str) -> list[Stored]:
        """Store messages that become pending later."""
        return self._note_stored(topic, messages, await super().produce_delayed(topic, messages, **call))

    async def claim(self, topic: str, limit: int, *, lease: float, holder: str) -> Claim:
        """Lease pending messages."""
        claim = await super().claim(topic, limit, lease=lease, holder=holder)
        self._records.note_claimed(claim.deliveries)
        return claim

    async def take_over(
        self, limit: int, *, lease: float, holder: str, before: float | None = None
    ) -> Overdue:
        """Take over messages that are past their deadline."""
        overdue = await super().take_over(limit, lease=lease, holder=holder, before=before)
        self._records.note_claimed(takeover.delivery for takeover in overdue.taken)
        return overdue

    async def extend_together(
        self, connections: Together, chunks: Sequence[tuple[str, Sequence[Delivery]]], *, lease: float
    ) -> list[list[Settled] | StoreError]:
        """Extend leases; the clock does not move under a call of the lease keeper's thread."""
        with self._clock.still:
            return await super().extend_together(connections, chunks, lease=lease)

    async def complete(
        self, topic: str, finished: Iterable[tuple[Delivery, float | Kept]], times: str = ""
    ) -> list[Settled]:
        """Finish deliveries."""
        rows = list(finished)
        with self._records.answer():
            statuses = await super().complete(topic, rows, times)
            for row, status in zip(rows, statuses, strict=True):
                if status is Settled.DONE:
                    self._records.note_done(row[0])
        return statuses

    async def move_to_dlq(
        self, topic: str, dead: Sequence[tuple[Delivery, bytes, bytes]], *, kept: Sequence[Kept] = ()
    ) -> list[Settled]:
        """Move messages to the DLQ."""
        with self._records.answer():
            statuses = await super().move_to_dlq(topic, dead, kept=kept)
            for row, status in zip(dead, statuses, strict=True):
                if status is Settled.DONE:
                    self._records.note_dead(*row)
        return statuses

    def _note_stored(
        self, topic: str, messages: Sequence[NewMessage], statuses: list[Stored]
    ) -> list[Stored]:
        for message, status in zip(messages, statuses, strict=True):
            if status is Stored.STORED:
                self._records.note_produced(topic, message)
        return statuses


def _failed(message: Message) -> int:
    return message.attempts + message.crashes
