"""How many nodes, shards and workers it takes: the tables of docs/scaling.md, from what was measured."""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING

from rich.table import Table

from benchmarks.costs import MANY, SOME

if TYPE_CHECKING:
    from benchmarks.costs import Costs

BUSY = 0.6
"""The part of a core that messages may take at the planned rate; the rest is for peaks and recovery."""
MEMORY = 16e9
"""Bytes of messages on a node: half of 32 GB, since a snapshot may need as much again."""
MAX_CLIENTS = 10_000
"""Connections to a node, as servers are configured by default."""
PER_NODE = 2
"""Shards for each of several nodes, so that a queue can grow to twice as many without a reshard."""

RATES = (10_000, 100_000, 1_000_000)
DELAYED = (1_000_000, 10_000_000, 100_000_000, 1_000_000_000)
WORKERS = (10, 100, 1_000, 10_000)


def nodes_for(rate: float, server: float) -> int:
    """Primaries for so many messages a second, each of which costs *server* µs in all."""
    return ceil(rate * server / 1e6 / BUSY)


def shards_for(nodes: int) -> int:
    return 1 if nodes == 1 else PER_NODE * nodes


def processes_for(rate: float, client: float) -> int:
    """Processes that produce and handle, each on one core; the time of the handlers comes on top."""
    return ceil(rate * client / 1e6 / BUSY)


def nodes_to_hold(messages: float, size: float) -> int:
    return ceil(messages * size / MEMORY)


def rates(costs: Costs) -> Table:
    table = _table("messages a second", "travel", "nodes", "shards", "processes", "cores of servers", "MB/s")
    for rate in RATES:
        for travel, server, client, wire in (
            ("in batches", costs.batched_server, costs.batched_client, costs.batched_wire),
            ("alone", costs.alone_server, costs.alone_client, costs.alone_wire),
        ):
            nodes = nodes_for(rate, server)
            table.add_row(
                f"{rate:,}",
                travel,
                f"{nodes:,}",
                f"{shards_for(nodes):,}",
                f"{processes_for(rate, client):,}",
                f"{rate * server / 1e6:,.1f}",
                f"{rate * wire / 1e6:,.0f}",
            )
    return table


def delays(costs: Costs) -> Table:
    table = _table("delayed messages", "GB", "nodes", "shards", "GB if pending")
    for messages in DELAYED:
        nodes = nodes_to_hold(messages, costs.delayed)
        table.add_row(
            f"{messages:,}",
            f"{messages * costs.delayed / 1e9:,.1f}",
            f"{nodes:,}",
            f"{shards_for(nodes):,}",
            f"{messages * costs.pending / 1e9:,.1f}",
        )
    return table


def idle_of(costs: Costs, workers: int) -> float:
    """What each costs when idle, at most: the more there are, the less."""
    if workers >= MANY:
        return costs.idle_of_many
    return costs.idle_of_some if workers >= SOME else costs.idle_of_few


def workers(costs: Costs) -> Table:
    table = _table("workers", "shards on a node", "connections to it", "core when idle", "maxclients")
    for count in WORKERS:
        idle = idle_of(costs, count)
        for shards in (1, PER_NODE):
            links = count * costs.connections * shards
            table.add_row(
                f"{count:,}",
                f"{shards}",
                f"{links:,.0f}",
                f"{count * idle * shards / 1e4:.1f} %",
                "as it is" if links < MAX_CLIENTS else f"raise to {ceil(links * 1.2 / 10_000) * 10_000:,}",
            )
    return table


def tables(costs: Costs) -> list[Table]:
    return [rates(costs), delays(costs), workers(costs)]


def _table(*columns: str) -> Table:
    table = Table(*columns)
    for column in table.columns:
        column.justify = "right"
    return table
