"""A state in which every script finds something to do, and a call of each that does it."""

from __future__ import annotations

from copy import deepcopy
from typing import TYPE_CHECKING, Any

from mx_rmq.storage.contract import Kept, NewMessage, Replay, Restore, Suspect
from tests.scripts.states import (
    NOW,
    awake,
    counted,
    delayed,
    delivery,
    everything,
    grouped,
    leased,
    pending,
    seed,
    together,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from redis.asyncio import Redis

    from mx_rmq.storage.store import Store
    from tests.harness import Clock

SOON = NOW + 500
"""Passed for those calls that move the clock on by a second."""


def topic_of(name: str) -> dict[str, Any]:
    """A topic with messages in every place, in every lane, overdue soon and not; ids end in its name."""
    return together(
        pending(f"p1-{name}", name, expires=NOW + 90_000),
        pending(f"p2-{name}", name, expires=SOON, leased=1),
        pending(f"p3-{name}", name),
        pending(f"high-{name}", name, lane="high", leased=2),
        pending(f"low-{name}", name, lane="low", expires=SOON),
        leased(f"l1-{name}", name, token="1@5"),
        leased(f"l2-{name}", name, token="3@6", lane="high", expires=NOW + 90_000, before=2),
        leased(f"lapsed-{name}", name, ends=SOON),
        delayed(f"d1-{name}", name, due=SOON, lane="high", expires=NOW + 90_000, leased=1),
        delayed(f"d2-{name}", name, due=SOON),
        delayed(f"d3-{name}", name, due=SOON, lane="low"),
        delayed(f"later-{name}", name, due=NOW + 90_000),
        grouped(f"x1-{name}", name, died=NOW - 9),
        grouped(f"x2-{name}", name, died=NOW - 8),
    )


def rich_state() -> dict[str, Any]:
    """Two topics, everything tools keep, and some damage for those scripts that clean up."""
    state = together(
        topic_of("t"),
        topic_of("u"),
        awake("u"),
        counted({"t:produced": 14, "u:produced": 14, "old:produced": 1, "old:cancelled": 1}),
        counted({"older:idle_total": 0, "older:idle_since": NOW - 90_000}),
        {
            "topics": {"t", "u", "old", "older"},
            "paused": {"v"},
            "done": {"old": float(SOON), "young": NOW + 90_000.0},
            "call=p": "before 1",
            "workers": {"silent": "facts"},
            "workers_seen": {"silent": NOW - 90_000.0},
            "trail": ["9 {}"],
            "vanished": {"w0": "9 {}"},
            "tails": {"ended": NOW - 1.0, "other": NOW + 9_000.0},
        },
        # damage: a body in no place, leftovers of a lease and of a delay
        {
            "payload": {"lost": "x", "lost:queue": "t", "stray:queue": "t", "ghost:keep": "0 normal inf"},
            "all_expire_monitor": {"stray": float(SOON)},
            "delay_tasks": {"ghost": float(SOON)},
        },
    )
    state["t:processing"]["stray"] = "1@5 normal inf w run"
    return state


LANED = [
    NewMessage("n1", b"1", "normal", 5.0, 0.1),
    NewMessage("n2", b"2", "high"),
    NewMessage("n3", b"3", "low"),
]
HELD = [delivery("l1-t", token="1@5"), delivery("l2-t", token="3@6")]


def later(call: Callable[[Store], Awaitable[object]]) -> Callable[[Store, Clock], Awaitable[object]]:
    async def run(store: Store, clock: Clock) -> object:
        clock.advance(1)
        return await call(store)

    return run


CALLS: dict[str, Callable[[Store, Clock], Awaitable[object]]] = {
    "produce_normal_message": lambda store, _: store.produce("t", LANED, producer="p", call="c"),
    "produce_one_message": lambda store, _: store.produce("t", LANED[:1], producer="p", call="c"),
    "produce_delay_message": lambda store, _: store.produce_delayed("t", LANED, producer="p", call="c"),
    "claim_message": lambda store, _: store.claim("t", 4, lease=15, holder="w"),
    "extend_lease": lambda store, _: store.extend("t", HELD, lease=99),
    "start_message": lambda store, _: store.start("t", HELD),
    "complete_message": lambda store, _: store.complete(
        "t", [(each, Kept(60.0, 90.0, 0.5)) for each in HELD]
    ),
    "retry_message": lambda store, _: store.retry("t", [(each, 0.1, b"again") for each in HELD]),
    "release_message": lambda store, _: store.release("t", HELD),
    "move_to_dlq": lambda store, _: store.move_to_dlq(
        "t", [(each, b"final", b"why") for each in HELD], kept=[Kept(remember_for=90.0)] * 2
    ),
    "handle_timeout_message": later(lambda store: store.take_over(100, lease=20, holder="m")),
    "get_next_delay_task": lambda store, _: store.next_delay(),
    "process_delay_message": later(lambda store: store.promote()),
    "replay_dlq": lambda store, _: store.replay(
        [Replay("x1-t"), Replay("x2-t", b"new", "high"), Replay("x1-u", b"", "low", 9.0), Replay("x2-u")]
    ),
    "delete_dlq": lambda store, _: store.delete_dead(["x1-t", "x2-u", "nobody"]),
    "trim_dlq": lambda store, _: store.trim_dead(max_count=1),
    "restore_dlq": lambda store, _: store.restore(
        [Restore("r1", "t", 9.0, b"body", b"why"), Restore("r2", "new", 9.0, b"body", b"why")]
    ),
    "read_dlq": lambda store, _: store.read_dead([b"x1-t", b"x2-u", b"nobody"]),
    "cancel_message": lambda store, _: store.cancel(
        ["p1-t", "high-t", "low-t", "d1-t", "l1-t", "p3-u", "d2-u", "x1-t", "nobody"]
    ),
    "hasten_message": lambda store, _: store.hasten(["d1-t", "later-t", "p1-t", "later-u", "x1-t", "nobody"]),
    "purge_topic": lambda store, _: store.purge("t"),
    "pause_topic": lambda store, _: store.pause("t"),
    "resume_topic": lambda store, _: store.resume("v"),
    "mend_message": lambda store, _: store.examine(
        [Suspect("lost", listed=False), Suspect("stray"), Suspect("ghost"), Suspect("p1-u")], mend=True
    ),
    "count_topics": lambda store, _: store.count(["t", "u"]),
    "forget_topics": lambda store, _: store.forget(["t", "old", "older", "v"], idle=60.0),
    "wake_topic": lambda store, _: store.wake("t"),
    "watch_events": lambda store, _: store.watch(b"all", lasts=10.0),
    "note_act": lambda store, _: store.note_act(b"{}"),
    "note_vanished": lambda store, _: store.note_vanished("w1", b"{}"),
    "register_worker": lambda store, _: store.register_worker("w", b"facts", silence=60.0),
    "set_layout": lambda store, _: store.set_layout("", "0:1"),
    "seal_shard": lambda store, _: store.seal(),
    "taken_ids": lambda store, _: store.taken(["p1-t", "x1-t", "old", "young", "nobody"]),
    "carry_done": lambda store, _: store.carry([("old", NOW + 10), ("young", NOW), ("new", NOW + 5)]),
    "left_in_shard": lambda store, _: store.left(),
}

TOPIC_OF = {"resume_topic": "v"}
"""The topic of each call, where it is not ``t``."""

_results: dict[tuple[str, str], tuple[object, dict[str, Any]]] = {}


async def healthy(script: str, store: Store, redis: Redis, clock: Clock) -> tuple[object, dict[str, Any]]:
    """The answer and the state that a call gives where nothing is wrong; the server then has the rich state.

    Each call is made once per server, which is all that makes a difference.
    """
    key = (redis.connection_pool.connection_kwargs["path"], script)
    if key not in _results:
        start = clock.us
        await seed(redis, rich_state())
        answer = await CALLS[script](store, clock)
        _results[key] = answer, await everything(redis)
        clock.us = start
        await redis.flushall()
    await seed(redis, rich_state())
    answer, state = _results[key]
    return answer, deepcopy(state)
