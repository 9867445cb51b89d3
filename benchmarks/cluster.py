"""A queue on three primaries, with 1 to 8 shards: speed, and where the processor time goes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

from redis.crc import key_slot

from benchmarks.bench import PAYLOAD, own_core, ratio, steady_cores
from benchmarks.rows import Row
from mx_rmq import RedisMessageQueue
from mx_rmq.storage.embedded_cluster import SLOTS, EmbeddedCluster, client_of

NODES = 3
SHARDS = (1, 2, 4, 8)
CLIENT = 1.2
"""How much more processor time than with one shard a client may take for a message."""
NODE = 0.5
"""How much of it the busiest of three nodes may take with 8 shards: three of them are 0.375."""

STARTING = 0.5
"""Seconds that a worker gets to connect to all shards and to look at each for the first time. That costs the
same for any number of messages, so it is no part of what one costs."""


class Measured(NamedTuple):
    """One queue filled and emptied; processor time in seconds for each message."""

    produced: float
    """Messages a second."""
    drained: float
    client: float
    nodes: list[float]


async def cluster(scale: float, rounds: int) -> Iterator[Row]:
    count = round(20_000 * scale)
    cluster = EmbeddedCluster.open(NODES)
    try:
        with steady_cores(), own_core(int(said["process_id"]) for said in info(cluster, "server")):
            runs = [{n: await one_run(cluster, n, count) for n in SHARDS} for _ in range(3 * rounds)]
    finally:
        cluster.close(expected=True)
    rows: list[Row] = []
    for n in SHARDS:
        of_n = [run[n] for run in runs]
        named = f"{n} shard{'s' if n > 1 else ''} on {NODES} nodes"
        rows += [
            Row(f"{named}: produce_many", max(one.produced for one in of_n), "msg/s"),
            Row(f"{named}: drain", max(one.drained for one in of_n), "msg/s"),
            Row(f"{named}: server CPU per message, all nodes", least(sum(one.nodes) for one in of_n), "µs"),
            Row(f"{named}: server CPU per message, busiest node", least(max(o.nodes) for o in of_n), "µs"),
            Row(f"{named}: client CPU per message", least(one.client for one in of_n), "µs"),
        ]
    one = [run[1] for run in runs]
    for n in SHARDS[1:]:
        of_n = [run[n] for run in runs]
        client = ratio([each.client for each in of_n], [each.client for each in one])
        node = ratio([max(each.nodes) for each in of_n], [max(each.nodes) for each in one])
        reach = f"<= {NODE}" if n == SHARDS[-1] else ""
        rows += [
            Row(f"{n} shards / 1 shard: server CPU per message, busiest node", node, "x", reach),
            Row(f"{n} shards / 1 shard: client CPU per message", client, "x", f"<= {CLIENT}"),
        ]
    return iter(rows)


def least(seconds: Iterator[float]) -> float:
    """As µs."""
    return min(seconds) * 1e6


async def one_run(cluster: EmbeddedCluster, shards: int, count: int) -> Measured:
    for port in ports(cluster):
        with client_of(port) as node:
            node.execute_command("FLUSHALL", "SYNC")
    mq = RedisMessageQueue(cluster.url, name=spread_name(), shards=shards, server_check="off", concurrency=64)
    left, finished = count, asyncio.Event()

    @mq.handler("orders")
    async def on_order(payload: dict[str, Any]) -> None:
        nonlocal left
        left -= 1
        if not left:
            finished.set()

    async with mq:
        await mq.pause("orders")
        await mq.start()
        await asyncio.sleep(STARTING)
        before, busy, started = cpu_of(cluster), time.process_time(), time.perf_counter()
        await mq.produce_many("orders", (PAYLOAD for _ in range(count)))
        produced = time.perf_counter() - started
        await mq.resume("orders")
        started = time.perf_counter()
        await finished.wait()
        await mq.drain()
        drained = time.perf_counter() - started
        client, after = time.process_time() - busy, cpu_of(cluster)
    nodes = [(late - early) / count for early, late in zip(before, after, strict=True)]
    return Measured(count / produced, count / drained, client / count, nodes)


def ports(cluster: EmbeddedCluster) -> list[int]:
    return [int(place.rpartition(":")[2]) for place in cluster.url.split(",")]


def cpu_of(cluster: EmbeddedCluster) -> list[float]:
    """Seconds of processor time that each node has used."""
    return [float(said["used_cpu_user"]) + float(said["used_cpu_sys"]) for said in info(cluster, "cpu")]


def info(cluster: EmbeddedCluster, section: str) -> Iterator[dict[str, str]]:
    """What each node says about itself."""
    for port in ports(cluster):
        with client_of(port) as node:
            lines = node.execute_command("INFO", section).decode().splitlines()
        yield dict(line.split(":", 1) for line in lines if ":" in line)


def spread_name() -> str:
    """A name with which 2, 4 and 8 shards are divided evenly between the nodes."""
    return next(name for n in range(10_000) if is_spread(name := f"bench-{n}"))


def is_spread(name: str) -> bool:
    nodes = [key_slot(f"{{{name}:{n}}}".encode()) * NODES // SLOTS for n in range(SHARDS[-1])]
    return all(
        max(nodes[:shards].count(node) for node in range(NODES)) == -(-shards // NODES)
        for shards in SHARDS[1:]
    )
