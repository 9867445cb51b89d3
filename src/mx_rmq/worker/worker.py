"""A worker: runners and services put together, started and stopped in order."""

from __future__ import annotations

import asyncio
import os
import socket
import time
from contextlib import AsyncExitStack
from functools import partial
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from mx_rmq import events
from mx_rmq.errors import MxRmqError, NoHandler
from mx_rmq.version import __version__
from mx_rmq.worker.fetcher import Fetcher
from mx_rmq.worker.holdings import End, Holdings
from mx_rmq.worker.hooks import Hooks
from mx_rmq.worker.lease_keeper import LeaseKeeper
from mx_rmq.worker.monitor import Monitor
from mx_rmq.worker.presence import Presence
from mx_rmq.worker.pulse import Pulse
from mx_rmq.worker.ready import ReadyJobs
from mx_rmq.worker.runner import Runner
from mx_rmq.worker.scheduler import Scheduler
from mx_rmq.worker.settler import Settler
from mx_rmq.worker.sharing import Sharing
from mx_rmq.worker.surplus import Surplus, give_back
from mx_rmq.worker.threads import Threads
from mx_rmq.worker.timeouts import Timeouts
from mx_rmq.worker.vitals import Vitals

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence

    from mx_rmq.config import Config
    from mx_rmq.storage.shard import Shard
    from mx_rmq.worker.handlers import Handler, Middleware
    from mx_rmq.worker.hooks import Hook
    from mx_rmq.worker.lifespan import Lifespan
    from mx_rmq.worker.service import Service

_LAST_WORDS = 1.0
"""Seconds that a handler may take to end after it is told to stop."""


_LONGEST_HOST = 100


