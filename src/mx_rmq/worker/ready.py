"""Jobs that are ready, the runners that wait for them, and how many more the worker has room for."""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from sys import maxsize
from typing import TYPE_CHECKING, Any

from mx_rmq.worker.pace import Pace

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Iterator

    from mx_rmq.worker.handlers import Handler
    from mx_rmq.worker.holdings import Job

_MOST_AT_ONCE = 250
"""Messages in one claim: enough to share its cost, few enough to arrive before those held are used up."""
_SLOW = 0.25
"""Seconds for which a claim that is not answered keeps room from other shards."""
_MOMENT = 1.0
"""Seconds for which a run that begins alone waits for others to end, and others then wait for it."""
_MOST_WAKING = 4
"""Runners woken at a time; a runner that finds more work than it can do wakes others. If handlers never
wait, a few runners do all the work, and waking the others would cost more than the handlers."""


class TopicWork:
    """The ready and running jobs of one topic."""

    __slots__ = (
        "claiming",
        "handler",
        "limit",
        "lingering",
        "low_water",
        "pace",
        "queued",
        "ready",
        "ripe",
        "runs",
    )

    def __init__(self, handler: Handler[..., Any], concurrency: int, now: float) -> None:
        self.handler = handler
        self.limit = min(handler.concurrency or concurrency, concurrency)
        self.ready: deque[Job] = deque()
        self.runs = 0
        """Handler calls under way."""
        self.claiming = 0
        """Messages that claims under way may bring; each shard has its own."""
        self.queued = False
        """Whether the topic is in the line of topics that could run now."""
        self.ripe = False
        """Whether a batch has waited long enough to run though it is not full."""
        self.lingering: asyncio.TimerHandle | None = None
        self.pace = Pace(now)
        self.low_water = 0
        """More are claimed when no more than this many are ready; kept, as it is looked at for every job."""

    @property
    def runnable(self) -> bool:
        """Whether a run could start now."""
        if not self.ready or self.runs >= self.limit:
            return False
        return len(self.ready) >= self.handler.batch or self.ripe or not self.handler.linger

    @property
    def starting(self) -> int:
        """How many runs the ready jobs are about to start."""
        if not self.runnable:
            return 0
        return min(-(-len(self.ready) // self.handler.batch), self.limit - self.runs)

    def set_low_water(self) -> None:
        """Work out at how many ready jobs more are claimed; to be called when what it follows from changes.

        The prefetch is refilled when a quarter of it is used, and a batch may always be filled. What claims
        from other shards bring counts too, so that many shards do not mean many small claims; but not all
        of it, since a shard may not answer, and the others go on.
        """
        prefetch, claiming = self.pace.prefetch, self.claiming
        if self.handler.batch > 1:
            self.low_water = maxsize
        elif not claiming:
            self.low_water = 6 * prefetch // 8
        else:
            self.low_water = 5 * prefetch // 8 - min(claiming, prefetch // 2)


class ReadyJobs:
    """Hands ready jobs to idle runners, topics taking turns, each within its own concurrency."""

    def __init__(self, handlers: Iterable[Handler[..., Any]], concurrency: int, most_prefetch: int) -> None:
        self.concurrency = concurrency
        self._loop = asyncio.get_running_loop()
        now = self._loop.time()
        self.topics = {handler.topic: TopicWork(handler, concurrency, now) for handler in handlers}
        self._claimers: list[Callable[[], bool]] = []
        """What claims from each shard; the one whose turn is next comes first."""
        self._told = False
        """Whether room was offered and none has looked since."""
        self._closed = False
        self._line: deque[TopicWork] = deque()
        self._idle: list[asyncio.Future[None]] = []
        self._waking = 0
        self._ready = 0
        self._runs = 0
        self._most_prefetch = most_prefetch
        self._alone = asyncio.Lock()
        self._standing = 0
        """Runs that begin alone, or wait to."""
        self._watchers: list[tuple[Callable[[], bool], asyncio.Future[None]]] = []
        """Conditions that become true when runs end, and the future to resolve then."""

    # -- jobs

    def offer(self, topic: TopicWork, jobs: list[Job]) -> None:
        """Make jobs ready and wake runners for them."""
        topic.ready.extend(jobs)
        topic.set_low_water()
        self._ready += len(jobs)
        self._enqueue(topic)
        self._wake_some()

    def take(self) -> tuple[TopicWork, list[Job]] | None:
        """What to run next: one job, or a batch of them for a batch handler."""
        if not self._line or self._standing:
            return None
        topic = self._line.popleft()
        topic.queued = topic.ripe = False
        ready = topic.ready
        batch = topic.handler.batch
        try:
            jobs = [ready.popleft()]
        except IndexError:  # the lease keeper's thread took them back when the loop hung
            return self.take()
        if batch > 1:
            with suppress(IndexError):
                while len(jobs) < batch:
                    jobs.append(ready.popleft())
        if topic.lingering is not None:  # the jobs that are left linger for a time of their own
            topic.lingering.cancel()
            topic.lingering = None
        topic.runs += 1
        self._runs += 1
        self._ready -= len(jobs)
        if ready:
            self._enqueue(topic)
        if self._waking < _MOST_WAKING:
            self._wake_some()
        return topic, jobs

    async def some_work(self) -> None:
        """Wait until there is something to take, and at least for one turn of the event loop."""
        idle = self._loop.create_future()
        self._idle.append(idle)
        self._wake_some()
        try:
            await idle
        finally:
            if not idle.cancelled():
                self._waking -= 1

    @asynccontextmanager
    async def alone(self) -> AsyncIterator[None]:
        """Let the run that asks be the only one while it begins.

        It waits up to ``_MOMENT`` seconds for the others to end; ``_MOMENT`` seconds later others may
        begin. A message that crashes a process mostly does so at once, and many messages may have to
        begin alone.
        """
        self._standing += 1
        leaving = ExitStack()
        leaving.callback(self._wake_some)
        leaving.callback(self._stand_back)
        with leaving:
            await self._alone.acquire()
            leaving.callback(self._alone.release)
            with suppress(TimeoutError):
                await asyncio.wait_for(self._until(lambda: self._runs <= self._standing), _MOMENT)
            timer = self._loop.call_later(_MOMENT, leaving.close)
            leaving.callback(timer.cancel)
            yield

    def _stand_back(self) -> None:
        self._standing -= 1

    def finished(self, topic: TopicWork, count: int) -> None:
        """End a run that ``take`` began, of *count* jobs."""
        topic.runs -= 1
        self._runs -= 1
        topic.pace.finished += count
        if topic.ready and not topic.queued:
            self._enqueue(topic)
            self._wake_some()
        if self._watchers:
            self._tell_watchers()
        if not self._told and len(topic.ready) <= topic.low_water:
            self.offer_room()

    async def idle(self) -> None:
        """Wait until nothing runs."""
        await self._until(lambda: self._runs == 0)

    async def _until(self, condition: Callable[[], bool]) -> None:
        """Wait for a condition that becomes true when runs end."""
        if not condition():
            watcher = (condition, self._loop.create_future())
            self._watchers.append(watcher)
            try:
                await watcher[1]
            finally:
                self._watchers.remove(watcher)

    def _tell_watchers(self) -> None:
        for condition, told in self._watchers:
            if condition() and not told.done():
                told.set_result(None)

    def close(self) -> None:
        """Start no further job."""
        self._closed = True
        self._line.clear()
        for topic in self.topics.values():
            if topic.lingering is not None:
                topic.lingering.cancel()

    def drain(self) -> list[Job]:
        """Take back every job that has not started, in the order of the claims."""
        jobs = [job for topic in self.topics.values() for job in _emptied(topic)]
        self._ready = 0
        return jobs

    def take_back(self, claimed_before: float) -> list[Job]:
        """Take the ready jobs, in order, of every topic whose first one was claimed before an instant.

        A topic with ``linger`` may hold its jobs that much longer. The lease keeper's thread calls this
        too: each job is popped either here or in ``take``, never in both. The caller passes the number to
        ``forget_ready``.
        """
        jobs: list[Job] = []
        for topic in self.topics.values():
            with suppress(IndexError):  # the other thread was faster
                if topic.ready and topic.ready[0].claimed_at + topic.handler.linger < claimed_before:
                    topic.pace.prefetch = 0  # too much was held ready
                    topic.set_low_water()
                    jobs += _emptied(topic)
        return jobs

    def forget_ready(self, count: int) -> None:
        """Subtract jobs that were taken back; runs in the loop's thread."""
        self._ready -= count

    def _enqueue(self, topic: TopicWork) -> None:
        if topic.queued or self._closed:
            return
        if topic.runnable:
            topic.queued = True
            self._line.append(topic)
        elif topic.ready and topic.lingering is None and topic.handler.linger:
            topic.lingering = self._loop.call_later(topic.handler.linger, self._ripen, topic)

    def _ripen(self, topic: TopicWork) -> None:
        topic.lingering = None
        topic.ripe = bool(topic.ready)
        self._enqueue(topic)
        self._wake_some()

    def _wake_some(self) -> None:
        while self._line and self._idle and self._waking < _MOST_WAKING and not self._standing:
            idle = self._idle.pop()
            if not idle.done():
                idle.set_result(None)
                self._waking += 1

    # -- room

    def on_room(self, offer: Callable[[], bool]) -> None:
        """Call *offer* when there may be room for more; it returns whether it is about to claim."""
        self._claimers.append(offer)

    def not_on_room(self, offer: Callable[[], bool]) -> None:
        """Do not call it any more."""
        if offer in self._claimers:
            self._claimers.remove(offer)
            self.offer_room()  # it may have been about to claim

    def offer_room(self) -> None:
        """Offer room to one shard after the other, up to the first that is about to claim.

        It seldom leaves room to the others; if it does, ``claiming`` offers them the rest.
        """
        self._told = True
        for offer in self._claimers:
            if offer():
                break

    def runs_to_share(self) -> int:
        """How many runs a parked claim may bring messages for, at least one.

        Every shard has such a claim, and each may be answered first. If several are answered at once, the
        worker holds a few messages more than it can run, until runs end or the surplus is given back.
        """
        free = self.concurrency - self._runs - sum(topic.starting for topic in self.topics.values())
        return max(1, free // max(1, len(self._claimers)))

    def room(self, topic: TopicWork) -> int:
        """How many more messages of a topic to claim now; if there is more room later, it is offered."""
        self._told = False
        return self.room_to_offer(topic)

    def room_to_offer(self, topic: TopicWork) -> int:
        """How many messages of a topic there is room for.

        The ready jobs of other topics take up runs only if they are about to start. Those that wait for
        their batch to fill, or for their own topic's limit, must not make another topic wait.
        """
        topic.pace.measure(self._loop.time(), self._most_prefetch)
        topic.set_low_water()
        ready, batch = len(topic.ready), topic.handler.batch
        if ready - topic.starting > topic.low_water:
            return 0
        runs, spare = self.concurrency - self._runs, topic.pace.prefetch
        if self._ready > ready:
            unused = self._most_prefetch
            for other in self.topics.values():
                if other.ready and other is not topic:
                    runs -= other.starting
                    unused -= max(0, len(other.ready) - other.starting * other.handler.batch)
            spare = min(spare, unused)
        runs = max(0, min(runs, topic.limit - topic.runs))
        return max(0, min(runs * batch + max(0, spare) - ready - topic.claiming, _MOST_AT_ONCE))

    @contextmanager
    def claiming(self, topic: TopicWork, room: int) -> Iterator[None]:
        """Reserve room while a claim is under way; a claim from another shard may wait for it.

        After ``_SLOW`` seconds the others wait no longer: the shard may be silent. If it answers after all,
        the worker holds more than it can run, until runs end or the surplus is given back.
        """
        topic.claiming += room
        topic.set_low_water()
        reserved = [room]
        timer = None
        if len(self._claimers) > 1:
            timer = self._loop.call_later(_SLOW, self._unreserve, topic, reserved)
            if len(self.topics) > 1 or self.room_to_offer(topic):
                self.offer_room()
        try:
            yield
        finally:
            if timer is not None:
                timer.cancel()
            self._unreserve(topic, reserved)

    def _unreserve(self, topic: TopicWork, reserved: list[int]) -> None:
        if not reserved:
            return
        topic.claiming -= reserved.pop()
        topic.set_low_water()
        if len(self._claimers) > 1:
            self._claimers.append(self._claimers.pop(0))  # each is first in turn
            if len(topic.ready) - topic.starting <= topic.low_water:
                self.offer_room()


def _emptied(topic: TopicWork) -> list[Job]:
    """Take the ready jobs of a topic, one by one, since another thread may do the same."""
    jobs: list[Job] = []
    with suppress(IndexError):
        while True:
            jobs.append(topic.ready.pop())
    jobs.reverse()
    return jobs
