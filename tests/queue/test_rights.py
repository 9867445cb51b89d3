"""The rights that docs/deployment.md names are all that is needed, for each of those it names them for."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from redis.exceptions import ResponseError

from mx_rmq import NotDrained, ProduceOptions, RedisMessageQueue, Reject, StoreError, UnknownTopic
from mx_rmq.operating.messages import STATES
from tests.harness import command
from tests.words import eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from redis.asyncio import Redis

pytestmark = pytest.mark.no_cluster("a cluster has one database")

PAGE = Path(__file__).parents[2] / "docs" / "deployment.md"


def documented() -> list[tuple[str, list[str]]]:
    """Every user on the page with its rules, in the order of the page."""
    text = re.sub(r"\\\n\s*", "", PAGE.read_text())
    return [
        (user, rules.split()) for user, rules in re.findall(r"^ACL SETUSER (\w+) (.+)$", text, re.MULTILINE)
    ]


BASE, WORKER, OPERATOR = (rules for _, rules in documented())


@pytest.fixture
async def user(redis: Redis) -> AsyncIterator[str]:
    """The page's user, who may do nothing yet."""
    names = {name for name, _ in documented()}
    assert names == {"shop"}
    await command(redis, "ACL", "SETUSER", "shop", "reset")
    await command(redis, "ACL", "LOG", "RESET")
    yield "shop"
    await command(redis, "ACL", "DELUSER", "shop")


async def refused(redis: Redis) -> set[str]:
    """What the user was refused; redis-py introduces itself and does without if it may not."""
    log = await command(redis, "ACL", "LOG")
    entries = [
        entry if isinstance(entry, dict) else dict(zip(*[iter(entry)] * 2, strict=True)) for entry in log
    ]
    return {_text(_field(entry, "object")) for entry in entries} - {"client|setinfo"}


def _field(entry: dict[Any, Any], name: str) -> Any:
    return entry.get(name, entry.get(name.encode()))


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def at(tcp: str) -> str:
    return tcp.replace("redis://", "redis://shop:secret@") + "/1"


async def work(mq: RedisMessageQueue) -> None:
    """Producers and a worker: every end a message may have."""
    seen: list[str] = []

    @mq.handler("orders")
    async def on_order(order: dict[str, str]) -> None:
        seen.append(order["id"])
        if order["id"] == "dead":
            raise Reject("no")

    await mq.start()
    unique: ProduceOptions = {"priority": "high", "message_id": "A1", "dedup_for": 60}
    several: list[ProduceOptions] = [{}, {"delay": 0.01}, unique]
    for n, options in enumerate(several):
        await mq.produce("orders", {"id": f"m{n}"}, **options)
    await mq.produce_many("orders", [{"id": "many"}])
    mq.sync.produce("orders", {"id": "sync"})
    await mq.produce("orders", {"id": "dead"}, message_id="dead")
    await mq.produce("orders", {"id": "dead"}, message_id="dead2")
    await eventually(lambda: len(seen) == 7)
    await mq.stop()


async def test_producers_and_workers_need_the_first_line(redis: Redis, user: str, tcp: str) -> None:
    await command(redis, "ACL", "SETUSER", user, *BASE)
    async with RedisMessageQueue(at(tcp), name="shop", recovery_grace=None) as mq:
        await work(mq)
    assert await refused(redis) <= {"info", "client|id", "hgetall"}  # by the check, which says so


async def test_a_queue_with_shards_needs_their_keys_too(redis: Redis, user: str, tcp: str) -> None:
    """And an operator who reshards it needs nothing else."""
    (keys,) = re.findall(r"add the rule\n`(\S+)`", PAGE.read_text())
    await command(redis, "ACL", "SETUSER", user, *BASE, keys)
    async with RedisMessageQueue(at(tcp), name="shop", shards=4, recovery_grace=None) as mq:
        await work(mq)
    assert await refused(redis) <= {"info", "client|id", "hgetall"}
    await command(redis, "ACL", "SETUSER", user, *WORKER, *OPERATOR)
    await command(redis, "ACL", "LOG", "RESET")
    async with RedisMessageQueue(at(tcp), name="shop") as mq:
        await mq.reshard(2)
        assert await mq.dlq.count() == 2
        assert (await mq.produce("orders", {}, message_id="A1")).duplicate
    assert await refused(redis) == set()


