"""A door that speaks TLS in front of a server that does not; the bundled one cannot."""

from __future__ import annotations

import asyncio
import shutil
import ssl
import subprocess
import threading
from typing import TYPE_CHECKING, Any

from tests.harness import free_port

if TYPE_CHECKING:
    from pathlib import Path

    from mx_rmq.storage.embedded import EmbeddedServer


ADDRESSES = ("127.0.0.1", "127.0.0.2")
"""Where the door is; the certificate names the first."""


class Tls:
    """Takes TLS connections at 127.0.0.1 and passes on what they carry; lives in a thread.

    Args:
        server: to which it leads.
        home: where the certificate is put.
    """

    def __init__(self, server: EmbeddedServer, home: Path) -> None:
        self._socket = str(server.socket)
        self.certificate, key = home / "certificate.pem", home / "key.pem"
        """Whom to trust; valid for 127.0.0.1 only. No name: a bare system does not resolve ``localhost``."""
        request = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2"
        names = "-subj /CN=mx-rmq-tests -addext subjectAltName=IP:127.0.0.1"
        openssl = shutil.which("openssl") or "openssl"
        made = [openssl, *request.split(), *names.split(), "-keyout", str(key), "-out", str(self.certificate)]
        subprocess.run(made, check=True, capture_output=True)
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(self.certificate, key)
        self._loop = asyncio.new_event_loop()
        self._loop.set_exception_handler(lambda *_: None)  # clients that refuse the certificate
        self._talks: set[asyncio.Task[Any]] = set()

    def __enter__(self) -> Tls:
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        port = free_port()
        self._door = self._do(asyncio.start_server(self._serve, ADDRESSES, port, ssl=self._context))
        self.url = f"rediss://{ADDRESSES[0]}:{port}"
        return self

    def __exit__(self, *_: object) -> None:
        self._do(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _do(self, what: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(what, self._loop).result(10)

    async def _close(self) -> None:
        self._door.close()
        for talk in self._talks:
            talk.cancel()
        await asyncio.gather(*self._talks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        talk: Any = asyncio.current_task()
        self._talks.add(talk)
        talk.add_done_callback(self._talks.discard)
        up_reader, up_writer = await asyncio.open_unix_connection(self._socket)
        ways = [
            asyncio.ensure_future(_pass_on(reader, up_writer)),
            asyncio.ensure_future(_pass_on(up_reader, writer)),
        ]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            for end in (writer, up_writer):  # without TLS's farewell, which waits for the other side
                end.transport.abort()
            await asyncio.gather(*ways, return_exceptions=True)


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(1 << 16):
        writer.write(data)
        await writer.drain()
