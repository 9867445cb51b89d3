"""Extends leases from a thread with its own connection, so that a busy event loop loses none.

The thread also stands in for an event loop that hangs: it gives back jobs that have not begun, and settles
jobs that have finished. A running job keeps its lease until the timeout of its handler; then it has timed
out. The worker stays registered.
"""

from __future__ import annotations

import threading
from collections import Counter, defaultdict, deque
from contextlib import suppress
from math import inf
from time import monotonic
from typing import TYPE_CHECKING

from mx_rmq import events
from mx_rmq.errors import ConfigError, MxRmqError, ServerUnavailable, StoreError, WrongKeyType
from mx_rmq.limits import BATCH
from mx_rmq.message import decode_message
from mx_rmq.storage.blocking import run_blocking
from mx_rmq.storage.contract import Settled
from mx_rmq.worker import outcome
from mx_rmq.worker.holdings import End
from mx_rmq.worker.outcome import RETURNED, Done, Run
from mx_rmq.worker.presence import REGISTER
from mx_rmq.worker.settler import announce, name_of, settle, tell_completed
from mx_rmq.worker.surplus import give_back

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Iterable, Mapping

    from mx_rmq.config import Config
    from mx_rmq.storage.blocking import BlockingConnections
    from mx_rmq.storage.queries import ClientIdentity
    from mx_rmq.storage.store import Store
    from mx_rmq.worker.holdings import Holdings, Job
    from mx_rmq.worker.hooks import Hooks
    from mx_rmq.worker.outcome import Verdict
    from mx_rmq.worker.presence import Presence
    from mx_rmq.worker.pulse import Pulse
    from mx_rmq.worker.ready import ReadyJobs
    from mx_rmq.worker.settler import Settler

_TICK = 0.5
"""Seconds between two checks of the loop, and between two attempts while the server is unreachable."""


