"""Groups of dead messages: counted by the scripts, told in one or two round trips, used as filters."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from mx_rmq import RedisMessageQueue, Retry
from mx_rmq.message import Death
from tests.harness import command
from tests.words import PREFIX, bury, in_order, is_sound

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from mx_rmq import DeadGroup
    from mx_rmq.storage.embedded import EmbeddedServer


async def die(queue: RedisMessageQueue, redis: Redis, id_: str, error: str, topic: str = "t") -> None:
    await queue.produce(topic, {"of": id_}, message_id=id_)
    await bury(redis, Death(reason="failed", error=f"ValueError: {error}", kind="ValueError"), topic)


async def four(queue: RedisMessageQueue, redis: Redis) -> tuple[DeadGroup, DeadGroup]:
    """Three of one cause, one of another."""
    for n in range(3):
        await die(queue, redis, f"A{n}", f"order {n} not found")
    await die(queue, redis, "B1", "no bank")
    larger, smaller = await queue.dlq.groups()
    return larger, smaller


async def ungroup(redis: Redis, *ids: str) -> None:
    """As messages are that died before there were groups."""
    await command(redis, "HDEL", f"{PREFIX}dlq_payload", *(f"{id_}:group" for id_ in ids))
    await command(redis, "DEL", f"{PREFIX}dlq_groups")


async def test_errors_that_differ_in_numbers_are_one_group(queue: RedisMessageQueue, redis: Redis) -> None:
    larger, smaller = await four(queue, redis)
    assert (larger.topic, larger.error, larger.count) == ("t", "ValueError", 3)
    assert larger.text == "order 0 not found"
    assert (smaller.count, smaller.text) == (1, "no bank")
    assert larger.id != smaller.id


async def test_messages_are_listed_replayed_and_purged_by_group(
    queue: RedisMessageQueue, redis: Redis
) -> None:
    larger, smaller = await four(queue, redis)
    page = await queue.dlq.list(group=smaller.id)
    assert [letter.id for letter in page.letters] == ["B1"]
    assert page.letters[0].group == smaller.id
    assert [letter.id async for letter in queue.dlq.export(group=larger.id)] == ["A0", "A1", "A2"]
    assert await queue.dlq.replay_all(group="0000000000000000") == 0
    assert await queue.dlq.purge(group=smaller.id) == 1
    assert [group.id for group in await queue.dlq.groups()] == [larger.id]
    assert await queue.dlq.replay_all(group=larger.id) == 3
    assert await in_order(redis) == ["A0", "A1", "A2"]
    assert await queue.dlq.groups() == []


async def test_a_group_forgets_those_that_left_it(queue: RedisMessageQueue, redis: Redis) -> None:
    await four(queue, redis)
    await queue.dlq.delete("A0")
    await queue.dlq.replay("A1")
    await queue.dlq.trim(max_count=1)
    assert [(group.text, group.count) for group in await queue.dlq.groups()] == [("no bank", 1)]
    assert await is_sound(queue)


async def test_those_that_died_before_there_were_groups_are_told(
    queue: RedisMessageQueue, redis: Redis
) -> None:
    await four(queue, redis)
    await ungroup(redis, "A0", "A1", "A2", "B1")
    await die(queue, redis, "A3", "order 3 not found")
    groups = await queue.dlq.groups()
    assert [group.count for group in groups] == [1]
    assert groups.uncounted == 4
    assert "4 more in no group; audit(repair=True) counts them" in str(groups)
    assert json.loads(json.dumps(groups.as_dict()))["uncounted"] == 4
    (report,) = await queue.audit()
    assert (report.ungrouped, report.findings) == (4, [])
    assert "4 in no group" in str(report)


async def test_a_repair_counts_those_that_died_before_there_were_groups(
    queue: RedisMessageQueue, redis: Redis
) -> None:
    before = await four(queue, redis)
    await ungroup(redis, "A0", "A1", "A2", "B1")
    (report,) = await queue.audit(repair=True)
    assert (report.ungrouped, report.findings) == (4, [])
    groups = await queue.dlq.groups()
    assert [(group.id, group.count) for group in groups] == [(group.id, group.count) for group in before]
    assert groups.uncounted == 0
    assert groups[0].first_at == before[0].first_at
    assert await is_sound(queue)


async def test_only_ungrouped_letters_are_told_by_their_number(
    queue: RedisMessageQueue, redis: Redis
) -> None:
    await die(queue, redis, "A1", "no")
    await ungroup(redis, "A1")
    assert str(await queue.dlq.groups()) == "1 more in no group; audit(repair=True) counts them"


async def set_count(redis: Redis, id_: str, value: str) -> None:
    await command(redis, "HSET", f"{PREFIX}dlq_groups", f"{id_}:count", value)


@pytest.mark.parametrize("said", ["7", "1", "0", "nonsense", "-3", "9" * 30])
async def test_the_audit_finds_a_wrong_count_and_mends_it(
    queue: RedisMessageQueue, redis: Redis, said: str
) -> None:
    larger, _ = await four(queue, redis)
    await set_count(redis, larger.id, said)
    for repair in (False, True):
        (report,) = await queue.audit(repair=repair)
        (finding,) = report.findings
        assert (finding.kind, finding.what, finding.repaired) == ("groups-disagree", larger.id, repair)
        assert finding.detail.endswith("found 3")
    assert await is_sound(queue)
    mended = (await queue.dlq.groups())[0]
    assert (mended.id, mended.count) == (larger.id, 3)


async def test_the_audit_mends_groups_that_are_gone(queue: RedisMessageQueue, redis: Redis) -> None:
    """What another program put in their place is renamed."""
    before = await four(queue, redis)
    await command(redis, "SET", f"{PREFIX}dlq_groups", "something else")
    await queue.audit(repair=True)
    after = await queue.dlq.groups()
    assert [(group.id, group.count, group.error) for group in after] == [
        (group.id, group.count, group.error) for group in before
    ]
    assert await is_sound(queue)


async def test_the_audit_removes_a_group_that_no_message_is_in(
    queue: RedisMessageQueue, redis: Redis
) -> None:
    before = await four(queue, redis)
    for part, value in (("count", "2"), ("label", "{}"), ("first_at", "1"), ("last_at", "2")):
        await command(redis, "HSET", f"{PREFIX}dlq_groups", f"0123456789abcdef:{part}", value)
    assert len(await queue.dlq.groups()) == 3
    (report,) = await queue.audit(repair=True)
    assert [finding.kind for finding in report.findings] == ["groups-disagree"]
    assert await queue.dlq.groups() == list(before)


async def test_a_group_without_a_label_is_told_and_gets_one_back(
    queue: RedisMessageQueue, redis: Redis
) -> None:
    larger, _ = await four(queue, redis)
    await command(redis, "HDEL", f"{PREFIX}dlq_groups", f"{larger.id}:label")
    group = next(group for group in await queue.dlq.groups() if group.id == larger.id)
    assert (group.error, group.count) == ("unknown", 3)
    await queue.audit(repair=True)
    group = next(group for group in await queue.dlq.groups() if group.id == larger.id)
    assert (group.error, group.count) == ("ValueError", 3)
    assert group.text.endswith("not found")


async def test_groups_are_told_without_a_look_at_the_messages(
    queue: RedisMessageQueue, redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two commands in one round trip and the time, however many are dead."""
    for n in range(30):
        await queue.produce_many("t", range(30))
        await bury(redis, Death(reason="failed", error=f"ValueError: {'x' * (n + 1)}", kind="ValueError"))
    shards = await queue._lifecycle.shards.now()  # reads the layout, which is done once a second at most
    commands = shards[0].operating.commands
    sent: list[Any] = []
    execute = commands.execute_command

    def counting(*args: Any) -> Any:
        sent.append(args[0])
        return execute(*args)

    monkeypatch.setattr(commands, "execute_command", counting)
    groups = await queue.dlq.groups()
    assert len(groups) == 30
    assert sorted(sent) == ["HSCAN", "TIME", "ZCARD"]


async def test_a_worker_counts_what_dies_in_its_group(server: EmbeddedServer, redis: Redis) -> None:
    async with RedisMessageQueue(server.url, name="q", server_check="off", retry=Retry(1)) as queue:

        @queue.handler("t")
        async def handle(payload: int) -> None:
            raise ValueError(f"order {payload} not found")

        await queue.produce_many("t", range(40))
        await queue.start()
        await queue.drain()
        (group,) = await queue.dlq.groups()
        assert (group.count, group.error) == (40, "ValueError")
        assert await is_sound(queue)
