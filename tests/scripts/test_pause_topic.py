"""pause_topic and resume_topic."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from mx_rmq.errors import InvalidName
from mx_rmq.receipt import Stored
from mx_rmq.storage.contract import Claim, NewMessage, Replay, Replayed, Settled
from tests.scripts.states import (
    FIRST,
    NOW,
    awake,
    dead,
    delayed,
    delivery,
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

MESSAGES = together(
    pending("p", expires=NOW + 9),
    pending("h", lane="high"),
    leased("l"),
    delayed("d", due=NOW),
    dead("x"),
    pending("other", "u"),
)


async def test_pausing_writes_down_the_topic_and_touches_no_message(store: Store, redis: Redis) -> None:
    await seed(redis, MESSAGES, awake())
    assert await store.pause("t") is True
    assert await everything(redis) == together(MESSAGES, awake(), {"paused": {"t"}})


async def test_pausing_again_says_so_and_changes_nothing(store: Store, redis: Redis) -> None:
    await seed(redis, MESSAGES, {"paused": {"t"}})
    async with unchanged(redis):
        assert await store.pause("t") is False


async def test_a_topic_nobody_has_produced_to_can_be_paused(store: Store, redis: Redis) -> None:
    """An operator may prepare: what is produced later waits."""
    assert await store.pause("t") is True
    assert await store.produce("t", [NewMessage("a", b"x")]) == [Stored.STORED]
    assert (await store.claim("t", 1, lease=15, holder="w")).paused


async def test_nothing_of_a_paused_topic_is_delivered(store: Store, redis: Redis) -> None:
    await seed(redis, MESSAGES, awake(), {"paused": {"t"}})
    async with unchanged(redis):
        assert await store.claim("t", 10, lease=15, holder="w") == Claim(FIRST / 1e6, [], 0, paused=True)


async def test_other_topics_go_on(store: Store, redis: Redis) -> None:
    await seed(redis, MESSAGES, {"paused": {"t"}})
    claim = await store.claim("u", 10, lease=15, holder="w")
    assert [each.id for each in claim.deliveries] == ["other"]
    assert not claim.paused


async def test_all_but_delivery_goes_on_while_a_topic_is_paused(store: Store, redis: Redis) -> None:
    """Messages arrive, become due and return; what runs is finished; what expires is taken over."""
    await seed(redis, MESSAGES, leased("r", token="1@6"), pending("late", expires=NOW), {"paused": {"t"}})
    assert await store.produce("t", [NewMessage("new", b"x")]) == [Stored.STORED]
    assert (await store.promote()).promoted == ["d"]
    assert await store.replay([Replay("x")]) == [Replayed.REPLAYED]
    assert await store.release("t", [delivery("r", token="1@6")]) == [Settled.DONE]
    assert await store.complete("t", [(delivery("l"), 0.0)]) == [Settled.DONE]
    assert [row.delivery.id for row in (await store.take_over(10, lease=15, holder="m")).taken] == ["late"]
    # "late" stood in mid-list: its entry stays as a hint.
    assert (await everything(redis))["t:pending"] == ["r", "p", "late", "new", "d", "x"]


async def test_resuming_delivers_again_and_wakes_a_worker(store: Store, redis: Redis) -> None:
    """Workers that found the topic paused sleep on its token; nothing else would wake them."""
    await seed(redis, MESSAGES, {"paused": {"t", "u"}})
    assert await store.resume("t") is True
    assert await everything(redis) == together(MESSAGES, awake(), {"paused": {"u"}})
    claim = await store.claim("t", 10, lease=15, holder="w")
    assert [each.id for each in claim.deliveries] == ["h", "p"]


async def test_resuming_twice_leaves_one_token(store: Store, redis: Redis) -> None:
    await seed(redis, MESSAGES, awake(), {"paused": {"t"}})
    assert await store.resume("t") is True
    async with unchanged(redis):
        assert await store.resume("t") is False
    assert await everything(redis) == together(MESSAGES, awake())


async def test_resuming_what_is_not_paused_wakes_nobody(store: Store, redis: Redis) -> None:
    await seed(redis, MESSAGES, {"paused": {"u"}})
    async with unchanged(redis):
        assert await store.resume("t") is False


@pytest.mark.parametrize("name", ["", "a=b", "{x}", "a b", "x" * 129])
async def test_what_cannot_be_a_topic_cannot_be_paused(store: Store, redis: Redis, name: str) -> None:
    """A name that no message can have would stay in the list of paused topics for ever."""
    with pytest.raises(InvalidName):
        await store.pause(name)
    assert await everything(redis) == {}
