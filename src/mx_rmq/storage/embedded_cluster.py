"""Start and stop a small cluster on this machine, for trying and tests.

Each node is a private embedded server: in memory, and gone with the process that uses it, however that
ends. In addition it listens on a port of 127.0.0.1, because the nodes of a cluster are known by address and
port. The port has no password: every user of this machine can connect to it.
"""

from __future__ import annotations

import atexit
import os
import random
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, Final

from redis import Redis
from redis.exceptions import RedisError

from mx_rmq.errors import ConfigError, EmbeddedServerError
from mx_rmq.events import EmbeddedEnded, emit
from mx_rmq.storage.embedded import EmbeddedServer

SLOTS: Final = 16_384
NODE_TIMEOUT: Final = 1.5
"""Seconds until a silent node counts as failed: short, because the nodes are on one machine."""

_PORTS: Final = range(10_000, 22_000)
"""Below the ports that systems give to outgoing connections, and so are those of the cluster bus."""
_BUS: Final = 10_000
"""A node's bus port is its port plus this."""

NODE_SETTINGS: Final = {
    "bind": "127.0.0.1",
    "cluster-enabled": "yes",
    "cluster-node-timeout": str(round(NODE_TIMEOUT * 1000)),
    # One failed shard does not stop the others.
    "cluster-require-full-coverage": "no",
    # A replica that was away for long still takes over.
    "cluster-replica-validity-factor": "0",
    "repl-diskless-sync-delay": "0",
}
"""Of every node, by their names in its configuration."""


def open_cluster(url: str = "embedded+cluster://") -> EmbeddedCluster:
    """Open ``embedded+cluster://``: three primaries, private and in memory.

    Raises:
        ConfigError: the URL says more than that.
        EmbeddedServerError: there is no binary, or the cluster does not come up.
    """
    if url != "embedded+cluster://":
        raise ConfigError(
            "an embedded cluster has no path and no options: its data is in memory and ends with it; "
            "write embedded+cluster://, or embedded:///absolute/path for one server that keeps its data"
        )
    return EmbeddedCluster.open()


class EmbeddedCluster:
    """A cluster of primaries without replicas, which has this process as its only user.

    It ends with ``close()``, at exit, or with the process. A forked child does not share the use: the ports
    work there, but ``close()`` does nothing.
    """

    pid: int
    """Of the node that was started last."""

    def __init__(self) -> None:
        """Use ``open()`` instead."""
        self._nodes: dict[int, EmbeddedServer] = {}
        _open.add(self)

    @classmethod
    def open(
        cls, primaries: int = 3, *, binary: Path | None = None, timeout: float = 20.0
    ) -> EmbeddedCluster:
        """Start the nodes, and return when they serve all slots; this takes two seconds.

        Raises:
            EmbeddedServerError: there is no binary, or the cluster does not come up.
        """
        cluster = cls()
        try:
            for _ in range(primaries):
                port, node = _start_node(binary, timeout)
                cluster._nodes[port] = node
                cluster.pid = node.pid
            join_nodes(list(cluster._nodes), within=timeout)
        except BaseException:
            cluster.close(expected=True)
            raise
        return cluster

    @property
    def url(self) -> str:
        """Where clients connect, as ``redis+cluster://…``."""
        return "redis+cluster://" + ",".join(f"127.0.0.1:{port}" for port in self._nodes)

    @property
    def private(self) -> bool:
        """Whether its data is in memory only and it has a single user: always."""
        return True

    @property
    def is_running(self) -> bool:
        """Whether all its nodes run now."""
        return all(node.is_running for node in self._nodes.values())

    def rejoin(self, timeout: float = 10.0) -> None:
        """Start the nodes again that are gone; ``url`` stays the same.

        They have the same slots, which are empty, and begin to serve them two seconds later.

        Raises:
            EmbeddedServerError: one does not come up.
        """
        for node in self._nodes.values():
            before = node.pid
            node.rejoin(timeout)
            if node.pid != before:
                self.pid = node.pid

    def close(self, *, expected: bool = False) -> None:
        """Stop the nodes, and return when they are gone.

        Unless this is *expected*, a cluster that ends with messages in it says so.
        """
        try:
            _open.remove(self)
        except KeyError:
            return
        if not expected and (left := sum(node.count_messages() for node in self._nodes.values())):
            emit(EmbeddedEnded(messages=left))
        for node in self._nodes.values():
            node.close(expected=True)

    def __enter__(self) -> EmbeddedCluster:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _start_node(binary: Path | None, timeout: float) -> tuple[int, EmbeddedServer]:
    settings = [part for name, value in NODE_SETTINGS.items() for part in (f"--{name}", value)]
    for port in port_candidates():
        try:
            options = ["--port", str(port), *settings]
            return port, EmbeddedServer.open(binary=binary, options=options, timeout=timeout)
        except EmbeddedServerError as error:
            if "in use" not in str(error):
                raise
    raise EmbeddedServerError(
        f"there is no free port for a node of an embedded cluster between {_PORTS.start} and {_PORTS.stop}; "
        "stop what takes them"
    )


