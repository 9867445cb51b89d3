"""A slot that moves to another node of a cluster: no script begins there, and so none stops half way."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest
from redis.asyncio import Redis

from mx_rmq.errors import StoreError
from mx_rmq.storage.embedded_cluster import client_of
from mx_rmq.storage.keys import Keys
from mx_rmq.storage.store import Store
from tests.harness import Clock, server_binaries
from tests.rigs.cluster import Cluster, Node
from tests.scripts.every_script import CALLS, rich_state
from tests.scripts.states import seed

SLOT = Cluster.slot_of("{q}")


@pytest.fixture(scope="module", params=server_binaries().values(), ids=list(server_binaries()))
def pair(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """Two nodes."""
    with Cluster(2, 0, request.param, appendonly="no") as cluster:
        yield cluster


@pytest.mark.parametrize("moved", [0.0, 0.5, 0.9])
async def test_a_script_in_a_moving_slot_is_refused_before_it_begins(pair: Cluster, moved: float) -> None:
    """Some scripts would be half done otherwise: they write, and then need a key that they derive."""
    source = pair.primary_of(SLOT)
    target = next(node for node in pair.primaries() if node is not source)
    dice = random.Random(moved)
    async with Redis(port=source.port) as redis:
        for script, call in CALLS.items():
            pair.flush()
            await seed(redis, rich_state())
            target.command("CLUSTER", "SETSLOT", SLOT, "IMPORTING", source.id)
            source.command("CLUSTER", "SETSLOT", SLOT, "MIGRATING", target.id)
            keys = sorted(source.command("CLUSTER", "GETKEYSINSLOT", SLOT, 1000))
            if some := dice.sample(keys, round(moved * len(keys))):
                source.command("MIGRATE", "127.0.0.1", target.port, "", 0, 5000, "KEYS", *some)
            before = contents(source) | contents(target)
            assert len(before) == len(keys)

            clock = Clock()
            store = Store(redis, Keys("q", in_cluster=True), history=True, now=clock)
            # redis-py leaves out the first word: TRYAGAIN, or ASK with the slot and the other node.
            expected = rf"{script}: (Multiple keys request|{SLOT} 127\.0\.0\.1:{target.port})"
            with pytest.raises(StoreError, match=expected):
                await call(store, clock)
            assert contents(source) | contents(target) == before
            for node in (source, target):
                node.command("CLUSTER", "SETSLOT", SLOT, "STABLE")


async def test_after_the_move_every_script_runs_on_the_other_node(pair: Cluster) -> None:
    source = pair.primary_of(SLOT)
    target = next(node for node in pair.primaries() if node is not source)
    for script, call in CALLS.items():
        answers = []
        for moves in (False, True):
            pair.flush()
            async with Redis(port=source.port) as redis:
                await seed(redis, rich_state())
            if moves:
                pair.move_slot(SLOT, target)
                source, target = target, source
            clock = Clock()
            async with Redis(port=source.port) as redis:
                answers.append(
                    await call(Store(redis, Keys("q", in_cluster=True), history=True, now=clock), clock)
                )
        assert answers[0] == answers[1], script


def contents(node: Node) -> dict[bytes, bytes]:
    """Every key that a node has, also of a slot that it is being given."""
    found = {}
    with client_of(node.port) as client:
        for key in client.execute_command("CLUSTER", "GETKEYSINSLOT", SLOT, 1000):
            client.execute_command("ASKING")
            found[key] = client.execute_command("DUMP", key)
    return found
