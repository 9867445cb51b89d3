"""Fetching: claim as many messages as there is room for; wait for wake tokens when there are none."""

from __future__ import annotations

import asyncio
from math import inf
from time import monotonic
from typing import TYPE_CHECKING

from redis.exceptions import ResponseError

from mx_rmq import events
from mx_rmq.errors import StoreError
from mx_rmq.limits import BATCH
from mx_rmq.storage.contract import Delivery
from mx_rmq.storage.queries import Queries
from mx_rmq.worker.holdings import Job
from mx_rmq.worker.service import Service
from mx_rmq.worker.wakeup import Wakeup

if TYPE_CHECKING:
    from mx_rmq.config import Config
    from mx_rmq.worker.holdings import Holdings
    from mx_rmq.worker.ready import ReadyJobs


class Fetcher(Service):
    """Claims from one shard.

    A topic is hot if its last claim left entries behind or a wake token announced new ones. Only hot
    topics are claimed from. Every ``poll`` seconds all topics become hot, since a token may be lost.
    """

    def __init__(self, holdings: Holdings, ready: ReadyJobs, config: Config, worker: str) -> None:
        super().__init__("fetcher", holdings.shard.availability, config.poll)
        self._worker = worker
        self._holdings = holdings
        self._store = holdings.shard.store
        self._ready = ready
        self._config = config
        self._loop = asyncio.get_running_loop()
        self._wakeup = Wakeup(holdings.shard, self.alarm, config.poll)
        ready.on_room(self.alarm.ring)
        self._topic_of = {holdings.shard.keys.of_topic(topic, "wake"): topic for topic in ready.topics}
        self._hot = dict.fromkeys(ready.topics)
        """The hot topics; the first one has waited longest."""
        self._doubtful: set[str] = set()
        """Topics whose last claim got no reply: it may have leased messages that are not in the holdings."""
        self.refused: dict[str, str] = {}
        """Topics whose last claim was refused, and why; each is reported once."""
        self.claimed_at: float | None = None
        """When a claim was last answered, by the loop's clock."""
        self._polled_at = self._loop.time()

    def look_at(self, topic: str) -> None:
        """Claim from a topic in the next step, if it is served here: the caller knows that it has entries."""
        if topic in self._ready.topics:
            self._heat(topic)
            self.alarm.ring()

    async def step(self) -> float:
        """Claim once from every hot topic that has room."""
        if self._loop.time() - self._polled_at >= self._config.poll:
            self._polled_at = self._loop.time()
            self._heat(*self._ready.topics)
        fetched = False
        for topic in list(self._hot):
            room = self._ready.room(self._ready.topics[topic])
            if room and not self.stopping:  # without room the topic keeps its place in the line
                fetched = await self._claim(topic, room) or fetched
        return 0.0 if fetched else self._config.poll

    async def wait(self, seconds: float) -> None:
        """Wait for a token, for room or for the next poll."""
        # Tokens of hot topics are left to other workers: this one knows already that there are entries.
        cold_keys = [
            key for key, topic in self._topic_of.items() if topic not in self._hot and self._has_room(topic)
        ]
        for key in await self._wakeup.wait(cold_keys, seconds):
            topic = self._topic_of[key]
            self._heat(topic)
            if self.stopping or not self._has_room(topic):
                await self._store.wake(topic)  # for a worker that can use it

    async def _claim(self, topic: str, room: int) -> bool:
        """Claim from one topic; returns whether messages were claimed or entries are left."""
        work = self._ready.topics[topic]
        try:
            if topic in self._doubtful:
                await self._give_back_unknown(topic)
            self._doubtful.add(topic)
            asked_at = self._loop.time()
            claim = await self._store.claim(topic, room, lease=self._config.lease, holder=self._worker)
        except (StoreError, ResponseError) as error:  # refused: nothing was written, other topics go on
            self._doubtful.discard(topic)
            self._hot.pop(topic)
            if topic not in self.refused:
                self.refused[topic] = str(error)
                events.emit(events.TopicFailed(queue=self._config.name, topic=topic, error=str(error)))
            return False
        self._doubtful.discard(topic)
        self.refused.pop(topic, None)
        self.claimed_at = monotonic()
        self._holdings.set_clock(claim.now)
        self._hot.pop(topic)
        if claim.left:
            self._heat(topic)
        until = asked_at + self._config.lease
        jobs = [
            Job(delivery, self._holdings, work.handler, self._loop, asked_at, until)
            for delivery in claim.deliveries
        ]
        self._holdings.jobs.update(jobs)
        if jobs and events.heard(events.MessagesClaimed):
            events.emit(
                events.MessagesClaimed(
                    queue=self._config.name, topic=topic, messages=len(jobs), worker=self._worker
                )
            )
        self._ready.offer(work, jobs)
        return bool(jobs) or claim.left > 0

    async def _give_back_unknown(self, topic: str) -> None:
        """Release what a claim without a reply leased to this worker, so that no lease has to run out."""
        known = {(job.delivery.id, job.delivery.token) for job in self._holdings.jobs}
        try:
            leases = await Queries(self._store).leases(topic)
        except ResponseError as error:  # no right to read leases; they run out, and claiming goes on
            queue = self._config.name
            events.emit(events.ClaimNotGivenBack(queue=queue, topic=topic, error=str(error)))
            return
        unknown = [
            Delivery(id_, topic, lease.token, b"", inf)
            for id_, lease in leases.items()
            if lease.holder == self._worker and (id_, lease.token) not in known
        ]
        for start in range(0, len(unknown), BATCH):
            await self._store.release(topic, unknown[start : start + BATCH])
        if unknown:
            queue = self._config.name
            events.emit(events.ClaimGivenBack(queue=queue, topic=topic, messages=len(unknown)))

    def _has_room(self, topic: str) -> bool:
        return self._ready.room(self._ready.topics[topic]) > 0

    def _heat(self, *topics: str) -> None:
        for topic in topics:
            self._hot.setdefault(topic)

    async def close(self) -> None:
        """Stop waiting for tokens."""
        await self._wakeup.close()
