"""Turns a URL into a running server and connections to it."""

from __future__ import annotations

import os
import re
import ssl
import threading
from typing import TYPE_CHECKING, Any, Final, TypeVar
from urllib.parse import urlsplit
from weakref import WeakSet

from redis import ConnectionPool
from redis.asyncio import ConnectionPool as AsyncConnectionPool
from redis.exceptions import AuthenticationError, RedisError, ResponseError

from mx_rmq.errors import ConfigError, EmbeddedServerError, ServerRefused, ServerUnavailable
from mx_rmq.events import EmbeddedNotRestarted, EmbeddedRestarted, emit
from mx_rmq.storage import embedded

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mx_rmq.storage.embedded import EmbeddedServer

RedisPool = TypeVar("RedisPool", ConnectionPool, AsyncConnectionPool)

_OPTION: Final = re.compile("[a-z_]+=")
_WORD: Final = re.compile(r"[\w.-]+")
_ADDRESS: Final = re.compile(r"connecting to (.+?)\.(?: |$)")
"""Where redis-py says the address of a server that it could not reach."""


class Address:
    """Where a queue's server is; an embedded one runs while it has users.

    Thread-safe. In a forked child the address stays the same.

    Args:
        url: of the server.
        kept: an embedded server runs until ``end``, also while it has no users.
    """

    def __init__(self, url: str, *, kept: bool = False) -> None:
        if not url.startswith("embedded:"):
            check_url(url)
        self.lock = threading.RLock()
        self._url = url
        self._kept = kept
        self._users: set[int] = set()
        self._server: EmbeddedServer | None = None
        self._pid = 0
        """The process that started or joined the embedded server."""
        self._told = False
        """Whether a failed restart was already reported."""
        _addresses.add(self)

    def enter(self, user: object) -> str:
        """The URL to connect to until *user* leaves; the first user starts an embedded server."""
        with self.lock:
            if self._server is None and self._url.startswith("embedded:"):
                self._server, self._pid = embedded.open_url(self._url), os.getpid()
            self._users.add(id(user))
            return self._url if self._server is None else self._server.url

    def revive(self) -> str:
        """Start an embedded server again if it is gone, and return the URL to connect to.

        For callers that could not connect. A forked child leaves the restart to its parent.
        """
        with self.lock:
            server = self._server
            if server is None:
                return self._url
            if self._pid == os.getpid():
                before = server.pid
                try:
                    server.rejoin()
                except EmbeddedServerError as error:
                    if not self._told:
                        emit(EmbeddedNotRestarted(error=str(error)))
                    self._told = True
                else:
                    self._told = False
                    if server.pid != before:
                        lost = "everything: it was in memory only" if server.private else "nothing"
                        emit(EmbeddedRestarted(pid=server.pid, lost=lost))
            return server.url

    def leave(self, user: object) -> None:
        """*user* no longer needs the server; the last user stops an embedded one."""
        with self.lock:
            self._users.discard(id(user))
            if self._server is not None and not self._users and not self._kept:
                self._server.close()
                self._server = None

    def end(self) -> None:
        """Stop an embedded server even if it has users; what is in a private one may go."""
        with self.lock:
            self._users.clear()
            if self._server is not None:
                self._server.close(expected=True)
                self._server = None


_addresses: WeakSet[Address] = WeakSet()


def _unlock_all() -> None:
    """Replace the locks in a forked child: the thread that held one does not exist there."""
    for address in _addresses:
        address.lock = threading.RLock()


os.register_at_fork(after_in_child=_unlock_all)


