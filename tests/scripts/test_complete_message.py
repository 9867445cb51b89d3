from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace
from redis.exceptions import ResponseError

from mx_rmq.errors import StoreError, WrongKeyType
from mx_rmq.storage.contract import Kept, Settled
from mx_rmq.storage.store import Store
from tests.harness import read_state
from tests.scripts.helpers import (
    TOPIC,
    call,
    claim,
    count_of,
    keys_of,
    lease,
    names,
    produce,
    spoil,
    take_over,
)
from tests.words import PREFIX, out_of_memory, unchanged

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from mx_rmq.storage.contract import Delivery
    from tests.harness import Clock

NAME = "complete_message"


async def complete(store: Store, *deliveries: Delivery, dedup_for: float = 0.0) -> list[Settled]:
    return await store.complete(TOPIC, [(delivery, dedup_for) for delivery in deliveries])


async def test_a_completed_message_leaves_nothing_behind(store: Store, redis: Redis, clock: Clock) -> None:
    """After a full drain every key is gone but the bookkeeping (I2)."""
    deliveries = await lease(store, "m1")
    assert await complete(store, *deliveries) == [Settled.DONE]
    counted = {"orders:produced": "1", "orders:completed": "1"}
    assert await read_state(redis, tools=True) == {
        "topics": {"orders"},
        "counters": counted,
        "fence": str(clock.us - 1),
    }


async def test_a_message_that_was_leased_before_leaves_nothing_behind(store: Store, redis: Redis) -> None:
    (m1,) = await lease(store, "m1")
    await store.retry(TOPIC, [(m1, 0.0, b"again")])
    await store.promote()
    (m1,) = await claim(store)
    await store.release(TOPIC, [m1])
    assert await complete(store, *await claim(store)) == [Settled.DONE]
    assert await read_state(redis) == {}


async def test_the_others_stay_as_they_are(store: Store, redis: Redis, clock: Clock) -> None:
    m1, m2 = await lease(store, "m1", "m2")
    end = clock.ms + 15_000
    await produce(store, "m3", ttl=5.0)
    expires = clock.ms + 5000
    assert await complete(store, m1) == [Settled.DONE]
    assert await read_state(redis) == {
        "payload": {"m2": "body of m2", "m2:queue": "orders", "m3": "body of m3", "m3:queue": "orders"},
        "all_expire_monitor": {"m2": end, "m3": expires},
        "orders:processing": {"m2": f"{m2.token} normal inf w1 run"},
        "orders:pending": ["m3"],
        "orders:wake": ["1"],
    }
    assert await count_of(redis) == {"produced": 3, "completed": 1}


async def test_an_id_is_remembered_for_as_long_as_was_asked(store: Store, redis: Redis, clock: Clock) -> None:
    m1, m2, m3 = await lease(store, "m1", "m2", "m3")
    assert await store.complete(TOPIC, [(m1, 1.5), (m2, 0.0), (m3, 60.0)]) == [Settled.DONE] * 3
    assert await read_state(redis) == {"done": {"m1": clock.ms + 1500, "m3": clock.ms + 60_000}}


async def test_remembering_ids_forgets_those_whose_time_is_over(
    store: Store, redis: Redis, clock: Clock
) -> None:
    """Two for one, so that the memory cannot grow however fast messages are completed."""
    m1, m2, m3, m4 = await lease(store, "m1", "m2", "m3", "m4")
    await store.complete(TOPIC, [(m1, 1.0), (m2, 2.0), (m3, 3.0)])
    clock.advance(10)
    await store.complete(TOPIC, [(m4, 60.0)])
    assert await read_state(redis) == {"done": {"m3": clock.ms - 7000, "m4": clock.ms + 60_000}}


async def test_what_became_of_a_message_is_remembered_for_as_long_as_was_asked(
    store: Store, redis: Redis, clock: Clock
) -> None:
    """Under a key of its own that expires by itself; the others leave nothing behind."""
    m1, m2, m3, m4 = await lease(store, "m1", "m2", "m3", "m4")
    kept: list[float | Kept] = [Kept(0.0, 60.0, 0.25), 0.0, Kept(1.5, 3600.0), Kept(0.0, 0.0, 9.0)]
    await store.complete(TOPIC, list(zip((m1, m2, m3, m4), kept, strict=True)))
    assert await read_state(redis) == {
        "ended=m1": f"done {clock.ms} 250 orders",
        "ended=m3": f"done {clock.ms} 0 orders",
        "done": {"m3": clock.ms + 1500},
    }
    assert 50_000 < await redis.pttl(PREFIX + "ended=m1") <= 60_000
    assert 3_500_000 < await redis.pttl(PREFIX + "ended=m3") <= 3_600_000
    assert await count_of(redis) == {"produced": 4, "completed": 4}


