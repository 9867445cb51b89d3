from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from mx_rmq.errors import StoreError
from mx_rmq.storage.contract import Hastened, NextDelay, Promotion
from tests.scripts.states import (
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

    from mx_rmq.storage.store import Store

NEIGHBOURS = together(pending("p"), leased("l"), dead("x"), delayed("d", due=NOW + 5_000))
"""A message in every place, none of which a call may touch."""

WOKEN = {"delay_wake": ["1"]}


async def test_a_delayed_message_is_due_now_and_wakes_the_scheduler(store: Store, redis: Redis) -> None:
    await seed(redis, NEIGHBOURS, delayed("a", "v", due=NOW + 9_000, lane="high", expires=NOW + 99, leased=2))
    assert await store.hasten(["a"]) == [Hastened.HASTENED]
    assert await everything(redis) == together(
        NEIGHBOURS, delayed("a", "v", due=NOW, lane="high", expires=NOW + 99, leased=2), WOKEN
    )
    assert await store.promote() == Promotion(5.0, ["a"], [], [])
    assert await everything(redis) == together(
        NEIGHBOURS,
        pending("a", "v", lane="high", expires=NOW + 99, leased=2),
        awake("v"),
        counted({"v:promoted": 1}),
        WOKEN,
    )


async def test_a_call_sent_again_changes_nothing(store: Store, redis: Redis) -> None:
    await seed(redis, delayed("a", due=NOW + 9_000))
    assert await store.hasten(["a", "a"]) == [Hastened.HASTENED, Hastened.DUE]
    async with unchanged(redis):
        assert await store.hasten(["a"]) == [Hastened.DUE]


async def test_what_is_due_keeps_its_place(store: Store, redis: Redis) -> None:
    """Were its time set to now, it could fall behind others for as long as someone presses the button."""
    await seed(redis, delayed("late", due=NOW - 9_000), delayed("a", due=NOW + 9_000))
    assert await store.hasten(["late", "a"]) == [Hastened.DUE, Hastened.HASTENED]
    assert await store.next_delay() == NextDelay("EXPIRED", 9.0, "late")
    assert "delay_wake" not in await everything(redis)  # the scheduler is at it already


async def test_only_what_is_delayed_becomes_due(store: Store, redis: Redis) -> None:
    await seed(redis, NEIGHBOURS)
    async with unchanged(redis):
        assert await store.hasten(["p", "l", "x", "nobody"]) == [
            Hastened.NOT_DELAYED,
            Hastened.NOT_DELAYED,
            Hastened.DEAD,
            Hastened.GONE,
        ]
        assert await store.hasten([]) == []


async def test_what_a_delay_left_behind_is_no_message(store: Store, redis: Redis) -> None:
    await seed(redis, {"delay_tasks": {"ghost": NOW + 5_000.0}})
    async with unchanged(redis):
        assert await store.hasten(["ghost"]) == [Hastened.GONE]


async def test_too_many_in_one_call_are_refused(store: Store, redis: Redis) -> None:
    with pytest.raises(StoreError, match="TOOMANY 1001 messages in one call"):
        await store.hasten([f"m{n}" for n in range(1001)])
