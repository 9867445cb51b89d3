from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from mx_rmq.errors import StoreError, WrongKeyType
from mx_rmq.operating.audit import audit
from mx_rmq.storage.contract import Replay
from tests.harness import command, read_state
from tests.scripts.helpers import TOPIC, claim, count_of, delay, lease, names, produce, spoil
from tests.words import PREFIX, out_of_memory, unchanged

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from mx_rmq.storage.store import Store
    from tests.harness import Clock

DAY = 86400.0


async def use(store: Store, topic: str = TOPIC) -> None:
    """Produce and complete a message."""
    await store.complete(topic, [(each, 0.0) for each in await lease(store, "m1", topic=topic)])


async def forget(store: Store, *topics: str, idle: float = DAY) -> list[str]:
    return sorted(await store.forget(topics or [TOPIC], idle=idle))


async def test_a_topic_is_forgotten_when_it_has_been_unused_for_a_day(
    store: Store, redis: Redis, clock: Clock
) -> None:
    """Nothing is left of it but what all topics share."""
    await use(store)
    assert await forget(store) == []
    assert await count_of(redis) == {
        "produced": 1,
        "completed": 1,
        "idle_total": 2,
        "idle_since": clock.ms,
    }
    clock.advance(DAY - 1)
    async with unchanged(redis):
        assert await forget(store) == []
    clock.advance(1)
    assert await forget(store) == [TOPIC]
    assert set(await read_state(redis, tools=True)) == {"fence"}
    async with unchanged(redis):
        assert await forget(store) == []


async def test_what_happens_between_two_looks_starts_the_day_again(
    store: Store, redis: Redis, clock: Clock
) -> None:
    await use(store)
    await forget(store)
    clock.advance(DAY)
    await use(store)
    assert await forget(store) == []
    clock.advance(DAY - 1)
    assert await forget(store) == []
    clock.advance(1)
    assert await forget(store) == [TOPIC]


async def test_a_produce_just_before_the_look_keeps_the_topic_and_one_behind_it_brings_it_back(
    store: Store, redis: Redis, clock: Clock
) -> None:
    await use(store)
    await forget(store)
    clock.advance(DAY)
    await produce(store, "m2")
    async with unchanged(redis):
        assert await forget(store) == []
    await store.complete(TOPIC, [(each, 0.0) for each in await claim(store)])
    await forget(store)
    clock.advance(DAY)
    assert await forget(store) == [TOPIC]
    await produce(store, "m3")
    assert (await read_state(redis, tools=True))["topics"] == {TOPIC}
    assert await count_of(redis) == {"produced": 1}
    assert [delivery.id for delivery in await claim(store)] == ["m3"]


async def test_produces_and_looks_at_the_same_time_lose_no_message(store: Store, redis: Redis) -> None:
    """With no time between the looks, so that every one of them forgets what is empty."""
    ids = names(200)

    async def look() -> None:
        for _ in range(150):
            await store.forget([TOPIC], idle=0.0)

    async def work() -> list[str]:
        ran = []
        for id_ in ids:
            await produce(store, id_)
            for delivery in await claim(store):
                ran.append(delivery.id)
                await store.complete(TOPIC, [(delivery, 0.0)])
        return ran

    ran, *_ = await asyncio.gather(work(), look(), look())
    assert ran == ids
    report = await audit(store)
    assert report.clean


@pytest.mark.parametrize("place", ["pending", "processing", "delayed", "dead", "paused", "stale"])
async def test_a_topic_that_still_has_something_is_not_forgotten(
    store: Store, redis: Redis, clock: Clock, place: str
) -> None:
    match place:
        case "pending":
            await produce(store, "m1")
        case "processing":
            await lease(store, "m1")
        case "delayed":
            await delay(store, "m1", delay=10 * DAY)
        case "dead":
            await store.move_to_dlq(TOPIC, [(each, b"", b"why") for each in await lease(store, "m1")])
        case "paused":
            await use(store)
            await store.pause(TOPIC)
        case "stale":
            await produce(store, *names(3))
            await store.cancel(["m2"])
            await store.cancel(["m1", "m3"])
            await redis.rpush(f"{PREFIX}{TOPIC}:pending", "m2")
    await forget(store)
    clock.advance(DAY)
    await forget(store)
    clock.advance(DAY)
    assert await forget(store) == []
    assert TOPIC in (await read_state(redis, tools=True))["topics"]


