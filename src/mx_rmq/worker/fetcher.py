"""Fetching: claim as many messages as there is room for; wait for wake tokens when there are none."""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import suppress
from functools import partial
from math import inf
from time import monotonic
from typing import TYPE_CHECKING, Any, Final

from redis.exceptions import ResponseError

from mx_rmq import events
from mx_rmq.errors import MxRmqError, StoreError
from mx_rmq.limits import BATCH
from mx_rmq.message import turn_of
from mx_rmq.storage.contract import Claim, Delivery, Want
from mx_rmq.storage.queries import Queries
from mx_rmq.worker.holdings import Job
from mx_rmq.worker.parked import ParkedClaim
from mx_rmq.worker.service import Service
from mx_rmq.worker.wakeup import Wakeup

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mx_rmq.config import Config
    from mx_rmq.worker.holdings import Holdings
    from mx_rmq.worker.ready import ReadyJobs

_LOOKS: Final = 50
"""How often in a second many idle workers together look for messages whose token was lost."""
_LONGEST: Final = 20.0
"""Seconds for which a claim waits for a token at most, however many workers there are."""
_MOST_READ: Final = 5000
"""Leases of a topic among which a worker looks for those of a claim whose reply was lost."""
_BLIND: Final = 0.1
"""Seconds between two claims while tokens cannot be waited for."""


