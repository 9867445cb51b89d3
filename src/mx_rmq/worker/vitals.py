"""The vitals of a worker: what its services last did, and what is wrong with it."""

from __future__ import annotations

from time import monotonic
from typing import TYPE_CHECKING, Any, Final

from mx_rmq.health import ShardHealth, WorkerHealth
from mx_rmq.worker.fetcher import Fetcher

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from mx_rmq.config import Config
    from mx_rmq.worker.holdings import Holdings
    from mx_rmq.worker.pulse import Pulse
    from mx_rmq.worker.service import Service

_LATELY: Final = 60.0
"""Seconds for which a lost lease counts."""
_MOST_SAID: Final = 5
"""Problems that a worker registers: others read the registration often."""
_LONGEST: Final = 200
"""Characters of such a problem."""


class Vitals:
    """What is known of a worker without asking the server; any thread may ask.

    A service is sick if it did not do its work for the lease, or for three of its intervals if that is
    longer, and ``socket_timeout`` on top. The loop is sick if it was late for a third of the lease.

    Args:
        worker: the worker's name.
        config: of the queue.
        services: what works on each shard; may be filled later.
        pulse: of the event loop.
    """

    def __init__(
        self, worker: str, config: Config, services: Mapping[Holdings, Sequence[Service]], pulse: Pulse
    ) -> None:
        self._worker = worker
        self._config = config
        self._services = services
        self._pulse = pulse

    def read(self) -> WorkerHealth:
        """How the worker is now."""
        now, lag = monotonic(), self._pulse.lag()
        lost = self._lost(now)
        loads = [load for holdings in list(self._services) for load in holdings.load().values()]
        stuck, problems = self._problems(now, lag, lost)
        return WorkerHealth(
            name=self._worker,
            loop_lag=lag,
            running=sum(running for running, _ in loads),
            held=sum(held for _, held in loads),
            leases_lost=lost,
            shards=tuple(
                _shard(holdings.shard.name, services, now)
                for holdings, services in list(self._services.items())
            ),
            problems=(*stuck, *problems),
            stuck=tuple(stuck),
        )

    def said(self, holdings: Holdings) -> dict[str, Any]:
        """What the worker registers of this on a shard, for others to see."""
        now, lag = monotonic(), self._pulse.lag()
        stuck, problems = self._problems(now, lag, self._lost(now))
        facts: dict[str, Any] = {"loop_lag": round(lag, 3)}
        for service in self._services.get(holdings, ()):
            if isinstance(service, Fetcher) and service.claimed_at is not None:
                facts["claimed_at"] = round(holdings.server_time(service.claimed_at), 3)
        if stuck or problems:
            facts["problems"] = [problem[:_LONGEST] for problem in (*stuck, *problems)[:_MOST_SAID]]
        return facts

    def _lost(self, now: float) -> int:
        """How many leases were lost lately."""
        return sum(now - at < _LATELY for holdings in list(self._services) for at in list(holdings.losses))

    def _problems(self, now: float, lag: float, lost: int) -> tuple[list[str], list[str]]:
        """What is stuck, and what else is wrong, as sentences."""
        problems: list[str] = []
        stuck: list[str] = []
        for holdings, services in list(self._services.items()):
            of = f" of shard {holdings.shard.name}" if holdings.shard.name else ""
            for service in services:
                limit, name = self._limit(service), f"{service.name}{of}"
                if now - service.tried_at > limit:
                    stuck.append(f"the {name} has been stuck for {now - service.tried_at:.0f} s")
                elif now - service.looked_at > limit:
                    problems.append(f"the {name} has failed for {now - service.looked_at:.0f} s")
                if isinstance(service, Fetcher):
                    refused = list(service.refused.items())
                    problems += [f"the server refuses claims of {topic}: {why}" for topic, why in refused]
        if lag > self._config.lease / 3:
            problems.append(f"the event loop was blocked for {lag:.1f} s")
        if lost:
            problems.append(f"{lost} leases were lost in the last minute")
        return stuck, problems

    def _limit(self, service: Service) -> float:
        return max(self._config.lease, 3 * service.interval) + self._config.socket_timeout


def _shard(name: str, services: Sequence[Service], now: float) -> ShardHealth:
    looks = {service.name: now - service.looked_at for service in services}
    for service in services:
        if isinstance(service, Fetcher):
            claimed = None if service.claimed_at is None else now - service.claimed_at
            return ShardHealth(name=name, last_claim=claimed, looks=looks, refused=dict(service.refused))
    return ShardHealth(name=name, looks=looks)
