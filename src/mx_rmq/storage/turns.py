"""What one worker at a time has: a plain key with its name, which expires by itself.

Only how often something is looked at depends on it, never a message.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from redis.exceptions import ResponseError

if TYPE_CHECKING:
    from mx_rmq.storage.store import Store


class MemoryFull(ResponseError):
    """The server reached its maxmemory, so no turn can be written."""


class Turns:
    """Turns at one thing.

    Args:
        store: of the shard.
        part: the key.
        worker: the name of the worker that asks.
    """

    def __init__(self, store: Store, part: str, worker: str) -> None:
        self._commands = store.commands
        self._key = store.keys.of_queue(part)
        self._worker = worker

    async def take(self, lasts: float) -> bool:
        """Take a turn of *lasts* seconds; False if another turn is not over.

        Raises:
            MemoryFull: no worker can take a turn now.
            ResponseError: the user may not do that.
        """
        return await self._set("NX", lasts)

    async def keep(self, lasts: float) -> bool:
        """Take a turn, or go on with the own one, for *lasts* seconds from now; False if another has it.

        Raises:
            ResponseError: the user may not do that, or the key is another program's.
        """
        if await self.take(lasts):
            return True
        if await self._commands.execute_command("GET", self._key) != self._worker.encode():
            return False
        return await self._set("XX", lasts)

    async def _set(self, only: str, lasts: float) -> bool:
        ms = round(lasts * 1000)
        try:
            return bool(await self._commands.execute_command("SET", self._key, self._worker, only, "PX", ms))
        except ResponseError as error:
            if "command not allowed when used memory" in str(error):
                raise MemoryFull(*error.args) from error
            raise
