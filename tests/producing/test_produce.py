from __future__ import annotations

import asyncio
import copy
import json
import pickle
import re
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from mx_rmq import (
    ConfigError,
    InvalidName,
    InvalidPayload,
    MessageTooLarge,
    OutOfMemory,
    ProduceOptions,
    Receipt,
    RedisMessageQueue,
    ServerUnavailable,
    StoreError,
)
from mx_rmq.receipt import Stored
from tests.harness import At, all_keys, command, read_state
from tests.proxy import Proxy
from tests.words import PREFIX, bury, complete, eventually, in_order, out_of_memory, store_of, unchanged

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from redis.asyncio import Redis

    from mx_rmq.storage.embedded import EmbeddedServer


def through(proxy: Proxy, **options: Any) -> RedisMessageQueue:
    return RedisMessageQueue(proxy.url, **{"name": "q", "server_check": "off"} | options)


async def body_of(redis: Redis, id_: str) -> dict[str, Any]:
    stored: dict[str, Any] = json.loads(await command(redis, "HGET", f"{PREFIX}payload", id_))
    return stored


# -- what is stored


async def test_a_produced_message_is_pending_and_its_id_is_returned(
    queue: RedisMessageQueue, redis: Redis
) -> None:
    before = time.time()
    receipt = await queue.produce("t", {"order_id": "A1", "amount": 9.9})
    body = await body_of(redis, receipt)
    assert before - 0.01 <= body.pop("created_at") <= time.time() + 0.01
    assert body == {
        "payload": {"order_id": "A1", "amount": 9.9},
        "ttl": 7 * 86400.0,
    }
    assert await in_order(redis) == [receipt]


async def test_ids_are_unique_and_in_the_order_of_production(queue: RedisMessageQueue) -> None:
    ids = [await queue.produce("t", n) for n in range(50)]
    ids += await asyncio.gather(*(queue.produce("t", n) for n in range(50)))
    assert len(set(ids)) == 100
    assert ids == sorted(ids)


async def test_messages_run_in_the_order_in_which_they_were_produced(
    queue: RedisMessageQueue, redis: Redis
) -> None:
    receipts = await asyncio.gather(*(queue.produce("t", n) for n in range(300)))
    assert await in_order(redis) == list(receipts)


@pytest.mark.parametrize(
    "payload",
    [None, True, 0, -1.5, "", "ünï", [], {}, [1, [2, {"a": None}]], {"": {"b": [1.0]}}, "\U0001f600\x00"],
)
async def test_any_json_value_can_be_a_payload(queue: RedisMessageQueue, redis: Redis, payload: Any) -> None:
    receipt = await queue.produce("t", payload)
    assert (await body_of(redis, receipt))["payload"] == payload


async def test_a_dataclass_can_be_a_payload(queue: RedisMessageQueue, redis: Redis) -> None:
    @dataclass
    class Order:
        order_id: str
        amount: float

    receipt = await queue.produce("t", Order("A1", 9.9))
    assert (await body_of(redis, receipt))["payload"] == {"order_id": "A1", "amount": 9.9}


# -- options


async def test_priority_decides_who_runs_first(queue: RedisMessageQueue, redis: Redis) -> None:
    low, normal, high, second = [
        await queue.produce("t", 1, priority=priority) for priority in ("low", "normal", "high", "high")
    ]
    assert await in_order(redis) == [high, second, normal, low]
    assert (await body_of(redis, high))["priority"] == "high"


async def test_a_delay_keeps_a_message_from_running_until_then(
    queue: RedisMessageQueue, redis: Redis
) -> None:
    before = time.time()
    receipt = await queue.produce("t", 1, delay=90.5)
    facts = await queue.find(receipt)
    assert facts.state == "delayed"
    assert facts.due_at is not None
    assert before + 90.4 <= facts.due_at <= time.time() + 90.6
    assert await in_order(redis) == []


