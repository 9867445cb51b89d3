from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from mx_rmq.storage.contract import Cause, Delivery, Overdue, Replay, Replayed, Settled, Takeover
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
    grouped,
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

LEASE = 20.0
ENDS = NOW + 20_000
PAYLOAD = "mx-rmq:{q}:payload"

HEALTHY = together(
    pending("p", expires=NOW + 1),
    pending("forever"),
    leased("l", ends=NOW + 1),
    delayed("d", due=NOW - 5),
    dead("x", died=NOW - 5),
    leased("other", "u"),
    {"done": {"remembered": NOW + 1.0}},
)
"""One message in every place, none past its deadline (the delayed one has none)."""


async def take_over(
    store: Store, limit: int = 1000, holder: str = "monitor", before: float | None = None
) -> Overdue:
    return await store.take_over(limit, lease=LEASE, holder=holder, before=before)


def taken(id_: str, topic: str, token: str, cause: Cause, expires_ms: float, previous: str) -> Takeover:
    body = body_of(id_).encode()
    return Takeover(Delivery(id_, topic, token, body, expires_ms / 1000), cause, previous)


async def test_a_lapsed_lease_goes_to_the_monitor_and_keeps_lane_expiry_and_count(
    store: Store, redis: Redis
) -> None:
    lapsed = leased("a", token="3@5", lane="high", expires=NOW + 99, holder="w7", ends=NOW - 1, before=2)
    await seed(redis, HEALTHY, lapsed)
    token = f"4@{FIRST}"
    assert await take_over(store) == Overdue(
        now=FIRST / 1e6,
        taken=[taken("a", "t", token, "lapsed", NOW + 99, "w7")],
        cleaned=[],
        poisoned=[],
    )
    after = leased(
        "a", token=token, lane="high", expires=NOW + 99, holder="monitor", cause="lapsed", ends=ENDS
    )
    after["payload"]["a:keep"] = f"2 high {NOW + 99}"
    assert await everything(redis) == together(HEALTHY, after, counted({"t:lapsed": 1}), fenced())


async def test_a_deadline_has_passed_in_its_own_millisecond_and_not_before(
    store: Store, redis: Redis
) -> None:
    await seed(redis, leased("due", ends=NOW), leased("not-yet", ends=NOW + 1))
    overdue = await take_over(store)
    assert [row.delivery.id for row in overdue.taken] == ["due"]


async def test_nothing_past_its_deadline_is_nothing_to_do(store: Store, redis: Redis) -> None:
    await seed(redis, HEALTHY)
    async with unchanged(redis):
        assert await take_over(store) == Overdue(FIRST / 1e6, [], [], [])


async def test_a_call_that_was_held_up_takes_nothing_and_says_so(store: Store, redis: Redis) -> None:
    """What held it up held up the owners too: they extend before the next call, which may take over."""
    late = together(
        leased("a", ends=NOW - 1),
        pending("b", expires=NOW - 1),
        {"done": {"old": NOW - 1.0}, "all_expire_monitor": {"leftover": NOW - 1.0}},
    )
    await seed(redis, HEALTHY, late)
    async with unchanged(redis):
        assert await take_over(store, before=(FIRST - 1) / 1e6) == Overdue(
            FIRST / 1e6, [], [], [], belated=True
        )


async def test_a_call_in_the_very_instant_it_is_bound_to_counts(store: Store, redis: Redis) -> None:
    await seed(redis, leased("a", ends=NOW - 1))
    overdue = await take_over(store, before=FIRST / 1e6)
    assert [row.delivery.id for row in overdue.taken] == ["a"]
    assert not overdue.belated


async def test_an_empty_queue_stays_empty(store: Store, redis: Redis) -> None:
    assert await take_over(store) == Overdue(FIRST / 1e6, [], [], [])
    assert await everything(redis) == {}


async def test_an_expired_pending_message_becomes_a_lease_with_cause_expired(
    store: Store, redis: Redis
) -> None:
    """It goes to the DLQ by the monitor's next call, never to a handler or to retry."""
    await seed(redis, HEALTHY, pending("a", "v", expires=NOW - 7))
    token = f"1@{FIRST}"
    assert (await take_over(store)).taken == [taken("a", "v", token, "expired", NOW - 7, "-")]
    assert await everything(redis) == together(
        HEALTHY,
        leased("a", "v", token=token, expires=NOW - 7, holder="monitor", cause="expired", ends=ENDS),
        counted({"v:expired": 1}),
        fenced(),
    )


