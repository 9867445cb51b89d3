"""Which node of a cluster serves a slot."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from redis.exceptions import ResponseError

from mx_rmq.errors import ServerRefused, ServerUnavailable
from mx_rmq.storage.inquiry import Turn
from mx_rmq.storage.place import Place, Spot
from mx_rmq.storage.replies import NOT_NOW, moved_to
from mx_rmq.urls import at

if TYPE_CHECKING:
    from collections.abc import Callable

    from mx_rmq.storage.place import Inquiry
    from mx_rmq.urls import Node, ServerUrl


@dataclass(frozen=True, eq=False, slots=True)
class SlotMap:
    """Which node serves which slots, as one node told it."""

    owners: tuple[tuple[int, int, Node], ...]
    """First slot, last slot, primary."""

    def owner(self, slot: int) -> Node | None:
        """The node that serves a slot; None if there is none."""
        return next((node for first, last, node in self.owners if first <= slot <= last), None)


class ClusterMap:
    """What the places of one queue know of its cluster.

    Args:
        server: the URL, with some nodes of the cluster.
    """

    def __init__(self, server: ServerUrl) -> None:
        self.server = server
        self.latest: SlotMap | None = None
        self._turn = Turn(server.nodes)

    async def learn(self, inquiry: Inquiry) -> SlotMap:
        """Ask the nodes in turn who serves what: those named in the URL, and those learned since."""

        async def question(node: Node) -> SlotMap:
            return await self._ask(inquiry, node)

        self.latest = latest = await self._turn.ask(question, inquiry.timeout / 2)
        return latest

    def doubt(self) -> None:
        """Ask another node the next time: the last one may be cut off from the others."""
        self._turn.put_last(self._turn.nodes[0])

    async def _ask(self, inquiry: Inquiry, node: Node) -> SlotMap:
        url = self.server.of_server(node)
        try:
            rows = await inquiry.ask(url, self.server.settings, "CLUSTER", "SLOTS")
        except ResponseError as error:
            if NOT_NOW.search(str(error)):
                raise ServerUnavailable(f"{at(node)} cannot answer now: {error}") from error
            if "cluster support disabled" in str(error):
                raise ServerRefused(
                    f"the server at {at(node)} is not part of a cluster; write redis:// in place of redis+cluster://"
                ) from error
            raise ServerRefused(
                f"the node at {at(node)} does not tell which node serves what: {error}; "
                "its user needs the right +cluster|slots"
            ) from error
        if not rows:
            raise ServerUnavailable(f"{at(node)} knows of no node that serves slots")
        self._turn.learn([_node(each, node) for row in rows for each in row[2:]])
        return SlotMap(tuple((int(row[0]), int(row[1]), _node(row[2], node)) for row in rows))


class ClusterPlace(Place):
    """The node that serves a shard's slot.

    Args:
        cluster: what is known of the cluster; shared with the other shards.
        slot: that of all keys of the shard.
        revive: starts the nodes of an embedded cluster again that are gone.
    """

    finds = True
    in_cluster = True
    share = 0.5

    def __init__(self, cluster: ClusterMap, slot: int, revive: Callable[[], object] | None = None) -> None:
        super().__init__(cluster.server)
        self._revive = revive
        self._cluster = cluster
        self._slot = slot
        self._spot = None
        self._map: SlotMap | None = None
        """The map that led to the last spot; a newer one may have another answer."""

    async def find(self, inquiry: Inquiry) -> Spot:
        """Look into the map, or ask for a new one if this shard has used it already."""
        if self._map is self._cluster.latest:
            if self._map is not None:
                self._cluster.doubt()
                if self._revive is not None:
                    await inquiry.do(self._revive)
            await self._cluster.learn(inquiry)
        self._map = self._cluster.latest
        node = None if self._map is None else self._map.owner(self._slot)
        if node is None:
            raise ServerUnavailable(f"no node of the cluster serves slot {self._slot} now")
        return self._at(node)

    def forget(self, spot: Spot) -> None:
        """Look again before the next connection is opened."""
        if self._spot is spot:
            self._spot = None

    def heard(self, spot: Spot, reply: str) -> None:
        """Go where a redirection leads; after any other refusal look again."""
        node = moved_to(reply)
        if node is None:
            self.forget(spot)
        elif self._spot is spot:
            self._at((_host(node[0], spot.host), node[1]))

    def _at(self, node: Node) -> Spot:
        spot = self._spot = Spot(self._cluster.server.of_server(node), node[0])
        return spot


def _node(said: Any, asked: Node) -> Node:
    """A node in the reply to CLUSTER SLOTS."""
    return _host((said[0] or b"").decode(), asked[0]), int(said[1])


def _host(said: str, asked: str) -> str:
    """The host of a node; one that the cluster does not know is that of the node that was asked."""
    return asked if said in ("", "?") else said
