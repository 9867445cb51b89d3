"""Something else wrote to a key of the queue: no script may stop half way, no topic may stop another."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest

from mx_rmq.errors import WrongKeyType
from mx_rmq.storage.contract import Cancelled, Overdue, Promotion, Replay, Replayed
from mx_rmq.storage.keys import TOPIC_PARTS, Keys
from mx_rmq.storage.scripts import SCRIPTS
from tests.harness import Clock
from tests.scripts.every_script import CALLS, TOPIC_OF, healthy, rich_state
from tests.scripts.states import (
    FIRST,
    NOW,
    awake,
    counted,
    dead,
    delayed,
    everything,
    fenced,
    leased,
    pending,
    seed,
    together,
)
from tests.words import unchanged

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from mx_rmq.storage.store import Store

WRONG = "something else wrote here"

BOOKKEEPING = {"topics", "counters", "wake", "delay_wake", "fence", "dlq_groups"}
"""What no message needs to move on; a fence that cannot be read begins anew with the clock."""

READ_ONLY = {"get_next_delay_task", "count_topics", "read_dlq", "taken_ids", "left_in_shard"}

LISTS = ("pending:high", "pending", "pending:low")

REACHED = {
    "handle_timeout_message": LISTS,
    "process_delay_message": ("wake",),
    "replay_dlq": ("wake",),
    "cancel_message": LISTS,
    "mend_message": ("wake",),
}
"""Parts of its messages' topics that a script reaches by their names, and can do without."""


def passes(script: str, part: str) -> bool:
    # A topic whose pause cannot be read is delivered; pausing itself needs the key.
    # A message that comes alone needs the list of its own lane only.
    return part in BOOKKEEPING or (script, part) in {
        ("claim_message", "paused"),
        ("produce_one_message", "pending:high"),
        ("produce_one_message", "pending:low"),
    }


def declared() -> list[tuple[str, str, str]]:
    return [(script.name, part, kind) for script in SCRIPTS.values() for part, kind in script.keys]


def name_of(script: str, part: str) -> str:
    topic = TOPIC_OF.get(script, "t")
    if part == "call":
        return "call=p"
    return f"{topic}:{part}" if part in TOPIC_PARTS else part


async def spoil(redis: Redis, name: str, value: Any = WRONG) -> None:
    if name == "fence" and value == WRONG:
        value = [WRONG]
    await redis.delete(Keys("q").of_queue(name))
    await seed(redis, {name: value})


def test_every_script_has_a_call() -> None:
    assert CALLS.keys() == SCRIPTS.keys()


@pytest.mark.parametrize("script", sorted(CALLS.keys() - READ_ONLY))
async def test_every_call_does_something(script: str, store: Store, redis: Redis, clock: Clock) -> None:
    """What the other tests compare with must not be a call that changes nothing anyway."""
    _, state = await healthy(script, store, redis, clock)
    assert state != rich_state()


@pytest.mark.parametrize(("script", "part", "kind"), [case for case in declared() if not passes(*case[:2])])
async def test_a_wrong_type_is_refused_by_name_before_the_first_write(
    script: str, part: str, kind: str, store: Store, redis: Redis, clock: Clock
) -> None:
    await seed(redis, rich_state())
    name = name_of(script, part)
    wrong, found = (["1"], "list") if kind == "string" else (WRONG, "string")
    await spoil(redis, name, wrong)
    expected = f"{Keys('q').of_queue(name)} is a {found}, not a {kind}"
    async with unchanged(redis):
        with pytest.raises(WrongKeyType, match=re.escape(expected)):
            await CALLS[script](store, clock)


