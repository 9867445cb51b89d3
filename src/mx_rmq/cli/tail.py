"""``mx-rmq tail``."""

from __future__ import annotations

import logging
from contextlib import aclosing
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter
from rich.text import Text

from mx_rmq.cli.connecting import opened, place_of
from mx_rmq.cli.output import At, Output
from mx_rmq.cli.settings import Common
from mx_rmq.tables import one_line

if TYPE_CHECKING:
    from mx_rmq import TailEvent

_DEFAULT = Common()
_STYLES = {logging.DEBUG: "green", logging.INFO: "cyan", logging.WARNING: "yellow", logging.ERROR: "bold red"}
_LONGEST = 2000


async def show_tail(
    topic: str | None = None,
    /,
    *,
    event: Annotated[list[str] | None, Parameter(name=("--event", "-e"))] = None,
    common: Common = _DEFAULT,
) -> None:
    """Show what happens in all workers of the queue, until Ctrl-C.

    Events of producers are not shown. A worker shows at most some hundred events a second, and then says how
    many more there were.

    Args:
        topic: only events of this topic.
        event: only these events, such as dead, retried, completed or worker.started; several are possible.
    """
    out = Output(common)
    async with opened(common) as queue:
        events = queue.tail(topic, events=[name for some in event or () for name in some.split(",") if name])
        workers = len(await queue.workers())
        out.remark(
            f"{workers} live worker{'' if workers == 1 else 's'} of {place_of(queue)}; Ctrl-C ends this"
        )
        async with aclosing(events):
            async for each in events:
                _show(out, each)


def _show(out: Output, each: TailEvent) -> None:
    event = each.event
    text = one_line(event.text, _LONGEST)
    if not out.is_terminal:
        out.record(each.as_dict(), "\t".join((At(each.at).plain, event.name, each.worker, text)))
        return
    moment = At(each.at).moment
    shown = Text.assemble(
        (f"{moment:%H:%M:%S.%f}"[:-3] if moment else "?", "dim"),
        "  ",
        (event.name.ljust(18), _STYLES.get(event.level, "")),
        " ",
        text,
        (f"  [{_short(each.worker)}]" if each.worker else "", "dim"),
    )
    out.styled(shown)


def _short(worker: str) -> str:
    """A worker's name without its random part."""
    return worker.rpartition(".")[0] or worker
