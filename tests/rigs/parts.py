"""What rigs are made of: servers on ports that no other rig has, in a directory that goes with them."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Generic, Self, TypeVar

from redis.exceptions import RedisError

from mx_rmq.storage.embedded_cluster import client_of, port_candidates
from tests.faults.servers import Server

AnyPart = TypeVar("AnyPart", bound="Part")


class Rig(Generic[AnyPart]):
    """Servers that belong together, from the making of it to ``close()``; never longer than this process."""

    def __init__(self) -> None:
        self._home = Home()

    def parts(self) -> Sequence[AnyPart]:
        """All its servers."""
        raise NotImplementedError

    def is_whole(self) -> bool:
        """Whether all run and agree on who does what."""
        raise NotImplementedError

    def kill(self, part: AnyPart) -> None:
        """End a server at once (SIGKILL), also a paused one."""
        part.kill()

    def pause(self, part: AnyPart) -> None:
        """Let a server stand still (SIGSTOP): connections stay open, nothing is answered."""
        part.pause()

    def resume(self, part: AnyPart) -> None:
        """Let a paused server go on (SIGCONT)."""
        part.resume()

    def restart(self, part: AnyPart) -> None:
        """Start a server again after a kill, with what it had on disk, and wait until it answers."""
        part.start()

    def mend(self, *, within: float = 60.0) -> None:
        """Bring every server back, and wait until the rig is whole."""
        for part in self.parts():
            if part.paused:
                self.resume(part)
            elif not part.runs:
                self.restart(part)
        until(self.is_whole, within, "the rig is whole")

    def close(self) -> None:
        """End all servers and remove their files."""
        for part in self.parts():
            part.kill()
        self._home.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Home:
    """A temporary directory that goes with this process, even if that is killed."""

    def __init__(self) -> None:
        self.path = Path(tempfile.mkdtemp(prefix="mx-rig-"))
        # Its pipe closes with this process; the servers in there are killed at the same time.
        self._guard = subprocess.Popen(
            ["sh", "-c", 'read _; sleep 1; rm -rf "$0"', str(self.path)],
            stdin=subprocess.PIPE,
            start_new_session=True,
        )

    def close(self) -> None:
        self._guard.kill()
        self._guard.communicate()
        shutil.rmtree(self.path, ignore_errors=True)


class Part(Server):
    """A server of a rig; it has the name of its directory, such as ``node-0``."""

    paused = False

    @property
    def name(self) -> str:
        return self.home.name

    @property
    def runs(self) -> bool:
        """Whether it was neither killed nor paused."""
        return self._process is not None and not self.paused

    def command(self, *args: Any) -> Any:
        """The reply to a command as it comes, without redis-py's reading of it."""
        with client_of(self.port) as client:
            return client.execute_command(*args)

    def kill(self) -> None:
        super().kill()
        self.paused = False

    def pause(self) -> None:
        super().pause()
        self.paused = True

    def resume(self) -> None:
        super().resume()
        self.paused = False

    def __repr__(self) -> str:
        return f"<{self.name} 127.0.0.1:{self.port}>"

    def _answers(self) -> bool:
        with suppress(RedisError, OSError):
            its_pid = f"process_id:{self.pid}\r".encode()
            return bool(self.command("PING") and its_pid in self.command("INFO", "server"))
        return False


class Configured(Part):
    """A server with a configuration file, in which it keeps what it is told with ``CONFIG REWRITE``."""

    def _arguments(self) -> list[str]:
        file = self.home / "server.conf"
        if not file.exists():
            settings = {"port": str(self.port), "dir": str(self.home)} | self._settings
            lines = (" ".join([name, value or '""']) for name, value in settings.items())
            file.write_text("\n".join(lines))
        return [str(self._binary), str(file)]


def started(server: AnyPart) -> AnyPart:
    """Start a server on a port that it gets, however many rigs start at the same time."""
    for port in port_candidates():
        server.port = port
        try:
            server.start()
        except AssertionError as error:
            if "in use" not in str(error):
                raise
            shutil.rmtree(server.home)
        else:
            return server
    raise AssertionError("found no free port")


def until(condition: Callable[[], object], within: float, what: str) -> None:
    """Wait until a condition holds; a server that does not answer is one that does not hold it."""
    deadline = time.monotonic() + within
    while time.monotonic() < deadline:
        with suppress(RedisError, OSError):
            if condition():
                return
        time.sleep(0.02)
    raise AssertionError(f"{what}: not within {within:g} s")
