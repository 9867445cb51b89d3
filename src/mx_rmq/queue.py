"""``RedisMessageQueue``: the public class. It checks arguments and passes calls to the right package."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Never, ParamSpec, TypeVar, Unpack, cast, overload

from mx_rmq.checks import (
    check_installed,
    check_seconds,
    check_takes,
    check_topic,
    check_whole,
    refusal,
    refuse_unknown,
)
from mx_rmq.config import Config
from mx_rmq.errors import ConfigError, InvalidPayload, NotDurable
from mx_rmq.lifecycle import Lifecycle, Running
from mx_rmq.observing import logs
from mx_rmq.observing.asgi import serving
from mx_rmq.observing.probes import health_app
from mx_rmq.operating.audit import audit_all
from mx_rmq.operating.dead_letters import DeadLetters
from mx_rmq.operating.deletion import delete_queue
from mx_rmq.operating.doctor import examine
from mx_rmq.operating.health import read_health
from mx_rmq.operating.history import history, rates
from mx_rmq.operating.inspector import Inspector
from mx_rmq.operating.listing import list_messages
from mx_rmq.operating.resharding import list_shards, reshard
from mx_rmq.operating.schedule import read_schedule
from mx_rmq.operating.tail import kinds_of, tail
from mx_rmq.operating.topics import Topics, queue_names, refuse_unknown_topic, topic_names
from mx_rmq.operating.trail import note_act, read_trail
from mx_rmq.operating.vanished import read_vanished
from mx_rmq.override import Override
from mx_rmq.payloads import check_payloads, in_place
from mx_rmq.produce_options import DEFAULT
from mx_rmq.producing.middleware import ProduceLayers, around, around_many
from mx_rmq.producing.options import (
    check_options,
    checked_headers,
    messages,
    refuse_one_id,
    refuse_unknown_options,
)
from mx_rmq.producing.sync import SyncProducer
from mx_rmq.storage.locate import Address
from mx_rmq.storage.refusals import Sealed
from mx_rmq.storage.store import Store

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Callable, Collection, Iterable, Mapping
    from datetime import datetime
    from types import TracebackType

    from mx_rmq.checks import Duration
    from mx_rmq.config import Durability, QueueOptions
    from mx_rmq.events import Event
    from mx_rmq.health import Health, WorkerHealth
    from mx_rmq.message import Lane
    from mx_rmq.observing.asgi import AsgiApp
    from mx_rmq.operating.audit_report import AuditReports
    from mx_rmq.operating.doctor import Checkup
    from mx_rmq.operating.history import History, Rates
    from mx_rmq.operating.messages import Asked, MessageFacts, MessagePage
    from mx_rmq.operating.resharding import Resharding, ShardList
    from mx_rmq.operating.schedule import Schedule
    from mx_rmq.operating.tail import TailEvent
    from mx_rmq.operating.trail import Trail
    from mx_rmq.operating.vanished import Vanished
    from mx_rmq.produce_options import MessageId, ProduceManyOptions, ProduceOptions, Ttl
    from mx_rmq.producing.middleware import ProduceMiddleware
    from mx_rmq.producing.producer import Producer
    from mx_rmq.receipt import Receipt
    from mx_rmq.retry import Retry
    from mx_rmq.storage.facts import Counts, Workers
    from mx_rmq.storage.store import NewStore
    from mx_rmq.worker.handlers import BatchHandler, Handler, Middleware
    from mx_rmq.worker.hooks import DeadEvent, RetryEvent

    Receipts = list[Receipt]  # inside the class, ``list`` is a method
    Names = list[str]
    Layer = TypeVar("Layer", bound=Middleware)
    ProduceLayer = TypeVar("ProduceLayer", bound=ProduceMiddleware)
    P = ParamSpec("P")
    R = TypeVar("R")
    OnDead = TypeVar("OnDead", bound=Callable[[DeadEvent], Any])
    OnRetry = TypeVar("OnRetry", bound=Callable[[RetryEvent], Any])

_HANDLER_OPTIONS = ("retry", "timeout", "concurrency", "batch", "linger", "remember")
_HANDLERS_ELSEWHERE = {
    "max_retries": "retry=Retry(max_attempts=…)",
    "max_tries": "retry=Retry(max_attempts=…)",
    "max_attempts": "retry=Retry(max_attempts=…)",
    "retry_delay": "retry=Retry(backoff=…)",
    "time_limit": "timeout",
    "max_concurrency": "concurrency",
    "batch_size": "batch",
    "priority": "priority= of produce",
}
"""Names that other libraries use."""

logs.listen_to_all()


class RedisMessageQueue:
    """A queue: produce messages to its topics, and handle them.

    Args:
        url: ``redis://``, ``rediss://``, ``unix://``, ``redis+sentinel://h1,h2/name``,
            ``redis+cluster://h1,h2``, ``embedded://`` (a private server in memory), ``embedded:///path`` (a
            persistent one) or ``embedded+cluster://``; by default the variable ``MX_RMQ_URL``.
        config: all options in one object, in place of *url* and *options*.
        options: the fields of ``Config``: ``name``, ``concurrency``, ``lease``, …
    """

    def __init__(
        self, url: str | None = None, *, config: Config | None = None, **options: Unpack[QueueOptions]
    ) -> None:
        if isinstance(url, Config):
            raise ConfigError("url must be a string; write config=… to give a Config")
        given: dict[str, Any] = {**options} if url is None else {"url": url, **options}
        self.config: Config = Config.of(**given) if config is None else _only(config, given)
        address = Address(self.config.server)
        self._produce_layers = ProduceLayers()
        self.sync: SyncProducer = SyncProducer(self.config, address, self._produce_layers, self._fitting)
        """Produces to the same queue from code without an event loop."""
        self._handlers: dict[str, Handler[..., Any]] = {}
        self._middleware: list[Middleware] = []
        self._on_dead: list[Callable[[DeadEvent], Any]] = []
        self._on_retry: list[Callable[[RetryEvent], Any]] = []
        self._lifecycle = Lifecycle(
            self.config,
            address,
            self._handlers,
            self._middleware,
            on_dead=self._on_dead,
            on_retry=self._on_retry,
            lifespan=None if self.config.lifespan is None else partial(self.config.lifespan, self),
        )

    # -- producing

    async def produce(
        self,
        topic: str,
        payload: Any,
        *,
        priority: Lane = "normal",
        delay: Duration = 0.0,
        at: datetime | None = None,
        ttl: Ttl = DEFAULT,
        message_id: MessageId | None = None,
        headers: Mapping[str, str] | None = None,
        dedup_for: Duration = 0.0,
        remember: Duration | None = None,
        durability: Durability | None = None,
        key: MessageId | None = None,
        **_unknown: Never,
    ) -> Receipt:
        """Store a message and return its id, once the server has it.

        Args:
            topic: where to send it.
            payload: plain JSON values, a dataclass, a ``msgspec.Struct`` or a pydantic model.
            priority: ``high`` before ``normal`` before ``low``; first in, first out in each.
            delay: seconds (or a ``timedelta``, as for all durations) before it may run.
            at: a point in time, with its time zone, before which it must not run.
            ttl: its lifetime in seconds, counted from the end of the delay; an expired message goes to the
                DLQ instead of running. None for no end.
            message_id: a string, a whole number or a UUID. Makes producing idempotent: while the id is
                taken, nothing is stored and the receipt's ``duplicate`` is True. If there are several
                shards, give the same key with it each time.
            headers: strings that the handler finds in its context.
            dedup_for: seconds for which the id stays taken after the message is done.
            remember: seconds, up to 30 days, for which ``find`` and ``explain`` still tell what became of it
                after it is done or dead. The default is the handler's; 0 for not at all.
            durability: return only once it is on the server's ``disk``, or ``replicated``. The default is
                the queue's option, which is ``memory`` unless it is set.
            key: decides the shard, so that messages with one key keep their order as in a queue with one
                shard: a customer or an account, for example. By default the id decides.

        Raises:
            InvalidPayload, InvalidName, ConfigError, MessageTooLarge: an argument is invalid; nothing was
                stored.
            ServerUnavailable: the server could not be reached for ``patience`` seconds; names the shard if
                there are several. Whether the message was stored is unknown; it may be produced again with
                the same ``message_id``.
            NotOnDisk, NotReplicated: the message is stored, but its durability was not confirmed within
                ``durability_timeout`` seconds. It may be produced again with the same ``message_id``.
            UnsafeServer: the server cannot provide this durability; nothing was stored.
        """
        if _unknown:
            refuse_unknown_options(_unknown)
        if self._produce_layers.are_any and (layers := self._produce_layers.active()):
            options: ProduceOptions = {
                "priority": priority,
                "delay": delay,
                "at": at,
                "ttl": ttl,
                "message_id": message_id,
                "headers": {} if headers is None else checked_headers(headers),
                "dedup_for": dedup_for,
                "remember": remember,
                "durability": durability,
                "key": key,
            }
            return await around(layers, self._produce)(topic, payload, options)
        message = check_options(
            self.config,
            topic,
            priority=priority,
            delay=delay,
            at=at,
            ttl=ttl,
            message_id=message_id,
            headers=headers,
            dedup_for=dedup_for,
            remember=remember,
            durability=durability,
            key=key,
        ).message(self._fitting(topic, payload) if self._handlers else payload)
        producer = self._lifecycle.producer or await self._producer()
        try:
            return await producer.produce(topic, message)
        except (NotDurable, Sealed) as error:
            return await producer.after(error, topic, message)

    async def produce_many(
        self, topic: str, payloads: Iterable[Any], **options: Unpack[ProduceManyOptions]
    ) -> Receipts:
        """Store many messages in chunks; each chunk is stored whole or not at all.

        Returns one receipt per payload, in order. Options are those of ``produce``, the same for all,
        without ``message_id`` and ``dedup_for``.
        """
        check_topic(topic)
        refuse_unknown_options(options)
        refuse_one_id(options)
        layers = self._produce_layers.active()
        if not layers:
            return await self._produce_many(topic, payloads, options)
        check_options(self.config, topic, **options)
        check_payloads(payloads)
        whole = around_many(layers, self._produce_many)
        if whole is not None:
            return await whole(topic, payloads, options)
        one, receipts = around(layers, self._produce), []
        for n, payload in enumerate(payloads):
            try:
                receipts.append(await one(topic, payload, cast("ProduceOptions", {**options})))
            except InvalidPayload as error:
                raise in_place(n, error) from None
        return receipts

    def produce_middleware(self, layer: ProduceLayer) -> ProduceLayer:
        """Put ``async def layer(call_next, topic, payload, options)`` around every produce.

        This includes ``mq.sync``; there a layer cannot await anything but ``call_next``.
        """
        check_takes("produce_middleware", layer, "call_next, topic, payload, options")
        self._produce_layers.add(layer)
        return layer

    @property
    def has_produce_middleware(self) -> bool:
        """Whether produce has middleware."""
        return bool(self._produce_layers.active())

    async def _produce(self, topic: str, payload: Any, options: ProduceOptions) -> Receipt:
        """Produce without middleware; the innermost layer calls this."""
        message = check_options(self.config, topic, **options).message(self._fitting(topic, payload))
        producer = await self._producer()
        try:
            return await producer.produce(topic, message)
        except (NotDurable, Sealed) as error:
            return await producer.after(error, topic, message)

    async def _produce_many(
        self, topic: str, payloads: Iterable[Any], options: ProduceManyOptions
    ) -> Receipts:
        """Produce many without middleware."""
        checked = check_options(self.config, topic, **options)
        handler = self._handlers.get(topic)
        made = messages(checked, payloads, None if handler is None else handler.fitting)
        return await (await self._producer()).chunks.send(topic, made)

    def _fitting(self, topic: str, payload: Any) -> Any:
        """A payload that the topic's handler accepts, if that is registered here."""
        handler = self._handlers.get(topic)
        return payload if handler is None else handler.fitting(payload)

    async def _producer(self) -> Producer:
        return (await self._lifecycle.open()).producer

    # -- handling

    @overload
    def handler(
        self,
        topic: str,
        *,
        retry: Retry | None = None,
        timeout: Duration | None = ...,
        concurrency: int | None = None,
        remember: Duration | None = None,
    ) -> Callable[[Callable[P, R]], Handler[P, R]]: ...

    @overload
    def handler(
        self,
        topic: str,
        *,
        batch: int,
        linger: Duration = 0.0,
        retry: Retry | None = None,
        timeout: Duration | None = ...,
        concurrency: int | None = None,
        remember: Duration | None = None,
    ) -> Callable[[Callable[P, R]], BatchHandler[P, R]]: ...

    def handler(
        self,
        topic: str,
        *,
        retry: Retry | None = None,
        timeout: Any = DEFAULT,
        concurrency: int | None = None,
        batch: int | None = None,
        linger: Duration = 0.0,
        remember: Duration | None = None,
        **_unknown: Never,
    ) -> Any:
        """Register a function for a topic.

        The function takes a payload, or a payload and a ``Context``; with *batch*, lists of them. An
        ``async def`` runs in the event loop, a plain ``def`` in a thread.

        Args:
            topic: what to handle; a topic has one handler.
            retry: when to retry; the default is the queue's.
            timeout: seconds it may run, None for no limit; the default is the queue's.
            concurrency: how many may run at once in this process; the default is the queue's.
            batch: pass up to this many messages in one call. A normal return completes all, an error
                fails all, and a returned list gives each its own outcome: None, or an error.
            linger: how many seconds to wait for a batch to fill.
            remember: seconds, up to 30 days, for which ``find`` and ``explain`` still tell what became of a
                message after it is done or dead; ``produce`` may say otherwise.
        """
        # Imported here: a pure producer does not need it.
        from mx_rmq.worker.handlers import BatchHandler, Handler

        if not isinstance(topic, str) and callable(topic):
            raise ConfigError('@queue.handler needs a topic: write @queue.handler("orders")')
        topic = check_topic(topic)
        if _unknown:
            refuse_unknown("option of handler", _unknown, _HANDLER_OPTIONS, _HANDLERS_ELSEWHERE)

        def register(function: Callable[..., Any]) -> Handler[..., Any]:
            if isinstance(function, Handler):  # of another topic
                function = function.function
            if topic in self._handlers:
                first = self._handlers[topic].__name__
                raise ConfigError(f"topic {topic!r} already has the handler {first}; a topic has one")
            if self._lifecycle.worker is not None:
                raise ConfigError(f"the worker is running; register the handler of {topic!r} before start()")
            kind: type[Handler[..., Any]] = Handler if batch is None else BatchHandler
            handler = kind(
                self,
                topic,
                function,
                retry=self.config.retry if retry is None else retry,
                timeout=self.config.timeout if timeout == DEFAULT else timeout,
                concurrency=concurrency,
                batch=batch,
                linger=linger,
                remember=remember,
            )
            self._handlers[topic] = handler
            return handler

        return register

    def middleware(self, layer: Layer) -> Layer:
        """Put ``async def layer(call_next, payload, context)`` around every handler."""
        check_takes("middleware", layer, "call_next, payload, context")
        if self._lifecycle.worker is not None:
            raise ConfigError("the worker is running; register middleware before start()")
        self._middleware.append(layer)
        return layer

    def on_dead(self, hook: OnDead) -> OnDead:
        """Call *hook* with a ``DeadEvent`` for each message that this worker moves to the DLQ.

        An ``async def`` runs in the event loop, a plain ``def`` in a thread. The hook is called after the
        server has accepted the move. Its errors are logged and change nothing.
        """
        check_takes("on_dead", hook, "event")
        self._on_dead.append(hook)
        return hook

    def on_retry(self, hook: OnRetry) -> OnRetry:
        """Call *hook* with a ``RetryEvent`` for each failed attempt after which a message runs again."""
        check_takes("on_retry", hook, "event")
        self._on_retry.append(hook)
        return hook

    # -- running

    async def open(self) -> None:
        """Connect and check the server; ``produce`` and ``start`` do this themselves.

        Raises:
            ServerUnavailable: the server could not be reached for ``patience`` seconds.
            ConfigError: the URL is wrong, or the server refuses its user or password.
            UnsafeServer: the server is too old, or could lose messages and ``server_check`` is ``refuse``.
        """
        await self._lifecycle.open()

    async def close(self) -> None:
        """Stop the worker if it runs, wait for messages being produced, and close every connection.

        The queue may be used again, in the same event loop or in another.
        """
        await self._lifecycle.close()
        await asyncio.to_thread(self.sync.close)

    def start(self) -> asyncio.Task[None]:
        """Start a worker inside a running application; await the task to know that it has started."""
        return self._lifecycle.start()

    async def stop(self) -> None:
        """Stop the worker: claim no more, let handlers finish within ``stop_grace``, give back the rest.

        Cancelling this call does not cancel the stop; a later call waits for the same stop. It takes
        ``stop_grace`` at most, plus five times ``socket_timeout`` while the server does not answer.
        """
        await self._lifecycle.stop()

    async def run(self, *, until_idle: bool = False, topics: Collection[str] | None = None) -> None:
        """Handle messages until SIGTERM or SIGINT; a second signal stops handlers at once.

        A signal that was ignored before stays ignored. A handler that was there before, such as a web
        server's, is called too. What it raises, such as ``SystemExit``, is raised after the worker has ended.

        Args:
            until_idle: return also when nothing is pending, running or due in the topics handled here. For
                cron jobs and scripts. Messages that are delayed, retries among them, stay for the next run.
            topics: serve only these; None for all that have a handler.

        Raises:
            NoHandler: there is no handler, or one of *topics* has none.
        """
        await self._lifecycle.run(self.close, until_idle=until_idle, topics=topics)

    async def drain(self, timeout: Duration | None = None) -> None:  # noqa: ASYNC109 - the error says what is left
        """Wait until nothing is pending, running or due in the queue, wherever its workers are.

        Messages that are delayed and not due are not waited for, so retries that wait are not either.

        Raises:
            NotDrained: messages were left after *timeout* seconds. Without a timeout: for a few seconds a
                topic with pending messages was paused, or no live worker served it. Says what is left.
        """
        await self._lifecycle.drain(check_seconds("timeout", timeout, none="no limit"))

    def override(
        self,
        url: str | None = None,
        *,
        name: str | None = None,
        concurrency: int | None = None,
        new_store: NewStore = Store,
    ) -> Override:
        """Use another server inside ``with mq.override("embedded://"):``, for tests and programs.

        The queue must not be open; ``async with`` also closes it at the end of the block. With
        ``embedded://`` the block has a private server of its own, and what is in it at the end is gone.

        Args:
            url: of the other server; None stays with this one.
            name: another name of the queue.
            concurrency: another number of handlers at once.
            new_store: a replacement for the store, for test kits that record or have their own clock.
        """

        def set_config(config: Config) -> None:
            self.config = config

        changes = {"url": url, "name": name, "concurrency": concurrency}
        given = {option: value for option, value in changes.items() if value is not None}
        return Override(given, self._lifecycle, self.sync, set_config, new_store)

    async def __aenter__(self) -> RedisMessageQueue:
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    # -- operating; the queue must be open

    @property
    def dlq(self) -> DeadLetters:
        """The dead messages."""
        return DeadLetters(self._lifecycle.shards, self._handlers, self._fitting)

    async def find(self, id_: str) -> MessageFacts:
        """Where a message is, and what is known about it."""
        return await Inspector(self._lifecycle.shards).find(id_)

    async def list(
        self,
        topic: str,
        *,
        state: Asked = "pending",
        limit: int = 50,
        after: str | None = None,
        reverse: bool = False,
    ) -> MessagePage:
        """The messages of a topic that are in one state, a page at a time.

        Args:
            topic: whose messages.
            state: ``pending`` (in the order in which they will run), ``running``, ``held`` or both as
                ``processing`` (the oldest claim first), ``delayed`` (the next one due first) or ``dead`` (the
                latest death first).
            limit: the most messages on a page, up to 1,000.
            after: the ``next`` of the page before; None for the first page.
            reverse: list them in the opposite order; pass it with every page.

        With several shards, all but dead messages are listed shard by shard, in this order on each;
        ``schedule`` tells which are due next on all of them.

        A page may be short, even empty, although more follow: as long as ``next`` is not None there is more
        to look at. Messages move on between two pages.
        """
        return await list_messages(self._lifecycle.shards, topic, state, limit, after, reverse=reverse)

    async def schedule(self, *, hours: int = 24, limit: int = 50, after: str | None = None) -> Schedule:
        """What is due when: delayed messages of all topics, counted by due time, and the next of them.

        Args:
            hours: how far ahead, up to a week; it is counted in 48 steps.
            limit: the most messages to list, up to 1,000.
            after: the ``next`` of an earlier schedule, to list the messages that follow.
        """
        return await read_schedule(self._lifecycle.shards, hours=hours, limit=limit, after=after)

    async def explain(self, id_: str) -> str:
        """Why a message has not run, in one sentence."""
        return await Inspector(self._lifecycle.shards).explain(id_)

    async def counts(self) -> Counts:
        """How many messages the queue has, topic by topic."""
        return await Inspector(self._lifecycle.shards).counts()

    async def history(
        self, topic: str | None = None, *, minutes: int = 60, step: int | None = None
    ) -> History:
        """What happened in the last minutes, row by row, with the times that messages ran and waited.

        Args:
            topic: whose messages; None for those of all topics together.
            minutes: how far back, up to 72 hours; the present minute is the last one.
            step: minutes of a row, up to 60; by default 1, or 20 for more than two hours. A row begins at a
                multiple of it. Times older than two hours are known only for rows of 20, 40 or 60 minutes.

        Raises:
            UnknownTopic: nothing happened, and there is no such topic.
        """
        found = await history(await self._lifecycle.shards.now(), topic, minutes=minutes, step=step)
        if topic is not None and found.is_empty:
            await refuse_unknown_topic(self._lifecycle.shards, topic, self._handlers)
        return found

    async def rates(self) -> Rates:
        """How fast each topic goes: events a second, times, and what was completed in the last hour."""
        return await rates(await self._lifecycle.shards.now())

    async def workers(self) -> Workers:
        """The workers that have registered recently."""
        return await Inspector(self._lifecycle.shards).workers()

    # -- observing

    def tail(
        self, topic: str | None = None, *, events: Iterable[str | type[Event]] = ()
    ) -> AsyncGenerator[TailEvent, None]:
        """What happens in all workers of the queue, wherever they are: ``async for each in mq.tail():``.

        Workers publish their events while a program tails, and at no other time. A worker begins within half
        a second. It publishes at most some hundred events a second; ``events.left_out`` tells how many more
        there were. While the server is away, the iterator waits and tells so with ``server.unavailable`` and
        ``server.back``. The queue must be open.

        Args:
            topic: only events of this topic.
            events: only these: names such as ``message.dead``, their last parts such as ``dead``, or classes
                of ``mx_rmq.events``. By default all but those that tell of messages before they end.

        Raises:
            ConfigError: there is no such event.
            UnknownTopic: there is no such topic.
            StoreError: the server refuses; says which right is missing.
        """
        return tail(
            self._lifecycle.shards,
            None if topic is None else check_topic(topic),
            kinds_of(events),
            queue=self.config.name,
            server=self.config.shown_url,
            handled=self._handlers,
        )

    async def health(self) -> Health:
        """How this process is: its servers, its worker and its event loop. It never raises.

        It takes 3 s at most, while a server does not answer.
        """
        shards = None if self._lifecycle.producer is None else self._lifecycle.shards
        return await read_health(self.config.name, shards, self._worker_health())

    def health_app(self, *, worker: bool = True) -> AsgiApp:
        """An ASGI application: ``/livez`` and ``/readyz`` answer 200 or 503 and the facts of ``health()``.

        Args:
            worker: whether the process is ready only while a worker runs in it.
        """
        return health_app(self.health, worker=worker)

    def metrics_app(self, registry: Any = None) -> AsgiApp:
        """An ASGI application that answers with metrics for Prometheus; needs the extra ``metrics``.

        Events are counted from this call on. ``close()`` of the application ends that.

        Args:
            registry: of prometheus-client, whose metrics are part of the answer, such as
                ``prometheus_client.REGISTRY``.

        Raises:
            ConfigError: prometheus-client is not installed.
        """
        check_installed("prometheus_client", "metrics")
        from mx_rmq.observing.metrics import Figures, Metrics  # imported here: it needs the extra

        async def look() -> Figures:
            inspector = Inspector(self._lifecycle.shards)
            return Figures(*await asyncio.gather(inspector.counts(), inspector.workers()))

        return Metrics(self.config.name, look, self._worker_health, self._handlers.keys(), registry)

    def dashboard(
        self,
        *,
        auth: str | Callable[[Any], Any] | None = None,
        read_only: bool = False,
        redact: Iterable[str] = (),
    ) -> AsgiApp:
        """The queue in a browser, as an ASGI application: ``app.mount("/queue", mq.dashboard(auth=…))``.

        It works under any prefix, and opens the queue at the first request if it is not open. It needs the
        extra ``web``.

        Args:
            auth: a token that people log in with, of 16 characters or more; or a function of the application
                that takes the request and returns a ``WebUser``, a name, or None to refuse. It may be async,
                return a response such as a redirection, or raise. By default names and passwords are in the
                variable ``MX_RMQ_WEB_USERS`` (``anna:long-secret``); without it only this computer is
                answered.
            read_only: refuse every change, whatever *auth* says.
            redact: fields of payloads and headers that are hidden from view and from exports: names such as
                ``password``, or paths such as ``customer.mail``.

        Raises:
            ConfigError: an option is not valid, or the extra is not installed.
        """
        for package in ("starlette", "jinja2"):
            check_installed(package, "web")
        from mx_rmq.web.app import Dashboard  # imported here: it needs the extra

        return Dashboard(self, auth=auth, read_only=read_only, redact=redact)

    @asynccontextmanager
    async def serve_metrics(
        self,
        port: int,
        *,
        host: str = "0.0.0.0",  # noqa: S104 - as every exporter does: Prometheus and probes are elsewhere
        registry: Any = None,
    ) -> AsyncIterator[int]:
        """Serve ``/metrics``, ``/livez`` and ``/readyz`` over HTTP inside ``async with``; yields the port.

        For a worker without a web server. It runs in this event loop, so a blocked loop fails the probes.

        Args:
            port: where; 0 takes a free one.
            host: the address to listen at.
            registry: as for ``metrics_app``.

        Raises:
            ConfigError: the port cannot be used, or prometheus-client is not installed.
        """
        check_whole("port", port, 0, 65535)
        metrics, probes = self.metrics_app(registry), self.health_app()

        async def app(scope: Any, receive: Any, send: Any) -> None:
            is_metrics = scope["path"].rstrip("/") in ("", "/metrics")
            await (metrics if is_metrics else probes)(scope, receive, send)

        try:
            async with serving(app, host, port) as number:
                yield number
        finally:
            metrics.close()

    def _worker_health(self) -> WorkerHealth | None:
        work = self._lifecycle.work
        return work.worker.vitals.read() if isinstance(work, Running) else None

    # -- operating topics

    async def cancel(self, id_: str) -> bool:
        """Withdraw a message that has not started; False if it runs, is dead or is gone."""
        return await self._topics.cancel(id_)

    async def run_now(self, id_: str) -> bool:
        """Let a delayed message run now, also one that waits for its next attempt; False if none is delayed.

        Its priority and its lifetime stay as they are.
        """
        return await self._topics.run_now(id_)

    async def cancel_many(self, ids: Iterable[str]) -> int:
        """Withdraw those of many messages that have not started; returns how many there were."""
        return await self._topics.cancel_many(ids)

    async def pause(self, topic: str) -> None:
        """Stop the delivery of a topic everywhere; producing to it goes on.

        Messages that workers already hold still run: about as many as they finish in 30 ms. Those that
        have not begun after half a second are given back.

        Raises:
            UnknownTopic: nothing was produced to it, no live worker serves it and it has no handler here.
        """
        await self._topics.pause(topic)

    async def resume(self, topic: str) -> None:
        """Deliver a paused topic again.

        Raises:
            UnknownTopic: there is no such topic.
        """
        await self._topics.resume(topic)

    async def purge(self, topic: str, *, progress: Callable[[int], None] | None = None) -> int:
        """Withdraw all pending and delayed messages of a topic; returns how many there were.

        Args:
            topic: whose messages.
            progress: called with the number of messages withdrawn so far.

        Raises:
            UnknownTopic: there is no such topic.
        """
        return await self._topics.purge(topic, progress)

    async def delete(self) -> int:
        """Delete the queue: every message, dead letter and counter is gone; returns how many keys there were.

        It looks at all keys of the server.

        Raises:
            ConfigError: a live worker serves it.
        """
        return await delete_queue(self._lifecycle.shards)

    async def queues(self) -> Names:
        """The names of all queues on the server that were produced to or have workers."""
        return await queue_names(self._lifecycle.shards)

    async def shards(self) -> ShardList:
        """The shards of the queue and what each has; the current generation first, then those that drain."""
        return await list_shards(self._lifecycle.shards)

    async def reshard(self, shards: int, *, progress: Callable[[Resharding], None] | None = None) -> None:
        """Spread the queue over another number of shards, while producers and workers go on.

        A new generation of shards takes the new messages. The older ones take none, and are served until they
        are empty; their dead messages are moved. Messages of one key keep their order. It returns when the
        older shards are gone, which takes as long as their delayed messages are delayed.

        If it is cancelled, or a server does not answer, nothing is lost and all generations are served; call
        it again to go on. Workers must run, and must be of a version that knows generations.

        Args:
            shards: how many the queue gets.
            progress: called with a ``Resharding`` after each look at what is left.

        Raises:
            ConfigError: another program reshards the queue too, to another number.
        """
        await reshard(self._lifecycle.shards, shards, progress)

    async def topics(self) -> Names:
        """The names of the topics that were produced to, or are paused; ``counts()`` says how each stands."""
        return await topic_names(self._lifecycle.shards)

    @property
    def _topics(self) -> Topics:
        return Topics(self._lifecycle.shards, self._handlers)

    async def audit(
        self, *, repair: bool = False, progress: Callable[[int], None] | None = None
    ) -> AuditReports:
        """Check that every message is in exactly one place; returns one report per shard.

        Args:
            repair: put what is stray back where it is not lost.
            progress: called with the number of messages that have been looked at.
        """
        lease = self.config.lease
        return await audit_all(self._lifecycle.shards, repair=repair, lease=lease, progress=progress)

    async def vanished(self) -> Vanished:
        """Workers that vanished, the latest first, and how many messages each had; the last 50 are kept.

        A worker that was missed only because its leases ran out is not among them.
        """
        return await read_vanished(self._lifecycle.shards)

    async def note_act(
        self, who: str, what: str, target: str = "", *, count: int = 0, said: str = ""
    ) -> None:
        """Note in the trail what an operator did, for ``trail()``; the dashboard does so for every change.

        Args:
            who: a name.
            what: in a word or two, such as ``pause`` or ``replay``.
            target: what it was done to: a topic, the id of a message, a filter.
            count: how many messages it changed.
            said: what came of it, such as why it failed.
        """
        await note_act(self._lifecycle.shards, who, what, target, count=count, said=said)

    async def trail(self, limit: int = 100) -> Trail:
        """What operators did, the latest first; the last thousand acts are kept."""
        return await read_trail(self._lifecycle.shards, limit)

    async def doctor(self, *, audit_for: Duration = 5.0) -> Checkup:
        """Look at the server, the rights, the topics and the workers; every finding has its remedy.

        Args:
            audit_for: seconds that the audit, which reads the whole queue, may take; 0 for none.
        """
        seconds = check_seconds("audit_for", audit_for)
        return await examine(self._lifecycle.shards, self.config, audit_for=seconds)

    def __repr__(self) -> str:
        return f"<RedisMessageQueue {self.config.name!r} at {self.config.shown_url}>"


def _only(config: Config, others: Collection[str]) -> Config:
    """A whole configuration.

    Raises:
        ConfigError: options were given beside it.
    """
    if not isinstance(config, Config):
        raise refusal("config", "a Config(...)", config)
    if others:
        raise ConfigError(
            f"config holds all options, so none may stand beside it, got {', '.join(others)}; "
            "put them into Config(...), or use dataclasses.replace(config, ...)"
        )
    return config