@pytest.mark.parametrize("lane", ["high", "normal", "low"])
async def test_an_expired_pending_message_keeps_its_lane_and_count(
    store: Store, redis: Redis, lane: Lane
) -> None:
    await seed(redis, pending("a", lane=lane, expires=NOW, leased=3))
    token = f"4@{FIRST}"
    assert (await take_over(store)).taken == [taken("a", "t", token, "expired", NOW, "-")]
    after = leased("a", token=token, lane=lane, expires=NOW, holder="monitor", cause="expired", ends=ENDS)
    after["payload"]["a:keep"] = f"3 {lane} {NOW}"
    assert await everything(redis) == together(after, counted({"t:expired": 1}), fenced())


async def test_the_first_lease_is_worthless_after_a_take_over(store: Store, redis: Redis) -> None:
    """Whatever its holder believes: it can neither settle the message nor hold on to it."""
    await seed(redis, leased("a", ends=NOW))
    await take_over(store)
    late = delivery("a")
    async with unchanged(redis):
        assert await store.extend("t", [late], lease=15) == [Settled.STALE]
        assert await store.complete("t", [(late, 60.0)]) == [Settled.STALE]
        assert await store.retry("t", [(late, 1.0, b"late")]) == [Settled.STALE]
        assert await store.release("t", [late]) == [Settled.STALE]
        assert await store.move_to_dlq("t", [(late, b"", b"late")]) == [Settled.STALE]


async def test_a_heartbeat_in_time_keeps_the_lease_from_the_monitor(
    store: Store, redis: Redis, clock: Clock
) -> None:
    await seed(redis, leased("a", ends=NOW + 1000))
    clock.advance(0.999)
    assert await store.extend("t", [delivery("a")], lease=15) == [Settled.DONE]
    clock.advance(14.9)
    async with unchanged(redis):
        assert (await take_over(store)).taken == []


@pytest.mark.parametrize(
    ("before", "cause"),
    [(leased("a", ends=NOW), "lapsed"), (pending("a", expires=NOW), "expired")],
    ids=["lapsed", "expired"],
)
async def test_a_take_over_of_a_take_over_keeps_the_cause(
    store: Store, redis: Redis, clock: Clock, before: dict[str, object], cause: str
) -> None:
    """A monitor that died must not turn an expired message into one that is retried, or back."""
    await seed(redis, before)
    await take_over(store, holder="first")
    for previous, holder in [("first", "second"), ("second", "third")]:
        clock.advance(LEASE)
        [row] = (await take_over(store, holder=holder)).taken
        assert (row.cause, row.previous) == (cause, previous)
        lease = (await everything(redis))["t:processing"]["a"]
        assert lease.split()[0] == row.delivery.token
        assert lease.split()[3:] == [holder, cause]
    assert (await everything(redis))["counters"] == {f"t:{cause}": "3"}


async def test_the_whole_way_of_an_expired_message_leads_to_the_dlq(store: Store, redis: Redis) -> None:
    await seed(redis, pending("a", expires=NOW))
    [row] = (await take_over(store)).taken
    assert await store.move_to_dlq("t", [(row.delivery, b"", b"expired")]) == [Settled.DONE]
    assert await everything(redis) == together(
        grouped("a", error="expired"), counted({"t:expired": 1, "t:dead": 1}), fenced()
    )


async def test_an_expired_message_at_either_end_leaves_no_hint(store: Store, redis: Redis) -> None:
    await seed(redis, pending("head", expires=NOW), pending("mid"), pending("tail", expires=NOW))
    await take_over(store)
    assert (await everything(redis))["t:pending"] == ["mid"]


