"""A worker among keys that somebody else has written."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from mx_rmq import Context, MxRmqError
from tests.proxy import Proxy
from tests.words import events, eventually, in_state, put_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from redis.asyncio import Redis

    from mx_rmq import RedisMessageQueue
    from mx_rmq.storage.embedded import EmbeddedServer
    from tests.words import MakeQueue

HUGE = 10**5000
PREFIX = "mx-rmq:{q}:"


@pytest.fixture
def proxy(server: EmbeddedServer) -> Iterator[Proxy]:
    """Made before the queue, so that it outlives it."""
    with Proxy(server) as proxy:
        yield proxy


async def test_a_wake_key_of_the_wrong_type_does_not_slow_the_other_topics(
    make_queue: MakeQueue, redis: Redis, caplog: pytest.LogCaptureFixture
) -> None:
    """One pop waits at the keys of all topics, and is refused for one of them."""
    mq = make_queue(poll=60)
    seen: list[int] = []

    @mq.handler("a")
    async def on_a(payload: int) -> None:
        seen.append(payload)

    @mq.handler("b")
    async def on_b(payload: int) -> None:
        seen.append(payload)

    await mq.open()
    await mq.pause("a")  # so that no claim throws the key away
    await mq.start()
    await redis.set(PREFIX + "a:wake", "something else")
    for n in range(5):
        await mq.produce("b", n)
        await eventually(partial(seen.__contains__, n), within=5)
    (record,) = events(caplog, "wake.failed")
    assert PREFIX + "a:wake" in record.keys
    assert not events(caplog, "service.failed")


async def test_a_doubtful_claim_of_a_poisoned_topic_does_not_stop_the_others(
    proxy: Proxy, make_queue: MakeQueue, redis: Redis, caplog: pytest.LogCaptureFixture
) -> None:
    """After a lost reply the leases of the topic are read, which may no longer be possible."""
    mq, outside = make_queue(proxy.url, lease=3600, poll=0.1), make_queue()
    seen: list[str] = []

    @mq.handler("a")
    async def on_a(payload: int, ctx: Context) -> None:
        seen.append(ctx.message_id)

    @mq.handler("b")
    async def on_b(payload: int, ctx: Context) -> None:
        seen.append(ctx.message_id)

    await outside.open()
    await mq.start()
    await outside.produce("a", 0, message_id="first")
    await in_state(outside, "first", "gone")
    await redis.set(PREFIX + "a:processing", "something else")

    lost_at = -10

    def doubted() -> bool:
        """The claim whose reply was lost may have been one from b alone: then another is lost."""
        nonlocal lost_at
        if not proxy.losing("claim_message") and proxy.calls["claim_message"] > lost_at + 5:
            proxy.lose_reply(script="claim_message")
            lost_at = proxy.calls["claim_message"] + 1
        return any(record.topic == "a" for record in events(caplog, "claim.not_given_back"))

    await eventually(doubted)
    await outside.produce("b", 1, message_id="B1")
    await in_state(outside, "B1", "gone")
    await eventually(lambda: any(record.topic == "a" for record in events(caplog, "topic.failed")))
    assert not events(caplog, "service.failed")


async def test_what_strangers_wrote_for_people_does_not_keep_people_from_looking(
    mq: RedisMessageQueue, redis: Redis
) -> None:
    await mq.produce("t", 1)
    await redis.sadd(PREFIX + "topics", b"\xff", "no such", "")
    await redis.sadd(PREFIX + "paused", b"\xfe")
    await redis.hset(PREFIX + "counters", mapping={"t:retried": "x", "t:dead": b"\xff", b"\xff": 1})
    await redis.zadd(PREFIX + "delay_tasks", {b"\xff": 10**13})
    counts = await mq.counts()
    assert list(counts.topics) == ["t"]
    assert (counts.topics["t"].produced, counts.topics["t"].retried, counts.topics["t"].dead) == (1, 0, 0)
    assert await mq.purge("t") == 1


@pytest.mark.parametrize("option", ["topic", "message_id", "priority", "delay", "ttl", "dedup_for"])
async def test_a_number_that_python_cannot_write_is_refused_as_any_other(
    mq: RedisMessageQueue, option: str
) -> None:
    call: dict[str, Any] = {"topic": "t", "payload": 1, option: HUGE}
    with pytest.raises(MxRmqError, match="int that cannot be shown"):
        await mq.produce(**call)


@pytest.mark.parametrize("call", [{"payload": {HUGE: 1}}, {"payload": 1, "headers": {"a": HUGE}}])
async def test_such_a_number_inside_is_refused_too(mq: RedisMessageQueue, call: dict[str, Any]) -> None:
    with pytest.raises(MxRmqError, match="int that cannot be shown"):
        await mq.produce("t", **call)


@pytest.mark.usefixtures("watchful")
@pytest.mark.parametrize("count", [b"9" * 4300, b"-1", b"9007199254740993"])
async def test_a_count_nobody_could_count_on_makes_a_message_unreadable(
    make_queue: MakeQueue, redis: Redis, count: bytes
) -> None:
    """The monitor adds one to it; it must be able to write what comes of that."""
    mq = make_queue()

    @mq.handler("other")
    async def on_other(payload: int) -> None:
        pass

    await mq.open()
    body = b'{"v":1,"id":"a","topic":"t","payload":{},"created_at":1.0,"crashes":%b}' % count
    await put_bytes(redis, "a", body)
    await put_bytes(redis, "b", body.replace(count, b"0").replace(b'"a"', b'"b"'))
    store = mq._lifecycle.shards[0].store
    await store.claim("t", 2, lease=0.01, holder="nobody")
    await mq.start()
    await in_state(mq, "a", "dead")
    await in_state(mq, "b", "pending")
    assert await redis.hget(PREFIX + "dlq_payload", "a") == body


async def test_a_memory_without_end_does_not_keep_the_others_from_being_completed(
    make_queue: MakeQueue, redis: Redis
) -> None:
    """Completions travel together; one that cannot be written down would fail them all."""
    mq = make_queue(lease=3600)

    @mq.handler("t", concurrency=8)
    async def on_t(payload: dict[str, int]) -> None:
        pass

    await mq.open()
    await mq.pause("t")
    body = b'{"v":1,"id":"a","topic":"t","payload":{},"created_at":1.0,"dedup_for":1e308}'
    await put_bytes(redis, "a", body)
    for n in range(5):
        await mq.produce("t", {}, message_id=f"good-{n}")
    await mq.start()
    await mq.resume("t")
    for n in range(5):
        await in_state(mq, f"good-{n}", "gone")
    await in_state(mq, "a", "dead")
    assert await redis.hget(PREFIX + "dlq_payload", "a") == body
