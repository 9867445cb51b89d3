"""One of three primaries of a cluster is away, and no replica takes over; the other shards go on."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from mx_rmq import NotDead, RedisMessageQueue, ServerUnavailable
from mx_rmq.storage.keys import Keys
from mx_rmq.storage.shard import shard_number
from tests.faults.arena import TOPIC, Arena, Child
from tests.faults.ledger import Event
from tests.faults.programs import QUEUE
from tests.faults.run import Row, Run
from tests.faults.verdict import Verdict, gaps
from tests.rigs.cluster import Cluster, Node

if TYPE_CHECKING:
    from collections.abc import Sequence

SHARDS = 8
RATE, RATE_OF_TESTS = 15, 10
"""Messages a second and shard: well below what two cores carry, so that a queue that stops is what shows."""
LEASE = 3.0
PATIENCE = 2.0
"""Of the program that asks while the node is away."""
DELAY = 1.0
EACH = 20
"""So many messages are delayed, and so many die, while the node is away."""
KEPT = 0.95
MOST = 3.0


@dataclass
class Outage:
    """What was seen while a node was away."""

    kept: float = 0.0
    """The throughput of the healthy shard that kept least, as a part of what it was just before."""
    rates: str = ""
    """Of the healthy shards, in messages a second before and during the fault."""
    pause: float = 0.0
    """The longest time in which a healthy shard finished nothing."""
    recovered: float = 0.0
    """When the last message of the killed worker had started elsewhere, of those on healthy shards."""
    late: float = 0.0
    """By how much the latest delayed message missed its time."""
    named: bool = False
    """Whether a produce with a key of a lost shard raised in time, and named the shard."""
    wrong: list[str] = field(default_factory=list)
    verdict: Verdict | None = None

    @property
    def ok(self) -> bool:
        times = max(self.pause, self.recovered, self.late)
        sound = self.verdict is not None and self.verdict.ok and self.verdict.dead == EACH
        return self.kept >= KEPT and times <= MOST and self.named and sound and not self.wrong

    def __str__(self) -> str:
        return (
            f"{self.kept:.1%} kept ({self.rates}), {self.pause:.2f} s without progress, "
            f"killed worker's messages after {self.recovered:.2f} s, "
            f"delayed {self.late:.2f} s late, shard named: {self.named}, wrong: {self.wrong}; {self.verdict}"
        )


async def node_down(run: Run) -> Row:
    """First a node stands still, that of the layout; then another is killed, and starts again."""
    seconds = run.size(60.0, 10.0)
    seen = [await _away(run, how, seconds) for how in run.size(["stopped", "killed"], ["stopped"])]
    return Row(
        fault=f"one of 3 primaries {' or '.join(run.size(['stopped', 'killed'], ['stopped']))} for "
        f"{seconds:g} s, no replica, {SHARDS} shards, a worker killed then",
        runs=len(seen),
        messages=sum(each.verdict.acked for each in seen if each.verdict),
        kills=2 * len(seen),
        lost=sum(len(each.verdict.lost) for each in seen if each.verdict),
        duplicates=sum(each.verdict.duplicates for each in seen if each.verdict),
        recovery=max(max(each.pause, each.recovered, each.late) for each in seen),
        figure=f"the other shards keep >= {KEPT:.0%} of their throughput, here "
        f"{min(each.kept for each in seen):.1%}, and recover, delay and bury within "
        f"{MOST:g} s; a key of a lost shard raises its name; 0 lost",
        seen=" | ".join(map(str, seen)),
        ok=all(each.ok for each in seen),
    )


async def _away(run: Run, how: str, seconds: float) -> Outage:
    """Let a node be away for a while."""
    timeout = run.size(5.0, 1.0)
    outage = Outage()
    with Cluster(3, 0) as rig:
        # Who names the number of shards can start while the node of the layout is away.
        usual: dict[str, Any] = {"shards": SHARDS, "socket_timeout": timeout}
        async with (
            Arena.around(run, rig.url) as arena,
            _program(rig, patience=PATIENCE, **usual) as outside,
            _program(rig, **usual) as patient,
        ):
            node, lost = _choose(rig, of_the_layout=how == "stopped")
            healthy = set(range(SHARDS)) - lost
            options = usual | {"lease": LEASE, "concurrency": 8, "crash_limit": 1000}
            workers = [arena.worker(**options) for _ in range(3)]
            keys = {f"s{number}": _leading_to(number) for number in range(SHARDS)}
            producer = arena.spread(
                keys, {"sleep": 0.1}, rate=run.size(RATE, RATE_OF_TESTS), patience=PATIENCE, **usual
            )
            await arena.busy(*workers)
            await _caught_up(arena.queue)
            before = time.monotonic()
            run.tell("before")
            await asyncio.sleep(run.size(15.0, 10.0))
            run.tell(f"{node} {how}")
            since = time.monotonic()
            (rig.pause if how == "stopped" else rig.kill)(node)
            probing = asyncio.create_task(_probe(arena, outside, outage, sorted(lost), timeout))
            anywhere = asyncio.create_task(_anywhere(arena, patient, lost, since + seconds))
            await asyncio.sleep(seconds / 4)
            workers[0].kill()
            workers[0] = arena.worker(**options)
            await asyncio.sleep(since + seconds - time.monotonic())
            until = time.monotonic()
            await asyncio.to_thread(rig.mend)
            await probing
            calls = await anywhere
            for id_, at, took in calls:
                if since + timeout + 1.0 < at and (took > 1.0 or shard_number(id_, SHARDS) in lost):
                    outage.wrong.append(f"{id_ or 'one'} went to a lost shard, or took {took:.2f} s")
            producer.term()
            if await producer.ended(60):
                outage.wrong.append("the producer failed")
            await arena.drained(within=90)
            events = arena.events()
            outage.verdict = await arena.verdict()
            # What was given up may be stored all the same, on the shard to which it was sent.
            stored = {id_ for id_ in outage.verdict.unexpected if shard_number(id_, SHARDS) in lost}
            if len(stored) <= sum(not id_ for id_, _, _ in calls):
                outage.verdict.unexpected -= stored
            for id_ in sorted(outage.verdict.restarted):
                outage.wrong += [str(event) for event in events if event.id == id_]
            _measure(outage, events, healthy, (before, since, until), arena.children)
    return outage


async def _caught_up(mq: RedisMessageQueue, within: float = 20.0) -> None:
    """Wait until nothing has piled up: it would count as throughput before the fault."""
    until = time.monotonic() + within
    while (await mq.counts()).pending > SHARDS and time.monotonic() < until:
        await asyncio.sleep(0.1)
    await asyncio.sleep(1.0)


def _program(rig: Cluster, **options: Any) -> RedisMessageQueue:
    return RedisMessageQueue(rig.url, name=QUEUE, server_check="off", **options)


def _choose(rig: Cluster, *, of_the_layout: bool) -> tuple[Node, set[int]]:
    """A node that has shards of the queue, and which; the one of the layout, or another."""
    homes = {n: rig.primary_of(rig.slot_of(Keys(QUEUE, n).prefix)) for n in range(SHARDS)}
    layout = rig.primary_of(rig.slot_of(Keys(QUEUE).prefix))
    node = next(node for node in homes.values() if (node is layout) == of_the_layout)
    return node, {number for number, home in homes.items() if home is node}


def _leading_to(number: int, name: str = "k") -> str:
    """A key or an id that leads to a shard."""
    return next(key for n in range(9999) if shard_number(key := f"{name}{n}", SHARDS) == number)


async def _probe(
    arena: Arena, mq: RedisMessageQueue, outage: Outage, lost: Sequence[int], timeout: float
) -> None:
    """Do what must go on, and what must not, from a program that was there before."""
    await asyncio.sleep(timeout)
    began = time.monotonic()
    try:
        await mq.produce(TOPIC, {}, key=_leading_to(lost[0]), message_id="refused")
    except ServerUnavailable as error:
        in_time = time.monotonic() - began <= PATIENCE + timeout
        outage.named = in_time and f"shard {lost[0]} at " in str(error)
    arena.ledger.write("tried", "refused")  # a node that stands still may have received it
    healthy = [number for number in range(SHARDS) if number not in lost]
    delayed = [_leading_to(healthy[n % len(healthy)], f"later{n}-") for n in range(EACH)]
    buried = [_leading_to(healthy[n % len(healthy)], f"dead{n}-") for n in range(EACH)]
    for ids, payload, delay in ((delayed, {}, DELAY), (buried, {"dead": "no"}, 0.0)):
        for id_ in ids:
            arena.ledger.write("tried", id_)
            await mq.produce(TOPIC, payload, message_id=id_, delay=delay)
            arena.ledger.write("acked", id_)
    began = time.monotonic()
    while not await _are_dead(mq, buried):
        if time.monotonic() > began + MOST:
            outage.wrong.append("not dead in time")
            break
        await asyncio.sleep(0.05)


async def _anywhere(
    arena: Arena, mq: RedisMessageQueue, lost: set[int], until: float
) -> list[tuple[str, float, float]]:
    """Produce without key and id, again and again; what was produced, when, and how long it took.

    The first messages lead to the lost shards, so that the program notices each of them at once. What was
    on its way to one waits for it, and may be given up: then it has no id here.
    """

    async def one(message_id: str | None = None) -> tuple[str, float, float]:
        began = time.monotonic()
        try:
            id_ = await mq.produce(TOPIC, {}, message_id=message_id)
        except ServerUnavailable:
            return "", began, time.monotonic() - began
        arena.ledger.write("tried", id_)
        arena.ledger.write("acked", id_)
        return id_, began, time.monotonic() - began

    calls = [asyncio.create_task(one(_leading_to(number, "first-"))) for number in sorted(lost)]
    while time.monotonic() < until:
        calls.append(asyncio.create_task(one()))
        await asyncio.sleep(0.1)
    return await asyncio.gather(*calls)


async def _are_dead(mq: RedisMessageQueue, ids: Sequence[str]) -> bool:
    try:
        for id_ in ids:
            await mq.dlq.get(id_)
    except (NotDead, ServerUnavailable):  # while it is not dead, it may be on a shard that does not answer
        return False
    return True


def _measure(
    outage: Outage,
    events: Sequence[Event],
    healthy: set[int],
    instants: tuple[float, float, float],
    children: Sequence[Child],
) -> None:
    """What the ledgers say of the healthy shards."""
    before, since, until = instants
    names = {f"s{number}" for number in healthy}
    there = [event for event in events if event.id.partition("-")[0] in names]
    ends: dict[str, list[float]] = defaultdict(list)
    for event in there:
        if event.what == "end":
            ends[event.id.partition("-")[0]].append(event.at)

    def rate(name: str, first: float, last: float) -> float:
        return sum(first < at <= last for at in ends[name]) / (last - first)

    rates = [(rate(name, before, since), rate(name, since, until)) for name in sorted(names)]
    outage.kept = min(then / usual for usual, then in rates)
    outage.rates = ", ".join(f"{usual:.1f} to {then:.1f}" for usual, then in rates)
    for name in names:
        during = [since, *(at for at in ends[name] if since < at <= until), until]
        outage.pause = max(outage.pause, *(b - a for a, b in pairwise(during)))
    killed = {child.pid: child.killed_at for child in children if child.killed_at and child.killed_at < until}
    outage.recovered = max(gaps(there, killed), default=0.0)
    acked = {event.id: event.at for event in events if event.what == "acked" and event.id.startswith("later")}
    starts = {event.id: event.at for event in reversed(events) if event.what == "start"}
    outage.late = max((starts.get(id_, 1e9) - at - DELAY for id_, at in acked.items()), default=1e9)
