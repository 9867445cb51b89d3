"""From a queue's URL to its servers: an embedded one is started, the primary of a shard is found."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING
from weakref import WeakSet

from redis.crc import key_slot

from mx_rmq.errors import EmbeddedServerError
from mx_rmq.events import EmbeddedNotRestarted, EmbeddedRestarted, emit
from mx_rmq.storage import embedded
from mx_rmq.storage.embedded_cluster import open_cluster
from mx_rmq.storage.place import Place, Spot
from mx_rmq.storage.sentinels import SentinelPlace
from mx_rmq.storage.slots import ClusterMap, ClusterPlace
from mx_rmq.urls import read_url

if TYPE_CHECKING:
    from collections.abc import Callable

    from mx_rmq.storage.embedded import EmbeddedServer
    from mx_rmq.storage.embedded_cluster import EmbeddedCluster
    from mx_rmq.storage.place import Inquiry
    from mx_rmq.urls import ServerUrl


class Address:
    """Where a queue's servers are; an embedded one runs while it has users.

    Thread-safe. In a forked child the address stays the same.

    Args:
        server: the URL, and what to connect with.
        kept: an embedded server runs until ``end``, also while it has no users.
    """

    def __init__(self, server: ServerUrl, *, kept: bool = False) -> None:
        self.lock = threading.RLock()
        self._given = server
        self._kept = kept
        self._users: set[int] = set()
        self._server: EmbeddedServer | EmbeddedCluster | None = None
        self._pid = 0
        """The process that started or joined the embedded server."""
        self._told = False
        """Whether a failed restart was already reported."""
        self._sentinels = SentinelPlace(server) if server.kind == "sentinel" else None
        self._cluster = ClusterMap(server) if server.kind == "cluster" else None
        _addresses.add(self)

    def enter(self, user: object) -> None:
        """Note that *user* needs the servers until it leaves; the first user starts an embedded one."""
        with self.lock:
            if self._server is None and self._given.kind == "embedded":
                self._server, self._pid = embedded.open_url(self._given.url), os.getpid()
            if self._server is None and self._given.kind == "embedded cluster":
                self._server, self._pid = open_cluster(self._given.url), os.getpid()
                self._cluster = ClusterMap(read_url(self._server.url))
            self._users.add(id(user))

    def place(self, key: str) -> Place:
        """Where the shard of a key is; only while the address has users.

        All shards share a primary, unless the URL is that of a cluster.
        """
        if self._sentinels is not None:
            return self._sentinels
        if self._cluster is not None:
            revive = None if self._server is None else self.revive
            return ClusterPlace(self._cluster, key_slot(key.encode()), revive)
        if self._server is not None:
            return EmbeddedPlace(self._given, self._server.url, self.revive)
        return Place(self._given)

    def revive(self) -> str:
        """Start an embedded server again if it is gone, and return the URL to connect to.

        For callers that could not connect. A forked child leaves the restart to its parent.
        """
        with self.lock:
            server = self._server
            if server is None:
                return self._given.url
            if self._pid == os.getpid():
                before = server.pid
                try:
                    server.rejoin()
                except EmbeddedServerError as error:
                    if not self._told:
                        emit(EmbeddedNotRestarted(error=str(error)))
                    self._told = True
                else:
                    self._told = False
                    if server.pid != before:
                        lost = "everything: it was in memory only" if server.private else "nothing"
                        emit(EmbeddedRestarted(pid=server.pid, lost=lost))
            return server.url

    def leave(self, user: object) -> None:
        """*user* no longer needs the server; the last user stops an embedded one."""
        with self.lock:
            self._users.discard(id(user))
            if self._server is not None and not self._users and not self._kept:
                self._server.close()
                self._server = None

    def end(self) -> None:
        """Stop an embedded server even if it has users; what is in a private one may go."""
        with self.lock:
            self._users.clear()
            if self._server is not None:
                self._server.close(expected=True)
                self._server = None


_addresses: WeakSet[Address] = WeakSet()


def _unlock_all() -> None:
    """Replace the locks in a forked child: the thread that held one does not exist there."""
    for address in _addresses:
        address.lock = threading.RLock()


os.register_at_fork(after_in_child=_unlock_all)


class EmbeddedPlace(Place):
    """An embedded server, which is started again if it is gone.

    Args:
        server: what was asked for.
        url: of the server that runs.
        revive: starts it again if it is gone, and returns its URL.
    """

    finds = True

    def __init__(self, server: ServerUrl, url: str, revive: Callable[[], str]) -> None:
        super().__init__(server)
        self.url = url
        self._spot = Spot(url)
        self._revive = revive

    async def find(self, inquiry: Inquiry) -> Spot:
        """Start the server again if it is gone."""
        spot = self._spot = Spot(await inquiry.do(self._revive))
        return spot
