from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace
from redis.exceptions import ResponseError

from mx_rmq.errors import StoreError, WrongKeyType
from mx_rmq.storage.contract import Settled
from mx_rmq.storage.store import Store
from tests.harness import read_state
from tests.scripts.helpers import (
    TOPIC,
    call,
    claim,
    count_of,
    delay,
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
    from mx_rmq.storage.keys import Keys
    from tests.harness import Clock

NAME = "retry_message"


async def retry(store: Store, *deliveries: Delivery, delay: float = 60.0) -> list[Settled]:
    return await store.retry(TOPIC, [(delivery, delay, b"again") for delivery in deliveries])


async def test_a_failed_message_waits_with_its_new_body(store: Store, redis: Redis, clock: Clock) -> None:
    (m1,) = await lease(store, "m1")
    assert await store.retry(TOPIC, [(m1, 2.5, b"new body")]) == [Settled.DONE]
    counted = {"orders:produced": "1", "orders:retried": "1"}
    assert await read_state(redis, tools=True) == {
        "payload": {"m1": "new body", "m1:queue": "orders", "m1:keep": "1 normal inf"},
        "delay_tasks": {"m1": clock.ms + 2500},
        "delay_wake": ["1"],
        "topics": {"orders"},
        "counters": counted,
        "fence": str(clock.us - 1),
    }


async def test_what_is_put_off_waits_as_well_and_is_counted_apart(
    store: Store, redis: Redis, clock: Clock
) -> None:
    m1, _ = await lease(store, "m1", "m2")
    assert await store.put_off(TOPIC, [(m1, 2.5, b"new body")]) == [Settled.DONE]
    assert await store.put_off(TOPIC, [(m1, 9.0, b"late")]) == [Settled.STALE]
    state = await read_state(redis)
    assert state["payload"]["m1"] == "new body"
    assert state["delay_tasks"] == {"m1": clock.ms + 2500}
    assert state["orders:processing"].keys() == {"m2"}
    assert await count_of(redis) == {"produced": 2, "put_off": 1}


async def test_the_others_stay_as_they_are(store: Store, redis: Redis, clock: Clock) -> None:
    m1, m2 = await lease(store, "m1", "m2")
    end = clock.ms + 15_000
    await produce(store, "m3")
    assert await retry(store, m1) == [Settled.DONE]
    assert await read_state(redis) == {
        "payload": {
            "m1": "again",
            "m1:queue": "orders",
            "m1:keep": "1 normal inf",
            "m2": "body of m2",
            "m2:queue": "orders",
            "m3": "body of m3",
            "m3:queue": "orders",
        },
        "all_expire_monitor": {"m2": end, "m3": inf},
        "orders:processing": {"m2": f"{m2.token} normal inf w1 run"},
        "orders:pending": ["m3"],
        "orders:wake": ["1"],
        "delay_tasks": {"m1": clock.ms + 60_000},
        "delay_wake": ["1"],
    }


async def test_priority_expiry_and_count_of_leases_survive_a_retry(
    store: Store, redis: Redis, clock: Clock
) -> None:
    """The lifetime goes on while the message waits: a retry is no second life."""
    deliveries = await lease(store, "m1", lane="high", ttl=600.0)
    expires = clock.ms + 600_000
    assert deliveries[0].expires_at == expires / 1000
    await retry(store, *deliveries, delay=60.0)
    assert (await read_state(redis))["payload"]["m1:keep"] == f"1 high {expires}"
    clock.advance(60)
    await store.promote()
    (second,) = await claim(store)
    assert await read_state(redis) == {
        "payload": {"m1": "again", "m1:queue": "orders", "m1:keep": f"1 high {expires}"},
        "all_expire_monitor": {"m1": clock.ms + 15_000},
        "orders:processing": {"m1": f"2@{clock.us} high {expires} w1 run"},
    }
    await retry(store, second)
    assert (await read_state(redis))["payload"]["m1:keep"] == f"2 high {expires}"


async def test_what_the_monitor_took_over_can_be_retried(store: Store, redis: Redis, clock: Clock) -> None:
    await lease(store, "m1", lane="low")
    assert await retry(store, *await take_over(store, clock)) == [Settled.DONE]
    assert await read_state(redis) == {
        "payload": {"m1": "again", "m1:queue": "orders", "m1:keep": "2 low inf"},
        "delay_tasks": {"m1": clock.ms + 60_000},
        "delay_wake": ["1"],
    }


async def test_the_scheduler_is_woken_only_for_a_message_due_before_all_others(
    store: Store, redis: Redis
) -> None:
    """It sleeps until the first due time; a later message does not change when that is."""
    deliveries = await lease(store, "m1", "m2", "m3", "m4")
    await delay(store, "first", delay=60.0)
    await redis.delete(PREFIX + "delay_wake")
    await retry(store, deliveries[0], delay=60.0)
    await retry(store, deliveries[1], delay=99.0)
    assert "delay_wake" not in await read_state(redis)
    later, sooner = deliveries[2:]
    await store.retry(TOPIC, [(later, 99.0, b"again"), (sooner, 59.0, b"again")])
    assert (await read_state(redis))["delay_wake"] == ["1"]


async def test_a_stale_retry_does_not_wake_the_scheduler(store: Store, redis: Redis) -> None:
    good, stale = await lease(store, "good", "stale")
    await delay(store, "first", delay=60.0)
    await redis.delete(PREFIX + "delay_wake")
    answer = await store.retry(TOPIC, [(good, 90.0, b"again"), (replace(stale, token="9@9"), 1.0, b"again")])
    assert answer == [Settled.DONE, Settled.STALE]
    assert "delay_wake" not in await read_state(redis)


async def test_a_retry_without_delay_is_due_at_once(store: Store, redis: Redis, clock: Clock) -> None:
    await retry(store, *await lease(store, "m1"), delay=0.0)
    assert (await read_state(redis))["delay_tasks"] == {"m1": clock.ms}
    assert (await store.promote()).promoted == ["m1"]


async def test_a_lapsed_lease_is_good_until_someone_takes_over(store: Store, clock: Clock) -> None:
    deliveries = await lease(store, "m1")
    clock.advance(3600)
    assert await retry(store, *deliveries) == [Settled.DONE]


async def test_a_late_worker_cannot_retry(store: Store, redis: Redis, clock: Clock) -> None:
    """It would bring back a message that somebody else has finished or is running (I4)."""
    late, released = await lease(store, "m1", "m2")
    await store.release(TOPIC, [released])
    await claim(store)
    taken = await take_over(store, clock)
    async with unchanged(redis):
        assert await retry(store, late, released) == [Settled.STALE] * 2
    await store.complete(TOPIC, [(delivery, 0.0) for delivery in taken])
    async with unchanged(redis):
        assert await retry(store, late, released) == [Settled.GONE] * 2
    assert await read_state(redis) == {}


async def test_a_message_that_is_pending_again_is_stale(store: Store, redis: Redis) -> None:
    (m1,) = await lease(store, "m1")
    await store.release(TOPIC, [m1])
    async with unchanged(redis):
        assert await retry(store, m1) == [Settled.STALE]


@pytest.mark.parametrize("token", ["", "1", "1@", "2@1763230000000002", "1@17632300000000020", " "])
async def test_a_token_that_is_almost_right_is_stale(store: Store, redis: Redis, token: str) -> None:
    (m1,) = await lease(store, "m1")
    assert m1.token == "1@1763230000000002"
    async with unchanged(redis):
        assert await retry(store, replace(m1, token=token)) == [Settled.STALE]


async def test_sent_again_it_changes_nothing(store: Store, redis: Redis, clock: Clock) -> None:
    """Neither the due time nor the count of retries moves (I5); not after the next attempt began either."""
    deliveries = await lease(store, "m1", "m2")
    await retry(store, *deliveries)
    clock.advance(1)
    async with unchanged(redis):
        assert await retry(store, *deliveries) == [Settled.STALE] * 2
    clock.advance(60)
    await store.promote()
    await claim(store)
    async with unchanged(redis):
        assert await retry(store, *deliveries) == [Settled.STALE] * 2


async def test_a_dead_or_unknown_message_is_gone(store: Store, redis: Redis) -> None:
    (dead,) = await lease(store, "dead")
    await store.move_to_dlq(TOPIC, [(dead, b"", b"why")])
    async with unchanged(redis):
        assert await retry(store, dead, replace(dead, id="never")) == [Settled.GONE] * 2


async def test_a_lost_lease_does_not_stop_the_others(store: Store, redis: Redis, clock: Clock) -> None:
    m1, m2, m3 = await lease(store, "m1", "m2", "m3")
    end = clock.ms + 15_000
    await store.complete(TOPIC, [(m2, 0.0)])
    answer = await retry(store, replace(m1, token="9@9"), m2, m3)
    assert answer == [Settled.STALE, Settled.GONE, Settled.DONE]
    assert await read_state(redis) == {
        "payload": {
            "m1": "body of m1",
            "m1:queue": "orders",
            "m3": "again",
            "m3:queue": "orders",
            "m3:keep": "1 normal inf",
        },
        "all_expire_monitor": {"m1": end},
        "orders:processing": {"m1": f"{m1.token} normal inf w1 run"},
        "delay_tasks": {"m3": clock.ms + 60_000},
        "delay_wake": ["1"],
    }
    assert await count_of(redis) == {"produced": 3, "completed": 1, "retried": 1}


async def test_an_id_twice_in_one_call_is_retried_once(store: Store, redis: Redis, clock: Clock) -> None:
    (m1,) = await lease(store, "m1")
    stale = replace(m1, token="9@9")
    answer = await store.retry(TOPIC, [(stale, 1.0, b"one"), (m1, 2.0, b"two"), (m1, 3.0, b"three")])
    assert answer == [Settled.STALE, Settled.DONE, Settled.STALE]
    assert await read_state(redis) == {
        "payload": {"m1": "two", "m1:queue": "orders", "m1:keep": "1 normal inf"},
        "delay_tasks": {"m1": clock.ms + 2000},
        "delay_wake": ["1"],
    }
    assert await count_of(redis) == {"produced": 1, "retried": 1}


async def test_a_delivery_of_another_topic_is_not_touched(store: Store, redis: Redis) -> None:
    (m1,) = await lease(store, "m1")
    async with unchanged(redis):
        assert await store.retry("mails", [(m1, 1.0, b"again")]) == [Settled.STALE]


async def test_a_lease_whose_body_is_missing_gets_it_back(store: Store, redis: Redis, clock: Clock) -> None:
    """The worker holds the only copy left, so it must not be thrown away."""
    deliveries = await lease(store, "m1")
    await redis.hdel(PREFIX + "payload", "m1", "m1:queue")
    assert await retry(store, *deliveries) == [Settled.DONE]
    assert await read_state(redis) == {
        "payload": {"m1": "again", "m1:queue": "orders", "m1:keep": "1 normal inf"},
        "delay_tasks": {"m1": clock.ms + 60_000},
        "delay_wake": ["1"],
    }


async def test_a_lease_that_cannot_be_read_is_retried_as_a_plain_message(
    store: Store, redis: Redis, clock: Clock
) -> None:
    """Somebody edited it by hand; the message must not be lost for that."""
    (m1,) = await lease(store, "m1")
    await redis.hset(PREFIX + "orders:processing", "m1", f"{m1.token} ")
    assert await retry(store, m1) == [Settled.DONE]
    assert await read_state(redis) == {
        "payload": {"m1": "again", "m1:queue": "orders", "m1:keep": "0 normal inf"},
        "delay_tasks": {"m1": clock.ms + 60_000},
        "delay_wake": ["1"],
    }


async def test_an_empty_call_does_nothing(store: Store, redis: Redis) -> None:
    await lease(store, "m1")
    async with unchanged(redis):
        assert await retry(store) == []


async def test_a_thousand_are_retried_in_one_call(store: Store, redis: Redis, clock: Clock) -> None:
    ids = names(1000)
    deliveries = await lease(store, *ids)
    assert await retry(store, *deliveries) == [Settled.DONE] * 1000
    assert await read_state(redis) == {
        "payload": dict.fromkeys(ids, "again")
        | {f"{id_}:queue": "orders" for id_ in ids}
        | {f"{id_}:keep": "1 normal inf" for id_ in ids},
        "delay_tasks": dict.fromkeys(ids, clock.ms + 60_000),
        "delay_wake": ["1"],
    }
    assert await count_of(redis) == {"produced": 1000, "retried": 1000}


async def test_one_more_than_a_thousand_is_refused_and_none_is_retried(store: Store, redis: Redis) -> None:
    deliveries = await lease(store, *names(1000))
    await produce(store, "m1001")
    deliveries += await claim(store)
    async with unchanged(redis):
        with pytest.raises(StoreError, match="TOOMANY 1001"):
            await retry(store, *deliveries)


@pytest.mark.parametrize(("last", "refusal"), [(["5"], "BADARGS"), (["soon", "again"], "arithmetic on")])
async def test_what_makes_no_sense_is_refused_before_anything_is_written(
    store: Store, redis: Redis, last: list[str], refusal: str
) -> None:
    """The server does not undo what a script has written when it fails (I6)."""
    m1, m2 = await lease(store, "m1", "m2")
    async with unchanged(redis):
        with pytest.raises(ResponseError, match=refusal):
            await call(
                redis,
                NAME,
                keys_of(NAME),
                TOPIC,
                "retried",
                "",
                *("m1", m1.token, "5", "again"),
                *("m2", m2.token, *last),
                "",
            )


async def test_without_a_given_time_the_clock_of_the_server_counts(redis: Redis, keys: Keys) -> None:
    store = Store(redis, keys)
    (m1,) = await lease(store, "m1")
    before = await redis.time()
    await retry(store, m1)
    after = await redis.time()
    due = (await read_state(redis))["delay_tasks"]["m1"] - 60_000
    assert before[0] * 1000 + before[1] // 1000 <= due <= after[0] * 1000 + after[1] // 1000


@pytest.mark.parametrize("key", ["payload", "orders:processing", "all_expire_monitor", "delay_tasks"])
async def test_a_key_of_another_type_is_named_and_nothing_changes(
    store: Store, redis: Redis, key: str
) -> None:
    """The lease must stay: it is what brings the message back when the key is mended."""
    deliveries = await lease(store, "m1")
    await spoil(redis, key)
    async with unchanged(redis):
        with pytest.raises(WrongKeyType, match=key):
            await retry(store, *deliveries)


@pytest.mark.parametrize("key", ["delay_wake", "counters"])
async def test_what_the_message_does_not_need_cannot_stop_it(
    store: Store, redis: Redis, clock: Clock, key: str
) -> None:
    deliveries = await lease(store, "m1")
    await spoil(redis, key)
    assert await retry(store, *deliveries) == [Settled.DONE]
    state = await read_state(redis, tools=True)
    assert state[key] == "something else"
    assert state["delay_tasks"] == {"m1": clock.ms + 60_000}


async def test_a_server_without_memory_still_retries(store: Store, redis: Redis, clock: Clock) -> None:
    """A failing message would otherwise be run again and again until its lease lapses."""
    deliveries = await lease(store, "m1")
    async with out_of_memory(redis):
        assert await retry(store, *deliveries) == [Settled.DONE]
    assert await read_state(redis) == {
        "payload": {"m1": "again", "m1:queue": "orders", "m1:keep": "1 normal inf"},
        "delay_tasks": {"m1": clock.ms + 60_000},
        "delay_wake": ["1"],
    }
