from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from mx_rmq.errors import StoreError
from mx_rmq.receipt import Stored
from mx_rmq.storage.contract import Cancelled, NewMessage, NextDelay, Promotion, Settled
from tests.scripts.states import (
    FIRST,
    NOW,
    awake,
    body_of,
    counted,
    dead,
    delayed,
    delivery,
    everything,
    fenced,
    hint,
    leased,
    pending,
    seed,
    together,
)
from tests.words import unchanged

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from mx_rmq.message import Lane
    from mx_rmq.storage.store import Store

PAYLOAD = "mx-rmq:{q}:payload"

NEIGHBOURS = together(
    pending("p1"),
    leased("l"),
    delayed("d", due=NOW),
    dead("x"),
    pending("other", "u"),
)
"""A message in every place, none of which a call may touch."""


@pytest.mark.parametrize("lane", ["high", "normal", "low"])
async def test_a_pending_message_is_withdrawn_from_any_lane(store: Store, redis: Redis, lane: Lane) -> None:
    await seed(redis, NEIGHBOURS, pending("a", lane=lane, expires=NOW + 9, leased=2))
    assert await store.cancel(["a"]) == [Cancelled.CANCELLED]
    assert await everything(redis) == together(NEIGHBOURS, counted({"t:cancelled": 1}))


async def test_a_delayed_message_is_withdrawn(store: Store, redis: Redis) -> None:
    await seed(redis, delayed("a", due=NOW, lane="high", leased=1))
    assert await store.cancel(["a"]) == [Cancelled.CANCELLED]
    assert await everything(redis) == counted({"t:cancelled": 1})
    assert await store.next_delay() == NextDelay("NO_TASK", 0.0, "")
    assert await store.promote() == Promotion(None, [], [], [])


async def test_what_runs_died_or_is_unknown_is_left_alone_and_named(store: Store, redis: Redis) -> None:
    """Who runs a message decides its fate; an operator who wants it gone waits or pauses."""
    await seed(redis, NEIGHBOURS)
    async with unchanged(redis):
        reply = await store.cancel(["l", "x", "nobody"])
    assert reply == [Cancelled.RUNNING, Cancelled.DEAD, Cancelled.GONE]


async def test_a_running_message_is_still_completed_after_the_attempt(store: Store, redis: Redis) -> None:
    await seed(redis, leased("a"), hint("a"))
    assert await store.cancel(["a"]) == [Cancelled.RUNNING]
    assert await store.complete("t", [(delivery("a"), 0.0)]) == [Settled.DONE]


async def test_each_message_of_a_batch_is_judged_alone(store: Store, redis: Redis) -> None:
    await seed(redis, NEIGHBOURS, pending("a"), delayed("b", "u", due=NOW), pending("c", "u", lane="low"))
    reply = await store.cancel(["a", "l", "b", "nobody", "c", "x"])
    assert reply == [
        Cancelled.CANCELLED,
        Cancelled.RUNNING,
        Cancelled.CANCELLED,
        Cancelled.GONE,
        Cancelled.CANCELLED,
        Cancelled.DEAD,
    ]
    assert await everything(redis) == together(NEIGHBOURS, counted({"t:cancelled": 1, "u:cancelled": 2}))


async def test_sent_again_it_says_gone_and_changes_nothing(store: Store, redis: Redis) -> None:
    await seed(redis, NEIGHBOURS, pending("a"), pending("b"))
    assert await store.cancel(["a"]) == [Cancelled.CANCELLED]
    async with unchanged(redis):
        assert await store.cancel(["a"]) == [Cancelled.GONE]


async def test_the_same_id_twice_in_one_call_is_cancelled_once(store: Store, redis: Redis) -> None:
    await seed(redis, NEIGHBOURS, pending("a"))
    assert await store.cancel(["a", "a"]) == [Cancelled.CANCELLED, Cancelled.GONE]
    assert await everything(redis) == together(NEIGHBOURS, counted({"t:cancelled": 1}))


async def test_an_entry_in_mid_list_stays_as_a_hint_that_the_claim_drops(store: Store, redis: Redis) -> None:
    await seed(redis, pending("head"), pending("a"), pending("tail"))
    assert await store.cancel(["a"]) == [Cancelled.CANCELLED]
    assert await everything(redis) == together(
        pending("head"), hint("a"), pending("tail"), counted({"t:cancelled": 1, "t:stale": 1})
    )
    claim = await store.claim("t", 10, lease=15, holder="w")
    assert [each.id for each in claim.deliveries] == ["head", "tail"]
    assert await everything(redis) == together(
        leased("head", token=f"1@{FIRST + 1}"),
        leased("tail", token=f"1@{FIRST + 1}"),
        counted({"t:cancelled": 1}),
        fenced(FIRST + 1),
    )