async def test_priority_and_lifetime_survive_a_delay(queue: RedisMessageQueue, redis: Redis) -> None:
    """The lifetime begins when the delay ends."""
    receipt = await queue.produce("t", 1, delay=0.001, priority="high", ttl=60)

    async def promoted() -> bool:
        await store_of(redis).promote()
        return await in_order(redis) == [receipt]

    await eventually(promoted)
    facts = await queue.find(receipt)
    assert facts.message is not None
    assert facts.message.priority == "high"
    assert facts.expires_at is not None
    assert 55 < facts.expires_at - time.time() < 65
    assert (await command(redis, "LLEN", f"{PREFIX}t:pending:high")) == 1


@pytest.mark.parametrize(("ttl", "seconds"), [(30, 30), (0.5, 0.5), (None, None), ("default", 7 * 86400)])
async def test_ttl_is_how_long_a_message_lives(
    queue: RedisMessageQueue, redis: Redis, ttl: Any, seconds: float | None
) -> None:
    before = time.time()
    receipt = await queue.produce("t", 1, ttl=ttl)
    assert (await body_of(redis, receipt)).get("ttl") == seconds
    score = float(await command(redis, "ZSCORE", f"{PREFIX}all_expire_monitor", receipt))
    if seconds is None:
        assert score == float("inf")
    else:
        assert before + seconds - 0.1 <= score / 1000 <= time.time() + seconds + 0.1


async def test_without_a_ttl_a_message_lives_for_a_week(queue: RedisMessageQueue) -> None:
    facts = await queue.find(await queue.produce("t", 1))
    assert facts.expires_at is not None
    assert facts.expires_at - time.time() == pytest.approx(7 * 86400, abs=5)


async def test_an_expired_message_is_not_delivered(queue: RedisMessageQueue, redis: Redis) -> None:
    receipt = await queue.produce("t", 1, ttl=0.001)

    async def overdue() -> bool:
        return [t.delivery.id for t in (await store_of(redis).take_over(10, lease=9, holder="m")).taken] == [
            receipt
        ]

    await eventually(overdue)


async def test_headers_travel_with_the_message(queue: RedisMessageQueue, redis: Redis) -> None:
    receipt = await queue.produce("t", 1, headers={"trace": "abc", "ünï": "ö"})
    assert (await body_of(redis, receipt))["headers"] == {"trace": "abc", "ünï": "ö"}


async def test_a_message_id_is_used_as_it_is(queue: RedisMessageQueue, redis: Redis) -> None:
    receipt = await queue.produce("t", 1, message_id="order-A1.v_2")
    assert receipt == "order-A1.v_2"
    assert await in_order(redis) == ["order-A1.v_2"]


# -- idempotence


async def test_a_live_id_is_a_duplicate_and_changes_nothing(queue: RedisMessageQueue, redis: Redis) -> None:
    first = await queue.produce("t", "first", message_id="A1")
    assert not first.duplicate
    assert first.stored is Stored.STORED
    before = await read_state(redis)
    for options in ({}, {"delay": 5}, {"priority": "high"}):
        again = await queue.produce("t", "second", message_id="A1", **options)
        assert again == "A1"
        assert again.duplicate
        assert again.stored is Stored.LIVE
    assert await queue.produce("other", "second", message_id="A1") == "A1"
    assert await read_state(redis) == before


async def test_a_delayed_and_a_running_id_are_duplicates_too(queue: RedisMessageQueue, redis: Redis) -> None:
    await queue.produce("t", 1, message_id="A1", delay=60)
    assert (await queue.produce("t", 2, message_id="A1")).stored is Stored.LIVE
    await queue.produce("t", 1, message_id="A2")
    await store_of(redis).claim("t", 1, lease=15, holder="w")
    assert (await queue.produce("t", 2, message_id="A2")).stored is Stored.LIVE


async def test_the_id_of_a_dead_message_is_taken(queue: RedisMessageQueue, redis: Redis) -> None:
    await queue.produce("t", 1, message_id="A1")
    await bury(redis)
    again = await queue.produce("t", 2, message_id="A1")
    assert again.duplicate
    assert again.stored is Stored.DEAD


async def test_the_id_of_a_completed_message_is_free(queue: RedisMessageQueue, redis: Redis) -> None:
    await queue.produce("t", 1, message_id="A1")
    await complete(redis)
    assert not (await queue.produce("t", 2, message_id="A1")).duplicate


