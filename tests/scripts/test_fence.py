"""The fence: a number that grows with every delivery of an id, whatever happens to the id or the clock."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from mx_rmq.storage.contract import Cancelled, Replay, Replayed, Settled
from tests.harness import START_US
from tests.scripts.helpers import TOPIC, claim, produce, take_over
from tests.words import PREFIX, out_of_memory, unchanged

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from mx_rmq.storage.store import Store
    from tests.harness import Clock

FENCE = PREFIX + "fence"
HIGHEST = 2**53 - 1


async def fence_of(store: Store, id_: str = "m1") -> int:
    """The fence of the next delivery of a message that is pending."""
    (fence,) = [delivery.fence for delivery in await claim(store) if delivery.id == id_]
    return fence


@pytest.mark.parametrize("step", [0.0, -0.000_001, -3600.0, -10 * 365 * 86400.0])
async def test_it_grows_through_every_life_of_an_id_however_the_clock_is_stepped(
    store: Store, clock: Clock, step: float
) -> None:
    """Retried, released, taken over, replayed, cancelled and produced again, completed and produced again."""
    fences = []
    await produce(store, "m1")

    async def next_one() -> None:
        clock.advance(step)
        (delivery,) = await claim(store)
        fences.append(delivery.fence)
        held[:] = [delivery]

    held = await claim(store)
    fences.append(held[0].fence)
    await store.release(TOPIC, held)
    await next_one()
    await store.retry(TOPIC, [(held[0], 0.0, b"again")])
    await store.promote()
    await next_one()
    (taken,) = await take_over(store, clock)
    fences.append(taken.fence)
    await store.move_to_dlq(TOPIC, [(taken, b"", b"why")])
    assert await store.replay([Replay("m1")]) == [Replayed.REPLAYED]
    await next_one()
    assert await store.complete(TOPIC, [(held[0], 0.0)]) == [Settled.DONE]
    await produce(store, "m1")
    assert await store.cancel(["m1"]) == [Cancelled.CANCELLED]
    await produce(store, "m1", topic="mails")
    clock.advance(step)
    (delivery,) = await claim(store, topic="mails")
    fences.append(delivery.fence)
    assert len(fences) == 6
    assert fences == sorted(set(fences))


async def test_it_is_the_time_of_the_claim_while_the_clock_goes_forward(store: Store, clock: Clock) -> None:
    await produce(store, "m1", "m2")
    assert {delivery.fence for delivery in await claim(store)} == {clock.us}


async def test_it_is_one_more_than_the_last_while_the_clock_is_behind(store: Store, clock: Clock) -> None:
    await produce(store, "m1", "m2", "m3")
    (first,) = await claim(store, 1)
    clock.advance(-60)
    assert [(await claim(store, 1))[0].fence - first.fence for _ in range(2)] == [1, 2]
    clock.advance(120)
    await produce(store, "m4")
    assert await fence_of(store, "m4") == clock.us


async def test_what_leases_nothing_gives_none(store: Store, redis: Redis) -> None:
    await produce(store, "m1")
    async with unchanged(redis):
        assert await claim(store, 0) == []
        assert (await store.take_over(10, lease=15, holder="m")).taken == []
    assert await redis.get(FENCE) is None


@pytest.mark.parametrize(
    "text", ["", "garbage", "-5", "1e15", "inf", "nan", "0x1p9", "9" * 400, "9" * 16, str(HIGHEST), "\xff"]
)
async def test_text_that_is_no_fence_counts_for_nothing(
    store: Store, redis: Redis, clock: Clock, text: str
) -> None:
    await redis.set(FENCE, text)
    await produce(store, "m1")
    assert await fence_of(store) == clock.us
    assert await redis.get(FENCE) == str(clock.us).encode()


async def test_a_key_of_another_type_is_replaced(store: Store, redis: Redis, clock: Clock) -> None:
    await redis.rpush(FENCE, "something else")
    await produce(store, "m1")
    assert await fence_of(store) == clock.us
    assert await redis.get(FENCE) == str(clock.us).encode()


async def test_the_highest_one_is_below_two_to_the_53rd(store: Store, redis: Redis, clock: Clock) -> None:
    """So that every language and database has it exactly."""
    await redis.set(FENCE, str(HIGHEST - 2))
    await produce(store, "m1", "m2", "m3")
    fences = [(await claim(store, 1))[0].fence for _ in range(3)]
    assert fences == [HIGHEST - 1, HIGHEST, clock.us]
    assert fences[2] > START_US


async def test_a_full_server_still_gives_one(store: Store, redis: Redis, clock: Clock) -> None:
    await produce(store, "m1")
    async with out_of_memory(redis):
        first = await fence_of(store)
        (taken,) = await take_over(store, clock)
    assert first < taken.fence == clock.us
    assert await redis.get(FENCE) == str(clock.us).encode()
