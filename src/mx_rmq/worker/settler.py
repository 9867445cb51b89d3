"""Settling: every outcome becomes one script call, many outcomes at a time."""

from __future__ import annotations

import logging
from collections import defaultdict
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from mx_rmq.batching import Batcher
from mx_rmq.errors import MxRmqError
from mx_rmq.records import Settled
from mx_rmq.resend import resend
from mx_rmq.store import BATCH_LIMIT

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Sequence

    from mx_rmq.store import Store
    from mx_rmq.worker.job import Job

logger = logging.getLogger("mx_rmq.worker")

Verb = str
Item = tuple["Job", float, bytes, bytes]
"""A job with its delay or memory in seconds, its new body and its error."""

_WITH_BODY = ("retry", "move_to_dlq")


class Settler:
    """Ends deliveries on one shard. Nobody waits for it: a lost lease is logged, not raised.

    Args:
        store: where.
        forget: called with the jobs that are settled, or given up because the server is away.
        patience: how long to try while the server is away; after that the lease runs out and the
            message is delivered again.
    """

    def __init__(self, store: Store, forget: Callable[[Iterable[Job]], None], patience: float) -> None:
        self._store = store
        self._forget = forget
        self._patience = patience
        self._batchers: dict[tuple[Verb, str], Batcher[Item, Settled]] = {}

    def complete(self, job: Job, dedup_for: float) -> None:
        """The handler succeeded."""
        self._batcher("complete", job.delivery.topic).put((job, dedup_for, b"", b""))

    def retry(self, job: Job, delay: float, body: bytes) -> None:
        """It is to be tried again."""
        self._batcher("retry", job.delivery.topic).put((job, delay, body, b""))

    def move_to_dlq(self, job: Job, body: bytes, error: bytes) -> None:
        """It is dead."""
        self._batcher("move_to_dlq", job.delivery.topic).put((job, 0.0, body, error))

    def release(self, job: Job) -> None:
        """It was stopped with its worker."""
        self._batcher("release", job.delivery.topic).put((job, 0.0, b"", b""))

    async def give_back(self, jobs: Iterable[Job]) -> None:
        """Release jobs that never started, so that each topic's first one is first again."""
        by_topic: dict[str, list[Item]] = defaultdict(list)
        for job in jobs:
            by_topic[job.delivery.topic].append((job, 0.0, b"", b""))
        for topic, items in by_topic.items():
            for start in reversed(range(0, len(items), BATCH_LIMIT)):  # each call puts its own first
                with suppress(MxRmqError):  # logged; their leases run out
                    await self._settle("release", topic, items[start : start + BATCH_LIMIT])

    async def drained(self) -> None:
        """Wait until everything is settled."""
        for batcher in list(self._batchers.values()):
            await batcher.drained()

    def give_up(self) -> None:
        """Forget what is not settled yet; those leases run out, and the messages are delivered again."""
        for (verb, topic), batcher in self._batchers.items():
            if not batcher.idle:
                batcher.cancel()
                logger.error("settle.given_up", extra={"verb": verb, "topic": topic})

    def _batcher(self, verb: Verb, topic: str) -> Batcher[Item, Settled]:
        batcher = self._batchers.get((verb, topic))
        if batcher is None:
            send = partial(self._settle, verb, topic)
            batcher = Batcher(send, weigh=_weight if verb in _WITH_BODY else None)
            self._batchers[verb, topic] = batcher
        return batcher

    async def _settle(self, verb: Verb, topic: str, items: Sequence[Item]) -> Sequence[Settled]:
        try:
            statuses = await resend(lambda: self._call(verb, topic, items), patience=self._patience)
        except Exception as error:  # whatever it is: a lease must not be kept for ever
            self._forget([item[0] for item in items])
            logger.error(
                "settle.failed",
                extra={"verb": verb, "topic": topic, "messages": len(items), "error": str(error)},
            )
            raise
        self._forget([item[0] for item in items])
        for item, status in zip(items, statuses, strict=True):
            if status is not Settled.DONE:
                lost = item[0].delivery
                fields = {"verb": verb, "topic": topic, "id": lost.id, "token": lost.token}
                logger.warning("lease.lost", extra=fields)
        return statuses

    def _call(self, verb: Verb, topic: str, items: Sequence[Item]) -> Awaitable[list[Settled]]:
        match verb:
            case "complete":
                return self._store.complete(topic, [(job.delivery, memory) for job, memory, _, _ in items])
            case "retry":
                return self._store.retry(
                    topic, [(job.delivery, delay, body) for job, delay, body, _ in items]
                )
            case "move_to_dlq":
                return self._store.move_to_dlq(
                    topic, [(job.delivery, body, error) for job, _, body, error in items]
                )
            case _:
                return self._store.release(topic, [job.delivery for job, *_ in items])


def _weight(item: Item) -> int:
    return len(item[2])
