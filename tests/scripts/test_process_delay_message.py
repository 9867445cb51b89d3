from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from mx_rmq.receipt import Stored
from mx_rmq.storage.contract import NewMessage, Promotion, Settled
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
    from tests.harness import Clock

PAYLOAD = "mx-rmq:{q}:payload"
LANES: tuple[Lane, ...] = ("high", "normal", "low")

NEIGHBOURS = together(
    pending("p", expires=NOW),
    pending("other", "u"),
    leased("l", ends=NOW),
    dead("x"),
    delayed("later", due=NOW + 5_000, lane="high", leased=1),
    {"delay_wake": ["1"], "done": {"old": NOW - 1.0}},
)
"""A message in every place, the delayed one not due."""


@pytest.mark.parametrize("lane", LANES)
async def test_what_is_due_goes_to_its_lane_with_expiry_and_count_kept(
    store: Store, redis: Redis, lane: Lane
) -> None:
    """Priority survives a delay, as it survives a retry."""
    await seed(redis, NEIGHBOURS, delayed("a", "v", due=NOW, lane=lane, expires=NOW + 777, leased=2))
    assert await store.promote() == Promotion(5.0, ["a"], [], [])
    assert await everything(redis) == together(
        NEIGHBOURS,
        pending("a", "v", lane=lane, expires=NOW + 777, leased=2),
        awake("v"),
        counted({"v:promoted": 1}),
    )


@pytest.mark.parametrize("lane", LANES)
async def test_a_message_that_never_ran_needs_no_memory_of_its_leases(
    store: Store, redis: Redis, lane: Lane
) -> None:
    await seed(redis, delayed("a", due=NOW, lane=lane))
    assert await store.promote() == Promotion(None, ["a"], [], [])
    assert await everything(redis) == together(pending("a", lane=lane), awake(), counted({"t:promoted": 1}))


@pytest.mark.parametrize("lane", LANES)
async def test_the_next_lease_goes_on_counting_in_the_same_lane(
    store: Store, redis: Redis, lane: Lane
) -> None:
    """Through produce, delay, claim, retry and again: lane, expiry and count are those of the beginning."""
    message = NewMessage("a", body_of("a").encode(), lane=lane, ttl=60.0, delay=0.0)
    expires = NOW + 60_000
    assert await store.produce_delayed("t", [message]) == [Stored.STORED]
    for count in (1, 2, 3):
        assert (await store.promote()).promoted == ["a"]
        [delivery_] = (await store.claim("t", 1, lease=15, holder="w")).deliveries
        assert delivery_.expires_at == expires / 1000
        assert delivery_.token.startswith(f"{count}@")
        assert (await everything(redis))["t:processing"] == {"a": f"{delivery_.token} {lane} {expires} w run"}
        assert await store.retry("t", [(delivery_, 0.0, delivery_.body)]) == [Settled.DONE]
        state = await everything(redis)
        assert state["payload"] == delayed("a", due=0, lane=lane, expires=expires, leased=count)["payload"]


async def test_due_begins_with_the_very_millisecond(store: Store, redis: Redis) -> None:
    await seed(redis, delayed("a", due=NOW), delayed("b", due=NOW + 1))
    assert await store.promote() == Promotion(0.001, ["a"], [], [])


async def test_nothing_due_changes_nothing_and_says_how_long_to_wait(store: Store, redis: Redis) -> None:
    await seed(redis, NEIGHBOURS)
    async with unchanged(redis):
        assert await store.promote() == Promotion(5.0, [], [], [])


async def test_an_empty_queue_drops_the_schedulers_token(store: Store, redis: Redis) -> None:
    """Nothing is delayed, so nobody needs to look; the token would only wake one scheduler for nothing."""
    await seed(redis, {"delay_wake": ["1"]})
    assert await store.promote() == Promotion(None, [], [], [])
    assert await everything(redis) == {}


async def test_they_queue_up_in_the_order_in_which_they_were_due(store: Store, redis: Redis) -> None:
    await seed(
        redis,
        pending("here"),
        delayed("c", due=NOW - 1),
        delayed("a", due=NOW - 3),
        delayed("b", due=NOW - 2),
        delayed("u1", "u", due=NOW - 2),
    )
    assert (await store.promote()).promoted == ["a", "b", "u1", "c"]
    state = await everything(redis)
    assert state["t:pending"] == ["here", "a", "b", "c"]
    assert state["u:pending"] == ["u1"]
    claim = await store.claim("t", 10, lease=15, holder="w")
    assert [each.id for each in claim.deliveries] == ["here", "a", "b", "c"]


async def test_every_topic_is_woken_once_and_counted_apart(store: Store, redis: Redis) -> None:
    await seed(
        redis,
        awake("t"),
        *(delayed(f"t{n}", "t", due=NOW, lane=LANES[n % 3]) for n in range(6)),
        *(delayed(f"u{n}", "u", due=NOW) for n in range(2)),
    )
    await store.promote()
    state = await everything(redis)
    expected = together(awake("t"), awake("u"), counted({"t:promoted": 6, "u:promoted": 2}))
    assert {key: state[key] for key in expected} == expected


async def test_sent_again_it_promotes_nothing_twice(store: Store, redis: Redis) -> None:
    await seed(redis, NEIGHBOURS, delayed("a", due=NOW), delayed("b", "u", due=NOW))
    assert (await store.promote()).promoted == ["a", "b"]
    async with unchanged(redis):
        assert await store.promote() == Promotion(5.0, [], [], [])


