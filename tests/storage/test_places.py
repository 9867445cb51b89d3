"""Places: who is the primary of a shard now, asked of real clusters and Sentinel sets."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import closing
from typing import Any

import pytest
from redis.crc import key_slot

from mx_rmq import RedisMessageQueue
from mx_rmq.config import Config
from mx_rmq.errors import ServerRefused, ServerUnavailable
from mx_rmq.storage.blocking import BlockingConnections, run_blocking
from mx_rmq.storage.connection import Connection
from mx_rmq.storage.contract import Kept, NewMessage
from mx_rmq.storage.embedded import EmbeddedServer
from mx_rmq.storage.inquiry import BlockingInquiry, LoopInquiry
from mx_rmq.storage.keys import Keys
from mx_rmq.storage.locate import Address
from mx_rmq.storage.place import Place, Spot
from mx_rmq.storage.shard import Shard
from mx_rmq.storage.store import Store
from mx_rmq.urls import read_url
from tests.harness import free_port
from tests.rigs.cluster import Cluster
from tests.rigs.sentinel import SentinelSet
from tests.words import eventually

KEYS = [Keys("q", number).prefix for number in range(8)]
"""Of shards that are on all nodes of a cluster."""

Find = Callable[[Place], Awaitable[Spot]]
Ask = Callable[[Place], Awaitable[bytes]]


@pytest.fixture(params=["loop", "blocking"])
def find(request: pytest.FixtureRequest) -> Find:
    """Looks in each of the two ways."""

    async def in_loop(place: Place) -> Spot:
        return await place.find(LoopInquiry(5))

    async def blocking(place: Place) -> Spot:
        return await asyncio.to_thread(lambda: run_blocking(place.find(BlockingInquiry(5))))

    return in_loop if request.param == "loop" else blocking


@pytest.fixture(params=["loop", "blocking"])
def ask(request: pytest.FixtureRequest) -> Ask:
    """What the server says of itself that each kind of connection reaches."""

    async def in_loop(place: Place) -> bytes:
        connection = Connection(place, timeout=5)
        try:
            return bytes(await connection.execute_command("INFO", "server"))
        finally:
            await connection.close()

    async def blocking(place: Place) -> bytes:
        with closing(BlockingConnections(place, 5)) as connections:
            call = connections.execute_command("INFO", "server")
            return bytes(await asyncio.to_thread(run_blocking, call))

    return in_loop if request.param == "loop" else blocking


def place_at(url: str, key: str = KEYS[0]) -> Place:
    return Address(read_url(url)).place(key)


def at(node: Any) -> str:
    return f"redis://127.0.0.1:{node.port}/0"


# -- Cluster


async def test_a_shard_is_where_its_slot_is(cluster: Cluster, find: Find) -> None:
    address = Address(read_url(cluster.url))
    found = set()
    for key in KEYS:
        place = address.place(key)
        assert place.known() is None
        spot = await find(place)
        assert spot.url == at(cluster.primary_of(cluster.slot_of(key)))
        assert place.known() is spot
        found.add(spot.url)
    assert len(found) > 1


async def test_all_shards_learn_from_one_answer(cluster: Cluster, find: Find) -> None:
    """And only the one that finds it wrong asks again."""
    address = Address(read_url(cluster.url))
    places = [address.place(key) for key in KEYS]
    calls = questions(cluster)
    for place in places:
        await find(place)
    assert questions(cluster) == calls + 1
    spot = places[0].known()
    assert spot is not None
    places[0].forget(spot)
    assert places[0].known() is None
    await find(places[0])
    assert questions(cluster) == calls + 2
    places[0].forget(spot)
    assert places[0].known() is not None, "an old spot was taken for the new one"


def questions(cluster: Cluster) -> int:
    """How often the nodes were asked who serves what."""
    counts = 0
    for node in cluster.nodes:
        for line in node.command("INFO", "commandstats").decode().splitlines():
            if line.startswith("cmdstat_cluster|slots:calls="):
                counts += int(line.partition("calls=")[2].partition(",")[0])
    return counts


async def test_one_living_node_of_the_url_is_enough(cluster: Cluster, find: Find) -> None:
    url = f"redis+cluster://127.0.0.1:{free_port()},127.0.0.1:{cluster.nodes[-1].port}"
    assert (await find(place_at(url))).url == at(cluster.primary_of(cluster.slot_of(KEYS[0])))


async def test_nodes_that_were_learned_are_asked_too(cluster: Cluster, find: Find) -> None:
    """The node in the URL may be gone for good."""
    slot = cluster.slot_of(KEYS[0])
    first = next(node for node in cluster.primaries() if node is not cluster.primary_of(slot))
    place = place_at(f"redis+cluster://127.0.0.1:{first.port}")
    spot = await find(place)
    cluster.kill(first)
    place.forget(spot)
    assert (await find(place)).url == spot.url


async def test_a_node_that_stands_still_does_not_use_up_the_time(cluster: Cluster, find: Find) -> None:
    slot = cluster.slot_of(KEYS[0])
    silent = next(node for node in cluster.nodes if node != cluster.primary_of(slot))
    other = next(node for node in cluster.nodes if node is not silent)
    cluster.pause(silent)
    place = place_at(f"redis+cluster://127.0.0.1:{silent.port},127.0.0.1:{other.port}")
    async with asyncio.timeout(5):
        await find(place)


async def test_no_node_is_unavailable_and_named(find: Find) -> None:
    port = free_port()
    with pytest.raises(ServerUnavailable, match=f"none of 127.0.0.1:{port} answers: .*no server listens"):
        await find(place_at(f"redis+cluster://127.0.0.1:{port}"))


async def test_a_redirection_is_followed_at_once(cluster: Cluster) -> None:
    place = place_at(cluster.url)
    first = await place.find(LoopInquiry(5))
    place.heard(first, "MOVED 5 10.0.0.7:7007")
    second = spot_of(place)
    assert second.url == "redis://10.0.0.7:7007/0"
    place.heard(first, "MOVED 5 10.0.0.8:7008")
    assert spot_of(place) is second, "the first spot is not used any more"
    place.heard(second, "MOVED 5 :7009")
    assert spot_of(place).url == "redis://10.0.0.7:7009/0"
    place.heard(spot_of(place), "MOVED 5 ?:7010")
    assert spot_of(place).url == "redis://10.0.0.7:7010/0", "it does not know its own name"
    place.heard(spot_of(place), "CLUSTERDOWN The cluster is down")
    assert place.known() is None


def spot_of(place: Place) -> Spot:
    spot = place.known()
    assert spot is not None
    return spot


async def test_a_connection_goes_where_the_slot_went(cluster: Cluster, ask: Ask) -> None:
    slot = cluster.slot_of(KEYS[0])
    place = place_at(cluster.url)
    before = await ask(place)
    source, to = cluster.primary_of(slot), other_primary(cluster, slot)
    cluster.move_slot(slot, to)
    await told_that_it_moved(place)
    assert await ask(place) != before
    assert spot_of(place).url == at(to)
    cluster.move_slot(slot, source)


async def told_that_it_moved(place: Place) -> None:
    connection = Connection(place, timeout=5)
    with pytest.raises(ServerUnavailable, match="MOVED"):
        await connection.execute_command("GET", KEYS[0])
    assert await connection.execute_command("GET", KEYS[0]) is None
    await connection.close()


def other_primary(cluster: Cluster, slot: int) -> Any:
    return next(node for node in cluster.primaries() if node is not cluster.primary_of(slot))


async def test_what_is_no_cluster_says_so(tcp: str, find: Find) -> None:
    with pytest.raises(ServerRefused, match="is not part of a cluster; write redis://"):
        await find(place_at(tcp.replace("redis://", "redis+cluster://")))


@pytest.mark.parametrize("sync", [True, False])
async def test_one_node_of_a_cluster_as_a_server_says_what_to_write(cluster: Cluster, sync: bool) -> None:
    wrong = other_primary(cluster, cluster.slot_of(Keys("q").prefix))
    mq = RedisMessageQueue(at(wrong), name="q", server_check="off")
    with pytest.raises(ServerRefused, match=r"one node of a cluster.*write redis\+cluster://"):
        await (asyncio.to_thread(mq.sync.produce, "t", 1) if sync else mq.produce("t", 1))
    await mq.close()
    mq.sync.close()


# -- a slot that moves


async def test_a_call_is_refused_whole_while_its_slot_moves(cluster: Cluster) -> None:
    """A script would find a key gone half way, and the server keeps what it wrote until then."""
    prefix = Keys("q").prefix
    slot = key_slot(prefix.encode())
    source, to = cluster.primary_of(slot), other_primary(cluster, slot)
    connection = Connection(place_at(cluster.url, prefix), timeout=5)
    store = Store(connection, Keys("q", in_cluster=True), history=True)
    await store.produce("t", [NewMessage(f"A{n}", b"1") for n in range(5)])
    first, second, _ = (await store.claim("t", 3, lease=60, holder="w")).deliveries
    await store.complete("t", [(first, 60.0)])
    # Every key that the script names is there by now. The one in which it remembers the end is not.
    finished = [(second, Kept(60.0, 60.0, 1.0))]
    to.command("CLUSTER", "SETSLOT", slot, "IMPORTING", source.id)
    source.command("CLUSTER", "SETSLOT", slot, "MIGRATING", to.id)
    try:
        before = content(source, slot)
        calls: list[Callable[[], Awaitable[object]]] = [
            lambda: store.complete("t", finished),
            lambda: store.claim("t", 10, lease=60, holder="w"),
            lambda: store.produce("t", [NewMessage("B1", b"1")]),
            lambda: store.cancel(["A1"]),
        ]
        for call in calls:
            with pytest.raises(ServerUnavailable, match=r"TRYAGAIN|ASK"):
                await call()
            assert content(source, slot) == before
    finally:
        for node in (source, to):
            node.command("CLUSTER", "SETSLOT", slot, "STABLE")
    assert len(await store.complete("t", finished)) == 1
    await connection.close()


def content(node: Any, slot: int) -> dict[bytes, bytes]:
    return {key: node.command("DUMP", key) for key in node.command("CLUSTER", "GETKEYSINSLOT", slot, 1000)}


# -- Sentinel


async def test_the_primary_is_where_the_sentinels_say(sentinels: SentinelSet, find: Find) -> None:
    assert (await find(place_at(sentinels.url))).url == at(sentinels.primary())


async def test_a_sentinel_that_is_gone_or_stands_still_is_passed_over(
    sentinels: SentinelSet, find: Find
) -> None:
    gone, silent, _ = sentinels.sentinels
    sentinels.kill(gone)
    sentinels.pause(silent)
    place = place_at(sentinels.url)
    async with asyncio.timeout(5):
        spot = await find(place)
    assert spot.url == at(sentinels.primary())


async def test_without_any_sentinel_the_last_primary_is_used(sentinels: SentinelSet, find: Find) -> None:
    """A connection may be lost while the sentinels are away, and the primary be well."""
    place = place_at(sentinels.url)
    spot = await find(place)
    for sentinel in sentinels.sentinels:
        sentinels.kill(sentinel)
    place.forget(spot)
    assert (await find(place)).url == spot.url
    with pytest.raises(ServerUnavailable, match=r"none of .* answers"):
        await find(place_at(sentinels.url))


async def test_a_wrong_name_is_refused_with_the_right_one(sentinels: SentinelSet, find: Find) -> None:
    with pytest.raises(ServerRefused, match="watches no primary named 'mymastre'; did you mean 'mymaster'"):
        await find(place_at(sentinels.url.replace("mymaster", "mymastre")))
    with pytest.raises(ServerRefused, match="no primary named 'xyz'; it watches: mymaster"):
        await find(place_at(sentinels.url.replace("mymaster", "xyz")))


async def test_a_server_in_the_place_of_a_sentinel_is_told_apart(tcp: str, find: Find) -> None:
    with pytest.raises(ServerRefused, match="it is a server, not a sentinel"):
        await find(place_at(tcp.replace("redis://", "redis+sentinel://") + "/mymaster"))


async def test_a_replica_is_not_used_whatever_a_sentinel_said(sentinels: SentinelSet, ask: Ask) -> None:
    place: Any = place_at(sentinels.url)
    place._spot = Spot(at(sentinels.replicas()[0]))  # as a sentinel that was cut off would have it
    assert f"tcp_port:{sentinels.primary().port}\r".encode() in await ask(place)


async def test_an_open_connection_leaves_an_old_primary(sentinels: SentinelSet) -> None:
    """It lives on as a replica, and answers reads."""
    place, before = place_at(sentinels.url), sentinels.primary()
    connection = Connection(place, timeout=5)
    await connection.execute_command("SET", "k", "v")
    new = await asyncio.to_thread(sentinels.failover)
    await eventually(lambda: before.role() == "slave", 20)

    async def moved() -> bool:
        try:
            await connection.execute_command("SET", "k", "w")
        except ServerUnavailable:
            return False
        return f"tcp_port:{new.port}\r".encode() in await connection.execute_command("INFO", "server")

    await eventually(moved, 20)
    await connection.close()


# -- an embedded server


async def test_an_embedded_server_is_started_again(find: Find) -> None:
    address = Address(read_url("embedded://"))
    user = object()
    address.enter(user)
    try:
        place = address.place(KEYS[0])
        spot = place.known()
        assert spot is not None
        assert isinstance(address._server, EmbeddedServer)
        before = address._server.pid
        with closing(BlockingConnections(place, 5)) as connections, pytest.raises(ServerUnavailable):
            await asyncio.to_thread(run_blocking, connections.execute_command("SHUTDOWN", "NOSAVE"))
        await find(place)
        assert address._server.pid != before
    finally:
        address.end()


# -- the connections of one shard


async def test_connections_that_are_where_the_primary_went_stay_open(tcp: str) -> None:
    """Each of them finds it by itself, and the last to arrive must not close the others."""

    class Moving(Place):
        finds = True

        def place(self, key: str) -> Place:
            return self

        def move(self, url: str) -> None:
            self._spot = Spot(url)

    with EmbeddedServer.open() as successor:
        place = Moving(read_url(tcp))
        shard = Shard(place, Config(name="q", url=tcp))
        late, early, idle = shard.connection, shard._for_operators, shard.new_connection(0.0)
        for each in (late, early, idle):
            await each.execute_command("PING")
        place.move(successor.url)
        late.lose("a fault")
        early.lose("a fault")
        await early.execute_command("PING")
        assert not idle.number
        waiting = asyncio.ensure_future(early.execute_command("BLPOP", "nothing", 0.3))
        await late.execute_command("PING")
        assert await waiting is None
        assert early.number == late.number == 2
        await shard.close()
        await idle.close()
