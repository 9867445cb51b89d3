from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from mx_rmq.errors import StoreError
from tests.scripts.states import NOW, counted, dead, delayed, everything, leased, pending, seed, together
from tests.words import unchanged

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from mx_rmq.storage.store import Store

DLQ_PAYLOAD = "mx-rmq:{q}:dlq_payload"

NEIGHBOURS = together(pending("p"), leased("l"), delayed("d", due=NOW), dead("x", died=NOW - 5))


async def test_dead_messages_are_deleted_for_good_and_counted_by_topic(store: Store, redis: Redis) -> None:
    await seed(redis, NEIGHBOURS, dead("a", "t"), dead("b", "u"), dead("c", "u"))
    assert await store.delete_dead(["a", "c", "b"]) == 3
    assert await everything(redis) == together(NEIGHBOURS, counted({"t:deleted": 1, "u:deleted": 2}))


async def test_only_the_dead_can_be_deleted(store: Store, redis: Redis) -> None:
    """An id that was replayed meanwhile, or a slip of the operator, costs no living message."""
    await seed(redis, NEIGHBOURS)
    async with unchanged(redis):
        assert await store.delete_dead(["p", "l", "d", "nobody"]) == 0


async def test_sent_again_it_deletes_nothing_more(store: Store, redis: Redis) -> None:
    await seed(redis, NEIGHBOURS, dead("a"))
    assert await store.delete_dead(["a"]) == 1
    async with unchanged(redis):
        assert await store.delete_dead(["a"]) == 0


async def test_the_same_id_twice_in_one_call_counts_once(store: Store, redis: Redis) -> None:
    await seed(redis, NEIGHBOURS, dead("a"))
    assert await store.delete_dead(["a", "a"]) == 1
    assert await everything(redis) == together(NEIGHBOURS, counted({"t:deleted": 1}))


async def test_a_dead_message_without_topic_or_body_is_deleted_whole(store: Store, redis: Redis) -> None:
    await seed(redis, NEIGHBOURS, dead("no-topic"), dead("no-body"), {"dlq": {"bare": float(NOW)}})
    await redis.hdel(DLQ_PAYLOAD, "no-topic:queue", "no-body")
    assert await store.delete_dead(["no-topic", "no-body", "bare"]) == 3
    assert await everything(redis) == together(NEIGHBOURS, counted({"t:deleted": 1, "unknown:deleted": 2}))


async def test_an_empty_batch_changes_nothing(store: Store, redis: Redis) -> None:
    await seed(redis, NEIGHBOURS)
    async with unchanged(redis):
        assert await store.delete_dead([]) == 0


async def test_a_thousand_in_one_call_pass(store: Store, redis: Redis) -> None:
    ids = [f"m{n}" for n in range(1000)]
    await seed(redis, NEIGHBOURS, *(dead(id_) for id_ in ids))
    assert await store.delete_dead(ids) == 1000
    assert await everything(redis) == together(NEIGHBOURS, counted({"t:deleted": 1000}))


async def test_one_more_than_a_thousand_is_refused_whole(store: Store, redis: Redis) -> None:
    await seed(redis, NEIGHBOURS)
    async with unchanged(redis):
        with pytest.raises(StoreError, match="TOOMANY 1001 messages"):
            await store.delete_dead(["x", *(f"m{n}" for n in range(1000))])


async def test_only_the_death_that_was_looked_at_is_deleted(store: Store, redis: Redis) -> None:
    """What died again since the operator looked is something nobody has seen yet."""
    again = dead("b", died=2000)
    await seed(redis, dead("a", died=1000), again)
    assert await store.delete_dead(["a", "b", "nobody"], [1.0, 1.999, 3.0]) == 1
    assert await everything(redis) == together(again, counted({"t:deleted": 1}))
