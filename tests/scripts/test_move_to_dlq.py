from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from redis.exceptions import ResponseError

from mx_rmq.errors import StoreError
from mx_rmq.storage.contract import Kept, Settled
from tests.scripts.helpers import call, keys_of
from tests.scripts.states import (
    NOW,
    counted,
    dead,
    delayed,
    delivery,
    everything,
    grouped,
    hint,
    leased,
    pending,
    seed,
    together,
)
from tests.words import PREFIX

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from mx_rmq.storage.store import Store
    from tests.harness import Clock

NEIGHBOURS = together(
    pending("p", expires=NOW + 9),
    leased("l", token="1@7"),
    delayed("d", due=NOW + 5),
    dead("x", died=NOW - 5),
    leased("other", "u"),
)
"""One message in every place, none of which a call may touch."""


async def test_a_dead_message_is_kept_with_its_final_body_and_the_reason(store: Store, redis: Redis) -> None:
    await seed(redis, NEIGHBOURS, leased("a", token="3@5", lane="high", expires=NOW + 50, before=2))
    assert await store.move_to_dlq("t", [(delivery("a", token="3@5"), b"final", b"boom")]) == [Settled.DONE]
    assert await everything(redis) == together(
        NEIGHBOURS, grouped("a", body="final", error="boom"), counted({"t:dead": 1})
    )


async def test_an_empty_body_keeps_the_stored_bytes_as_they_are(store: Store, redis: Redis) -> None:
    """A message that cannot be parsed cannot be written anew either: not a byte of it may change."""
    await seed(redis, leased("a"))
    await redis.hset("mx-rmq:{q}:payload", "a", b"\xff\x00{")
    assert await store.move_to_dlq("t", [(delivery("a"), b"", b"unparsable")]) == [Settled.DONE]
    assert await redis.hget("mx-rmq:{q}:dlq_payload", "a") == b"\xff\x00{"
    assert (await everything(redis)).keys() == (grouped("a") | counted({"t:dead": 1})).keys()


@pytest.mark.parametrize("token", ["2@5", "1@6", "1@", "1", ""])
async def test_a_token_that_is_not_the_current_one_changes_nothing(
    store: Store, redis: Redis, token: str
) -> None:
    before = await seed(redis, NEIGHBOURS, leased("a", token="1@5"))
    reply = await store.move_to_dlq("t", [(delivery("a", token=token), b"late", b"late")])
    assert reply == [Settled.STALE]
    assert await everything(redis) == before


async def test_what_is_not_leased_cannot_be_moved(store: Store, redis: Redis) -> None:
    """A worker that lost its lease finds its message wherever it went meanwhile, and leaves it there."""
    before = await seed(redis, NEIGHBOURS)
    reply = await store.move_to_dlq(
        "t", [(delivery(id_), b"late", b"late") for id_ in ("p", "d", "x", "other", "nobody")]
    )
    assert reply == [Settled.STALE, Settled.STALE, Settled.GONE, Settled.STALE, Settled.GONE]
    assert await everything(redis) == before


async def test_sent_again_it_says_gone_and_changes_nothing(store: Store, redis: Redis, clock: Clock) -> None:
    await seed(redis, NEIGHBOURS, leased("a"))
    assert await store.move_to_dlq("t", [(delivery("a"), b"", b"boom")]) == [Settled.DONE]
    after = await everything(redis)
    clock.advance(70)
    assert await store.move_to_dlq("t", [(delivery("a"), b"", b"boom")]) == [Settled.GONE]
    assert await everything(redis) == after


async def test_a_lease_whose_body_is_missing_ends_and_leaves_nothing(store: Store, redis: Redis) -> None:
    """There is nothing to keep: an empty corpse in the DLQ could never be replayed."""
    await seed(redis, NEIGHBOURS, leased("a", before=1))
    await redis.hdel("mx-rmq:{q}:payload", "a")
    assert await store.move_to_dlq("t", [(delivery("a"), b"", b"boom")]) == [Settled.GONE]
    assert await everything(redis) == NEIGHBOURS


async def test_a_body_that_only_the_worker_still_has_is_kept(store: Store, redis: Redis) -> None:
    await seed(redis, NEIGHBOURS, leased("a"))
    await redis.hdel("mx-rmq:{q}:payload", "a")
    assert await store.move_to_dlq("t", [(delivery("a"), b"mine", b"boom")]) == [Settled.DONE]
    assert await everything(redis) == together(
        NEIGHBOURS, grouped("a", body="mine", error="boom"), counted({"t:dead": 1})
    )


async def test_a_missing_topic_field_is_written_anew(store: Store, redis: Redis) -> None:
    """The caller knows the topic by its lease, so a replay will find the way."""
    await seed(redis, leased("a"))
    await redis.hdel("mx-rmq:{q}:payload", "a:queue")
    assert await store.move_to_dlq("t", [(delivery("a"), b"", b"why")]) == [Settled.DONE]
    assert await everything(redis) == together(grouped("a"), counted({"t:dead": 1}))


