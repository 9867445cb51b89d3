"""A context for calling a handler directly."""

from __future__ import annotations

import asyncio
import time
from math import inf
from typing import Any

import pytest

from mx_rmq import ConfigError, Context, InvalidName, InvalidPayload, RedisMessageQueue, Retry
from mx_rmq.testing import context

mq = RedisMessageQueue("unix:///nowhere/at/all")


@mq.handler("orders")
async def on_order(order: dict[str, Any], ctx: Context) -> str:
    return f"{order['id']} {ctx.topic} {ctx.message_id} {ctx.attempt} {ctx.headers.get('trace', '-')}"


@mq.handler("files")
def on_file(name: str, ctx: Context) -> float:
    ctx.extend(60)
    return ctx.remaining


async def test_a_handler_can_be_called_with_it() -> None:
    given = context(attempt=2, topic="orders", message_id="A1", headers={"trace": "7"})
    assert isinstance(given, Context)
    assert await on_order({"id": "X"}, given) == "X orders A1 2 7"
    assert await on_order({"id": "X"}, context()) == "X test test 1 -"


def test_no_event_loop_is_needed() -> None:
    assert on_file("x", context(timeout=5)) == pytest.approx(60, abs=5)


def test_the_rest_is_what_a_worker_would_say() -> None:
    before = time.time()
    ctx = context()
    assert ctx.remaining == inf
    assert before <= ctx.created_at <= time.time()
    assert ctx.token == f"1@{ctx.fence}"
    assert context().fence > 2**50
    assert context(created_at=5.0).created_at == 5.0
    assert repr(context(topic="orders", message_id="A1", attempt=3)) == "<Context orders A1 attempt 3>"


async def test_lost_is_an_event_that_the_test_sets() -> None:
    ctx = context()
    assert not ctx.lost.is_set()
    waiting = asyncio.create_task(ctx.lost.wait())
    ctx.lost.set()
    await asyncio.wait_for(waiting, 5)


def test_attempts_and_state_are_as_given() -> None:
    ctx: Any = context(attempt=2, max_attempts=3, state={"pool": 1})
    assert (ctx.max_attempts, ctx.is_last, ctx.state) == (3, False, {"pool": 1})
    last: Any = context(attempt=3, max_attempts=3)
    assert last.is_last
    usual: Any = context()
    assert usual.max_attempts == Retry().max_attempts


def test_extend_refuses_what_a_worker_refuses() -> None:
    with pytest.raises(ConfigError, match="must be seconds > 0"):
        context().extend(0)


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        ({"attempt": 0}, ConfigError),
        ({"attempt": "2"}, ConfigError),
        ({"max_attempts": 0}, ConfigError),
        ({"timeout": 0}, ConfigError),
        ({"topic": "no spaces"}, InvalidName),
        ({"message_id": ""}, InvalidName),
        ({"headers": {"n": 1}}, InvalidPayload),
    ],
    ids=str,
)
def test_what_no_message_could_have_is_refused(wrong: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        context(**wrong)
