"""Opening, starting, stopping and closing a queue."""

from __future__ import annotations

import asyncio
import difflib
from asyncio import get_running_loop
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING, Any

from mx_rmq import events
from mx_rmq.checks import refusal
from mx_rmq.errors import ConfigError, MxRmqError, NoHandler, ServerUnavailable
from mx_rmq.message import describe
from mx_rmq.operating.drain import Backlog, drained
from mx_rmq.producing.producer import Producer
from mx_rmq.signals import on_signals
from mx_rmq.storage.readiness import check_servers, settle
from mx_rmq.storage.shard import Shard
from mx_rmq.storage.shards import Shards
from mx_rmq.storage.store import Store

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence

    from mx_rmq.config import Config
    from mx_rmq.storage.locate import Address
    from mx_rmq.storage.store import NewStore
    from mx_rmq.worker.handlers import Handler, Middleware
    from mx_rmq.worker.hooks import Hook
    from mx_rmq.worker.lifespan import Make
    from mx_rmq.worker.worker import Worker


@dataclass(frozen=True, slots=True)
class Opened:
    """The queue is connected."""

    shards: Shards
    producer: Producer
    checks: set[asyncio.Task[None]]
    """Checks of servers that did not answer when the queue was opened."""


@dataclass(frozen=True, slots=True)
class Idle:
    """No worker runs."""


@dataclass(frozen=True, slots=True)
class Running:
    """A worker runs."""

    worker: Worker


@dataclass(frozen=True, slots=True)
class Stopping:
    """A worker is being stopped."""

    task: asyncio.Task[None]
    worker: Worker


@dataclass(frozen=True, slots=True)
class Starting:
    """A worker is being started, after the one before it has stopped."""

    task: asyncio.Task[None]
    after: Stopping | Running | Idle


Work = Idle | Starting | Running | Stopping

_IDLE = Idle()


class _Session:
    """A queue in one event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.turn = asyncio.Lock()
        """Held while opening or closing."""
        self.opened: Opened | None = None
        self._work: Work = _IDLE
        self.failures, self.failure = 0, ""
        """How often opening failed because the server could not be reached, and why the last time."""

    @property
    def work(self) -> Work:
        """The worker's state now; a start or stop is over when its task has ended, successfully or not."""
        if isinstance(self._work, Starting) and self._work.task.done():
            self._work = self._work.after
        if isinstance(self._work, Stopping) and self._work.task.done():
            self._work = _IDLE
        return self._work

    @work.setter
    def work(self, work: Work) -> None:
        self._work = work


