"""Deleting a queue with all that it has on the server."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mx_rmq.errors import ConfigError
from mx_rmq.storage.layout import ONE
from mx_rmq.storage.queries import Queries
from mx_rmq.storage.shards import ask_all

if TYPE_CHECKING:
    from mx_rmq.storage.shard import Shard
    from mx_rmq.storage.shards import Shards

_PAGE: Final = 1000
"""Keys of the server looked at in one call."""


async def delete_queue(shards: Shards) -> int:
    """Delete every key of a queue; returns how many there were.

    Raises:
        ConfigError: a worker serves it.
    """
    for workers in await ask_all(await shards.now(), lambda shard: Queries(shard.operating).workers()):
        if workers:
            names = ", ".join(worker.name for worker in workers[:3])
            raise ConfigError(f"a queue that is served cannot be deleted; stop its workers first: {names}")
    # The layout goes last: if a shard does not answer, the queue is still what it was, and can be deleted.
    # Its copies go before it: by them the queue would be found again.
    deleted = await ask_all([shard for shard in shards if shard is not shards.base], _delete)
    if shards.layout != ONE:
        deleted += await ask_all(shards.copies, _forget_copy)
    return sum(deleted) + await _delete(shards.base)


async def _forget_copy(shard: Shard) -> int:
    """Delete a copy of the layout; a seal beside it stays, for programs that know no better."""
    deleted: int = await shard.operating.commands.execute_command("DEL", shard.keys.of_queue("layout"))
    return deleted


async def _delete(shard: Shard) -> int:
    command, prefix = shard.operating.commands.execute_command, shard.keys.prefix
    cursor, deleted = b"0", 0
    while True:
        # The braces of a prefix mean nothing in a pattern, and a queue's name has no sign that does.
        cursor, keys = await command("SCAN", cursor, "MATCH", f"{prefix}*", "COUNT", _PAGE)
        if keys:
            deleted += await command("UNLINK", *keys)
        if int(cursor) == 0:
            return deleted
