"""Holds: messages with a key run after those of their key that are on shards of an older generation."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from mx_rmq.errors import ServerUnavailable
from mx_rmq.storage.queries import Queries
from mx_rmq.storage.shards import ask_all, ask_those_there
from mx_rmq.worker.rounds import PER_SECOND
from mx_rmq.worker.service import Service

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mx_rmq.storage.shard import Shard
    from mx_rmq.storage.shards import Shards

_INTERVAL: Final = 0.25
_NONE_HELD: Final = 2.0
"""Seconds between two looks while no topic is held."""
_LONGEST: Final = 5.0
"""Seconds after which one of many workers looks in any case."""
_SELDOM: Final = 5.0
"""Seconds between two looks while there is one generation: a producer may have held a topic too late."""


class Holds(Service):
    """Lets a held topic go when no shard of an older generation has a message of it pending or leased.

    Older shards take no messages, so what is there only gets less; what is retried or becomes due has lost
    its place anyway. What a worker gives back, or a vanished one leaves, has not.

    Args:
        shards: of the queue.
    """

    def __init__(self, shards: Shards) -> None:
        super().__init__("holds", shards.base.availability, _INTERVAL)
        self._shards = shards
        self._workers = 1
        """How many workers there are, as last heard; every one of them looks."""

    async def step(self) -> float:
        """Look once at all topics that are held."""
        generations, some_held = self._shards.generations, False
        for number, some in enumerate(generations):  # the oldest one too: it waits for nothing
            older = [shard for each in generations[number + 1 :] for shard in each]
            some_held |= await self._look(some, older)
        if len(generations) == 1:
            return _SELDOM
        await self._count(self._shards.current[0])
        return min(max(_INTERVAL if some_held else _NONE_HELD, self._workers / PER_SECOND), _LONGEST)

    async def wait(self, seconds: float) -> None:
        """Wait between two steps; ends early when the layout has changed."""
        await self.alarm.wait(seconds)

    async def _count(self, shard: Shard) -> None:
        with suppress(ServerUnavailable):
            key = shard.keys.of_queue("workers_seen")
            self._workers = await shard.store.commands.execute_command("ZCARD", key)

    async def _look(self, shards: Sequence[Shard], older: Sequence[Shard]) -> bool:
        """Let topics go on the shards of one generation; returns whether any was held there."""
        held: dict[Shard, set[str]] = {}

        async def read(shard: Shard) -> None:
            if topics := await Queries(shard.store).held():
                held[shard] = topics

        await ask_those_there(shards, read)
        topics = sorted(set[str]().union(*held.values()))
        if not topics:
            return False
        left = []
        for _ in range(2):  # a message that is given back may move to where was looked already
            left += await ask_all(older, lambda shard: Queries(shard.store).unfinished(*topics))
        free = {
            topic
            for topic, *each in zip(topics, *left, strict=True)
            if not any(here.pending or here.leased for here in each)
        }

        async def let_go(shard: Shard) -> None:
            await asyncio.gather(*(shard.store.let_go(topic) for topic in held[shard] & free))

        try:
            await ask_all(held, let_go)
        except ServerUnavailable as error:  # the others were let go
            self._availability.lost(self.name, error)
        return True