class Fetcher(Service):
    """Claims from one shard.

    A topic is hot if its last claim left entries behind or a wake token announced new ones. Hot topics are
    claimed from one by one, over the connection that all calls share. The other topics that have room wait
    together for a wake token, with a claim parked behind it. Every ``poll`` seconds the topics that no claim
    looked at become hot, since a token may be lost.
    """

    def __init__(self, holdings: Holdings, ready: ReadyJobs, config: Config, worker: str) -> None:
        super().__init__("fetcher", holdings.shard.availability, config.poll)
        self._worker = worker
        self._holdings = holdings
        self._store = holdings.shard.store
        self._ready = ready
        self._config = config
        self._loop = asyncio.get_running_loop()
        self._parked = ParkedClaim(holdings)
        self._wakeup = Wakeup(holdings.shard, self.alarm, config.poll)
        ready.on_room(self._offered)
        self._topic_of = {holdings.shard.keys.of_topic(topic, "wake"): topic for topic in ready.topics}
        self._wake_key = {topic: key for key, topic in self._topic_of.items()}
        self._turns = deque(ready.topics)
        """All topics, in the order in which the next parked claim serves them."""
        self._hot = dict.fromkeys(ready.topics)
        """The hot topics; the first one has waited longest."""
        self._covered: frozenset[str] = frozenset()
        """The topics of the parked claim. No other claim is made from them until it is answered."""
        self._doubtful: set[str] = set()
        """Topics whose last claim got no reply: it may have leased messages that are not in the holdings."""
        self._failure: Exception | None = None
        """Why the parked claim was not answered."""
        self._resting = False
        """Whether all that can be claimed now was claimed, and only the alarm is waited for."""
        self._pop_refused = self._told = False
        """Whether tokens could not be waited for the last time, and whether that was reported."""
        self.refused: dict[str, str] = {}
        """Topics whose last claim was refused, and why; each is reported once."""
        self.claimed_at: float | None = None
        """When a claim was last answered, by the loop's clock."""
        self._polled_at = self._loop.time()
        self._looked = dict.fromkeys(ready.topics, -inf)
        """When a claim from each topic was last answered, by the loop's clock."""

    def look_at(self, topic: str) -> None:
        """Claim from a topic in the next step, if it is served here: the caller knows that it has entries."""
        if topic in self._ready.topics:
            self._heat(topic)
            self.alarm.ring()

    async def step(self) -> float:
        """Claim once from every hot topic that has room."""
        if (now := self._loop.time()) - self._polled_at >= self._config.poll:
            self._polled_at = now
            self._heat(*(topic for topic, at in self._looked.items() if now - at > self._config.poll / 2))
        fetched = False
        for topic in list(self._hot):
            room = self._ready.room(self._ready.topics[topic])
            if room and not self.stopping:  # without room the topic keeps its place in the line
                fetched = await self._claim(topic, room) or fetched
        return 0.0 if fetched else self._config.poll

    async def wait(self, seconds: float) -> None:
        """Wait for messages, for room or for the next poll."""
        if self._covered and len(self._covered) < BATCH and self._wants():
            await self._end_parked()  # topics that have room now are not in it
        if not self._covered and not self._can_park:
            await self._wait_for_tokens(seconds)
            return
        if self._pop_refused:  # the last claim was not parked but answered at once, and so would the next be
            self._pop_refused = False
            await self.alarm.wait(min(seconds, _BLIND))
            return
        if not self._covered:
            await self._park()
        self._resting = True
        try:
            await self.alarm.wait(seconds)
        finally:
            self._resting = False
        if (failure := self._failure) is not None:
            self._failure = None
            self._ready.offer_room()  # it may have been offered here
            raise failure

    def _offered(self) -> bool:
        """Look for room in the next step; returns whether messages will be claimed then."""
        if self._resting and not self._hot and len(self._covered) == len(self._topic_of):
            return False  # the parked claim asks for every topic already
        self.alarm.ring()
        # With a doubtful topic, the step begins with reads; without a reply, others would wait for room.
        may_claim = self._resting and not self.stopping and self._failure is None and not self._doubtful
        ready = self._ready
        return may_claim and any(ready.room_to_offer(ready.topics[topic]) for topic in self._hot)

    # -- the parked claim

    @property
    def _can_park(self) -> bool:
        """Whether claims may wait on the server.

        They could not be told to end, or they would take a test's clock for what it was when they were sent.
        """
        return self._parked.may_end and self._store.now is None

    def _wants(self) -> list[Want]:
        """What a new parked claim would ask for beyond the one under way, if there is one."""
        topics = self._ready.topics
        return [
            Want(topic, room, topics[topic].handler.batch)
            for topic in self._turns
            if topic not in self._hot
            and topic not in self._covered
            and (room := self._ready.room(topics[topic])) > 0
        ][:BATCH]

    async def _park(self) -> None:
        if not (wants := self._wants()):
            return
        self._turns.rotate(-1)
        # While hot topics are waiting for room, they come first.
        runs = 1 if self._hot else self._ready.runs_to_share()
        command = self._store.claim_command(wants, runs=runs, lease=self._config.lease, holder=self._worker)
        keys = [self._wake_key[want.topic] for want in wants]
        self._covered = frozenset(want.topic for want in wants)
        try:
            longest = parked_for(self._config, self._holdings.workers)
            timed = longest > _untimed(self._config)
            await self._parked.send(keys, longest, command, partial(self._answered, wants), timed=timed)
        except BaseException:
            self._covered = frozenset()
            raise

    async def _end_parked(self) -> None:
        """Have the parked claim run now."""
        if not await self._parked.end():
            self._failure = None  # the connection was closed on purpose

    def _answered(self, wants: Sequence[Want], claimed_at: float, popped: Any, reply: Any) -> None:
        """Take the answer to the parked claim; runs while the reply is being read.

        What goes wrong here is raised in ``wait``.
        """
        self._covered = frozenset()
        topics = [want.topic for want in wants]
        self._doubtful.update(topics)
        try:
            if isinstance(reply, ResponseError):  # nothing was done; each topic's own claim tells more
                self._doubtful.difference_update(topics)
                self._heat(*topics)
                return
            if isinstance(reply, Exception):
                raise reply
            self._note_pop(wants, popped)
            claims = dict(zip(topics, self._store.read_claims(wants, reply), strict=True))
            # Those that got nothing first, so that they come first if they are hot now.
            for topic in sorted(topics, key=lambda topic: bool(claims[topic].deliveries)):
                if claims[topic].refusal:
                    self._doubtful.discard(topic)
                    if topic not in self.refused:
                        self._heat(topic)
                else:
                    self._take_in(topic, claims[topic], claimed_at + self._config.lease, parked=True)
        except Exception as error:
            self._failure = error
            self._heat(*self._doubtful)
        finally:
            self.alarm.ring()  # behind the runners, so that handlers begin before the next claim is parked

    def _note_pop(self, wants: Sequence[Want], popped: Any) -> None:
        """Report once that tokens cannot be waited for: a key has another type, or a right is missing."""
        self._pop_refused = isinstance(popped, Exception)
        if popped is None:  # all keys were waited for; a token may be found before the refused key
            self._told = False
        elif self._pop_refused and not self._told:
            self._told = True
            keys = sorted(self._wake_key[want.topic] for want in wants)
            events.emit(events.WakeFailed(queue=self._config.name, keys=keys, error=str(popped)))

    # -- without it

    async def _wait_for_tokens(self, seconds: float) -> None:
        """Wait for a token, for room or for the next poll; claims follow on their own."""
        # Tokens of hot topics are left to other workers: this one knows already that there are entries.
        cold_keys = [
            key for key, topic in self._topic_of.items() if topic not in self._hot and self._has_room(topic)
        ]
        for key in await self._wakeup.wait(cold_keys, seconds):
            topic = self._topic_of[key]
            self._heat(topic)
            if self.stopping or not self._has_room(topic):
                await self._store.wake(topic)  # for a worker that can use it

    # -- claims

    async def _claim(self, topic: str, room: int) -> bool:
        """Claim from one topic; returns whether messages were claimed or entries are left."""
        work = self._ready.topics[topic]
        try:
            if topic in self._doubtful:
                await self._give_back_unknown(topic)
            self._doubtful.add(topic)
            asked_at = self._loop.time()
            with self._ready.claiming(work, room):
                claim = await self._store.claim(topic, room, lease=self._config.lease, holder=self._worker)
        except (StoreError, ResponseError) as error:  # refused: nothing was written, other topics go on
            self._doubtful.discard(topic)
            self._hot.pop(topic)
            if topic not in self.refused:
                self.refused[topic] = str(error)
                events.emit(events.TopicFailed(queue=self._config.name, topic=topic, error=str(error)))
            return False
        self._take_in(topic, claim, asked_at + self._config.lease)
        return bool(claim.deliveries) or claim.left > 0

    def _take_in(self, topic: str, claim: Claim, leased_until: float, *, parked: bool = False) -> None:
        """Make what was claimed ready to run."""
        self._doubtful.discard(topic)
        self.refused.pop(topic, None)
        self.claimed_at = self._looked[topic] = now = monotonic()
        self._holdings.set_clock(claim.now, parked=parked)
        self._hot.pop(topic, None)
        if claim.left:
            self._heat(topic)
        if not claim.deliveries:
            return
        work = self._ready.topics[topic]
        jobs = [
            Job(delivery, self._holdings, work.handler, self._loop, now, leased_until)
            for delivery in claim.deliveries
        ]
        self._holdings.jobs.update(jobs)
        if events.heard(events.MessagesClaimed):
            events.emit(
                events.MessagesClaimed(
                    queue=self._config.name, topic=topic, messages=len(jobs), worker=self._worker
                )
            )
        self._ready.offer(work, jobs)

    async def _give_back_unknown(self, topic: str) -> None:
        """Release, in order, what a claim without a reply leased to this worker: no lease has to run out."""
        known = {(job.delivery.id, job.delivery.token) for job in self._holdings.jobs}
        queries, queue = Queries(self._store), self._config.name
        try:
            # After a failover every worker does this, and reads what all of them hold.
            if (count := await queries.lease_count(topic)) > _MOST_READ:
                error = f"{count} leases are too many to look for its own"
                events.emit(events.ClaimNotGivenBack(queue=queue, topic=topic, error=error))
                return
            tokens = {
                id_: lease.token
                for id_, lease in (await queries.leases(topic)).items()
                if lease.holder == self._worker and (id_, lease.token) not in known
            }
            bodies = await queries.bodies(list(tokens))
        except ResponseError as refused:  # no right to read leases; they run out, and claiming goes on
            events.emit(events.ClaimNotGivenBack(queue=queue, topic=topic, error=str(refused)))
            return
        unknown = [
            Delivery(id_, topic, token, body or b"", inf)
            for (id_, token), body in zip(tokens.items(), bodies, strict=True)
        ]
        unknown.sort(key=lambda each: (each.fence, turn_of(each.body, each.id)))  # leases have no order
        for start in reversed(range(0, len(unknown), BATCH)):  # last batch first: each goes to the head
            await self._store.release(topic, unknown[start : start + BATCH])
        if unknown:
            events.emit(events.ClaimGivenBack(queue=queue, topic=topic, messages=len(unknown)))

    def _has_room(self, topic: str) -> bool:
        return self._ready.room(self._ready.topics[topic]) > 0

    def _heat(self, *topics: str) -> None:
        for topic in topics:
            if topic not in self._covered:
                self._hot.setdefault(topic)

    async def close(self) -> None:
        """Stop waiting for tokens, and give back what no reply told of."""
        self._ready.not_on_room(self._offered)
        if self.stopping:
            await self._parked.end()  # what it brings is given back by the worker
        await self._parked.close()
        await self._wakeup.close()
        if self.stopping and self._holdings.shard.connection.number:
            with suppress(MxRmqError):  # their leases run out
                for topic in self._doubtful:
                    await self._give_back_unknown(topic)


def parked_for(config: Config, workers: int) -> float:
    """Seconds that a claim waits for a token: longer if there are many workers, each of which looks."""
    return max(min(config.poll, _untimed(config)), min(workers / _LOOKS, _LONGEST))


def _untimed(config: Config) -> float:
    """The longest wait of a claim whose lease counts from when it was sent: most of it must be left."""
    return config.lease / 3
