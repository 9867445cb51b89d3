"""``mx-rmq shards`` and ``mx-rmq reshard``."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from mx_rmq.checks import check_whole
from mx_rmq.cli.connecting import opened, place_of
from mx_rmq.cli.exits import Exit, Failure
from mx_rmq.cli.output import Column, Output
from mx_rmq.cli.settings import Common
from mx_rmq.cli.words import counted
from mx_rmq.limits import MOST_SHARDS

if TYPE_CHECKING:
    from mx_rmq.operating.resharding import Resharding, ShardFacts

_DEFAULT = Common()


async def show_shards(*, common: Common = _DEFAULT) -> None:
    """Show the shards of the queue and what each has; those that drain take no new messages."""
    out = Output(common)
    async with opened(common) as queue:
        shards = await queue.shards()
    columns: list[Column | str] = [
        Column("shard", is_whole=True),
        "generation",
        "state",
        "pending",
        "processing",
        "delayed",
        "dead",
        Column("server", is_optional=True),
        Column("error", style="red"),
    ]
    rows = [
        (
            shard.name or "-",
            shard.generation,
            shard.state,
            *_figures(shard),
            shard.server,
            shard.error,
        )
        for shard in shards
    ]
    out.table(columns, rows, data=shards.as_dict(), empty="no shard")


def _figures(shard: ShardFacts) -> tuple[int | None, ...]:
    if shard.error:
        return (None,) * 4
    return shard.pending, shard.processing, shard.delayed, shard.dead


async def reshard(shards: int, /, *, yes: bool = False, common: Common = _DEFAULT) -> None:
    """Spread the queue over another number of shards, while producers and workers go on.

    It ends when the older shards are empty, which takes as long as their delayed messages are delayed. At
    Ctrl-C all shards are served as before; the same command goes on.

    Args:
        shards: how many the queue gets.
        yes: do not ask.
    """
    out = Output(common)
    check_whole("shards", shards, 1, MOST_SHARDS)
    last: Resharding | None = None
    async with opened(common) as queue:
        before = await queue.shards()
        serving = [shard for shard in before if shard.generation == before[0].generation]
        if len(serving) == shards == len(before):
            out.line(f"{place_of(queue)} has {counted(shards, 'shard')} already", data={"shards": shards})
            return
        verb = "Go on to spread" if len(serving) == shards else "Spread"
        out.confirm(f"{verb} {place_of(queue)} over {counted(shards, 'shard')}?", yes=yes)
        total = sum(shard.pending + shard.processing + shard.delayed + shard.dead for shard in before)
        if total > sum(shard.dead for shard in before) and not await queue.workers():
            out.remark("no worker is live: the messages of the older shards wait until one runs")
        with out.progress("draining", total) as show:

            def tell(now: Resharding) -> None:
                nonlocal last
                for why in now.away if last is None else set(now.away) - set(last.away):
                    out.remark(f"waiting for {why}")
                last = now
                show(max(0, total - now.left))

            try:
                await queue.reshard(shards, progress=tell)
            except asyncio.CancelledError:  # asyncio.run() cancels the command at Ctrl-C
                left = "some messages" if last is None else counted(last.left, "message")
                said = f"interrupted: {left} left on older shards, which are served; the same command goes on"
                raise Failure(said, Exit.INTERRUPTED) from None
        moved = last.moved if last is not None else 0
        dead = f"; {counted(moved, 'dead message')} moved" if moved else ""
        out.line(
            f"{place_of(queue)} has {counted(shards, 'shard')} now{dead}",
            data={"shards": shards, "moved": moved},
        )
