"""What is due when, over all topics."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from mx_rmq import ConfigError, RedisMessageQueue
from mx_rmq.storage.contract import NewMessage
from tests.harness import command
from tests.words import PREFIX, store_of, unchanged

if TYPE_CHECKING:
    from redis.asyncio import Redis


async def all_ids(queue: RedisMessageQueue, limit: int) -> list[str]:
    found: list[str] = []
    after = None
    while True:
        schedule = await queue.schedule(limit=limit, after=after)
        assert len(schedule.messages) <= limit
        found += [facts.id for facts in schedule.messages]
        if schedule.next is None:
            return found
        after = schedule.next


async def test_messages_are_counted_by_when_they_are_due(queue: RedisMessageQueue, redis: Redis) -> None:
    for n, minutes in enumerate((10, 45, 46, 23 * 60 + 45, 25 * 60)):
        await queue.produce(f"t{n}", n, message_id=f"m{n}", delay=minutes * 60)
    await queue.produce("pending", 1)
    async with unchanged(redis):
        schedule = await queue.schedule()
    assert (schedule.step, len(schedule.due)) == (1800, 48)
    assert (schedule.overdue, schedule.later, schedule.total) == (0, 1, 5)
    assert {n: count for n, count in enumerate(schedule.due) if count} == {0: 1, 1: 2, 47: 1}
    assert [(facts.id, facts.topic, facts.state) for facts in schedule.messages] == [
        (f"m{n}", f"t{n}", "delayed") for n in range(5)
    ]
    assert (schedule.next, schedule.messages[3].payload) == (None, 3)
    week = await queue.schedule(hours=168)
    assert (week.step, week.due[0], week.later) == (12600, 3, 0)


async def test_overdue_messages_are_counted_apart(queue: RedisMessageQueue, redis: Redis) -> None:
    for n, score in enumerate(["-inf", "-1e+300", "1", "1e+300", "inf"]):
        await queue.produce("t", 1, message_id=f"m{n}", delay=60)
        await command(redis, "ZADD", f"{PREFIX}delay_tasks", score, f"m{n}")
    schedule = await queue.schedule()
    assert (schedule.overdue, sum(schedule.due), schedule.later) == (3, 0, 2)
    assert [facts.id for facts in schedule.messages] == [f"m{n}" for n in range(5)]
    assert json.dumps(schedule.as_dict())


@pytest.mark.parametrize("limit", [1, 3, 1000])
async def test_messages_are_listed_once_each_though_many_are_due_together(
    queue: RedisMessageQueue, redis: Redis, limit: int
) -> None:
    for n in range(12):
        await queue.produce(f"t{n % 3}", n, message_id=f"m{n:02}", delay=60)
        await command(redis, "ZADD", f"{PREFIX}delay_tasks", 10**13 + n // 5, f"m{n:02}")
    assert await all_ids(queue, limit) == [f"m{n:02}" for n in range(12)]


async def test_what_is_gone_or_cannot_be_read_stops_nothing(queue: RedisMessageQueue, redis: Redis) -> None:
    await store_of(redis).produce_delayed("t", [NewMessage("bad", b"\xff", delay=60)])
    await command(redis, "ZADD", f"{PREFIX}delay_tasks", 5, "stray")
    schedule = await queue.schedule()
    assert (schedule.total, [facts.id for facts in schedule.messages]) == (2, ["bad"])


async def test_it_prints_as_tables(queue: RedisMessageQueue) -> None:
    assert "messages" in str(await queue.schedule())
    await queue.produce("orders", 1, delay=3700)
    said = str(await queue.schedule())
    assert "in 1h " in said
    assert "orders" in said


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"hours": 0}, "hours must be a whole number from 1 to 168, got 0"),
        ({"hours": 169}, "hours must be"),
        ({"limit": 1001}, "limit must be"),
        ({"after": ""}, "after must be the next of an earlier schedule, got ''"),
        ({"after": "due,1"}, "after must be"),
        ({"after": "due,1,2;3,4"}, "after must be"),
        ({"after": "delayed,1,2"}, "after must be"),
        ({"after": 5}, "after must be"),
    ],
)
async def test_what_makes_no_sense_is_refused(
    queue: RedisMessageQueue, options: dict[str, Any], error: str
) -> None:
    with pytest.raises(ConfigError, match=error):
        await queue.schedule(**options)