class Lifecycle:
    """The state of a queue, in one event loop at a time.

    Args:
        config: of the queue.
        address: of its server.
        handlers: by topic; may grow until a worker starts.
        middleware: around handlers; may grow until then too.
        on_dead: hooks; may grow at any time.
        on_retry: hooks; may grow at any time.
        lifespan: makes the context manager around a worker; None for none.
    """

    def __init__(
        self,
        config: Config,
        address: Address,
        handlers: Mapping[str, Handler[..., Any]],
        middleware: Sequence[Middleware],
        on_dead: Sequence[Hook] = (),
        on_retry: Sequence[Hook] = (),
        lifespan: Make | None = None,
    ) -> None:
        self._config = config
        self._on_dead = on_dead
        self._on_retry = on_retry
        self._lifespan = lifespan
        self._address = address
        self._handlers = handlers
        self._middleware = middleware
        self._new_store: NewStore = Store
        self._session: _Session | None = None
        self._runs = False
        self._topics: Collection[str] | None = None
        """Those that ``run`` was told to serve; None for all that have a handler."""

    # -- open and close

    async def open(self) -> Opened:
        """Connect and check the server, unless the queue is already open."""
        session = self._here()
        failures = session.failures
        async with session.turn:
            if session.opened is None:
                if failures != session.failures:  # the attempt that this caller waited for failed
                    raise ServerUnavailable(session.failure)
                try:
                    session.opened = await self._connect()
                except ServerUnavailable as error:
                    session.failures, session.failure = session.failures + 1, str(error)
                    raise
            return session.opened

    async def close(self) -> None:
        """Stop the worker if it runs, wait for messages being produced, and close every connection."""
        session = self._here()
        await self.stop()
        async with session.turn:
            opened, session.opened = session.opened, None
            if opened is not None:
                for check in opened.checks:
                    check.cancel()
                await opened.producer.close()
            await self._disconnect(opened.shards if opened else None)

    @property
    def producer(self) -> Producer | None:
        """The producer, if the queue is open in this event loop."""
        session = self._session
        if session is None or session.opened is None or session.loop is not get_running_loop():
            return None
        return session.opened.producer

    @property
    def shards(self) -> Shards:
        """The shards of the open queue.

        Raises:
            ConfigError: it is not open in this event loop.
        """
        session = self._session
        if session is None or session.opened is None or session.loop is not get_running_loop():
            raise ConfigError("the queue is not open; use 'async with queue:' or await queue.open()")
        return session.opened.shards

    @property
    def is_open(self) -> bool:
        """Whether the queue is open or opening in an event loop that runs."""
        session = self._session
        if session is None or not session.loop.is_running():
            return False
        return session.opened is not None or session.turn.locked() or not isinstance(session.work, Idle)

    @property
    def server(self) -> tuple[Config, Address, NewStore]:
        """What ``use`` was given last."""
        return self._config, self._address, self._new_store

    def use(self, config: Config, address: Address, new_store: NewStore) -> None:
        """Use another server from the next opening on; the queue must not be open."""
        self._config, self._address, self._new_store = config, address, new_store
        self._session = None

    def _here(self) -> _Session:
        """The session of the running event loop.

        If an earlier loop ended without ``close``, its connections ended with it and are not used again.
        """
        try:
            loop = get_running_loop()
        except RuntimeError:
            raise ConfigError(
                "no event loop runs here; await this in an async function, run the worker with "
                "mx_rmq.run(queue), or produce with queue.sync"
            ) from None
        session = self._session
        if session is None or session.loop is not loop:
            if session is not None and session.opened is not None and session.loop.is_running():
                raise ConfigError("the queue is open in another event loop; make one queue for each loop")
            session = self._session = _Session(loop)
        return session

    async def _connect(self) -> Opened:
        shards: Shards | None = None
        try:
            await self._enter()
            shards = Shards(self._new_shard, self._config.name, self._config.shards)
            checks: set[asyncio.Task[None]] = set()
            if self._config.shards is not None or self._config.server_check != "off":
                await settle(shards, self._config)
            if self._config.server_check != "off":
                checks = await check_servers(shards, self._config)
            return Opened(shards, Producer(self._config, shards), checks)
        except BaseException:
            await self._disconnect(shards)
            raise

    def _new_shard(self, name: str) -> Shard:
        return Shard(self._address, self._config, name, new_store=self._new_store)

    async def _enter(self) -> None:
        """Start an embedded server; it is not left running if this is cancelled."""
        entering = asyncio.ensure_future(asyncio.to_thread(self._address.enter, self))
        try:
            await asyncio.shield(entering)
        except asyncio.CancelledError:
            await asyncio.wait([entering])
            raise

    async def _disconnect(self, shards: Shards | None) -> None:
        if shards is not None:
            await shards.close()
        await asyncio.to_thread(self._address.leave, self)

    # -- start and stop

    @property
    def work(self) -> Work:
        """The worker's state now."""
        return _IDLE if self._session is None else self._session.work

    @property
    def worker(self) -> Worker | None:
        """The worker that runs or is being stopped."""
        work = self.work.after if isinstance(self.work, Starting) else self.work
        return None if isinstance(work, Idle) else work.worker

    def start(self) -> asyncio.Task[None]:
        """Start a worker unless one runs; the task ends when the worker has started."""
        chosen(self._handlers, self._topics)
        session = self._here()
        work = session.work
        if isinstance(work, Starting):
            return work.task
        task = session.loop.create_task(self._start(session, work))
        session.work = Starting(task, work)
        task.add_done_callback(self._tell_failure)
        return task

    async def _start(self, session: _Session, before: Idle | Running | Stopping) -> None:
        if isinstance(before, Stopping):
            await asyncio.wait([before.task])
        opened = await self.open()
        if not isinstance(before, Running):
            from mx_rmq.worker.lifespan import Lifespan  # imported here: a pure producer does not need it
            from mx_rmq.worker.worker import Worker

            lifespan = Lifespan(self._lifespan, self._config.name)
            await lifespan.open()
            worker = Worker(
                self._config,
                opened.shards,
                list(chosen(self._handlers, self._topics).values()),
                list(self._middleware),
                on_dead=self._on_dead,
                on_retry=self._on_retry,
                lifespan=lifespan,
            )
            session.work = Running(worker)

    async def stop(self) -> None:
        """Stop the worker if one runs; cancelling this call does not cancel the stop."""
        session = self._here()
        work = session.work
        if isinstance(work, Starting):
            work.task.cancel()
            await asyncio.wait([work.task])
            work = session.work
        if isinstance(work, Running):
            work = Stopping(session.loop.create_task(work.worker.stop()), work.worker)
            session.work = work
        if isinstance(work, Stopping):
            await asyncio.shield(work.task)

    async def run(
        self,
        close: Callable[[], Awaitable[None]],
        *,
        until_idle: bool = False,
        topics: Collection[str] | None = None,
    ) -> None:
        """Run a worker until SIGTERM or SIGINT, then *close*; a second signal stops handlers at once.

        With *until_idle*, stop also when the topics that are served here have nothing left to do now.
        """
        if self._runs:
            raise ConfigError("the queue runs already; call run() once, or start() inside an application")
        if topics is not None and not isinstance(self.work, Idle):
            raise ConfigError(
                "the worker has started already, with all topics; give run() topics before that"
            )
        self._runs = True
        self._topics = topics
        stop = asyncio.Event()

        def on_signal() -> None:
            if stop.is_set() and self.worker is not None:
                self.worker.hurry()
            stop.set()

        try:
            with on_signals(on_signal, self._config.stop_grace):
                try:
                    await self._work_until(stop, until_idle=until_idle)
                finally:
                    await close()
        finally:
            self._runs = False
            self._topics = None

    async def _work_until(self, stop: asyncio.Event, *, until_idle: bool) -> None:
        tasks: list[asyncio.Task[Any]] = [asyncio.create_task(stop.wait())]
        try:
            starting = self.start()
            starting.remove_done_callback(self._tell_failure)  # raised below
            await asyncio.wait([starting, *tasks], return_when=asyncio.FIRST_COMPLETED)
            if starting.done():
                await starting
                if until_idle:
                    tasks.append(asyncio.create_task(self.idle()))
                done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                await done.pop()
        finally:
            for task in tasks:
                task.cancel()

    # -- drain

    async def drain(self, timeout: float | None) -> None:  # noqa: ASYNC109 - the error says what is left
        """Wait until nothing is pending, running or due in the whole queue."""
        shards = (await self.open()).shards
        await drained(
            Backlog(shards),
            timeout=timeout,
            served_here=self.served,
            patience=self._config.patience,
        )

    async def idle(self) -> None:
        """Wait until the topics that are served here have nothing left to do now.

        A paused topic has nothing to do but what is already running.
        """
        shards = (await self.open()).shards
        backlog = Backlog(shards, list(chosen(self._handlers, self._topics)))
        await drained(backlog, patience=self._config.patience, unserved=inf)

    def served(self) -> Collection[str]:
        """The topics that a worker here serves, or is about to."""
        if not isinstance(self.work, Starting | Running):
            return ()
        return self._handlers.keys() if self._topics is None else self._topics

    def _tell_failure(self, starting: asyncio.Task[None]) -> None:
        """Report a failed start as an event, since it may be that no caller awaits the task."""
        if not starting.cancelled() and (error := starting.exception()) is not None:
            known = isinstance(error, MxRmqError)  # any other comes from the lifespan
            text = str(error) if known else describe(error)
            failed = events.WorkerNotStarted(queue=self._config.name, error=text)
            events.emit(failed, None if known else error)


def chosen(
    handlers: Mapping[str, Handler[..., Any]], topics: Collection[str] | None
) -> Mapping[str, Handler[..., Any]]:
    """The handlers that a worker runs: all, or those of some topics.

    Raises:
        NoHandler: there is none, or a topic has none; names the closest one.
    """
    if not handlers:
        raise NoHandler("there is no handler to run; register one with @queue.handler(topic) first")
    if topics is None:
        return handlers
    if isinstance(topics, str) or not topics:
        raise refusal("topics", "a list of at least one topic", topics)
    for topic in topics:
        if topic not in handlers:
            close = difflib.get_close_matches(topic, handlers, 1)
            hint = f"did you mean {close[0]!r}?" if close else f"there are: {', '.join(sorted(handlers))}"
            raise NoHandler(f"there is no handler for the topic {topic!r}; {hint}")
    return {topic: handlers[topic] for topic in topics}
