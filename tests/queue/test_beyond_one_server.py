"""A queue on a cluster and with Sentinel: only its URL differs, whatever happens to the primary."""

from __future__ import annotations

import asyncio
import socket
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest

from mx_rmq import RedisMessageQueue
from mx_rmq.errors import NotDurable, ServerRefused, ServerUnavailable
from mx_rmq.storage.keys import Keys
from mx_rmq.urls import read_url
from tests.rigs.cluster import Cluster
from tests.rigs.sentinel import SentinelSet
from tests.rigs.tls import TlsRig
from tests.words import eventually

SLOT = Cluster.slot_of(Keys("q").prefix)


class Traffic:
    """Messages that are produced and handled all the time, with and without an event loop."""

    def __init__(self, mq: RedisMessageQueue) -> None:
        self.mq = mq
        self.sent: list[int] = []
        self.handled: Counter[int] = Counter()
        self._ended = False

        @mq.handler("t")
        async def handle(payload: int) -> None:
            self.handled[payload] += 1

    async def goes_on(self) -> None:
        """Both producers are acknowledged, and messages produced since are handled."""
        before = len(self.sent)
        await eventually(lambda: {n % 2 for n in self.sent[before:]} == {0, 1}, 30)
        await eventually(lambda: all(n in self.handled for n in self.sent[before : before + 2]), 30)

    async def _produce(self) -> None:
        for n in range(0, 10**9, 2):
            if self._ended:
                return
            with suppress(NotDurable):
                await self.mq.produce("t", n)
                self.sent.append(n)
            await asyncio.sleep(0.005)

    def _produce_blocking(self) -> None:
        for n in range(1, 10**9, 2):
            if self._ended:
                return
            with suppress(NotDurable):
                self.mq.sync.produce("t", n)
                self.sent.append(n)

    @classmethod
    @asynccontextmanager
    async def at(cls, url: str, *, once: bool = True, **options: Any) -> AsyncIterator[Traffic]:
        """At the end, everything that was acknowledged has been handled.

        Args:
            url: of the queue.
            once: and not more than once.
            options: of the queue.
        """
        traffic = cls(RedisMessageQueue(url, name="q", server_check="off", **options))
        async with traffic.mq as mq:
            await mq.start()
            producers = asyncio.gather(traffic._produce(), asyncio.to_thread(traffic._produce_blocking))
            try:
                await traffic.goes_on()
                yield traffic
            finally:
                traffic._ended = True
                await producers
            await mq.drain(timeout=30)
        traffic.mq.sync.close()
        assert not [n for n in traffic.sent if n not in traffic.handled]
        assert not once or max(traffic.handled.values()) == 1


async def test_a_queue_follows_its_slot(cluster: Cluster) -> None:
    async with Traffic.at(cluster.url) as traffic:
        for node in [node for node in cluster.primaries() if node is not cluster.primary_of(SLOT)]:
            await asyncio.to_thread(cluster.move_slot, SLOT, node)
            await traffic.goes_on()


async def test_a_queue_goes_on_with_the_replica_that_takes_over(cluster: Cluster) -> None:
    async with Traffic.at(cluster.url) as traffic:
        await asyncio.to_thread(cluster.failover, SLOT)
        await traffic.goes_on()


async def test_what_a_replica_has_outlives_the_primary(cluster: Cluster) -> None:
    """A worker that waited at the killed primary handles it."""
    mq = RedisMessageQueue(cluster.url, name="q", server_check="off", durability="replicated")
    handled = Counter[int]()

    @mq.handler("t")
    async def handle(payload: int) -> None:
        handled[payload] += 1

    async with mq:
        await mq.start()
        await mq.pause("t")
        await mq.produce_many("t", range(200))
        before = cluster.primary_of(SLOT)
        cluster.kill(before)
        await asyncio.to_thread(cluster.wait_for_failover, SLOT, before)
        await eventually(lambda: resumed(mq), 20)
        await mq.drain(timeout=30)
    assert handled == Counter(range(200))


async def test_operators_are_told_which_node_has_a_shard(cluster: Cluster) -> None:
    """And of which node the doctor speaks."""
    mq = RedisMessageQueue(cluster.url, name="spread", shards=8, server_check="off")
    async with mq:
        shards = await mq.shards()
        checkup = await mq.doctor()
    nodes = [cluster.primary_of(cluster.slot_of(Keys("spread", shard.name).prefix)) for shard in shards]
    assert [shard.server for shard in shards] == [f"127.0.0.1:{node.port}" for node in nodes]
    assert len(set(nodes)) == 3
    said = {each.said.partition(": ")[0] for each in checkup.diagnoses if each.what == "memory"}
    assert said == {f"127.0.0.1:{node.port}" for node in nodes}


@pytest.mark.parametrize("kind", ["cluster://{}", "sentinel://{}/mymaster"])
@pytest.mark.parametrize("sync", [False, True])
async def test_tls_on_one_side_only_is_named_at_once(tcp: str, kind: str, sync: bool) -> None:
    """As it is for one server."""
    with TlsRig() as rig:
        mistakes = {
            f"redis+{kind.format(f'127.0.0.1:{rig.server.port}')}": "the server speaks TLS on this port",
            f"rediss+{kind.format(tcp.partition('://')[2])}": "the server does not speak TLS on this port",
        }
        for url, said in mistakes.items():
            mq = RedisMessageQueue(url, name="q", server_check="off")
            async with asyncio.timeout(mq.config.socket_timeout):
                with pytest.raises(ServerRefused, match=said):
                    await (asyncio.to_thread(mq.sync.produce, "t", 1) if sync else mq.produce("t", 1))
            await mq.close()
            mq.sync.close()


async def resumed(mq: RedisMessageQueue) -> bool:
    try:
        await mq.resume("t")
    except ServerUnavailable:
        return False
    return True


@pytest.mark.parametrize("fault", [SentinelSet.kill, SentinelSet.pause])
async def test_a_queue_goes_on_with_the_primary_that_the_sentinels_chose(
    sentinels: SentinelSet, fault: Callable[[SentinelSet, Any], None]
) -> None:
    """What was handled may be handled again: the new primary may not have heard of it."""
    async with Traffic.at(
        sentinels.url, once=False, durability="replicated", socket_timeout=1.5, durability_timeout=1.5
    ) as traffic:
        before = sentinels.primary()
        fault(sentinels, before)
        await asyncio.to_thread(sentinels.wait_for_failover, before)
        await traffic.goes_on()


async def test_a_queue_in_an_embedded_cluster_ends_with_it() -> None:
    async with Traffic.at("embedded+cluster://") as traffic:
        server = traffic.mq._lifecycle._address._server
        assert server is not None
        nodes = read_url(server.url).nodes
        assert len(nodes) == 3
    for node in nodes:
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(node)
