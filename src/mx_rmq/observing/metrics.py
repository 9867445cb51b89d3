"""Metrics for Prometheus: counters from events, gauges read from the server when they are asked for.

Imported only where metrics are used, since it needs prometheus-client.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from itertools import accumulate
from threading import Lock
from typing import TYPE_CHECKING, Any, Final, NamedTuple, get_args

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from mx_rmq import events
from mx_rmq.errors import MxRmqError
from mx_rmq.message import Reason, describe
from mx_rmq.observing.asgi import AsgiApp
from mx_rmq.version import __version__

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator

    from prometheus_client.metrics_core import Metric

    from mx_rmq.health import WorkerHealth
    from mx_rmq.observing.asgi import Answer
    from mx_rmq.storage.facts import Counts, Workers

_PATIENCE: Final = 3.0
"""Seconds that the server has to answer; a scrape itself has ten by default."""
_SECONDS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
_BY_TOPIC: Final = ("queue", "topic")
_OUTCOMES: Final = ("claimed", "completed", "retried", "put_off", "dead", "recovered")
"""What a worker does; a producer adds ``produced`` and ``duplicate``."""


class Figures(NamedTuple):
    """What one look at the server found."""

    counts: Counts
    workers: Workers


class Metrics(AsgiApp):
    """An ASGI application that answers with the metrics of one queue.

    Args:
        queue: the queue's name.
        look: reads the queue.
        worker: returns how the worker of this process is; None if there is none.
        topics: those that have a handler here; may grow. Their counters are there from the start, as 0:
            Prometheus sees no increase in a counter that appears as 1.
        registry: other metrics to answer with, such as the program's own.
    """

    def __init__(
        self,
        queue: str,
        look: Callable[[], Awaitable[Figures]],
        worker: Callable[[], WorkerHealth | None],
        topics: Collection[str] = (),
        registry: Collector | None = None,
    ) -> None:
        super().__init__(self._page)
        self._queue = queue
        self._look = look
        self._worker = worker
        self._topics = topics
        self._registry = registry
        self._looking: asyncio.Task[Figures] | None = None
        self._failing = False
        self._lock = Lock()
        self._messages = _Counter(
            "mx_rmq_messages", "What happened to messages in this process, by outcome", *_BY_TOPIC, "outcome"
        )
        self._dead = _Counter(
            "mx_rmq_dead", "Messages that this process moved to the DLQ, by reason", *_BY_TOPIC, "reason"
        )
        self._lost = _Counter(
            "mx_rmq_lease_losses",
            "Messages that another worker took over while they were in this process",
            *_BY_TOPIC,
        )
        self._reconnects = _Counter(
            "mx_rmq_reconnects", "Connections to the server that were lost and reopened", "queue"
        )
        self._vanished = _Counter(
            "mx_rmq_workers_vanished", "Other workers that this process found to be gone", "queue"
        )
        self._ran = _Histogram(
            "mx_rmq_handler_seconds", "How long handlers ran, whether they succeeded or not", _SECONDS
        )
        self._waited = _Histogram(
            "mx_rmq_waiting_seconds",
            "How long messages were ready before their first attempt began",
            (*_SECONDS, 1800.0, 3600.0),
        )
        self._counted: tuple[_Counter | _Histogram, ...] = (
            *(self._messages, self._dead, self._lost, self._reconnects, self._vanished),
            *(self._ran, self._waited),
        )
        for alone in (self._reconnects, self._vanished):
            alone.touch(queue)
        self._hear: dict[type[events.Event], Callable[[Any], None]] = {
            events.MessagesProduced: self._on_produced,
            events.MessagesClaimed: lambda event: self._count(event, "claimed", event.messages),
            events.MessageCompleted: lambda event: self._on_run(event, "completed"),
            events.MessageRetried: lambda event: self._on_run(event, "retried"),
            events.MessagePutOff: lambda event: self._on_run(event, "put_off"),
            events.MessageDead: self._on_dead,
            events.MessagesRecovered: lambda event: self._count(event, "recovered", event.messages),
            events.LeaseLost: lambda event: self._lost.add(1, queue, event.topic),
            events.ServerReconnected: lambda _: self._reconnects.add(1, queue),
            events.WorkerVanished: lambda _: self._vanished.add(1, queue),
        }
        self._end = events.listen(self._on_event, *self._hear)

    def close(self) -> None:
        """Count no further events."""
        self._end()

    # -- events, in any thread

    def _on_event(self, event: events.Event, _: BaseException | None) -> None:
        if event.queue == self._queue:
            with self._lock:
                self._hear[type(event)](event)

    def _on_produced(self, event: events.MessagesProduced) -> None:
        self._count(event, "produced", event.messages)
        if event.duplicates:
            self._count(event, "duplicate", event.duplicates)

    def _on_run(self, event: Any, outcome: str) -> None:
        queue, topic = event.queue, event.topic
        self._messages.add(1, queue, topic, outcome)
        if event.seconds is not None:
            self._ran.observe(event.seconds, queue, topic)
        if event.waited is not None:
            self._waited.observe(event.waited, queue, topic)

    def _on_dead(self, event: events.MessageDead) -> None:
        self._on_run(event, "dead")
        self._dead.add(1, event.queue, event.topic, event.reason)

    def _count(self, event: Any, outcome: str, messages: int) -> None:
        self._messages.add(messages, event.queue, event.topic, outcome)

    def _prepare(self) -> None:
        """Make the counters of the topics that are handled here."""
        for topic in self._topics:
            for outcome in _OUTCOMES:
                self._messages.touch(self._queue, topic, outcome)
            for reason in get_args(Reason):
                self._dead.touch(self._queue, topic, reason)
            for metric in (self._lost, self._ran, self._waited):
                metric.touch(self._queue, topic)

    # -- a scrape

    async def _page(self, _path: str, accept: str) -> Answer:
        figures = await self._figures()
        encode, content_type = choose_encoder(accept)
        return 200, content_type, encode(_Collected(self._families(figures)))

    async def _figures(self) -> Figures | None:
        """What the queue holds, None if the server does not tell in time; scrapes share a look."""
        if self._looking is None or self._looking.done():
            self._looking = asyncio.ensure_future(self._look())
            # A scrape that gave up does not ask how it ended; without this, asyncio would log that.
            self._looking.add_done_callback(lambda look: look.cancelled() or look.exception())
        looking = self._looking
        problem = f"no answer for {_PATIENCE:g} s"
        await asyncio.wait([looking], timeout=_PATIENCE)
        if looking.done() and not looking.cancelled():
            error = looking.exception()
            if error is None:
                self._failing = False
                return looking.result()
            problem = str(error) if isinstance(error, MxRmqError) else describe(error)
        if not self._failing:
            self._failing = True
            events.emit(events.MetricsNotRead(queue=self._queue, error=problem))
        return None

    def _families(self, figures: Figures | None) -> Iterator[Metric]:
        with self._lock:
            self._prepare()
            counted = [metric.family() for metric in self._counted]
        yield from counted
        yield from self._process_gauges()
        up = GaugeMetricFamily(
            "mx_rmq_up", "1 if the server told what the queue holds, else 0", labels=["queue"]
        )
        up.add_metric([self._queue], 0 if figures is None else 1)
        yield up
        if figures is not None:
            yield from self._queue_gauges(figures)
        if self._registry is not None:
            yield from self._registry.collect()

    def _process_gauges(self) -> Iterator[Metric]:
        info = GaugeMetricFamily("mx_rmq_build_info", "The version of mx-rmq; always 1", labels=["version"])
        info.add_metric([__version__], 1)
        yield info
        worker = self._worker()
        if worker is None:
            return
        claims = [shard.last_claim for shard in worker.shards if shard.last_claim is not None]
        for name, help_, value in (
            (
                "event_loop_lag_seconds",
                "The longest the worker's event loop was late recently",
                worker.loop_lag,
            ),
            (
                "last_claim_age_seconds",
                "Seconds since a claim of the worker was answered",
                max(claims, default=None),
            ),
            (
                "worker_problems",
                "What is wrong with the worker of this process, see health()",
                len(worker.problems),
            ),
        ):
            if value is not None:
                yield self._of_queue(name, help_, value)

    def _queue_gauges(self, figures: Figures) -> Iterator[Metric]:
        counts, workers = figures
        serving: dict[str, int] = dict.fromkeys(counts.topics, 0)
        for worker in workers:
            for topic in worker.topics:
                serving[topic] = serving.get(topic, 0) + 1
        now, topics = counts.read_at, counts.topics.items()
        oldest = {
            topic: 0.0 if each.oldest_at is None else max(0.0, now - each.oldest_at) for topic, each in topics
        }
        for name, help_, values in (
            ("pending", "Messages ready to run", {topic: each.pending for topic, each in topics}),
            ("processing", "Messages that workers have", {topic: each.processing for topic, each in topics}),
            ("delayed", "Messages that are not due", {topic: each.delayed for topic, each in topics}),
            ("dead_letters", "Messages in the DLQ", {topic: each.in_dlq for topic, each in topics}),
            ("oldest_pending_seconds", "Age of the next pending message", oldest),
            (
                "paused",
                "1 if the topic is paused, else 0",
                {topic: int(each.paused) for topic, each in topics},
            ),
            ("topic_workers", "Live workers that serve the topic", serving),
        ):
            family = GaugeMetricFamily(f"mx_rmq_{name}", help_, labels=_BY_TOPIC)
            for topic, value in values.items():
                family.add_metric([self._queue, topic], value)
            yield family
        yield self._of_queue("workers", "Live workers of the queue", len(workers))
        missing = max(len(counts.missing), len(workers.missing))
        yield self._of_queue("shards_missing", "Shards that did not answer, which the gauges lack", missing)

    def _of_queue(self, name: str, help_: str, value: float) -> GaugeMetricFamily:
        family = GaugeMetricFamily(f"mx_rmq_{name}", help_, labels=["queue"])
        family.add_metric([self._queue], value)
        return family


# The counters of prometheus-client take a lock each, and a few µs for each message.


class _Counter:
    """A counter, by its labels; the caller holds a lock."""

    def __init__(self, name: str, help_: str, *labels: str) -> None:
        self._name, self._help, self._labels = name, help_, labels
        self._values: dict[tuple[str, ...], int] = {}

    def add(self, number: int, *labels: str) -> None:
        """Count so many more."""
        values = self._values
        values[labels] = values.get(labels, 0) + number

    def touch(self, *labels: str) -> None:
        """Let it be there, as 0 if nothing was counted yet."""
        self._values.setdefault(labels, 0)

    def family(self) -> Metric:
        """As a page has it."""
        family = CounterMetricFamily(self._name, self._help, labels=self._labels)
        for labels, value in self._values.items():
            family.add_metric(labels, value)
        return family


class _Histogram:
    """Durations of a topic in buckets; the caller holds a lock."""

    def __init__(self, name: str, help_: str, bounds: tuple[float, ...]) -> None:
        self._name, self._help, self._bounds = name, help_, bounds
        self._names = [*map(str, bounds), "+Inf"]
        self._buckets: dict[tuple[str, ...], list[int]] = {}
        self._sums: dict[tuple[str, ...], float] = {}

    def observe(self, seconds: float, *labels: str) -> None:
        """Note a duration."""
        if labels not in self._buckets:
            self.touch(*labels)
        self._buckets[labels][bisect_left(self._bounds, seconds)] += 1
        self._sums[labels] += seconds

    def touch(self, *labels: str) -> None:
        """Let it be there, empty if nothing was noted yet."""
        self._buckets.setdefault(labels, [0] * len(self._names))
        self._sums.setdefault(labels, 0.0)

    def family(self) -> Metric:
        """As a page has it."""
        family = HistogramMetricFamily(self._name, self._help, labels=_BY_TOPIC)
        for labels, counts in self._buckets.items():
            buckets = list(zip(self._names, accumulate(counts), strict=True))
            family.add_metric(labels, buckets, self._sums[labels])
        return family


class _Collected(Collector):
    """Families that are already collected, as the encoders want them."""

    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families
