from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace
from redis.exceptions import ResponseError

from mx_rmq.errors import StoreError, WrongKeyType
from mx_rmq.storage.contract import Settled
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

    from mx_rmq.storage.store import Store
    from tests.harness import Clock

NAME = "release_message"


async def test_a_released_message_is_pending_again(store: Store, redis: Redis, clock: Clock) -> None:
    deliveries = await lease(store, "m1")
    assert await store.release(TOPIC, deliveries) == [Settled.DONE]
    counted = {"orders:produced": "1", "orders:released": "1"}
    assert await read_state(redis, tools=True) == {
        "payload": {"m1": "body of m1", "m1:queue": "orders", "m1:keep": "1 normal inf"},
        "all_expire_monitor": {"m1": inf},
        "orders:pending": ["m1"],
        "orders:wake": ["1"],
        "topics": {"orders"},
        "counters": counted,
        "fence": str(clock.us - 1),
    }


async def test_released_messages_stand_before_all_others_in_the_order_they_were_claimed(
    store: Store, redis: Redis, clock: Clock
) -> None:
    """A restart of a worker must not send what it held to the end of a long queue."""
    for lane in ("high", "normal", "low"):
        await produce(store, f"{lane}1", f"{lane}2", f"{lane}3", lane=lane, ttl=60.0)
    expires = clock.ms + 60_000
    deliveries = await claim(store, 8)
    await produce(store, "high4", lane="high")
    assert await store.release(TOPIC, deliveries) == [Settled.DONE] * 8
    first = [f"{lane}{n}" for lane in ("high", "normal", "low") for n in (1, 2, 3)]
    assert await read_state(redis) == {
        "payload": {id_: f"body of {id_}" for id_ in [*first, "high4"]}
        | {f"{id_}:queue": "orders" for id_ in [*first, "high4"]}
        | {f"{id_}:keep": f"1 {id_[:-1]} {expires}" for id_ in first[:-1]},
        "all_expire_monitor": dict.fromkeys(first, expires) | {"high4": inf},
        "orders:pending:high": ["high1", "high2", "high3", "high4"],
        "orders:pending": ["normal1", "normal2", "normal3"],
        "orders:pending:low": ["low1", "low2", "low3"],
        "orders:wake": ["1"],
    }
    assert [delivery.id for delivery in await claim(store)] == [*first[:3], "high4", *first[3:]]


async def test_the_next_lease_of_a_released_message_has_a_new_token(
    store: Store, redis: Redis, clock: Clock
) -> None:
    """The attempt does not count against the message, but the lease has been used."""
    (first,) = await lease(store, "m1", ttl=60.0)
    expires = clock.ms + 60_000
    await store.release(TOPIC, [first])
    (second,) = await claim(store, holder="w2")
    assert second == replace(first, token=f"2@{clock.us}")
    assert await read_state(redis) == {
        "payload": {"m1": "body of m1", "m1:queue": "orders", "m1:keep": f"1 normal {expires}"},
        "all_expire_monitor": {"m1": clock.ms + 15_000},
        "orders:processing": {"m1": f"{second.token} normal {expires} w2 run"},
    }


async def test_the_lifetime_goes_on_while_a_message_is_held(store: Store, redis: Redis, clock: Clock) -> None:
    deliveries = await lease(store, "m1", ttl=60.0)
    expires = clock.ms + 60_000
    clock.advance(120)
    assert await store.release(TOPIC, deliveries) == [Settled.DONE]
    assert (await read_state(redis))["all_expire_monitor"] == {"m1": expires}
    (taken,) = (await store.take_over(10, lease=15.0, holder="monitor")).taken
    assert (taken.cause, taken.previous) == ("expired", "-")


async def test_a_released_message_wakes_a_worker_once(store: Store, redis: Redis) -> None:
    deliveries = await lease(store, "m1", "m2")
    await store.release(TOPIC, deliveries[:1])
    await store.release(TOPIC, deliveries[1:])
    assert (await read_state(redis))["orders:wake"] == ["1"]


async def test_a_late_worker_cannot_release(store: Store, redis: Redis, clock: Clock) -> None:
    """It would hand a message to a second worker while the first one runs it (I4)."""
    late, released = await lease(store, "m1", "m2")
    await store.release(TOPIC, [released])
    await claim(store)
    taken = await take_over(store, clock)
    async with unchanged(redis):
        assert await store.release(TOPIC, [late, released]) == [Settled.STALE] * 2
    await store.complete(TOPIC, [(delivery, 0.0) for delivery in taken])
    async with unchanged(redis):
        assert await store.release(TOPIC, [late, released]) == [Settled.GONE] * 2