async def test_an_expired_message_in_mid_list_leaves_a_hint_that_the_claim_drops(
    store: Store, redis: Redis
) -> None:
    """Nothing ever searches a long list; what is left in it can never run."""
    await seed(redis, pending("head"), pending("a", expires=NOW), pending("tail"))
    [row] = (await take_over(store)).taken
    assert (await everything(redis))["t:pending"] == ["head", "a", "tail"]
    claim = await store.claim("t", 10, lease=15, holder="w")
    assert [each.id for each in claim.deliveries] == ["head", "tail"]
    assert await store.move_to_dlq("t", [(row.delivery, b"", b"why")]) == [Settled.DONE]
    assert await everything(redis) == together(
        leased("head", token=f"1@{FIRST + 1}"),
        leased("tail", token=f"1@{FIRST + 1}"),
        grouped("a"),
        counted({"t:expired": 1, "t:dead": 1}),
        fenced(FIRST + 1),
    )


async def test_a_hint_and_a_replay_of_the_same_message_run_it_once(store: Store, redis: Redis) -> None:
    await seed(redis, pending("head"), pending("a", expires=NOW), pending("tail"))
    [row] = (await take_over(store)).taken
    assert await store.move_to_dlq("t", [(row.delivery, b"", b"why")]) == [Settled.DONE]
    assert await store.replay([Replay("a")]) == [Replayed.REPLAYED]
    assert (await everything(redis))["t:pending"] == ["head", "a", "tail", "a"]
    claim = await store.claim("t", 10, lease=15, holder="w")
    assert [each.id for each in claim.deliveries] == ["head", "a", "tail"]
    assert "t:pending" not in await everything(redis)


@pytest.mark.parametrize("with_topic", [True, False])
async def test_leftovers_without_a_body_are_cleaned_up(store: Store, redis: Redis, with_topic: bool) -> None:
    await seed(redis, HEALTHY, {"all_expire_monitor": {"a": float(NOW)}})
    await redis.hset(PAYLOAD, "a:keep", "1 normal inf")
    if with_topic:
        await redis.hset(PAYLOAD, "a:queue", "t")
        await redis.hset("mx-rmq:{q}:t:processing", "a", "1@5 normal inf w run")
    assert await take_over(store) == Overdue(FIRST / 1e6, [], ["a"], [])
    assert await everything(redis) == HEALTHY


async def test_a_delayed_message_loses_a_deadline_it_should_not_have(store: Store, redis: Redis) -> None:
    """Its time has not come: neither a lease nor an end belongs to it."""
    await seed(
        redis, HEALTHY, delayed("a", due=NOW + 50, leased=1), {"all_expire_monitor": {"a": float(NOW)}}
    )
    assert await take_over(store) == Overdue(FIRST / 1e6, [], ["a"], [])
    assert await everything(redis) == together(HEALTHY, delayed("a", due=NOW + 50, leased=1))


async def test_a_message_without_topic_is_put_off_by_a_minute_and_reported(
    store: Store, redis: Redis, clock: Clock
) -> None:
    """Where it belongs only an operator can tell; it stays, and it comes up again."""
    before = await seed(redis, HEALTHY, pending("a", expires=NOW))
    del before["payload"]["a:queue"]
    await redis.hdel(PAYLOAD, "a:queue")
    assert await take_over(store) == Overdue(FIRST / 1e6, [], [], ["a"])
    before["all_expire_monitor"]["a"] = NOW + 60_000
    assert await everything(redis) == before
    clock.advance(60)
    assert "a" in (await take_over(store)).poisoned


async def test_an_unreadable_lease_is_taken_over_as_lapsed(store: Store, redis: Redis) -> None:
    await seed(redis, leased("a", ends=NOW) | {"t:processing": {"a": "garbage"}})
    token = f"1@{FIRST}"
    [row] = (await take_over(store)).taken
    assert (row.delivery.token, row.cause, row.previous) == (token, "lapsed", "-")
    assert await everything(redis) == together(
        leased("a", token=token, holder="monitor", cause="lapsed", ends=ENDS),
        counted({"t:lapsed": 1}),
        fenced(),
    )


async def test_sent_again_it_takes_nothing_and_nothing_is_lost(
    store: Store, redis: Redis, clock: Clock
) -> None:
    """If the reply is lost, the monitor's own lease lapses in turn."""
    await seed(redis, leased("a", ends=NOW), pending("b", expires=NOW))
    first = await take_over(store)
    async with unchanged(redis):
        assert (await take_over(store)).taken == []
    clock.advance(LEASE)
    again = await take_over(store)
    assert sorted(row.delivery.id for row in again.taken) == ["a", "b"]
    assert {row.delivery.token for row in again.taken}.isdisjoint(row.delivery.token for row in first.taken)


