"""A shard: one server's part of a queue, by one hash tag."""

from __future__ import annotations

from typing import TYPE_CHECKING
from weakref import WeakSet
from zlib import crc32

from mx_rmq.storage.availability import Availability
from mx_rmq.storage.blocking import BlockingConnections
from mx_rmq.storage.connection import Connection, ConnectionPerCall
from mx_rmq.storage.durability import WAITS
from mx_rmq.storage.keys import Keys
from mx_rmq.storage.naming import ShardNaming
from mx_rmq.storage.place import place_of
from mx_rmq.storage.store import Store
from mx_rmq.storage.subscription import Subscription

if TYPE_CHECKING:
    from collections.abc import Callable

    from mx_rmq.config import Config, Durability
    from mx_rmq.storage.commands import Commands
    from mx_rmq.storage.place import Locator
    from mx_rmq.storage.store import NewStore


def shard_number(id_: str, count: int) -> int:
    """Which of *count* shards holds a message."""
    return crc32(id_.encode()) % count if count > 1 else 0


class Shard:
    """The keys, the connections and the stores of one server.

    Args:
        where: answers where the primary is; a URL stands for one server, and is never ``embedded://``.
        config: the queue's configuration.
        name: the shard as its layout names it, such as ``3`` or ``1.3``; empty for a queue's own tag.
        new_store: makes the stores; tests have their own, with another clock.
    """

    def __init__(
        self,
        where: Locator | str,
        config: Config,
        name: str = "",
        *,
        new_store: NewStore = Store,
    ) -> None:
        prefix = Keys(config.name, name).prefix
        self._place = place_of(where) if isinstance(where, str) else where.place(prefix)
        self.keys = Keys(config.name, name, in_cluster=self._place.in_cluster)
        self.url = self._place.url
        self.server = self.keys.prefix if self._place.in_cluster else self.url
        """The same text for shards that are surely on one server."""
        self.name = name
        self.siblings = 1
        """How many shards its generation has."""
        server = f"{config.shown_url}, shard {name}" if name else config.shown_url
        self.availability = Availability(server, config.name)
        self.naming = ShardNaming(name, config.shown_url)
        self._config = config
        self._new_store = new_store
        self._shared: WeakSet[Connection] = WeakSet()
        """The connections from ``new_connection``; if one sees that the server was demoted, all close."""
        self.connection = self.new_connection(0.0)
        self.store = self._store_on(self.connection)
        self._for_operators = self.new_connection(0.0)
        self.operating = self._store_on(self._for_operators)
        """For operators' reads and actions. It has its own connection, opened on first use, so that a long
        reply delays nothing else."""
        self._waiting = ConnectionPerCall(
            self._place,
            timeout=config.socket_timeout,
            waits=config.durability_timeout,
            on_demoted=self._leave,
            on_reconnected=self.availability.reconnected,
        )
        self._stores: dict[Durability, Store] = {"memory": self.store}
        self.is_closed = False
        """Whether the connections are closed for good."""

    @property
    def is_well(self) -> bool:
        """Whether every user of its server could use it the last time."""
        return not self.availability.away

    @property
    def node(self) -> str:
        """Where its primary is, as ``host:port``, if the URL leads to several servers; else the URL.

        It is known once operators have asked the shard; it is the URL before that. It has no user and no
        password.
        """
        if self._config.server.kind in ("server", "embedded"):
            return self._config.shown_url
        return self._for_operators.address or self._config.shown_url

    def store_for(self, durability: Durability) -> Store:
        """A store whose produce waits for *durability*.

        If it has to wait, it has its own connections: on a shared one, other calls would wait behind it.
        """
        if (store := self._stores.get(durability)) is None:
            commands = WAITS[durability](self._waiting, self.keys, self._config)
            store = self._stores[durability] = self._store_on(commands)
        return store

    @property
    def durable(self) -> Store:
        """For operators' writes that must be as durable as the queue's messages."""
        durability = self._config.durability
        return self.operating if durability == "memory" else self.store_for(durability)

    def new_connection(self, longest: float) -> Connection:
        """A separate connection for commands that wait up to *longest* seconds."""
        connection = Connection(
            self._place,
            timeout=self._config.socket_timeout,
            waits=longest,
            on_demoted=self._leave,
            on_reconnected=self.availability.reconnected,
        )
        self._shared.add(connection)
        return connection

    async def subscribe(
        self, channel: str, on_message: Callable[[bytes], None], on_lost: Callable[[], None]
    ) -> Subscription:
        """Hear what is published on a channel, over a connection of its own.

        Raises:
            ServerUnavailable: there is no connection.
            StoreError: the user may not subscribe.
        """
        stream = await self._for_operators.new_stream()
        timeout = self._config.socket_timeout
        subscription = Subscription(stream, channel, timeout, on_message, on_lost)
        try:
            await subscription.confirm()
        except BaseException:
            subscription.close()
            raise
        return subscription

    def blocking_store(self, timeout: float) -> tuple[Store, BlockingConnections]:
        """A store for use with ``run_blocking`` outside the event loop, and its connections.

        Args:
            timeout: seconds without an answer after which a connection counts as dead.
        """
        connections = BlockingConnections(self._place, timeout)
        return self._store_on(connections), connections

    async def close(self) -> None:
        """Close the connections for good: a handler that outlives its worker must not open them again."""
        self.is_closed = True
        await self.connection.close(for_good=True)
        await self._for_operators.close(for_good=True)
        await self._waiting.close()

    def _store_on(self, commands: Commands) -> Store:
        config = self._config
        return self._new_store(commands, self.keys, max_bytes=config.max_bytes, history=config.history)

    def _leave(self, told: Connection) -> None:
        """Close all other connections after one saw that the server is no longer the primary.

        Connections that only read would never notice, and would return a replica's outdated data. Those stay
        that are where this one has found the primary.
        """
        why, primary = "its server is not the primary any more", told.open_at
        for connection in self._shared:
            if connection is not told and connection.open_at != primary:
                connection.lose(why)
        self._waiting.lose_elsewhere(primary, why)