async def test_dedup_for_keeps_the_id_of_a_completed_message_taken(
    queue: RedisMessageQueue, redis: Redis
) -> None:
    await queue.produce("t", 1, message_id="A1", dedup_for=60)
    await complete(redis)
    again = await queue.produce("t", 2, message_id="A1")
    assert again.duplicate
    assert again.stored is Stored.DONE


async def test_what_dedup_for_remembers_is_forgotten_in_time(queue: RedisMessageQueue, redis: Redis) -> None:
    await queue.produce("t", 1, message_id="A1", dedup_for=0.05)
    await complete(redis)

    async def free() -> bool:
        return not (await queue.produce("t", 2, message_id="A1")).duplicate

    await eventually(free)


async def test_concurrent_produces_of_one_id_store_once(
    queue: RedisMessageQueue, server: EmbeddedServer, redis: Redis
) -> None:
    """In one process, and in several."""
    async with RedisMessageQueue(server.url, name="q", server_check="off") as other:
        calls = [
            mq.produce("t", n, message_id="A1", delay=delay)
            for n, mq in enumerate([queue, other] * 50)
            for delay in (0, 60)
        ]
        receipts = await asyncio.gather(*calls)
    assert [receipt.stored for receipt in receipts].count(Stored.STORED) == 1
    counts = await queue.counts()
    assert counts.pending + counts.delayed == 1


def test_a_receipt_is_a_string_that_survives_a_copy_and_a_pickle() -> None:
    receipt = Receipt.of("A1", Stored.LIVE)
    for same in (copy.copy(receipt), copy.deepcopy(receipt), pickle.loads(pickle.dumps(receipt))):
        assert same == "A1"
        assert same.stored is Stored.LIVE
        assert same.duplicate
    assert json.dumps({"id": receipt}) == '{"id": "A1"}'


# -- refusals

REFUSED: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"priority": "urgent"}, ConfigError, "priority must be 'high', 'normal' or 'low', got 'urgent'"),
    ({"priority": None}, ConfigError, "priority"),
    ({"priority": ["high"]}, ConfigError, "priority"),
    ({"delay": -1}, ConfigError, "delay must be seconds >= 0, got -1"),
    ({"delay": float("nan")}, ConfigError, "delay"),
    ({"delay": float("inf")}, ConfigError, "delay"),
    ({"delay": "5"}, ConfigError, "delay"),
    ({"delay": ""}, ConfigError, "delay"),
    ({"delay": None}, ConfigError, "delay"),
    ({"delay": []}, ConfigError, "delay"),
    ({"delay": True}, ConfigError, "delay"),
    ({"delay": 1e12}, ConfigError, "delay"),
    ({"ttl": 0}, ConfigError, "ttl must be seconds > 0, or None for no end, got 0"),
    ({"ttl": -5}, ConfigError, "ttl"),
    ({"ttl": "1h"}, ConfigError, "ttl"),
    ({"ttl": float("nan")}, ConfigError, "ttl"),
    ({"ttl": float("inf")}, ConfigError, "ttl"),
    ({"ttl": True}, ConfigError, "ttl"),
    ({"message_id": ""}, InvalidName, "message id"),
    ({"message_id": "a:keep"}, InvalidName, "a message id must be 1 to 128 .*, got 'a:keep'"),
    ({"message_id": "a b"}, InvalidName, "message id"),
    ({"message_id": "{a}"}, InvalidName, "message id"),
    ({"message_id": "x" * 129}, InvalidName, "message id"),
    ({"message_id": 1.5}, InvalidName, "message id"),
    ({"message_id": True}, InvalidName, "message id"),
    ({"headers": {"a": 1}}, InvalidPayload, "a header must be a string, got 'a': 1"),
    ({"headers": {1: "a"}}, InvalidPayload, "a header must be a string, got 1: 'a'"),
    ({"headers": [("a", "b")]}, InvalidPayload, "headers"),
    ({"headers": "abc"}, InvalidPayload, "headers"),
    ({"headers": {"a": "\ud800"}}, InvalidPayload, "header"),
    ({"dedup_for": -1}, ConfigError, "dedup_for must be seconds >= 0, got -1"),
    ({"dedup_for": "1"}, ConfigError, "dedup_for"),
    ({"dedup_for": None}, ConfigError, "dedup_for"),
    ({"dedup_for": float("inf")}, ConfigError, "dedup_for"),
    ({"payload": {1, 2}}, InvalidPayload, "payload"),
    ({"payload": float("nan")}, InvalidPayload, "payload"),
    ({"payload": {1: 2}}, InvalidPayload, "key 1"),
    ({"payload": b"bytes"}, InvalidPayload, "bytes"),
    ({"payload": "\ud800"}, InvalidPayload, "payload"),
    ({"payload": object()}, InvalidPayload, "payload"),
    ({"payload": "x" * 1_100_000}, MessageTooLarge, "the limit is 1048576"),
    ({"topic": ""}, InvalidName, "topic"),
    ({"topic": "a b"}, InvalidName, "a topic must be 1 to 128 .*, got 'a b'"),
    ({"topic": "a:queue"}, InvalidName, "topic"),
    ({"topic": "{t}"}, InvalidName, "topic"),
    ({"topic": "\ud800"}, InvalidName, "topic"),
    ({"topic": None}, InvalidName, "topic"),
    ({"topic": ["t"]}, InvalidName, "topic"),
    ({"topic": b"t"}, InvalidName, "topic"),
]


