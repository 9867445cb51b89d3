"""Settling: every outcome becomes one script call, many outcomes at a time."""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from mx_rmq.batching import Batcher
from mx_rmq.errors import MxRmqError, WrongKeyType
from mx_rmq.records import Settled
from mx_rmq.resend import resend
from mx_rmq.store import BATCH_LIMIT
from mx_rmq.worker.job import SETTLED, Settlement

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable, Sequence
    from typing import Any

    from mx_rmq.store import Store
    from mx_rmq.worker.job import Job

logger = logging.getLogger("mx_rmq.worker")

Item = tuple["Job", Settlement]

_COMPLETE = Settlement("complete")
_RELEASE = Settlement("release")
_WITH_BODY = ("retry", "move_to_dlq")


class Settler:
    """Ends deliveries on one shard. Nobody waits for it: a lost lease is logged, not raised.

    Args:
        store: where.
        forget: called with the jobs that are settled, or given up because the server is away.
        patience: how long to try while the server is away or refuses; after that the lease runs out and
            the message is delivered again.
    """

    def __init__(self, store: Store, forget: Callable[[Iterable[Job]], None], patience: float) -> None:
        self._store = store
        self._forget = forget
        self._patience = patience
        self._batchers: dict[tuple[str, str], Batcher[Item, None]] = {}
        self._giving_back: set[asyncio.Task[None]] = set()
        self.stood_in = False
        """Whether the lease keeper's thread has ever settled something for this."""

    def complete(self, job: Job, dedup_for: float) -> None:
        """The handler succeeded."""
        self._put(job, Settlement("complete", dedup_for) if dedup_for else _COMPLETE)

    def retry(self, job: Job, delay: float, body: bytes) -> None:
        """It is to be tried again."""
        self._put(job, Settlement("retry", delay, body))

    def move_to_dlq(self, job: Job, body: bytes, error: bytes) -> None:
        """It is dead."""
        self._put(job, Settlement("move_to_dlq", 0.0, body, error))

    def release(self, job: Job) -> None:
        """It goes back to the head of its lane."""
        self._put(job, _RELEASE)

    def give_back(self, jobs: Iterable[Job]) -> None:
        """Release jobs that never started, so that each topic's first one is first again."""
        by_topic: dict[str, list[Item]] = defaultdict(list)
        for job in jobs:
            if job.settlement is None:  # else the thread has begun with it
                job.settlement = _RELEASE
            by_topic[job.delivery.topic].append((job, _RELEASE))
        for topic, items in by_topic.items():
            task = asyncio.create_task(self._give_back(topic, items))
            self._giving_back.add(task)
            task.add_done_callback(self._giving_back.discard)

    async def _give_back(self, topic: str, items: list[Item]) -> None:
        for start in reversed(range(0, len(items), BATCH_LIMIT)):  # each call puts its own first
            with suppress(MxRmqError):  # logged; their leases run out
                await self._settle("release", topic, items[start : start + BATCH_LIMIT])

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
        for (verb, topic), batcher in self._batchers.items():
            if not batcher.idle:
                batcher.cancel()
                logger.error("settle.given_up", extra={"verb": verb, "topic": topic})

    def _put(self, job: Job, settlement: Settlement) -> None:
        job.settlement = settlement
        verb, topic = settlement.verb, job.delivery.topic
        batcher = self._batchers.get((verb, topic))
        if batcher is None:
            send = partial(self._settle, verb, topic)
            batcher = Batcher(send, weigh=_weight if verb in _WITH_BODY else None)
            self._batchers[verb, topic] = batcher
        batcher.put((job, settlement))

    async def _settle(self, verb: str, topic: str, items: Sequence[Item]) -> list[None]:
        open_items = items
        if self.stood_in:
            open_items = [item for item in items if item[0].settlement is not SETTLED]
        if not open_items:
            self._forget([job for job, _ in items])
            return [None] * len(items)
        try:
            statuses = await resend(
                lambda: settle(self._store, verb, topic, open_items),
                patience=self._patience,
                passes=_may_pass,
            )
        except Exception as error:  # whatever it is: a lease must not be kept for ever
            logger.error(
                "settle.failed",
                extra={"verb": verb, "topic": topic, "messages": len(open_items), "error": str(error)},
            )
            raise
        finally:
            self._forget([job for job, _ in items])
        for (job, _), status in zip(open_items, statuses, strict=True):
            if status is not Settled.DONE and job.settlement is not SETTLED:
                lost = job.delivery
                fields = {"verb": verb, "topic": topic, "id": lost.id, "token": lost.token}
                logger.warning("lease.lost", extra=fields)
        return [None] * len(items)


def settle(store: Store, verb: str, topic: str, items: Iterable[Item]) -> Coroutine[Any, Any, list[Settled]]:
    """Tell the server how deliveries end, all in the same way."""
    match verb:
        case "complete":
            return store.complete(topic, [(job.delivery, how.seconds) for job, how in items])
        case "retry":
            return store.retry(topic, [(job.delivery, how.seconds, how.body) for job, how in items])
        case "move_to_dlq":
            return store.move_to_dlq(topic, [(job.delivery, how.body, how.error) for job, how in items])
        case _:
            return store.release(topic, [job.delivery for job, _ in items])


def _may_pass(error: Exception) -> bool:
    """Whether a refusal can end by itself: a full disk, a lacking right, a password that was changed.

    A key of the wrong type stays so until someone repairs it.
    """
    return isinstance(error, MxRmqError) and not isinstance(error, WrongKeyType)


def _weight(item: Item) -> int:
    return len(item[1].body)
