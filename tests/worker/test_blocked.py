"""A handler that blocks the event loop is named once, and past its timeout it has timed out, once."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from redis import Redis as Client

from mx_rmq import Context, LeaseLost, RedisMessageQueue, Retry
from tests.words import ONE_SERVER, PREFIX, dead, drained, events, eventually, in_state, is_sound

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from redis.asyncio import Redis

    from mx_rmq.storage.embedded import EmbeddedServer
    from tests.words import MakeQueue

pytestmark = ONE_SERVER

ONCE = Retry(1)


def block(seconds: float, until: Callable[[], object] = bool) -> None:
    """Keep the thread for so long, or until something is true."""
    end = time.monotonic() + seconds
    while not until() and time.monotonic() < end:
        time.sleep(min(0.02, max(0.0, end - time.monotonic())))


@contextmanager
def client(server: EmbeddedServer) -> Iterator[Any]:
    """Looks at the server while the loop is blocked."""
    with Client(unix_socket_path=str(server.socket)) as client:
        yield client


# -- who it was


@pytest.mark.parametrize("waits_first", [False, True], ids=["at once", "after a wait"])
async def test_a_handler_that_blocks_the_loop_is_named_once_with_how_long_and_where(
    mq: RedisMessageQueue, waits_first: bool, caplog: pytest.LogCaptureFixture
) -> None:
    @mq.handler("orders")
    async def on_order(payload: int) -> None:
        if waits_first:
            await asyncio.sleep(0.3)
        block(1.6)

    await mq.produce_many("orders", [1, 2])
    await mq.start()
    await drained(mq)
    (blocked,) = events(caplog, "handler.blocked")
    assert blocked.levelname == "WARNING"
    assert (blocked.topic, blocked.handler) == ("orders", "on_order")
    assert 1.55 <= blocked.seconds < (1.8 if waits_first else 1.7)
    text = blocked.getMessage()
    assert text.startswith("handler.blocked: handler on_order blocked the event loop for 1.")
    assert "(tests/worker/test_blocked.py:" in text
    assert text.endswith(": make it a plain def")


async def test_a_block_that_does_not_end_is_named_while_it_lasts_and_not_again(
    mq: RedisMessageQueue, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mx_rmq.worker.pulse._LONG", 1.5)
    named: list[bool] = []

    @mq.handler("orders")
    async def on_order(payload: int) -> None:
        block(10, lambda: events(caplog, "handler.blocked"))
        named.append(bool(events(caplog, "handler.blocked")))

    await mq.produce("orders", 1)
    await mq.start()
    await drained(mq)
    (blocked,) = events(caplog, "handler.blocked")
    assert named == [True], "while it lasted"
    assert "handler on_order has been blocking the event loop for " in blocked.getMessage()
    assert 1.5 <= blocked.seconds < 3


async def test_only_what_blocks_for_a_second_in_the_loop_is_named(
    mq: RedisMessageQueue, caplog: pytest.LogCaptureFixture
) -> None:
    @mq.handler("threaded")
    def threaded(payload: int) -> None:
        block(1.6)

    @mq.handler("waiting")
    async def waiting(payload: int) -> None:
        await asyncio.sleep(1.6)

    @mq.handler("short")
    async def short(payload: int) -> None:
        block(0.6)

    for topic in ("threaded", "waiting", "short"):
        await mq.produce(topic, 1)
    await mq.start()
    await drained(mq)
    assert not events(caplog, "handler.blocked")
    assert not events(caplog, "loop.blocked")


async def test_middleware_that_blocks_around_a_plain_function_is_told_so(
    mq: RedisMessageQueue, caplog: pytest.LogCaptureFixture
) -> None:
    @mq.middleware
    async def slow(call_next: Any, payload: Any, ctx: Any) -> Any:
        block(1.3)
        return await call_next(payload, ctx)

    @mq.handler("t")
    def on_t(payload: int) -> None: ...

    await mq.produce("t", 1)
    await mq.start()
    await drained(mq)
    (blocked,) = events(caplog, "handler.blocked")
    assert blocked.getMessage().endswith(": its middleware must not block")


async def test_other_code_that_blocks_the_loop_is_named_by_its_place(
    mq: RedisMessageQueue, caplog: pytest.LogCaptureFixture
) -> None:
    @mq.handler("t")
    async def on_t(payload: int) -> None: ...

    async def view() -> None:
        block(1.3)

    await mq.start()
    for _ in range(2):
        await asyncio.create_task(view())
        await asyncio.sleep(0.2)  # a few beats
    (blocked,) = events(caplog, "loop.blocked")
    assert 1.2 <= blocked.seconds < 1.5
    assert "not by a handler (tests/worker/test_blocked.py:" in blocked.getMessage()
    assert not events(caplog, "handler.blocked")


# -- past its timeout


@pytest.mark.parametrize("raises", [False, True], ids=["returns", "raises"])
async def test_a_handler_that_blocks_past_its_timeout_has_timed_out_however_it_ends(
    mq: RedisMessageQueue, raises: bool
) -> None:
    ran: list[int] = []

    @mq.handler("t", timeout=0.2, retry=ONCE)
    async def on_t(payload: int) -> None:
        ran.append(payload)
        block(0.4)
        if raises:
            raise KeyError

    await mq.produce("t", 1, message_id="A1")
    await mq.start()
    letter = await dead(mq, "A1")
    assert (letter.reason, letter.kind, ran) == ("failed", "TimeoutError", [1])
    counts = (await mq.counts()).topics["t"]
    assert (counts.completed, counts.dead) == (0, 1)


async def test_who_extends_in_time_may_block_until_then(mq: RedisMessageQueue) -> None:
    @mq.handler("t", timeout=0.2, retry=ONCE)
    async def on_t(payload: int, ctx: Context) -> None:
        ctx.extend(30)
        block(0.4)

    await mq.produce("t", 1, message_id="A1")
    await mq.start()
    await in_state(mq, "A1", "gone")
    assert (await mq.counts()).topics["t"].completed == 1


async def test_who_extends_after_the_timeout_is_too_late(mq: RedisMessageQueue) -> None:
    told: list[str] = []

    @mq.handler("t", timeout=0.2, retry=ONCE)
    async def on_t(payload: int, ctx: Context) -> None:
        block(0.4)
        try:
            ctx.extend(30)
        except LeaseLost as error:
            told.append(str(error))

    await mq.produce("t", 1, message_id="A1")
    await mq.start()
    assert (await dead(mq, "A1")).kind == "TimeoutError"
    assert "timed out" in told[0]


@pytest.mark.one_shard
async def test_a_block_without_an_end_is_a_time_out_while_it_lasts(
    make_queue: MakeQueue, server: EmbeddedServer, caplog: pytest.LogCaptureFixture
) -> None:
    """Judged by the retry policy: each attempt is one failure, and none is blamed on a crash."""
    caplog.set_level("INFO", "mx_rmq")
    mq = make_queue(lease=3600)
    attempts: list[int] = []
    seen: list[bool] = []

    @mq.handler("t", timeout=0.5, retry=Retry(2, backoff="fixed", base=0))
    async def on_t(payload: int, ctx: Context) -> None:
        attempts.append(ctx.attempt)
        settled = "dlq" if ctx.is_last else "delay_tasks"
        with client(server) as look:
            block(10, lambda: look.zscore(PREFIX + settled, "A1"))
            seen.append(look.zscore(PREFIX + settled, "A1") is not None)
        assert ctx.attempt == attempts[-1], "what the handler sees does not change under it"

    await mq.produce("t", 1, message_id="A1")
    await mq.start()
    letter = await dead(mq, "A1")
    assert seen == [True, True]
    assert attempts == [1, 2]
    assert (letter.reason, letter.kind) == ("failed", "TimeoutError")
    assert letter.message is not None
    assert (letter.message.attempts, letter.message.crashes) == (2, 0)
    assert all(past.error.startswith("TimeoutError: ") for past in letter.message.history)
    assert len(events(caplog, "message.retried")) == len(events(caplog, "message.dead")) == 1
    await asyncio.sleep(0.2)  # whatever the runner still has to say
    assert not events(caplog, "lease.lost")
    counts = (await mq.counts()).topics["t"]
    assert (counts.completed, counts.retried, counts.dead, counts.processing) == (0, 1, 1, 0)
    assert await is_sound(mq)


@pytest.mark.one_shard
async def test_who_waits_past_its_timeout_while_another_blocks_is_ended_and_its_runner_goes_on(
    make_queue: MakeQueue, server: EmbeddedServer
) -> None:
    mq = make_queue(lease=3600, concurrency=2)
    ended: list[str] = []

    @mq.handler("waits", timeout=0.3, retry=ONCE)
    async def waits(payload: int) -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            ended.append("waits")
            raise

    @mq.handler("blocks")
    async def blocks(payload: int) -> None:
        with client(server) as look:
            block(10, lambda: look.zscore(PREFIX + "dlq", "W1"))
        ended.append("blocks")

    @mq.handler("next")
    async def following(payload: int) -> None:
        await eventually(lambda: len(ended) == 2)

    await mq.produce("waits", 1, message_id="W1")
    await mq.produce("blocks", 1, message_id="B1")
    await mq.start()
    assert (await dead(mq, "W1")).kind == "TimeoutError"
    await mq.produce_many("next", [1, 2])
    await drained(mq)
    assert ended == ["blocks", "waits"]
    assert (await mq.counts()).topics["next"].completed == 2


@pytest.mark.parametrize("seconds", [0.9, 2.8], ids=["a moment", "a hang"])
async def test_a_plain_function_that_returned_in_time_has_not_timed_out_while_another_blocks(
    make_queue: MakeQueue, seconds: float, caplog: pytest.LogCaptureFixture
) -> None:
    """It ended in its thread, but the loop could not see that before its timeout was over."""
    mq = make_queue(lease=3600, concurrency=3)
    began: list[str] = []

    @mq.handler("plain", timeout=0.6, retry=ONCE)
    def plain(payload: int) -> None:
        began.append("plain")
        time.sleep(0.2)

    @mq.handler("raises", timeout=0.6, retry=ONCE)
    def raises(payload: int) -> None:
        began.append("raises")
        time.sleep(0.2)
        raise KeyError

    @mq.handler("blocks")
    async def blocks(payload: int) -> None:
        await eventually(lambda: len(began) == 2)
        block(seconds)

    await mq.start()
    for topic in ("blocks", "plain", "raises"):
        await mq.produce(topic, 1, message_id=topic)
    assert (await dead(mq, "raises")).kind == "KeyError"
    await in_state(mq, "plain", "gone")
    await in_state(mq, "blocks", "gone")
    assert sorted(began) == ["plain", "raises"]
    counts = (await mq.counts()).topics["plain"]
    assert (counts.completed, counts.dead, counts.retried) == (1, 0, 0)
    assert not events(caplog, "lease.lost")


async def test_a_plain_function_past_its_timeout_is_ended_while_another_blocks(make_queue: MakeQueue) -> None:
    mq = make_queue(lease=3600, concurrency=2)
    ended: list[str] = []
    began: list[str] = []

    @mq.handler("plain", timeout=0.5, batch=2, linger=0.2, retry=ONCE)
    def plain(payloads: list[int]) -> None:
        began.append("plain")
        try:
            block(10)
        finally:
            block(0.1)  # a second end would stop this
            ended.append("plain")

    @mq.handler("blocks")
    async def blocks(payload: int) -> None:
        await eventually(lambda: began)
        block(8, lambda: ended)
        ended.append("blocks")

    await mq.start()
    await mq.produce("plain", 1, message_id="P1")
    await mq.produce("plain", 2, message_id="P2")
    await mq.produce("blocks", 1, message_id="B1")
    assert (await dead(mq, "P1")).kind == (await dead(mq, "P2")).kind == "TimeoutError"
    await in_state(mq, "B1", "gone")
    assert ended == ["plain", "blocks"]
    assert began == ["plain"]


async def test_the_timeout_goes_on_after_a_plain_function_for_its_middleware(mq: RedisMessageQueue) -> None:
    @mq.middleware
    async def slow(call_next: Any, payload: Any, ctx: Any) -> Any:
        await call_next(payload, ctx)
        assert 0 < ctx.remaining < 0.3
        await asyncio.Event().wait()

    @mq.handler("t", timeout=0.3, retry=ONCE)
    def on_t(payload: int) -> None: ...

    await mq.produce("t", 1, message_id="A1")
    await mq.start()
    assert (await dead(mq, "A1")).kind == "TimeoutError"


# -- seen from outside


@pytest.mark.one_shard
async def test_a_worker_whose_loop_is_blocked_stays_registered(
    make_queue: MakeQueue, server: EmbeddedServer
) -> None:
    """Else it would count as gone after a while, and what it holds as crashed, though its process lives."""
    mq = make_queue(lease=3600)
    seen: list[float] = []

    @mq.handler("t")
    async def on_t(payload: int) -> None:
        with client(server) as look:

            def seen_at() -> float:
                ((_, at),) = look.zrange(PREFIX + "workers_seen", 0, -1, withscores=True)
                return float(at)

            seen.append(seen_at())
            block(4.5, lambda: seen_at() > seen[0])  # the loop itself registers every five seconds
            seen.append(seen_at())

    await mq.start()
    await eventually(mq.workers)
    await mq.produce("t", 1)
    await eventually(lambda: len(seen) == 2)
    assert seen[1] > seen[0]
    (worker,) = await mq.workers()
    assert worker.connection


BLOCKER = """
import sys, time
from mx_rmq import RedisMessageQueue, run