async def test_the_same_delivery_twice_in_one_call_dies_once(store: Store, redis: Redis) -> None:
    await seed(redis, leased("a"))
    reply = await store.move_to_dlq("t", [(delivery("a"), b"one", b"1"), (delivery("a"), b"two", b"2")])
    assert reply == [Settled.DONE, Settled.STALE]
    assert await everything(redis) == together(grouped("a", body="one", error="1"), counted({"t:dead": 1}))


async def test_each_delivery_of_a_batch_is_judged_alone(store: Store, redis: Redis) -> None:
    await seed(redis, leased("a"), leased("b", token="2@9"), leased("c"))
    reply = await store.move_to_dlq("t", [(delivery(id_), b"", b"why") for id_ in ("a", "b", "nobody", "c")])
    assert reply == [Settled.DONE, Settled.STALE, Settled.GONE, Settled.DONE]
    assert await everything(redis) == together(
        leased("b", token="2@9"), grouped("a"), grouped("c"), counted({"t:dead": 2})
    )


async def test_an_old_entry_in_the_pending_list_stays_a_hint(store: Store, redis: Redis) -> None:
    """Nothing searches the list; the next claim drops the entry."""
    await seed(redis, leased("a"), hint("a"))
    assert await store.move_to_dlq("t", [(delivery("a"), b"", b"why")]) == [Settled.DONE]
    assert await everything(redis) == together(hint("a"), grouped("a"), counted({"t:dead": 1}))
    assert (await store.claim("t", 10, lease=15, holder="w")).deliveries == []
    assert await everything(redis) == together(grouped("a"), counted({"t:dead": 1}))


async def test_what_became_of_a_message_is_remembered_besides(store: Store, redis: Redis) -> None:
    """For as long as was asked, whatever becomes of it in the DLQ."""
    await seed(redis, NEIGHBOURS, leased("a"), leased("b"))
    kept = [Kept(9.0, 60.0, 1.25), Kept()]
    died = [(delivery(id_), b"", b"why") for id_ in ("a", "b")]
    assert await store.move_to_dlq("t", died, kept=kept) == [Settled.DONE] * 2
    memory = {"ended=a": f"dead {NOW} 1250 t"}
    assert await everything(redis) == together(
        NEIGHBOURS, grouped("a"), grouped("b"), counted({"t:dead": 2}), memory
    )
    assert 50_000 < await redis.pttl("mx-rmq:{q}:ended=a") <= 60_000


async def test_a_token_that_is_not_the_current_one_leaves_no_memory(store: Store, redis: Redis) -> None:
    before = await seed(redis, NEIGHBOURS, leased("a", token="1@6"))
    reply = await store.move_to_dlq("t", [(delivery("a"), b"", b"")], kept=[Kept(remember_for=60.0)])
    assert reply == [Settled.STALE]
    assert await everything(redis) == before


@pytest.mark.parametrize("wish", ["x", "0 5", "60000", "1.5 5", "5 5 5", f"{10**30} 5"])
async def test_a_wish_that_makes_no_sense_is_refused_before_anything_is_written(
    store: Store, redis: Redis, wish: str
) -> None:
    before = await seed(redis, NEIGHBOURS, leased("a"), leased("b"))
    args = [PREFIX, "t", "", "a", "1@5", "", "why", "", "", "b", "1@5", "", "why", wish, "", ""]
    with pytest.raises(ResponseError, match="BADARGS no end can be remembered"):
        await call(redis, "move_to_dlq", keys_of("move_to_dlq", "t"), *args)
    assert await everything(redis) == before


async def test_an_empty_batch_changes_nothing(store: Store, redis: Redis) -> None:
    before = await seed(redis, NEIGHBOURS)
    assert await store.move_to_dlq("t", []) == []
    assert await everything(redis) == before


async def test_a_thousand_in_one_call_pass(store: Store, redis: Redis) -> None:
    ids = [f"m{n}" for n in range(1000)]
    await seed(redis, *(leased(id_, before=1) for id_ in ids))
    reply = await store.move_to_dlq("t", [(delivery(id_), b"", b"why") for id_ in ids])
    assert reply == [Settled.DONE] * 1000
    assert await everything(redis) == together(*(grouped(id_) for id_ in ids), counted({"t:dead": 1000}))


async def test_one_more_than_a_thousand_is_refused_whole(store: Store, redis: Redis) -> None:
    before = await seed(redis, NEIGHBOURS, leased("m0"))
    with pytest.raises(StoreError, match="TOOMANY 1001 messages"):
        await store.move_to_dlq("t", [(delivery(f"m{n}"), b"", b"why") for n in range(1001)])
    assert await everything(redis) == before
