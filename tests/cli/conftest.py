"""``mx-rmq`` through its real entry point: in a pipe and on a terminal."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

if TYPE_CHECKING:
    from pathlib import Path

    from mx_rmq.storage.embedded import EmbeddedServer

_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b\][^\x07]*\x07")


class Ran(NamedTuple):
    """How a command ended and what it printed."""

    code: int
    out: str
    err: str

    @property
    def rows(self) -> list[list[str]]:
        """The cells of tab-separated lines."""
        return [line.split("\t") for line in self.out.splitlines()]

    @property
    def json(self) -> Any:
        """The one JSON document on stdout."""
        return json.loads(self.out)

    @property
    def records(self) -> list[Any]:
        """The lines of JSON on stdout."""
        return [json.loads(line) for line in self.out.splitlines()]


class Cli:
    """Runs ``mx-rmq`` against one server and the queue ``q``, in a directory of its own."""

    def __init__(self, url: str, directory: Path) -> None:
        self.directory = directory
        self.env = {
            **{name: value for name, value in os.environ.items() if not name.startswith("MX_RMQ_")},
            "MX_RMQ_URL": url,
            "MX_RMQ_QUEUE": "q",
            "TZ": "UTC",
            "PYTHONWARNINGS": "error",
        }

    async def __call__(self, *arguments: str, stdin: str = "", env: dict[str, str] | None = None) -> Ran:
        """Run a command in a pipe."""
        done = await asyncio.to_thread(
            subprocess.run,
            [sys.executable, "-m", "mx_rmq", *arguments],
            input=stdin,
            capture_output=True,
            text=True,
            cwd=self.directory,
            env=self.env | (env or {}),
            timeout=60,
            check=False,
        )
        assert "Traceback" not in done.stderr, done.stderr
        return Ran(done.returncode, done.stdout, done.stderr)

    async def on_terminal(
        self, *arguments: str, answers: str = "", columns: int = 120, env: dict[str, str] | None = None
    ) -> Ran:
        """Run a command on a terminal, where stdout and stderr are one; colours are taken out."""
        return await asyncio.to_thread(self._on_terminal, arguments, answers, columns, env or {})

    def _on_terminal(
        self, arguments: tuple[str, ...], answers: str, columns: int, env: dict[str, str]
    ) -> Ran:
        ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
        terminal = {"TERM": "xterm-256color", "COLUMNS": "", "LINES": ""}
        child = subprocess.Popen(
            [sys.executable, "-m", "mx_rmq", *arguments],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            cwd=self.directory,
            env={name: value for name, value in (self.env | terminal | env).items() if value},
            start_new_session=True,
        )
        os.close(theirs)
        os.write(ours, answers.encode())
        seen = b""
        while True:
            try:
                some = os.read(ours, 65536)
            except OSError:  # the child has closed the terminal
                break
            if not some:
                break
            seen += some
        os.close(ours)
        text = _ESCAPES.sub("", seen.decode(errors="replace")).replace("\r\n", "\n")
        assert "Traceback" not in text, text
        return Ran(child.wait(60), text, "")


@pytest.fixture
def cli(server: EmbeddedServer, tmp_path: Path) -> Cli:
    return Cli(server.url, tmp_path)