@pytest.mark.parametrize(("options", "error", "says"), REFUSED)
async def test_what_makes_no_sense_is_refused_by_name_and_nothing_is_stored(
    queue: RedisMessageQueue, redis: Redis, options: dict[str, Any], error: type[Exception], says: str
) -> None:
    arguments: dict[str, Any] = {"topic": "t", "payload": 1} | options
    with pytest.raises(error, match=says):
        await queue.produce(**arguments)
    payload = arguments.pop("payload")
    with pytest.raises(error, match=says):
        await queue.produce_many(payloads=[payload], **arguments)
    assert await all_keys(redis) == []


async def test_an_unknown_option_is_refused(queue: RedisMessageQueue, redis: Redis) -> None:
    options: Any = {"prioritty": "high"}
    for produce in (queue.produce, queue.produce_many):
        with pytest.raises(ConfigError, match="no option of produce 'prioritty'; did you mean 'priority'"):
            await produce("t", [1], **options)
    assert await all_keys(redis) == []


async def test_the_size_limit_counts_the_whole_message_and_is_exact(
    server: EmbeddedServer, redis: Redis
) -> None:
    sizes = []
    async with RedisMessageQueue(server.url, name="q", server_check="off", max_bytes=500) as queue:
        for length in [*range(420, 460)] * 5:  # the time in it may be a digit or two shorter
            try:
                receipt = await queue.produce("t", "x" * length, headers={"a": "b"})
            except MessageTooLarge as error:
                said = re.search(r"message \S+ for topic 't' has (\d+) bytes, the limit is 500", str(error))
                assert said
                sizes.append((int(said[1]), False))
            else:
                sizes.append((len(await command(redis, "HGET", f"{PREFIX}payload", receipt)), True))
    assert all(stored == (size <= 500) for size, stored in sizes)
    assert {size for size, _ in sizes} >= {499, 500, 501}


async def test_one_bad_message_never_fails_the_others_in_its_group(queue: RedisMessageQueue) -> None:
    """They travel in one call, so whatever can be wrong with one is found before that."""
    bad: list[dict[str, Any]] = [{"topic": "t", "payload": 1} | options for options, _, _ in REFUSED]
    calls = [call for wrong in bad for call in (queue.produce("t", 1), queue.produce(**wrong))]
    results = await asyncio.gather(*calls, return_exceptions=True)
    assert all(isinstance(result, Receipt) and not result.duplicate for result in results[::2])
    assert not any(isinstance(result, Receipt) for result in results[1::2])


async def test_a_server_out_of_memory_says_so_and_stores_nothing(
    queue: RedisMessageQueue, redis: Redis
) -> None:
    async with unchanged(redis), out_of_memory(redis):
        for delay in (0, 60):
            with pytest.raises(OutOfMemory, match="maxmemory"):
                await queue.produce("t", 1, delay=delay)
    assert not (await queue.produce("t", 1)).duplicate


