"""From a URL to connections: redis-py reads it, with the settings this package relies on."""

from __future__ import annotations

from typing import Any, TypeVar

from redis import ConnectionPool
from redis.asyncio import ConnectionPool as AsyncConnectionPool
from redis.exceptions import AuthenticationError, RedisError, ResponseError

from mx_rmq.errors import ConfigError, ServerUnavailable

Pool = TypeVar("Pool", ConnectionPool, AsyncConnectionPool)


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
