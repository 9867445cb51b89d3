"""Work that takes a while: it shows how far it is, and says so when it is interrupted."""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from typing import TYPE_CHECKING

from mx_rmq.cli.exits import Exit, Failure

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from mx_rmq.cli.output import Output


@contextmanager
def long_work(
    out: Output, doing: str, done: str, total: int | None, *, then: str = "the same command goes on"
) -> Iterator[Callable[[int], None]]:
    """Show a bar on stderr; yields what to call with the number done so far.

    Args:
        out: where the bar is shown.
        doing: what is done, such as "replaying".
        done: the same when it is done, such as "replayed".
        total: how many there are; None if that is not known.
        then: what a person may do after an interruption.

    Raises:
        Failure: Ctrl-C was pressed; says how far the work got.
    """
    reached = 0
    with out.progress(doing, total) as show:

        def reach(number: int) -> None:
            nonlocal reached
            reached = number
            show(number)

        try:
            yield reach
        except asyncio.CancelledError:  # asyncio.run() cancels the command at Ctrl-C
            of = "" if total is None else f" of {total:,}"
            raise Failure(f"interrupted: {done} {reached:,}{of}; {then}", Exit.INTERRUPTED) from None
