"""The cluster on which suites run that were written for one server: ``./mx test --cluster``.

Queues have eight shards there, spread over three primaries. A test that reads or writes keys by their names,
or puts a proxy before the server, has queues with one shard: it works with the node that serves that.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from redis import Redis

from mx_rmq.storage.embedded_cluster import client_of
from tests.rigs.cluster import Cluster

SHARDS: Final = 8
_TAG: Final = "{q}"
"""Of the queue with one shard, whose keys tests know by name."""
_SOCKET: Final = "socket"
_ONE_SERVER: Final = {"keys", "proxy", "redis", "scene", "shard", "store", "tcp", "user"}
"""Fixtures that are about one server or the keys of one shard."""
_KEY: Final = re.compile(r"mx-rmq:\{([\w.-]+)(?::(?:(\d+)\.)?(\d+))?\}:(.+)", re.DOTALL)
_OF_THE_QUEUE: Final = {"layout", "tails", "done"}
"""What a queue with several shards has under its own tag; ``done`` has the seal."""


class ClusterServer:
    """A cluster in the place of one server."""

    def __init__(self, rig: Cluster) -> None:
        self._rig = rig
        self._clients = {node: client_of(node.port) for node in rig.primaries()}
        self._node = rig.primary_of(rig.slot_of(_TAG))

    @property
    def url(self) -> str:
        """Of the cluster."""
        return self._rig.url

    @property
    def socket(self) -> Path:
        """Of the node that serves the queue q if that has one shard."""
        return self._node.home / _SOCKET

    @property
    def node_url(self) -> str:
        """Of the same node."""
        return f"unix://{self.socket}"

    @property
    def tcp_url(self) -> str:
        """Of the same node, over TCP."""
        return self._node.url

    @property
    def pid(self) -> int:
        """Of the same node."""
        return self._node.pid

    def client(self, key: str) -> Redis:
        """Of the node that serves a key."""
        return self._clients[self._rig.primary_of(self._rig.slot_of(key))]

    def flush(self) -> None:
        """Remove all keys, scripts and counted errors."""
        for node in self._clients.values():
            with node.pipeline(transaction=False) as pipe:
                for command in ("FLUSHALL", "SCRIPT FLUSH", "CONFIG RESETSTAT"):
                    pipe.execute_command(*command.split())
                pipe.execute()
        self.close()

    def close(self) -> None:
        """Leave no connection behind: tests count them."""
        for node in self._clients.values():
            node.close()

    def faults(self) -> list[str]:
        """Keys that are on no shard of their queue, and commands that were refused for keys of two slots."""
        crossings = [line for node in self._clients.values() for line in _crossings(node)]
        strays = list(_strays(self._read()))
        self.close()
        return crossings + strays

    def _read(self) -> dict[str, bytes | None]:
        """All keys, with the value of those that hold a layout."""
        keys: dict[str, bytes | None] = {}
        for node in self._clients.values():
            names: Any = node.execute_command("KEYS", "*")
            for name in names:
                key = name.decode(errors="backslashreplace")
                is_layout = key.endswith("}:layout") and node.execute_command("TYPE", name) == b"string"
                keys[key] = node.execute_command("GET", name) if is_layout else None
        return keys


@contextmanager
def cluster_server(binary: Path) -> Iterator[ClusterServer]:
    """Three primaries; no replicas, because nothing fails over here."""
    with Cluster(3, 0, binary, appendonly="no", unixsocket=_SOCKET) as rig:
        server = ClusterServer(rig)
        yield server
        server.close()


def shards_for(test: Callable[..., Any]) -> int | None:
    """How many shards the queues of a test have on the cluster."""
    knows_the_server = _ONE_SERVER & inspect.signature(test).parameters.keys()
    return None if knows_the_server or "Proxy" in test.__code__.co_names else SHARDS


def _crossings(node: Redis) -> list[str]:
    said: Any = node.execute_command("INFO", "errorstats")
    return [line for line in said.decode().split() if line.startswith("errorstat_CROSSSLOT")]


def _strays(keys: dict[str, bytes | None]) -> Iterator[str]:
    """Keys that belong to no shard of the layout that their queue has written."""
    for key in keys:
        parts = _KEY.fullmatch(key)
        if parts is None:
            yield f"{key} is no key of a queue"
            continue
        queue, generation, number, part = parts.groups()
        layout = keys.get(f"mx-rmq:{{{queue}}}:layout") or b"0:1"
        sizes = dict(each.split(":") for each in layout.decode().split())
        if number is None:
            if layout != b"0:1" and part not in _OF_THE_QUEUE:
                yield f"{key} is outside of the shards {layout!r}"
        elif layout == b"0:1" or int(number) >= int(sizes.get(generation or "0", 0)):
            yield f"{key} is outside of the shards {layout!r}"
