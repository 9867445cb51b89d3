"""``RetryLater(…, count=False)`` puts a message off: no attempt is spent, and nothing is forgotten."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from itertools import pairwise
from math import inf, nan
from typing import TYPE_CHECKING, Any

import pytest

from mx_rmq import ConfigError, Context, RedisMessageQueue, Reject, Retry, RetryLater
from mx_rmq.message import HISTORY_LIMIT
from tests.words import ONE_SERVER, dead, drained, eventually, in_state, is_sound

if TYPE_CHECKING:
    from tests.words import MakeQueue


pytestmark = pytest.mark.sharded


async def test_a_message_that_is_put_off_is_delayed_and_no_attempt_is_spent(mq: RedisMessageQueue) -> None:
    attempts: list[tuple[int, bool]] = []

    @mq.handler("t", retry=Retry(1))
    async def on_t(payload: int, ctx: Context) -> None:
        attempts.append((ctx.attempt, ctx.is_last))
        raise RetryLater(0 if len(attempts) < 3 else 3600, "busy", count=False)

    await mq.produce("t", 1, message_id="A1")
    await mq.start()
    await eventually(lambda: len(attempts) == 3)
    facts = await in_state(mq, "A1", "delayed")
    assert attempts == [(1, True)] * 3
    assert facts.message is not None
    assert (facts.message.put_off, facts.message.attempts, facts.message.history) == (3, 0, [])
    counts = (await mq.counts()).topics["t"]
    assert (counts.put_off, counts.retried, counts.dead) == (3, 0, 0)
    said = await mq.explain("A1")
    assert "is delayed until" in said
    assert said.endswith("; put off 3 times by its handler")
    assert await is_sound(mq)


async def test_a_message_put_off_once_is_explained_as_such_wherever_it_is(mq: RedisMessageQueue) -> None:
    @mq.handler("t", retry=Retry(1))
    async def on_t(payload: int, ctx: Context) -> None:
        if ctx.token.startswith("1@"):
            raise RetryLater(timedelta(0), count=False)
        raise Reject("no")

    await mq.produce("t", 1, message_id="A1")
    await mq.start()
    await dead(mq, "A1")
    assert (await mq.explain("A1")).endswith("; put off 1 time by its handler")
    await mq.stop()
    await mq.dlq.replay("A1")
    facts = await mq.find("A1")
    assert facts.message is not None
    assert facts.message.put_off == 0, "a replay begins anew"


async def test_put_offs_push_no_failure_out_of_the_history(mq: RedisMessageQueue) -> None:
    """And they do not make it longer."""
    failures, most = 3, HISTORY_LIMIT + 10

    @mq.handler("t", retry=Retry(failures, backoff="fixed", base=0))
    async def on_t(payload: int, ctx: Context) -> None:
        if ctx.attempt == 2 and len(put_off) < most:
            put_off.append(1)
            raise RetryLater(0, count=False)
        raise ValueError(ctx.attempt)

    put_off: list[int] = []
    await mq.produce("t", 1, message_id="A1")
    await mq.start()
    letter = await dead(mq, "A1")
    assert letter.message is not None
    assert [past.error for past in letter.message.history] == [f"ValueError: {n}" for n in (1, 2, 3)]
    assert (letter.message.put_off, letter.message.attempts) == (most, failures)


@ONE_SERVER
async def test_a_hundred_throttled_messages_are_all_done_and_none_is_dead(make_queue: MakeQueue) -> None:
    """One in 10 ms, as a limit of the service behind it would have it; a single failure would be the end."""
    mq = make_queue(concurrency=32, retry=Retry(1))
    loop = asyncio.get_running_loop()
    done: list[float] = []
    allowed_at = loop.time()

    @mq.handler("t")
    async def on_t(payload: int) -> None:
        nonlocal allowed_at
        now = loop.time()
        if now < allowed_at:
            raise RetryLater(0.05, count=False)
        allowed_at = now + 0.01
        done.append(now)

    await mq.produce_many("t", range(100))
    await mq.start()
    await drained(mq, within=30)
    counts = await mq.counts()
    topic = counts.topics["t"]
    assert (counts.dead, topic.completed, topic.retried) == (0, 100, 0)
    assert topic.put_off >= 100
    assert min(late - early for early, late in pairwise(done)) >= 0.01


async def test_a_batch_may_put_some_of_its_messages_off(mq: RedisMessageQueue) -> None:
    @mq.handler("t", batch=10, retry=Retry(1))
    async def on_t(payloads: list[int]) -> list[Exception | None]:
        return [RetryLater(3600, count=False) if payload else None for payload in payloads]

    await mq.produce("t", 0, message_id="A0")
    await mq.produce("t", 1, message_id="A1")
    await mq.start()
    await in_state(mq, "A0", "gone")
    await in_state(mq, "A1", "delayed")


async def test_what_is_put_off_past_its_lifetime_expires(mq: RedisMessageQueue) -> None:
    @mq.handler("t")
    async def on_t(payload: int) -> None:
        raise RetryLater(0.02, count=False)

    await mq.produce("t", 1, message_id="A1", ttl=0.3)
    await mq.start()
    assert (await dead(mq, "A1")).reason == "expired"


@pytest.mark.parametrize("delay", [None, -1, "60", nan, inf])
def test_putting_off_needs_a_delay(delay: Any) -> None:
    with pytest.raises(ConfigError, match=r"the delay of RetryLater must be seconds >= 0"):
        RetryLater(delay, count=False)