async def test_the_longest_overdue_come_first_and_the_limit_holds(store: Store, redis: Redis) -> None:
    await seed(redis, *(leased(f"m{n}", ends=NOW - n) for n in range(5)))
    assert [row.delivery.id for row in (await take_over(store, 2)).taken] == ["m4", "m3"]
    assert [row.delivery.id for row in (await take_over(store, 2)).taken] == ["m2", "m1"]
    assert [row.delivery.id for row in (await take_over(store, 2)).taken] == ["m0"]
    assert (await everything(redis))["all_expire_monitor"] == {f"m{n}": ENDS for n in range(5)}


async def test_topics_and_causes_are_counted_apart(store: Store, redis: Redis) -> None:
    await seed(
        redis,
        *(leased(f"a{n}", ends=NOW) for n in range(2)),
        *(pending(f"b{n}", expires=NOW) for n in range(3)),
        *(leased(f"c{n}", "u", ends=NOW) for n in range(4)),
    )
    assert len((await take_over(store)).taken) == 9
    state = await everything(redis)
    expected = counted({"t:lapsed": 2, "t:expired": 3, "u:lapsed": 4})
    assert {key: state[key] for key in expected} == expected


async def test_memories_of_completed_ids_end_in_time(store: Store, redis: Redis) -> None:
    await seed(redis, {"done": {"old": NOW - 1.0, "now": float(NOW), "young": NOW + 1.0}})
    await take_over(store)
    assert await everything(redis) == {"done": {"young": NOW + 1.0}}


async def test_memories_are_forgotten_a_thousand_at_a_time(store: Store, redis: Redis) -> None:
    await seed(redis, {"done": {f"m{n}": float(NOW) for n in range(1001)}})
    await take_over(store)
    assert len((await everything(redis))["done"]) == 1
    await take_over(store)
    assert await everything(redis) == {}


@pytest.mark.parametrize("limit", [1000, 5000])
async def test_one_call_takes_over_a_thousand_and_never_more(store: Store, redis: Redis, limit: int) -> None:
    await seed(redis, *(leased(f"m{n}", ends=NOW) for n in range(1001)))
    assert len((await take_over(store, limit)).taken) == 1000
    assert len((await take_over(store, limit)).taken) == 1
    state = await everything(redis)
    assert state["all_expire_monitor"] == {f"m{n}": ENDS for n in range(1001)}
    assert state["counters"] == {"t:lapsed": "1001"}


@pytest.mark.parametrize("limit", [0, -1])
async def test_a_limit_below_one_takes_nothing(store: Store, redis: Redis, limit: int) -> None:
    await seed(redis, leased("a", ends=NOW), pending("b", expires=NOW))
    async with unchanged(redis):
        assert (await take_over(store, limit)).taken == []


async def test_large_bodies_are_taken_over_in_portions(store: Store, redis: Redis) -> None:
    """A reply of a thousand bodies of a megabyte would stall the server and the monitor."""
    await seed(redis, *(leased(f"m{n}", ends=NOW - 9 + n) for n in range(6)))
    await redis.hset(PAYLOAD, mapping={f"m{n}": b"x" * 1024 * 1024 for n in range(6)})
    assert [row.delivery.id for row in (await take_over(store)).taken] == ["m0", "m1", "m2", "m3"]
    assert [row.delivery.id for row in (await take_over(store)).taken] == ["m4", "m5"]


async def test_a_topic_that_wakes_nobody_is_not_woken(store: Store, redis: Redis) -> None:
    """A take-over makes nothing pending, so the token of the topic stays as it is."""
    await seed(redis, awake(), leased("a", ends=NOW), leased("b", "u", ends=NOW))
    await take_over(store)
    state = await everything(redis)
    assert {key: state[key] for key in state if "wake" in key} == awake()


async def test_an_entry_of_another_topic_is_no_hint_of_this_message(store: Store, redis: Redis) -> None:
    """Only lists of the message's own topic are looked at."""
    await seed(redis, pending("a", expires=NOW), hint("a", "u"))
    await take_over(store)
    state = await everything(redis)
    assert "t:pending" not in state
    assert state["u:pending"] == ["a"]
