"""A network that fails on request: a socket between a client and a real server."""

from __future__ import annotations

import asyncio
import hashlib
import shutil
import tempfile
import threading
from collections import deque
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hiredis

from mx_rmq.scripts import SCRIPTS

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from mx_rmq.embedded import EmbeddedServer


class Proxy:
    """Passes everything on until told otherwise; lives in a thread, so that blocking clients can use it."""

    def __init__(self, server: EmbeddedServer) -> None:
        self._target = server.socket
        self._home = Path(tempfile.mkdtemp(prefix="mx-p-"))
        self._socket = self._home / "s"
        self.url = f"unix://{self._socket}"
        self.commands: list[bytes] = []
        """The name of every command that came through."""
        self.connections = 0
        self.lost_replies = 0
        self._lose_in = 0
        self._lose_sha = ""
        self._stay_away = False
        self._dribble = 0.0
        self._open: set[asyncio.Task[Any]] = set()
        self._listener: asyncio.Server | None = None
        self._loop = asyncio.new_event_loop()
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self.back()

    # -- what can go wrong

    def lose_reply(self, nth: int = 1, *, script: str = "", stay_away: bool = False) -> None:
        """The server does the *nth* script call from now, but its reply and the connection are lost.

        With *script*, the *nth* call of that one.
        """
        self._lose_sha = SCRIPTS[script].sha if script else ""
        self._lose_in = nth
        self._stay_away = stay_away

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
        self._flowing = asyncio.Event()
        self.thaw()

    def dribble(self, pause: float) -> None:
        """Pass replies on in small pieces, with a pause between them."""
        self._dribble = pause

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
        if self._listener is None:
            self._listener = await asyncio.start_unix_server(self._serve, self._socket)

    async def _away(self) -> None:
        await self._close_door()
        await self._cut()

    async def _close_door(self) -> None:
        if self._listener is not None:
            listener, self._listener = self._listener, None
            self._socket.unlink()
            await asyncio.sleep(0.01)  # who has knocked is let in first; asyncio would leak the connection
            listener.close()

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
        up_reader, up_writer = await asyncio.open_unix_connection(self._target)
        asked: deque[str] = deque()
        flowing = self._flowing
        ways = [
            asyncio.ensure_future(self._pass_requests(reader, up_writer, asked, flowing)),
            asyncio.ensure_future(self._pass_replies(up_reader, writer, asked, flowing)),
        ]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
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
        parser = hiredis.Reader()
        while data := await reader.read(1 << 16):
            await flowing.wait()
            parser.feed(data)
            while request := parser.gets():
                self.commands.append(request[0])
                asked.append(_script_of(request))
            writer.write(data)
            await writer.drain()

    async def _pass_replies(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        asked: deque[str],
        flowing: asyncio.Event,
    ) -> None:
        parser = hiredis.Reader(notEnoughData=Ellipsis)
        while data := await reader.read(1 << 16):
            await flowing.wait()
            parser.feed(data)
            while (reply := parser.gets()) is not Ellipsis:
                script = asked.popleft()
                if script and self._lose_sha in (script, "") and not str(reply).startswith("NOSCRIPT"):
                    self._lose_in -= 1
                    if self._lose_in == 0:
                        self.lost_replies += 1
                        if self._stay_away:
                            await self._close_door()
                        return
            step = 1 << 12 if self._dribble else len(data)
            for start in range(0, len(data), step):
                await asyncio.sleep(self._dribble)
                writer.write(data[start : start + step])
                await writer.drain()


def _script_of(request: list[bytes]) -> str:
    """The script a command runs, by its digest; empty for any other command."""
    match request[0]:
        case b"EVALSHA":
            return request[1].decode()
        case b"EVAL":
            return hashlib.sha1(request[1], usedforsecurity=False).hexdigest()
    return ""