def port_candidates(count: int = 50) -> Iterator[int]:
    """Ports that are free at the moment, and whose bus ports are.

    Another process may take one before a server does: then try the next.
    """
    dice = random.SystemRandom()
    for _ in range(count):
        port = dice.choice(_PORTS)
        if _is_free(port) and _is_free(port + _BUS):
            yield port


def join_nodes(primaries: Sequence[int], replicas: Sequence[int] = (), *, within: float = 20.0) -> None:
    """Make empty nodes into one cluster, and return when every node says that it is complete.

    Args:
        primaries: their ports; the slots are divided evenly between them, in this order.
        replicas: their ports; the first belongs to the first primary, and so on in turns.
        within: seconds.

    Raises:
        EmbeddedServerError: they did not become a cluster in time.
    """
    deadline = time.monotonic() + within
    with ExitStack() as stack:
        nodes = {port: stack.enter_context(client_of(port)) for port in (*primaries, *replicas)}
        ids = {port: _text(node.execute_command("CLUSTER", "MYID")) for port, node in nodes.items()}
        step = SLOTS / len(primaries)
        for number, port in enumerate(primaries):
            # Given, they need not find out later which of them yields.
            nodes[port].execute_command("CLUSTER", "SET-CONFIG-EPOCH", number + 1)
            first, after = round(number * step), round((number + 1) * step)
            nodes[port].execute_command("CLUSTER", "ADDSLOTSRANGE", first, after - 1)
        _until(lambda: _meet(nodes, ids), deadline, "did not meet", again_after=0.3)
        for number, port in enumerate(replicas):
            primary = ids[primaries[number % len(primaries)]]
            nodes[port].execute_command("CLUSTER", "REPLICATE", primary)
        count = len(nodes)
        _until(lambda: all(is_whole(node, count) for node in nodes.values()), deadline, "are not complete")


def is_whole(node: Redis, nodes: int) -> bool:
    """Whether a node serves, knows that many nodes without a fault, and follows its primary if it has one."""
    facts = _facts(node, "CLUSTER", "INFO")
    lines = _text(node.execute_command("CLUSTER", "NODES")).splitlines()
    flags = [set(line.split()[2].split(",")) for line in lines]
    replication = _facts(node, "INFO", "replication")
    return (
        facts["cluster_state"] == "ok"
        and facts["cluster_slots_ok"] == str(SLOTS)
        and len(lines) == nodes
        and not any(flag & {"handshake", "fail", "fail?", "noaddr"} for flag in flags)
        and replication.get("master_link_status", "up") == "up"
    )


def client_of(port: int) -> Redis:
    """A client of the server at a port of loopback, which sends commands as they are."""
    client = Redis(host="127.0.0.1", port=port, socket_timeout=5, socket_connect_timeout=5, protocol=2)
    client.response_callbacks.clear()  # redis-py parses the replies of some commands
    return client


def _meet(nodes: dict[int, Redis], ids: dict[int, str]) -> bool:
    """Introduce the nodes to those they do not know yet; whether there were none."""
    complete = True
    for port, node in nodes.items():
        lines = [line.split() for line in _text(node.execute_command("CLUSTER", "NODES")).splitlines()]
        known = {line[0] for line in lines if "handshake" not in line[2]}
        for other, id_ in ids.items():
            if id_ not in known:
                complete = False
                if other > port:  # one side is enough
                    node.execute_command("CLUSTER", "MEET", "127.0.0.1", other)
    return complete


def _until(condition: Callable[[], bool], deadline: float, what: str, *, again_after: float = 0.02) -> None:
    while time.monotonic() < deadline:
        with suppress(RedisError, OSError):
            if condition():
                return
        time.sleep(again_after)
    raise EmbeddedServerError(f"the nodes of the cluster {what} in time; is this machine overloaded?")


def _facts(node: Redis, *command: str) -> dict[str, str]:
    lines = _text(node.execute_command(*command)).splitlines()
    return {name: value for name, _, value in (line.partition(":") for line in lines)}


def _text(reply: Any) -> str:
    return reply.decode() if isinstance(reply, bytes) else str(reply)


def _is_free(port: int) -> bool:
    try:
        with socket.create_server(("127.0.0.1", port)):
            return True
    except OSError:
        return False


_open: set[EmbeddedCluster] = set()


@atexit.register
def _leave_all() -> None:
    """Before the nodes are closed one by one: atexit goes backwards, and their module came first."""
    for cluster in list(_open):
        cluster.close()


os.register_at_fork(after_in_child=_open.clear)
