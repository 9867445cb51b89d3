from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from mx_rmq.errors import StoreError
from mx_rmq.storage.contract import Replay, Replayed, Settled
from tests.scripts.states import (
    FIRST,
    NOW,
    awake,
    counted,
    dead,
    delayed,
    everything,
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

DLQ_PAYLOAD = "mx-rmq:{q}:dlq_payload"

NEIGHBOURS = together(
    pending("p", expires=NOW),
    leased("l", ends=NOW),
    delayed("d", due=NOW),
    dead("x", died=NOW - 5),
    pending("other", "u"),
)
"""A message in every place, none of which a call may touch."""


async def test_a_dead_message_joins_the_tail_of_its_topic_as_it_was_stored(
    store: Store, redis: Redis
) -> None:
    await seed(redis, NEIGHBOURS, dead("a", died=NOW - 9))
    assert await store.replay([Replay("a")]) == [Replayed.REPLAYED]
    assert await everything(redis) == together(NEIGHBOURS, pending("a"), awake(), counted({"t:replayed": 1}))


async def test_not_a_byte_of_a_kept_body_changes(store: Store, redis: Redis) -> None:
    await seed(redis, dead("a"))
    await redis.hset(DLQ_PAYLOAD, "a", b"\xff\x00{")
    assert await store.replay([Replay("a")]) == [Replayed.REPLAYED]
    assert await redis.hget("mx-rmq:{q}:payload", "a") == b"\xff\x00{"


@pytest.mark.parametrize("lane", ["high", "normal", "low"])
async def test_a_new_body_lane_and_lifetime_are_taken(store: Store, redis: Redis, lane: Lane) -> None:
    await seed(redis, dead("a", "v", body="old"))
    assert await store.replay([Replay("a", b"body of a", lane, ttl=1.5)]) == [Replayed.REPLAYED]
    assert await everything(redis) == together(
        pending("a", "v", lane=lane, expires=NOW + 1500), awake("v"), counted({"v:replayed": 1})
    )


async def test_a_replayed_message_starts_to_count_its_leases_anew(
    store: Store, redis: Redis, clock: Clock
) -> None:
    """Its tokens differ from those of its first life all the same: they carry the time."""
    await seed(redis, leased("a", token=f"1@{FIRST - 9}"))
    clock.advance(15)
    [row] = (await store.take_over(1, lease=15, holder="m")).taken
    assert await store.move_to_dlq("t", [(row.delivery, b"", b"why")]) == [Settled.DONE]
    assert await store.replay([Replay("a")]) == [Replayed.REPLAYED]
    [delivery] = (await store.claim("t", 1, lease=15, holder="w")).deliveries
    assert delivery.token == f"1@{clock.us}"
    async with unchanged(redis):
        assert await store.complete("t", [(row.delivery, 0.0)]) == [Settled.STALE]


async def test_sent_again_it_replays_nothing_twice(store: Store, redis: Redis) -> None:
    await seed(redis, NEIGHBOURS, dead("a"))
    assert await store.replay([Replay("a")]) == [Replayed.REPLAYED]
    async with unchanged(redis):
        assert await store.replay([Replay("a")]) == [Replayed.GONE]


@pytest.mark.parametrize(
    ("died_at", "expected"),
    [
        (NOW / 1000, Replayed.REPLAYED),
        ((NOW - 1) / 1000, Replayed.CHANGED),
        ((NOW + 1) / 1000, Replayed.CHANGED),
    ],
)
async def test_only_the_death_that_was_looked_at_is_undone(
    store: Store, redis: Redis, died_at: float, expected: Replayed
) -> None:
    before = await seed(redis, NEIGHBOURS, dead("a", died=NOW))
    assert await store.replay([Replay("a", died_at=died_at)]) == [expected]
    changed = await everything(redis) != before
    assert changed == (expected is Replayed.REPLAYED)


async def test_a_message_that_died_again_is_not_replayed_by_an_old_call(
    store: Store, redis: Redis, clock: Clock
) -> None:
    """An operator's call whose reply was lost, sent again much later, meets another death."""
    await seed(redis, dead("a", died=NOW))
    call = [Replay("a", died_at=NOW / 1000)]
    assert await store.replay(call) == [Replayed.REPLAYED]
    clock.advance(1)
    [delivery] = (await store.claim("t", 1, lease=15, holder="w")).deliveries
    assert await store.move_to_dlq("t", [(delivery, b"", b"again")]) == [Settled.DONE]
    async with unchanged(redis):
        assert await store.replay(call) == [Replayed.CHANGED]


async def test_an_unknown_or_live_id_is_gone_to_the_dlq(store: Store, redis: Redis) -> None:
    await seed(redis, NEIGHBOURS)
    async with unchanged(redis):
        assert await store.replay([Replay(id_) for id_ in ("nobody", "p", "l", "d")]) == [Replayed.GONE] * 4


@pytest.mark.parametrize("live", [pending("a"), leased("a"), delayed("a", due=NOW)], ids=["p", "l", "d"])
async def test_an_id_that_lives_meanwhile_stays_dead_too(
    store: Store, redis: Redis, live: dict[str, object]
) -> None:
    """Another life of the same id must not be overwritten; the audit tells the two apart."""
    await seed(redis, live, dead("a"))
    async with unchanged(redis):
        assert await store.replay([Replay("a")]) == [Replayed.LIVE]


async def test_half_a_dead_message_is_left_to_the_audit(store: Store, redis: Redis) -> None:
    await seed(redis, dead("no-body"), dead("no-entry"), dead("whole"))
    await redis.hdel(DLQ_PAYLOAD, "no-body")
    await redis.zrem("mx-rmq:{q}:dlq", "no-entry")
    before = await everything(redis)
    reply = await store.replay([Replay("no-body"), Replay("no-entry"), Replay("whole")])
    assert reply == [Replayed.GONE, Replayed.GONE, Replayed.REPLAYED]
    after = await everything(redis)
    assert "whole" not in after["dlq"]
    for name, value in dead("whole").items():
        for field in value:
            del before[name][field]
    assert {name: after[name] for name in before} == before


async def test_a_dead_message_without_topic_stays_dead(store: Store, redis: Redis) -> None:
    await seed(redis, dead("a"))
    await redis.hdel(DLQ_PAYLOAD, "a:queue")
    async with unchanged(redis):
        assert await store.replay([Replay("a")]) == [Replayed.POISONED]


async def test_the_same_id_twice_in_one_call_lives_once(store: Store, redis: Redis) -> None:
    await seed(redis, dead("a"))
    reply = await store.replay([Replay("a"), Replay("a", b"other", "high")])
    assert reply == [Replayed.REPLAYED, Replayed.GONE]
    assert await everything(redis) == together(pending("a"), awake(), counted({"t:replayed": 1}))


async def test_the_first_of_a_batch_is_claimed_first(store: Store, redis: Redis) -> None:
    await seed(redis, pending("here"), dead("c"), dead("a"), dead("b"))
    await store.replay([Replay("b"), Replay("c"), Replay("a")])
    assert (await everything(redis))["t:pending"] == ["here", "b", "c", "a"]


async def test_every_topic_is_woken_and_counted(store: Store, redis: Redis) -> None:
    await seed(redis, awake("t"), dead("a", "t"), dead("b", "u"), dead("c", "u"))
    assert await store.replay([Replay("a"), Replay("b"), Replay("c")]) == [Replayed.REPLAYED] * 3
    assert await everything(redis) == together(
        pending("a", "t"),
        pending("b", "u"),
        pending("c", "u"),
        awake("t"),
        awake("u"),
        counted({"t:replayed": 1, "u:replayed": 2}),
    )


async def test_an_empty_batch_changes_nothing(store: Store, redis: Redis) -> None:
    await seed(redis, NEIGHBOURS)
    async with unchanged(redis):
        assert await store.replay([]) == []


async def test_a_thousand_in_one_call_pass(store: Store, redis: Redis) -> None:
    ids = [f"m{n}" for n in range(1000)]
    await seed(redis, *(dead(id_) for id_ in ids))
    assert await store.replay([Replay(id_, ttl=1.0) for id_ in ids]) == [Replayed.REPLAYED] * 1000
    assert await everything(redis) == together(
        *(pending(id_, expires=NOW + 1000) for id_ in ids), awake(), counted({"t:replayed": 1000})
    )


async def test_one_more_than_a_thousand_is_refused_whole(store: Store, redis: Redis) -> None:
    await seed(redis, NEIGHBOURS, dead("m0"))
    async with unchanged(redis):
        with pytest.raises(StoreError, match="TOOMANY 1001 messages"):
            await store.replay([Replay(f"m{n}") for n in range(1001)])
