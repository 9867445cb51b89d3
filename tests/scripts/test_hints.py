"""Entries of the lists that no claim delivers are counted, so that what is pending can be told."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from mx_rmq.storage.contract import Cancelled
from tests.scripts.helpers import TOPIC, claim, count_of, delay, names, produce
from tests.words import PREFIX, out_of_memory

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from mx_rmq.storage.store import Store
    from tests.harness import Clock

PENDING = f"{PREFIX}{TOPIC}:pending"


async def stale(redis: Redis) -> int:
    return (await count_of(redis)).get("stale", 0)


async def test_a_thousand_that_are_cancelled_in_mid_list_are_stale_until_a_claim_drops_them(
    store: Store, redis: Redis
) -> None:
    ids = names(1000)
    await produce(store, *ids)
    assert await store.cancel(ids[1:-1]) == [Cancelled.CANCELLED] * 998
    assert await stale(redis) == 998
    assert [each.id for each in await claim(store, 1)] == ["m1"]
    assert await stale(redis) == 998
    assert [each.id for each in await claim(store, 1)] == ["m1000"]
    assert "stale" not in await count_of(redis)


async def test_an_id_that_is_used_again_has_two_entries_and_one_is_stale(store: Store, redis: Redis) -> None:
    await produce(store, "m1", "m2", "m3")
    await store.cancel(["m2"])
    await produce(store, "m2")
    assert await stale(redis) == 1
    assert [each.id for each in await claim(store, 2)] == ["m1", "m2"]
    assert await stale(redis) == 1, "its second entry is the stale one now"
    assert [each.id for each in await claim(store, 2)] == ["m3"]
    assert await stale(redis) == 0


async def test_the_old_entry_of_an_id_that_is_delayed_now_goes_with_it_if_it_can(
    store: Store, redis: Redis
) -> None:
    await produce(store, "m1", "m2", "m3")
    await store.cancel(["m2"])
    await delay(store, "m2", delay=60)
    await claim(store, 1)
    assert await stale(redis) == 1
    assert await store.cancel(["m2"]) == [Cancelled.CANCELLED]
    assert await redis.lrange(PENDING, 0, -1) == [b"m3"]
    assert await stale(redis) == 0


async def test_a_purge_drops_them_too(store: Store, redis: Redis) -> None:
    await produce(store, *names(6))
    await store.cancel(["m2", "m3", "m4"])
    assert await store.purge(TOPIC, 2) == (1, 4)
    assert await stale(redis) == 2
    assert await store.purge(TOPIC) == (2, 0)
    assert "stale" not in await count_of(redis)


async def test_a_take_over_of_what_expired_counts_what_it_leaves(
    store: Store, redis: Redis, clock: Clock
) -> None:
    await produce(store, "m1")
    await produce(store, "m2", "m3", ttl=1)
    await produce(store, "m4")
    clock.advance(2)
    assert len((await store.take_over(10, lease=15, holder="m")).taken) == 2
    assert await stale(redis) == 2
    assert len(await claim(store)) == 2
    assert await stale(redis) == 0


async def test_entries_that_another_program_wrote_never_make_it_negative(store: Store, redis: Redis) -> None:
    await produce(store, "m1", "m2", "m3", "m4")
    await store.cancel(["m2"])
    await redis.rpush(PENDING, "nobody", "nor I", "m1")
    assert [each.id for each in await claim(store, 1)] == ["m1"]
    assert [each.id for each in await claim(store, 1)] == ["m3"]
    assert await stale(redis) == 0
    assert [each.id for each in await claim(store, 1)] == ["m4"]


@pytest.mark.parametrize("value", ["7", "-7", "garbage", "9" * 400])
async def test_a_count_that_another_program_wrote_is_gone_once_the_lists_are_empty(
    store: Store, redis: Redis, value: str
) -> None:
    await redis.hset(PREFIX + "counters", f"{TOPIC}:stale", value)
    await produce(store, "m1", "m2", "m3")
    await store.cancel(["m2"])
    assert len(await claim(store, 5)) == 2
    await claim(store, 5)
    assert not await redis.hexists(PREFIX + "counters", f"{TOPIC}:stale")


async def test_a_full_server_counts_them_too(store: Store, redis: Redis) -> None:
    await produce(store, *names(5))
    async with out_of_memory(redis):
        await store.cancel(["m2", "m3"])
        assert await stale(redis) == 2
        assert len(await claim(store)) == 3
    assert await stale(redis) == 0
