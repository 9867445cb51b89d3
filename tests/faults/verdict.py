"""The verdict: what the ledgers say against what the server holds."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING

from tests.faults.ledger import Event, ids

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence


@dataclass
class Verdict:
    """What went wrong, and what it cost."""

    acked: int
    done: int
    dead: int
    live: int
    lost: set[str]
    """Acknowledged, and neither done nor dead nor live."""
    unexpected: set[str]
    """Ran or is there, though nobody produced it."""
    restarted: set[str]
    """Started again after its completion was accepted."""
    duplicates: int
    """Starts beyond the first one of each message, but for those after a failure."""
    findings: list[str] = field(default_factory=list)
    """Of the audit."""
    late: set[str] = field(default_factory=set)
    """Found only by a second drain."""

    @property
    def ok(self) -> bool:
        """Whether nothing is lost, stuck, invented or run after its end."""
        return not (self.lost or self.unexpected or self.restarted or self.findings or self.late)

    def __str__(self) -> str:
        counted = f"{self.acked} acked, {self.done} done, {self.dead} dead, {self.live} live"
        wrong = [
            f"{name}: {len(what)} {sorted(what)[:5]}"
            for name in ("lost", "unexpected", "restarted", "findings", "late")
            if (what := getattr(self, name))
        ]
        return "; ".join([counted, f"{self.duplicates} duplicates", *wrong])


def judge(events: Sequence[Event], live: Collection[str], dead: Collection[str]) -> Verdict:
    """Compare the ledgers with the messages the server has.

    A completion counts as accepted when its worker was told so. A worker that was killed may not have
    lived to be told; then the handler's end counts, since the audit compares the server's own counters.
    """
    tried, acked = ids(events, "tried"), ids(events, "acked")
    accepted = {event.id: event.at for event in reversed(events) if event.what == "done"}
    done = ids(events, "done", "end")
    starts = Counter(event.id for event in events if event.what == "start")
    failures = Counter(event.id for event in events if event.what == "failed")
    return Verdict(
        acked=len(acked),
        done=len(done - set(live) - set(dead)),
        dead=len(dead),
        live=len(live),
        lost=acked - done - set(live) - set(dead),
        unexpected=(set(starts) | set(live) | set(dead)) - tried,
        restarted={
            event.id for event in events if event.what == "start" and event.at > accepted.get(event.id, 1e18)
        },
        duplicates=sum(max(0, count - 1 - failures[id_]) for id_, count in starts.items()),
    )


def gaps(
    events: Sequence[Event],
    killed_at: dict[int, float],
    holders: Mapping[str, Collection[int]] = MappingProxyType({}),
) -> list[float]:
    """For every delivery that a killed process left unfinished: how long until it started elsewhere.

    Args:
        events: in the order of time.
        killed_at: when each process was killed.
        holders: the processes from which each message was taken over. If the next one was killed too before
            it began the message, the time counts from that kill.
    """
    open_since: dict[str, float] = {}
    waits: list[float] = []
    running: dict[int, dict[str, str]] = defaultdict(dict)
    kills = sorted((at, pid) for pid, at in killed_at.items())
    for event in events:
        while kills and kills[0][0] <= event.at:
            at, pid = kills.pop(0)
            for id_ in running.pop(pid, {}):
                open_since.setdefault(id_, at)
        if event.what == "start":
            if event.id in open_since:
                kills_of_holders = (killed_at.get(pid, 0.0) for pid in holders.get(event.id, ()))
                later = max((at for at in kills_of_holders if at < event.at), default=0.0)
                waits.append(event.at - max(open_since.pop(event.id), later))
            running[event.pid][event.id] = event.token
        elif event.what in ("done", "retried", "dead", "refused"):
            running[event.pid].pop(event.id, None)
    return waits


def resumption(events: Sequence[Event], since: float, workers: Collection[int]) -> float:
    """How long after an instant the last of *workers* started a message that it had claimed after it.

    What had been claimed before would start even if the worker could never reach the server again.
    """
    ahead = time.time() - time.monotonic()
    resumed: dict[int, float] = {}
    for event in events:
        if event.what == "start" and event.pid in workers and event.at > since:
            claimed_at = int(event.token.partition("@")[2]) / 1e6 - ahead
            if claimed_at > since:
                resumed.setdefault(event.pid, event.at - since)
    return max(resumed.values()) if len(resumed) == len(workers) else float("inf")
