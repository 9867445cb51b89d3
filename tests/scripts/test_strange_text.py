"""Fields of the right type whose text is nonsense: one of them must not stop the others."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from mx_rmq.records import NewMessage

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from mx_rmq.store import Store
    from tests.harness import Clock

PREFIX = "mx-rmq:{q}:"
NONSENSE = ("garbage", "nan", "0x1p9", "-inf", "1e400")


@pytest.mark.parametrize("expires", NONSENSE)
async def test_a_delayed_message_with_nonsense_kept_is_promoted_with_the_others(
    store: Store, redis: Redis, clock: Clock, expires: str
) -> None:
    """An error in mid-script would leave all that were due in no place at all."""
    await store.produce_delayed("t", [NewMessage(id_, b"{}", delay=1) for id_ in ("a", "b", "c")])
    await redis.hset(PREFIX + "payload", "b:keep", f"0 normal {expires}")
    clock.advance(2)
    assert set((await store.promote()).promoted) == {"a", "b", "c"}
    claim = await store.claim("t", 10, lease=15, holder="w1")
    assert {delivery.id for delivery in claim.deliveries} == {"a", "b", "c"}


@pytest.mark.parametrize("expires", NONSENSE)
async def test_a_nonsense_lease_is_taken_over_and_settled(
    store: Store, redis: Redis, clock: Clock, expires: str
) -> None:
    await store.produce("t", [NewMessage("a", b"{}")])
    await store.claim("t", 1, lease=1, holder="w1")
    await redis.hset(
        PREFIX + "t:processing", "a", f"1@1 \xff {expires} \udcff run".encode(errors="surrogateescape")
    )
    clock.advance(2)
    (taken,) = (await store.take_over(10, lease=15, holder="m1")).taken
    assert taken.previous == "\\xff"
    assert taken.delivery.expires_at == float("inf")
    assert await store.release("t", [taken.delivery]) == [1]
    assert [d.id for d in (await store.claim("t", 1, lease=15, holder="w1")).deliveries] == ["a"]


@pytest.mark.parametrize("topic", [b"\xff\xfe", b"", b"a:{b}*", b"t" * 129])
async def test_a_message_of_an_impossible_topic_is_put_off_and_named(
    store: Store, redis: Redis, clock: Clock, topic: bytes
) -> None:
    await store.produce("t", [NewMessage("a", b"{}", ttl=1)])
    await store.produce_delayed("t", [NewMessage("b", b"{}", delay=1)])
    await redis.hset(PREFIX + "payload", mapping={"a:queue": topic, "b:queue": topic})
    clock.advance(2)
    overdue = await store.take_over(10, lease=15, holder="m1")
    assert (overdue.taken, overdue.poisoned) == ([], ["a"])
    assert (await store.promote()).poisoned == ["b"]


async def test_an_id_that_is_no_text_is_not_delivered_and_named_when_its_lease_is_over(
    store: Store, redis: Redis, clock: Clock
) -> None:
    await store.produce("t", [NewMessage("a", b"{}")])
    await redis.hset(PREFIX + "payload", mapping={b"\xff": b"{}", b"\xff:queue": "t"})
    await redis.zadd(PREFIX + "all_expire_monitor", {b"\xff": "inf"})
    await redis.rpush(PREFIX + "t:pending", b"\xff")
    claim = await store.claim("t", 10, lease=1, holder="w1")
    assert [delivery.id for delivery in claim.deliveries] == ["a"]
    await store.complete("t", [(claim.deliveries[0], 0)])
    clock.advance(2)
    overdue = await store.take_over(10, lease=15, holder="m1")
    assert (overdue.taken, overdue.poisoned) == ([], ["\\xff"])
