from __future__ import annotations

from typing import TYPE_CHECKING

from tests.harness import command
from tests.scripts.states import NOW, everything
from tests.words import PREFIX, out_of_memory

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from mx_rmq.storage.store import Store
    from tests.harness import Clock

TAILS = f"{PREFIX}tails"


async def test_a_want_is_noted_until_an_instant(store: Store, redis: Redis) -> None:
    assert await store.watch(b"dead", lasts=10)
    assert await everything(redis) == {"tails": {"dead": NOW + 10_000}}
    assert 8 < await command(redis, "TTL", TAILS) <= 10


async def test_noted_again_it_lasts_longer_and_those_that_are_over_are_gone(
    store: Store, redis: Redis, clock: Clock
) -> None:
    await store.watch(b"dead", lasts=10)
    await store.watch(b"retried", lasts=10)
    clock.advance(6)
    await store.watch(b"dead", lasts=10)
    clock.advance(6)
    await store.watch(b"done", lasts=10)
    assert await everything(redis) == {"tails": {"dead": NOW + 16_000, "done": NOW + 22_000}}


async def test_there_are_at_most_16_of_them(store: Store, redis: Redis, clock: Clock) -> None:
    assert all([await store.watch(b"%d" % n, lasts=10) for n in range(16)])
    assert not await store.watch(b"one more", lasts=10)
    assert await store.watch(b"7", lasts=10), "one that is there is noted again"
    assert await command(redis, "ZCARD", TAILS) == 16
    clock.advance(10)
    assert await store.watch(b"one more", lasts=10)
    assert await command(redis, "ZCARD", TAILS) == 1


async def test_a_full_server_is_watched_too(store: Store, redis: Redis) -> None:
    """Even where there is none whose removal would open the door."""
    async with out_of_memory(redis):
        assert await store.watch(b"dead", lasts=10)
