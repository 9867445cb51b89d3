"""Monitors are killed again and again while they recover what a vanished worker left behind."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from mx_rmq.producing.options import check_options
from mx_rmq.storage.store import Store
from tests.faults.arena import TOPIC, Arena, Child
from tests.faults.run import Row, Run

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mx_rmq.storage.contract import Delivery
    from tests.faults.ledger import Event

LEASE = 2.0
WITHIN = 60.0


async def monitors_killed(run: Run) -> Row:
    """Two monitors, of which the one that works is killed.

    Half of the leases have run out before; of the others some do before each kill, so that there is
    work for it to interrupt.
    """
    messages, kills = run.size(50_000, 5_000), run.size(200, 20)
    async with Arena.open(run) as arena:
        ids = [f"m-{n}" for n in range(messages)]
        lapses: dict[str, float] = {}
        later: list[Delivery] = []
        for start in range(0, messages, 500):
            some = ids[start : start + 500]
            if start < messages // 2:
                lapses |= dict.fromkeys(some, time.monotonic())
                await abandon(arena, some, lease=0.001)
            else:
                later += await abandon(arena, some, lease=600)
        few = len(later) // kills
        monitors = [_monitor(arena), _monitor(arena)]
        killed = []
        for n in range(kills):
            run.tell(f"kill {n + 1} of {kills}")
            before = {monitor: arena.noted(monitor, "taken") for monitor in monitors}
            cut = later[n * few : (n + 1) * few]
            lapses |= dict.fromkeys((delivery.id for delivery in cut), time.monotonic())
            await Store(arena.redis, arena.keys).extend(TOPIC, cut, lease=0.001)
            victim = await _at_work(arena, before)
            await asyncio.sleep(run.dice.uniform(0.001, 0.050))
            victim.kill()
            killed.append(victim.pid)
            monitors[monitors.index(victim)] = _monitor(arena)
        await _all_pending(arena, messages)
        back_at, events = time.monotonic(), arena.events()
        recovered = _recovered_at(events, lapses, back_at)
        recovery = max(recovered[id_] - at for id_, at in lapses.items())
        working, in_hand = _kills_that_hurt(events, killed)
        arena.kill_all()
        arena.worker()
        await arena.drained(within=120)
        verdict = await arena.verdict()
    return Row(
        fault=f"{messages:,} expired leases, 2 monitors, one killed after 1-50 ms of work",
        messages=verdict.acked,
        kills=kills,
        lost=len(verdict.lost),
        duplicates=verdict.duplicates,
        recovery=recovery,
        figure=f"0 lost, every message recovered within {WITHIN:g} s",
        seen=f"{verdict}; {working} killed at work, {in_hand} with messages in hand",
        ok=verdict.ok
        and verdict.acked == verdict.done == messages
        and verdict.dead == verdict.duplicates == 0  # a monitor that dies is not the message's fault
        and working == kills
        and in_hand > 0
        and recovery <= WITHIN,
    )


async def abandon(arena: Arena, ids: Sequence[str], *, lease: float) -> list[Delivery]:
    """Produce messages and claim them for a worker that is gone."""
    store = Store(arena.redis, arena.keys)
    arena.ledger.write("tried", *ids)
    await store.produce(
        TOPIC, [check_options(arena.queue.config, TOPIC, message_id=id_).message({}) for id_ in ids]
    )
    arena.ledger.write("acked", *ids)
    claim = await store.claim(TOPIC, len(ids), lease=lease, holder="gone")
    assert {delivery.id for delivery in claim.deliveries} == set(ids)
    return claim.deliveries


def _monitor(arena: Arena) -> Child:
    """A worker that has nothing to run."""
    return arena.worker({"other": {}}, lease=LEASE)


async def _at_work(arena: Arena, before: dict[Child, int]) -> Child:
    """Whichever monitor is the first to take something over, beyond what each has taken before."""
    until = time.monotonic() + 30
    while time.monotonic() < until:
        for monitor, taken in before.items():
            if arena.noted(monitor, "taken") > taken:
                return monitor
        await asyncio.sleep(0.001)
    raise AssertionError("no monitor took anything over for 30 s")


async def _all_pending(arena: Arena, messages: int) -> None:
    """Wait until every message is back in its lane."""
    until = time.monotonic() + 120
    while (pending := (await arena.queue.counts()).pending) < messages:
        assert time.monotonic() < until, f"only {pending} of {messages} messages are back"
        await asyncio.sleep(0.05)


def _recovered_at(events: list[Event], lapses: dict[str, float], latest: float) -> dict[str, float]:
    """When each message was recovered; the latest it can have been, where the one who did it died at once."""
    times = dict.fromkeys(lapses, latest)
    times.update((event.id, event.at) for event in events if event.what == "promoted")
    return times


def _kills_that_hurt(events: list[Event], killed: list[int]) -> tuple[int, int]:
    """How many of the killed had taken something over, and how many had not yet settled it."""
    settled = {(event.id, event.token) for event in events if event.what == "retried"}
    taken = [event for event in events if event.what == "taken"]
    working = {event.pid for event in taken}
    in_hand = {event.pid for event in taken if (event.id, event.token) not in settled}
    return len(working & set(killed)), len(in_hand & set(killed))
