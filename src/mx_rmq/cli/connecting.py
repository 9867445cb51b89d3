"""Opening the queue that a command works on."""

from __future__ import annotations

import difflib
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

from mx_rmq.cli.exits import NotFound
from mx_rmq.config import Config
from mx_rmq.queue import RedisMessageQueue

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from mx_rmq.cli.settings import Common

_PATIENCE: Final = 2.0
"""Seconds for which a command tries to reach the server; with the answer's timeout it ends within 5."""


@asynccontextmanager
async def opened(common: Common, *, must_exist: bool = True) -> AsyncIterator[RedisMessageQueue]:
    """The queue of the common options.

    Args:
        common: where it is.
        must_exist: whether a queue without topics and workers is refused, as its name is likely misspelt.

    Raises:
        ServerUnavailable: the server cannot be reached.
        NotFound: there is no such queue; says which there are.
    """
    config = Config(
        **common.options(), patience=_PATIENCE, socket_timeout=2.0, server_check="off", durability_timeout=1.0
    )
    async with RedisMessageQueue(config=config) as queue:
        if must_exist:
            await _refuse_unknown(queue)
        yield queue


def place_of(queue: RedisMessageQueue) -> str:
    """How a person knows the queue: its name and its server."""
    return f"queue {queue.config.name!r} on {queue.config.shown_url}"


async def _refuse_unknown(queue: RedisMessageQueue) -> None:
    names = await queue.queues()
    if queue.config.name in names or not names:
        return
    close = difflib.get_close_matches(queue.config.name, names, 1)
    hint = f"did you mean --queue {close[0]}?" if close else f"there are: {', '.join(names[:10])}"
    raise NotFound(f"there is no {place_of(queue)}; {hint}")
