"""Opens connections with redis-py, and says in words why that failed."""

from __future__ import annotations

import os
import re
import ssl
from functools import cache
from typing import TYPE_CHECKING, Any, Final, TypeVar

from redis import ConnectionPool
from redis.asyncio import ConnectionPool as AsyncConnectionPool
from redis.exceptions import AuthenticationError, RedisError, ResponseError

from mx_rmq.errors import ConfigError, ServerRefused, ServerUnavailable
from mx_rmq.urls import TLS_FILES, read_url, unreadable

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

RedisPool = TypeVar("RedisPool", ConnectionPool, AsyncConnectionPool)

NOT_TLS: Final = (
    "the server does not speak TLS on this port; give its TLS port, or write redis:// in place of rediss://"
)
NO_SERVER: Final = "no server listens there"
_OTHER_HOST: Final = (62, 64)
"""OpenSSL's numbers for a host name and for an address that the certificate does not have."""
_INVALID: Final = re.compile(r"Invalid value for [`'](\w+)[`']")
"""How redis-py names a parameter of a URL whose value it cannot read."""
_ADDRESS: Final = re.compile(r"connecting to (.+?)\.(?: |$)")
"""Where redis-py says the address of a server that it could not reach."""


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
    read_url(url)
    try:
        pool = kind.from_url(url)
    except ValueError as error:
        if name := _INVALID.match(str(error)):
            raise ConfigError(f"{name[1]} in the server's URL has a value that it cannot have") from None
        raise unreadable("server") from None
    options = pool.connection_kwargs
    if url.startswith("rediss:") and options.get("ssl_cert_reqs", "required") != "none":
        options.setdefault("ssl_check_hostname", True)
    # RESP2 and bytes: replies are plain values, and the server sends no push messages.
    options.update(protocol=2, decode_responses=False, **settings)
    if not options.keys() & {"lib_name", "lib_version"}:
        options.update(_driver())
    try:
        pool.connection_class(**options)
    except (TypeError, ValueError, RedisError) as error:
        raise ConfigError(f"an option in the server's URL is wrong: {error}") from None
    if url.startswith("rediss:"):
        _check_files(options)
    return pool


@cache
def _driver() -> dict[str, Any]:
    """What a connection tells the server of redis-py, which would read it from a file for each connection."""
    try:
        from redis.driver_info import DriverInfo
    except ImportError:  # an older version, which reads it once
        return {}
    return {"driver_info": DriverInfo()}


def _check_files(options: Mapping[str, Any]) -> None:
    """Refuse certificates and keys that cannot be read: redis-py would say so as if no server were there."""
    for name in TLS_FILES:
        if (file := options.get(name)) and not os.access(file, os.R_OK):
            raise ConfigError(f"{name} must be a file that can be read, got {str(file)!r}")
    authority, texts = options.get("ssl_ca_certs"), options.get("ssl_ca_data")
    file, key = options.get("ssl_certfile"), options.get("ssl_keyfile")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    what = "ssl_ca_certs must be a file with certificates in PEM form, and ssl_ca_data such certificates"
    try:
        if authority or texts:
            context.load_verify_locations(authority, cadata=texts)
        what = "ssl_certfile and ssl_keyfile must be a certificate and its key in PEM form"
        if file:
            # Without a password OpenSSL would ask for one at the terminal.
            context.load_cert_chain(file, key, options.get("ssl_password") or "")
    except (OSError, ValueError) as error:
        raise ConfigError(f"{what}: {error!s:.200}") from None


def no_connection(error: Exception) -> ServerRefused | ServerUnavailable:
    """The error of this package for redis-py's reason why it could not connect.

    A server that refuses the user, the password, the database or the certificate will refuse them again. A
    server certificate that this side does not trust stays untrusted. Retrying helps in neither case.
    """
    if isinstance(error.__cause__ or error, AuthenticationError | ResponseError):
        return ServerRefused(f"the server refuses the connection: {error!s:.200}")
    for cause in _causes(error):
        if isinstance(cause, ssl.SSLError) and (said := _of_tls(cause)):
            return ServerRefused(said)
        if isinstance(cause, ConnectionRefusedError | FileNotFoundError):
            where = _ADDRESS.search(str(error))
            if where is not None:
                return ServerUnavailable(f"{where[1]} refused the connection: {NO_SERVER}")
    return ServerUnavailable(f"no connection to the server: {error!s:.200}")


def _of_tls(error: ssl.SSLError) -> str:
    """What is wrong between two sides that speak TLS, or of which one does not; empty if it may pass."""
    if isinstance(error, ssl.SSLCertVerificationError):
        why = f"{error.verify_message or error!s:.200}".rstrip(".")
        if error.verify_code in _OTHER_HOST:
            return f"the server's certificate is refused: {why}; use a host name or address that is in it"
        return (
            f"the server's certificate is refused: {why}; give the file of the CA that signed it with "
            "ssl_ca_certs=FILE, as an option or in the URL"
        )
    reason = error.reason or ""
    if any(word in reason for word in ("ALERT_CERTIFICATE", "BAD_CERTIFICATE", "UNKNOWN_CA")):
        return (
            f"the server refuses the client's certificate: {error!s:.200}; "
            "give it one with ssl_certfile=FILE and ssl_keyfile=FILE, as options or in the URL"
        )
    if reason in ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "UNKNOWN_PROTOCOL"):
        return NOT_TLS
    return ""


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """An error and its causes; redis-py keeps some of them only as ``__context__``."""
    for _ in range(10):
        if error is None:
            return
        yield error
        error = error.__cause__ or error.__context__
