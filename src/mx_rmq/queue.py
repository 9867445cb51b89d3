"""``RedisMessageQueue``: the front door. It puts the parts together and decides nothing else."""

from __future__ import annotations

import asyncio
import logging
import signal
from functools import partial
from typing import TYPE_CHECKING, Any, Concatenate, TypeVar, overload

from mx_rmq.check import check_recovery, check_server
from mx_rmq.config import Config
from mx_rmq.connect import Address
from mx_rmq.drafts import DEFAULT
from mx_rmq.errors import ConfigError, NoHandler, ServerUnavailable
from mx_rmq.handlers import Handler
from mx_rmq.operations import Operations
from mx_rmq.producer import Producer
from mx_rmq.production import Production
from mx_rmq.reader import Reader
from mx_rmq.resend import resend
from mx_rmq.shard import Shard
from mx_rmq.sync import SyncProducer
from mx_rmq.worker.worker import Worker

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from mx_rmq.handlers import Middleware

logger = logging.getLogger("mx_rmq")

P = TypeVar("P")


class RedisMessageQueue(Production, Operations):
    """A queue: produce to its topics, handle what is produced.

    Args:
        url: ``redis://``, ``rediss://``, ``unix://``, ``embedded://`` (a private server in memory) or
            ``embedded:///path`` (a persistent one); by default the variable ``MX_RMQ_URL``.
        options: the fields of ``Config``: ``name``, ``concurrency``, ``lease``, …
    """

    def __init__(self, url: str | None = None, **options: Any) -> None:
        if url is not None:
            options["url"] = url
        self.config = Config.of(**options)
        self._address = Address(self.config.url)
        self._produce_middleware = []
        self.sync = SyncProducer(self.config, self._address, self._produce_middleware)
        """The same queue for code without an event loop."""
        self._handlers: dict[str, Handler[Any]] = {}
        self._middleware: list[Middleware] = []
        self._loop = None
        self._turns = asyncio.Lock()
        self._failures, self._failure = 0, ""
        """How often opening failed because the server could not be reached, and why the last time."""
        self._shards: list[Shard] = []
        self._producer = None
        self._worker: Worker | None = None
        self._starting: asyncio.Task[None] | None = None
        self._stopping: asyncio.Task[None] | None = None

    # -- handling

    @overload
    def handler(
        self,
        topic: str,
        *,
        retry: Any = None,
        timeout: float | None = ...,
        concurrency: int | None = None,
    ) -> Callable[[Callable[Concatenate[P, ...], Any]], Handler[P]]: ...

    @overload
    def handler(
        self,
        topic: str,
        *,
        batch: int,
        linger: float = 0.0,
        retry: Any = None,
        timeout: float | None = ...,
        concurrency: int | None = None,
    ) -> Callable[[Callable[Concatenate[list[P], ...], Any]], Handler[P]]: ...

    def handler(
        self,
        topic: str,
        *,
        retry: Any = None,
        timeout: Any = DEFAULT,
        concurrency: int | None = None,
        batch: int | None = None,
        linger: float = 0.0,
    ) -> Any:
        """Register a function for a topic.

        The function takes a payload, or a payload and a ``Context``; with *batch* lists of both. An
        ``async def`` runs in the event loop, a plain ``def`` in a thread.

        Args:
            topic: which; each has one handler.
            retry: a ``Retry``, when to try again; by default the queue's.
            timeout: seconds it may run, None for ever; by default the queue's.
            concurrency: how many may run at once in this process; by default the queue's.
            batch: hand over up to so many messages at once. A normal return completes all, an error
                fails all, and a returned list gives each its own outcome: None, or an error.
            linger: how many seconds to wait for a batch to fill.
        """

        def register(function: Callable[..., Any]) -> Handler[Any]:
            if topic in self._handlers:
                first = self._handlers[topic].__name__
                raise ConfigError(f"topic {topic!r} already has the handler {first}; a topic has one")
            if self._worker is not None:
                raise ConfigError(f"the worker is running; register the handler of {topic!r} before that")
            handler: Handler[Any] = Handler(
                self,
                topic,
                function,
                retry=retry,
                timeout=self.config.timeout if timeout == DEFAULT else timeout,
                concurrency=concurrency,
                batch=batch,
                linger=linger,
            )
            self._handlers[topic] = handler
            return handler

        return register

    def middleware(self, layer: Middleware) -> Middleware:
        """Put ``async def layer(call_next, payload, context)`` around every handler."""
        self._middleware.append(layer)
        return layer

    # -- running

    async def open(self) -> None:
        """Connect and check the server; done by whatever needs it first.

        Raises:
            ServerUnavailable: it could not be reached for ``patience`` seconds.
            ConfigError: the URL is wrong, or the server refuses its user or password.
            UnsafeServer: it could lose messages, and ``check`` says to refuse it.
        """
        turn, failures = self._turn(), self._failures
        async with turn:
            if self._shards:
                return
            if failures != self._failures:  # the attempt that this caller waited for failed
                raise ServerUnavailable(self._failure)
            shards: list[Shard] = []
            try:
                embedded = self.config.url.startswith("embedded:")
                revive = self._address.revive if embedded else None
                shards.append(Shard(await self._enter(), self.config, revive=revive))
                if self.config.check != "off":
                    private = self.config.url == "embedded://"
                    for shard in shards:
                        look = partial(
                            check_server,
                            Reader(shard.store),
                            mode=self.config.check,
                            private=private,
                            durability=self.config.durability,
                            replicas=self.config.replicas,
                        )
                        await resend(look, patience=self.config.patience)
                        if self.config.recovery_grace is not None:
                            recovery = partial(check_recovery, Reader(shard.store), lease=self.config.lease)
                            await resend(recovery, patience=self.config.patience)
            except BaseException as error:
                await self._close(shards)
                if isinstance(error, ServerUnavailable):
                    self._failures, self._failure = self._failures + 1, str(error)
                raise
            self._shards, self._producer = shards, Producer(self.config, shards)

    async def close(self) -> None:
        """Stop the worker if it runs, let what is being produced be stored, and close every connection.

        The queue may be used again, in the same event loop or in another.
        """
        turn = self._turn()
        await self.stop()
        async with turn:
            shards, producer = self._shards, self._producer
            self._shards, self._producer = [], None
            if producer is not None:
                await producer.close()
            await self._close(shards)
        await asyncio.to_thread(self.sync.close)

    async def _close(self, shards: list[Shard]) -> None:
        for shard in shards:
            await shard.close()
        await asyncio.to_thread(self._address.leave, self)

    async def _enter(self) -> str:
        """Where to connect to; an embedded server is not left running if this is cancelled."""
        entering = asyncio.ensure_future(asyncio.to_thread(self._address.enter, self))
        try:
            return await asyncio.shield(entering)
        except asyncio.CancelledError:
            await asyncio.wait([entering])
            raise

    def _turn(self) -> asyncio.Lock:
        """What makes opening and closing take turns.

        A loop that ended without ``close`` took its connections with it; nothing of them is used again.
        """
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            if self._shards and self._loop is not None and self._loop.is_running():
                raise ConfigError("the queue is open in another event loop; make one queue for each loop")
            self._loop, self._turns = loop, asyncio.Lock()
            self._shards, self._producer, self._worker = [], None, None
            self._starting = self._stopping = None
        return self._turns

    async def _open_producer(self) -> Producer:
        while True:
            await self.open()
            if self._producer is not None:  # else it was closed in the same moment
                return self._producer

    def start(self) -> asyncio.Task[None]:
        """Start handling inside a running application; await the result to know that it has begun."""
        if not self._handlers:
            raise NoHandler("there is no handler to run; register one with @queue.handler(topic) first")
        self._turn()
        if self._starting is None or self._starting.done():
            self._starting = asyncio.get_running_loop().create_task(self._start())
            self._starting.add_done_callback(_log_failure)
        return self._starting

    async def _start(self) -> None:
        if self._stopping is not None:
            await asyncio.wait([self._stopping])
        await self.open()
        if self._worker is None:
            self._worker = Worker(
                self.config, self._shards, list(self._handlers.values()), list(self._middleware)
            )

    async def stop(self) -> None:
        """Stop handling: claim no more, let handlers finish within the grace, give back the rest.

        Cancelling this leaves the stop under way; whoever calls it again waits for the same one. It
        takes the grace at most; while the server does not answer, five times ``socket_timeout`` more.
        """
        self._turn()
        if self._starting is not None:
            self._starting.cancel()
            await asyncio.wait([self._starting])
        if self._worker is not None and self._stopping is None:
            self._stopping = asyncio.get_running_loop().create_task(self._stop(self._worker))
        if self._stopping is not None:
            await asyncio.shield(self._stopping)

    async def _stop(self, worker: Worker) -> None:
        try:
            await worker.stop()
        finally:
            self._worker = self._stopping = None

    async def run(self) -> None:
        """Handle messages until SIGTERM or SIGINT; a second signal does not wait for handlers.

        A signal that was being ignored stays so.
        """
        loop, stop = asyncio.get_running_loop(), asyncio.Event()
        signals = [n for n in (signal.SIGTERM, signal.SIGINT) if signal.getsignal(n) is not signal.SIG_IGN]

        def on_signal() -> None:
            if stop.is_set() and self._worker is not None:
                self._worker.hurry()
            stop.set()

        for number in signals:
            loop.add_signal_handler(number, on_signal)
        stopped = loop.create_task(stop.wait())
        try:
            starting = self.start()
            await asyncio.wait([starting, stopped], return_when=asyncio.FIRST_COMPLETED)
            if starting.done():
                await starting
                await stopped
        finally:
            stopped.cancel()
            try:
                await self.close()
            finally:
                for number in signals:
                    loop.remove_signal_handler(number)

    async def __aenter__(self) -> RedisMessageQueue:
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def _opened(self) -> list[Shard]:
        if not self._shards or self._loop is not asyncio.get_running_loop():
            raise ConfigError("the queue is not open; use 'async with queue:' or await queue.open()")
        return self._shards

    def __repr__(self) -> str:
        return f"<RedisMessageQueue {self.config.name!r} at {self.config.shown_url}>"


def _log_failure(starting: asyncio.Task[None]) -> None:
    """Nobody may be waiting for a start; that it failed must be known all the same."""
    if not starting.cancelled() and (error := starting.exception()) is not None:
        logger.error("worker.not_started", extra={"error": str(error)})
