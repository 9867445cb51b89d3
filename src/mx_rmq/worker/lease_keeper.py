"""Keeping leases: from a thread with its own connection, so that a busy event loop loses none.

The thread also stands in for a loop that hangs. Then it gives back what has not begun, and settles what has
finished; what runs keeps its lease until the timeout of its handler.
"""

from __future__ import annotations

import threading
from collections import Counter, defaultdict
from contextlib import suppress
from math import inf
from time import monotonic
from typing import TYPE_CHECKING

from mx_rmq import events
from mx_rmq.errors import ConfigError, MxRmqError, ServerUnavailable, StoreError, WrongKeyType
from mx_rmq.limits import BATCH
from mx_rmq.storage.blocking import run_blocking
from mx_rmq.storage.contract import Settled
from mx_rmq.worker.holdings import End
from mx_rmq.worker.outcome import RETURNED
from mx_rmq.worker.settler import name_of, settle
from mx_rmq.worker.surplus import give_back

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Iterable, Mapping

    from mx_rmq.config import Config
    from mx_rmq.storage.blocking import BlockingConnections
    from mx_rmq.storage.store import Store
    from mx_rmq.worker.holdings import Holdings, Job
    from mx_rmq.worker.outcome import Verdict
    from mx_rmq.worker.ready import ReadyJobs
    from mx_rmq.worker.settler import Settler

_TICK = 0.5
"""Seconds between two looks at whether the loop lives, and between two tries while the server is away."""
_HANG = 1.0
"""Seconds without a sign of life after which the loop counts as hanging."""


