"""The loop that the worker's services share: a step, again and again, whatever goes wrong."""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod

from mx_rmq.errors import ConfigError, ServerUnavailable, StoreError
from mx_rmq.resend import Backoff
from mx_rmq.worker.nudge import Nudge

logger = logging.getLogger("mx_rmq.worker")


class Service(ABC):
    """Something that goes on until it is told to stop; subclasses have one ``step``."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.nudge = Nudge()
        self.stopping = False

    def stop(self) -> None:
        """Let the step under way be the last one."""
        self.stopping = True
        self.nudge.give()

    @abstractmethod
    async def step(self) -> None:
        """Do what there is to do, and wait for more; return often, and soon once ``stopping``."""

    async def close(self) -> None:  # noqa: B027 - most services have nothing to free
        """Free what the service has of its own."""

    async def run(self) -> None:
        """Step until stopped. An error is logged and waited out; it never ends the service."""
        backoff = Backoff()
        away = False
        try:
            while not self.stopping:
                try:
                    await self.step()
                except (ServerUnavailable, ConfigError, StoreError) as error:
                    # Also what the server refuses can pass: a full disk, a changed password, a lacking right.
                    if not away:
                        logger.warning(
                            "server.unavailable", extra={"service": self.name, "error": str(error)}
                        )
                    away = True
                    await self.pause(backoff.wait())
                except Exception:
                    logger.exception("service.failed", extra={"service": self.name})
                    await self.pause(backoff.wait())
                else:
                    if away:
                        logger.info("server.back", extra={"service": self.name})
                    away = False
                    backoff.reset()
        finally:
            await self.close()

    async def pause(self, seconds: float) -> None:
        """Wait, whatever happens meanwhile, but not longer than until told to stop."""
        loop = asyncio.get_running_loop()
        until = loop.time() + seconds
        while not self.stopping and (left := until - loop.time()) > 0:
            await self.nudge.wait(left)
