"""A worker: runners and services put together, started and stopped in order."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from typing import TYPE_CHECKING, Any

import msgspec

from mx_rmq.errors import MxRmqError, NoHandler
from mx_rmq.worker.deadlines import Deadlines
from mx_rmq.worker.fetcher import Fetcher
from mx_rmq.worker.job import End
from mx_rmq.worker.leases import LeaseKeeper
from mx_rmq.worker.monitor import Monitor
from mx_rmq.worker.pool import Pool
from mx_rmq.worker.runner import Runner
from mx_rmq.worker.scheduler import Scheduler
from mx_rmq.worker.threads import Threads

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mx_rmq.config import Config
    from mx_rmq.handlers import Handler, Middleware
    from mx_rmq.shard import Shard
    from mx_rmq.worker.service import Service

logger = logging.getLogger("mx_rmq.worker")


class Worker:
    """Runs the handlers of a queue in this process."""

    def __init__(
        self,
        config: Config,
        shards: Sequence[Shard],
        handlers: Sequence[Handler[Any]],
        middleware: Sequence[Middleware],
    ) -> None:
        if not handlers:
            raise NoHandler("there is no handler to run; register one with @queue.handler(topic) first")
        self._config = config
        self._shards = shards
        self._pool = Pool(handlers, config.concurrency, config.prefetch)
        self._threads = Threads(config.concurrency)
        runner = Runner(self._pool, self._threads, config.worker, middleware)
        self._runners = [asyncio.create_task(runner.run()) for _ in range(config.concurrency)]
        self._fetchers = [Fetcher(shard, self._pool, config) for shard in shards]
        self._monitors = [Monitor(shard, config, self._facts(handlers)) for shard in shards]
        self._schedulers = [Scheduler(shard) for shard in shards]
        loop = asyncio.get_running_loop()
        self._deadlines = Deadlines(shards, [handler.timeout for handler in handlers], loop)
        self._leases = LeaseKeeper(shards, config.lease, loop)
        self._hurry = asyncio.Event()
        self._leases.start()
        self._tasks = {
            service: asyncio.create_task(service.run(), name=f"mx-rmq-{service.name}")
            for service in [*self._monitors, *self._schedulers, *self._fetchers]
        }
        logger.info("worker.started", extra={"worker": config.worker, "topics": sorted(self._pool.topics)})

    async def stop(self) -> None:
        """End in order: claim no more, let handlers finish within the grace, give back the rest."""
        await self._end(self._fetchers)
        for job in self._pool.drain():
            job.shard.settler.release(job)
        await self._finish_running()
        for shard in self._shards:
            await shard.settler.drained()
        await self._end([*self._schedulers, *self._monitors])
        for monitor in self._monitors:
            try:
                await monitor.leave()
            except MxRmqError as error:
                logger.warning("worker.not_signed_off", extra={"error": str(error)})
        await asyncio.to_thread(self._leases.stop)
        for runner in self._runners:
            runner.cancel()
        await asyncio.gather(*self._runners, return_exceptions=True)
        self._deadlines.close()
        self._threads.close()
        logger.info("worker.stopped", extra={"worker": self._config.worker})

    def hurry(self) -> None:
        """Do not wait for the grace to end: running handlers are stopped now."""
        self._hurry.set()

    async def _finish_running(self) -> None:
        idle = asyncio.create_task(self._pool.all_idle.wait())
        hurry = asyncio.create_task(self._hurry.wait())
        await asyncio.wait([idle, hurry], timeout=self._config.grace, return_when=asyncio.FIRST_COMPLETED)
        hurry.cancel()
        if not idle.done():
            running = [job for shard in self._shards for job in shard.held]
            logger.warning("worker.grace_over", extra={"running": len(running)})
            for job in running:
                job.stop(End.STOP)
            # A handler may ignore being cancelled, or hang in a C call; its lease then runs out.
            await asyncio.wait([idle], timeout=1.0)
        idle.cancel()

    async def _end(self, services: Sequence[Service]) -> None:
        for service in services:
            service.stop()
        # Not cancelled: a claim that is under way must come back, or its messages wait for their lease.
        await asyncio.gather(*(self._tasks[service] for service in services))

    def _facts(self, handlers: Sequence[Handler[Any]]) -> bytes:
        """What other tools may know of this worker."""
        return msgspec.json.encode(
            {
                "topics": sorted(handler.topic for handler in handlers),
                "concurrency": self._config.concurrency,
                "pid": os.getpid(),
                "started_at": round(time.time(), 3),
            }
        )
