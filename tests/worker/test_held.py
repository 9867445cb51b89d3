"""What a worker holds: given back when it waits too long, settled even if the loop hangs."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from mx_rmq import Context
from tests.proxy import Proxy
from tests.words import ONE_SERVER, drained, events, eventually, in_state, steal

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from mx_rmq.storage.embedded import EmbeddedServer
    from mx_rmq.worker.holdings import Job
    from tests.words import MakeQueue

QUICK = 500
"""Messages that make the pace for which others are held ready."""


@pytest.mark.one_shard
async def test_what_waits_behind_a_slow_handler_runs_on_an_idle_worker(make_queue: MakeQueue) -> None:
    busy, idle = make_queue(concurrency=1, lease=3600, timeout=None), make_queue(lease=3600)
    slow, over = asyncio.Event(), asyncio.Event()
    ran: dict[str, tuple[str, int]] = {}

    @busy.handler("t")
    async def on_busy(payload: str, ctx: Context) -> None:
        ran[ctx.message_id] = "busy", ctx.attempt
        if payload == "slow":
            slow.set()
            await over.wait()

    @idle.handler("t")
    async def on_idle(payload: str, ctx: Context) -> None:
        ran[ctx.message_id] = "idle", ctx.attempt

    for n in range(QUICK):
        await busy.produce("t", "quick", message_id=f"q{n}")
    await busy.produce("t", "slow", message_id="S1")
    for n in range(20):
        await busy.produce("t", "behind", message_id=f"b{n}")
    await busy.start()
    await slow.wait()
    held = (await busy.counts()).topics["t"].processing - 1
    assert held > 0, "nothing was held ready"
    await idle.start()
    await eventually(lambda: len(ran) == QUICK + 21)
    assert {ran[f"b{n}"] for n in range(20)} == {("idle", 1)}
    over.set()
    await drained(busy)


async def test_what_lingers_for_its_batch_is_not_given_back(make_queue: MakeQueue, redis: Redis) -> None:
    mq = make_queue()
    batches: list[list[int]] = []

    @mq.handler("t", batch=10, linger=1.6)
    async def on_t(payloads: list[int], contexts: list[Context]) -> None:
        assert {context.token[:2] for context in contexts} == {"1@"}
        batches.append(payloads)

    await mq.produce_many("t", [1, 2, 3])
    await mq.start()
    await drained(mq)
    assert batches == [[1, 2, 3]]


@pytest.mark.one_shard
@ONE_SERVER
async def test_a_loop_that_hangs_gives_back_what_has_not_begun_and_settles_what_has_finished(
    make_queue: MakeQueue, caplog: pytest.LogCaptureFixture
) -> None:
    """And when it comes back it starts none of it a second time."""
    mq = make_queue(lease=3600, concurrency=1)
    starts: Counter[str] = Counter()
    tokens: dict[str, str] = {}
    attempts: set[int] = set()

    @mq.handler("t")
    async def on_t(payload: str, ctx: Context) -> None:
        starts[ctx.message_id] += 1
        tokens[ctx.message_id] = ctx.token
        attempts.add(ctx.attempt)
        if payload == "block":
            until = time.monotonic() + 10
            while not events(caplog, "loop.hangs") and time.monotonic() < until:
                time.sleep(0.05)  # noqa: ASYNC251 - the loop hangs, which is the point

    for n in range(QUICK):
        await mq.produce("t", "quick", message_id=f"q{n}")
    await mq.produce("t", "block", message_id="B1")
    for n in range(20):
        await mq.produce("t", "behind", message_id=f"b{n}")
    await mq.start()
    await drained(mq)
    (hang,) = events(caplog, "loop.hangs")
    assert hang.settled["returned"] > 0
    assert set(starts.values()) == {1}
    assert len(starts) == QUICK + 21
    assert attempts == {1}
    assert tokens["b0"].startswith("2@"), "it was leased twice and begun once"
    counts = (await mq.counts()).topics["t"]
    assert (counts.completed, counts.retried, counts.dead) == (QUICK + 21, 0, 0)
    assert not events(caplog, "lease.lost")


@ONE_SERVER
async def test_what_is_finished_when_the_loop_hangs_is_settled_before_it_comes_back(
    make_queue: MakeQueue, caplog: pytest.LogCaptureFixture
) -> None:
    mq = make_queue(lease=3600, concurrency=2)
    gate = asyncio.Event()
    starts: Counter[str] = Counter()

    @mq.handler("quick")
    async def on_quick(payload: int) -> None:
        starts["quick"] += 1
        await gate.wait()

    @mq.handler("block")
    async def on_block(payload: int) -> None:
        await eventually(lambda: starts["quick"])
        gate.set()
        await asyncio.sleep(0)  # the other handler ends in this turn of the loop, its settlement has not left
        until = time.monotonic() + 10
        while not events(caplog, "loop.hangs") and time.monotonic() < until:
            time.sleep(0.05)  # noqa: ASYNC251 - the loop hangs, which is the point

    await mq.produce("quick", 1, message_id="Q1")
    await mq.produce("block", 1, message_id="B1")
    await mq.start()
    await drained(mq)
    (hang,) = events(caplog, "loop.hangs")
    assert hang.settled == {"done": 1}
    assert starts["quick"] == 1
    assert not events(caplog, "lease.lost")


@pytest.mark.parametrize("stands_in", [False, True])
async def test_what_the_lease_keeper_settles_at_the_same_time_is_not_called_lost(
    make_queue: MakeQueue, redis: Redis, caplog: pytest.LogCaptureFixture, stands_in: bool
) -> None:
    """The loop may come back while the thread waits for its answer; then the loop's own call is refused."""
    mq = make_queue(lease=3600)
    ran: list[Job] = []

    @mq.handler("t")
    async def on_t(payload: int, ctx: Context) -> None:
        await steal(redis, ctx.message_id)
        ctx._job.is_settling = stands_in
        ran.append(ctx._job)

    await mq.start()
    await mq.produce("t", 1)
    await eventually(lambda: ran and not ran[0].holdings.jobs)
    assert bool(events(caplog, "lease.lost")) is not stands_in


