"""The loop that the worker's services share: a step, then a wait. No error ends it."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from time import monotonic
from typing import TYPE_CHECKING

from redis.exceptions import ResponseError

from mx_rmq import events
from mx_rmq.errors import ConfigError, ServerUnavailable, StoreError
from mx_rmq.storage.resend import GrowingWait
from mx_rmq.worker.alarm import Alarm

if TYPE_CHECKING:
    from mx_rmq.storage.availability import Availability


class Service(ABC):
    """A loop that runs until it is told to stop; subclasses implement ``step``.

    Args:
        name: how logs and ``health()`` call it.
        availability: of its server.
        interval: seconds between two steps at most.
    """

    def __init__(self, name: str, availability: Availability, interval: float) -> None:
        self.name = name
        self._availability = availability
        self.interval = interval
        self.looked_at = self.tried_at = monotonic()
        """When a step last succeeded, and when one last ended."""
        self.alarm = Alarm()
        self.stopping = False

    def stop(self) -> None:
        """End after the step under way."""
        self.stopping = True
        self.alarm.ring()

    @abstractmethod
    async def step(self) -> float:
        """Do what there is to do now; returns how many seconds to wait before the next step."""

    async def wait(self, seconds: float) -> None:
        """Wait between two steps; ends early when the service is told to stop."""
        loop = asyncio.get_running_loop()
        until = loop.time() + seconds
        while not self.stopping and (left := until - loop.time()) > 0:
            await self.alarm.wait(left)

    async def close(self) -> None:  # noqa: B027 - most services have nothing to free
        """Free the service's own resources."""

    async def run(self) -> None:
        """Step and wait until stopped. An error is reported and waited out; it never ends the service."""
        errors = GrowingWait()
        try:
            while not self.stopping:
                try:
                    seconds = await self.step()
                    self.looked_at = self.tried_at = monotonic()
                    if seconds > 0 and not self.stopping:
                        await self.wait(seconds)
                except (ServerUnavailable, ConfigError, StoreError, ResponseError) as error:
                    # A refusal may pass too: a full disk, a changed password, a missing right.
                    self.tried_at = monotonic()
                    self._availability.lost(self.name, error)
                    await Service.wait(self, errors.next())
                except Exception as error:
                    self.tried_at = monotonic()
                    failed = events.ServiceFailed(queue=self._availability.queue, service=self.name)
                    events.emit(failed, error)
                    await Service.wait(self, errors.next())
                else:
                    self._availability.back(self.name)
                    errors.reset()
        finally:
            self._availability.leave(self.name)
            await self.close()
