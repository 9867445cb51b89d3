"""``mx-rmq topics`` and ``mx-rmq topic pause|resume|purge``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final

from cyclopts import App, Parameter

from mx_rmq.cli.completion import Topic
from mx_rmq.cli.connecting import known_topic, opened, place_of
from mx_rmq.cli.files import new_file
from mx_rmq.cli.long_work import long_work
from mx_rmq.cli.output import At, Column, Output
from mx_rmq.cli.settings import Common
from mx_rmq.errors import ServerUnavailable
from mx_rmq.limits import BATCH
from mx_rmq.tables import counted

if TYPE_CHECKING:
    from mx_rmq.operating.messages import Listed
    from mx_rmq.queue import RedisMessageQueue

_DEFAULT = Common()
_PAGE: Final = 100
"""Messages read in one call when they are exported: each may have a large body."""

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
    out.missing(counts.missing)


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
async def purge(
    name: Topic,
    /,
    *,
    export_to: Annotated[str | None, Parameter(name="--export")] = None,
    yes: bool = False,
    common: Common = _DEFAULT,
) -> None:
    """Withdraw all pending and delayed messages of a topic for good; dead messages stay.

    Args:
        name: the topic.
        export_to: a new file to write them to first, as lines of JSON.
        yes: do not ask.
    """
    out = Output(common)
    async with opened(common) as queue:
        counts = await queue.counts()
        if counts.missing:  # or the question would name too few
            raise ServerUnavailable(f"nothing was withdrawn: {'; '.join(counts.missing)}")
        of = counts.topics.get(name)
        waiting = of.pending + of.delayed if of else 0
        if waiting:
            question = f"Withdraw {waiting:,} messages of topic {name!r} from {place_of(queue)} for good"
            out.confirm(f"{question}?" if export_to is None else f"{question}, kept in {export_to}?", yes=yes)
        if export_to is None:
            purged, kept = await queue.purge(name), ""
            data: dict[str, Any] = {"topic": name, "purged": purged}
        else:
            await known_topic(queue, name)
            exported, purged = await _export_and_withdraw(out, queue, name, export_to, waiting)
            kept = f"; kept in {export_to}"
            data = {"topic": name, "purged": purged, "exported": exported, "file": export_to}
        out.line(f"withdrew {purged:,} messages of {name}{kept}", data=data)


async def _export_and_withdraw(
    out: Output, queue: RedisMessageQueue, topic: str, name: str, waiting: int
) -> tuple[int, int]:
    """Write pending and delayed messages to a file, and withdraw those once it is whole; returns both counts.

    What is produced in between stays: it is not in the file. What a worker takes in between is in the file
    all the same.
    """
    ids: dict[str, None] = {}
    states: tuple[Listed, ...] = ("pending", "delayed")
    stopped = "nothing was withdrawn, and the file was removed"
    with new_file(name) as write, long_work(out, "exporting", "exported", waiting, then=stopped) as progress:
        for state in states:
            after: str | None = None
            while True:
                page = await queue.list(topic, state=state, limit=_PAGE, after=after)
                if page.missing:  # or the file would not have all
                    raise ServerUnavailable("; ".join(page.missing))
                for facts in page.messages:
                    if facts.id not in ids:
                        ids[facts.id] = None
                        write(facts.as_dict())
                progress(len(ids))
                after = page.next
                if after is None:
                    break
    left = f"all are in {name}; the same command with another file goes on"
    with long_work(out, "withdrawing", "withdrew", len(ids), then=left) as progress:
        withdrawn = 0
        every = list(ids)
        for start in range(0, len(every), BATCH):
            withdrawn += await queue.cancel_many(every[start : start + BATCH])
            progress(withdrawn)
    if withdrawn < len(every):
        missed = counted(len(every) - withdrawn, "message")
        why = "workers had taken them; pause the topic first to avoid this"
        out.remark(f"{missed} in {name} not withdrawn: {why}")
    return len(every), withdrawn
