"""A full server: nothing new is stored, and everything that makes room or saves a message still works."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

from mx_rmq.errors import OutOfMemory
from mx_rmq.receipt import Stored
from mx_rmq.storage.contract import Delivery, NewMessage, Settled
from tests.scripts.every_script import CALLS, healthy, rich_state
from tests.scripts.states import NOW, delayed, everything, pending, seed
from tests.words import out_of_memory, unchanged

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from mx_rmq.storage.store import Store
    from tests.harness import Clock

REFUSED = {
    "produce_normal_message",
    "produce_one_message",
    "produce_delay_message",
    "restore_dlq",
}
"""What begins by storing something. All others begin by a removal, after which a script may pass."""

MANY = [f"m{n}" for n in range(1000)]


@pytest.mark.parametrize("script", sorted(REFUSED))
async def test_what_would_store_something_new_is_refused_whole(
    script: str, store: Store, redis: Redis, clock: Clock
) -> None:
    await seed(redis, rich_state())
    async with out_of_memory(redis), unchanged(redis):
        with pytest.raises(OutOfMemory, match=f"{script}: the server reached its maxmemory"):
            await CALLS[script](store, clock)


@pytest.mark.parametrize("script", sorted(CALLS.keys() - REFUSED))
async def test_every_other_transition_passes_whole(
    script: str, store: Store, redis: Redis, clock: Clock
) -> None:
    """The answer and the state are those of a server with room, counters and wake tokens included."""
    answer, state = await healthy(script, store, redis, clock)
    async with out_of_memory(redis):
        assert await CALLS[script](store, clock) == answer
    assert await everything(redis) == state


async def test_a_poisoned_message_is_still_put_off(store: Store, redis: Redis) -> None:
    """Were it refused, the poisoned one would stay in front and stop monitor and scheduler for good."""
    await seed(redis, pending("a", expires=NOW), delayed("b", due=NOW))
    await redis.hdel("mx-rmq:{q}:payload", "a:queue", "b:queue")
    async with out_of_memory(redis):
        assert (await store.take_over(10, lease=15, holder="m")).poisoned == ["a"]
        assert (await store.promote()).poisoned == ["b"]
    state = await everything(redis)
    assert (state["all_expire_monitor"], state["delay_tasks"]) == ({"a": NOW + 60_000}, {"b": NOW + 60_000})


async def test_a_worker_can_still_say_that_it_lives(store: Store, redis: Redis, clock: Clock) -> None:
    """Even where there is no silent one whose removal would open the door."""
    async with out_of_memory(redis):
        await CALLS["register_worker"](store, clock)
    assert (await everything(redis)).keys() == {"workers", "workers_seen"}


async def test_whole_batches_pass_too(store: Store, redis: Redis, clock: Clock) -> None:
    """A thousand messages are claimed, extended, retried, promoted, taken over, released and completed."""
    assert (
        await store.produce("t", [NewMessage(id_, b"x", ttl=3600.0) for id_ in MANY])
        == [Stored.STORED] * 1000
    )
    async with out_of_memory(redis):
        first = (await store.claim("t", 1000, lease=15, holder="w")).deliveries
        assert await store.extend("t", first, lease=15) == [Settled.DONE] * 1000
        assert await store.retry("t", [(each, 0.0, b"y") for each in first]) == [Settled.DONE] * 1000
        assert len((await store.promote()).promoted) == 1000
        assert len((await store.claim("t", 1000, lease=15, holder="w")).deliveries) == 1000
        clock.advance(15)
        taken = [row.delivery for row in (await store.take_over(1000, lease=15, holder="m")).taken]
        assert await store.release("t", taken) == [Settled.DONE] * 1000
        again = (await store.claim("t", 1000, lease=15, holder="w")).deliveries
        assert await store.complete("t", [(each, 0.0) for each in again]) == [Settled.DONE] * 1000
    assert (await everything(redis)).keys() == {"topics", "counters", "fence"}


async def test_a_full_server_becomes_usable_again_by_the_work_of_its_workers(
    store: Store, redis: Redis
) -> None:
    room = 2 * 1024 * 1024
    used = (await redis.info("memory"))["used_memory"]
    body = b"x" * (room // 20)
    produced = 0
    await redis.config_set("maxmemory", used + room)
    try:
        with suppress(OutOfMemory):
            while produced < 40:
                await store.produce("t", [NewMessage(f"m{produced}", body)])
                produced += 1
        assert 10 < produced < 40
        done: list[Delivery] = []
        while claim := (await store.claim("t", 3, lease=15, holder="w")).deliveries:
            assert await store.complete("t", [(each, 0.0) for each in claim]) == [Settled.DONE] * len(claim)
            done += claim
        assert [each.id for each in done] == [f"m{n}" for n in range(produced)]
        assert await store.produce("t", [NewMessage(f"m{produced}", body)]) == [Stored.STORED]
    finally:
        await redis.config_set("maxmemory", "0")