@ONE_SERVER
async def test_a_thousand_messages_of_two_topics_need_no_new_connections(
    make_queue: MakeQueue, server: EmbeddedServer
) -> None:
    """With room for one at a time, the topics that can be waited for change with every message."""
    with Proxy(server) as proxy:
        mq, outside = make_queue(proxy.url), make_queue()
        ran: list[int] = []

        @mq.handler("a", concurrency=1)
        async def on_a(payload: int) -> None:
            ran.append(payload)

        @mq.handler("b", concurrency=1)
        async def on_b(payload: int) -> None:
            ran.append(payload)

        await outside.open()
        await mq.start()
        await outside.produce("a", -1)
        await eventually(lambda: len(ran) == 1)
        before = proxy.connections
        for n in range(500):
            await asyncio.gather(outside.produce("a", n), outside.produce("b", n))
            await eventually(lambda: len(ran) >= 2 * n + 2)  # noqa: B023 - awaited within the turn
        assert proxy.connections - before <= 2
        await mq.close()


@ONE_SERVER
async def test_without_the_right_to_unblock_tokens_are_waited_for_all_the_same(
    make_queue: MakeQueue, redis: Redis, server: EmbeddedServer
) -> None:
    await redis.acl_setuser(
        "few", enabled=True, nopass=True, keys=["*"], commands=["+@all", "-client|unblock"]
    )
    mq = make_queue(server.url.replace("//", "//few:any@"), poll=60)
    ran: list[int] = []

    @mq.handler("a", concurrency=1)
    async def on_a(payload: int) -> None:
        ran.append(payload)

    @mq.handler("b", concurrency=1)
    async def on_b(payload: int) -> None:
        ran.append(payload)

    try:
        await mq.start()
        for n in range(20):
            await asyncio.gather(mq.produce("a", n), mq.produce("b", n))
            await eventually(lambda: len(ran) >= 2 * n + 2)  # noqa: B023 - awaited within the turn
    finally:
        await mq.close()
        await redis.acl_deluser("few")


@ONE_SERVER
async def test_a_settlement_that_is_refused_for_a_while_is_made_in_the_end(
    make_queue: MakeQueue, redis: Redis, server: EmbeddedServer, caplog: pytest.LogCaptureFixture
) -> None:
    """Rights that are taken away and given back, as by a mistake in an ACL file."""
    await redis.acl_setuser("some", enabled=True, nopass=True, keys=["*"], commands=["+@all"])
    mq, outside = make_queue(server.url.replace("//", "//some:any@"), lease=0.6), make_queue()
    starts: Counter[str] = Counter()
    ended = asyncio.Event()

    @mq.handler("t")
    async def on_t(payload: int, ctx: Context) -> None:
        starts[ctx.message_id] += 1
        await redis.acl_setuser("some", enabled=True, commands=["-evalsha"])
        ended.set()

    try:
        await outside.open()
        await mq.start()
        await outside.produce("t", 1, message_id="A1")
        await ended.wait()
        await asyncio.sleep(1.5)  # more than two leases
        await redis.acl_setuser("some", enabled=True, commands=["+evalsha"])
        await in_state(outside, "A1", "gone")
        assert starts == {"A1": 1}
        assert not events(caplog, "settle.failed")
        assert not events(caplog, "messages.recovered")
    finally:
        await mq.close()
        await redis.acl_deluser("some")
