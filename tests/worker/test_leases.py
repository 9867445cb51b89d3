"""A lease is kept while the worker lives, never longer, and losing it undoes the delivery."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from math import inf
from typing import TYPE_CHECKING, Any

import pytest
from redis import Redis as Client

from mx_rmq import Context, Retry
from mx_rmq.storage.blocking import BlockingConnections, run_blocking
from mx_rmq.storage.keys import Keys
from mx_rmq.storage.shard import shard_number
from mx_rmq.storage.store import Store
from tests.harness import read_state
from tests.words import ONE_SERVER, drained, events, eventually, in_state, place_at, steal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from redis.asyncio import Redis

    from mx_rmq.storage.embedded import EmbeddedServer
    from tests.words import MakeQueue

ONCE = Retry(1)


@contextmanager
def another_monitor(server: EmbeddedServer) -> Iterator[list[str]]:
    """Somebody outside, whom a blocked event loop does not stop, and who takes over whatever lapses."""
    taken: list[str] = []
    over = threading.Event()
    commands = BlockingConnections(place_at(server.url), 5)
    store = Store(commands, Keys("q"))

    def watch() -> None:
        while not over.wait(0.02):
            overdue = run_blocking(store.take_over(100, lease=3600, holder="outside"))
            taken.extend(row.delivery.id for row in overdue.taken)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield taken
    finally:
        over.set()
        thread.join()
        commands.close()


@pytest.mark.one_shard
async def test_a_handler_of_five_leases_runs_once(make_queue: MakeQueue, server: EmbeddedServer) -> None:
    mq = make_queue(lease=0.6)
    ran: list[int] = []

    @mq.handler("t")
    async def on_t(payload: int) -> None:
        ran.append(payload)
        await asyncio.sleep(3.0)

    with another_monitor(server) as taken:
        await mq.start()
        await mq.produce("t", 1, message_id="A1")
        await in_state(mq, "A1", "gone")
    assert (ran, taken) == ([1], [])


@pytest.mark.one_shard
async def test_a_handler_that_blocks_the_event_loop_for_three_leases_runs_once(
    make_queue: MakeQueue, server: EmbeddedServer
) -> None:
    mq = make_queue(lease=0.7, concurrency=1)
    ran: list[int] = []

    @mq.handler("t")
    async def on_t(payload: int) -> None:
        ran.append(payload)
        time.sleep(2.1)  # noqa: ASYNC251 - what one must not do

    with another_monitor(server) as taken:
        await mq.start()
        await mq.produce("t", 1, message_id="A1")
        await in_state(mq, "A1", "gone")
    assert (ran, taken) == ([1], [])


@pytest.mark.one_shard
@ONE_SERVER
async def test_what_is_held_ready_keeps_its_lease_too(make_queue: MakeQueue, server: EmbeddedServer) -> None:
    mq = make_queue(lease=0.6)
    ran: list[list[int]] = []

    @mq.handler("t", batch=100, linger=1.8)
    async def on_t(payloads: list[int]) -> None:
        ran.append(payloads)

    with another_monitor(server) as taken:
        await mq.produce_many("t", [1, 2, 3])
        await mq.start()
        await drained(mq)
    assert (ran, taken) == ([[1, 2, 3]], [])


async def test_leases_are_not_kept_in_a_packed_list(make_queue: MakeQueue, redis: Redis) -> None:
    """The server would search it from its start for each, up to 512 leases long."""
    mq = make_queue(worker_name="laptop")
    gate = asyncio.Event()

    @mq.handler("t")
    async def waits(payload: str) -> None:
        await gate.wait()

    await mq.produce("t", "x", message_id="A1")
    await mq.start()
    await in_state(mq, "A1", "running")
    encoding = await redis.object("encoding", Keys("q").of_topic("t", "processing"))
    assert encoding == b"hashtable"
    gate.set()


@pytest.mark.one_shard
async def test_a_lease_is_not_kept_past_the_timeout_of_its_handler(
    make_queue: MakeQueue, server: EmbeddedServer, redis: Redis, caplog: pytest.LogCaptureFixture
) -> None:
    """A handler that hangs and cannot be ended loses its message in the end."""
    mq = make_queue(lease=0.2, timeout=0.3)
    hanging = threading.Event()

    @mq.handler("t", retry=ONCE)
    async def on_t(payload: int) -> None:
        hanging.wait(3)  # the whole loop stands still

    with another_monitor(server) as taken:
        await mq.produce("t", 1, message_id="A1")
        begun = time.monotonic()
        threading.Thread(target=_release_after, args=(hanging, lambda: bool(taken))).start()
        await mq.start()
        await eventually(lambda: taken == ["A1"])
        assert 0.3 <= time.monotonic() - begun < 2.5
        await eventually(lambda: events(caplog, "lease.lost"))
    facts = await mq.find("A1")
    assert (facts.state, facts.holder) == ("running", "outside")


@pytest.mark.one_shard
@ONE_SERVER
@pytest.mark.parametrize(("timeout", "kept"), [(None, False), (60.0, True)], ids=["no timeout", "a timeout"])
async def test_a_loop_that_hangs_for_long_keeps_only_what_has_a_timeout(
    make_queue: MakeQueue, server: EmbeddedServer, timeout: float | None, kept: bool
) -> None:
    """Without one its handler would keep the message for as long as the process lives."""
    mq = make_queue(lease=1.0, patience=0.5, timeout=timeout)

    with another_monitor(server) as taken:

        @mq.handler("t", retry=ONCE)
        async def on_t(payload: int) -> None:
            until = time.monotonic() + (4 if kept else 10)
            while not taken and time.monotonic() < until:
                time.sleep(0.02)  # noqa: ASYNC251 - the whole loop hangs

        await mq.produce("t", 1, message_id="A1")
        await mq.start()
        await eventually(lambda: taken == ["A1"]) if not kept else await in_state(mq, "A1", "gone")
    assert taken == ([] if kept else ["A1"])


def _release_after(event: threading.Event, predicate: Callable[[], bool]) -> None:
    while not predicate() and not event.wait(0.01):
        pass
    event.set()


@pytest.mark.parametrize("ending", ["returns", "raises", "is cancelled"])
async def test_whatever_a_handler_does_after_its_lease_is_lost_changes_nothing(
    make_queue: MakeQueue, redis: Redis, ending: str, caplog: pytest.LogCaptureFixture
) -> None:
    mq = make_queue(lease=1.5)  # the handler reads the whole server before its loss is noticed
    before: list[Any] = []
    ended: list[bool] = []

    @mq.handler("t", retry=ONCE)
    async def on_t(payload: int, ctx: Context) -> None:
        await steal(redis, ctx.message_id)
        before.append(await read_state(redis))
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            ended.append(ctx.lost.is_set())
            if ending == "is cancelled":
                raise
            if ending == "raises":
                raise RuntimeError from None

    await mq.start()
    await mq.produce("t", 1, message_id="A1")
    await eventually(lambda: ended and events(caplog, "lease.lost"))
    assert ended == [True]
    after = await read_state(redis)
    for state in (before[0], after):  # the worker's own signs of life
        for key in ("workers", "workers_seen", "workers_connections"):
            state.pop(key, None)
    assert after == before[0]
    (record,) = events(caplog, "lease.lost")
    assert (record.topic, record.id) == ("t", "A1")


@ONE_SERVER
async def test_a_handler_can_wait_for_the_loss_of_its_lease(make_queue: MakeQueue, redis: Redis) -> None:
    mq = make_queue(lease=0.2)
    seen: list[str] = []

    @mq.handler("t", retry=ONCE)
    async def on_t(payload: int, ctx: Context) -> None:
        lost = asyncio.create_task(ctx.lost.wait())
        await steal(redis, ctx.message_id)
        try:
            await asyncio.Event().wait()
        finally:
            seen.append("lost" if await lost else "")

    await mq.start()
    await mq.produce("t", 1, message_id="A1")
    await eventually(lambda: seen == ["lost"])


@ONE_SERVER
async def test_a_plain_function_whose_lease_is_lost_is_ended_in_its_thread(
    make_queue: MakeQueue, redis: Redis
) -> None:
    mq = make_queue(lease=0.2)
    running, seen = threading.Event(), []

    @mq.handler("t", retry=ONCE)
    def on_t(payload: int, ctx: Context) -> None:
        running.set()
        try:
            while True:
                time.sleep(0.001)
        finally:
            seen.append(ctx.lost.is_set())

    await mq.start()
    await mq.produce("t", 1, message_id="A1")
    await eventually(running.is_set)
    await steal(redis, "A1")
    await eventually(lambda: seen == [True])
    assert (await mq.find("A1")).holder == "thief"


@ONE_SERVER
async def test_what_was_lost_before_it_began_does_not_begin(make_queue: MakeQueue, redis: Redis) -> None:
    mq = make_queue(lease=0.2)
    ran: list[list[int]] = []

    @mq.handler("t", batch=2, linger=60)
    async def on_t(payloads: list[int]) -> None:
        ran.append(payloads)

    await mq.start()
    await mq.produce("t", 1, message_id="A1")
    await in_state(mq, "A1", "running")
    await steal(redis, "A1")
    await asyncio.sleep(0.5)  # two heartbeats, of which the first one notices
    await mq.produce("t", 2, message_id="A2")
    await in_state(mq, "A2", "gone")
    assert ran == [[2]]
    assert (await mq.find("A1")).holder == "thief"


@ONE_SERVER
async def test_what_a_process_held_while_it_stood_still_does_not_begin_any_more(
    make_queue: MakeQueue, redis: Redis
) -> None:
    """Somebody else may have run it to its end; the thread that would find out wakes at the same time."""
    mq = make_queue(lease=0.3, concurrency=1, recovery_grace=None)
    tokens: dict[str, str] = {}

    @mq.handler("t")
    async def on_t(payload: str, ctx: Context) -> None:
        tokens[ctx.message_id] = ctx.token
        if payload == "block":
            worker: Any = mq._lifecycle.worker
            worker._leases.stop(5)  # as in a process that stands still, nobody extends
            time.sleep(0.6)  # noqa: ASYNC251 - the loop stands still, which is the point

    for n in range(500):  # a quick pace, so that messages are held ready
        await mq.produce("t", "quick", message_id=f"q{n}")
    await mq.produce("t", "block", message_id="B1")
    await mq.produce("t", "held", message_id="H1")
    await mq.start()
    await drained(mq)
    assert not tokens["H1"].startswith("1@"), "it was taken over first"


@pytest.mark.one_shard
@ONE_SERVER
@pytest.mark.parametrize("taken", [True, False], ids=["taken over", "left alone"])
async def test_who_may_have_been_missed_asks_before_it_begins(
    taken: bool, make_queue: MakeQueue, server: EmbeddedServer, caplog: pytest.LogCaptureFixture
) -> None:
    """Those who miss a worker's connection do not wait for its lease, so its own clock proves nothing."""
    mq = make_queue(lease=3600, concurrency=1, recovery_grace=0.5)
    ran: list[str] = []

    @mq.handler("t")
    async def on_t(payload: str, ctx: Context) -> None:
        ran.append(ctx.message_id)
        if payload == "block":
            time.sleep(0.8)  # noqa: ASYNC251 - the loop stands still, which is the point
            if taken:
                with Client(unix_socket_path=str(server.socket)) as thief:
                    thief.hset("mx-rmq:{q}:t:processing", "H1", "99@1763230000000000 normal inf thief run")

    for n in range(500):  # a quick pace, so that messages are held ready
        await mq.produce("t", "quick", message_id=f"q{n}")
    await mq.produce("t", "block", message_id="B1")
    await mq.produce("t", "held", message_id="H1")
    await mq.produce("t", "last", message_id="L1")
    await mq.start()
    await in_state(mq, "L1", "gone")
    assert ran[-1] == "L1"
    assert ran.count("H1") == (0 if taken else 1)
    assert [record.id for record in events(caplog, "lease.lost")] == (["H1"] if taken else [])
    assert not events(caplog, "start.not_noted")


