"""Opening the queue that a command works on."""

from __future__ import annotations

import difflib
import logging
import re
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

from redis.exceptions import ResponseError

from mx_rmq.cli.exits import Failure, NotFound
from mx_rmq.config import Config
from mx_rmq.errors import ServerUnavailable, StoreError
from mx_rmq.queue import RedisMessageQueue

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from mx_rmq.cli.settings import Common

_PATIENCE: Final = 2.0
"""Seconds for which a command tries to reach the server; with the answer's timeout it ends within 5."""
_NO_RIGHT: Final = re.compile(r"NOPERM|no permissions|ACL failure|user executing the script")
_COMMAND: Final = re.compile(r"run the '([^']+)' command")


@asynccontextmanager
async def opened(common: Common, *, must_exist: bool = True) -> AsyncIterator[RedisMessageQueue]:
    """The queue of the common options.

    Args:
        common: where it is.
        must_exist: whether a queue without topics and workers is refused, as its name is likely misspelt.

    Raises:
        ServerUnavailable: the server cannot be reached.
        NotFound: there is no such queue; says which there are.
        Failure: the server's user lacks a right; says which.
    """
    config = Config(
        **common.options(), patience=_PATIENCE, socket_timeout=2.0, server_check="off", durability_timeout=1.0
    )
    logging.getLogger("mx_rmq").addHandler(logging.NullHandler())  # a command says itself what went wrong
    try:
        async with RedisMessageQueue(config=config) as queue:
            if must_exist:
                await _refuse_unknown(queue)
            yield queue
    except (ResponseError, StoreError) as error:
        raise _refused(error) from error


def place_of(queue: RedisMessageQueue) -> str:
    """How a person knows the queue: its name and its server."""
    return f"queue {queue.config.name!r} on {queue.config.shown_url}"


async def known_topic(queue: RedisMessageQueue, topic: str) -> None:
    """Refuse a topic that is neither produced to nor served: its name is likely misspelt.

    Raises:
        NotFound: names the closest one.
    """
    known = {*await queue.topics(), *(name for worker in await queue.workers() for name in worker.topics)}
    if topic not in known:
        close = difflib.get_close_matches(topic, known, 1)
        hint = f"did you mean {close[0]!r}?" if close else "mx-rmq topics shows those that there are"
        raise NotFound(f"there is no topic {topic!r} in {place_of(queue)}; {hint}")


def _refused(error: Exception) -> Exception:
    """What to say when the server refused a command."""
    text = str(error)
    if not _NO_RIGHT.search(text):
        return error if isinstance(error, StoreError) else Failure(f"the server refuses: {text}")
    command = _COMMAND.search(text)
    right = f"the right +{command[1]}" if command else f"a right ({text})"
    return Failure(f"the server's user lacks {right}; mx-rmq doctor tells which rights are missing for what")


async def _refuse_unknown(queue: RedisMessageQueue) -> None:
    try:
        if await queue.topics() or await queue.workers():
            return
    except ServerUnavailable as error:
        if not str(error).startswith("shard "):
            raise
        return  # one of several shards is away, so there is the queue
    names = await queue.queues()  # reads the names of all keys, so only for a queue that seems not to exist
    if queue.config.name in names or not names:
        return
    close = difflib.get_close_matches(queue.config.name, names, 1)
    hint = f"did you mean --queue {close[0]}?" if close else f"there are: {', '.join(names[:10])}"
    raise NotFound(f"there is no {place_of(queue)}; {hint}")