@pytest.mark.parametrize(
    ("script", "part"),
    [
        *(
            case[:2]
            for case in declared()
            if passes(*case[:2]) and case[0] not in {*READ_ONLY, "forget_topics"}
        ),
        *((script, part) for script, parts in REACHED.items() for part in parts),
    ],
)
async def test_a_key_that_messages_do_not_need_stops_nothing(
    script: str, part: str, store: Store, redis: Redis, clock: Clock
) -> None:
    """The transition happens whole: the answer and all the rest of the state are those of a healthy queue."""
    answer, state = await healthy(script, store, redis, clock)
    name = name_of(script, part)
    await spoil(redis, name)
    assert await CALLS[script](store, clock) == answer
    after = await everything(redis)
    after.pop(name, None)
    state.pop(name, None)
    if part in LISTS:  # entries of something that is no list cannot be counted
        for counters in (after["counters"], state["counters"]):
            counters.pop("t:stale", None)
    assert after == state


async def test_a_call_that_names_nothing_still_says_what_is_wrong(store: Store, redis: Redis) -> None:
    await spoil(redis, "delay_tasks")
    with pytest.raises(WrongKeyType, match=r"rename or delete"):
        await store.next_delay()


async def test_the_monitor_goes_on_beside_a_poisoned_topic(store: Store, redis: Redis, clock: Clock) -> None:
    """Its messages are put off by a minute, so that they come up again once somebody has mended it."""
    await seed(
        redis,
        leased("t1", "t", ends=NOW - 3),
        leased("u1", "u", ends=NOW - 2),
        pending("t2", "t", expires=NOW - 1),
        pending("u2", "u", expires=NOW),
    )
    await spoil(redis, "t:processing")
    before = await everything(redis)
    overdue = await store.take_over(10, lease=20, holder="m")
    assert [row.delivery.id for row in overdue.taken] == ["u1", "u2"]
    assert overdue.poisoned == ["t1", "t2"]

    ends = NOW + 20_000
    healthy_part = together(
        leased("u1", "u", token=f"2@{FIRST}", holder="m", cause="lapsed", ends=ends),
        leased("u2", "u", token=f"1@{FIRST}", holder="m", cause="expired", ends=ends, expires=NOW),
    )
    assert await everything(redis) == {
        "payload": before["payload"],
        "all_expire_monitor": healthy_part["all_expire_monitor"] | {"t1": NOW + 60_000, "t2": NOW + 60_000},
        "u:processing": healthy_part["u:processing"],
        "t:processing": WRONG,
        "t:pending": ["t2"],
        **counted({"u:lapsed": 1, "u:expired": 1}),
        **fenced(),
    }

    await redis.delete(Keys("q").of_topic("t", "processing"))
    clock.advance(60)
    taken = (await store.take_over(10, lease=20, holder="m")).taken
    assert {row.delivery.id for row in taken} == {"t1", "t2", "u1", "u2"}


async def test_leftovers_in_a_poisoned_topic_are_cleaned_all_the_same(store: Store, redis: Redis) -> None:
    await seed(redis, {"payload": {"a:queue": "t"}, "all_expire_monitor": {"a": float(NOW)}})
    await spoil(redis, "t:processing")
    assert await store.take_over(10, lease=20, holder="m") == Overdue(FIRST / 1e6, [], ["a"], [])
    assert await everything(redis) == {"t:processing": WRONG}


@pytest.mark.parametrize("lane", LISTS)
async def test_the_scheduler_goes_on_beside_a_poisoned_lane(
    store: Store, redis: Redis, clock: Clock, lane: str
) -> None:
    _, state = await healthy("process_delay_message", store, redis, clock)
    await spoil(redis, f"t:{lane}")
    before = await everything(redis)
    put_off = {"pending:high": "d1-t", "pending": "d2-t", "pending:low": "d3-t"}[lane]

    clock.advance(1)
    promotion = await store.promote()
    assert promotion.poisoned == [put_off]
    assert sorted(promotion.promoted) == sorted(
        {f"d{n}-{topic}" for n in (1, 2, 3) for topic in ("t", "u")} - {put_off}
    )
    assert promotion.wait == 60.0

    del state["all_expire_monitor"][put_off]
    state["delay_tasks"][put_off] = clock.ms + 60_000.0
    state["payload"][f"{put_off}:keep"] = before["payload"][f"{put_off}:keep"]
    state[f"t:{lane}"] = WRONG
    state["counters"]["t:promoted"] = "2"
    assert await everything(redis) == state


