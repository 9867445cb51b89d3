"""``mx-rmq`` as a program that goes on: what it says is waited for, and it does not outlive its test."""

from __future__ import annotations

import asyncio
import fcntl
import os
import pty
import signal
import struct
import sys
import termios
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING

from tests.words import eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.cli.conftest import Cli

PATIENCE = 60.0
"""Seconds; the tests wait for words, so only a failure takes this long."""


class Program:
    """A running program; what it wrote so far is in ``out`` and ``err``, on a terminal all in ``out``."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self.out = ""
        self.err = ""
        self._heard = {"out": 0, "err": 0}

    @property
    def pid(self) -> int:
        return self._process.pid

    async def says(self, text: str, on: str = "err") -> str:
        """Wait for a line with *text* after the one found last; returns it."""

        def look() -> bool:
            # With the end of its line, so that the line is whole.
            said = getattr(self, on)
            found = said.find(text, self._heard[on])
            return found >= 0 and "\n" in said[found:]

        try:
            await eventually(look, PATIENCE)
        except AssertionError:
            raise AssertionError(f"no {text!r} in:\n{self.out}\n--\n{self.err}") from None
        said: str = getattr(self, on)
        found = said.index(text, self._heard[on])
        end = said.index("\n", found)
        self._heard[on] = end
        return said[said.rfind("\n", 0, found) + 1 : end]

    def send(self, number: signal.Signals, *, to_all: bool = False) -> None:
        """Send a signal, as ``kill`` does, or to all its processes as a terminal does."""
        if to_all:
            os.killpg(self.pid, number)
        else:
            self._process.send_signal(number)

    async def code(self) -> int:
        return await asyncio.wait_for(self._process.wait(), PATIENCE)


@asynccontextmanager
async def running(
    cli: Cli, *arguments: str, terminal: bool = False, env: dict[str, str] | None = None
) -> AsyncIterator[Program]:
    """Run a command until the end of the block at most, in a pipe or on a terminal."""
    pipe = asyncio.subprocess.PIPE
    ours, theirs = pty.openpty() if terminal else (-1, -1)
    if terminal:
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "mx_rmq",
        *arguments,
        cwd=cli.directory,
        env=cli.env | ({"TERM": "xterm-256color"} if terminal else {}) | (env or {}),
        stdin=theirs if terminal else asyncio.subprocess.DEVNULL,
        stdout=theirs if terminal else pipe,
        stderr=theirs if terminal else pipe,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),  # whatever ours is
    )
    program = Program(process)
    if terminal:
        os.close(theirs)
        reading = [asyncio.create_task(asyncio.to_thread(_read_terminal, ours, program))]
    else:
        assert process.stdout is not None
        assert process.stderr is not None
        reading = [
            asyncio.create_task(_read(process.stdout, program, "out")),
            asyncio.create_task(_read(process.stderr, program, "err")),
        ]
    try:
        yield program
        if process.returncode is not None:
            await asyncio.wait_for(asyncio.gather(*reading), PATIENCE)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
        await asyncio.gather(*reading)


async def _read(stream: asyncio.StreamReader, program: Program, name: str) -> None:
    while some := await stream.read(65536):
        setattr(program, name, getattr(program, name) + some.decode(errors="replace"))


def _read_terminal(terminal: int, program: Program) -> None:
    with suppress(OSError):  # the program has closed it
        while some := os.read(terminal, 65536):
            program.out += some.decode(errors="replace").replace("\r\n", "\n")
    os.close(terminal)