class LeaseKeeper:
    """Extends the leases of everything in hand, three times per lease, all topics in one write.

    Args:
        settlers: how the loop settles what the worker holds.
        ready: what has not begun.
        config: of the queue.
        loop: whose clock the jobs use, and which may hang.
    """

    def __init__(
        self,
        settlers: Mapping[Holdings, Settler],
        ready: ReadyJobs,
        config: Config,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._settlers = settlers
        self._ready = ready
        self._lease = config.lease
        # A handler without a timeout is let go with its loop, though not after a short hang.
        self._longest_hang = max(config.patience, 4 * config.lease)
        self._loop = loop
        self._pulse = _Pulse(loop)
        self._stopping = threading.Event()
        self._keepers = [_Keeper(holdings, config, self._stopping) for holdings in settlers]
        self._slow = False
        self._thread = threading.Thread(target=self._run, name="mx-rmq-leases", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self, patience: float) -> None:
        """End; returns when the thread has, or after *patience* seconds if the server does not answer."""
        self._stopping.set()
        self._thread.join(patience)

    def _run(self) -> None:
        third = self._lease / 3
        due = monotonic() + third
        wait = min(third, _TICK)
        # After a loop that ended without a stop no lease is worth keeping.
        while not self._stopping.wait(wait) and not self._loop.is_closed():
            try:
                hangs = self._pulse.hangs()
                if (began := monotonic()) >= due:
                    lasts = not hangs or began - self._pulse.silent_since < self._longest_hang
                    kept = [keeper.extend(without_timeout=lasts) for keeper in self._keepers]
                    # Counted from the beginning of the round, so that a slow one delays no other.
                    due = began + (third if all(kept) else min(third, _TICK))
                    if all(kept):
                        self._note_pace(monotonic() - began)
                if hangs:  # after the leases: where threads compute, every call here takes its time
                    self._stand_in()
            except Exception as error:
                events.emit(events.ServiceFailed(service="leases"), error)
                due = monotonic() + min(third, _TICK)
            wait = max(0.0, min(_TICK, due - monotonic()))
        for keeper in self._keepers:
            keeper.close()

    def _note_pace(self, took: float) -> None:
        """Say once that the thread hardly gets to run: it shares the interpreter with the handlers."""
        slow = took > self._lease / 3
        if slow and not self._slow:
            events.emit(events.LeasesSlow(seconds=round(took, 3), lease=self._lease))
        self._slow = slow

    def _stand_in(self) -> None:
        """Do for a loop that hangs what it cannot do."""
        silent_since = self._pulse.silent_since
        jobs = self._ready.take_back(monotonic())
        tell(self._loop, self._ready.forget_ready, len(jobs))
        for job in jobs:
            job.verdict = RETURNED
        tell(self._loop, give_back, self._settlers, jobs)  # done by the loop if it comes back first
        done: Counter[str] = Counter()
        for keeper in self._keepers:
            done += keeper.settle(jobs)
        if done:
            seconds = round(monotonic() - silent_since, 1)
            events.emit(events.LoopHangs(seconds=seconds, settled=dict(done)))


class _Pulse:
    """Whether the loop lives: it is asked for a sign, again and again."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._asked_at: float | None = None
        self.silent_since = 0.0
        """When the loop was asked for the sign that it has not given; only while it hangs."""

    def hangs(self) -> bool:
        """Whether the last sign is overdue; asks for the next one."""
        asked_at = self._asked_at
        if asked_at is None:
            self._asked_at = monotonic()
            tell(self._loop, self._beat)
            return False
        self.silent_since = asked_at
        return monotonic() - asked_at >= _HANG

    def _beat(self) -> None:
        self._asked_at = None


class _Keeper:
    """The leases of one shard, over a connection of its own."""

    def __init__(self, holdings: Holdings, config: Config, stopping: threading.Event) -> None:
        self._holdings = holdings
        self._lease = config.lease
        self._patience = config.patience
        self._stopping = stopping
        # Three tries within a lease: a connection that a router forgot must not cost it.
        timeout = min(config.socket_timeout, max(0.5, config.lease / 3))
        self._store: Store
        self._connections: BlockingConnections
        self._store, self._connections = holdings.shard.blocking_store(timeout)
        self._away = False
        self._failed: set[str] = set()
        """Topics whose leases could not be extended the last time; said once."""
        self._unsettled: dict[Job, float] = {}
        """What is to be settled, and since when this was seen."""

    def extend(self, *, without_timeout: bool) -> bool:
        """Extend once what is in hand and has not run past its handler's timeout.

        Args:
            without_timeout: whether handlers that have no timeout keep their messages too.

        Returns False if that failed for a reason that can pass.
        """
        chunks = self._chunks(without_timeout)
        if not chunks:
            return True
        # From before the call: the server's leases may end later, never sooner.
        until = monotonic() + self._lease
        rows = [(topic, [job.delivery for job in jobs]) for topic, jobs in chunks]
        try:
            answers = run_blocking(self._store.extend_together(self._connections, rows, lease=self._lease))
        except (ServerUnavailable, ConfigError) as error:
            if not self._away:
                events.emit(events.LeasesNotExtended(error=str(error)))
            self._away = True
            return False
        self._away = False
        failed: set[str] = set()
        lost: list[Job] = []
        may_pass = False
        for (topic, jobs), answer in zip(chunks, answers, strict=True):
            if isinstance(answer, StoreError):  # of one topic; the others are extended
                if topic not in self._failed:
                    events.emit(events.TopicFailed(topic=topic, error=str(answer)))
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
        """What is to be extended, by topic, and at most so many in one call."""
        now = monotonic()
        by_topic: dict[str, list[Job]] = defaultdict(list)
        unsettled: dict[Job, float] = {}
        for job in list(self._holdings.jobs):
            if job.verdict is not None:
                since = unsettled[job] = self._unsettled.get(job, now)
                if job.is_settled or now - since > self._patience:
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

    def settle(self, given_back: Iterable[Job]) -> Counter[str]:
        """Settle what the loop has not come to; how many in which way.

        Args:
            given_back: what is released among it, in the order of the claims.
        """
        groups: dict[tuple[type[Verdict], str], list[tuple[Job, Verdict]]] = defaultdict(list)
        here = [job for job in given_back if job.holdings is self._holdings]
        for job in dict.fromkeys([*here, *self._holdings.jobs]):
            verdict = job.verdict
            if verdict is not None and not job.is_settled:
                groups[type(verdict), job.delivery.topic].append((job, verdict))
        done: Counter[str] = Counter()
        for (kind, topic), items in groups.items():
            for start in reversed(range(0, len(items), BATCH)):
                some = items[start : start + BATCH]
                try:
                    # What is refused was settled by the loop just before it hung, or is another worker's.
                    run_blocking(settle(self._store, topic, some))
                except MxRmqError as error:  # tried again at the next look; the leases last for the patience
                    events.emit(
                        events.SettleDelayed(
                            verdict=name_of(kind), topic=topic, messages=len(some), error=str(error)
                        )
                    )
                    return done
                self._holdings.stood_in = True
                for job, _ in some:
                    job.is_settled = True
                done[name_of(kind)] += len(some)
                tell(some[0][0].loop, self._holdings.forget, [job for job, _ in some])
        return done

    def close(self) -> None:
        """Close the connection."""
        self._connections.close()


def tell(loop: asyncio.AbstractEventLoop, what: Callable[..., object], *args: object) -> None:
    """Have the loop call something, unless it has ended."""
    with suppress(RuntimeError):
        loop.call_soon_threadsafe(what, *args)


def _lose(jobs: list[Job]) -> None:
    """Stop the handlers of jobs that belong to another worker now; in the loop's thread."""
    for job in jobs:
        if job in job.holdings.jobs:  # else it was settled while the call was under way
            job.stop(End.LOST)
