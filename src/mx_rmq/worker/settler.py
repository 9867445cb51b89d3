"""Settling: verdicts are sent to the server in script calls, many in one call."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from contextlib import suppress
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Any, assert_never, cast

from mx_rmq import events
from mx_rmq.errors import MxRmqError, WrongKeyType
from mx_rmq.limits import BATCH
from mx_rmq.message import encode_death
from mx_rmq.storage.batching import Batcher
from mx_rmq.storage.contract import Settled
from mx_rmq.storage.history import times_text
from mx_rmq.storage.resend import is_unavailable, resend
from mx_rmq.worker.outcome import RETURNED, Again, Died, Done, Later, Lost, Returned, Verdict

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from mx_rmq.storage.contract import Delivery
    from mx_rmq.storage.store import Store
    from mx_rmq.worker.holdings import Holdings, Job
    from mx_rmq.worker.hooks import Hooks
    from mx_rmq.worker.outcome import Held

Item = tuple["Job", Verdict]
Kind = type[Verdict]


async def settle(store: Store, topic: str, items: Sequence[tuple[Held, Verdict]]) -> list[Settled]:
    """Settle deliveries on the server; all have the same kind of verdict."""
    match items[0][1]:
        case Done():
            done = cast("Sequence[tuple[Job, Done]]", items)
            times = _times(done) if store.history else ""
            return await store.complete(topic, [(job.delivery, how.kept) for job, how in done], times)
        case Again():
            again = cast("Sequence[tuple[Held, Again]]", items)
            return await store.retry(topic, [(held.delivery, how.delay, how.body) for held, how in again])
        case Later():
            later = cast("Sequence[tuple[Held, Later]]", items)
            return await store.put_off(topic, [(held.delivery, how.delay, how.body) for held, how in later])
        case Died():
            died = cast("Sequence[tuple[Held, Died]]", items)
            rows = [(held.delivery, how.body, encode_death(how.death)) for held, how in died]
            return await store.move_to_dlq(topic, rows, kept=[how.kept for _, how in died])
        case Returned():
            returned = cast("Sequence[tuple[Held, Returned]]", items)
            bodies = [how.body for _, how in returned]
            return await store.release(topic, [held.delivery for held, _ in returned], bodies=bodies)
        case Lost():
            return [Settled.STALE] * len(items)
        case _ as never:
            assert_never(never)


class Settler:
    """Settles deliveries on one shard. No caller waits for it: a lost lease is logged, not raised.

    Args:
        holdings: what the worker holds there.
        patience: how long to try while the server is unreachable or refuses; after that the lease runs
            out and the message is delivered again.
        hooks: called for what the server accepted.
    """

    def __init__(self, holdings: Holdings, patience: float, hooks: Hooks) -> None:
        self._holdings = holdings
        self.hooks = hooks
        self._store = holdings.shard.store
        self._queue = holdings.shard.keys.queue
        self._patience = patience
        self._batchers: dict[tuple[Kind, str], Batcher[Item, None]] = {}
        self._giving_back: set[asyncio.Task[None]] = set()

    def put(self, job: Job, verdict: Verdict) -> None:
        """Settle a job together with others of its topic and kind of verdict."""
        job.verdict = verdict
        kind, topic = type(verdict), job.delivery.topic
        batcher = self._batchers.get((kind, topic))
        if batcher is None:
            weigh = _weight if kind in (Again, Later, Died) else None
            batcher = self._batchers[kind, topic] = Batcher(partial(self._settle, topic), weigh=weigh)
        batcher.put((job, verdict))

    def give_back(self, jobs: Iterable[Job]) -> None:
        """Release jobs that never started; each topic's first job is first in its lane again."""
        by_topic: dict[str, list[Item]] = defaultdict(list)
        for job in jobs:
            job.verdict = RETURNED
            by_topic[job.delivery.topic].append((job, RETURNED))
        for topic, items in by_topic.items():
            task = asyncio.create_task(self._give_back(topic, items))
            self._giving_back.add(task)
            task.add_done_callback(self._giving_back.discard)

    async def _give_back(self, topic: str, items: list[Item]) -> None:
        for start in reversed(range(0, len(items), BATCH)):  # last batch first: each goes to the head
            with suppress(MxRmqError):  # already reported as an event; their leases run out
                await self._settle(topic, items[start : start + BATCH])

    async def drained(self) -> None:
        """Wait until everything is settled."""
        while self._giving_back:
            await asyncio.wait(self._giving_back)
        for batcher in list(self._batchers.values()):
            await batcher.drained()

    def give_up(self) -> None:
        """Forget what is not settled yet; those leases run out, and the messages are delivered again."""
        for task in self._giving_back:
            task.cancel()
        for (kind, topic), batcher in self._batchers.items():
            if not batcher.idle:
                batcher.cancel()
                events.emit(events.SettleGivenUp(queue=self._queue, verdict=name_of(kind), topic=topic))

    async def _settle(self, topic: str, items: Sequence[Item]) -> list[None]:
        unsettled = items
        if self._holdings.stood_in:
            unsettled = [item for item in items if not item[0].is_settled]
        failures: list[Exception] = []

        def failed(error: Exception, _wait: float) -> None:
            failures.append(error)

        try:
            if unsettled:
                call = partial(settle, self._store, topic, unsettled)
                statuses = await resend(call, patience=self._patience, passes=_may_pass, failed=failed)
                if any(map(is_unavailable, failures)):
                    statuses = self._seen_through(unsettled, statuses)
                _tell(self._queue, unsettled, statuses)
                self.hooks.accepted(unsettled, statuses)
        except Exception as error:  # any error: the leases must not be extended without end
            events.emit(
                events.SettleFailed(
                    queue=self._queue,
                    verdict=name_of(type(items[0][1])),
                    topic=topic,
                    messages=len(unsettled),
                    error=str(error),
                )
            )
            raise
        finally:
            self._holdings.forget([job for job, _ in items])
        return [None] * len(items)

    def _seen_through(self, items: Sequence[Item], statuses: Sequence[Settled]) -> list[Settled]:
        """The statuses of a call that was sent again because a reply was lost.

        If the first sending had settled a job, the server knows its token no more. While no other worker can
        have taken the job over, it was this worker that settled it.
        """
        now = monotonic()
        ours = now < self._holdings.present_until
        return [
            Settled.DONE if ours and now < job.leased_until else status
            for (job, _), status in zip(items, statuses, strict=True)
        ]


