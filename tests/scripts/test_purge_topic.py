from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from mx_rmq.storage.contract import Settled
from tests.scripts.states import (
    NOW,
    awake,
    counted,
    dead,
    delayed,
    delivery,
    everything,
    hint,
    leased,
    pending,
    seed,
    together,
)
from tests.words import unchanged

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from mx_rmq.storage.store import Store

NEIGHBOURS = together(
    leased("l"),
    delayed("d", due=NOW),
    dead("x"),
    pending("other", "u"),
    awake("u"),
    {"topics": {"t", "u"}, "paused": {"t"}, "done": {"old": 1.0}},
)
"""What a purge of topic t leaves alone."""


async def test_everything_pending_in_the_topic_is_withdrawn_and_nothing_else(
    store: Store, redis: Redis
) -> None:
    await seed(
        redis,
        NEIGHBOURS,
        awake(),
        pending("a", lane="high"),
        pending("b", expires=NOW + 9),
        pending("c", lane="low", leased=2),
        pending("expired", expires=NOW - 1),
    )
    assert await store.purge("t") == (4, 0)
    assert await everything(redis) == together(NEIGHBOURS, counted({"t:cancelled": 4}))


async def test_an_empty_topic_stays_empty(store: Store, redis: Redis) -> None:
    await seed(redis, NEIGHBOURS)
    async with unchanged(redis):
        assert await store.purge("t") == (0, 0)
        assert await store.purge("nowhere") == (0, 0)


async def test_sent_again_it_withdraws_nothing_more(store: Store, redis: Redis) -> None:
    await seed(redis, NEIGHBOURS, pending("a"), pending("b"))
    assert await store.purge("t") == (2, 0)
    async with unchanged(redis):
        assert await store.purge("t") == (0, 0)


async def test_hints_are_dropped_and_not_counted(store: Store, redis: Redis) -> None:
    """An entry whose message runs, waits, died, vanished or lives in another topic withdraws nothing."""
    hints = [hint(id_, lane="high") for id_ in ("l", "d", "x", "other", "nobody")]
    await seed(redis, NEIGHBOURS, *hints, pending("a", lane="high"), hint("a"))
    assert await store.purge("t") == (1, 0)
    assert await everything(redis) == together(NEIGHBOURS, counted({"t:cancelled": 1}))


async def test_a_running_message_is_still_completed_after_the_purge(store: Store, redis: Redis) -> None:
    await seed(redis, leased("l"), hint("l"), pending("a"))
    assert await store.purge("t") == (1, 0)
    assert await store.complete("t", [(delivery("l"), 0.0)]) == [Settled.DONE]
    assert await everything(redis) == counted({"t:cancelled": 1, "t:completed": 1})


async def test_the_limit_counts_entries_in_the_order_of_claims(store: Store, redis: Redis) -> None:
    """The topic's token stays while something is left: somebody should still look."""
    await seed(
        redis,
        awake(),
        pending("n1"),
        pending("n2"),
        pending("h1", lane="high"),
        hint("gone", lane="high"),
        pending("low1", lane="low"),
    )
    assert await store.purge("t", 3) == (2, 2)
    assert await everything(redis) == together(
        awake(), pending("n2"), pending("low1", lane="low"), counted({"t:cancelled": 2})
    )
    assert await store.purge("t", 3) == (2, 0)
    assert await everything(redis) == counted({"t:cancelled": 4})


@pytest.mark.parametrize("limit", [0, -1])
async def test_a_limit_below_one_withdraws_nothing(store: Store, redis: Redis, limit: int) -> None:
    await seed(redis, awake(), pending("a"), pending("b", lane="low"))
    async with unchanged(redis):
        assert await store.purge("t", limit) == (0, 2)


@pytest.mark.parametrize("limit", [1000, 5000])
async def test_one_call_withdraws_a_thousand_and_never_more(store: Store, redis: Redis, limit: int) -> None:
    await seed(redis, awake(), *(pending(f"m{n}") for n in range(1001)))
    assert await store.purge("t", limit) == (1000, 1)
    assert await everything(redis) == together(awake(), pending("m1000"), counted({"t:cancelled": 1000}))


async def test_an_entry_whose_body_is_missing_leaves_nothing_behind(store: Store, redis: Redis) -> None:
    """It was produced and is in no place now, so it counts as cancelled and the books balance."""
    await seed(redis, pending("a", leased=1))
    await redis.hdel("mx-rmq:{q}:payload", "a")
    assert await store.purge("t") == (1, 0)
    assert await everything(redis) == counted({"t:cancelled": 1})


async def test_a_message_without_topic_is_left_to_the_audit(store: Store, redis: Redis) -> None:
    """Only its entry goes, which was a guess; its body and its deadline stay for mending."""
    before = await seed(redis, pending("a"))
    await redis.hdel("mx-rmq:{q}:payload", "a:queue")
    assert await store.purge("t") == (0, 0)
    del before["payload"]["a:queue"], before["t:pending"]
    assert await everything(redis) == before
