"""Replays and deletions of many: progress, interruption, canaries, and what others do at the same time."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from mx_rmq import CanaryDied, CanaryUnfinished, ConfigError, NotDead, RedisMessageQueue, Retry
from mx_rmq.message import Death
from mx_rmq.operating.dlq_reader import Filter, Walk
from mx_rmq.storage.dead_queries import DeadQueries, Mark
from tests.harness import command
from tests.words import PREFIX, MakeQueue, bury, eventually, in_order, is_sound

if TYPE_CHECKING:
    from redis.asyncio import Redis

BANK = Death(reason="failed", error="ConnectionError: the bank refused", kind="ConnectionError")


async def dead(
    queue: RedisMessageQueue, redis: Redis, count: int, *, topic: str = "t", **options: Any
) -> list[str]:
    ids = [str(id_) for id_ in await queue.produce_many(topic, range(count), **options)]
    while await bury(redis, topic=topic):
        pass
    return ids


# -- progress and interruption


async def test_a_replay_and_a_purge_tell_how_far_they_are(queue: RedisMessageQueue, redis: Redis) -> None:
    await dead(queue, redis, 1300)
    seen: list[int] = []
    assert await queue.dlq.replay_all(progress=seen.append) == 1300
    assert seen == sorted(set(seen))
    assert seen[-1] == 1300
    assert len(seen) > 1
    await dead(queue, redis, 0)
    seen.clear()
    assert await queue.dlq.purge(progress=seen.append) == 1300
    assert seen[-1] == 1300


async def test_a_cancelled_replay_leaves_each_message_dead_or_pending_and_can_go_on(
    queue: RedisMessageQueue, redis: Redis
) -> None:
    ids = await dead(queue, redis, 2000)
    reached: list[int] = []
    task: asyncio.Task[int]

    def stop(done: int) -> None:
        reached.append(done)
        task.cancel()

    task = asyncio.create_task(queue.dlq.replay_all(progress=stop))
    with pytest.raises(asyncio.CancelledError):
        await task

    async def settled() -> bool:
        counts = await queue.counts()
        return counts.dead + counts.topics["t"].pending == 2000

    await eventually(settled)
    assert 0 < reached[0] < 2000
    assert await is_sound(queue)
    await queue.dlq.replay_all()
    assert sorted(await in_order(redis)) == sorted(ids)


async def test_a_replay_reads_only_a_part_of_the_dlq_at_a_time(
    queue: RedisMessageQueue, redis: Redis
) -> None:
    await dead(queue, redis, 1700)
    with Walk(queue._lifecycle.shards[0].operating, Filter()) as walk:
        assert len(await walk.next(10_000)) <= 1000


# -- what others do at the same time


async def test_what_does_not_match_is_passed_even_if_it_goes_away(
    queue: RedisMessageQueue, redis: Redis
) -> None:
    """The place of a walk is a message; that may be deleted."""
    await dead(queue, redis, 700, topic="other")
    ids = await dead(queue, redis, 700)
    await command(redis, "EVAL", _SAME_TIME, 1, f"{PREFIX}dlq")  # so that topics stand in any order
    seen: list[int] = []

    with Walk(queue._lifecycle.shards[0].operating, Filter(topic="t")) as walk:
        while rows := await walk.next(50):
            seen.append(len(rows))
            place = walk._seen.id.decode() if walk._seen else ""
            assert place in ids or await queue.dlq.delete(place) in (0, 1)
            await queue.dlq.replay(*(row.id.decode() for row in rows))
    assert sum(seen) == 700
    assert sorted(await in_order(redis)) == sorted(ids)


_SAME_TIME = """
for _, id in ipairs(redis.call('ZRANGE', KEYS[1], 0, -1)) do redis.call('ZADD', KEYS[1], 5, id) end
"""


@pytest.mark.parametrize("latest", [False, True])
async def test_a_place_whose_message_is_gone_is_between_those_that_died_with_it(
    queue: RedisMessageQueue, redis: Redis, latest: bool
) -> None:
    ids = sorted(await dead(queue, redis, 30), reverse=latest)
    await command(redis, "EVAL", _SAME_TIME, 1, f"{PREFIX}dlq")
    queries = DeadQueries(queue._lifecycle.shards[0].operating)
    await queue.dlq.delete(ids[18])
    behind = await queries.marks(Mark(b"5", ids[18].encode()), 4, latest=latest)
    assert [mark.id.decode() for mark in behind] == ids[19:21]  # the others of their page stand before it
    assert [mark.id.decode() for mark in await queries.marks(behind[-1], 4, latest=latest)] == ids[21:25]
    assert await queries.marks(Mark(b"5", ids[29].encode()), 4, latest=latest) == []


async def test_those_that_cannot_be_replayed_stop_nothing(queue: RedisMessageQueue, redis: Redis) -> None:
    first = await dead(queue, redis, 600)
    await command(redis, "HDEL", f"{PREFIX}dlq_payload", *(f"{id_}:queue" for id_ in first))
    second = await dead(queue, redis, 600)
    async with asyncio.timeout(20):
        assert await queue.dlq.replay_all() == 600
    assert sorted(await in_order(redis)) == sorted(second)
    assert (await queue.counts()).dead == 600


async def test_a_message_whose_time_of_death_no_call_can_name_stops_no_purge(
    queue: RedisMessageQueue, redis: Redis
) -> None:
    first, *_ = await dead(queue, redis, 300)
    await command(redis, "ZADD", f"{PREFIX}dlq", "5.25", first)
    async with asyncio.timeout(20):
        assert await queue.dlq.purge() == 299


async def test_a_message_that_dies_after_a_walk_began_is_not_met(
    queue: RedisMessageQueue, redis: Redis
) -> None:
    await dead(queue, redis, 300)
    met = 0
    with Walk(queue._lifecycle.shards[0].operating, Filter(), "ids") as walk:
        await walk.begin()
        (late,) = await dead(queue, redis, 1)
        await command(redis, "ZADD", f"{PREFIX}dlq", "INCR", 1000, late)
        while rows := await walk.next(200):
            met += len(rows)
            await queue.dlq.delete(*(row.id.decode() for row in rows))
    assert met == 300
    assert [letter.id for letter in (await queue.dlq.list()).letters] == [late]


async def test_a_message_that_dies_again_while_a_walk_is_on_its_way_to_it_is_not_met(
    queue: RedisMessageQueue, redis: Redis
) -> None:
    ids = await dead(queue, redis, 30)
    with Walk(queue._lifecycle.shards[0].operating, Filter(), "ids") as walk:
        await walk.begin()
        await walk._step()
        await command(redis, "ZADD", f"{PREFIX}dlq", "INCR", 1000, ids[3])
        met = [row.id.decode() for row in await walk.next(100)]
    assert sorted(met) == sorted({*ids} - {ids[3]})


async def test_a_replay_by_id_ends_at_one_that_is_not_dead_though_the_next_were_read(
    queue: RedisMessageQueue, redis: Redis
) -> None:
    ids = await dead(queue, redis, 1700)
    await queue.dlq.delete(ids[700])
    with pytest.raises(NotDead, match=ids[700]):
        await queue.dlq.replay(*ids)
    assert await in_order(redis) == ids[:700]
    assert (await queue.counts()).dead == 999


async def test_an_error_with_signs_of_json_in_it_is_found(queue: RedisMessageQueue, redis: Redis) -> None:
    said = 'KeyError: "a\\b" of \x1f café'
    await queue.produce("t", 1, message_id="A1")
    await bury(redis, Death(reason="failed", error=said, kind="KeyError"))
    await dead(queue, redis, 3)
    for word in ('"a\\b"', "\x1f", "café", "KeyError", "of"):
        page = await queue.dlq.list(error=word)
        assert [letter.id for letter in page.letters] == ["A1"], word
    assert await queue.dlq.replay_all(error='"a\\b"') == 1


# -- canaries


def failing(mq: RedisMessageQueue, *bad: int) -> list[int]:
    """A handler that fails for some payloads; returns what it ran."""
    ran: list[int] = []

    @mq.handler("t", retry=Retry(1))
    async def handle(payload: int) -> None:
        ran.append(payload)
        if payload in bad:
            raise ValueError(f"no {payload}")

    return ran


async def test_the_rest_follows_canaries_that_did_not_die(make_queue: MakeQueue, redis: Redis) -> None:
    mq = make_queue(server_check="off")
    ran = failing(mq)
    async with mq:
        await dead(mq, redis, 60)
        await mq.start()
        seen: list[int] = []
        assert await mq.dlq.replay_all(canary=10, progress=seen.append) == 60
        assert seen[0] == 10
        await mq.drain()
        assert sorted(ran) == list(range(60))
        assert set(ran[:10]) == set(range(10)), "the first deaths are the canaries"


async def test_nothing_follows_a_canary_that_died_again(make_queue: MakeQueue, redis: Redis) -> None:
    mq = make_queue(server_check="off")
    ran = failing(mq, 3, 4)
    async with mq:
        ids = await dead(mq, redis, 60)
        await mq.start()
        with pytest.raises(
            CanaryDied, match="2 of 10 canaries died again, nothing else was replayed; "
        ) as caught:
            await mq.dlq.replay_all(canary=10)
        assert caught.value.replayed == tuple(ids[:10])
        assert set(caught.value.dead) == {ids[3], ids[4]}
        assert {letter.error for letter in caught.value.letters} == {"ValueError: no 3", "ValueError: no 4"}
        assert sorted(ran) == list(range(10))
        assert (await mq.counts()).dead == 52


async def test_a_canary_that_does_not_end_in_time_says_why(queue: RedisMessageQueue, redis: Redis) -> None:
    ids = await dead(queue, redis, 5)
    with pytest.raises(CanaryUnfinished, match=r"2 of 2 canaries did not end within 0\.05 s") as caught:
        await queue.dlq.replay_all(canary=2, canary_timeout=0.05)
    assert caught.value.replayed == tuple(ids[:2])
    assert set(caught.value.waiting) == set(ids[:2])
    assert "no live worker has a handler for the topic" in str(caught.value)
    assert await in_order(redis) == ids[:2]
    assert (await queue.counts()).dead == 3


async def test_fewer_than_the_canaries_are_all_of_them(make_queue: MakeQueue, redis: Redis) -> None:
    mq = make_queue(server_check="off")
    failing(mq)
    async with mq:
        await dead(mq, redis, 3)
        await mq.start()
        assert await mq.dlq.replay_all(canary=10) == 3
        assert await mq.dlq.replay_all(canary=10) == 0


async def test_canaries_are_taken_from_what_matches(queue: RedisMessageQueue, redis: Redis) -> None:
    await dead(queue, redis, 300)
    await queue.produce("t", 1, message_id="bank")
    await bury(redis, BANK)
    with pytest.raises(CanaryUnfinished):
        await queue.dlq.replay_all(error="the bank", canary=3, canary_timeout=0.01)
    assert await in_order(redis) == ["bank"]


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"canary": 0}, "canary"),
        ({"canary": True}, "canary"),
        ({"canary": 1, "canary_timeout": -1}, "canary_timeout"),
    ],
)
async def test_a_canary_that_makes_no_sense_is_refused(
    queue: RedisMessageQueue, redis: Redis, options: dict[str, Any], what: str
) -> None:
    await dead(queue, redis, 1)
    with pytest.raises(ConfigError, match=f"{what} must be"):
        await queue.dlq.replay_all(**options)
    assert (await queue.counts()).dead == 1


# -- limits


@pytest.mark.parametrize("name", ["topic", "error", "group"])
async def test_an_empty_filter_is_refused(queue: RedisMessageQueue, redis: Redis, name: str) -> None:
    await dead(queue, redis, 3)
    given: Any = {name: ""}
    for act in (queue.dlq.list, queue.dlq.count, queue.dlq.replay_all, queue.dlq.purge):
        with pytest.raises(ConfigError, match=f"{name} must be a text, or None for any, got ''"):
            await act(**given)
    with pytest.raises(ConfigError, match="must be a text"):
        [letter async for letter in queue.dlq.export(**given)]
    assert (await queue.counts()).dead == 3


async def test_a_slow_rate_does_not_wait_after_the_last(queue: RedisMessageQueue, redis: Redis) -> None:
    await dead(queue, redis, 1)
    async with asyncio.timeout(10):
        assert await queue.dlq.replay_all(rate=0.001) == 1


async def test_there_are_not_more_canaries_than_one_call_takes(
    queue: RedisMessageQueue, redis: Redis
) -> None:
    with pytest.raises(ConfigError, match="canary must be a whole number from 1 to 1000"):
        await queue.dlq.replay_all(canary=1001)