async def test_a_later_end_replaces_what_was_remembered(store: Store, redis: Redis, clock: Clock) -> None:
    """Whatever is there, even of another type."""
    for took in (1.0, 2.0):
        (m1,) = await lease(store, "m1")
        await store.complete(TOPIC, [(m1, Kept(remember_for=60.0, took=took))])
    assert await read_state(redis) == {"ended=m1": f"done {clock.ms} 2000 orders"}
    await redis.delete(PREFIX + "ended=m1")
    await redis.rpush(PREFIX + "ended=m1", "something else")
    (m1,) = await lease(store, "m1")
    await store.complete(TOPIC, [(m1, Kept(remember_for=60.0, took=3.0))])
    assert await read_state(redis) == {"ended=m1": f"done {clock.ms} 3000 orders"}


async def test_a_late_worker_leaves_no_memory(store: Store, redis: Redis, clock: Clock) -> None:
    (late,) = await lease(store, "m1")
    await take_over(store, clock)
    async with unchanged(redis):
        assert await store.complete(TOPIC, [(late, Kept(remember_for=60.0))]) == [Settled.STALE]


async def test_a_lapsed_lease_is_good_until_someone_takes_over(
    store: Store, redis: Redis, clock: Clock
) -> None:
    """The work is done and nobody else has begun it: there is no reason to do it again."""
    deliveries = await lease(store, "m1", ttl=1.0)
    clock.advance(3600)
    assert await complete(store, *deliveries) == [Settled.DONE]
    assert await read_state(redis) == {}


async def test_a_late_worker_cannot_complete(store: Store, redis: Redis, clock: Clock) -> None:
    """After a take-over, after a release and a new claim: the first lease is worthless (I4)."""
    late, released = await lease(store, "m1", "m2")
    await store.release(TOPIC, [released])
    await claim(store)
    taken = await take_over(store, clock)
    async with unchanged(redis):
        assert await complete(store, late, released, dedup_for=60.0) == [Settled.STALE] * 2
    assert await complete(store, *taken) == [Settled.DONE] * 2
    assert await read_state(redis) == {}


@pytest.mark.parametrize("place", ["pending", "delayed"])
async def test_a_message_that_is_leased_to_nobody_is_stale(store: Store, redis: Redis, place: str) -> None:
    (m1,) = await lease(store, "m1")
    await (store.release(TOPIC, [m1]) if place == "pending" else store.retry(TOPIC, [(m1, 60.0, b"again")]))
    async with unchanged(redis):
        assert await complete(store, m1, dedup_for=60.0) == [Settled.STALE]


@pytest.mark.parametrize("token", ["", "1", "1@", "2@1763230000000002", "1@17632300000000020", " "])
async def test_a_token_that_is_almost_right_is_stale(store: Store, redis: Redis, token: str) -> None:
    (m1,) = await lease(store, "m1")
    assert m1.token == "1@1763230000000002"
    async with unchanged(redis):
        assert await complete(store, replace(m1, token=token)) == [Settled.STALE]


async def test_sent_again_it_finds_nothing(store: Store, redis: Redis, clock: Clock) -> None:
    """Its reply was lost; the memory of the id must not begin anew either (I5)."""
    deliveries = await lease(store, "m1", "m2")
    await complete(store, *deliveries, dedup_for=60.0)
    clock.advance(1)
    async with unchanged(redis):
        assert await complete(store, *deliveries, dedup_for=60.0) == [Settled.GONE] * 2


async def test_sent_again_it_cannot_finish_a_message_that_took_the_same_id(
    store: Store, redis: Redis
) -> None:
    deliveries = await lease(store, "m1")
    await complete(store, *deliveries)
    await produce(store, "m1")
    async with unchanged(redis):
        assert await complete(store, *deliveries) == [Settled.STALE]
    await claim(store)
    async with unchanged(redis):
        assert await complete(store, *deliveries) == [Settled.STALE]


async def test_a_dead_or_unknown_message_is_gone(store: Store, redis: Redis) -> None:
    (dead,) = await lease(store, "dead")
    await store.move_to_dlq(TOPIC, [(dead, b"", b"why")])
    async with unchanged(redis):
        assert await complete(store, dead, replace(dead, id="never"), dedup_for=9.0) == [Settled.GONE] * 2


async def test_a_lost_lease_does_not_stop_the_others(store: Store, redis: Redis, clock: Clock) -> None:
    m1, m2, m3 = await lease(store, "m1", "m2", "m3")
    end = clock.ms + 15_000
    await complete(store, m2)
    answer = await complete(store, replace(m1, token="9@9"), m2, m3, dedup_for=60.0)
    assert answer == [Settled.STALE, Settled.GONE, Settled.DONE]
    assert await read_state(redis) == {
        "payload": {"m1": "body of m1", "m1:queue": "orders"},
        "all_expire_monitor": {"m1": end},
        "orders:processing": {"m1": f"{m1.token} normal inf w1 run"},
        "done": {"m3": clock.ms + 60_000},
    }
    assert await count_of(redis) == {"produced": 3, "completed": 2}