async def test_a_key_of_another_type_is_named(queue: RedisMessageQueue, redis: Redis) -> None:
    await redis.set(f"{PREFIX}t:pending", "something else")
    with pytest.raises(StoreError, match=r"mx-rmq:\{q\}:t:pending is a string, not a list"):
        await queue.produce("t", 1)
    assert await queue.produce("other", 1)


# -- lost replies and lost servers


@pytest.mark.parametrize("delay", [0.0, 60.0])
async def test_a_lost_reply_is_not_a_second_message(proxy: Proxy, redis: Redis, delay: float) -> None:
    async with through(proxy) as queue:
        await queue.produce("warm", 1)
        proxy.lose_reply()
        receipt = await queue.produce("t", 1, delay=delay)
        assert proxy.lost_replies == 1
        assert receipt.stored is Stored.STORED
        counts = await queue.counts()
        assert counts.topics["t"].produced == 1
        assert counts.topics["t"].pending + counts.delayed == 1


async def test_a_lost_reply_is_no_second_message_even_if_it_was_completed_meanwhile(
    proxy: Proxy, redis: Redis
) -> None:
    async with through(proxy) as queue:
        await queue.produce("warm", 1)
        proxy.lose_reply(stay_away=True)
        call = asyncio.create_task(queue.produce("t", 1, message_id="A1"))

        async def reply_lost() -> bool:
            return proxy.lost_replies == 1

        await eventually(reply_lost)
        assert await complete(redis) == ["A1"]
        proxy.back()
        assert (await call).stored is Stored.STORED
        assert await in_order(redis) == []
        assert (await queue.find("A1")).state == "gone"


async def test_a_reply_lost_again_and_again_is_asked_for_until_it_comes(proxy: Proxy, redis: Redis) -> None:
    async with through(proxy) as queue:
        await queue.produce("warm", 1)
        for _ in range(3):
            proxy.lose_reply()
            assert not (await queue.produce("t", 1)).duplicate
        assert proxy.lost_replies == 3
        assert (await queue.counts()).topics["t"].pending == 3


async def test_a_lost_reply_to_a_group_is_right_for_each_of_it(proxy: Proxy, redis: Redis) -> None:
    async with through(proxy) as queue:
        await queue.produce("t", 1, message_id="m5")
        proxy.lose_reply(2)
        receipts = await asyncio.gather(*(queue.produce("t", 1, message_id=f"m{n}") for n in range(20)))
        assert proxy.lost_replies == 1 or proxy.commands.count(b"EVALSHA") == 2
        assert [receipt.duplicate for receipt in receipts] == [n == 5 for n in range(20)]
        assert sorted(await in_order(redis)) == sorted(f"m{n}" for n in range(20))


async def test_a_server_that_is_away_briefly_costs_only_time(proxy: Proxy, redis: Redis) -> None:
    async with through(proxy) as queue:
        await queue.produce("t", 1)
        proxy.away()
        calls = [asyncio.create_task(queue.produce("t", n)) for n in range(10)]
        done, _ = await asyncio.wait(calls, timeout=0.1, return_when=asyncio.FIRST_COMPLETED)
        assert not done
        proxy.back()
        receipts = await asyncio.gather(*calls)
        assert not any(receipt.duplicate for receipt in receipts)
    assert len(await in_order(redis)) == 11


async def test_a_server_that_stays_away_is_unavailable_when_the_patience_is_over(proxy: Proxy) -> None:
    async with through(proxy, patience=0.3) as queue:
        await queue.produce("t", 1)
        proxy.away()
        started = time.monotonic()
        with pytest.raises(ServerUnavailable, match=r"gave up after 0\.3 s"):
            await queue.produce("t", 1)
        assert time.monotonic() - started < 5
        proxy.back()
        assert not (await queue.produce("t", 1)).duplicate


async def test_a_silent_server_is_unavailable_when_the_patience_is_over(proxy: Proxy) -> None:
    async with through(proxy, patience=0.3, socket_timeout=0.1) as queue:
        await queue.produce("t", 1)
        proxy.freeze()
        with pytest.raises(ServerUnavailable, match=r"no answer within 0\.1 s; gave up"):
            await queue.produce("t", 1)
        proxy.thaw()
        assert await queue.produce("t", 1)


