"""Fetching: as many messages as there is room for, and a nap on the wake tokens when there are none."""

from __future__ import annotations

import asyncio
import logging
from math import inf
from typing import TYPE_CHECKING

from redis.exceptions import ResponseError

from mx_rmq.errors import StoreError
from mx_rmq.reader import Reader
from mx_rmq.records import Delivery
from mx_rmq.store import BATCH_LIMIT
from mx_rmq.worker.job import Job
from mx_rmq.worker.service import Service
from mx_rmq.worker.wakeup import Wakeup

if TYPE_CHECKING:
    from mx_rmq.config import Config
    from mx_rmq.shard import Shard
    from mx_rmq.worker.pool import Pool


logger = logging.getLogger("mx_rmq.worker")


class Fetcher(Service):
    """Claims from one shard for the pool.

    A topic is hot while its last claim left entries behind or a token told of new ones. Only hot
    topics are claimed from; every ``poll`` seconds all are, since a token may be lost.
    """

    def __init__(self, shard: Shard, pool: Pool, config: Config, worker: str) -> None:
        super().__init__("fetcher")
        self._worker = worker
        self._shard = shard
        self._pool = pool
        self._config = config
        self._loop = asyncio.get_running_loop()
        self._wakeup = Wakeup(shard, self.nudge, config.poll)
        pool.on_room(self.nudge.give)
        self._topic_of = {shard.keys.of_topic(topic, "wake"): topic for topic in pool.topics}
        self._hot = dict.fromkeys(pool.topics)
        """The hot topics; the first one has waited longest."""
        self._doubtful: set[str] = set()
        """Topics whose last claim got no reply: it may have leased messages nobody knows of."""
        self._failed: set[str] = set()
        """Topics whose last claim was refused; said once."""
        self._polled_at = self._loop.time()

    def look_at(self, topic: str) -> None:
        """Claim from a topic at the next opportunity, if it is served here: it has entries."""
        if topic in self._pool.topics:
            self._heat(topic)
            self.nudge.give()

    async def step(self) -> None:
        """Claim once from every hot topic that has room, or wait."""
        if self._loop.time() - self._polled_at >= self._config.poll:
            self._polled_at = self._loop.time()
            self._heat(*self._pool.topics)
        fetched = False
        for topic in list(self._hot):
            room = self._pool.room(self._pool.topics[topic])
            if room and not self.stopping:  # without room it keeps its place in the line
                fetched = await self._claim(topic, room) or fetched
        if not fetched and not self.stopping:
            await self._wait()

    async def _claim(self, topic: str, room: int) -> bool:
        """Claim from one topic; whether there was any entry, be it only a hint."""
        work = self._pool.topics[topic]
        try:
            if topic in self._doubtful:
                await self._give_back_unknown(topic)
            self._doubtful.add(topic)
            asked_at = self._loop.time()
            claim = await self._shard.store.claim(topic, room, lease=self._config.lease, holder=self._worker)
        except (StoreError, ResponseError) as error:  # refused: nothing was written, other topics go on
            self._doubtful.discard(topic)
            self._hot.pop(topic)
            if topic not in self._failed:
                self._failed.add(topic)
                logger.error("topic.failed", extra={"topic": topic, "error": str(error)})
            return False
        self._doubtful.discard(topic)
        self._failed.discard(topic)
        self._shard.set_clock(claim.now)
        self._hot.pop(topic)
        if claim.left:
            self._heat(topic)
        until = asked_at + self._config.lease
        jobs = [
            Job(delivery, self._shard, work.handler, self._loop, asked_at, until)
            for delivery in claim.deliveries
        ]
        self._shard.held.update(jobs)
        self._pool.offer(work, jobs)
        return bool(jobs) or claim.left > 0

    async def _give_back_unknown(self, topic: str) -> None:
        """Release what is leased to this worker without its knowledge, rather than let the leases run out."""
        known = {(job.delivery.id, job.delivery.token) for job in self._shard.held}
        unknown = []
        try:
            leases = await Reader(self._shard.store).leases(topic)
        except ResponseError as error:  # no right to read them; they run out, and claiming goes on
            logger.warning("claim.not_given_back", extra={"topic": topic, "error": str(error)})
            return
        for id_, lease in leases.items():
            token, _, _, holder, *_ = [*lease.split(), "", "", "", ""]
            if holder == self._worker and (id_, token) not in known:
                unknown.append(Delivery(id_, topic, token, b"", inf))
        for start in range(0, len(unknown), BATCH_LIMIT):
            await self._shard.store.release(topic, unknown[start : start + BATCH_LIMIT])
        if unknown:
            logger.info("claim.given_back", extra={"topic": topic, "messages": len(unknown)})

    async def _wait(self) -> None:
        """Wait for a token, for room or for the next poll."""
        # Of a hot topic no token is taken: it is known to have entries, and others may want to know.
        cold_keys = [
            key for key, topic in self._topic_of.items() if topic not in self._hot and self._has_room(topic)
        ]
        for key in await self._wakeup.wait(cold_keys, self._config.poll):
            topic = self._topic_of[key]
            self._heat(topic)
            if self.stopping or not self._has_room(topic):
                await self._shard.store.wake(topic)  # for a worker that can use it

    def _has_room(self, topic: str) -> bool:
        return self._pool.room(self._pool.topics[topic]) > 0

    def _heat(self, *topics: str) -> None:
        for topic in topics:
            self._hot.setdefault(topic)

    async def close(self) -> None:
        """Give up waiting for tokens."""
        await self._wakeup.close()
