"""A network that fails on request: a socket between a client and a real server."""

from __future__ import annotations

import asyncio
import hashlib
import random
import shutil
import socket
import tempfile
import threading
from collections import Counter, deque
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import urlsplit

import hiredis

from mx_rmq.storage.scripts import SCRIPTS
from tests.harness import free_port
from tests.rigs.suites import ClusterServer

if TYPE_CHECKING:
    from collections.abc import Coroutine

NAMES = {script.sha: script.name for script in SCRIPTS.values()}


class Located(Protocol):
    """A server, embedded or not."""

    @property
    def url(self) -> str:
        """``unix://`` or ``redis://``."""


class Proxy:
    """Passes everything on until told otherwise; lives in a thread, so that blocking clients can use it.

    It listens as its server does, on a unix socket or on a TCP port of loopback. Of a cluster it leads to the
    node of the queue q.
    """

    def __init__(self, server: Located) -> None:
        self._target = urlsplit(server.node_url if isinstance(server, ClusterServer) else server.url)
        self._home = Path(tempfile.mkdtemp(prefix="mx-p-"))
        self._socket = self._home / "s"
        self._port = free_port()
        self._unix = unix = self._target.scheme == "unix"
        self.url = f"unix://{self._socket}" if unix else f"redis://127.0.0.1:{self._port}"
        self.commands: list[bytes] = []
        """The name of every command that came through."""
        self.calls: Counter[str] = Counter()
        """How often each script was called."""
        self.connections = 0
        self.longest_reply = 0
        """In bytes, give or take what came with it."""
        self.lost_replies = 0
        self.lost: Counter[str] = Counter()
        """The lost replies by the name of their script."""
        self._losing: dict[str, int] = {}
        """In how many calls of which script, or of any, a reply gets lost."""
        self._stay_away = False
        self._conceals = False
        self._dribble, self._piece = 0.0, 1 << 12
        self._latest = 0.0
        self._rate: float | None = None
        self._hearing = asyncio.Event()
        self._hearing.set()
        self._dice = random.Random()
        self._open: set[asyncio.Task[Any]] = set()
        self._listener: asyncio.Server | None = None
        self._closing: asyncio.Task[None] | None = None
        self._loop = asyncio.new_event_loop()
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._silent: list[asyncio.Event] = []
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self.back()

    # -- what can go wrong

    def lose_reply(self, nth: int = 1, *, script: str = "", stay_away: bool = False) -> None:
        """The server does the *nth* script call from now, but its reply and the connection are lost.

        With *script*, the *nth* call of that one; others may be waited for at the same time.
        """
        self._stay_away = stay_away
        self._losing[script] = nth

    def losing(self, script: str) -> bool:
        """Whether a reply of *script* is still to be lost."""
        return script in self._losing

    def cut(self) -> None:
        """Cut every connection."""
        self._wait(self._cut())

    def away(self) -> None:
        """Cut every connection and accept none."""
        self._wait(self._away())

    def back(self) -> None:
        """Accept connections again."""
        self._wait(self._listen())

    def freeze(self) -> None:
        """Pass nothing on, and say nothing of it: a half-open connection."""
        self._loop.call_soon_threadsafe(self._flowing.clear)

    def thaw(self) -> None:
        """Pass on again."""
        self._loop.call_soon_threadsafe(self._flowing.set)

    def half_open(self) -> None:
        """Every connection there is falls silent for good; new ones are in order."""
        self.freeze()
        self._silent.append(self._flowing)
        self._flowing = asyncio.Event()
        self.thaw()

    def conceal_ends(self) -> None:
        """A connection that the server closes stays open for its client, which is not told."""
        self._conceals = True

    def belated(self) -> None:
        """What connections that fell silent had still to say arrives after all."""
        while self._silent:
            self._loop.call_soon_threadsafe(self._silent.pop().set)

    def dribble(self, pause: float, piece: int = 1 << 12) -> None:
        """Pass replies on in pieces of so many bytes, with a pause between them."""
        self._dribble, self._piece = pause, piece

    def jitter(self, latest: float, dice: random.Random) -> None:
        """Pass every chunk on after 0 to *latest* seconds, in the order of their coming."""
        self._dice = random.Random(dice.random())  # this one is used in another thread
        self._latest = latest

    def swallow_replies(self) -> None:
        """Requests arrive, their replies do not come back; so it is with new connections."""
        self._loop.call_soon_threadsafe(self._hearing.clear)

    def return_replies(self) -> None:
        """Replies come back again."""
        self._loop.call_soon_threadsafe(self._hearing.set)

    def throttle(self, rate: float) -> None:
        """Take so many bytes a second from each client; over TCP it keeps few of them waiting.

        For connections that come from now on.
        """
        self._rate = rate
        if self._listener is not None:
            self._wait(self._listen_anew())

    def lead_to(self, server: Located) -> None:
        """Lead new connections to another server; those there are stay with the old one."""
        self._target = urlsplit(server.url)

    def close(self) -> None:
        """End it."""
        self.away()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        shutil.rmtree(self._home)

    def __enter__(self) -> Proxy:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- how

    def _wait(self, coroutine: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(10)

    async def _listen(self) -> None:
        if self._listener is not None:
            return
        if self._closing is not None:
            await self._closing  # or its port is still taken
        if self._unix:
            self._listener = await asyncio.start_unix_server(self._serve, self._socket)
        else:
            self._listener = await asyncio.start_server(
                self._serve, "127.0.0.1", self._port, limit=1 << 14 if self._rate else 1 << 16
            )
        if self._rate and not self._unix:
            for sock in self._listener.sockets:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 14)

    async def _listen_anew(self) -> None:
        await self._close_door()
        await self._listen()

    async def _away(self) -> None:
        await self._close_door()
        while self._open:
            await self._cut()  # who came in meanwhile, too

    async def _close_door(self) -> None:
        if self._listener is not None:
            listener, self._listener = self._listener, None
            self._socket.unlink(missing_ok=True)
            self._closing = asyncio.ensure_future(self._stop_listening(listener))
        if self._closing is not None:
            await asyncio.shield(self._closing)  # who closes the door may be cut meanwhile

    async def _stop_listening(self, listener: asyncio.Server) -> None:
        await asyncio.sleep(0.01)  # who has knocked is let in first; asyncio would leak the connection
        listener.close()
        await asyncio.sleep(0.01)  # and has a task then

    async def _cut(self) -> None:
        for task in self._open:
            task.cancel()
        if self._open:
            await asyncio.wait(self._open)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        task = asyncio.ensure_future(self._join(reader, writer))
        self._open.add(task)
        task.add_done_callback(self._open.discard)
        task.add_done_callback(lambda _: writer.close())  # it may be cut before it has begun

    async def _join(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            if self._target.scheme == "unix":
                up_reader, up_writer = await asyncio.open_unix_connection(self._target.path)
            else:
                up_reader, up_writer = await asyncio.open_connection(self._target.hostname, self._target.port)
        except OSError:  # the server is away, so this connection ends too
            return
        asked: deque[str] = deque()
        flowing = self._flowing
        ways = [
            asyncio.ensure_future(self._pass_requests(reader, up_writer, asked, flowing)),
            asyncio.ensure_future(self._pass_replies(up_reader, writer, asked, flowing)),
        ]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
            if self._conceals and ways[1].done():
                ways[0].cancel()
                await asyncio.wait(ways)
                await reader.read()  # until the client gives it up
        finally:
            for way in ways:
                way.cancel()
            for end in (writer, up_writer):  # both before any waiting, which may be cut in its turn
                end.close()
            for end in (writer, up_writer):
                with suppress(OSError):
                    await end.wait_closed()
            await asyncio.gather(*ways, return_exceptions=True)

    async def _pass_requests(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        asked: deque[str],
        flowing: asyncio.Event,
    ) -> None:
        parser, send = hiredis.Reader(), _Late(writer)
        while data := await reader.read(1 << 14 if self._rate else 1 << 16):
            await flowing.wait()
            if self._rate:
                await asyncio.sleep(len(data) / self._rate)
            parser.feed(data)
            while request := parser.gets():
                self.commands.append(request[0])
                asked.append(_script_of(request))
                self.calls[asked[-1]] += 1
            await send(data, self._dice.uniform(0, self._latest))

    async def _pass_replies(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        asked: deque[str],
        flowing: asyncio.Event,
    ) -> None:
        parser, send = hiredis.Reader(notEnoughData=Ellipsis), _Late(writer)
        size = 0
        while data := await reader.read(1 << 16):
            await flowing.wait()
            await self._hearing.wait()
            parser.feed(data)
            size += len(data)
            while (reply := parser.gets()) is not Ellipsis:
                self.longest_reply = max(self.longest_reply, size)
                size = len(data)  # at most: so much has come of the next one
                script = asked.popleft() if asked else ""  # none asked for what is published
                if script and not str(reply).startswith("NOSCRIPT") and self._is_lost(script):
                    if self._stay_away:
                        await self._close_door()
                    return
            step = self._piece if self._dribble else len(data)
            for start in range(0, len(data), step):
                await asyncio.sleep(self._dribble)
                await send(data[start : start + step], self._dice.uniform(0, self._latest))

    def _is_lost(self, script: str) -> bool:
        for which in (script, ""):
            if which in self._losing:
                self._losing[which] -= 1
                if self._losing[which] == 0:
                    del self._losing[which]
                    self.lost_replies += 1
                    self.lost[script] += 1
                    return True
        return False


class _Late:
    """Sends chunks after a delay each, and none before the one that came before it."""

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self._writer = writer
        self._loop = asyncio.get_running_loop()
        self._due = 0.0

    async def __call__(self, data: bytes, delay: float) -> None:
        now = self._loop.time()
        if now + delay > self._due:
            self._due = now + delay
        else:
            self._due += 1e-6  # timers of the same instant have no order
        if self._due > now:
            self._loop.call_at(self._due, self._write, data)
        else:
            self._write(data)
            await self._writer.drain()

    def _write(self, data: bytes) -> None:
        if not self._writer.is_closing():
            self._writer.write(data)


def _script_of(request: list[bytes]) -> str:
    """The script a command runs, by its name if it is ours; empty for any other command."""
    match request[0]:
        case b"EVALSHA":
            digest = request[1].decode()
        case b"EVAL":
            digest = hashlib.sha1(request[1], usedforsecurity=False).hexdigest()
        case _:
            return ""
    return NAMES.get(digest, digest)