def announce(
    queue: str,
    delivery: Delivery,
    verdict: Verdict,
    seconds: float | None = None,
    waited: float | None = None,
    *,
    previous: str = "",
) -> None:
    """Emit the event of a message that did not succeed.

    Args:
        queue: whose message.
        delivery: which.
        verdict: what becomes of it.
        seconds: how long its handler ran, None or 0 if it did not.
        waited: how long it was ready before that, if this is known.
        previous: the worker that held it, if a monitor took it over.
    """
    topic, id_ = delivery.topic, delivery.id
    if isinstance(verdict, Died):
        death = verdict.death
        event = events.MessageDead(
            queue=queue,
            topic=topic,
            id=id_,
            reason=death.reason,
            error=death.kind if verdict.may_quote else death.error,
            attempts=verdict.attempts,
            place=death.place,
            previous=previous,
            seconds=seconds or None,
            waited=waited,
        )
        events.emit(event, None if verdict.may_quote else verdict.raised)
    elif isinstance(verdict, Again):
        retried = events.MessageRetried(
            queue=queue,
            topic=topic,
            id=id_,
            attempt=verdict.attempt,
            max_attempts=verdict.max_attempts,
            seconds=verdict.seconds,
            delay=verdict.delay,
            error=verdict.error,
            place=verdict.place,
            waited=waited,
        )
        events.emit(retried, verdict.raised)
    elif isinstance(verdict, Later):
        put_off = events.MessagePutOff(
            queue=queue,
            topic=topic,
            id=id_,
            delay=verdict.delay,
            seconds=seconds or None,
            waited=waited,
        )
        events.emit(put_off)


def name_of(kind: Kind) -> str:
    """The name of a kind of verdict in events."""
    return kind.__name__.lower()


def _times(done: Sequence[tuple[Job, Done]]) -> str:
    """How long messages ran, and how long those waited that had never begun before."""
    ahead = done[0][0].holdings.server_time(0.0)  # the same for all: they are from one shard
    waits = [
        ahead + job.started_at - ready_at
        for job, _ in done
        if (message := job.message) is not None and (ready_at := message.first_ready_at()) is not None
    ]
    return times_text([job.took for job, _ in done], waits)


def tell_completed(queue: str, job: Job) -> None:
    """Emit the event of a completed message."""
    topic, id_, took, waited = job.delivery.topic, job.delivery.id, job.took, job.waited
    events.emit(events.MessageCompleted(queue=queue, topic=topic, id=id_, seconds=took, waited=waited))


def _tell(queue: str, items: Sequence[Item], statuses: Sequence[Settled]) -> None:
    """Emit events of completed messages, if anything listens, and of lost leases."""
    completions = events.heard(events.MessageCompleted)
    for (job, verdict), status in zip(items, statuses, strict=True):
        if status is Settled.DONE:
            if completions and type(verdict) is Done:
                tell_completed(queue, job)
        elif not job.is_settling:
            lost = job.delivery
            job.holdings.losses.append(monotonic())
            events.emit(events.LeaseLost(queue=queue, topic=lost.topic, id=lost.id, token=lost.token))


def _may_pass(error: Exception) -> bool:
    """Whether an error may pass: a full disk, a missing right, a changed password.

    A key of the wrong type stays wrong until an operator repairs it.
    """
    return isinstance(error, MxRmqError) and not isinstance(error, WrongKeyType)


def _weight(item: tuple[Any, Any]) -> int:
    return len(item[1].body)
