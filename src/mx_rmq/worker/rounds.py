"""Rounds: which worker looks after the shard now, so that many workers cost the server no more than a few.

A round is a look at what no single worker owns: connections of other workers, deadlines, due times. Each of
a few workers makes rounds of its own. Many workers take turns, and the more there are, the more seldom each
asks for one. No worker is elected for long: one that dies, hangs or stands still costs the others one turn.
"""

from __future__ import annotations

import asyncio
from math import inf
from random import random, uniform
from typing import TYPE_CHECKING, Final, NamedTuple

from redis.exceptions import ResponseError

from mx_rmq.storage.queries import Queries
from mx_rmq.storage.turns import MemoryFull, Turns

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from mx_rmq.config import Config
    from mx_rmq.worker.holdings import Holdings

FEW: Final = 16
"""Up to so many workers each make rounds of their own; those that were just killed count until then."""
PER_SECOND: Final = 16
"""How often in a second many workers together ask for a turn at least."""
_BUSY: Final = 0.5
"""Seconds between two rounds of a worker that holds messages."""
_IDLE: Final = 1.0
"""Seconds between two rounds of a worker that holds none."""
_LONGEST: Final = 10.0
"""Seconds after which a worker asks in any case."""
_TURN: Final = 0.45
"""Seconds between two turns, if there are not very many workers."""
_LOOK: Final = 0.002
"""Seconds between two turns for each worker that is looked at. The server needs 4 to 17 µs for each."""
_TURNS_MISSED: Final = 10
"""After so many times the usual wait for a turn, a worker makes a round without: the key may be spoilt."""


class Round(NamedTuple):
    """The answer to a worker that asked for a turn."""

    mine: bool
    heard: tuple[float, float] | None = None
    """When the server's time was asked for, by the loop's clock, and the server's time."""


class Rounds:
    """Decides when one worker makes a round of one shard.

    Args:
        holdings: what the worker holds on the shard.
        config: of the queue.
        worker: the worker's name.
        also: asks the server something else each time, in the same round trip.
    """

    def __init__(
        self,
        holdings: Holdings,
        config: Config,
        worker: str,
        also: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self._holdings = holdings
        self._queries = Queries(holdings.shard.store)
        self._turns = Turns(holdings.shard.store, "observer", worker)
        self._also = also or _nothing
        # If the server stands still for two thirds of a lease, leases of living owners end. Every worker must
        # ask it something in that time: one that notices the pause gives the owners time.
        self._longest = min(_LONGEST, 0.6 * config.lease)
        self._loop = asyncio.get_running_loop()
        self._asked_at, self._made_at = -inf, self._loop.time()
        self._spread = 1.0
        self._goes_at = inf
        """When to make a round while no worker can take a turn; inf while they can."""

    @property
    def are_shared(self) -> bool:
        """Whether there are so many workers that they take turns."""
        return self._holdings.workers > FEW

    def wait(self) -> float:
        """Seconds until it is time to ask."""
        return max(0.0, self._asked_at + self._every() * self._spread - self._loop.time())

    async def ask(self) -> Round:
        """Ask for the next turn."""
        now, heard, mine = self._loop.time(), None, True
        if self.are_shared:
            timed = self._queries.timed(self._loop.time)
            heard, mine, _ = await asyncio.gather(timed, self._turn(), self._also())
        else:
            await self._also()
        self._asked_at = now
        self._spread = uniform(0.7, 1.0) if self.are_shared else 1.0  # noqa: S311 - spreads the work
        if mine:
            self._made_at = now
        return Round(mine, heard)

    async def _turn(self) -> bool:
        workers = self._holdings.workers
        lasts = max(_TURN, _LOOK * workers)
        usual = max(workers * lasts, self._every())
        try:
            mine = await self._turns.take(lasts)
        except MemoryFull:
            return self._goes(usual)
        except ResponseError:  # no right to write the key
            mine = False
        self._goes_at = inf
        return mine or self._loop.time() - self._made_at > _TURNS_MISSED * usual

    def _goes(self, usual: float) -> bool:
        """Whether to make a round though no worker can take a turn: about as often as with turns, by chance.

        Args:
            usual: seconds from one turn of a worker to its next.
        """
        now = self._loop.time()
        if self._goes_at == inf:  # all learn of it together
            self._goes_at = now + usual * random()  # noqa: S311 - spreads the work
        if now < self._goes_at:
            return False
        self._goes_at = now + usual * uniform(0.5, 1.5)  # noqa: S311 - spreads the work
        return True

    def _every(self) -> float:
        """Seconds between two questions of this worker."""
        least = _BUSY if self._holdings.jobs else min(_IDLE, max(_BUSY, self._longest))
        return max(least, min(self._holdings.workers / PER_SECOND, self._longest))


async def _nothing() -> None:
    pass
