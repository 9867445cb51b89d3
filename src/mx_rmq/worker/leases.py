"""Keeping leases: from a thread with its own connection, so that a busy event loop loses none."""

from __future__ import annotations

import logging
import threading
from collections import defaultdict
from typing import TYPE_CHECKING

from mx_rmq.blocking import run_blocking
from mx_rmq.errors import ServerUnavailable, StoreError
from mx_rmq.records import Settled
from mx_rmq.store import BATCH_LIMIT
from mx_rmq.worker.job import End

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Iterable

    from mx_rmq.shard import Shard
    from mx_rmq.store import Store
    from mx_rmq.worker.job import Job

logger = logging.getLogger("mx_rmq.worker")


class LeaseKeeper:
    """Extends the leases of everything in hand, three times per lease, in one call per topic."""

    def __init__(self, shards: Iterable[Shard], lease: float, loop: asyncio.AbstractEventLoop) -> None:
        self._shards = list(shards)
        self._lease = lease
        self._loop = loop
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="mx-rmq-leases", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self, patience: float) -> None:
        """End; returns when the thread has, or after *patience* seconds if the server does not answer."""
        self._stopping.set()
        self._thread.join(patience)

    def _run(self) -> None:
        stores = [(shard, *shard.blocking_store()) for shard in self._shards]
        interval = self._lease / 3
        away: set[Shard] = set()
        # A loop that ended without a stop leaves nobody whose leases are worth keeping.
        while not self._stopping.wait(interval) and not self._loop.is_closed():
            interval = self._lease / 3
            for shard, store, _ in stores:
                try:
                    self.step(shard, store)
                    away.discard(shard)
                except ServerUnavailable as error:
                    if shard not in away:
                        logger.warning("leases.not_extended", extra={"error": str(error)})
                    away.add(shard)
                    interval = min(interval, 0.5)
                except Exception:
                    logger.exception("service.failed", extra={"service": "leases"})
        for _, _, commands in stores:
            commands.close()

    def step(self, shard: Shard, store: Store) -> None:
        """Extend once what is in hand and has not run past its handler's timeout."""
        now = self._loop.time()
        by_topic: dict[str, list[Job]] = defaultdict(list)
        for job in list(shard.held):
            if job.deadline > now:
                by_topic[job.delivery.topic].append(job)
        for topic, jobs in by_topic.items():
            for start in range(0, len(jobs), BATCH_LIMIT):
                try:
                    self._extend(store, topic, jobs[start : start + BATCH_LIMIT])
                except StoreError as error:  # of one topic; the others are extended
                    logger.error("topic.failed", extra={"topic": topic, "error": str(error)})

    def _extend(self, store: Store, topic: str, jobs: list[Job]) -> None:
        # From before the call: the server's may end later, never sooner.
        until = self._loop.time() + self._lease
        statuses = run_blocking(store.extend(topic, [job.delivery for job in jobs], lease=self._lease))
        for job, status in zip(jobs, statuses, strict=True):
            if status is Settled.DONE:
                job.leased_until = until
        lost = [job for job, status in zip(jobs, statuses, strict=True) if status is not Settled.DONE]
        if lost and not self._stopping.is_set():
            self._loop.call_soon_threadsafe(_lose, lost)


def _lose(jobs: list[Job]) -> None:
    """Stop the handlers of jobs that belong to someone else now; in the loop's thread."""
    for job in jobs:
        if job in job.shard.held:  # else it was settled while the call was under way
            job.stop(End.LOST)