class Worker:
    """Runs the handlers of a queue in this process.

    Args:
        config: of the queue.
        shards: where its messages are.
        handlers: what to run.
        middleware: around every handler.
        on_dead: hooks for messages that die.
        on_retry: hooks for messages that are retried.
        lifespan: is open already; the worker closes it when it stops.
    """

    def __init__(
        self,
        config: Config,
        shards: Sequence[Shard],
        handlers: Sequence[Handler[..., Any]],
        middleware: Sequence[Middleware],
        *,
        on_dead: Sequence[Hook],
        on_retry: Sequence[Hook],
        lifespan: Lifespan,
    ) -> None:
        if not handlers:
            raise NoHandler("there is no handler to run; register one with @queue.handler(topic) first")
        self._config = config
        # Made here, because forked processes share the configuration and a lease must name one holder.
        # Long, so that a lease has more than 64 bytes: the server keeps shorter ones, up to a few hundred,
        # in one packed list, and searches it from its start for each.
        self.name = f"{config.worker_name}.{os.getpid()}.{uuid4().hex[:22]}"
        # A third of the lease, so that a timeout is settled before the lease has run out.
        self._threads = Threads(patience=min(config.lease / 3, 5.0))
        self._hooks = Hooks(on_dead, on_retry, self._threads, config.name)
        self._lifespan = lifespan
        self._holdings = [Holdings(shard, lifespan.state) for shard in shards]
        self._settlers = {each: Settler(each, config.patience, self._hooks) for each in self._holdings}
        self._ready = ReadyJobs(handlers, config.concurrency, config.prefetch)
        self._over = False
        runner = Runner(
            self._ready, self._settlers, self._threads, config, self.name, middleware, self._ending
        )
        self._runners = [asyncio.create_task(runner.run()) for _ in range(config.concurrency)]
        self._fetchers = [Fetcher(each, self._ready, config, self.name) for each in self._holdings]
        self._schedulers = [Scheduler(shard) for shard in shards]
        loop = asyncio.get_running_loop()
        pulse = Pulse(self._holdings, loop, config.name)
        services: dict[Holdings, list[Service]] = {}
        self.vitals = Vitals(self.name, config, services, pulse)
        facts, retries = self._facts(handlers), {handler.topic: handler.retry for handler in handlers}
        self._sharing = Sharing(shards[0], self.name)
        presences = {
            each: Presence(
                each,
                config,
                self.name,
                facts,
                partial(self.vitals.said, each),
                self._sharing.look if each is self._holdings[0] else None,
            )
            for each in self._holdings
        }
        self._monitors = [
            Monitor(each, config, presences[each], self._hooks, retries, on_recovered=fetcher.look_at)
            for each, fetcher in zip(self._holdings, self._fetchers, strict=True)
        ]
        for each, *parts in zip(
            self._holdings, self._fetchers, self._schedulers, self._monitors, strict=True
        ):
            services[each] = parts
        self._timeouts = Timeouts(self._holdings, [handler.timeout for handler in handlers], pulse, loop)
        self._surplus = Surplus(self._settlers, self._ready, loop)
        self._leases = LeaseKeeper(self._settlers, presences, self._ready, pulse, config, loop)
        self._hurry = asyncio.Event()
        self._leases.start()
        runs: dict[Service, Coroutine[Any, Any, None]] = {
            service: service.run() for service in [*self._monitors, *self._schedulers]
        }
        for fetcher, monitor in zip(self._fetchers, self._monitors, strict=True):
            runs[fetcher] = _fetch(fetcher, monitor)
        self._tasks = {
            service: asyncio.create_task(run, name=f"mx-rmq-{service.name}") for service, run in runs.items()
        }
        started = events.WorkerStarted(
            worker=self.name,
            queue=config.name,
            server=config.shown_url,
            topics=sorted(self._ready.topics),
            concurrency=config.concurrency,
        )
        events.emit(started)
        self._sharing.begin(started)

    async def stop(self) -> None:
        """Stop: start no more jobs, let handlers finish within the grace, give back the rest.

        If the server is unreachable, jobs that are not settled by the end of the grace are given up: their
        leases run out, and they are delivered again. No other step takes longer than ``socket_timeout``.
        """
        until = asyncio.get_running_loop().time() + self._config.stop_grace
        self._ready.close()
        await self._end(self._fetchers)
        self._surplus.close()
        give_back(self._settlers, self._ready.drain())
        await self._finish_running(until)
        await self._settle(until)
        await self._end([*self._schedulers, *self._monitors])
        await self._end_hooks(until)
        for monitor in self._monitors:
            try:
                await monitor.leave()
            except MxRmqError as error:
                events.emit(events.WorkerNotSignedOff(queue=self._config.name, error=str(error)))
        await asyncio.to_thread(self._leases.stop, self._config.socket_timeout)
        for holdings in self._holdings:
            holdings.jobs.clear()
        self._timeouts.close()
        self._threads.close()
        await self._leave_lifespan(until)
        events.emit(events.WorkerStopped(queue=self._config.name, worker=self.name))
        await self._sharing.close()

    def _ending(self) -> bool:
        """Whether the runners must end: after a stop, or because the program cancels all its tasks."""
        return self._over or any(task.cancelling() for task in self._tasks.values())

    def hurry(self) -> None:
        """Stop running handlers now, without waiting for the grace to end."""
        self._hurry.set()

    async def move_clock(self, move: Callable[[], None]) -> None:
        """Let a test put the queue's clock forward; returns when the monitors have looked at what is overdue.

        The messages that this worker holds stay its own.
        """
        async with AsyncExitStack() as turns:
            for monitor in self._monitors:
                await turns.enter_async_context(monitor.turn)
            move()
            for monitor in self._monitors:
                await monitor.follow_clock()
        for scheduler in self._schedulers:
            scheduler.alarm.ring()
        for monitor in self._monitors:
            while not await monitor.step():
                pass

    async def _finish_running(self, until: float) -> None:
        """Let handlers finish, or stop them when the grace is over; then end the runners."""
        idle = asyncio.ensure_future(self._ready.idle())
        await self._wait(idle, until, hurried=0.0)
        if not idle.done():
            running = [job for holdings in self._holdings for job in holdings.jobs]
            events.emit(events.StopGraceOver(queue=self._config.name, running=len(running)))
            for job in sorted(running, key=lambda job: job.started_at):  # so that they go back in order
                job.stop(End.STOP)
            await asyncio.wait([idle], timeout=_LAST_WORDS)
        idle.cancel()
        self._over = True
        for runner in self._runners:
            runner.cancel()
        _, deaf = await asyncio.wait(self._runners, timeout=_LAST_WORDS)
        if deaf:  # there is no way to end them; their leases run out
            events.emit(events.HandlersIgnoreStop(queue=self._config.name, running=len(deaf)))

    async def _settle(self, until: float) -> None:
        """Wait until everything is settled, but for a limited time: the server may be unreachable."""
        drains = (settler.drained() for settler in self._settlers.values())
        everything = asyncio.gather(*drains, return_exceptions=True)
        soon = asyncio.get_running_loop().time() + self._config.socket_timeout
        await self._wait(everything, max(until, soon), hurried=_LAST_WORDS)
        if not everything.done():
            everything.cancel()
            for settler in self._settlers.values():
                settler.give_up()
            await asyncio.gather(everything, return_exceptions=True)

    async def _end_hooks(self, until: float) -> None:
        """Let hooks finish within the grace, and end those that do not."""
        soon = asyncio.get_running_loop().time() + _LAST_WORDS
        finished = asyncio.ensure_future(self._hooks.finished())
        await self._wait(finished, max(until, soon), hurried=0.0)
        finished.cancel()
        await self._hooks.close(_LAST_WORDS)

    async def _leave_lifespan(self, until: float) -> None:
        """Leave the lifespan, in which the user closes what handlers used; cancelled if it takes too long."""
        soon = asyncio.get_running_loop().time() + self._config.socket_timeout
        left = asyncio.ensure_future(self._lifespan.close())
        await self._wait(left, max(until, soon), hurried=_LAST_WORDS)
        if not left.done():
            left.cancel()
            await asyncio.wait([left], timeout=_LAST_WORDS)

    async def _wait(self, what: asyncio.Future[Any], until: float, *, hurried: float) -> None:
        """Wait for something until an instant, or for *hurried* seconds once told to hurry."""
        hurry = asyncio.ensure_future(self._hurry.wait())
        left = max(0.0, until - asyncio.get_running_loop().time())
        await asyncio.wait([what, hurry], timeout=left, return_when=asyncio.FIRST_COMPLETED)
        if hurry.done() and not what.done():
            await asyncio.wait([what], timeout=hurried)
        hurry.cancel()

    async def _end(self, services: Sequence[Service]) -> None:
        for service in services:
            service.stop()
        # Not cancelled: the reply to a claim under way is needed, or its messages wait for their leases.
        await asyncio.gather(*(self._tasks[service] for service in services))

    def _facts(self, handlers: Sequence[Handler[..., Any]]) -> dict[str, Any]:
        """What this worker publishes about itself."""
        at_once = {topic: work.limit * work.handler.batch for topic, work in self._ready.topics.items()}
        return {
            "topics": sorted(handler.topic for handler in handlers),
            "limits": {topic: n for topic, n in at_once.items() if n != self._config.concurrency},
            "concurrency": self._config.concurrency,
            "pid": os.getpid(),
            "host": socket.gethostname()[:_LONGEST_HOST],
            "version": __version__,
            "started_at": round(time.time(), 3),
        }


async def _fetch(fetcher: Fetcher, monitor: Monitor) -> None:
    """Claim only once the worker is registered.

    The first handler may block the loop at once, and its message would be recovered from an unknown worker.
    """
    await monitor.introduced.wait()
    await fetcher.run()
