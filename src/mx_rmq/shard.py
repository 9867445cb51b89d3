"""A shard: one server's part of a queue. A queue has one or more; nothing here knows how many."""

from __future__ import annotations

import asyncio
import os
from contextlib import suppress
from math import inf
from typing import TYPE_CHECKING, Any, Final

from redis import ConnectionPool
from redis.exceptions import (
    ClusterDownError,
    MasterDownError,
    ReadOnlyError,
    RedisError,
    ResponseError,
    TryAgainError,
)
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from mx_rmq.connect import connections, no_connection
from mx_rmq.durability import WAITS
from mx_rmq.errors import ServerUnavailable
from mx_rmq.keys import Keys
from mx_rmq.link import NOT_NOW, Link, Links
from mx_rmq.store import Store
from mx_rmq.worker.settler import Settler

if TYPE_CHECKING:
    from collections.abc import Iterable

    from mx_rmq.config import Config, Durability
    from mx_rmq.worker.job import Job

# Of the replies that say "not now", those to which redis-py gives a class and no prefix.
_NOT_NOW: Final = (ClusterDownError, MasterDownError, ReadOnlyError, TryAgainError)


class Shard:
    """The connections, the store and what a worker holds of one server.

    Args:
        url: of the server itself; never ``embedded://``.
        config: of the queue.
        number: which shard, or None if the queue has only one.
    """

    def __init__(self, url: str, config: Config, number: int | None = None) -> None:
        self.url = url
        self.keys = Keys(config.name, number)
        self.link = Link(url, timeout=config.socket_timeout)
        self.store = Store(self.link, self.keys, max_bytes=config.max_bytes)
        self._operators = Link(url, timeout=config.socket_timeout)
        self.operating = Store(self._operators, self.keys, max_bytes=config.max_bytes)
        """For what operators read and do: a long reply on its connection holds up nothing else. It is
        opened when it is first used."""
        self.held: set[Job] = set()
        """What the worker holds a lease on; read by the lease keeper's thread."""
        self.present_until = inf
        """Until when, by the loop's clock, no other worker can take this one for vanished."""
        self.disowned_at = -inf
        """When, by the loop's clock, what was leased without the worker's knowledge was last given back."""
        self.settler = Settler(self.store, self.forget, config.patience)
        self._config = config
        self._timeout = config.socket_timeout
        self._waiting = Links(url, timeout=config.socket_timeout + config.durability_timeout)
        self._stores: dict[Durability, Store] = {"memory": self.store}
        self._server_ahead = 0.0

    def forget(self, jobs: Iterable[Job]) -> None:
        """Stop keeping the leases of jobs."""
        self.held.difference_update(jobs)

    def set_clock(self, server_now: float) -> None:
        """Note the server's time, just received."""
        self._server_ahead = server_now - asyncio.get_running_loop().time()

    def server_time(self, loop_time: float) -> float:
        """The server's time, in seconds since 1970, at an instant of the loop's clock."""
        return loop_time + self._server_ahead

    def store_for(self, durability: Durability) -> Store:
        """A store whose produce waits for what *durability* says.

        It does so on connections of its own: whatever came behind would have to wait too.
        """
        if (store := self._stores.get(durability)) is None:
            commands = WAITS[durability](self._waiting, self.keys, self._config)
            store = self._stores[durability] = Store(commands, self.keys, max_bytes=self.store.max_bytes)
        return store

    def blocking_link(self, longest: float) -> Link:
        """A connection of its own for commands that wait up to *longest* seconds."""
        return Link(self.url, timeout=self._timeout + longest)

    def blocking_store(self) -> tuple[Store, BlockingCommands]:
        """A store for use by ``run_blocking`` outside the event loop, and its connection."""
        commands = BlockingCommands(self.url, self._timeout)
        return Store(commands, self.keys, max_bytes=self.store.max_bytes), commands

    async def close(self) -> None:
        """Close the connection for good: a handler that outlives its worker must not open it again."""
        await self.link.close(for_good=True)
        await self._operators.close(for_good=True)
        await self._waiting.close()


class BlockingCommands:
    """Connections that answer before their coroutine is ever suspended; see ``run_blocking``.

    Safe to share between threads, and after a fork, whatever other threads did at that moment; redis-py's
    own pool is not, since a lock that was held stays held in the child.
    """

    def __init__(self, url: str, timeout: float) -> None:
        self._maker = connections(
            ConnectionPool, url, socket_timeout=timeout, socket_connect_timeout=timeout, retry=None
        )
        self._idle: list[Any] = []
        self._pid = os.getpid()

    async def execute_command(self, *args: Any) -> Any:
        """Send a command and wait for its reply, holding the thread."""
        (reply,) = await self.execute_together(args)
        if isinstance(reply, Exception):
            raise reply
        return reply

    async def execute_together(self, *commands: tuple[Any, ...]) -> list[Any]:
        """Send commands in a row on one connection; what is refused is among the replies."""
        if self._pid != os.getpid():  # the sockets are the parent's
            self._pid, self._idle = os.getpid(), []
        idle = self._idle
        try:
            connection = self._connect(idle)
        except (RedisError, OSError) as error:
            raise no_connection(error) from error
        try:
            connection.send_packed_command(connection.pack_commands(commands))
            replies = [_reply(connection) for _ in commands]
        except (RedisConnectionError, RedisTimeoutError, OSError) as error:
            raise ServerUnavailable(f"no answer from the server: {error!s:.200}") from error
        idle.append(connection)
        return replies

    def _connect(self, idle: list[Any]) -> Any:
        """A connection that nobody uses: an idle one if it is in order, else a fresh one."""
        with suppress(IndexError):  # there are no more
            while True:
                connection = idle.pop()
                with suppress(RedisError, OSError):  # closed by the server
                    if not connection.can_read(timeout=0):  # else it holds a reply that nobody waited for
                        return connection
                connection.disconnect()
        connection = self._maker.connection_class(**self._maker.connection_kwargs)
        connection.connect()
        return connection

    def close(self) -> None:
        """Close the connections; one that is in use closes itself when it is done."""
        idle, self._idle = self._idle, []
        for connection in idle:
            connection.disconnect()


def _reply(connection: Any) -> Any:
    """The next reply; a refusal is one too."""
    try:
        return connection.read_response()
    except ResponseError as error:
        if isinstance(error, _NOT_NOW) or NOT_NOW.search(str(error)):
            return ServerUnavailable(f"the server cannot serve now: {error}")
        return error
