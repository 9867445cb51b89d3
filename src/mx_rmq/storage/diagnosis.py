"""Finds out why a server that is there does not talk: one side speaks TLS and the other does not."""

from __future__ import annotations

import socket
import ssl
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from mx_rmq.errors import ServerRefused, ServerUnavailable
from mx_rmq.storage.opening import NO_SERVER, NOT_TLS, no_connection

if TYPE_CHECKING:
    from collections.abc import Mapping

_WITHIN: Final = 1.0
"""Seconds for the server to show what it speaks."""
_TOO_LONG: Final = bytes(64 * 1024 + 1)
"""A line that a server without TLS refuses at once, with an error in plain text. It says nothing."""


def is_puzzling(error: Exception) -> bool:
    """Whether a server may be there that speaks otherwise; not if the reason is known or nothing listens."""
    return isinstance(error, ServerUnavailable) and NO_SERVER not in str(error)


def diagnose(options: Mapping[str, Any], *, tls: bool) -> ServerRefused | None:
    """What is wrong with the way a connection is opened; None if it is not that. It blocks.

    Args:
        options: the arguments of redis-py for the connection.
        tls: whether it speaks TLS.
    """
    if "host" not in options and "port" not in options:
        return None  # a unix socket
    node = options.get("host", "localhost"), int(options.get("port", 6379))
    with suppress(OSError):
        return _silent_to_tls(node, options) if tls else _deaf_to_plain(node)
    return None


def _deaf_to_plain(node: tuple[str, int]) -> ServerRefused | None:
    """Whether the server speaks TLS, though the URL does not say so."""
    with socket.create_connection(node, _WITHIN) as plain:
        try:
            with _context({}).wrap_socket(plain):
                speaks = True
        except ssl.SSLError as error:
            speaks = "ALERT" in (error.reason or "")
    said = "the server speaks TLS on this port; write rediss:// in place of redis://"
    return ServerRefused(said) if speaks else None


def _silent_to_tls(node: tuple[str, int], options: Mapping[str, Any]) -> ServerRefused | None:
    """Whether the server does not speak TLS, or wants a certificate from the client."""
    with socket.create_connection(node, _WITHIN) as plain:
        plain.sendall(_TOO_LONG)
        if plain.recv(1) == b"-":
            return ServerRefused(NOT_TLS)
    with socket.create_connection(node, _WITHIN) as plain:
        try:
            with _context(options).wrap_socket(plain) as secure:
                secure.recv(1)  # nothing was sent: the server can only say why it refuses
        except ssl.SSLError as error:
            found = no_connection(error)
            return found if isinstance(found, ServerRefused) else None
    return None


def _context(options: Mapping[str, Any]) -> ssl.SSLContext:
    """Trusts every server: nothing is told to it."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    if file := options.get("ssl_certfile"):
        context.load_cert_chain(file, options.get("ssl_keyfile"), options.get("ssl_password"))
    return context
