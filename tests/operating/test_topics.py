from __future__ import annotations

import asyncio
import re
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from mx_rmq import ConfigError, Context, InvalidName, RedisMessageQueue, Retry, UnknownTopic
from mx_rmq.storage.contract import NewMessage
from mx_rmq.storage.keys import Keys
from mx_rmq.storage.store import Store
from tests.harness import read_state
from tests.words import (
    PREFIX,
    bury,
    claim,
    complete,
    drained,
    eventually,
    in_order,
    in_state,
    is_sound,
    store_of,
    unchanged,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from redis.asyncio import Redis

    from mx_rmq.storage.embedded import EmbeddedServer
    from tests.words import MakeQueue


# -- cancel


@pytest.mark.parametrize("delay", [0, 60])
async def test_a_message_that_has_not_started_can_be_cancelled(
    queue: RedisMessageQueue, redis: Redis, delay: float
) -> None:
    for id_ in ("A1", "A2", "A3"):
        await queue.produce("t", 1, message_id=id_, delay=delay)
    assert await queue.cancel("A2") is True
    assert await queue.cancel("A2") is False
    assert (await queue.find("A2")).state == "gone"
    assert await complete(redis) == ([] if delay else ["A1", "A3"])
    assert await is_sound(queue)
    assert not (await queue.produce("t", 1, message_id="A2")).duplicate


async def test_many_are_cancelled_in_batches(queue: RedisMessageQueue, redis: Redis) -> None:
    await queue.produce("t", 1, message_id="dead")
    await bury(redis)
    await queue.produce("t", 1, message_id="running")
    await claim(redis)
    ids = await queue.produce_many("t", range(1500))
    await queue.produce("t", 1, message_id="later", delay=60)
    assert await queue.cancel_many(["dead", "running", "unknown", *ids, "later", ids[0]]) == 1501
    counts = (await queue.counts()).topics["t"]
    assert (counts.pending, counts.delayed, counts.processing, counts.in_dlq) == (0, 0, 1, 1)
    assert await is_sound(queue)
    assert await queue.cancel_many([]) == 0
    with pytest.raises(ConfigError, match="ids must be an iterable of message ids, got 'later'"):
        await queue.cancel_many("later")


async def test_what_runs_is_dead_or_gone_cannot_be_cancelled(queue: RedisMessageQueue, redis: Redis) -> None:
    await queue.produce("t", 1, message_id="dead")
    await bury(redis)
    await queue.produce("t", 1, message_id="running")
    await claim(redis)
    async with unchanged(redis):
        for id_ in ("dead", "running", "unknown"):
            assert await queue.cancel(id_) is False


async def test_an_unreadable_message_can_be_cancelled(queue: RedisMessageQueue, redis: Redis) -> None:
    await store_of(redis).produce("t", [NewMessage("bad", b"\xff")])
    assert await queue.cancel("bad") is True
    assert (await queue.find("bad")).state == "gone"


async def test_cancel_and_a_worker_race_for_a_message_and_one_wins(
    queue: RedisMessageQueue, redis: Redis
) -> None:
    ids = await queue.produce_many("t", range(200))
    cancelled, deliveries = await asyncio.gather(
        asyncio.gather(*(queue.cancel(id_) for id_ in ids)), claim(redis, limit=100)
    )
    claimed = {delivery.id for delivery in deliveries}
    assert all(done != (id_ in claimed) for id_, done in zip(ids, cancelled, strict=True))


# -- pause and resume


async def test_a_paused_topic_is_not_delivered_but_produced_to(
    queue: RedisMessageQueue, redis: Redis
) -> None:
    handled: list[int] = []

    @queue.handler("t")
    async def handle(payload: int) -> None:
        handled.append(payload)

    @queue.handler("other")
    async def handle_other(payload: int) -> None:
        handled.append(payload)

    await queue.pause("t")
    await queue.pause("t")
    await queue.start()
    await queue.produce("t", 1)
    await queue.produce("other", 2)

    async def other_handled() -> bool:
        return 2 in handled

    await eventually(other_handled)
    assert (await queue.counts()).topics["t"].pending == 1
    assert handled == [2]
    await queue.resume("t")

    async def both_handled() -> bool:
        return 1 in handled

    await eventually(both_handled)


async def test_pausing_leaves_what_runs_alone(queue: RedisMessageQueue, redis: Redis) -> None:
    await queue.produce("t", 1, message_id="A1")
    (delivery,) = await claim(redis)
    await queue.pause("t")
    await store_of(redis).complete("t", [(delivery, 0.0)])
    assert (await queue.find("A1")).state == "gone"


def serve(queue: RedisMessageQueue, topic: str = "t") -> None:
    """Register a handler, which makes a topic known."""

    @queue.handler(topic)
    async def handle(payload: int) -> None: ...


async def test_a_topic_can_be_paused_before_anything_is_in_it(queue: RedisMessageQueue, redis: Redis) -> None:
    serve(queue)
    await queue.pause("t")
    await queue.produce("t", 1)
    assert await claim(redis) == []
    await queue.resume("t")
    await queue.resume("t")
    assert len(await claim(redis)) == 1


async def test_a_paused_topic_is_counted_even_if_nothing_was_ever_in_it(queue: RedisMessageQueue) -> None:
    """An operator must find it again."""
    serve(queue)
    await queue.pause("t")
    assert (await queue.counts()).topics["t"].paused


@pytest.mark.parametrize("topic", ["", "a b", None, 5])
async def test_what_cannot_be_a_topic_is_refused(queue: RedisMessageQueue, redis: Redis, topic: Any) -> None:
    async with unchanged(redis):
        for verb in (queue.pause, queue.resume, queue.purge):
            with pytest.raises(InvalidName, match="topic"):
                await verb(topic)


# -- purge


async def test_purge_withdraws_what_is_pending_and_delayed_and_leaves_the_rest(
    queue: RedisMessageQueue, redis: Redis
) -> None:
    await queue.produce("t", 1, message_id="dead")
    await bury(redis)
    await queue.produce("t", 1, message_id="running")
    await claim(redis)
    for priority in ("high", "normal", "low"):
        await queue.produce("t", 1, priority=priority)
    await queue.produce("t", 1, delay=60)
    await store_of(redis).produce("t", [NewMessage("bad", b"\xff")])
    await queue.produce("other", 1, message_id="other")
    await queue.produce("other", 1, message_id="later", delay=60)
    assert await queue.purge("t") == 5
    counts = await queue.counts()
    assert (counts.topics["t"].pending, counts.topics["t"].processing) == (0, 1)
    assert (counts.delayed, counts.dead) == (1, 1)
    assert (await queue.find("running")).state == "running"
    assert (await queue.find("other")).state == "pending"
    assert (await queue.find("later")).state == "delayed"
    assert await queue.purge("t") == 0
    assert await is_sound(queue)


async def test_thousands_are_purged(queue: RedisMessageQueue, redis: Redis) -> None:
    await queue.produce_many("t", range(2500))
    await queue.produce_many("t", range(1300), delay=60)
    await queue.produce_many("other", range(700), delay=30)
    assert await queue.purge("t") == 3800
    counts = await queue.counts()
    assert (counts.pending, counts.delayed) == (0, 700)
    assert await queue.purge("other") == 700
    state = await read_state(redis)
    assert {key: value for key, value in state.items() if key not in ("delay_wake", "other:wake")} == {}


async def test_a_message_that_failed_and_waits_is_purged(queue: RedisMessageQueue, redis: Redis) -> None:
    await queue.produce("t", 1)
    (delivery,) = await claim(redis)
    await store_of(redis).retry("t", [(delivery, 60.0, delivery.body)])
    assert await queue.purge("t") == 1


async def test_purging_an_empty_topic_does_nothing(queue: RedisMessageQueue, redis: Redis) -> None:
    serve(queue)
    async with unchanged(redis):
        assert await queue.purge("t") == 0


async def test_purging_a_paused_topic_leaves_it_paused(queue: RedisMessageQueue, redis: Redis) -> None:
    serve(queue)
    await queue.pause("t")
    await queue.produce("t", 1)
    assert await queue.purge("t") == 1
    assert (await queue.counts()).topics["t"].paused


async def test_a_purged_topic_goes_on(queue: RedisMessageQueue, redis: Redis) -> None:
    await queue.produce_many("t", range(10))
    await queue.purge("t")
    receipt = await queue.produce("t", 1)
    assert await in_order(redis) == [receipt]
    assert await complete(redis) == [receipt]


# -- topics and queues that are known


def verbs(queue: RedisMessageQueue, topic: str) -> list[Callable[[], Awaitable[Any]]]:
    """What an operator does to a topic."""
    return [
        partial(queue.pause, topic),
        partial(queue.resume, topic),
        partial(queue.purge, topic),
        partial(queue.dlq.replay_all, topic=topic),
        partial(queue.dlq.purge, topic=topic),
    ]


async def test_a_topic_that_is_not_known_is_refused_with_the_closest_one(
    queue: RedisMessageQueue, redis: Redis
) -> None:
    await queue.produce("orders", 1)
    await queue.produce("mails", 1)
    error = (
        "there is no topic 'ordrs': nothing was produced to it and no live worker has a handler for it; "
        "did you mean 'orders'?"
    )
    async with unchanged(redis):
        for verb in verbs(queue, "ordrs"):
            with pytest.raises(UnknownTopic, match=f"^{re.escape(error)}$"):
                await verb()
        with pytest.raises(UnknownTopic, match=r"; known are: mails, orders$"):
            await queue.pause("xyz")


async def test_in_a_queue_without_topics_every_topic_is_unknown(queue: RedisMessageQueue) -> None:
    with pytest.raises(UnknownTopic, match="the queue has no topics yet"):
        await queue.pause("t")


async def test_of_many_topics_an_error_names_a_few(queue: RedisMessageQueue) -> None:
    for n in range(15):
        await queue.produce(f"orders-{n:02}", 1)
    with pytest.raises(UnknownTopic, match=r"known are: orders-00, .*, orders-09, …$"):
        await queue.pause("xyz")


@pytest.mark.parametrize("known", ["produced to", "served by a live worker", "handled here"])
async def test_a_topic_that_is_known_is_accepted(queue: RedisMessageQueue, redis: Redis, known: str) -> None:
    match known:
        case "produced to":
            await queue.produce("t", 1)
            await complete(redis)
        case "served by a live worker":
            await store_of(redis).register_worker("w", b'{"topics":["t"]}', silence=30)
        case "handled here":
            serve(queue)
    for verb in verbs(queue, "t"):
        await verb()


async def test_a_topic_that_is_paused_is_known_until_it_is_resumed(
    queue: RedisMessageQueue, redis: Redis
) -> None:
    await store_of(redis).pause("t")
    await queue.pause("t")
    await queue.resume("t")
    with pytest.raises(UnknownTopic):
        await queue.resume("t")


async def test_dead_messages_of_a_topic_that_is_not_known_are_replayed_all_the_same(
    queue: RedisMessageQueue, redis: Redis
) -> None:
    """The audit keeps what it finds without a topic in one that was never produced to."""
    await queue.produce("t", 1, message_id="A1")
    await bury(redis)
    await redis.srem(f"{PREFIX}topics", "t")
    assert await queue.dlq.replay_all(topic="t") == 1
    assert await queue.purge("t") == 1
    with pytest.raises(UnknownTopic):
        await queue.purge("t")


async def test_queues_names_all_queues_on_the_server(
    queue: RedisMessageQueue, redis: Redis, make_queue: MakeQueue
) -> None:
    assert await queue.queues() == []
    for name in ("shop", "q", "Shop.2-x_y"):
        other = make_queue(name=name)
        await other.produce("t", 1)
    await Store(redis, Keys("idle")).register_worker("w", b"{}", silence=30)
    await Store(redis, Keys("wide", 3)).produce("t", [NewMessage("A1", b"x")])
    for n in range(3000):
        await redis.set(f"another:{n}", 1)
    for key in ("mx-rmq:{}:topics", "mx-rmq:{a b}:topics", "mx-rmq:{a}:x:topics", "mx-rmq:{b}:worker"):
        await redis.sadd(key, "x")
    assert await queue.queues() == ["Shop.2-x_y", "idle", "q", "shop", "wide"]


async def test_topics_names_those_that_are_known_or_paused(
    queue: RedisMessageQueue, redis: Redis, mq: RedisMessageQueue
) -> None:
    assert await queue.topics() == []

    @mq.handler("paused")
    async def handle(n: int) -> None: ...

    await queue.produce("orders", 1)
    await queue.produce("a:b", 1)
    await mq.pause("paused")
    await redis.sadd(f"{PREFIX}topics", "not a topic")
    assert await queue.topics() == ["a:b", "orders", "paused"]


# -- audit


async def test_an_audit_says_how_far_it_is(queue: RedisMessageQueue, redis: Redis) -> None:
    await queue.produce_many("t", range(10))
    await bury(redis)
    await queue.produce_many("t", range(1200))
    said: list[int] = []
    await queue.audit(progress=said.append)
    assert said == sorted(said)
    assert len(said) >= 3
    assert said[-1] == 1210


async def test_the_audit_of_a_queue_finds_and_mends_damage(queue: RedisMessageQueue, redis: Redis) -> None:
    await queue.produce("t", 1, message_id="A1")
    assert await is_sound(queue)
    await redis.delete(f"{PREFIX}t:pending")
    (report,) = await queue.audit()
    assert [finding.what for finding in report.findings] == ["A1"]
    await queue.audit(repair=True)
    assert await is_sound(queue)
    assert await complete(redis) == ["A1"]


# -- a queue that is not open


@pytest.mark.sharded
async def test_a_delayed_message_runs_now(make_queue: MakeQueue, redis: Redis) -> None:
    """A delay of a week is over at once; the worker's scheduler slept for the week and is woken."""
    mq = make_queue()
    ran: list[str] = []

    @mq.handler("t", retry=Retry(3, backoff="fixed", base=3600))
    async def handle(payload: str, ctx: Context) -> None:
        if payload == "fails" and ctx.attempt == 1:
            raise ConnectionError("not yet")
        ran.append(payload)

    async with mq:
        await mq.start()
        await mq.produce("t", "late", message_id="A1", delay=7 * 86400, key="k")
        await mq.produce("t", "fails", message_id="A2")
        await in_state(mq, "A2", "delayed")
        assert await mq.run_now("A1")
        assert await mq.run_now("A2")
        await drained(mq)
        assert sorted(ran) == ["fails", "late"]
        assert not await mq.run_now("A1")
        assert await is_sound(mq)


@pytest.mark.parametrize(
    "verb",
    [
        "find",
        "explain",
        "list",
        "counts",
        "workers",
        "queues",
        "topics",
        "cancel",
        "run_now",
        "pause",
        "resume",
        "purge",
        "audit",
        "doctor",
    ],
)
async def test_a_queue_that_is_not_open_says_how_to_open_it(server: EmbeddedServer, verb: str) -> None:
    queue = RedisMessageQueue(server.url)
    arguments = () if verb in ("counts", "workers", "queues", "topics", "audit", "doctor") else ("A1",)
    with pytest.raises(ConfigError, match="the queue is not open; use 'async with queue:'"):
        await getattr(queue, verb)(*arguments)
