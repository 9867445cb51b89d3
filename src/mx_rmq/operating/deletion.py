"""Deleting a queue with all that it has on the server."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mx_rmq.errors import ConfigError
from mx_rmq.storage.queries import Queries

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mx_rmq.storage.shard import Shard

_PAGE: Final = 1000
"""Keys of the server looked at in one call."""


async def delete_queue(shards: Sequence[Shard]) -> int:
    """Delete every key of a queue; returns how many there were.

    Raises:
        ConfigError: a worker serves it.
    """
    for shard in shards:
        workers = await Queries(shard.operating).workers()
        if workers:
            names = ", ".join(worker.name for worker in workers[:3])
            raise ConfigError(f"a queue that is served cannot be deleted; stop its workers first: {names}")
    return sum([await _delete(shard) for shard in shards])


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
