"""``mx-rmq topics`` and ``mx-rmq topic pause|resume|purge``."""

from __future__ import annotations

from cyclopts import App

from mx_rmq.cli.completion import Topic
from mx_rmq.cli.connecting import opened, place_of
from mx_rmq.cli.output import At, Column, Output
from mx_rmq.cli.settings import Common

_DEFAULT = Common()

topic = App(name="topic", help="Pause, resume or purge a topic.")


async def show_topics(*, common: Common = _DEFAULT) -> None:
    """Show how every topic stands.

    A topic's state is paused, "no worker" if messages wait and no live worker serves it, else running.
    """
    out = Output(common)
    async with opened(common) as queue:
        counts = await queue.counts()
        served = {name for worker in await queue.workers() for name in worker.topics}
    columns: list[Column | str] = [
        "topic",
        "pending",
        "running",
        Column("held", is_optional=True),
        "delayed",
        Column("dead", style="red"),
        Column("completed", is_optional=True),
        "oldest",
        "state",
    ]
    rows = []
    for name, of in counts.topics.items():
        waits = of.pending + of.delayed > 0
        state = "paused" if of.paused else "no worker" if waits and name not in served else "running"
        age = At(of.oldest_at, counts.read_at)
        rows.append((name, of.pending, of.running, of.held, of.delayed, of.in_dlq, of.completed, age, state))
    out.table(columns, rows, data=counts.as_dict(), empty="no topic yet")


@topic.command
async def pause(name: Topic, /, *, common: Common = _DEFAULT) -> None:
    """Stop the delivery of a topic; what runs goes on, what is produced waits.

    Args:
        name: the topic.
    """
    out = Output(common)
    async with opened(common) as queue:
        await queue.pause(name)
        out.line(f"paused {name}; mx-rmq topic resume {name} undoes it", data={"paused": name})


@topic.command
async def resume(name: Topic, /, *, common: Common = _DEFAULT) -> None:
    """Deliver a paused topic again.

    Args:
        name: the topic.
    """
    out = Output(common)
    async with opened(common) as queue:
        await queue.resume(name)
        out.line(f"resumed {name}", data={"resumed": name})


@topic.command
async def purge(name: Topic, /, *, yes: bool = False, common: Common = _DEFAULT) -> None:
    """Withdraw all pending and delayed messages of a topic for good; dead letters stay.

    Args:
        name: the topic.
        yes: do not ask.
    """
    out = Output(common)
    async with opened(common) as queue:
        of = (await queue.counts()).topics.get(name)
        waiting = of.pending + of.delayed if of else 0
        if waiting:
            question = f"Withdraw {waiting:,} messages of topic {name!r} from {place_of(queue)} for good?"
            out.confirm(question, yes=yes)
        purged = await queue.purge(name)
        out.line(f"withdrew {purged:,} messages of {name}", data={"topic": name, "purged": purged})