async def test_a_dead_message_that_was_replayed_or_deleted_does_not_keep_its_topic(
    store: Store, redis: Redis, clock: Clock
) -> None:
    died = await lease(store, "m1", "m2")
    await store.move_to_dlq(TOPIC, [(each, b"", b"why") for each in died])
    await store.replay([Replay("m1")])
    await store.delete_dead(["m2"])
    await store.complete(TOPIC, [(each, 0.0) for each in await claim(store)])
    await forget(store)
    clock.advance(DAY)
    assert await forget(store) == [TOPIC]


async def test_a_topic_that_is_not_known_leaves_no_note(store: Store, redis: Redis) -> None:
    """Two workers may look at the same time, and one of them forgets it."""
    async with unchanged(redis):
        assert await forget(store, "never", idle=0.0) == []


async def test_a_name_that_another_program_added_is_forgotten_too(
    store: Store, redis: Redis, clock: Clock
) -> None:
    await redis.sadd(PREFIX + "topics", "stranger")
    await forget(store, "stranger")
    clock.advance(DAY)
    assert await forget(store, "stranger") == ["stranger"]
    assert await read_state(redis, tools=True) == {}


async def test_a_clock_that_was_put_back_starts_the_day_again(
    store: Store, redis: Redis, clock: Clock
) -> None:
    await use(store)
    await forget(store)
    clock.advance(-10 * DAY)
    await forget(store)
    clock.advance(DAY)
    assert await forget(store) == [TOPIC]


@pytest.mark.parametrize("text", ["x", "9" * 400, "nan", ""])
@pytest.mark.parametrize("field", ["produced", "idle_total", "idle_since", "adjusted"])
async def test_a_counter_that_is_no_number_forgets_nothing_too_early(
    store: Store, redis: Redis, clock: Clock, field: str, text: str
) -> None:
    await use(store)
    await forget(store)
    await redis.hset(PREFIX + "counters", f"{TOPIC}:{field}", text)
    clock.advance(DAY)
    assert await forget(store) == []


@pytest.mark.parametrize("part", ["pending:high", "pending", "pending:low", "processing"])
async def test_a_topic_with_a_key_of_another_type_is_kept(
    store: Store, redis: Redis, clock: Clock, part: str
) -> None:
    await use(store)
    await use(store, "mails")
    await forget(store, TOPIC, "mails")
    await command(redis, "SET", f"{PREFIX}{TOPIC}:{part}", "something else")
    clock.advance(DAY)
    assert await forget(store, TOPIC, "mails") == ["mails"]


async def test_a_key_of_another_type_is_named_or_keeps_everything(
    store: Store, redis: Redis, clock: Clock
) -> None:
    await use(store)
    await forget(store)
    clock.advance(DAY)
    await spoil(redis, "paused")
    async with unchanged(redis):
        with pytest.raises(WrongKeyType, match="paused"):
            await forget(store)
    await redis.delete(PREFIX + "paused")
    for key in ("topics", "counters"):
        await spoil(redis, key)
        async with unchanged(redis):
            assert await forget(store) == []


async def test_a_server_without_memory_still_notes_and_forgets(
    store: Store, redis: Redis, clock: Clock
) -> None:
    await use(store)
    async with out_of_memory(redis):
        await forget(store)
        clock.advance(DAY)
        assert await forget(store) == [TOPIC]


async def test_a_thousand_in_one_call_pass_and_one_more_is_refused(
    store: Store, redis: Redis, clock: Clock
) -> None:
    topics = [f"t{n}" for n in range(1001)]
    await redis.sadd(PREFIX + "topics", *topics)
    await store.forget(topics[:1000], idle=DAY)
    clock.advance(DAY)
    async with unchanged(redis):
        with pytest.raises(StoreError, match="TOOMANY 1001"):
            await store.forget(topics, idle=DAY)
    assert len(await store.forget(topics[:1000], idle=DAY)) == 1000
    assert await read_state(redis, tools=True) == {"topics": {"t1000"}}