async def test_a_queue_that_was_never_open_is_as_patient(proxy: Proxy) -> None:
    """Whatever starts first, the service or the server."""
    proxy.away()
    queue = through(proxy, server_check="warn")
    call = asyncio.create_task(queue.produce("t", 1))
    done, _ = await asyncio.wait([call], timeout=0.1)
    assert not done
    proxy.back()
    assert not (await call).duplicate
    await queue.close()


async def test_a_caller_that_gives_up_leaves_the_others_alone(proxy: Proxy, redis: Redis) -> None:
    async with through(proxy) as queue:
        await queue.produce("t", 0)
        proxy.freeze()
        calls = [asyncio.create_task(queue.produce("t", n)) for n in range(20)]
        await asyncio.sleep(0)
        for call in calls[::2]:
            call.cancel()
        proxy.thaw()
        results = await asyncio.gather(*calls, return_exceptions=True)
        assert all(isinstance(result, asyncio.CancelledError) for result in results[::2])
        assert all(isinstance(result, Receipt) and not result.duplicate for result in results[1::2])


async def test_calls_that_come_together_travel_together(proxy: Proxy, redis: Redis) -> None:
    """One leads; of what is under way behind it every call takes half, down to 16 messages."""
    async with through(proxy) as queue:
        await queue.produce("t", 0)
        proxy.commands.clear()
        await asyncio.gather(*(queue.produce("t", n) for n in range(500)))
        assert proxy.commands.count(b"EVALSHA") <= 8


async def test_messages_too_large_to_travel_together_do_not(proxy: Proxy, redis: Redis) -> None:
    """A call has a size limit, and a server that executes one does nothing else."""
    async with through(proxy) as queue:
        await queue.produce("t", 0)
        proxy.commands.clear()
        await asyncio.gather(*(queue.produce("t", "x" * 900_000) for n in range(12)))
        assert proxy.commands.count(b"EVALSHA") >= 3


async def test_many_topics_leave_no_memory_behind(queue: RedisMessageQueue) -> None:
    """A topic per customer, say: what a producer holds for each is dropped when it is idle."""
    for start in range(0, 3000, 100):
        await asyncio.gather(*(queue.produce(f"t{n}", 1) for n in range(start, start + 100)))
    producer: Any = queue._lifecycle.producer
    assert len(producer._batchers) <= 1100


# -- opening and closing


async def test_a_queue_opens_itself_for_produce(server: EmbeddedServer, redis: Redis) -> None:
    queue = RedisMessageQueue(server.url, name="q", server_check="off")
    receipt = await queue.produce("t", 1)
    assert await in_order(redis) == [receipt]
    await queue.close()


async def test_after_close_produce_opens_it_again(queue: RedisMessageQueue, redis: Redis) -> None:
    await queue.produce("t", 1)
    await queue.close()
    await queue.produce("t", 2)
    assert len(await in_order(redis)) == 2


async def test_close_lets_what_is_being_produced_be_stored(proxy: Proxy, redis: Redis) -> None:
    queue = through(proxy)
    await queue.produce("t", 0)
    proxy.freeze()
    calls = [asyncio.create_task(queue.produce("t", n)) for n in range(5)]
    await asyncio.sleep(0)
    closing = asyncio.create_task(queue.close())
    done, _ = await asyncio.wait([closing], timeout=0.05)
    assert not done
    proxy.thaw()
    assert all(not receipt.duplicate for receipt in await asyncio.gather(*calls))
    await closing
    assert len(await in_order(redis)) == 6


# -- middleware


