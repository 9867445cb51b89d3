"""A table of topics that stays below the log lines of a worker."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Final

from rich.console import Console, Group
from rich.live import Live
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from mx_rmq.config import Config
from mx_rmq.errors import MxRmqError
from mx_rmq.queue import RedisMessageQueue

if TYPE_CHECKING:
    from types import TracebackType

    from mx_rmq.storage.facts import TopicCounts

_EVERY: Final = 0.5
"""Seconds between two looks at the queues."""
_MOST: Final = 12
"""Topics in the table."""


class Board:
    """Shows the topics of all queues of a server on stderr, in a thread of its own, inside ``with``.

    What is written to ``output`` appears above the table.

    Args:
        url: of the server.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        self._console = Console(stderr=True, highlight=False)
        self._lines, self.output = os.pipe()
        self._over = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._show()), daemon=True)
        self._completed: dict[tuple[str, str], tuple[int, float]] = {}

    def __enter__(self) -> Board:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        os.close(self.output)
        self._thread.join(5)

    async def _show(self) -> None:
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader()
        pipe = os.fdopen(self._lines, "rb", buffering=0)
        transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), pipe)
        try:
            with Live(console=self._console, auto_refresh=False, transient=True) as live:
                async with AsyncExitStack() as stack:
                    queues: dict[str, RedisMessageQueue] = {}
                    printing = asyncio.create_task(self._print(reader))
                    while not printing.done() and not self._over.is_set():
                        table = await self._drawn(stack, queues)
                        live.update(Group(Rule(style="dim"), table), refresh=True)
                        await asyncio.wait([printing], timeout=_EVERY)
                    live.update("", refresh=True)
                    await asyncio.wait([printing], timeout=1.0)  # a handler's own child may hold the pipe
        finally:
            transport.close()

    async def _print(self, reader: asyncio.StreamReader) -> None:
        rest = b""
        while some := await reader.read(65536):
            *lines, rest = (rest + some).split(b"\n")
            if lines:  # in one go: each drawing moves the table
                text = b"\n".join(lines).decode(errors="replace")
                self._console.print(Text.from_ansi(text), soft_wrap=True)

    async def _drawn(self, stack: AsyncExitStack, queues: dict[str, RedisMessageQueue]) -> Table:
        """The table, as the queues are now; queues that are new are opened."""
        rows: list[tuple[str, str, TopicCounts]] = []
        try:
            if not queues:
                queues[""] = await stack.enter_async_context(self._queue("default"))
            for name in await queues[""].queues():
                if name not in queues:
                    queues[name] = await stack.enter_async_context(self._queue(name))
            for name, queue in list(queues.items())[1:]:
                counts = await queue.counts()
                rows += [(name, topic, of) for topic, of in counts.topics.items()]
        except MxRmqError as error:
            return _note(str(error))
        if not rows:
            return _note("no topic yet")
        drawn = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
        several = len({name for name, _, _ in rows}) > 1
        for title in (*(["queue"] if several else []), "topic"):
            drawn.add_column(title, no_wrap=True)
        for title in ("pending", "running", "delayed", "dead", "done", "done/s"):
            drawn.add_column(title, justify="right", style="red" if title == "dead" else "")
        for name, topic, of in rows[:_MOST]:
            cells = [of.pending, of.running, of.delayed, of.in_dlq, of.completed]
            names = [name, topic] if several else [topic]
            rate = f"{self._rate((name, topic), of.completed):,.0f}"
            drawn.add_row(*map(Text, names), *(f"{cell:,}" for cell in cells), rate)
        if len(rows) > _MOST:
            drawn.add_row(Text(f"and {len(rows) - _MOST} more", style="dim"))
        return drawn

    def _queue(self, name: str) -> RedisMessageQueue:
        return RedisMessageQueue(
            config=Config(url=self._url, name=name, server_check="off", patience=1.0, socket_timeout=1.0)
        )

    def _rate(self, topic: tuple[str, str], completed: int) -> float:
        now = time.monotonic()
        before, then = self._completed.get(topic, (completed, now))
        self._completed[topic] = completed, now
        return max(0, completed - before) / (now - then) if now > then else 0.0


def _note(text: str) -> Table:
    note = Table(box=None, show_header=False, pad_edge=False)
    note.add_row(Text(text, style="dim"))
    return note