mq = RedisMessageQueue(sys.argv[1], name="q", server_check="off", lease=0.4, patience=0, timeout=None)

@mq.handler("t")
async def on_t(payload: int) -> None:
    print("running", flush=True)
    time.sleep(60)

run(mq)
"""


@pytest.mark.usefixtures("watchful")
async def test_what_is_recovered_from_a_blocked_worker_timed_out_and_did_not_crash(
    make_queue: MakeQueue, server: EmbeddedServer
) -> None:
    """The first time it may not have begun; from then on it is a failed attempt, for the policy to judge."""
    mq = make_queue(lease=0.4, retry=Retry(2, backoff="fixed", base=3600))

    @mq.handler("other")
    async def other(payload: int) -> None: ...

    await mq.start()
    await mq.produce("t", 1, message_id="A1")
    command = [sys.executable, "-c", BLOCKER, server.url]
    workers = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) for _ in range(2)]
    try:
        facts = await in_state(mq, "A1", "delayed", within=30)
    finally:
        for worker in workers:
            worker.kill()
            worker.communicate()
    assert facts.message is not None
    assert (facts.message.attempts, facts.message.crashes, facts.message.unbegun) == (1, 0, 1)
    first, second = facts.message.history
    assert first.error == "the lease ran out although the worker is connected"
    assert second.error.startswith("TimeoutError: its lease ran out although its worker is connected")


@pytest.mark.usefixtures("watchful")
async def test_a_blocked_worker_whose_connections_are_cut_has_not_vanished(
    make_queue: MakeQueue, server: EmbeddedServer, redis: Redis, caplog: pytest.LogCaptureFixture
) -> None:
    """Its loop cannot open others, but the process lives, and its thread keeps the leases."""
    mq = make_queue(lease=3600, recovery_grace=1.0)

    @mq.handler("other")
    async def other(payload: int) -> None: ...

    await mq.start()
    (here,) = await eventually(mq.workers)
    await mq.produce("t", 1, message_id="A1")

    async def said() -> bytes:
        registered: dict[Any, Any] = await redis.hgetall(PREFIX + "workers_connections")
        registered.pop(here.name.encode(), None)
        return b"".join(registered.values())

    script = BLOCKER.replace("lease=0.4", "lease=3600")
    command = [sys.executable, "-c", script, server.url]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as worker:
        try:
            await in_state(mq, "A1", "running", within=30)
            first = await said()

            async def is_other() -> bool:
                return await said() not in (b"", first)

            await eventually(is_other)  # the thread stands in
            for _ in range(2):
                for id_ in (await said()).split()[1].split(b"+"):
                    await redis.execute_command("CLIENT", "KILL", "ID", id_)
                await asyncio.sleep(2.5)
        finally:
            worker.kill()
    assert not events(caplog, "worker.vanished")
    vanished = partial(events, caplog, "worker.vanished")
    await eventually(vanished)  # now that the process has ended, by the thread's connection