def connections(kind: type[RedisPool], url: str, **settings: Any) -> RedisPool:
    """A redis-py pool that makes connections to a server.

    With ``rediss://`` the certificate and its host name are checked, with every version of redis-py, unless
    the URL says ``ssl_check_hostname=false`` or ``ssl_cert_reqs=none``.

    Args:
        kind: redis-py's pool class, blocking or asyncio.
        url: ``redis://``, ``rediss://`` or ``unix://``; its options are those of redis-py.
        settings: override the options of the URL.

    Raises:
        ConfigError: the URL cannot be used. The error does not show it: an unescaped password can be in any
            part of it.
    """
    check_url(url)
    try:
        pool = kind.from_url(url)
    except ValueError:
        raise _unreadable() from None
    options = pool.connection_kwargs
    if url.startswith("rediss:") and options.get("ssl_cert_reqs", "required") != "none":
        options.setdefault("ssl_check_hostname", True)
    # RESP2 and bytes: replies are plain values, and the server sends no push messages.
    options.update(protocol=2, decode_responses=False, **settings)
    try:
        pool.connection_class(**options)
    except (TypeError, ValueError, RedisError) as error:
        raise ConfigError(f"an option in the server's URL is wrong: {error}") from None
    return pool


def check_url(url: str) -> None:
    """Refuse a URL that cannot be used.

    Raises:
        ConfigError: says what to write. It shows no part that may belong to a password.
    """
    try:
        parts = urlsplit(url)
    except ValueError:  # half of an IPv6 address
        raise _unreadable() from None
    database = parts.path[1:]
    if parts.scheme != "unix" and "@" not in url and _WORD.fullmatch(database) and not database.isdecimal():
        raise ConfigError(
            f"the database in the server's URL must be a number such as /0, got '/{database}'; "
            f"to give the queue a name, pass name={database!r}"
        )
    if not _is_plain(url):
        raise _unreadable() from None


def _unreadable() -> ConfigError:
    return ConfigError(
        "the server's URL cannot be read; write redis://user:password@host:port/database, "
        "with special characters in the password as %XX"
    )


def _is_plain(url: str) -> bool:
    """Whether a URL can be parsed in only one way.

    An unescaped ``/``, ``?`` or ``#`` in a password would end the host part early. A piece of the password
    would then be taken as the host: looked up, connected to and shown in errors.
    """
    parts = urlsplit(url)
    if "#" in url or not all(_OPTION.match(option) for option in parts.query.split("&") if option):
        return False
    if parts.scheme == "unix":
        return not parts.netloc or parts.netloc.endswith("@")
    database = parts.path.replace("/", "")
    return not database or database.isdecimal()


def no_connection(error: Exception) -> ServerRefused | ServerUnavailable:
    """The error of this package for redis-py's reason why it could not connect.

    A server that refuses the user, the password, the database or the certificate will refuse them again. A
    server certificate that this side does not trust stays untrusted. Retrying helps in neither case.
    """
    if isinstance(error.__cause__ or error, AuthenticationError | ResponseError):
        return ServerRefused(f"the server refuses the connection: {error!s:.200}")
    for cause in _causes(error):
        if isinstance(cause, ssl.SSLCertVerificationError):
            return ServerRefused(
                f"the server's certificate is refused: {cause.verify_message or cause!s:.200}; give the "
                "CA's file with ssl_ca_certs=FILE in the URL, and use the host name in the certificate"
            )
        if isinstance(cause, ssl.SSLError) and any(
            word in (cause.reason or "") for word in ("ALERT_CERTIFICATE", "BAD_CERTIFICATE", "UNKNOWN_CA")
        ):
            return ServerRefused(
                f"the server refuses the client's certificate: {cause!s:.200}; "
                "give it one with ssl_certfile=FILE and ssl_keyfile=FILE in the URL"
            )
        if isinstance(cause, ConnectionRefusedError | FileNotFoundError):
            where = _ADDRESS.search(str(error))
            if where is not None:
                return ServerUnavailable(f"{where[1]} refused the connection: no server listens there")
    return ServerUnavailable(f"no connection to the server: {error!s:.200}")


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """An error and its causes; redis-py keeps some of them only as ``__context__``."""
    for _ in range(10):
        if error is None:
            return
        yield error
        error = error.__cause__ or error.__context__
