"""The TLS server that other tests connect to lets in those that it should."""

from __future__ import annotations

import socket
import ssl
from contextlib import suppress

import pytest

from tests.rigs.certificates import Pair
from tests.rigs.tls import TlsRig


def talk(rig: TlsRig, client: Pair | None, authority: str = "authority") -> bytes:
    """The answer to PING, by the standard library alone."""
    context = ssl.create_default_context(cafile=getattr(rig.certificates, authority))
    if client is not None:
        context.load_cert_chain(client.certificate, client.key)
    with (
        socket.create_connection(("127.0.0.1", rig.server.port), 5) as plain,
        context.wrap_socket(plain, server_hostname="127.0.0.1") as door,
    ):
        door.sendall(b"PING\r\n")
        return door.recv(100)


def test_who_has_a_certificate_is_let_in(tls_rig: TlsRig) -> None:
    assert talk(tls_rig, tls_rig.certificates.client) == b"+PONG\r\n"
    assert tls_rig.is_whole()
    assert tls_rig.url.startswith(f"rediss://127.0.0.1:{tls_rig.server.port}?ssl_ca_certs=")


@pytest.mark.parametrize("client", ["stranger", ""])
def test_who_has_none_of_the_authority_is_not(tls_rig: TlsRig, client: str) -> None:
    with pytest.raises((ssl.SSLError, ConnectionError)):
        talk(tls_rig, getattr(tls_rig.certificates, client) if client else None)


def test_who_trusts_another_authority_refuses_it(tls_rig: TlsRig) -> None:
    with pytest.raises(ssl.SSLCertVerificationError, match="certificate verify failed"):
        talk(tls_rig, tls_rig.certificates.client, "strange_authority")


@pytest.mark.parametrize(
    ("of", "says"), [("elsewhere", "IP address mismatch"), ("stranger", "unable to get")]
)
def test_a_server_with_a_wrong_certificate_is_refused(of: str, says: str) -> None:
    with TlsRig(of) as rig, pytest.raises(ssl.SSLCertVerificationError, match=says):
        talk(rig, rig.certificates.client)


def test_plain_bytes_get_no_answer(tls_rig: TlsRig) -> None:
    with socket.create_connection(("127.0.0.1", tls_rig.server.port), 5) as plain:
        plain.sendall(b"PING\r\n")
        answer = b""
        with suppress(ConnectionError):
            answer = plain.recv(100)
        assert b"PONG" not in answer