async def test_an_id_twice_in_one_call_is_finished_and_counted_once(
    store: Store, redis: Redis, clock: Clock
) -> None:
    (m1,) = await lease(store, "m1")
    answer = await store.complete(TOPIC, [(replace(m1, token="9@9"), 1.0), (m1, 2.0), (m1, 3.0)])
    assert answer == [Settled.STALE, Settled.DONE, Settled.STALE]
    assert await read_state(redis) == {"done": {"m1": clock.ms + 2000}}
    assert await count_of(redis) == {"produced": 1, "completed": 1}


async def test_a_delivery_of_another_topic_is_not_touched(store: Store, redis: Redis) -> None:
    (m1,) = await lease(store, "m1")
    async with unchanged(redis):
        assert await store.complete("mails", [(m1, 0.0)]) == [Settled.STALE]


async def test_a_lease_whose_body_is_missing_is_finished_all_the_same(store: Store, redis: Redis) -> None:
    """The handler had the body and succeeded; the leftovers go with the lease."""
    deliveries = await lease(store, "m1", "m2")
    await redis.hdel(PREFIX + "payload", "m1", "m2", "m2:queue")
    assert await complete(store, *deliveries) == [Settled.DONE] * 2
    assert await read_state(redis) == {}


async def test_an_empty_call_does_nothing(store: Store, redis: Redis) -> None:
    await lease(store, "m1")
    async with unchanged(redis):
        assert await complete(store) == []


async def test_a_thousand_are_finished_in_one_call(store: Store, redis: Redis, clock: Clock) -> None:
    deliveries = await lease(store, *names(1000))
    await produce(store, "m1001")
    assert await complete(store, *deliveries, dedup_for=1.0) == [Settled.DONE] * 1000
    assert await read_state(redis) == {
        "payload": {"m1001": "body of m1001", "m1001:queue": "orders"},
        "all_expire_monitor": {"m1001": inf},
        "orders:pending": ["m1001"],
        "orders:wake": ["1"],
        "done": dict.fromkeys(names(1000), clock.ms + 1000),
    }
    assert await count_of(redis) == {"produced": 1001, "completed": 1000}


async def test_one_more_than_a_thousand_is_refused_and_none_is_finished(store: Store, redis: Redis) -> None:
    deliveries = await lease(store, *names(1000))
    await produce(store, "m1001")
    deliveries += await claim(store)
    async with unchanged(redis):
        with pytest.raises(StoreError, match="TOOMANY 1001"):
            await complete(store, *deliveries)


@pytest.mark.parametrize(
    ("rest", "refusal"),
    [
        (["0", "m2", "1@1763230000000002"], "BADARGS the last message is incomplete"),
        *(
            (["0", "m2", "1@1763230000000002", kept], "BADARGS no end can be remembered")
            for kept in (
                "long",
                "",
                "0 0 5",
                "0 60000",
                "0 -1 5",
                "0 1.5 5",
                "0 1e9 5",
                "5 5 x",
                f"0 {10**30} 5",
            )
        ),
    ],
)
async def test_what_makes_no_sense_is_refused_before_anything_is_written(
    store: Store, redis: Redis, rest: list[str], refusal: str
) -> None:
    """The server does not undo what a script has written when it fails (I6)."""
    m1, _ = await lease(store, "m1", "m2")
    async with unchanged(redis):
        with pytest.raises(ResponseError, match=refusal):
            await call(redis, NAME, keys_of(NAME), PREFIX, TOPIC, "", "", "m1", m1.token, *rest, "")


@pytest.mark.parametrize("key", ["payload", "orders:processing", "all_expire_monitor", "done"])
async def test_a_key_of_another_type_is_named_and_nothing_changes(
    store: Store, redis: Redis, key: str
) -> None:
    deliveries = await lease(store, "m1")
    await spoil(redis, key)
    async with unchanged(redis):
        with pytest.raises(WrongKeyType, match=key):
            await complete(store, *deliveries, dedup_for=60.0)


async def test_a_broken_counter_cannot_stop_it(store: Store, redis: Redis) -> None:
    deliveries = await lease(store, "m1")
    await spoil(redis, "counters")
    assert await complete(store, *deliveries) == [Settled.DONE]
    assert await read_state(redis) == {}


async def test_a_server_without_memory_still_finishes(store: Store, redis: Redis, clock: Clock) -> None:
    """Finishing is what makes room again, even if it leaves a memory of the id."""
    deliveries = await lease(store, "m1")
    async with out_of_memory(redis):
        assert await store.complete(TOPIC, [(deliveries[0], Kept(60.0, 60.0))]) == [Settled.DONE]
    assert await read_state(redis) == {
        "done": {"m1": clock.ms + 60_000},
        "ended=m1": f"done {clock.ms} 0 orders",
    }
    assert await count_of(redis) == {"produced": 1, "completed": 1}
