"""What a server says of itself, for the doctor."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from statistics import median
from typing import TYPE_CHECKING, Final

from redis.exceptions import ResponseError

from mx_rmq.storage.queries import Queries
from mx_rmq.storage.rights import Rights, read_rights
from mx_rmq.storage.scripts import SCRIPTS

if TYPE_CHECKING:
    from mx_rmq.storage.store import Store

_ROUND_TRIPS: Final = 10


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """A server at one instant."""

    info: dict[str, str]
    """The fields of INFO; empty if the user may not read them."""
    round_trips: list[float]
    """Seconds that it took to answer, each time it was asked."""
    clock: float
    """How many seconds its clock is ahead of this computer's."""
    rights: Rights
    fsync: str = ""
    """When it writes the append-only file to disk; empty if the user may not read that."""
    loaded: int | None = None
    """How many of the scripts of this version it has in its cache; None if the user may not ask."""
    scripts: int = field(default=len(SCRIPTS))
    """How many scripts this version has."""

    @property
    def latency(self) -> float:
        """The median of the round trips."""
        return median(self.round_trips)


async def read_server(store: Store) -> ServerFacts:
    """Ask a server about itself; what its user may not read is left out.

    Raises:
        ServerUnavailable: it does not answer.
    """
    execute = store.commands.execute_command
    trips: list[tuple[float, float]] = []
    for _ in range(_ROUND_TRIPS):
        asked, began = time.time(), time.perf_counter()
        seconds, us = await execute("TIME")
        trip = time.perf_counter() - began
        trips.append((trip, int(seconds) + int(us) / 1e6 - asked - trip / 2))
    try:
        info = await Queries(store).info()
    except ResponseError:
        info = {}
    try:
        found = await execute("CONFIG", "GET", "appendfsync")
        fsync = found[1].decode() if len(found) == 2 else ""
    except ResponseError:
        fsync = ""
    try:
        loaded = sum(await execute("SCRIPT", "EXISTS", *(script.sha for script in SCRIPTS.values())))
    except ResponseError:
        loaded = None
    return ServerFacts(
        info=info,
        round_trips=[trip for trip, _ in trips],
        clock=min(trips)[1],  # the shortest round trip leaves the least room for error
        rights=await read_rights(store),
        fsync=fsync,
        loaded=loaded,
    )