@pytest.mark.parametrize("lane", LISTS)
async def test_a_replay_into_a_poisoned_lane_leaves_the_message_dead(
    store: Store, redis: Redis, lane: str
) -> None:
    await seed(redis, *(dead(f"{name}-{n}", name) for name in ("t", "u") for n in range(3)))
    await spoil(redis, f"t:{lane}")
    lanes: dict[str, Any] = {"pending:high": "high", "pending": "normal", "pending:low": "low"}
    replays = [
        Replay(f"{name}-{n}", lane=each) for name in ("t", "u") for n, each in enumerate(lanes.values())
    ]
    poisoned = list(lanes).index(lane)
    reply = await store.replay(replays)
    assert reply == [Replayed.POISONED if n == poisoned else Replayed.REPLAYED for n in range(6)]
    assert await everything(redis) == together(
        dead(f"t-{poisoned}", "t"),
        *(pending(each.id, each.id[0], lane=each.lane) for n, each in enumerate(replays) if n != poisoned),
        {f"t:{lane}": WRONG},
        awake("t"),
        awake("u"),
        counted({"t:replayed": 2, "u:replayed": 3}),
    )


async def test_a_message_that_may_be_running_in_a_poisoned_topic_is_not_cancelled(
    store: Store, redis: Redis
) -> None:
    state = await seed(redis, pending("t1", "t"), delayed("t2", "t", due=NOW), pending("u1", "u"))
    await spoil(redis, "t:processing")
    reply = await store.cancel(["t1", "u1", "t2"])
    assert reply == [Cancelled.POISONED, Cancelled.CANCELLED, Cancelled.POISONED]
    del state["payload"]["u1"], state["payload"]["u1:queue"], state["all_expire_monitor"]["u1"]
    del state["u:pending"]
    assert await everything(redis) == state | {"t:processing": WRONG} | counted({"u:cancelled": 1})


async def test_a_thousand_poisoned_in_front_do_not_starve_the_monitor(store: Store, redis: Redis) -> None:
    bad = [f"t{n:03}" for n in range(1000)]
    await seed(redis, *(leased(id_, ends=NOW - 9) for id_ in bad), leased("u1", "u", ends=NOW))
    await spoil(redis, "t:processing")
    first = await store.take_over(1000, lease=20, holder="m")
    assert (first.taken, first.poisoned) == ([], bad)
    second = await store.take_over(1000, lease=20, holder="m")
    assert ([row.delivery.id for row in second.taken], second.poisoned) == (["u1"], [])


async def test_a_thousand_poisoned_in_front_do_not_starve_the_scheduler(store: Store, redis: Redis) -> None:
    """The first call says that more is due at once, so the second follows without a pause."""
    bad = [f"t{n:03}" for n in range(1000)]
    await seed(redis, *(delayed(id_, due=NOW - 9) for id_ in bad), delayed("u1", "u", due=NOW))
    await spoil(redis, "t:pending")
    assert await store.promote() == Promotion(0.0, [], [], bad)
    assert await store.promote() == Promotion(60.0, ["u1"], [], [])


async def test_a_thousand_without_topic_in_front_starve_nobody_either(store: Store, redis: Redis) -> None:
    bad = [f"t{n:03}" for n in range(1000)]
    await seed(
        redis,
        *(pending(f"{id_}-p", expires=NOW - 9) for id_ in bad),
        *(delayed(f"{id_}-d", due=NOW - 9) for id_ in bad),
        pending("u1", "u", expires=NOW),
        delayed("u2", "u", due=NOW),
    )
    await redis.hdel(
        Keys("q").of_queue("payload"), *(f"{id_}{place}:queue" for id_ in bad for place in ("-p", "-d"))
    )
    assert len((await store.take_over(1000, lease=20, holder="m")).poisoned) == 1000
    assert [row.delivery.id for row in (await store.take_over(1000, lease=20, holder="m")).taken] == ["u1"]
    assert len((await store.promote()).poisoned) == 1000
    assert (await store.promote()).promoted == ["u2"]
