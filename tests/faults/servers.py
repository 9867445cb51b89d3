"""Servers that are processes of their own, to be killed, paused and started again."""

from __future__ import annotations

import signal
import subprocess
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from redis import Redis
from redis.exceptions import RedisError

from mx_rmq.storage.embedded import find_binary
from tests.harness import free_port

if TYPE_CHECKING:
    from pathlib import Path

SETTINGS = {
    "bind": "127.0.0.1",
    "save": "",
    "appendonly": "yes",
    "appendfsync": "everysec",
    "maxmemory-policy": "noeviction",
    "repl-diskless-sync-delay": "0",  # a replica is not made to wait for others
}


class Server:
    """A Valkey or Redis server on a TCP port of loopback, with its data in a directory.

    It runs from ``start()`` or ``with`` on, and never longer than the process that started it.

    Args:
        home: where its data and its log are; made if need be.
        binary: which server; the bundled Valkey by default.
        settings: of its configuration, with ``_`` for ``-``: ``Server(home, appendonly="no")``.
    """

    def __init__(self, home: Path, binary: Path | None = None, /, **settings: str | int) -> None:
        self.home = home
        self.port = free_port()
        self._binary = binary or find_binary()
        self._settings = SETTINGS | {name.replace("_", "-"): str(value) for name, value in settings.items()}
        self._process: subprocess.Popen[bytes] | None = None
        self._guard: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        return self._running().pid

    def start(self, *, within: float = 20.0) -> Server:
        """Start it on the same directory and port as ever, and wait until it answers."""
        assert self._process is None, "the server is running"
        self.home.mkdir(parents=True, exist_ok=True)
        with (self.home / "server.log").open("ab") as log:
            process = subprocess.Popen(self._arguments(), stdout=log, stderr=log, start_new_session=True)
        # Its pipe closes with this process, even if that is killed.
        self._guard = subprocess.Popen(
            ["sh", "-c", f"read _; kill -9 {process.pid}"], stdin=subprocess.PIPE, start_new_session=True
        )
        self._process, deadline = process, time.monotonic() + within
        while not self._answers():
            if process.poll() is not None or time.monotonic() > deadline:
                self.kill()
                raise AssertionError(f"the server did not come up: {(self.home / 'server.log').read_text()}")
            time.sleep(0.01)
        return self

    def command(self, *args: Any) -> Any:
        """The reply to a command, over a connection of its own."""
        with Redis(host="127.0.0.1", port=self.port, socket_timeout=5) as client:
            return client.execute_command(*args)

    def kill(self) -> None:
        """End it at once (SIGKILL), if it runs."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """Let it end by itself (SIGTERM), if it runs."""
        self._end(signal.SIGTERM)

    def pause(self) -> None:
        """Let it stand still (SIGSTOP): connections stay open, nothing is answered."""
        self._running().send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let it go on (SIGCONT)."""
        self._running().send_signal(signal.SIGCONT)

    def __enter__(self) -> Server:
        return self if self._process else self.start()

    def __exit__(self, *_: object) -> None:
        self.kill()

    def _running(self) -> subprocess.Popen[bytes]:
        assert self._process is not None, "the server is not running"
        return self._process

    def _arguments(self) -> list[str]:
        arguments = [str(self._binary), "--port", str(self.port), "--dir", str(self.home)]
        for name, value in self._settings.items():
            arguments += [f"--{name}", *(value.split() or [""])]
        return arguments

    def _answers(self) -> bool:
        with suppress(RedisError, OSError):
            # By its pid: the port may have been taken by another server. PING is refused while it loads.
            return bool(self.command("PING") and self.command("INFO", "server")["process_id"] == self.pid)
        return False

    def _end(self, how: signal.Signals) -> None:
        if self._process is None or self._guard is None:
            return
        self._process.send_signal(how)
        try:
            self._process.wait(20)
        finally:
            self._process.kill()
            self._process.wait()
            self._guard.kill()
            self._guard.communicate()
            self._process = self._guard = None