async def test_an_expiry_that_passed_during_the_delay_still_holds(store: Store, redis: Redis) -> None:
    """The monitor finds it at once, as expired; no handler will run it."""
    await seed(redis, delayed("a", due=NOW, lane="low", expires=NOW - 1, leased=1))
    assert (await store.promote()).promoted == ["a"]
    [row] = (await store.take_over(10, lease=15, holder="m")).taken
    assert (row.delivery.id, row.delivery.token, row.cause) == ("a", f"2@{FIRST + 1}", "expired")
    assert "t:pending:low" not in await everything(redis)


async def test_leftovers_without_a_body_are_cleaned_up(store: Store, redis: Redis) -> None:
    await seed(redis, NEIGHBOURS, delayed("a", due=NOW), {"delay_tasks": {"bare": float(NOW)}})
    await redis.hdel(PAYLOAD, "a")
    assert await store.promote() == Promotion(5.0, [], ["a", "bare"], [])
    assert await everything(redis) == NEIGHBOURS


async def test_a_message_without_topic_is_put_off_by_a_minute_and_reported(
    store: Store, redis: Redis, clock: Clock
) -> None:
    """Where it belongs only an operator can tell; it stays, and it comes up again."""
    before = await seed(redis, NEIGHBOURS, delayed("a", due=NOW))
    await redis.hdel(PAYLOAD, "a:queue")
    del before["payload"]["a:queue"]
    assert await store.promote() == Promotion(5.0, [], [], ["a"])
    before["delay_tasks"]["a"] = NOW + 60_000.0
    assert await everything(redis) == before
    clock.advance(60)
    assert (await store.promote()).poisoned == ["a"]


@pytest.mark.parametrize("keep", [None, "garbage", "1 urgent inf"])
async def test_a_missing_or_unreadable_memory_means_the_normal_lane(
    store: Store, redis: Redis, keep: str | None
) -> None:
    """The message matters more than its priority."""
    before = delayed("a", due=NOW)
    if keep is None:
        del before["payload"]["a:keep"]
    else:
        before["payload"]["a:keep"] = keep
    await seed(redis, before)
    assert (await store.promote()).promoted == ["a"]
    after = pending("a")
    after["payload"] = before["payload"]
    assert await everything(redis) == together(after, awake(), counted({"t:promoted": 1}))
    assert [each.id for each in (await store.claim("t", 1, lease=15, holder="w")).deliveries] == ["a"]


async def test_the_limit_holds_and_the_rest_is_due_at_once(store: Store, redis: Redis) -> None:
    await seed(redis, *(delayed(f"m{n}", due=NOW - 9 + n) for n in range(3)))
    assert await store.promote(2) == Promotion(0.0, ["m0", "m1"], [], [])
    assert await store.promote(2) == Promotion(None, ["m2"], [], [])


@pytest.mark.parametrize("limit", [0, -1])
async def test_a_limit_below_one_promotes_nothing(store: Store, redis: Redis, limit: int) -> None:
    await seed(redis, delayed("a", due=NOW))
    async with unchanged(redis):
        assert await store.promote(limit) == Promotion(0.0, [], [], [])


@pytest.mark.parametrize("limit", [1000, 5000])
async def test_one_call_promotes_a_thousand_and_never_more(store: Store, redis: Redis, limit: int) -> None:
    """More than Lua can unpack would fail in mid-script, with the messages in no place at all."""
    ids = [f"m{n:04}" for n in range(4500)]
    await seed(redis, *(delayed(id_, due=NOW, expires=NOW + 9) for id_ in ids))
    assert await store.promote(limit) == Promotion(0.0, ids[:1000], [], [])
    assert await everything(redis) == together(
        *(pending(id_, expires=NOW + 9) for id_ in ids[:1000]),
        *(delayed(id_, due=NOW, expires=NOW + 9) for id_ in ids[1000:]),
        awake(),
        counted({"t:promoted": 1000}),
    )


async def test_a_thousand_leftovers_are_cleaned_in_one_call(store: Store, redis: Redis) -> None:
    await seed(redis, *(delayed(f"m{n}", due=NOW) for n in range(1000)))
    await redis.hdel(PAYLOAD, *(f"m{n}" for n in range(1000)))
    assert len((await store.promote()).cleaned) == 1000
    assert await everything(redis) == {}


async def test_an_old_hint_does_not_run_a_delayed_message_early(store: Store, redis: Redis) -> None:
    """A delayed message has no deadline in the monitor, which is how claim tells."""
    await seed(redis, hint("a"), delayed("a", due=NOW + 1))
    assert (await store.claim("t", 10, lease=15, holder="w")).deliveries == []
    assert await everything(redis) == delayed("a", due=NOW + 1)


async def test_an_old_hint_and_the_promoted_entry_run_the_message_once(store: Store, redis: Redis) -> None:
    await seed(redis, hint("a"), delayed("a", due=NOW))
    assert (await store.promote()).promoted == ["a"]
    assert (await everything(redis))["t:pending"] == ["a", "a"]
    claim = await store.claim("t", 10, lease=15, holder="w")
    assert [each.id for each in claim.deliveries] == ["a"]
    assert "t:pending" not in await everything(redis)


async def test_a_late_worker_cannot_settle_what_was_promoted(store: Store, redis: Redis) -> None:
    await seed(redis, delayed("a", due=NOW, leased=1))
    assert (await store.promote()).promoted == ["a"]
    async with unchanged(redis):
        assert await store.complete("t", [(delivery("a"), 0.0)]) == [Settled.STALE]
