"""From a URL to a server and connections to it."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakSet

from redis import ConnectionPool
from redis.asyncio import ConnectionPool as AsyncConnectionPool
from redis.exceptions import AuthenticationError, RedisError, ResponseError

from mx_rmq import embedded
from mx_rmq.errors import ConfigError, ServerUnavailable

if TYPE_CHECKING:
    from mx_rmq.embedded import EmbeddedServer

Pool = TypeVar("Pool", ConnectionPool, AsyncConnectionPool)


class Address:
    """Where a queue's server is; an embedded one runs while somebody uses it.

    For all threads. In a forked child it stays where it was.
    """

    def __init__(self, url: str) -> None:
        self.lock = threading.RLock()
        self._url = url
        self._users: set[int] = set()
        self._server: EmbeddedServer | None = None
        _addresses.add(self)

    def enter(self, user: object) -> str:
        """The URL to connect to, until *user* leaves; starts an embedded server for the first."""
        with self.lock:
            if self._server is None and self._url.startswith("embedded:"):
                self._server = embedded.open_url(self._url)
            self._users.add(id(user))
            return self._url if self._server is None else self._server.url

    def leave(self, user: object) -> None:
        """*user* needs the server no more; stops an embedded one after the last."""
        with self.lock:
            self._users.discard(id(user))
            if self._server is not None and not self._users:
                self._server.close()
                self._server = None


_addresses: WeakSet[Address] = WeakSet()


def _unlock_all() -> None:
    """A forked child has one thread; whoever held a lock is not in it."""
    for address in _addresses:
        address.lock = threading.RLock()


os.register_at_fork(after_in_child=_unlock_all)


def connections(kind: type[Pool], url: str, **settings: Any) -> Pool:
    """What makes connections to a server.

    Args:
        kind: redis-py's pool, blocking or not.
        url: ``redis://``, ``rediss://`` or ``unix://``; its options are those of redis-py.
        settings: come before the options of the URL.

    Raises:
        ConfigError: the URL cannot be used. It is not shown, since a password that is not escaped
            can be in any part of it.
    """
    try:
        pool = kind.from_url(url)
    except ValueError:
        raise ConfigError(
            "the server's URL cannot be read; write redis://user:password@host:port/database, "
            "with special characters in the password as %XX"
        ) from None
    # RESP2 and bytes: replies are plain values, and nothing is pushed that nobody asked for.
    pool.connection_kwargs.update(protocol=2, decode_responses=False, **settings)
    try:
        pool.connection_class(**pool.connection_kwargs)
    except (TypeError, ValueError, RedisError) as error:
        raise ConfigError(f"an option in the server's URL makes no sense: {error}") from None
    return pool


def no_connection(error: Exception) -> ConfigError | ServerUnavailable:
    """Why redis-py could not connect, in our words.

    A server that refuses the user, the password or the database will do so again: that is no
    reason to wait.
    """
    if isinstance(error.__cause__ or error, AuthenticationError | ResponseError):
        return ConfigError(f"the server refuses the connection: {error!s:.200}")
    return ServerUnavailable(f"no connection to the server: {error!s:.200}")
