"""Dead messages leave as JSON and come back as they were, to the byte."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from mx_rmq import ConfigError, InvalidName, MessageTooLarge, RedisMessageQueue, RestoreResult
from mx_rmq.message import Death
from mx_rmq.storage.contract import NewMessage
from tests.harness import read_state
from tests.words import MakeQueue, bury, claim, is_sound, store_of, unchanged

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from redis.asyncio import Redis

    from mx_rmq import DeadLetter


async def exported(queue: RedisMessageQueue, **options: Any) -> list[dict[str, Any]]:
    """The records as a file has them."""
    return [json.loads(json.dumps(letter.as_dict())) async for letter in queue.dlq.export(**options)]


async def some(queue: RedisMessageQueue, redis: Redis) -> None:
    """A message with everything, one of another topic, and bytes that are no text."""
    options: dict[str, Any] = {"priority": "high", "ttl": 60, "dedup_for": 5, "headers": {"h": "é"}}
    await queue.produce("t", {"a": [1.50, 2**60, "é\u2028"]}, message_id="A1", **options)
    await bury(redis, Death(reason="failed", error="ValueError: no", kind="ValueError", place="a.py:1 in b"))
    await queue.produce("u", None, message_id="B1")
    await bury(redis, Death(reason="crashed", error="gone"), "u")
    await store_of(redis).produce("t", [NewMessage("bad", b"\xff not a message \x00")])
    (delivery,) = await claim(redis)
    await store_of(redis).move_to_dlq("t", [(delivery, b"", b'{"reason":"unparsable"}')])


def of_the_dlq(state: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in state.items() if key.startswith("dlq")}


async def test_what_was_exported_and_purged_comes_back_to_the_byte(
    queue: RedisMessageQueue, redis: Redis
) -> None:
    await some(queue, redis)
    before = of_the_dlq(await read_state(redis, tools=True))
    bodies = {letter.id: letter.body async for letter in queue.dlq.export()}
    records = await exported(queue)
    assert await queue.dlq.purge() == 3
    assert await queue.dlq.restore(records) == RestoreResult(restored=3)
    assert of_the_dlq(await read_state(redis, tools=True)) == before
    assert {letter.id: letter.body async for letter in queue.dlq.export()} == bodies
    assert await is_sound(queue)
    assert await queue.dlq.replay("A1", "B1", "bad") == 3


async def test_it_comes_back_into_another_queue_too(
    queue: RedisMessageQueue, make_queue: MakeQueue, redis: Redis
) -> None:
    await some(queue, redis)
    async with make_queue(name="other", server_check="off") as other:
        assert (await other.dlq.restore(queue.dlq.export())).restored == 3
        assert [letter async for letter in other.dlq.export()] == [
            letter async for letter in queue.dlq.export()
        ]
        assert await is_sound(other)
        assert set((await other.counts()).topics) == {"t", "u"}
        assert (await other.counts()).topics["t"].in_dlq == 2
        await other.dlq.purge()


async def test_the_first_death_comes_first_and_filters_count(queue: RedisMessageQueue, redis: Redis) -> None:
    await some(queue, redis)
    assert [record["id"] for record in await exported(queue, topic="t")] == ["A1", "bad"]
    assert [record["id"] for record in await exported(queue, error="crashed")] == ["B1"]
    assert await exported(queue, topic="nothing") == []


async def test_thousands_are_exported_each_once(queue: RedisMessageQueue, redis: Redis) -> None:
    ids = await queue.produce_many("t", range(2300))
    while await bury(redis):
        pass
    records = await exported(queue)
    assert sorted(record["id"] for record in records) == sorted(ids)
    seen: list[int] = []
    await queue.dlq.purge()
    assert (await queue.dlq.restore(records, progress=seen.append)).restored == 2300
    assert seen == sorted(seen)
    assert seen[-1] == 2300


async def test_what_is_live_or_dead_is_left_as_it_is(queue: RedisMessageQueue, redis: Redis) -> None:
    await some(queue, redis)
    records = await exported(queue)
    await queue.dlq.replay("A1")
    await queue.dlq.delete("B1")
    state = await read_state(redis)
    assert await queue.dlq.restore(records) == RestoreResult(restored=1, live=1, dead=1)
    after = await read_state(redis)
    assert after["t:pending:high"] == state["t:pending:high"]
    async with unchanged(redis):
        assert await queue.dlq.restore(records) == RestoreResult(restored=0, live=1, dead=2)


async def test_letters_come_from_an_async_iterator_or_a_list(queue: RedisMessageQueue, redis: Redis) -> None:
    await some(queue, redis)
    letters = [letter async for letter in queue.dlq.export()]
    await queue.dlq.purge()

    async def again() -> AsyncIterator[DeadLetter]:
        for letter in letters:
            yield letter

    assert (await queue.dlq.restore(again())).restored == 3
    assert (await queue.dlq.restore(letters)).dead == 3
    assert await queue.dlq.restore([]) == RestoreResult()


GOOD = {"id": "A1", "topic": "t", "died_at": "2026-01-01T00:00:00+00:00", "reason": "failed", "body": "x"}


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"died_at": "yesterday"}, "died_at of record 2 must be a time in ISO form, or seconds since 1970"),
        ({"died_at": None}, "died_at of record 2"),
        ({"died_at": -5}, "died_at of record 2"),
        ({"reason": "bored"}, "record 2 must say why the message died"),
        ({"reason": None}, "record 2 must say why the message died"),
        ({"body": ""}, "body of record 2 must be the stored message as text, or body_base64"),
        ({"body": 5}, "body of record 2"),
        ({"body": "", "body_base64": "&&&"}, "body of record 2"),
    ],
)
async def test_a_record_that_cannot_be_read_is_named(
    queue: RedisMessageQueue, redis: Redis, change: dict[str, Any], what: str
) -> None:
    async with unchanged(redis):
        with pytest.raises(ConfigError, match=what):
            await queue.dlq.restore([GOOD, GOOD | {"id": "A2"} | change])


async def test_a_record_is_checked_as_a_message_is(queue: RedisMessageQueue, redis: Redis) -> None:
    async with unchanged(redis):
        with pytest.raises(InvalidName):
            await queue.dlq.restore([GOOD | {"id": "A 1"}])
        with pytest.raises(InvalidName):
            await queue.dlq.restore([GOOD | {"topic": None}])
        with pytest.raises(MessageTooLarge):
            await queue.dlq.restore([GOOD | {"body": "x" * 1_100_000}])
        with pytest.raises(ConfigError, match="record 1 must be a DeadLetter or its as_dict"):
            await queue.dlq.restore([5])  # type: ignore[list-item]


async def test_a_time_of_death_may_be_seconds(queue: RedisMessageQueue) -> None:
    assert (await queue.dlq.restore([GOOD | {"died_at": 5.25}])).restored == 1
    assert (await queue.dlq.get("A1")).died_at == 5.25
