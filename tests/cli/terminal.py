"""A terminal on which a command runs while a test types and reads."""

from __future__ import annotations

import asyncio
import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from tests.words import eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.cli.conftest import Cli

_ESCAPES = re.compile(
    r"\x1b\[[0-9;:?<=>]*[A-Za-z]|\x1b[()][A-Z0-9]|\x1b[=>]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)"
)


class Terminal:
    """What a command has printed, and a way to type."""

    def __init__(self, process: subprocess.Popen[bytes], ours: int) -> None:
        self.process = process
        self._ours = ours
        self._seen = bytearray()
        os.set_blocking(ours, False)
        asyncio.get_running_loop().add_reader(ours, self._read)

    @property
    def raw(self) -> str:
        return self._seen.decode(errors="replace")

    @property
    def text(self) -> str:
        """What was printed, without colours and movements of the cursor."""
        return _ESCAPES.sub("", self.raw).replace("\r\n", "\n")

    def type(self, keys: str) -> None:
        os.write(self._ours, keys.encode())

    async def shows(self, text: str, within: float = 30.0) -> None:
        try:
            await eventually(lambda: text in self.text, within)
        except AssertionError:
            raise AssertionError(f"{text!r} was not shown: {self.text[-2000:]!r}") from None

    async def ended(self) -> int:
        """Wait for the end of the command; its exit code."""
        await eventually(lambda: self.process.poll() is not None, 30)
        return self.process.wait()

    def _read(self) -> None:
        try:
            some = os.read(self._ours, 65536)
        except OSError:  # the command has closed the terminal
            some = b""
        if some:
            self._seen += some
        else:
            asyncio.get_running_loop().remove_reader(self._ours)


@asynccontextmanager
async def on_terminal(
    cli: Cli, *arguments: str, columns: int = 120, lines: int = 40
) -> AsyncIterator[Terminal]:
    """Run ``mx-rmq`` on a terminal; it is ended with the block if it has not ended by then."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
    process = subprocess.Popen(
        [sys.executable, "-m", "mx_rmq", *arguments],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        cwd=cli.directory,
        env={**cli.env, "TERM": "xterm-256color"},
        start_new_session=True,
        preexec_fn=_control,
    )
    os.close(theirs)
    terminal = Terminal(process, ours)
    try:
        yield terminal
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
        asyncio.get_running_loop().remove_reader(ours)
        os.close(ours)


def _control() -> None:
    """Make the terminal the controlling one, so that Ctrl-C is a signal."""
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
