"""A primary with two replicas, watched by three Sentinels that replace it when it fails."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from tests.rigs.parts import Configured, Rig, started, until

NAME: Final = "mymaster"
FAILOVER_TIMEOUT_MS: Final = 3000
"""A failed attempt is repeated after twice this time."""
HURRY: Final = ("INFO-PERIOD", 500, "PUBLISH-PERIOD", 250)
"""How often a Sentinel looks (usually 10 s and 2 s), in ms."""


class Watched(Configured):
    """A server of the set, ``server-0`` …, or a Sentinel."""

    def role(self) -> str:
        """What it takes itself for: ``master``, ``slave`` or ``sentinel``."""
        role: bytes = self.command("ROLE")[0]
        return role.decode()


class Sentinel(Watched):
    """A Sentinel: the same program in another mode."""

    def _arguments(self) -> list[str]:
        return [*super()._arguments(), "--sentinel"]

    def facts(self, *command: Any) -> dict[str, str]:
        """A reply of names and values."""
        flat = [part.decode() for part in self.command("SENTINEL", *command)]
        return dict(zip(flat[::2], flat[1::2], strict=True))


class SentinelSet(Rig[Watched]):
    """A primary, its replicas, and the Sentinels that watch them.

    ::

        with SentinelSet() as rig:
            mq = RedisMessageQueue(rig.url, name="orders")
            before = rig.primary()
            rig.kill(before)
            rig.wait_for_failover(before)
            rig.restart(before)  # it becomes a replica

    Args:
        replicas: how many.
        sentinels: how many; more than half of them must agree on a failover.
        binary: which server; the bundled Valkey by default.
        down_after: seconds without an answer after which a primary is replaced. A machine that stands still
            for that long has one replaced that is well.
        hurry: an old primary that comes back is made a replica within 2 s. Without it, as Sentinels do it
            when they are not told otherwise: within 10 s.
        settings: of the servers, with ``_`` for ``-``.
    """

    def __init__(
        self,
        replicas: int = 2,
        sentinels: int = 3,
        binary: Path | None = None,
        /,
        *,
        down_after: float = 1.0,
        hurry: bool = True,
        **settings: str | int,
    ) -> None:
        super().__init__()
        self._down_after_ms = round(down_after * 1000)
        self._hurry = hurry
        self._quorum = sentinels // 2 + 1
        self.servers: list[Watched] = []
        self.sentinels: list[Sentinel] = []
        try:
            for number in range(1 + replicas):
                home = self._home.path / f"server-{number}"
                self.servers.append(started(Watched(home, binary, **settings)))
            first = self.servers[0]
            for server in self.servers[1:]:
                server.command("REPLICAOF", "127.0.0.1", first.port)
                server.command("CONFIG", "REWRITE")
            until(lambda: len(first.command("ROLE")[2]) == replicas, 20, "the replicas follow the primary")
            for number in range(sentinels):
                home = self._home.path / f"sentinel-{number}"
                self.sentinels.append(started(self._sentinel(home, binary, first)))
                self._drive(self.sentinels[-1])
            until(self.is_whole, 30, "the Sentinels know each other and the servers")
        except BaseException:
            self.close()
            raise

    def parts(self) -> list[Watched]:
        return [*self.servers, *self.sentinels]

    # -- where things are

    @property
    def url(self) -> str:
        """Of all Sentinels, as ``redis+sentinel://…/mymaster/0``."""
        places = ",".join(f"127.0.0.1:{sentinel.port}" for sentinel in self.sentinels)
        return f"redis+sentinel://{places}/{NAME}/0"

    def primary(self) -> Watched:
        """The server that most of the running Sentinels name."""
        named = [_port_of_primary(sentinel) for sentinel in self.sentinels if sentinel.runs]
        port = max(named, key=named.count)
        return next(server for server in self.servers if server.port == port)

    def replicas(self) -> list[Watched]:
        """The other servers that run."""
        primary = self.primary()
        return [server for server in self.servers if server.runs and server is not primary]

    # -- what can happen to it

    def restart(self, part: Watched) -> None:
        """Start it again after a kill, with what it had on disk, and wait until it answers.

        An old primary takes itself for the primary until a Sentinel tells it otherwise.
        """
        super().restart(part)
        if isinstance(part, Sentinel):
            self._drive(part)

    def failover(self, *, within: float = 30.0) -> Watched:
        """Let the Sentinels replace the primary, which runs; returns the new one."""
        before = self.primary()

        def asked() -> bool:
            self._one_running().command("SENTINEL", "FAILOVER", NAME)  # refused while one is under way
            return True

        until(asked, within, "a Sentinel begins a failover")
        return self.wait_for_failover(before, within=within)

    def wait_for_failover(self, before: Watched, *, within: float = 30.0) -> Watched:
        """Wait until a server other than *before* is the primary; returns it."""

        def replaced() -> bool:
            named = {_port_of_primary(sentinel) for sentinel in self.sentinels if sentinel.runs}
            return len(named) == 1 and self.primary() is not before and self.primary().role() == "master"

        until(replaced, within, f"the Sentinels replaced {before}")
        return self.primary()

    def is_whole(self) -> bool:
        """Whether all run, every Sentinel knows of all others, and every replica follows the primary."""
        for sentinel in self.sentinels:
            facts = sentinel.facts("MASTER", NAME)
            known = (facts["num-slaves"], facts["num-other-sentinels"], facts["flags"])
            if known != (str(len(self.servers) - 1), str(len(self.sentinels) - 1), "master"):
                return False
        primary = self.primary()
        follow = [server.command("ROLE") for server in self.servers if server is not primary]
        return primary.role() == "master" and all(
            role[0] == b"slave" and (role[2], role[3]) == (primary.port, b"connected") for role in follow
        )

    def flush(self) -> None:
        """Remove all keys and scripts."""
        primary = self.primary()
        primary.command("FLUSHALL")
        primary.command("SCRIPT", "FLUSH")

    # -- how

    def _one_running(self) -> Sentinel:
        return next(sentinel for sentinel in self.sentinels if sentinel.runs)

    def _drive(self, sentinel: Sentinel) -> None:
        if self._hurry:
            sentinel.command("SENTINEL", "DEBUG", *HURRY)

    def _sentinel(self, home: Path, binary: Path | None, primary: Watched) -> Sentinel:
        sentinel = Sentinel(home, binary)
        sentinel._settings = {
            "bind": "127.0.0.1",
            "sentinel monitor": f"{NAME} 127.0.0.1 {primary.port} {self._quorum}",
            "sentinel down-after-milliseconds": f"{NAME} {self._down_after_ms}",
            "sentinel failover-timeout": f"{NAME} {FAILOVER_TIMEOUT_MS}",
            "sentinel parallel-syncs": f"{NAME} 2",
        }
        return sentinel


def _port_of_primary(sentinel: Sentinel) -> int:
    return int(sentinel.command("SENTINEL", "GET-MASTER-ADDR-BY-NAME", NAME)[1])
