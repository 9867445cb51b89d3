"""Reading what a person types, so that Ctrl-C ends it."""

from __future__ import annotations

import signal
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

from mx_rmq.tables import printable

if TYPE_CHECKING:
    from collections.abc import Iterator


def answer(question: str) -> str:
    """What a person answers, in lower case."""
    print(printable(question), end="", file=sys.stderr, flush=True)
    with interruptible():
        return sys.stdin.readline().strip().lower()


@contextmanager
def interruptible() -> Iterator[None]:
    """Let Ctrl-C end a read that blocks: asyncio would cancel the command's task, which cannot run then."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
