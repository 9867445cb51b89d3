from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from redis.exceptions import ResponseError

from mx_rmq.errors import StoreError, WrongKeyType
from mx_rmq.storage.contract import Settled
from tests.harness import read_state
from tests.scripts.helpers import TOPIC, call, claim, keys_of, lease, names, produce, spoil, take_over
from tests.words import out_of_memory, unchanged

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from mx_rmq.storage.store import Store
    from tests.harness import Clock

NAME = "start_message"


async def test_a_lease_says_that_its_message_has_begun_and_nothing_else_changes(
    store: Store, redis: Redis
) -> None:
    m1, m2 = await lease(store, "m1", "m2")
    before = await read_state(redis, tools=True)
    assert await store.start(TOPIC, [m1]) == [Settled.DONE]
    leases = {"m1": f"{m1.token} normal inf w1 started", "m2": f"{m2.token} normal inf w1 run"}
    assert await read_state(redis, tools=True) == before | {"orders:processing": leases}
    assert await store.extend(TOPIC, [m1], lease=15.0) == [Settled.DONE]
    assert await store.complete(TOPIC, [(m1, 0.0), (m2, 0.0)]) == [Settled.DONE] * 2


async def test_whoever_takes_over_learns_of_it_even_after_another_monitor(store: Store, clock: Clock) -> None:
    started, waiting = await lease(store, "m1", "m2")
    await store.start(TOPIC, [started])
    for _ in range(2):
        clock.advance(3600)
        taken = (await store.take_over(10, lease=15.0, holder="monitor")).taken
        assert {takeover.delivery.id: takeover.cause for takeover in taken} == {
            started.id: "started",
            waiting.id: "lapsed",
        }


async def test_it_is_forgotten_with_the_lease(store: Store, redis: Redis) -> None:
    (m1,) = await lease(store, "m1")
    await store.start(TOPIC, [m1])
    await store.release(TOPIC, [m1])
    (again,) = await claim(store)
    assert (await read_state(redis))["orders:processing"] == {"m1": f"{again.token} normal inf w1 run"}


async def test_sent_again_it_says_the_same(store: Store, redis: Redis) -> None:
    (m1,) = await lease(store, "m1")
    await store.start(TOPIC, [m1])
    async with unchanged(redis):
        assert await store.start(TOPIC, [m1]) == [Settled.DONE]


async def test_a_stale_token_notes_nothing(store: Store, redis: Redis, clock: Clock) -> None:
    late, done = await lease(store, "m1", "m2")
    await store.complete(TOPIC, [(done, 0.0)])
    await take_over(store, clock)
    async with unchanged(redis):
        assert await store.start(TOPIC, [late, done]) == [Settled.STALE, Settled.GONE]


async def test_one_more_than_a_thousand_is_refused_and_none_is_noted(store: Store, redis: Redis) -> None:
    deliveries = await lease(store, *names(1000))
    await produce(store, "m1001")
    deliveries += await claim(store)
    async with unchanged(redis):
        with pytest.raises(StoreError, match="TOOMANY 1001"):
            await store.start(TOPIC, deliveries)


async def test_what_makes_no_sense_is_refused(redis: Redis, store: Store) -> None:
    await lease(store, "m1")
    async with unchanged(redis):
        with pytest.raises(ResponseError, match="BADARGS"):
            await call(redis, NAME, keys_of(NAME), "m1", "")


@pytest.mark.parametrize("key", ["payload", "orders:processing"])
async def test_a_key_of_another_type_is_named_and_nothing_changes(
    store: Store, redis: Redis, key: str
) -> None:
    deliveries = await lease(store, "m1")
    await spoil(redis, key)
    async with unchanged(redis):
        with pytest.raises(WrongKeyType, match=key):
            await store.start(TOPIC, deliveries)


async def test_a_server_without_memory_still_notes_it(store: Store, redis: Redis) -> None:
    deliveries = await lease(store, "m1")
    async with out_of_memory(redis):
        assert await store.start(TOPIC, deliveries) == [Settled.DONE]
