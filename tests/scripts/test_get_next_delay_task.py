from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from mx_rmq.storage.contract import NextDelay
from tests.scripts.states import NOW, dead, delayed, leased, pending, seed, together
from tests.words import unchanged

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from mx_rmq.storage.store import Store
    from tests.harness import Clock

NEIGHBOURS = together(pending("p", expires=NOW), leased("l", ends=NOW), dead("x"), {"delay_wake": ["1"]})
"""Messages in the other places, all overdue there; nothing of theirs concerns the scheduler."""


async def test_without_delayed_messages_there_is_no_task(store: Store, redis: Redis) -> None:
    await seed(redis, NEIGHBOURS)
    async with unchanged(redis):
        assert await store.next_delay() == NextDelay("NO_TASK", 0.0, "")


async def test_the_earliest_of_all_topics_says_how_long_to_wait(store: Store, redis: Redis) -> None:
    await seed(
        redis,
        NEIGHBOURS,
        delayed("late", due=NOW + 9_000),
        delayed("soon", "u", due=NOW + 1_234),
        delayed("never", due=NOW + 10**12),
    )
    async with unchanged(redis):
        assert await store.next_delay() == NextDelay("WAITING", 1.234, "soon")


@pytest.mark.parametrize(
    ("due", "expected"),
    [
        (NOW + 1, NextDelay("WAITING", 0.001, "a")),
        (NOW, NextDelay("EXPIRED", 0.0, "a")),
        (NOW - 1, NextDelay("EXPIRED", 0.001, "a")),
        (NOW - 90_000, NextDelay("EXPIRED", 90.0, "a")),
        (0, NextDelay("EXPIRED", NOW / 1000, "a")),
    ],
)
async def test_due_begins_with_the_very_millisecond(
    store: Store, redis: Redis, due: int, expected: NextDelay
) -> None:
    """The wait it gives ends exactly when promoting works: no early wake-up, no idle round."""
    await seed(redis, delayed("a", due=due), delayed("b", due=NOW + 99_000))
    async with unchanged(redis):
        assert await store.next_delay() == expected
        assert await store.next_delay() == expected
    assert ("a" in (await store.promote()).promoted) == (expected.state == "EXPIRED")


async def test_the_wait_shrinks_with_the_clock(store: Store, redis: Redis, clock: Clock) -> None:
    await seed(redis, delayed("a", due=NOW + 3_000))
    assert await store.next_delay() == NextDelay("WAITING", 3.0, "a")
    clock.advance(2)
    assert await store.next_delay() == NextDelay("WAITING", 1.0, "a")
    clock.advance(2)
    assert await store.next_delay() == NextDelay("EXPIRED", 1.0, "a")


async def test_a_task_without_body_or_topic_is_named_all_the_same(store: Store, redis: Redis) -> None:
    """Whether there is a message to it is for promote to find out; here it would only cost a read."""
    await seed(redis, {"delay_tasks": {"a": float(NOW)}})
    async with unchanged(redis):
        assert await store.next_delay() == NextDelay("EXPIRED", 0.0, "a")
