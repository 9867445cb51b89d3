"""A server that speaks TLS and asks for the client's certificate."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
from redis import Redis

from tests.rigs.certificates import Certificates, Pair
from tests.rigs.parts import Part, Rig, started


class TlsServer(Part):
    """A server on a TLS port of 127.0.0.1."""

    certificates: Certificates

    def command(self, *args: Any) -> Any:
        """The reply to a command as it comes, over TLS and whatever the server's name is."""
        client = Redis(
            host="127.0.0.1",
            port=self.port,
            socket_timeout=5,
            protocol=2,
            ssl=True,
            ssl_cert_reqs="none",
            ssl_check_hostname=False,
            ssl_certfile=str(self.certificates.client.certificate),
            ssl_keyfile=str(self.certificates.client.key),
            password=self._settings.get("requirepass"),
        )
        client.response_callbacks.clear()
        with client:
            return client.execute_command(*args)

    def _arguments(self) -> list[str]:
        plain, port, *others = super()._arguments()[1:]
        assert plain == "--port"
        return [str(self._binary), "--port", "0", "--tls-port", port, *others]


class TlsRig(Rig[TlsServer]):
    """One server that takes TLS only, and only from clients with a certificate of the same authority.

    ::

        with TlsRig() as rig:
            mq = RedisMessageQueue(rig.url, name="orders")

    Args:
        of: which certificate the server shows: ``server``, which is in order, ``elsewhere``, which is for
            another host, or ``stranger``, which is by an authority that the client does not know.
        settings: of the server, with ``_`` for ``-``: ``TlsRig(requirepass="secret")``.
    """

    def __init__(self, of: str = "server", /, **settings: str | int) -> None:
        binary = tls_binary()
        super().__init__()
        self._servers: list[TlsServer] = []
        try:
            self.certificates = Certificates(self._home.path / "certificates")
            shown: Pair = getattr(self.certificates, of)
            server = TlsServer(
                self._home.path / "server",
                binary,
                tls_cert_file=str(shown.certificate),
                tls_key_file=str(shown.key),
                tls_ca_cert_file=str(self.certificates.authority),
                **settings,
            )
            server.certificates = self.certificates
            self._servers.append(started(server))
        except BaseException:
            self.close()
            raise

    def parts(self) -> list[TlsServer]:
        return self._servers

    def is_whole(self) -> bool:
        return bool(self.server.command("PING"))

    @property
    def server(self) -> TlsServer:
        return self._servers[0]

    @property
    def url(self) -> str:
        """With the authority and the client's certificate: what works if the server's is in order."""
        return self.url_with()

    def url_with(self, *, authority: Path | None = None, client: Pair | None = None, host: str = "") -> str:
        """The URL with another authority to trust, another certificate of the client, or another host."""
        shown = client or self.certificates.client
        files = {
            "ssl_ca_certs": authority or self.certificates.authority,
            "ssl_certfile": shown.certificate,
            "ssl_keyfile": shown.key,
        }
        return f"rediss://{host or '127.0.0.1'}:{self.server.port}?{urlencode(files)}"

    @property
    def bare_url(self) -> str:
        """Without any certificate."""
        return f"rediss://127.0.0.1:{self.server.port}"


def tls_binary() -> Path:
    """A server that can do TLS; the bundled one cannot. A test is skipped where there is none."""
    found = shutil.which("redis-server")
    if found is None:
        pytest.skip("there is no redis-server on PATH; the bundled server cannot do TLS")
    return Path(found)
