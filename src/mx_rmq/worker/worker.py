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

from redis.exceptions import ResponseError

from mx_rmq import events
from mx_rmq.errors import ConfigError, MxRmqError, NoHandler, StoreError
from mx_rmq.version import __version__
from mx_rmq.worker.base_watch import BaseWatch
from mx_rmq.worker.fetcher import Fetcher
from mx_rmq.worker.holdings import End, Holdings
from mx_rmq.worker.holds import Holds
from mx_rmq.worker.hooks import Hooks
from mx_rmq.worker.lease_keeper import LeaseKeeper
from mx_rmq.worker.monitor import Monitor
from mx_rmq.worker.presence import Presence
from mx_rmq.worker.pulse import Pulse
from mx_rmq.worker.ready import ReadyJobs
from mx_rmq.worker.rounds import Rounds
from mx_rmq.worker.runner import Runner
from mx_rmq.worker.scheduler import Scheduler
from mx_rmq.worker.settler import Settler
from mx_rmq.worker.sharing import Sharing
from mx_rmq.worker.surplus import Surplus, give_back
from mx_rmq.worker.threads import Threads
from mx_rmq.worker.timeouts import Timeouts
from mx_rmq.worker.vitals import Vitals

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mx_rmq.config import Config
    from mx_rmq.storage.shard import Shard
    from mx_rmq.storage.shards import Shards
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
        shards: Shards,
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
        self._shards = shards
        self._holdings: list[Holdings] = []
        self._settlers: dict[Holdings, Settler] = {}
        self._ready = ReadyJobs(handlers, config.concurrency, config.prefetch)
        self._over = False
        runner = Runner(
            self._ready, self._settlers, self._threads, config, self.name, middleware, self._ending
        )
        self._runners = [asyncio.create_task(runner.run()) for _ in range(config.concurrency)]
        self._fetchers: list[Fetcher] = []
        self._schedulers: list[Scheduler] = []
        self._monitors: list[Monitor] = []
        self._tasks: dict[Service, asyncio.Task[None]] = {}
        loop = asyncio.get_running_loop()
        pulse = Pulse(self._holdings, loop, config.name)
        self._services: dict[Holdings, list[Service]] = {}
        self.vitals = Vitals(self.name, config, self._services, pulse)
        self._facts = self._introduction(handlers)
        self._retries = {handler.topic: handler.retry for handler in handlers}
        self._sharing = Sharing(shards.base, self.name)
        self._leases = LeaseKeeper(self._settlers, self._ready, pulse, config, loop)
        for shard in shards:
            self._serve(shard)
        self._watch: BaseWatch | None = None
        self._layout_failed = False
        self._holds: Holds | None = None
        self._leaving: dict[Holdings, asyncio.Task[None]] = {}
        self._follow()
        shards.on_change(self._follow)
        self._timeouts = Timeouts(self._holdings, [handler.timeout for handler in handlers], pulse, loop)
        self._surplus = Surplus(self._settlers, self._ready, loop)
        self._hurry = asyncio.Event()
        self._leases.start()
        started = events.WorkerStarted(
            worker=self.name,
            queue=config.name,
            server=config.shown_url,
            topics=sorted(self._ready.topics),
            concurrency=config.concurrency,
        )
        events.emit(started)
        self._sharing.begin(started)

    def _serve(self, shard: Shard) -> None:
        """Begin to work on a shard."""
        config, state = self._config, self._lifespan.state
        holdings = Holdings(shard, state)
        self._settlers[holdings] = Settler(holdings, config.patience, self._hooks)
        fetcher = Fetcher(holdings, self._ready, config, self.name)
        scheduler = Scheduler(holdings, self.name)
        presence = Presence(holdings, config, self.name, self._facts, partial(self.vitals.said, holdings))
        monitor = Monitor(
            holdings,
            config,
            presence,
            Rounds(holdings, config, self.name, self._look if shard is self._shards.base else None),
            self._hooks,
            self._retries,
            on_recovered=fetcher.look_at,
        )
        self._holdings.append(holdings)
        self._services[holdings] = [fetcher, scheduler, monitor]
        self._fetchers.append(fetcher)
        self._schedulers.append(scheduler)
        self._monitors.append(monitor)
        self._leases.add(holdings, presence)
        for service, run in (
            (monitor, monitor.run()),
            (scheduler, scheduler.run()),
            (fetcher, _fetch(fetcher, monitor)),
        ):
            self._tasks[service] = asyncio.create_task(run, name=f"mx-rmq-{service.name}")

    async def _look(self) -> None:
        """Look at what concerns the whole queue: its layout, and what programs that tail want."""
        await asyncio.gather(self._look_at_layout(), self._sharing.look())

    async def _look_at_layout(self) -> None:
        """Read the layout; what another program wrote in its place is told once, and stops no recovery."""
        try:
            await self._shards.look(self._shards.base.store)
        except (StoreError, ConfigError, ResponseError) as error:
            if not self._layout_failed:
                self._layout_failed = True
                events.emit(events.ServiceFailed(queue=self._config.name, service="layout"), error)
        else:
            self._layout_failed = False

    def _follow(self) -> None:
        """Serve the shards of a layout that has changed."""
        served = {holdings.shard for holdings in self._holdings}
        for shard in self._shards:
            if shard not in served:
                self._serve(shard)
        for holdings in list(self._holdings):
            if holdings.shard not in self._shards and holdings not in self._leaving:
                self._leaving[holdings] = asyncio.create_task(self._leave(holdings), name="mx-rmq-leave")
        if self._shards.base not in self._shards and self._watch is None:
            self._watch = BaseWatch(self._shards.base, self._look, self._holdings)
            self._tasks[self._watch] = asyncio.create_task(self._watch.run(), name="mx-rmq-layout")
        if self._shards.layout.current.number and self._holds is None:  # it is or was resharded
            self._holds = Holds(self._shards)
            self._tasks[self._holds] = asyncio.create_task(self._holds.run(), name="mx-rmq-turns")
        elif self._holds is not None:
            self._holds.alarm.ring()

    async def _leave(self, holdings: Holdings) -> None:
        """Work no longer on a shard that has nothing left and is not in the layout any more."""
        fetcher, scheduler, monitor = self._services[holdings]
        assert isinstance(fetcher, Fetcher)
        assert isinstance(scheduler, Scheduler)
        assert isinstance(monitor, Monitor)
        await self._end([fetcher])
        await self._settlers[holdings].drained()
        await self._end([scheduler, monitor])
        await self._sign_off(monitor)
        self._leases.remove(holdings)
        self._holdings.remove(holdings)
        holdings.jobs.clear()  # another worker has ended them, or the shard would not be done
        self._fetchers.remove(fetcher)
        self._schedulers.remove(scheduler)
        self._monitors.remove(monitor)
        for service in (fetcher, scheduler, monitor):
            del self._tasks[service]
        del self._services[holdings], self._settlers[holdings]
        await holdings.shard.connection.close()

    async def stop(self) -> None:
        """Stop: start no more jobs, let handlers finish within the grace, give back the rest.

        If the server is unreachable, jobs that are not settled by the end of the grace are given up: their
        leases run out, and they are delivered again. No other step takes longer than ``socket_timeout``.
        """
        until = asyncio.get_running_loop().time() + self._config.stop_grace
        self._shards.not_on_change(self._follow)
        await asyncio.gather(*self._leaving.values(), return_exceptions=True)
        self._ready.close()
        await self._end(self._fetchers)
        self._surplus.close()
        give_back(self._settlers, self._ready.drain())
        await self._finish_running(until)
        await self._settle(until)
        others = [service for service in (self._watch, self._holds) if service is not None]
        await self._end([*self._schedulers, *self._monitors, *others])
        await self._end_hooks(until)
        await asyncio.gather(*map(self._sign_off, self._monitors))
        await asyncio.to_thread(self._leases.stop, self._config.socket_timeout)
        for holdings in self._holdings:
            holdings.jobs.clear()
        self._timeouts.close()
        self._threads.close()
        await self._leave_lifespan(until)
        events.emit(events.WorkerStopped(queue=self._config.name, worker=self.name))
        await self._sharing.close()

    async def _sign_off(self, monitor: Monitor) -> None:
        try:
            await monitor.leave()
        except MxRmqError as error:
            events.emit(events.WorkerNotSignedOff(queue=self._config.name, error=str(error)))

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
            scheduler.look()
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

    def _introduction(self, handlers: Sequence[Handler[..., Any]]) -> dict[str, Any]:
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