@pytest.mark.parametrize("token", ["", "1", "1@", "2@1763230000000002", "1@17632300000000020", " "])
async def test_a_token_that_is_almost_right_is_stale(store: Store, redis: Redis, token: str) -> None:
    (m1,) = await lease(store, "m1")
    assert m1.token == "1@1763230000000002"
    async with unchanged(redis):
        assert await store.release(TOPIC, [replace(m1, token=token)]) == [Settled.STALE]


async def test_sent_again_it_changes_nothing(store: Store, redis: Redis) -> None:
    """The id must not stand in its list twice (I5), nor come back from the next worker."""
    deliveries = await lease(store, "m1", "m2")
    await store.release(TOPIC, deliveries)
    async with unchanged(redis):
        assert await store.release(TOPIC, deliveries) == [Settled.STALE] * 2
    await claim(store)
    async with unchanged(redis):
        assert await store.release(TOPIC, deliveries) == [Settled.STALE] * 2


async def test_a_delayed_message_is_stale_and_a_finished_one_gone(store: Store, redis: Redis) -> None:
    delayed, done, dead = await lease(store, "delayed", "done", "dead")
    await store.retry(TOPIC, [(delayed, 60.0, b"again")])
    await store.complete(TOPIC, [(done, 60.0)])
    await store.move_to_dlq(TOPIC, [(dead, b"", b"why")])
    async with unchanged(redis):
        answer = await store.release(TOPIC, [delayed, done, dead, replace(dead, id="never")])
        assert answer == [Settled.STALE, Settled.GONE, Settled.GONE, Settled.GONE]


async def test_a_lost_lease_does_not_stop_the_others(store: Store, redis: Redis, clock: Clock) -> None:
    m1, m2, m3 = await lease(store, "m1", "m2", "m3")
    end = clock.ms + 15_000
    await store.complete(TOPIC, [(m2, 0.0)])
    answer = await store.release(TOPIC, [replace(m1, token="9@9"), m2, m3])
    assert answer == [Settled.STALE, Settled.GONE, Settled.DONE]
    assert await read_state(redis) == {
        "payload": {
            "m1": "body of m1",
            "m1:queue": "orders",
            "m3": "body of m3",
            "m3:queue": "orders",
            "m3:keep": "1 normal inf",
        },
        "all_expire_monitor": {"m1": end, "m3": inf},
        "orders:processing": {"m1": f"{m1.token} normal inf w1 run"},
        "orders:pending": ["m3"],
        "orders:wake": ["1"],
    }
    assert await count_of(redis) == {"produced": 3, "completed": 1, "released": 1}


async def test_an_id_twice_in_one_call_is_released_once(store: Store, redis: Redis, clock: Clock) -> None:
    (m1,) = await lease(store, "m1")
    answer = await store.release(TOPIC, [replace(m1, token="9@9"), m1, m1])
    assert answer == [Settled.STALE, Settled.DONE, Settled.STALE]
    assert await read_state(redis) == {
        "payload": {"m1": "body of m1", "m1:queue": "orders", "m1:keep": "1 normal inf"},
        "all_expire_monitor": {"m1": inf},
        "orders:pending": ["m1"],
        "orders:wake": ["1"],
    }
    assert await count_of(redis) == {"produced": 1, "released": 1}


async def test_a_delivery_of_another_topic_is_not_touched(store: Store, redis: Redis) -> None:
    (m1,) = await lease(store, "m1")
    async with unchanged(redis):
        assert await store.release("mails", [m1]) == [Settled.STALE]


async def test_a_lease_whose_body_is_missing_is_left_to_the_monitor(
    store: Store, redis: Redis, clock: Clock
) -> None:
    """There is nothing to deliver; its neighbours go back all the same."""
    m1, m2 = await lease(store, "m1", "m2")
    end = clock.ms + 15_000
    await redis.hdel(PREFIX + "payload", "m1")
    assert await store.release(TOPIC, [m1, m2]) == [Settled.GONE, Settled.DONE]
    assert await read_state(redis) == {
        "payload": {
            "m1:queue": "orders",
            "m2": "body of m2",
            "m2:queue": "orders",
            "m2:keep": "1 normal inf",
        },
        "all_expire_monitor": {"m1": end, "m2": inf},
        "orders:processing": {"m1": f"{m1.token} normal inf w1 run"},
        "orders:pending": ["m2"],
        "orders:wake": ["1"],
    }
    assert await count_of(redis) == {"produced": 2, "released": 1}
    assert await take_over(store, clock) == []
    assert (await read_state(redis)).keys() == {
        "payload",
        "all_expire_monitor",
        "orders:pending",
        "orders:wake",
    }


