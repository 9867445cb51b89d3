"""The loop that the worker's services share: a step, again and again, whatever goes wrong."""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod

from mx_rmq.errors import ServerUnavailable
from mx_rmq.resend import Backoff

logger = logging.getLogger("mx_rmq.worker")


class Service(ABC):
    """Something that goes on until it is told to stop; subclasses have one ``step``."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.stopping = asyncio.Event()

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
            while not self.stopping.is_set():
                try:
                    await self.step()
                except ServerUnavailable as error:
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
        """Wait, but not longer than until told to stop."""
        try:
            async with asyncio.timeout(seconds):
                await self.stopping.wait()
        except TimeoutError:
            pass
