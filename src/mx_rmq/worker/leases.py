"""Keeping leases: from a thread with its own connection, so that a busy event loop loses none.

The thread also stands in for a loop that hangs. Then it gives back what has not begun, and settles what has
finished; what runs keeps its lease until the timeout of its handler.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter, defaultdict
from contextlib import suppress
from math import inf
from time import monotonic
from typing import TYPE_CHECKING

from mx_rmq.blocking import run_blocking
from mx_rmq.errors import ConfigError, MxRmqError, ServerUnavailable, StoreError, WrongKeyType
from mx_rmq.records import Settled
from mx_rmq.store import BATCH_LIMIT
from mx_rmq.worker.job import SETTLED, End, Settlement
from mx_rmq.worker.settler import settle
from mx_rmq.worker.surplus import give_back

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Iterable

    from mx_rmq.config import Config
    from mx_rmq.shard import BlockingCommands, Shard
    from mx_rmq.store import Store
    from mx_rmq.worker.job import Job
    from mx_rmq.worker.pool import Pool

logger = logging.getLogger("mx_rmq.worker")

_TICK = 0.5
"""Seconds between two looks at whether the loop lives, and between two tries while the server is away."""
_HANG = 1.0
"""Seconds without a sign of life after which the loop counts as hanging."""


class LeaseKeeper:
    """Extends the leases of everything in hand, three times per lease, all topics in one write.

    Args:
        shards: where.
        pool: holds what has not begun.
        config: of the queue.
        loop: whose clock the jobs use, and which may hang.
    """

    def __init__(
        self,
        shards: Iterable[Shard],
        pool: Pool,
        config: Config,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._shards = list(shards)
        self._pool = pool
        self._lease = config.lease
        # A handler without a timeout is let go with its loop, though not after a short hang.
        self._longest_hang = max(config.patience, 4 * config.lease)
        self._loop = loop
        self._pulse = _Pulse(loop)
        self._stopping = threading.Event()
        self._keepers = [
            _Keeper(shard, self._lease, config.patience, self._stopping) for shard in self._shards
        ]
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
        # A loop that ended without a stop leaves nobody whose leases are worth keeping.
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
            except Exception:
                logger.exception("service.failed", extra={"service": "leases"})
                due = monotonic() + min(third, _TICK)
            wait = max(0.0, min(_TICK, due - monotonic()))
        for keeper in self._keepers:
            keeper.close()

    def _note_pace(self, took: float) -> None:
        """Say once that the thread hardly gets to run: it shares the interpreter with the handlers."""
        slow = took > self._lease / 3
        if slow and not self._slow:
            logger.warning("leases.slow", extra={"seconds": round(took, 3), "lease": self._lease})
        self._slow = slow

    def _stand_in(self) -> None:
        """Do for a loop that hangs what it cannot do."""
        silent_since = self._pulse.silent_since
        jobs = self._pool.take_back(monotonic())
        tell(self._loop, self._pool.forget_ready, len(jobs))
        for job in jobs:
            job.settlement = Settlement("release")
        tell(self._loop, give_back, self._shards, jobs)  # done by the loop if it comes back first
        done: Counter[str] = Counter()
        for keeper in self._keepers:
            done += keeper.settle(jobs)
        if done:
            seconds = round(monotonic() - silent_since, 1)
            logger.warning("loop.hangs", extra={"seconds": seconds, "settled": dict(done)})


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

    def __init__(self, shard: Shard, lease: float, patience: float, stopping: threading.Event) -> None:
        self._shard = shard
        self._lease = lease
        self._patience = patience
        self._stopping = stopping
        self._store: Store
        self._commands: BlockingCommands
        self._store, self._commands = shard.blocking_store()
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
            answers = run_blocking(self._store.extend_together(self._commands, rows, lease=self._lease))
        except (ServerUnavailable, ConfigError) as error:
            if not self._away:
                logger.warning("leases.not_extended", extra={"error": str(error)})
            self._away = True
            return False
        self._away = False
        failed: set[str] = set()
        lost: list[Job] = []
        may_pass = False
        for (topic, jobs), answer in zip(chunks, answers, strict=True):
            if isinstance(answer, StoreError):  # of one topic; the others are extended
                if topic not in self._failed:
                    logger.error("topic.failed", extra={"topic": topic, "error": str(answer)})
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
        for job in list(self._shard.held):
            if job.settlement is not None:
                since = unsettled[job] = self._unsettled.get(job, now)
                if job.settlement is SETTLED or now - since > self._patience:
                    continue
            elif job.deadline <= now or (job.deadline == inf and not without_timeout):
                continue
            by_topic[job.delivery.topic].append(job)
        self._unsettled = unsettled
        return [
            (topic, jobs[start : start + BATCH_LIMIT])
            for topic, jobs in by_topic.items()
            for start in range(0, len(jobs), BATCH_LIMIT)
        ]

    def settle(self, given_back: Iterable[Job]) -> Counter[str]:
        """Settle what the loop has not come to; how many in which way.

        Args:
            given_back: what is released among it, in the order of the claims.
        """
        groups: dict[tuple[str, str], list[tuple[Job, Settlement]]] = defaultdict(list)
        here = [job for job in given_back if job.shard is self._shard]
        for job in dict.fromkeys([*here, *self._shard.held]):
            settlement = job.settlement
            if settlement is not None and settlement is not SETTLED:
                groups[settlement.verb, job.delivery.topic].append((job, settlement))
        done: Counter[str] = Counter()
        for (verb, topic), items in groups.items():
            for start in reversed(range(0, len(items), BATCH_LIMIT)):
                some = items[start : start + BATCH_LIMIT]
                try:
                    # What is refused was settled by the loop just before it hung, or belongs to someone else.
                    run_blocking(settle(self._store, verb, topic, some))
                except MxRmqError as error:  # tried again at the next look; the leases last for the patience
                    fields = {"verb": verb, "topic": topic, "messages": len(some), "error": str(error)}
                    logger.warning("settle.failed", extra=fields)
                    return done
                self._shard.settler.stood_in = True
                for job, _ in some:
                    job.settlement = SETTLED
                done[verb] += len(some)
                tell(some[0][0].loop, self._shard.forget, [job for job, _ in some])
        return done

    def close(self) -> None:
        """Close the connection."""
        self._commands.close()


def tell(loop: asyncio.AbstractEventLoop, what: Callable[..., object], *args: object) -> None:
    """Have the loop call something, unless it has ended."""
    with suppress(RuntimeError):
        loop.call_soon_threadsafe(what, *args)


def _lose(jobs: list[Job]) -> None:
    """Stop the handlers of jobs that belong to someone else now; in the loop's thread."""
    for job in jobs:
        if job in job.shard.held:  # else it was settled while the call was under way
            job.stop(End.LOST)
