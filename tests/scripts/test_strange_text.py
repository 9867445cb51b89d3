"""Fields of the right type whose text is nonsense: one of them must not stop the others."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from mx_rmq.receipt import Stored
from mx_rmq.storage.contract import NewMessage

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from mx_rmq.storage.store import Store
    from tests.harness import Clock

PREFIX = "mx-rmq:{q}:"
DIGITS = "9" * 400
"""A number to look at, and none that the server takes: as a double it is infinite."""
NONSENSE = ("garbage", "nan", "0x1p9", "-inf", "1e400", DIGITS, f"{DIGITS}.5")


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


@pytest.mark.parametrize("expires", NONSENSE)
async def test_a_nonsense_lease_is_released_and_retried_with_the_others(
    store: Store, redis: Redis, clock: Clock, expires: str
) -> None:
    for verb in ("release", "retry"):
        await store.produce("t", [NewMessage(f"{verb}{n}", b"{}") for n in range(3)])
        held = (await store.claim("t", 3, lease=15, holder="w1")).deliveries
        spoilt = held[1]
        await redis.hset(PREFIX + "t:processing", spoilt.id, f"{spoilt.token} normal {expires} w1 run")
        if verb == "release":
            assert await store.release("t", held) == [1, 1, 1]
        else:
            assert await store.retry("t", [(each, 0.0, b"{}") for each in held]) == [1, 1, 1]
            assert len((await store.promote()).promoted) == 3
        again = (await store.claim("t", 3, lease=15, holder="w1")).deliveries
        assert sorted(each.id for each in again) == [each.id for each in held]
        assert {each.expires_at for each in again} == {float("inf")}
        assert await store.complete("t", [(each, 0.0) for each in again]) == [1, 1, 1]


@pytest.mark.parametrize("count", [DIGITS, "1" * 15, "1" * 40])
@pytest.mark.parametrize("place", ["pending", "lease"])
async def test_a_count_of_too_many_digits_starts_again_and_its_lease_is_like_any_other(
    store: Store, redis: Redis, clock: Clock, count: str, place: str
) -> None:
    """Past 14 digits Lua writes 1.1e+14, which is no count any more."""
    await store.produce("t", [NewMessage("a", b"{}", ttl=1 if place == "pending" else None)])
    if place == "pending":
        await redis.hset(PREFIX + "payload", "a:keep", f"{count} normal inf")
    else:
        await store.claim("t", 1, lease=1, holder="w1")
        await redis.hset(PREFIX + "t:processing", "a", f"{count}@5 normal inf w1 run")
    clock.advance(2)
    (taken,) = (await store.take_over(10, lease=15, holder="m1")).taken
    assert taken.delivery.token.startswith("1@")
    assert await store.release("t", [taken.delivery]) == [1]
    (again,) = (await store.claim("t", 1, lease=15, holder="w1")).deliveries
    assert again.token.startswith("2@")
    await redis.hset(PREFIX + "payload", "a:keep", f"{count} normal inf")
    await store.release("t", [again])
    await redis.hset(PREFIX + "payload", "a:keep", f"{count} normal inf")
    (again,) = (await store.claim("t", 1, lease=15, holder="w1")).deliveries
    assert again.token.startswith("1@")


@pytest.mark.parametrize("score", ["inf", 1e300, -1e300, "-inf"])
async def test_a_due_time_beyond_all_time_is_an_answer_in_numbers(
    store: Store, redis: Redis, score: float | str
) -> None:
    """As a whole number of the protocol it would be of the other sign."""
    await redis.zadd(PREFIX + "delay_tasks", {"a": score})
    delay = await store.next_delay()
    assert delay.state == ("WAITING" if float(score) > 0 else "EXPIRED")
    assert delay.seconds > 1e9
    if delay.state == "WAITING":
        assert ((await store.promote()).wait or 0) > 1e9


@pytest.mark.parametrize("last", [DIGITS, "inf", "nan", "garbage", "1" * 17])
async def test_a_call_is_not_refused_for_the_sake_of_a_nonsense_memory(
    store: Store, redis: Redis, last: str
) -> None:
    await redis.set(PREFIX + "call=p", f"{last} 1")
    stored = await store.produce("t", [NewMessage("a", b"{}")], producer="p", call="7")
    assert stored == [Stored.STORED]


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
