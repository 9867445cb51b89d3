from __future__ import annotations

import asyncio

import pytest

from mx_rmq.errors import OutOfMemory, ServerUnavailable
from mx_rmq.resend import Backoff, resend
from tests.worker.helpers import eventually


class Call:
    """Fails a few times before it succeeds."""

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)
        self.calls = 0

    async def __call__(self) -> str:
        self.calls += 1
        if self.errors:
            raise self.errors.pop(0)
        return "done"


async def test_a_call_that_succeeds_is_made_once() -> None:
    call = Call()
    assert await resend(call, patience=5) == "done"
    assert call.calls == 1


async def test_a_call_is_made_again_while_the_server_is_unavailable() -> None:
    call = Call(ServerUnavailable("away"), ServerUnavailable("away"))
    assert await resend(call, patience=5) == "done"
    assert call.calls == 3


async def test_any_other_error_is_not_worth_another_try() -> None:
    """The server has answered."""
    call = Call(ServerUnavailable("away"), OutOfMemory("full"))
    with pytest.raises(OutOfMemory):
        await resend(call, patience=5)
    assert call.calls == 2


async def test_it_gives_up_when_the_patience_is_over_and_says_so() -> None:
    call = Call(*[ServerUnavailable("no connection")] * 1000)
    with pytest.raises(ServerUnavailable, match=r"no connection; gave up after 0\.2 s"):
        await resend(call, patience=0.2)
    assert call.calls > 1


async def test_without_patience_there_is_one_try() -> None:
    call = Call(ServerUnavailable("away"))
    with pytest.raises(ServerUnavailable, match="away"):
        await resend(call, patience=0)
    assert call.calls == 1


async def test_a_cancelled_call_ends_at_once() -> None:
    call = Call(*[ServerUnavailable("away")] * 1000)
    task = asyncio.create_task(resend(call, patience=3600))

    async def tried_again() -> bool:
        return call.calls >= 2

    await eventually(tried_again)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


def test_waits_grow_to_a_limit_and_are_never_equal_for_all() -> None:
    firsts = [Backoff(0.1, 1.0).wait() for _ in range(50)]
    assert all(0.05 <= wait <= 0.1 for wait in firsts)
    assert len(set(firsts)) > 1
    backoff = Backoff(0.1, 1.0)
    waits = [backoff.wait() for _ in range(20)]
    for wait, most in zip(waits, [0.1, 0.2, 0.4, 0.8] + [1.0] * 16, strict=True):
        assert most / 2 <= wait <= most


def test_after_a_reset_waits_are_short_again() -> None:
    backoff = Backoff(0.1, 1.0)
    for _ in range(10):
        backoff.wait()
    backoff.reset()
    assert backoff.wait() <= 0.1