async def test_a_topic_whose_leases_cannot_be_kept_costs_no_other_topic_its_own(
    make_queue: MakeQueue, redis: Redis, server: EmbeddedServer
) -> None:
    mq = make_queue(lease=0.8)
    ran: list[str] = []
    finish = asyncio.Event()

    @mq.handler("a")
    async def on_a(payload: int) -> None:
        await finish.wait()

    @mq.handler("b")
    async def on_b(payload: int) -> None:
        ran.append("b")
        await asyncio.sleep(2.4)

    await mq.start()
    await mq.produce("a", 1, message_id="A1")
    await in_state(mq, "A1", "running")
    await redis.set("mx-rmq:{q}:a:processing", "something else")
    with another_monitor(server) as taken:
        await mq.produce("b", 1, message_id="B1")
        await in_state(mq, "B1", "gone")
    assert (ran, taken) == (["b"], [])
    finish.set()


FORGETFUL = """
import asyncio, sys, threading, time
from mx_rmq import RedisMessageQueue

async def main():
    mq = RedisMessageQueue(sys.argv[1], name="q", server_check="off", lease=0.2)
    running = asyncio.Event()

    @mq.handler("t")
    async def on_t(payload):
        running.set()
        await asyncio.Event().wait()

    await mq.produce("t", 1, message_id="A1")
    mq.start()
    await running.wait()
    raise ZeroDivisionError

try:
    asyncio.run(main())
except ZeroDivisionError:
    print("crashed", flush=True)
until = time.monotonic() + 15
while "mx-rmq-leases" in [thread.name for thread in threading.enumerate()] and time.monotonic() < until:
    time.sleep(0.01)
print([thread.name for thread in threading.enumerate()], flush=True)
sys.stdin.read()
"""


