"""``mx-rmq workers``."""

from __future__ import annotations

from mx_rmq.cli.connecting import opened
from mx_rmq.cli.output import At, Column, Output
from mx_rmq.cli.settings import Common

_DEFAULT = Common()


async def show_workers(*, common: Common = _DEFAULT) -> None:
    """Show the live workers: what they have, when they were seen, and what is wrong with them.

    "seen" is the last heartbeat, "claimed" the last answer to a claim, "lag" how late the event loop was.
    """
    out = Output(common)
    async with opened(common) as queue:
        workers = await queue.workers()
    columns: list[Column | str] = [
        Column("worker", is_whole=True),
        Column("host", is_optional=True),
        Column("pid", is_optional=True),
        "running",
        "held",
        Column("at once", is_optional=True),
        "seen",
        "claimed",
        Column("lag", is_optional=True),
        "topics",
        Column("problems", style="red"),
    ]
    rows = [
        (
            worker.name,
            worker.host,
            worker.pid if not out.is_terminal else str(worker.pid),
            worker.running,
            worker.held,
            worker.concurrency,
            At(worker.seen_at, workers.read_at),
            At(worker.claimed_at, workers.read_at),
            f"{worker.loop_lag * 1000:.0f} ms" if worker.version else None,
            ", ".join(worker.topics),
            "; ".join(worker.problems),
        )
        for worker in workers
    ]
    out.table(columns, rows, data=workers.as_dict(), empty="no live worker")
    out.missing(workers.missing)