async def test_entries_at_both_ends_leave_with_their_message(store: Store, redis: Redis) -> None:
    await seed(redis, pending("head"), pending("mid"), pending("tail"))
    assert await store.cancel(["head", "tail"]) == [Cancelled.CANCELLED] * 2
    assert await everything(redis) == together(pending("mid"), counted({"t:cancelled": 2}))


@pytest.mark.parametrize("topic", ["t", "u"])
@pytest.mark.parametrize("lane", ["high", "normal", "low"])
async def test_an_id_produced_again_elsewhere_runs_once_and_only_there(
    store: Store, redis: Redis, topic: str, lane: Lane
) -> None:
    """Its old entry is a hint of another life: another topic drops it, in its own it runs the new one."""
    await seed(redis, pending("head"), pending("a"), pending("tail"))
    assert await store.cancel(["a"]) == [Cancelled.CANCELLED]
    new = NewMessage("a", b"new life", lane)
    assert await store.produce(topic, [new]) == [Stored.STORED]
    deliveries = []
    for name in ("t", "u", "t", "u"):
        deliveries += (await store.claim(name, 10, lease=15, holder="w")).deliveries
    assert sorted((each.id, each.topic) for each in deliveries) == [
        ("a", topic),
        ("head", "t"),
        ("tail", "t"),
    ]
    assert [each.body for each in deliveries if each.id == "a"] == [b"new life"]
    for each in deliveries:
        assert await store.complete(each.topic, [(each, 0.0)]) == [Settled.DONE]
    assert (await everything(redis)).keys() == {"topics", "fence", *counted({})}


async def test_a_delayed_new_life_does_not_run_by_the_old_entry(store: Store, redis: Redis) -> None:
    await seed(redis, pending("head"), pending("a"), pending("tail"))
    assert await store.cancel(["a"]) == [Cancelled.CANCELLED]
    assert await store.produce_delayed("t", [NewMessage("a", body_of("a").encode(), delay=1.0)]) == [
        Stored.STORED
    ]
    claim = await store.claim("t", 10, lease=15, holder="w")
    assert [each.id for each in claim.deliveries] == ["head", "tail"]
    state = await everything(redis)
    assert state["delay_tasks"] == {"a": NOW + 1000}
    assert "t:pending" not in state


async def test_the_topics_token_stays_and_costs_one_empty_look(store: Store, redis: Redis) -> None:
    await seed(redis, awake(), pending("a"))
    assert await store.cancel(["a"]) == [Cancelled.CANCELLED]
    assert await everything(redis) == together(awake(), counted({"t:cancelled": 1}))
    assert (await store.claim("t", 10, lease=15, holder="w")).deliveries == []
    assert await everything(redis) == counted({"t:cancelled": 1})


async def test_a_message_without_topic_is_left_to_the_audit(store: Store, redis: Redis) -> None:
    """It may be running: without its topic nobody can tell."""
    await seed(redis, pending("a"), leased("b"))
    await redis.hdel(PAYLOAD, "a:queue", "b:queue")
    async with unchanged(redis):
        assert await store.cancel(["a", "b"]) == [Cancelled.POISONED] * 2


async def test_leftovers_without_a_body_are_no_message(store: Store, redis: Redis) -> None:
    await seed(redis, pending("a"), delayed("b", due=NOW))
    await redis.hdel(PAYLOAD, "a", "b")
    async with unchanged(redis):
        assert await store.cancel(["a", "b"]) == [Cancelled.GONE] * 2


async def test_an_empty_batch_changes_nothing(store: Store, redis: Redis) -> None:
    await seed(redis, NEIGHBOURS)
    async with unchanged(redis):
        assert await store.cancel([]) == []


async def test_a_thousand_in_one_call_pass(store: Store, redis: Redis) -> None:
    ids = [f"m{n}" for n in range(1000)]
    parts = [pending(id_, lane="low") if n % 2 else delayed(id_, due=NOW) for n, id_ in enumerate(ids)]
    await seed(redis, NEIGHBOURS, *parts)
    assert await store.cancel(ids) == [Cancelled.CANCELLED] * 1000
    assert await everything(redis) == together(NEIGHBOURS, counted({"t:cancelled": 1000}))


async def test_one_more_than_a_thousand_is_refused_whole(store: Store, redis: Redis) -> None:
    await seed(redis, NEIGHBOURS)
    async with unchanged(redis):
        with pytest.raises(StoreError, match="TOOMANY 1001 messages"):
            await store.cancel(["p1", *(f"m{n}" for n in range(1000))])