async def test_the_leases_of_a_loop_that_ended_without_a_stop_run_out(
    server: EmbeddedServer, redis: Redis
) -> None:
    """Its process goes on, but its thread keeps nothing alive that nobody works on."""
    command = [sys.executable, "-c", FORGETFUL, server.url]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert await asyncio.to_thread(process.stdout.readline) == b"crashed\n"
        with another_monitor(server) as taken:
            await eventually(lambda: taken == ["A1"])
        assert await asyncio.to_thread(process.stdout.readline) == b"['MainThread']\n"


async def test_a_batch_asks_every_shard_that_may_have_missed_its_worker(make_queue: MakeQueue) -> None:
    """The first message of a batch says nothing of those that are on other shards."""
    mq = make_queue(shards=2, lease=60, recovery_grace=None)
    ran: list[list[int]] = []

    @mq.handler("t", batch=3, linger=60)
    async def on_t(payloads: list[int]) -> None:
        ran.append(payloads)

    await mq.start()
    ids = [f"A{n}" for n in range(99)]
    here, here_too, *_ = [id_ for id_ in ids if shard_number(id_, 2) == 0]
    there = next(id_ for id_ in ids if shard_number(id_, 2) == 1)
    await mq.produce("t", 1, message_id=here)
    await in_state(mq, here, "held")
    await mq.produce("t", 2, message_id=there)
    await in_state(mq, there, "held")
    worker: Any = mq._lifecycle.worker
    (missed,) = [holdings for holdings in worker._holdings if holdings.shard.name == "1"]
    (job,) = missed.jobs
    await missed.shard.store.complete("t", [(job.delivery, 0.0)])  # as another worker would
    missed.present_until = -inf
    await mq.produce("t", 3, message_id=here_too)
    await eventually(lambda: ran)
    assert ran == [[1, 3]]