async def test_draining_and_running_until_idle_need_no_more(redis: Redis, user: str, tcp: str) -> None:
    await command(redis, "ACL", "SETUSER", user, *BASE)
    mq = RedisMessageQueue(at(tcp), name="shop", recovery_grace=None, server_check="off")

    @mq.handler("orders")
    async def on_order(seconds: float) -> None:
        await asyncio.sleep(seconds)

    async with mq:
        await mq.produce("orders", 1.5)
        with pytest.raises(NotDrained, match=r"not drained within 0 s: messages, but which cannot be read"):
            await mq.drain(timeout=0)
    async with asyncio.timeout(15):
        await mq.run(until_idle=True)
    async with mq:
        await mq.produce("orders", 1.5)
        mq.start()
        await asyncio.wait_for(mq.drain(), 15)
    assert await refused(redis) <= {"client|id", "hgetall"}  # the latter to say what is left


async def test_recovery_by_connection_needs_the_second(
    redis: Redis, user: str, tcp: str, caplog: pytest.LogCaptureFixture
) -> None:
    await command(redis, "ACL", "SETUSER", user, *BASE, *WORKER)
    async with RedisMessageQueue(at(tcp), name="shop") as mq:
        await work(mq)
    assert await refused(redis) == set()
    assert "recovery.by_lease" not in caplog.messages
    assert "server.not_checked" not in caplog.messages


async def test_a_tail_needs_the_channel_of_both(redis: Redis, user: str, tcp: str) -> None:
    await command(redis, "ACL", "SETUSER", user, *BASE, *WORKER)
    await command(redis, "ACL", "SETUSER", "ops", *BASE, *OPERATOR)
    try:
        async with (
            RedisMessageQueue(at(tcp), name="shop", server_check="off") as mq,
            RedisMessageQueue(at(tcp).replace("shop:", "ops:"), name="shop", server_check="off") as ops,
        ):
            first = asyncio.ensure_future(anext(ops.tail(events=["dead"])))
            seen = asyncio.ensure_future(work_until(mq, first))
            assert (await asyncio.wait_for(first, 30)).event.name == "message.dead"
            await seen
        assert await refused(redis) == set()
    finally:
        await command(redis, "ACL", "DELUSER", "ops")


async def work_until(mq: RedisMessageQueue, seen: asyncio.Future[Any]) -> None:
    """Let messages die until a death was seen."""

    @mq.handler("orders")
    async def on_order(order: int) -> None:
        raise Reject("no")

    await mq.start()
    while not seen.done():
        await mq.produce("orders", 1)
        await asyncio.wait([seen], timeout=0.3)
    await mq.stop()


