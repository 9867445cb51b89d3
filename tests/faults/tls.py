"""TLS with client certificates, and every way to get it wrong."""

from __future__ import annotations

import asyncio
import socket
import time
from typing import TYPE_CHECKING, NamedTuple

from mx_rmq import MxRmqError, RedisMessageQueue
from mx_rmq.errors import ServerRefused
from tests.faults.programs import QUEUE
from tests.faults.run import Row, Run
from tests.faults.servers import Server
from tests.rigs.tls import TlsRig

if TYPE_CHECKING:
    from pathlib import Path

SECRET = "sesame-0123456789"
MOST = 5.0
WORDS = (SECRET, "AUTH", "HELLO", "CLIENT", "EVAL", "PING", QUEUE)
"""What would be on the wire without TLS."""


class Mistake(NamedTuple):
    """A URL that must not work, and what its error must say."""

    name: str
    url: str
    password: str
    said: str


class Tap:
    """Passes bytes on to a port, and keeps what the clients have sent."""

    def __init__(self, port: int) -> None:
        self.sent = bytearray()
        self._target = port

    async def __aenter__(self) -> Tap:
        self._door = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = int(self._door.sockets[0].getsockname()[1])
        return self

    async def __aexit__(self, *_: object) -> None:
        self._door.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        up_reader, up_writer = await asyncio.open_connection("127.0.0.1", self._target)
        ways = [
            asyncio.create_task(self._pass(reader, up_writer, keep=True)),
            asyncio.create_task(self._pass(up_reader, writer, keep=False)),
        ]
        await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        await asyncio.sleep(0.05)  # the last words of either side
        for way in ways:
            way.cancel()
        writer.transport.abort()
        up_writer.transport.abort()

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, keep: bool) -> None:
        try:
            while data := await reader.read(65536):
                if keep:
                    self.sent += data
                writer.write(data)
                await writer.drain()
        except OSError:
            pass


async def tls(run: Run) -> Row:
    """Wrong CA, host name, password, certificate and port, each from both producers."""
    slowest, wrong, runs, stored = 0.0, [], 0, 0
    with TlsRig() as rig, Server(rig.server.home.parent / "plain", requirepass="") as plain:
        rig.server.command("ACL", "SETUSER", "shop", "on", f">{SECRET}", "~*", "&*", "+@all")
        plain.command("CONFIG", "SET", "requirepass", SECRET)
        async with Tap(rig.server.port) as door, Tap(plain.port) as plain_door:
            right = rig.url.replace(f":{rig.server.port}", f":{door.port}")
            count = run.size(2000, 200)
            stored = await through(right, count)
            for mistake in mistakes(rig, right, door.port, plain_door.port):
                for sync in (False, True):
                    run.tell(f"{mistake.name}, {'mq.sync' if sync else 'asyncio'}")
                    runs += 1
                    began = time.monotonic()
                    error = await refused(mistake, sync=sync)
                    slowest = max(slowest, time.monotonic() - began)
                    if not isinstance(error, ServerRefused) or mistake.said not in str(error):
                        wrong.append(f"{mistake.name}: {error!r}")
                    if SECRET in str(error):
                        wrong.append(f"{mistake.name} shows the password")
            sent = bytes(door.sent + plain_door.sent)
    shown = [word for word in WORDS if word.encode() in sent]
    wrong += [f"{word} was on the wire" for word in shown]
    return Row(
        fault="TLS with client certificates; wrong CA, host, password, certificate and port",
        runs=runs,
        messages=stored,
        recovery=slowest,
        figure=f"it works; each mistake is an error that says which within {MOST:g} s; no plain bytes",
        seen="; ".join(wrong),
        ok=not wrong and slowest <= MOST and stored == count,
    )


def mistakes(rig: TlsRig, right: str, port: int, plain_port: int) -> list[Mistake]:
    def via(url: str) -> str:
        return url.replace(f":{rig.server.port}", f":{port}")

    certificates = rig.certificates
    strange: Path = certificates.strange_authority
    listed = [
        Mistake("wrong CA", via(rig.url_with(authority=strange)), SECRET, "give the file of the CA"),
        Mistake("wrong password", right, "simsalabim", "invalid username-password pair"),
        Mistake(
            "no client certificate",
            via(f"{rig.bare_url}?ssl_ca_certs={certificates.authority}"),
            SECRET,
            "refuses the client's certificate",
        ),
        Mistake(
            "another's client certificate",
            via(rig.url_with(client=certificates.stranger)),
            SECRET,
            "refuses the client's certificate",
        ),
        Mistake(
            "TLS to a plain port",
            right.replace(f":{port}", f":{plain_port}"),
            SECRET,
            "does not speak TLS on this port",
        ),
    ]
    if resolves("localhost"):
        url = via(rig.url_with(host="localhost"))
        listed.append(Mistake("wrong host name", url, SECRET, "use a host name or address that is in it"))
    # Without a password: what is written to redis:// is plain by the user's own wish.
    plain = f"redis://127.0.0.1:{rig.server.port}"
    listed.append(Mistake("plain to a TLS port", plain, "", "speaks TLS on this port; write rediss://"))
    return listed


def resolves(name: str) -> bool:
    try:
        return bool(socket.getaddrinfo(name, None, socket.AF_INET))
    except OSError:
        return False


async def through(url: str, count: int) -> int:
    """How many messages were produced and handled."""
    mq = RedisMessageQueue(url, name=QUEUE, server_check="off", username="shop", password=SECRET)
    handled: set[int] = set()

    @mq.handler("jobs")
    async def handle(payload: int) -> None:
        handled.add(payload)

    async with mq:
        await mq.start()
        await mq.produce_many("jobs", range(count - 1))
        await asyncio.to_thread(mq.sync.produce, "jobs", count - 1)
        await mq.drain(timeout=60)
    mq.sync.close()
    return len(handled)


async def refused(mistake: Mistake, *, sync: bool) -> MxRmqError | None:
    user = {"username": "shop", "password": mistake.password} if mistake.password else {}
    mq = RedisMessageQueue(mistake.url, name=QUEUE, server_check="off", **user)  # type: ignore[arg-type] # of strings only
    try:
        await (asyncio.to_thread(mq.sync.produce, "jobs", 1) if sync else mq.produce("jobs", 1))
    except MxRmqError as error:
        return error
    finally:
        await mq.close()
        mq.sync.close()
    return None
