"""A handler's timeout is enforced, may be moved by the handler, and is a failed attempt."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from math import inf, nan
from typing import TYPE_CHECKING, Any

import pytest

from mx_rmq import ConfigError, Context, LeaseLost, RedisMessageQueue, Retry
from tests.words import ONE_SERVER, dead, eventually, in_state, is_sound

if TYPE_CHECKING:
    from tests.words import MakeQueue

pytestmark = ONE_SERVER

ONCE = Retry(1)


async def test_a_handler_past_its_timeout_is_cancelled_and_the_attempt_failed(mq: RedisMessageQueue) -> None:
    ended: list[BaseException] = []

    @mq.handler("t", timeout=0.1, retry=Retry(2, backoff="fixed", base=0))
    async def on_t(payload: int) -> None:
        try:
            await asyncio.Event().wait()
        except BaseException as error:
            ended.append(error)
            raise

    await mq.start()
    await mq.produce("t", 1, message_id="A1")
    letter = await dead(mq, "A1")
    assert (letter.reason, letter.kind) == ("failed", "TimeoutError")
    assert letter.error.startswith("TimeoutError: the handler timed out after 0.")
    assert [type(error) for error in ended] == [asyncio.CancelledError] * 2
    assert letter.message is not None
    assert letter.message.attempts == 2
    assert letter.message.crashes == 0
    assert all(0.1 <= attempt.took < 5 for attempt in letter.message.history)


async def test_the_timeout_of_the_queue_holds_where_a_handler_has_none_of_its_own(
    make_queue: MakeQueue,
) -> None:
    mq = make_queue(timeout=0.1, retry=ONCE)

    @mq.handler("t")
    async def on_t(payload: int) -> None:
        await asyncio.Event().wait()

    await mq.start()
    await mq.produce("t", 1, message_id="A1")
    assert (await dead(mq, "A1")).kind == "TimeoutError"


async def test_a_handler_with_timeout_none_may_run_for_ever(make_queue: MakeQueue) -> None:
    mq = make_queue(timeout=0.05, retry=ONCE)
    finish = asyncio.Event()

    @mq.handler("endless", timeout=None)
    async def endless(payload: int) -> None:
        await finish.wait()

    @mq.handler("short")
    async def short(payload: int) -> None:
        await asyncio.Event().wait()

    await mq.start()
    await mq.produce("endless", 1, message_id="endless")
    await mq.produce("short", 1, message_id="short")
    await dead(mq, "short")
    assert (await mq.find("endless")).state == "running"
    finish.set()
    await in_state(mq, "endless", "gone")


@pytest.mark.parametrize("returns", [True, False], ids=["returns", "raises"])
async def test_a_handler_that_swallows_its_cancellation_has_timed_out_all_the_same(
    mq: RedisMessageQueue, returns: bool
) -> None:
    ended: list[int] = []

    @mq.handler("t", timeout=0.1, retry=ONCE)
    async def on_t(payload: int) -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await asyncio.sleep(0.01)
        ended.append(payload)
        if not returns:
            raise KeyError

    await mq.start()
    for n in range(8):
        await mq.produce("t", n, message_id=f"A{n}")
    for n in range(8):
        assert (await dead(mq, f"A{n}")).kind == "TimeoutError"
    assert sorted(ended) == list(range(8))


async def test_a_cleanup_in_the_handler_may_wait_for_things(mq: RedisMessageQueue) -> None:
    cleaned: list[int] = []

    @mq.handler("t", timeout=0.05, retry=ONCE)
    async def on_t(payload: int) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0.05)
            cleaned.append(payload)

    await mq.start()
    await mq.produce("t", 1, message_id="A1")
    await dead(mq, "A1")
    assert cleaned == [1]


async def test_extend_moves_the_timeout_away(mq: RedisMessageQueue) -> None:
    remaining: list[float] = []
    finish = asyncio.Event()

    @mq.handler("t", timeout=0.1, retry=ONCE)
    async def on_t(payload: int, ctx: Context) -> None:
        ctx.extend(60)
        remaining.append(ctx.remaining)
        await finish.wait()

    @mq.handler("other", timeout=0.2, retry=ONCE)
    async def other(payload: int) -> None:
        await asyncio.Event().wait()

    await mq.start()
    await mq.produce("t", 1, message_id="A1")
    await mq.produce("other", 1, message_id="other")
    await dead(mq, "other")
    assert 50 < remaining[0] <= 60
    finish.set()
    await in_state(mq, "A1", "gone")


@pytest.mark.parametrize("timeout", [60, None])
async def test_extend_moves_the_timeout_near(mq: RedisMessageQueue, timeout: float | None) -> None:
    @mq.handler("t", timeout=timeout, retry=ONCE)
    async def on_t(payload: int, ctx: Context) -> None:
        ctx.extend(0.05)
        await asyncio.Event().wait()

    await mq.start()
    await mq.produce("t", 1, message_id="A1")
    assert (await dead(mq, "A1")).kind == "TimeoutError"


async def test_a_handler_may_extend_again_and_again_but_not_when_it_is_too_late(
    mq: RedisMessageQueue,
) -> None:
    extended: list[int] = []
    errors: list[Exception] = []

    @mq.handler("t", timeout=0.2, retry=ONCE)
    async def on_t(payload: int, ctx: Context) -> None:
        for n in range(4):
            await asyncio.sleep(0.1)
            ctx.extend(0.2)
            extended.append(n)
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            try:
                ctx.extend(60)
            except LeaseLost as error:
                errors.append(error)

    await mq.start()
    await mq.produce("t", 1, message_id="A1")
    assert (await dead(mq, "A1")).kind == "TimeoutError"
    assert extended == [0, 1, 2, 3]
    assert len(errors) == 1


async def test_extend_takes_a_timedelta(mq: RedisMessageQueue) -> None:
    remaining: list[float] = []

    @mq.handler("t", timeout=timedelta(seconds=30))
    async def on_t(payload: int, ctx: Context) -> None:
        remaining.append(ctx.remaining)
        ctx.extend(timedelta(minutes=1))
        remaining.append(ctx.remaining)

    await mq.start()
    await mq.produce("t", 1)
    await eventually(lambda: len(remaining) == 2)
    assert 25 < remaining[0] <= 30 < 55 < remaining[1] <= 60


@pytest.mark.parametrize("seconds", [0, -1, nan, "30s", None, True, timedelta(0)])
async def test_extend_wants_seconds(mq: RedisMessageQueue, seconds: Any) -> None:
    errors: list[Any] = []

    @mq.handler("t")
    async def on_t(payload: int, ctx: Context) -> None:
        before = ctx.remaining
        with pytest.raises(ConfigError) as refused:
            ctx.extend(seconds)
        assert str(refused.value) == f"the time for extend() must be seconds > 0, got {seconds!r}"
        errors.append(before - ctx.remaining)

    await mq.start()
    await mq.produce("t", 1)
    await eventually(lambda: errors)
    assert 0 <= errors[0] < 1


async def test_extend_for_ever_is_no_timeout(mq: RedisMessageQueue) -> None:
    finish = asyncio.Event()
    remaining: list[float] = []

    @mq.handler("t", timeout=0.05, retry=ONCE)
    async def on_t(payload: int, ctx: Context) -> None:
        if payload:
            ctx.extend(inf)
            remaining.append(ctx.remaining)
        await finish.wait()

    await mq.start()
    await mq.produce("t", 1, message_id="A1")
    await mq.produce("t", 0, message_id="A2")
    await dead(mq, "A2")
    assert remaining == [inf]
    finish.set()
    await in_state(mq, "A1", "gone")


async def test_a_timeout_hits_its_own_handler_only(make_queue: MakeQueue) -> None:
    """What runs next in the same runner is not cancelled by what the last one left behind."""
    mq = make_queue(concurrency=1)
    done: list[int] = []

    @mq.handler("slow", timeout=0.05, retry=ONCE)
    async def slow(payload: int) -> None:
        await asyncio.Event().wait()

    @mq.handler("next", retry=ONCE)
    async def following(payload: int) -> None:
        await asyncio.sleep(0.02)
        done.append(payload)

    await mq.start()
    for n in range(5):
        await mq.produce("slow", n)
        await mq.produce("next", n)
    await eventually(lambda: len(done) == 5, within=30)
    assert (await mq.counts()).topics["next"].dead == 0
    assert await is_sound(mq)
