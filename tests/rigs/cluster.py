"""A cluster of servers on loopback: three primaries, each with a replica."""

from __future__ import annotations

from pathlib import Path
from typing import Final, NamedTuple

from redis.crc import key_slot

from mx_rmq.storage.embedded_cluster import NODE_SETTINGS, client_of, is_whole, join_nodes
from tests.rigs.parts import Part, Rig, started, until

MIGRATED_AT_ONCE: Final = 100


class Node(Part):
    """A node of a cluster: ``node-0`` …"""

    id = ""
    """By which the nodes know each other."""


class View(NamedTuple):
    """A line of ``CLUSTER NODES``: what one node thinks of another or of itself."""

    id: str
    port: int
    flags: frozenset[str]
    primary: str
    slots: tuple[range, ...]


class Cluster(Rig[Node]):
    """Nodes that are one cluster.

    ::

        with Cluster() as cluster:
            mq = RedisMessageQueue(cluster.url, name="orders", shards=8)
            slot = cluster.slot_of("mx-rmq:{orders:0}:payload")
            cluster.kill(cluster.primary_of(slot))

    Args:
        primaries: how many; the slots are divided evenly between them.
        replicas: how many each of them has.
        binary: which server; the bundled Valkey by default.
        settings: of all nodes, with ``_`` for ``-``: ``Cluster(appendonly="no")``.
    """

    def __init__(
        self, primaries: int = 3, replicas: int = 1, binary: Path | None = None, /, **settings: str | int
    ) -> None:
        super().__init__()
        self.nodes: list[Node] = []
        try:
            for number in range(primaries * (1 + replicas)):
                home = self._home.path / f"node-{number}"
                self.nodes.append(started(Node(home, binary, **(NODE_SETTINGS | settings))))
            ports = [node.port for node in self.nodes]
            join_nodes(ports[:primaries], ports[primaries:])
            for node in self.nodes:
                node.id = node.command("CLUSTER", "MYID").decode()
        except BaseException:
            self.close()
            raise

    def parts(self) -> list[Node]:
        return self.nodes

    # -- where things are

    @property
    def url(self) -> str:
        """Of all nodes, as ``redis+cluster://…``."""
        return "redis+cluster://" + ",".join(f"127.0.0.1:{node.port}" for node in self.nodes)

    @staticmethod
    def slot_of(key: str) -> int:
        return int(key_slot(key.encode()))

    def primary_of(self, slot: int) -> Node:
        """The node that serves a slot, as most of the running nodes have it."""
        votes = [owner for node in self._running() if (owner := _owner(self._views(node), slot))]
        assert votes, f"no running node knows who serves slot {slot}"
        return self._by_id(max(votes, key=votes.count))

    def replicas_of(self, slot: int) -> list[Node]:
        """The running replicas of the node that serves a slot."""
        primary = self.primary_of(slot)
        return [node for node in self._running() if self._own_view(node).primary == primary.id]

    def primaries(self) -> list[Node]:
        """The running nodes that serve slots, in the order of the slots."""
        views = [(self._own_view(node), node) for node in self._running()]
        serving = {view.slots[0].start: node for view, node in views if "master" in view.flags and view.slots}
        return [serving[slot] for slot in sorted(serving)]

    def first_slot_of(self, primary: Node) -> int:
        """The first slot that a node serves."""
        return self._own_view(primary).slots[0].start

    # -- what can happen to it

    def failover(self, slot: int, how: str = "", *, within: float = 20.0) -> Node:
        """Let a replica take over from the node that serves a slot; returns the new primary.

        Args:
            slot: any slot of the shard.
            how: empty: the primary takes part, and no write is lost. ``FORCE`` and ``TAKEOVER``: without it.
            within: seconds until all running nodes know of it.
        """
        replica = self.replicas_of(slot)[0]
        before = self.primary_of(slot)

        def done() -> bool:
            if self.primary_of(slot) is before:
                replica.command("CLUSTER", "FAILOVER", *how.split())  # an attempt may time out
            return self._agree_on(slot, replica)

        until(done, within, f"{replica} took over slot {slot} from {before}")
        return replica

    def wait_for_failover(self, slot: int, before: Node, *, within: float = 30.0) -> Node:
        """Wait until a node other than *before* serves a slot; returns it."""
        until(lambda: self.primary_of(slot) is not before, within, f"a replica took over slot {slot}")
        primary = self.primary_of(slot)
        until(lambda: self._agree_on(slot, primary), within, f"all nodes know that {primary} has slot {slot}")
        return primary

    def move_slot(self, slot: int, to: Node, *, within: float = 20.0) -> None:
        """Move a slot with its keys to another primary while it is in use.

        Done as ``redis-cli --cluster reshard`` does it: keys move in several steps, and in between a command
        is told ``ASK`` or ``TRYAGAIN``.
        """
        source = self.primary_of(slot)
        if source is to:
            return
        to.command("CLUSTER", "SETSLOT", slot, "IMPORTING", source.id)
        source.command("CLUSTER", "SETSLOT", slot, "MIGRATING", to.id)
        while keys := source.command("CLUSTER", "GETKEYSINSLOT", slot, MIGRATED_AT_ONCE):
            source.command("MIGRATE", "127.0.0.1", to.port, "", 0, 5000, "KEYS", *keys)
        # First where the slot is going, so that there is no moment without an owner.
        for node in (to, source, *(other for other in self.primaries() if other not in (to, source))):
            node.command("CLUSTER", "SETSLOT", slot, "NODE", to.id)
        until(lambda: self._agree_on(slot, to), within, f"all nodes know that {to} has slot {slot}")

    def is_whole(self) -> bool:
        """Whether every node runs and finds the cluster complete, and they agree on who serves what."""
        for node in self.nodes:
            with client_of(node.port) as client:
                if not is_whole(client, len(self.nodes)):
                    return False
        # A node that comes back takes itself for the primary until it hears of the others.
        maps = {frozenset((view.id, view.slots) for view in self._views(node)) for node in self.nodes}
        return len(maps) == 1

    def flush(self) -> None:
        """Remove all keys and scripts."""
        for node in self.primaries():
            node.command("FLUSHALL")
            node.command("SCRIPT", "FLUSH")

    # -- how

    def _running(self) -> list[Node]:
        return [node for node in self.nodes if node.runs]

    def _views(self, node: Node) -> list[View]:
        return [_view(line) for line in node.command("CLUSTER", "NODES").decode().splitlines()]

    def _own_view(self, node: Node) -> View:
        return next(view for view in self._views(node) if "myself" in view.flags)

    def _agree_on(self, slot: int, primary: Node) -> bool:
        return all(_owner(self._views(node), slot) == primary.id for node in self._running())

    def _by_id(self, id_: str) -> Node:
        return next(node for node in self.nodes if node.id == id_)


def _view(line: str) -> View:
    id_, address, flags, primary, *_ = fields = line.split()
    slots = [field.split("-") for field in fields[8:] if not field.startswith("[")]
    return View(
        id_,
        int(address.partition("@")[0].rpartition(":")[2]),
        frozenset(flags.split(",")),
        primary,
        tuple(range(int(ends[0]), int(ends[-1]) + 1) for ends in slots),
    )


def _owner(views: list[View], slot: int) -> str:
    """The id of the node that serves a slot; empty if there is none."""
    return next((view.id for view in views if any(slot in slots for slots in view.slots)), "")