async def test_middleware_sees_and_may_change_what_is_produced(
    queue: RedisMessageQueue, redis: Redis
) -> None:
    @queue.produce_middleware
    async def outer(call_next: Any, topic: str, payload: Any, options: ProduceOptions) -> Receipt:
        options["headers"] = {**(options.get("headers") or {}), "trace": "abc"}
        receipt: Receipt = await call_next(topic, payload, options)
        return receipt

    @queue.produce_middleware
    async def inner(call_next: Any, topic: str, payload: Any, options: ProduceOptions) -> Receipt:
        assert (options["headers"] or {})["trace"] == "abc"
        receipt: Receipt = await call_next(f"{topic}.eu", {"wrapped": payload}, options)
        return receipt

    receipt = await queue.produce("t", 1, headers={"a": "b"})
    (many,) = await queue.produce_many("t", [2])
    assert await in_order(redis, "t.eu") == [receipt, many]
    assert (await body_of(redis, receipt))["headers"] == {"a": "b", "trace": "abc"}
    assert (await body_of(redis, many))["payload"] == {"wrapped": 2}


async def test_middleware_may_refuse(queue: RedisMessageQueue, redis: Redis) -> None:
    @queue.produce_middleware
    async def refuse(call_next: Any, topic: str, payload: Any, options: ProduceOptions) -> Receipt:
        raise PermissionError(topic)

    with pytest.raises(PermissionError):
        await queue.produce("t", 1)
    assert await all_keys(redis) == []


# -- how long a caller waits


async def told(*calls: Awaitable[Any]) -> list[float]:
    """How long each caller waited until it was told that the server is unavailable."""

    async def one(call: Awaitable[Any]) -> float:
        began = time.monotonic()
        with pytest.raises(ServerUnavailable, match="gave up"):
            await call
        return time.monotonic() - began

    return await asyncio.gather(*map(one, calls))


async def test_the_patience_of_those_who_wait_behind_others_begins_when_they_call(proxy: Proxy) -> None:
    async with through(proxy, patience=4) as queue:
        await queue.produce("t", 1)
        proxy.away()
        first = asyncio.ensure_future(told(queue.produce("t", 1), queue.produce("t", 2)))
        await asyncio.sleep(0.1)  # both senders are busy with them
        waited = await told(*(queue.produce("t", n) for n in range(6)))
        assert max(*waited, *await first) < 5.5
        proxy.back()
        assert await queue.produce("t", 1)


async def test_a_caller_who_came_later_is_not_told_with_those_before_it(proxy: Proxy, redis: Redis) -> None:
    """Its patience is not over: it is stored when the server is back."""
    async with through(proxy, patience=2) as queue:
        await queue.produce("t", 0)
        proxy.away()
        early = asyncio.gather(*(queue.produce("t", n) for n in range(4)), return_exceptions=True)
        await asyncio.sleep(1.2)  # it waits behind them, and goes on when they have given up
        late = asyncio.ensure_future(queue.produce("t", 1, message_id="LATE"))
        assert all(isinstance(error, ServerUnavailable) for error in await early)
        assert not late.done()
        proxy.back()
        assert (await late).stored is Stored.STORED


async def test_all_who_wait_for_the_queue_to_open_are_told_when_that_fails(proxy: Proxy) -> None:
    """Not one attempt after the other, of which each takes the whole patience."""
    queue = through(proxy, patience=0.5, server_check="warn")
    proxy.away()
    assert max(await told(*(queue.produce(f"t{n}", n) for n in range(20)))) < 2.5
    proxy.back()
    assert await queue.produce("t", 1)
    await queue.close()


async def test_batches_are_smaller_after_one_was_cut_while_it_was_leaving(tcp: str, redis: Redis) -> None:
    """A line that breaks now and then gets a small one through; the call itself is sent again whole."""
    with Proxy(At(tcp)) as proxy:
        proxy.throttle(2_000_000)
        async with through(proxy, socket_timeout=1) as queue:
            await asyncio.gather(*(queue.produce("t", n) for n in range(3)))
            assert queue._lifecycle.producer is not None
            (batcher,) = queue._lifecycle.producer._batchers.values()
            calls = asyncio.gather(*(queue.produce("t", "x" * 500_000) for _ in range(6)))
            await asyncio.sleep(0.6)  # some of it has left
            proxy.cut()
            await eventually(lambda: batcher._bound < 4 * 1024 * 1024)
            assert len(set(await calls)) == 6
            assert len(await in_order(redis)) == 9
            for n in range(8):
                await queue.produce("t", n)
            await asyncio.gather(*(queue.produce("t", n) for n in range(20)))
            assert batcher._bound == 4 * 1024 * 1024
