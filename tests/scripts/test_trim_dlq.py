from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.scripts.states import NOW, counted, dead, delayed, everything, leased, pending, seed, together
from tests.words import unchanged

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from mx_rmq.storage.store import Store
    from tests.harness import Clock

LIVE = together(pending("p", expires=NOW - 9), leased("l"), delayed("d", due=NOW))


def deaths(*ages_ms: int) -> dict[str, object]:
    """Dead messages named after their age."""
    return together(*(dead(f"m{age}", died=NOW - age) for age in ages_ms))


async def test_the_dead_beyond_the_age_are_deleted_for_good(store: Store, redis: Redis) -> None:
    """What is exactly as old as allowed stays."""
    await seed(redis, LIVE, deaths(0, 10_000, 10_001, 99_999))
    assert await store.trim_dead(max_age=10.0) == 2
    assert await everything(redis) == together(LIVE, deaths(0, 10_000), counted({"t:deleted": 2}))


async def test_the_oldest_beyond_the_count_are_deleted_for_good(store: Store, redis: Redis) -> None:
    await seed(redis, LIVE, deaths(0, 5, 7, 9))
    assert await store.trim_dead(max_count=3) == 1
    assert await everything(redis) == together(LIVE, deaths(0, 5, 7), counted({"t:deleted": 1}))


@pytest.mark.parametrize(
    ("max_age", "max_count", "kept"),
    [
        (0.006, 3, (0, 5)),
        (0.008, 1, (0,)),
        (0.006, 2, (0, 5)),
        (None, 0, ()),
        (0.0, None, (0,)),
        (0.0, 0, ()),
        (1.0, 4, (0, 5, 7, 9)),
    ],
)
async def test_of_two_bounds_the_stricter_one_decides(
    store: Store, redis: Redis, max_age: float | None, max_count: int | None, kept: tuple[int, ...]
) -> None:
    await seed(redis, LIVE, deaths(0, 5, 7, 9))
    gone = 4 - len(kept)
    assert await store.trim_dead(max_age=max_age, max_count=max_count) == gone
    tools = counted({"t:deleted": gone}) if gone else {}
    assert await everything(redis) == together(LIVE, deaths(*kept), tools)


async def test_without_bounds_nothing_is_deleted(store: Store, redis: Redis) -> None:
    await seed(redis, LIVE, deaths(0, 10**12))
    async with unchanged(redis):
        assert await store.trim_dead() == 0


async def test_an_empty_dlq_stays_empty(store: Store, redis: Redis) -> None:
    await seed(redis, LIVE)
    async with unchanged(redis):
        assert await store.trim_dead(max_age=0.0, max_count=0) == 0


async def test_sent_again_it_finds_nothing_more(store: Store, redis: Redis) -> None:
    await seed(redis, LIVE, deaths(0, 5, 7, 9))
    assert await store.trim_dead(max_count=2) == 2
    async with unchanged(redis):
        assert await store.trim_dead(max_count=2) == 0


async def test_what_is_young_now_is_old_later(store: Store, redis: Redis, clock: Clock) -> None:
    await seed(redis, deaths(0))
    assert await store.trim_dead(max_age=60.0) == 0
    clock.advance(60.001)
    assert await store.trim_dead(max_age=60.0) == 1
    assert await everything(redis) == counted({"t:deleted": 1})


@pytest.mark.parametrize("bounds", [{"max_age": 0.001}, {"max_count": 1}], ids=["age", "count"])
async def test_the_limit_holds_and_the_oldest_go_first(
    store: Store, redis: Redis, bounds: dict[str, int]
) -> None:
    await seed(redis, deaths(0, 5, 7, 9))
    assert await store.trim_dead(**bounds, limit=2) == 2
    assert (await everything(redis))["dlq"] == deaths(0, 5)["dlq"]
    assert await store.trim_dead(**bounds, limit=2) == 1
    assert (await everything(redis))["dlq"] == deaths(0)["dlq"]


@pytest.mark.parametrize("limit", [0, -1])
@pytest.mark.parametrize("bounds", [{"max_age": 0.001}, {"max_count": 1}], ids=["age", "count"])
async def test_a_limit_below_one_deletes_nothing(
    store: Store, redis: Redis, bounds: dict[str, int], limit: int
) -> None:
    """To the server's ranges -1 means "to the end"; here it must not."""
    await seed(redis, deaths(0, 5, 7, 9))
    async with unchanged(redis):
        assert await store.trim_dead(**bounds, limit=limit) == 0


@pytest.mark.parametrize("limit", [1000, 5000])
@pytest.mark.parametrize("bounds", [{"max_age": 0.001}, {"max_count": 0}], ids=["age", "count"])
async def test_one_call_deletes_a_thousand_and_never_more(
    store: Store, redis: Redis, bounds: dict[str, int], limit: int
) -> None:
    ages = range(2001, 1000, -1)
    await seed(redis, deaths(*ages))
    assert await store.trim_dead(**bounds, limit=limit) == 1000
    assert await everything(redis) == together(deaths(ages[-1]), counted({"t:deleted": 1000}))


async def test_the_deleted_are_counted_by_topic(store: Store, redis: Redis) -> None:
    """One whose topic is missing is deleted too, and counted as of topic "unknown"."""
    await seed(
        redis, dead("a", "t"), dead("b", "u"), dead("c", "u"), dead("d"), {"dlq": {"bare": float(NOW)}}
    )
    await redis.hdel("mx-rmq:{q}:dlq_payload", "d:queue")
    assert await store.trim_dead(max_count=0) == 5
    assert await everything(redis) == counted({"t:deleted": 1, "u:deleted": 2, "unknown:deleted": 2})
