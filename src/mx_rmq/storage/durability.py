"""The durability that a produce waits for before it returns, and the commands that wait for it."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar

from redis.exceptions import ResponseError

from mx_rmq.errors import NotDurable, NotOnDisk, NotReplicated, ServerUnavailable, UnsafeServer

if TYPE_CHECKING:
    from mx_rmq.config import Config, Durability
    from mx_rmq.storage.commands import Together
    from mx_rmq.storage.keys import Keys


class Durable(ABC):
    """Sends commands and returns their replies once their effect is as durable as asked for.

    The server waits for the last write of the same connection, so the wait is sent right behind its
    command. After a command that wrote nothing, WAIT returns at once.

    Raises:
        NotDurable: the command was done, but its durability was not confirmed in time; names no message yet.
        UnsafeServer: the server cannot wait for it at all; the command was not sent.
    """

    asks: ClassVar[tuple[Any, ...]]
    """A wait with nothing to wait for, to see whether the server supports it."""
    needs: ClassVar[str]
    error: ClassVar[type[NotDurable]]

    def __init__(self, connections: Together, keys: Keys, wait: tuple[Any, ...], timeout: float) -> None:
        self._connections = connections
        self._keys = keys
        self._wait = (*wait, round(timeout * 1000))
        self._timeout = timeout
        self._able = False

    async def execute_command(self, *args: Any) -> Any:
        """Send one command and wait for its reply and its durability."""
        if not self._able:
            await self._ask()
            self._able = True
        reply, reached = await self._connections.execute_together(args, self._wait)
        if isinstance(reply, Exception):
            raise reply
        if isinstance(reached, ServerUnavailable):
            raise reached
        if isinstance(reached, Exception):
            raise self.error((), f"WAIT failed: {reached}")
        if lacking := self.lacking(reached):
            raise self.error((), f"{lacking} within {self._timeout:g} s")
        return reply

    async def _ask(self) -> None:
        (answer,) = await self._try(self.asks)
        if isinstance(answer, ResponseError):
            raise UnsafeServer(f"{self.needs}; nothing was stored; the server says: {answer}")

    async def _try(self, *commands: tuple[Any, ...]) -> list[Any]:
        replies = await self._connections.execute_together(*commands)
        for reply in replies:
            if isinstance(reply, ServerUnavailable):
                raise reply
        return replies

    @abstractmethod
    def lacking(self, reached: Any) -> str:
        """What is missing, by the reply to the wait; empty if nothing is."""


class OnDisk(Durable):
    """The server has written it to its append-only file and synced the file to disk."""

    asks = ("WAITAOF", 1, 0, 1)
    needs = "durability 'disk' needs Redis 7.2 or Valkey 7.2 or later, and appendonly set to yes"
    error = NotOnDisk

    def __init__(self, connections: Together, keys: Keys, config: Config) -> None:
        super().__init__(connections, keys, ("WAITAOF", 1, 0), config.durability_timeout)

    async def _ask(self) -> None:
        await super()._ask()
        (policy,) = await self._try(("CONFIG", "GET", "appendfsync"))
        if policy == [b"appendfsync", b"everysec"] and await self._answers_too_soon():
            raise UnsafeServer(
                "this server answers WAITAOF before its disk has the message, unless appendfsync is always; "
                "set appendfsync to always for durability 'disk'; nothing was stored"
            )

    async def _answers_too_soon(self) -> bool:
        """Whether the server confirms more writes than it can sync at one sync per second.

        Valkey 9.1 does, and the first releases of Redis 7.4 did (redis/redis#13793).
        """
        write = ("SET", self._keys.of_call("-"), "", "PX", 1000)
        began = time.monotonic()
        for seconds in range(5):
            written, reached = await self._try(write, ("WAITAOF", 1, 0, 500))
            if isinstance(written, Exception) or isinstance(reached, Exception) or not reached[0]:
                return False
            if time.monotonic() - began < 0.9 * seconds:
                return True
        return False

    def lacking(self, reached: Any) -> str:
        """WAITAOF replies with two counts: the server itself, then its replicas."""
        return "" if reached[0] else "its append-only file was not synced to disk"


class OnReplicas(Durable):
    """As many replicas have it as the queue asks for."""

    asks = ("WAIT", 0, 1)
    needs = "durability 'replicated' needs a server that lets this user WAIT"
    error = NotReplicated

    def __init__(self, connections: Together, keys: Keys, config: Config) -> None:
        super().__init__(connections, keys, ("WAIT", config.replicas), config.durability_timeout)
        self._replicas = config.replicas

    def lacking(self, reached: Any) -> str:
        """WAIT replies with the number of replicas that have it."""
        return "" if reached >= self._replicas else f"{reached} of {self._replicas} replicas confirmed it"


WAITS: dict[Durability, type[OnDisk | OnReplicas]] = {"disk": OnDisk, "replicated": OnReplicas}
"""The class for each durability but ``memory``, which waits for nothing."""
