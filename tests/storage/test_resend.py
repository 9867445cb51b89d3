from __future__ import annotations

import asyncio
import time

import pytest

from mx_rmq.errors import OutOfMemory, ServerUnavailable
from mx_rmq.storage.resend import GrowingWait, resend, resend_blocking, too_late
from tests.words import eventually


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


async def test_the_caller_says_which_errors_may_pass() -> None:
    call = Call(OutOfMemory("full"), ServerUnavailable("away"))
    with pytest.raises(ServerUnavailable, match="away"):
        await resend(call, patience=5, passes=lambda error: isinstance(error, OutOfMemory))
    assert call.calls == 2


async def test_an_error_that_did_not_pass_in_time_is_raised_as_it_is() -> None:
    call = Call(*[OutOfMemory("full")] * 1000)
    with pytest.raises(OutOfMemory, match=r"^full$"):
        await resend(call, patience=0.2, passes=lambda error: isinstance(error, OutOfMemory))
    assert call.calls > 1


async def test_the_patience_may_have_begun_before() -> None:
    call = Call(ServerUnavailable("away"))
    with pytest.raises(ServerUnavailable, match="gave up after 30 s"):
        await resend(call, patience=30, since=time.monotonic() - 30)
    assert call.calls == 1


async def test_an_attempt_that_hangs_is_ended_so_that_it_sends_nothing_later() -> None:
    ended: list[str] = []

    async def hang() -> None:
        if not ended:
            ended.append("first")
            raise ServerUnavailable("no connection")
        try:
            await asyncio.sleep(3600)
        finally:
            ended.append("second")

    with pytest.raises(ServerUnavailable, match=r"no connection; gave up after 0\.2 s"):
        async with asyncio.timeout(5):
            await resend(hang, patience=0.2, within=0.1)
    assert ended == ["first", "second"]


async def test_nothing_is_sent_when_the_process_stood_still_for_too_long() -> None:
    """The server may have forgotten by then that it was sent before."""
    call = Call(ServerUnavailable("away"), ServerUnavailable("away"))
    sending = asyncio.ensure_future(resend(call, patience=0.3, within=0.1))
    await eventually(lambda: call.calls == 1)
    time.sleep(0.5)  # noqa: ASYNC251 - the loop stands still
    with pytest.raises(ServerUnavailable, match="gave up"):
        await sending
    assert call.calls == 1


async def test_it_says_after_each_failure_how_long_it_waits() -> None:
    waits: list[float] = []
    call = Call(ServerUnavailable("away"), ServerUnavailable("away"))
    await resend(call, patience=5, failed=lambda error, wait: waits.append(wait))
    assert len(waits) == 2
    assert 0 < waits[0] <= 0.05


def test_without_a_loop_nothing_is_sent_later_than_it_may_be() -> None:
    late: list[bool] = []
    told: list[Exception] = []

    def call() -> None:
        late.append(too_late())
        if len(late) > 1:
            time.sleep(0.5)
            late.append(too_late())
        raise ServerUnavailable("away")

    with pytest.raises(ServerUnavailable, match=r"away; gave up after 0\.2 s"):
        resend_blocking(call, patience=0.2, within=0.1, failed=told.append)
    assert late == [False, False, True]
    assert list(map(str, told)) == ["away", "away"]
    assert not too_late()


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
    firsts = [GrowingWait(0.1, 1.0).next() for _ in range(50)]
    assert all(0.05 <= wait <= 0.1 for wait in firsts)
    assert len(set(firsts)) > 1
    backoff = GrowingWait(0.1, 1.0)
    waits = [backoff.next() for _ in range(20)]
    for wait, most in zip(waits, [0.1, 0.2, 0.4, 0.8] + [1.0] * 16, strict=True):
        assert most / 2 <= wait <= most


def test_after_a_reset_waits_are_short_again() -> None:
    backoff = GrowingWait(0.1, 1.0)
    for _ in range(10):
        backoff.next()
    backoff.reset()
    assert backoff.next() <= 0.1