async def test_a_lease_that_cannot_be_read_is_released_as_a_plain_message(store: Store, redis: Redis) -> None:
    """Somebody edited it by hand; the message must not be lost for that."""
    m1, m2 = await lease(store, "m1", "m2", lane="high")
    await redis.hset(
        PREFIX + "orders:processing", mapping={"m1": f"{m1.token} ", "m2": f"{m2.token} urgent inf w1 run"}
    )
    assert await store.release(TOPIC, [m1, m2]) == [Settled.DONE] * 2
    assert await read_state(redis) == {
        "payload": {
            "m1": "body of m1",
            "m1:queue": "orders",
            "m1:keep": "0 normal inf",
            "m2": "body of m2",
            "m2:queue": "orders",
            "m2:keep": "1 urgent inf",
        },
        "all_expire_monitor": {"m1": inf, "m2": inf},
        "orders:pending": ["m1", "m2"],
        "orders:wake": ["1"],
    }


async def test_an_empty_call_does_nothing(store: Store, redis: Redis) -> None:
    await lease(store, "m1")
    async with unchanged(redis):
        assert await store.release(TOPIC, []) == []


async def test_a_thousand_are_released_in_one_call(store: Store, redis: Redis, clock: Clock) -> None:
    ids = names(1000)
    deliveries = await lease(store, *ids)
    assert await store.release(TOPIC, deliveries) == [Settled.DONE] * 1000
    assert await read_state(redis) == {
        "payload": {id_: f"body of {id_}" for id_ in ids}
        | {f"{id_}:queue": "orders" for id_ in ids}
        | {f"{id_}:keep": "1 normal inf" for id_ in ids},
        "all_expire_monitor": dict.fromkeys(ids, inf),
        "orders:pending": ids,
        "orders:wake": ["1"],
    }
    assert await count_of(redis) == {"produced": 1000, "released": 1000}


async def test_one_more_than_a_thousand_is_refused_and_none_is_released(store: Store, redis: Redis) -> None:
    deliveries = await lease(store, *names(1000))
    await produce(store, "m1001")
    deliveries += await claim(store)
    async with unchanged(redis):
        with pytest.raises(StoreError, match="TOOMANY 1001"):
            await store.release(TOPIC, deliveries)


async def test_an_incomplete_call_is_refused_before_anything_is_written(store: Store, redis: Redis) -> None:
    m1, _ = await lease(store, "m1", "m2")
    async with unchanged(redis):
        with pytest.raises(ResponseError, match="BADARGS"):
            await call(redis, NAME, keys_of(NAME), TOPIC, "m1", m1.token, "", "m2", "")


async def test_a_recovered_message_is_at_the_head_with_its_new_body(store: Store, redis: Redis) -> None:
    m1, m2 = await lease(store, "m1", "m2")
    await produce(store, "m3")
    assert await store.release(TOPIC, [m1, m2], bodies=[b"crashed once", b""]) == [Settled.DONE] * 2
    bodies = [(delivery.id, delivery.body) for delivery in await claim(store)]
    assert bodies == [("m1", b"crashed once"), ("m2", m2.body), ("m3", bodies[2][1])]


async def test_a_stale_token_recovers_nothing(store: Store, redis: Redis) -> None:
    (m1,) = await lease(store, "m1")
    await store.release(TOPIC, [m1], bodies=[b"first"])
    async with unchanged(redis):
        assert await store.release(TOPIC, [m1], bodies=[b"second"]) == [Settled.STALE]


@pytest.mark.parametrize(
    "key",
    [
        "payload",
        "orders:processing",
        "all_expire_monitor",
        "orders:pending:high",
        "orders:pending",
        "orders:pending:low",
    ],
)
async def test_a_key_of_another_type_is_named_and_nothing_changes(
    store: Store, redis: Redis, key: str
) -> None:
    deliveries = await lease(store, "m1")
    await spoil(redis, key)
    async with unchanged(redis):
        with pytest.raises(WrongKeyType, match=key):
            await store.release(TOPIC, deliveries)


@pytest.mark.parametrize("key", ["orders:wake", "counters"])
async def test_what_the_message_does_not_need_cannot_stop_it(store: Store, redis: Redis, key: str) -> None:
    deliveries = await lease(store, "m1")
    await spoil(redis, key)
    assert await store.release(TOPIC, deliveries) == [Settled.DONE]
    state = await read_state(redis, tools=True)
    assert (state[key], state["orders:pending"]) == ("something else", ["m1"])


async def test_a_server_without_memory_still_releases(store: Store, redis: Redis) -> None:
    """A worker must be able to stop."""
    deliveries = await lease(store, "m1")
    async with out_of_memory(redis):
        assert await store.release(TOPIC, deliveries) == [Settled.DONE]
    assert await read_state(redis) == {
        "payload": {"m1": "body of m1", "m1:queue": "orders", "m1:keep": "1 normal inf"},
        "all_expire_monitor": {"m1": inf},
        "orders:pending": ["m1"],
        "orders:wake": ["1"],
    }
