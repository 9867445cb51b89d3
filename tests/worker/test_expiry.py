"""Lifetime and priority: kept through delay and retry, and what is expired never runs."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from mx_rmq import Context, RedisMessageQueue, Retry, RetryLater
from tests.words import dead, drained, eventually, in_state

if TYPE_CHECKING:
    from tests.words import MakeQueue

pytestmark = [pytest.mark.sharded, pytest.mark.usefixtures("watchful")]


async def test_an_expired_message_is_never_delivered(mq: RedisMessageQueue) -> None:
    ran: list[int] = []

    @mq.handler("t")
    async def on_t(payload: int) -> None:
        ran.append(payload)

    await mq.produce("t", 1, message_id="A1", ttl=0.05)
    await mq.produce("t", 2, message_id="A2", ttl=None)
    await asyncio.sleep(0.1)
    await mq.start()
    letter = await dead(mq, "A1")
    assert letter.reason == "expired"
    assert letter.payload == 1
    assert letter.message is not None
    assert letter.message.attempts == 0
    await in_state(mq, "A2", "gone")
    assert ran == [2]


async def test_a_message_nobody_serves_expires_all_the_same(mq: RedisMessageQueue) -> None:
    @mq.handler("other")
    async def other(payload: int) -> None: ...

    await mq.start()
    await mq.produce("t", 1, message_id="A1", ttl=0.05)
    assert (await dead(mq, "A1")).reason == "expired"


async def test_what_expires_while_it_is_held_ready_does_not_run(make_queue: MakeQueue) -> None:
    mq = make_queue(concurrency=1)
    ran: list[list[int]] = []

    @mq.handler("t", batch=10, linger=0.3)
    async def on_t(payloads: list[int]) -> None:
        ran.append(payloads)

    await mq.start()
    await mq.produce("t", 1, message_id="A1", ttl=0.1)
    await mq.produce("t", 2, message_id="A2")
    assert (await dead(mq, "A1")).reason == "expired"
    await in_state(mq, "A2", "gone")
    assert ran == [[2]]


async def test_the_lifetime_begins_when_a_delay_is_over(mq: RedisMessageQueue) -> None:
    ran: list[int] = []

    @mq.handler("t")
    async def on_t(payload: int) -> None:
        ran.append(payload)

    await mq.produce("t", 1, message_id="A1", ttl=10, delay=0.2)
    await mq.start()
    await in_state(mq, "A1", "gone")
    assert ran == [1]


async def test_the_lifetime_is_not_prolonged_by_a_retry(mq: RedisMessageQueue) -> None:
    """It is delivered again only before its expiry, which is the one it was born with."""
    attempts: list[int] = []

    @mq.handler("t", retry=Retry(50))
    async def on_t(payload: int, ctx: Context) -> None:
        attempts.append(ctx.attempt)
        raise RetryLater(0.1)

    await mq.start()
    await mq.produce("t", 1, message_id="A1", ttl=0.5)
    letter = await dead(mq, "A1")
    assert letter.reason == "expired"
    assert letter.message is not None
    assert 1 <= len(attempts) <= 6
    assert letter.message.attempts == len(attempts)
    assert letter.died_at - letter.message.created_at >= 0.5


async def test_a_handler_that_has_begun_may_outlive_its_message(mq: RedisMessageQueue) -> None:
    @mq.handler("t")
    async def on_t(payload: int) -> None:
        await asyncio.sleep(1.1)

    await mq.start()
    await mq.produce("t", 1, message_id="A1", ttl=1.0)
    await in_state(mq, "A1", "gone")


@pytest.mark.one_shard
@pytest.mark.parametrize("how", ["delay", "retry"])
async def test_the_priority_survives(make_queue: MakeQueue, how: str) -> None:
    """When all are due together the urgent one is first, whichever way they got there."""
    mq = make_queue(concurrency=3)
    ran: list[str] = []
    begun: set[str] = set()
    fail = asyncio.Event()

    @mq.handler("t")
    async def on_t(payload: str, ctx: Context) -> None:
        if how == "retry" and ctx.attempt == 1:
            begun.add(payload)
            await fail.wait()
            raise RetryLater(0.1)
        ran.append(payload)

    await mq.open()
    if how == "delay":
        await mq.pause("t")
    delay = 0.1 if how == "delay" else 0.0
    for payload in ("low", "normal", "high"):
        await mq.produce("t", payload, message_id=payload, priority=payload, delay=delay)
    await mq.start()
    if how == "retry":
        await eventually(lambda: len(begun) == 3)
        await mq.pause("t")
        fail.set()
    for payload in ("low", "normal", "high"):
        await in_state(mq, payload, "pending")
    await mq.resume("t")
    await drained(mq)
    assert ran == ["high", "normal", "low"]


async def test_the_expiry_survives_delay_and_retry_as_it_is(make_queue: MakeQueue) -> None:
    mq = make_queue()

    @mq.handler("t", retry=Retry(5))
    async def on_t(payload: int, ctx: Context) -> None:
        await mq.pause("t")
        raise RetryLater(0)

    await mq.produce("t", 1, message_id="A1", ttl=1000)
    before = (await mq.find("A1")).expires_at
    await mq.start()

    async def retried() -> bool:
        facts = await mq.find("A1")
        return facts.state == "pending" and facts.message is not None and facts.message.attempts == 1

    await eventually(retried)
    assert (await mq.find("A1")).expires_at == before