class LeaseKeeper:
    """Extends the leases of all held jobs three times per lease, all topics in one write.

    Calls block, so each shard has a thread of its own: one that does not answer holds up no other. With one
    shard, one thread does everything.

    Args:
        settlers: what the worker holds, and how the loop settles it.
        ready: the jobs that have not begun.
        pulse: whether the loop responds.
        config: of the queue.
        loop: the event loop; the jobs use its clock.
    """

    def __init__(
        self,
        settlers: Mapping[Holdings, Settler],
        ready: ReadyJobs,
        pulse: Pulse,
        config: Config,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._settlers = settlers
        self._ready = ready
        self._config = config
        self._queue = config.name
        self._loop = loop
        self._pulse = pulse
        self._stopping = threading.Event()
        self._keepers: dict[Holdings, _Keeper] = {}
        self._thread = threading.Thread(target=self._run, name="mx-rmq-leases", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def add(self, holdings: Holdings, presence: Presence) -> None:
        """Keep the leases of a shard."""
        hooks = self._settlers[holdings].hooks
        keeper = _Keeper(holdings, hooks, presence, self._config, self._stopping, self._pulse, self._loop)
        self._keepers = {**self._keepers, holdings: keeper}  # replaced, since the thread reads it
        if len(self._keepers) > 1:
            for each in self._keepers.values():
                each.run_apart()

    def remove(self, holdings: Holdings) -> None:
        """Keep the leases of a shard no longer; nothing is held there."""
        keepers = dict(self._keepers)
        keepers.pop(holdings).end()
        self._keepers = keepers

    def stop(self, patience: float) -> None:
        """End the threads; waits for them at most *patience* seconds, if a server does not answer."""
        self._stopping.set()
        for keeper in self._keepers.values():
            keeper.end()
        until = monotonic() + patience
        for thread in [self._thread, *(keeper.thread for keeper in self._keepers.values())]:
            if thread is not None:
                thread.join(max(0.0, until - monotonic()))

    def _run(self) -> None:
        wait = self._config.lease / 3
        # If the loop was closed without a stop, no lease is worth extending.
        while not self._stopping.wait(min(wait, _TICK)) and not self._loop.is_closed():
            wait = _TICK
            try:
                hangs = self._pulse.hangs()
                # Here, unless each has a thread. Leases first: while other threads compute, calls are slow.
                alone = [keeper for keeper in self._keepers.values() if keeper.thread is None]
                for keeper in alone:
                    keeper.extend_if_due()
                if hangs:
                    self._take_back()
                for keeper in self._keepers.values():
                    keeper.loop_hangs = hangs
                for keeper in alone:
                    wait = keeper.turn()
            except Exception as error:
                events.emit(events.ServiceFailed(queue=self._queue, service="leases"), error)
        for keeper in self._keepers.values():
            if keeper.thread is None:
                keeper.close()

    def _take_back(self) -> None:
        """Take the jobs that have not begun from a loop that hangs; the keepers give them back."""
        jobs = self._ready.take_back(monotonic())
        tell(self._loop, self._ready.forget_ready, len(jobs))
        for job in jobs:
            job.verdict = RETURNED
        for holdings, keeper in self._keepers.items():
            keeper.taken_back.extend(job for job in jobs if job.holdings is holdings)
        tell(self._loop, give_back, self._settlers, jobs)  # done by the loop if it recovers first


class _Keeper:
    """Extends the leases on one shard, over its own connection."""

    def __init__(
        self,
        holdings: Holdings,
        hooks: Hooks,
        presence: Presence,
        config: Config,
        stopping: threading.Event,
        pulse: Pulse,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._holdings = holdings
        self._hooks = hooks
        self._presence = presence
        self._present_at = -inf
        self._present_by: ClientIdentity | None = None
        """The connections by which others see the worker while the loop hangs."""
        self._queue = config.name
        self._lease = config.lease
        self._patience = config.patience
        # In a loop that hangs longer than this, the lease of a handler without a timeout is not extended.
        self._longest_hang = max(config.patience, 4 * config.lease)
        self._stopping = stopping
        self._ending = threading.Event()
        self._pulse = pulse
        self._loop = loop
        # Three attempts within a lease: a connection that a router dropped must not cost the lease.
        timeout = min(config.socket_timeout, max(0.5, config.lease / 3))
        self._store: Store
        self._connections: BlockingConnections
        self._store, self._connections = holdings.shard.blocking_store(timeout)
        self._away = False
        self._slow = False
        self._failed: set[str] = set()
        """Topics whose leases could not be extended the last time; each is reported once."""
        self._unsettled: dict[Job, float] = {}
        """Jobs that have a verdict, and when this was first seen."""
        self._refused: set[Job] = set()
        """Jobs that the server did not let this thread settle."""
        self._delayed: set[tuple[type[Verdict], str] | None] = set()
        """What could not be settled the last time, None for anything at all; each is reported once."""
        self._due = monotonic() + self._lease / 3
        self._busy = threading.Lock()
        self.loop_hangs = False
        self.taken_back: deque[Job] = deque()
        """Jobs to release, in the order of the claims, because the loop hangs."""
        self.thread: threading.Thread | None = None
        """Its own thread; None while the lease keeper's does its work."""

    def run_apart(self) -> None:
        """Work in a thread of its own from now on."""
        if self.thread is None:
            name = f"mx-rmq-leases-{self._holdings.shard.name}"
            self.thread = threading.Thread(target=self._run, name=name, daemon=True)
            self.thread.start()

    def end(self) -> None:
        """End the thread."""
        self._ending.set()

    def _run(self) -> None:
        wait = min(self._lease / 3, _TICK)
        while not self._ending.wait(wait) and not self._loop.is_closed():
            wait = self.turn()
        self.close()

    def turn(self) -> float:
        """Do what there is to do now; returns how many seconds to wait before the next turn."""
        with self._busy:  # the lease keeper's thread may be in its last turn here
            try:
                self._extend_if_due()
                if self.loop_hangs:
                    self._stand_in()
                else:
                    self._delayed.clear()
                    self._refused.clear()
                    self._present_at, self._present_by = -inf, None  # the loop registers others
            except Exception as error:
                events.emit(events.ServiceFailed(queue=self._queue, service="leases"), error)
                self._due = monotonic() + min(self._lease / 3, _TICK)
        return max(0.0, min(_TICK, self._due - monotonic()))

    def extend_if_due(self) -> None:
        """Extend the leases, if a third of the lease has passed."""
        with self._busy:
            self._extend_if_due()

    def _extend_if_due(self) -> None:
        if (began := monotonic()) >= self._due:
            third = self._lease / 3
            lasts = not self.loop_hangs or began - self._pulse.beat_at < self._longest_hang
            kept = self.extend(without_timeout=lasts)
            # Counted from the beginning of the round, so that a slow round does not delay the next.
            self._due = began + (third if kept else min(third, _TICK))
            if kept:
                self._note_pace(monotonic() - began)

    def _note_pace(self, took: float) -> None:
        """Report once that this thread gets too little time: it shares the interpreter with the handlers."""
        slow = took > self._lease / 3
        if slow and not self._slow:
            slow_for = round(took, 3)
            events.emit(events.LeasesSlow(queue=self._queue, seconds=slow_for, lease=self._lease))
        self._slow = slow

    def _stand_in(self) -> None:
        """Give back and settle jobs in place of a loop that hangs."""
        silent_since = self._pulse.beat_at
        jobs = list(self.taken_back)
        self.time_out()
        done = self.settle(jobs)
        for _ in jobs:
            self.taken_back.popleft()
        self.stay_present()
        if done:
            seconds = round(monotonic() - silent_since, 1)
            events.emit(events.LoopHangs(queue=self._queue, seconds=seconds, settled=dict(done)))

    def extend(self, *, without_timeout: bool) -> bool:
        """Extend the held jobs once, except those that ran past their handler's timeout.

        Args:
            without_timeout: whether to extend for handlers that have no timeout too.

        Returns False if that failed for a reason that may pass.
        """
        chunks = self._chunks(without_timeout)
        if not chunks:
            return True
        # Taken before the call: the server's leases may end later, never sooner.
        until = monotonic() + self._lease
        rows = [(topic, [job.delivery for job in jobs]) for topic, jobs in chunks]
        try:
            answers = run_blocking(self._store.extend_together(self._connections, rows, lease=self._lease))
        except (ServerUnavailable, ConfigError) as error:
            if not self._away:
                events.emit(events.LeasesNotExtended(queue=self._queue, error=str(error)))
            self._away = True
            return False
        self._away = False
        failed: set[str] = set()
        lost: list[Job] = []
        may_pass = False
        for (topic, jobs), answer in zip(chunks, answers, strict=True):
            if isinstance(answer, StoreError):  # concerns one topic; the others are extended
                if topic not in self._failed:
                    events.emit(events.TopicFailed(queue=self._queue, topic=topic, error=str(answer)))
                failed.add(topic)
                may_pass = may_pass or not isinstance(answer, WrongKeyType)
                continue
            for job, status in zip(jobs, answer, strict=True):
                if status is Settled.DONE:
                    job.leased_until = until
                else:
                    lost.append(job)
        self._failed = failed
        if lost and not self._stopping.is_set():
            tell(lost[0].loop, _lose, lost)
        return not may_pass

    def _chunks(self, without_timeout: bool) -> list[tuple[str, list[Job]]]:
        """The jobs to extend, by topic, at most ``BATCH`` in one call."""
        now = monotonic()
        by_topic: dict[str, list[Job]] = defaultdict(list)
        unsettled: dict[Job, float] = {}
        for job in list(self._holdings.jobs):
            if job.verdict is not None:
                since = unsettled[job] = self._unsettled.get(job, now)
                if job.is_settled or job in self._refused or now - since > self._patience:
                    continue
            elif job.deadline <= now or (job.deadline == inf and not without_timeout):
                continue
            by_topic[job.delivery.topic].append(job)
        self._unsettled = unsettled
        return [
            (topic, jobs[start : start + BATCH])
            for topic, jobs in by_topic.items()
            for start in range(0, len(jobs), BATCH)
        ]

    def time_out(self) -> None:
        """Judge handlers that run past their deadline: the loop, which would stop them, hangs."""
        now = monotonic()
        for job in list(self._holdings.jobs):
            if job.verdict is not None or job.end not in (None, End.TIMEOUT) or not job.is_overdue(now):
                continue
            run = Run(self._holdings.server_time(job.started_at), self._presence.worker, now - job.started_at)
            # Decoded anew, because the handler reads its own copy.
            delivery = job.delivery
            message = decode_message(delivery.body, delivery.id, delivery.topic)
            if message.remember_for is None:
                message.remember_for = job.handler.remember
            job.verdict = verdict = outcome.timed_out(message, run, job.handler.retry)
            job.end_call()  # in a thread it is ended now
            tell(job.loop, job.stop, End.TIMEOUT)  # in the loop, if that recovers
            announce(self._queue, delivery, verdict, run.took, job.waited)

    def stay_present(self) -> None:
        """Register the worker, which the loop cannot do; others must not take it for vanished."""
        due = (now := monotonic()) - self._present_at >= REGISTER
        for _ in range(2):  # again over a new connection if this one was cut
            with suppress(MxRmqError):  # tried again at the next tick
                self._present_by = run_blocking(self._presence.stay(self._store, self._present_by, due=due))
                self._present_at = now if due else self._present_at
                return

    def settle(self, given_back: Iterable[Job]) -> Counter[str]:
        """Settle jobs with a verdict that the loop has not settled; returns how many by kind of verdict.

        Args:
            given_back: those of them to release, in the order of the claims.
        """
        groups: dict[tuple[type[Verdict], str], list[tuple[Job, Verdict]]] = defaultdict(list)
        self._refused &= self._holdings.jobs
        for job in dict.fromkeys([*given_back, *self._holdings.jobs]):
            verdict = job.verdict
            if verdict is not None and not job.is_settled and job not in self._refused:
                groups[type(verdict), job.delivery.topic].append((job, verdict))
        done: Counter[str] = Counter()
        for (kind, topic), items in groups.items():
            try:
                for start in reversed(range(0, len(items), BATCH)):
                    done[name_of(kind)] += self._settle(topic, items[start : start + BATCH])
            except StoreError as error:  # concerns one topic; the others are settled
                self._delay(kind, topic, len(items), error)
            except MxRmqError as error:  # tried again at the next tick; leases last for ``patience``
                self._delay(kind, topic, len(items), error, everywhere=True)
                break
            else:
                self._delayed -= {(kind, topic), None}
        return +done

    def _settle(self, topic: str, items: list[tuple[Job, Verdict]]) -> int:
        """Settle jobs with the same kind of verdict; returns how many the server accepted.

        A refused one was settled by the loop just before it hung, or is another worker's now. The loop knows
        which, and says so when it recovers. If the reply to an earlier attempt was lost, it cannot know.
        """
        tried = {job for job, _ in items if job.is_settling}
        for job, _ in items:
            job.is_settling = True
        statuses = run_blocking(settle(self._store, topic, items))
        self._holdings.stood_in = True
        over: list[Job] = []
        accepted: list[tuple[Job, Verdict]] = []
        for (job, verdict), status in zip(items, statuses, strict=True):
            if status is Settled.DONE:
                accepted.append((job, verdict))
            if status is Settled.DONE or job in tried:
                job.is_settled = True
                over.append(job)
            else:
                job.is_settling = False
                self._refused.add(job)
        loop = items[0][0].loop
        tell(loop, self._holdings.forget, over)
        if accepted:
            tell(loop, self._hooks.accepted, accepted, [Settled.DONE] * len(accepted))
            _tell_completed(self._queue, accepted)
        return len(accepted)

    def _delay(
        self, kind: type[Verdict], topic: str, count: int, error: MxRmqError, *, everywhere: bool = False
    ) -> None:
        """Report once that jobs are not settled yet; *everywhere* if that concerns all topics."""
        what = None if everywhere else (kind, topic)
        if what not in self._delayed:
            self._delayed.add(what)
            events.emit(
                events.SettleDelayed(
                    queue=self._queue, verdict=name_of(kind), topic=topic, messages=count, error=str(error)
                )
            )

    def close(self) -> None:
        """Close the connection."""
        self._connections.close()


def tell(loop: asyncio.AbstractEventLoop, what: Callable[..., object], *args: object) -> None:
    """Have the loop call something, unless the loop is closed."""
    with suppress(RuntimeError):
        loop.call_soon_threadsafe(what, *args)


def _tell_completed(queue: str, items: Iterable[tuple[Job, Verdict]]) -> None:
    """Emit the events of messages that were completed, if anything listens."""
    if events.heard(events.MessageCompleted):
        for job, verdict in items:
            if isinstance(verdict, Done):
                tell_completed(queue, job)


def _lose(jobs: list[Job]) -> None:
    """Stop the handlers of jobs that belong to another worker now; runs in the loop's thread."""
    for job in jobs:
        if job in job.holdings.jobs:  # else it was settled while the call was under way
            job.stop(End.LOST)