async def test_operators_need_the_third(redis: Redis, user: str, tcp: str) -> None:
    await command(redis, "ACL", "SETUSER", user, *BASE, *WORKER, *OPERATOR)
    async with RedisMessageQueue(at(tcp), name="shop") as mq:
        await work(mq)
    await command(
        redis, "ACL", "SETUSER", user, "-@all", *(rule for rule in BASE if rule[0] == "+"), *OPERATOR
    )
    async with RedisMessageQueue(at(tcp), name="shop", server_check="off") as mq:
        assert (await mq.counts()).dead == 2
        await mq.workers()
        assert (await mq.history("orders")).total.completed == 5
        assert list((await mq.rates()).topics) == ["orders"]
        page = await mq.dlq.list(topic="orders", limit=1)
        assert len((await mq.dlq.list(after=page.next)).letters) == 1
        letters = [letter async for letter in mq.dlq.export()]
        assert await mq.dlq.delete("dead2") == 1
        assert await mq.dlq.restore(letters) == (1, 0, 1)
        assert [(each.error, each.count) for each in await mq.dlq.groups()] == [("Reject", 2)]
        assert await mq.queues() == ["shop"]
        await mq.note_act("anna", "pause", "orders")
        with pytest.raises(UnknownTopic):
            await mq.pause("ordrs")
        for state in STATES:
            await mq.list("orders", state=state)
        assert (await mq.find("dead")).state == "dead"
        assert await mq.dlq.replay("dead", payload={"id": "again"}) == 1
        assert await mq.dlq.replay_all(error="rejected") == 1
        assert "no live worker" in await mq.explain("dead")
        await mq.pause("orders")
        await mq.resume("orders")
        assert await mq.cancel("dead")
        await mq.produce("orders", 1, delay=60)
        assert await mq.purge("orders") == 2
        for repair in (False, True):
            (report,) = await mq.audit(repair=repair)
            assert report.findings == []
        assert await mq.dlq.purge(topic="orders") == 0
        assert await mq.dlq.trim(max_age=60, max_count=5) == 0
        assert await mq.dlq.delete("dead") == 0
        await damage(mq, redis)
        (report,) = await mq.audit(repair=True)
        assert {finding.kind for finding in report.findings} >= {"wrong-type", "foreign-field"}
        assert await mq.delete() > 0
    assert await refused(redis) == set()


async def damage(mq: RedisMessageQueue, redis: Redis) -> None:
    """Something of everything that a repair mends."""
    await mq.produce("orders", {"id": "stray"}, message_id="stray")
    script = """
        redis.call('SELECT', 1)
        redis.call('HSET', 'mx-rmq:{shop}:payload', 'not ours', 'x')
        redis.call('DEL', 'mx-rmq:{shop}:orders:pending')
        redis.call('SET', 'mx-rmq:{shop}:orders:wake', 'wrong')
    """
    await command(redis, "EVAL", script, 0)


@pytest.mark.parametrize(
    "right",
    [
        *("+hstrlen", "+hgetall", "+smembers", "+lrange", "+zrank", "+zrevrank", "+zcount"),
        *("+scan", "+zscan", "+mget", "+getrange", "+rename", "+unlink"),
    ],
)
async def test_and_operators_need_each_of_them(redis: Redis, user: str, tcp: str, right: str) -> None:
    rules = [rule for rule in OPERATOR if rule != right]
    assert len(rules) == len(OPERATOR) - 1
    await command(redis, "ACL", "SETUSER", user, *BASE, *rules)
    async with RedisMessageQueue(at(tcp), name="shop", server_check="off") as mq:
        await work(mq)
        await mq.produce("orders", {"id": "later"}, delay=3600)
        await damage(mq, redis)

        async def operate() -> None:
            await mq.counts()
            await mq.history("orders")
            await mq.rates()
            page = await mq.dlq.list(limit=1)
            await mq.dlq.list(after=page.next)
            await mq.list("orders", state="delayed")
            await mq.schedule()
            letter = (await mq.dlq.get("dead")).as_dict()
            await mq.dlq.restore(letter | {"id": f"more{n}"} for n in range(300))
            assert await mq.dlq.replay_all(error="nothing") == 0
            await mq.audit(repair=True)
            await mq.delete()

        with pytest.raises(ResponseError, match=f"no permissions to run the '{right[1:]}' command"):
            await operate()


async def test_and_the_trail_needs_one_that_its_script_uses(redis: Redis, user: str, tcp: str) -> None:
    await command(redis, "ACL", "SETUSER", user, *BASE, *(rule for rule in OPERATOR if rule != "+ltrim"))
    async with RedisMessageQueue(at(tcp), name="shop", server_check="off") as mq:
        with pytest.raises(StoreError, match=r"note_act: .*(?:can't run|no permissions to run)"):
            await mq.note_act("anna", "pause", "orders")
