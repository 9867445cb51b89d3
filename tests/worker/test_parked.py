"""The parked claim: what an idle worker costs, what a wake brings, and how the wait on the server ends."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from mx_rmq import Context, RedisMessageQueue
from mx_rmq.config import Config
from mx_rmq.worker.fetcher import parked_for
from mx_rmq.worker.ready import ReadyJobs
from tests.proxy import Proxy
from tests.words import PREFIX, drained, events, eventually, is_sound, store_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from redis.asyncio import Redis

    from mx_rmq.storage.embedded import EmbeddedServer
    from tests.words import MakeQueue


@pytest.fixture
def proxy(server: EmbeddedServer) -> Iterator[Proxy]:
    """Made before the queue, so that it outlives it."""
    with Proxy(server) as proxy:
        yield proxy


def serve(mq: RedisMessageQueue, *topics: str) -> list[int]:
    """Handle topics; what comes ends up in the list."""
    seen: list[int] = []
    for topic in topics:

        @mq.handler(topic)
        async def handle(payload: int) -> None:
            seen.append(payload)

    return seen


async def parked(redis: Redis, workers: int = 1) -> None:
    """Wait until every worker waits for tokens, its scheduler too."""

    async def look() -> bool:
        return bool((await redis.info("clients"))["blocked_clients"] == 2 * workers)

    await eventually(look)


async def test_a_message_that_wakes_a_worker_is_claimed_without_a_further_call(
    proxy: Proxy, make_queue: MakeQueue, redis: Redis
) -> None:
    mq, outside = make_queue(proxy.url, poll=60), make_queue()
    calls: list[int] = []

    @mq.handler("t")
    async def on_t(payload: int) -> None:
        calls.append(proxy.calls["claim_message"])

    await outside.open()
    await mq.start()
    for n in range(5):
        await parked(redis)
        before = proxy.calls["claim_message"]
        await outside.produce("t", n)
        await eventually(lambda: len(calls) == n + 1)  # noqa: B023 - awaited within the turn
        assert calls[n] == before, "the claim had been sent before the message was produced"


async def test_of_many_workers_each_parks_its_claim_longer(make_queue: MakeQueue, redis: Redis) -> None:
    """So that together they ask the server no oftener than a few do."""
    mq = make_queue(poll=0.1, lease=15)
    serve(mq, "t")
    for n in range(200):
        await store_of(redis).register_worker(f"w{n}", b"{}", silence=60)
    pops: list[float] = []
    async with redis.monitor() as seen:
        await mq.start()
        while not pops:
            words = (await seen.next_command())["command"].split()
            if words[0] == "BLPOP" and words[1].endswith(":t:wake"):
                pops.append(float(words[-1]))
    assert pops == [pytest.approx(201 / 50)]


def test_how_long_a_claim_is_parked() -> None:
    config = Config(name="q", poll=2.0, lease=15.0)
    assert [parked_for(config, n) for n in (1, 100, 200, 1000, 9000)] == [2.0, 2.0, 4.0, 20.0, 20.0]
    assert parked_for(Config(name="q", poll=60.0, lease=15.0), 1) == 5.0, "a third of the lease"


async def test_a_lease_counts_from_when_the_parked_claim_ran(make_queue: MakeQueue, redis: Redis) -> None:
    """Many workers park for longer than a lease lasts; by the time of sending, the lease would be over."""
    mq, outside = make_queue(lease=0.5), make_queue()
    started: list[str] = []

    @mq.handler("t")
    async def handle(payload: int, ctx: Context) -> None:
        started.append(ctx.token)

    await outside.open()
    for n in range(200):
        await store_of(redis).register_worker(f"w{n}", b"{}", silence=60)
    await mq.start()
    await parked(redis)
    await asyncio.sleep(0.8)  # of four seconds
    await outside.produce("t", 1)
    await eventually(lambda: started)
    assert started[0].startswith("1@"), "it was not given back"


async def test_a_claim_may_be_parked_for_longer_than_the_server_may_be_silent(
    proxy: Proxy, make_queue: MakeQueue, redis: Redis
) -> None:
    mq = make_queue(proxy.url, poll=0.9, socket_timeout=0.3)
    serve(mq, "t")
    await mq.start()
    await parked(redis)
    connections, before = proxy.connections, proxy.calls["claim_message"]
    await eventually(lambda: proxy.calls["claim_message"] >= before + 2)
    assert proxy.connections == connections, "no pop was taken for a server that does not answer"


@pytest.mark.parametrize("topics", [1, 20])
async def test_what_an_idle_worker_asks_does_not_depend_on_its_topics(
    proxy: Proxy, make_queue: MakeQueue, redis: Redis, topics: int
) -> None:
    """One look per poll for all of them, in which the server does four commands."""
    mq = make_queue(proxy.url, poll=0.1)
    serve(mq, *(f"t{n}" for n in range(topics)))
    await mq.start()
    await parked(redis)
    await redis.config_resetstat()
    before = proxy.calls["claim_message"]
    await eventually(lambda: proxy.calls["claim_message"] >= before + 10)
    stats = {
        name.removeprefix("cmdstat_"): row["calls"]
        for name, row in (await redis.info("commandstats")).items()
    }
    claims = proxy.calls["claim_message"] - before
    assert stats["exists"] <= claims + 1
    assert stats["blpop"] <= claims + 2, "with the scheduler's"
    assert not {"llen", "rpop", "sismember", "smismember"} & stats.keys()


async def test_a_claim_for_many_topics_brings_no_more_than_can_run(
    make_queue: MakeQueue, redis: Redis
) -> None:
    mq = make_queue(poll=60, concurrency=3, prefetch=0)
    release = asyncio.Event()
    running = 0
    for topic in "abcde":

        @mq.handler(topic)
        async def hold(payload: int) -> None:
            nonlocal running
            running += 1
            await release.wait()

    await mq.start()
    await parked(redis)
    await asyncio.gather(*(mq.produce_many(topic, range(5)) for topic in "abcde"))
    await eventually(lambda: running == 3)
    for _ in range(5):
        leases = [await redis.hlen(f"{PREFIX}{topic}:processing") for topic in "abcde"]
        assert sum(leases) == 3
    release.set()
    await drained(mq)


async def test_topics_take_turns_when_there_is_room_for_one(make_queue: MakeQueue) -> None:
    mq = make_queue(concurrency=1, prefetch=0)
    order: list[str] = []
    for topic in "abc":

        @mq.handler(topic)
        async def handle(payload: int, ctx: Context) -> None:
            order.append(ctx.topic)
            await asyncio.sleep(0.001)

        await mq.produce_many(topic, range(20))
    await mq.start()
    await drained(mq)
    for topic in "abc":
        assert order.index(topic) < 6
        assert order[:30].count(topic) >= 5


async def test_a_stop_ends_the_wait_and_leases_nothing(make_queue: MakeQueue, redis: Redis) -> None:
    mq, outside = make_queue(poll=60), make_queue()
    seen = serve(mq, "t")
    await outside.open()
    await mq.start()
    await parked(redis)
    async with asyncio.timeout(5):
        await mq.stop()
    await outside.produce("t", 1, message_id="A1")
    assert (await outside.find("A1")).state == "pending"
    assert not seen


@pytest.mark.parametrize("right", ["client|unblock", "client|id"])
async def test_without_the_right_to_end_a_wait_a_stop_leaves_no_lease_behind(
    make_queue: MakeQueue, redis: Redis, server: EmbeddedServer, right: str, caplog: pytest.LogCaptureFixture
) -> None:
    await redis.acl_setuser("few", enabled=True, nopass=True, keys=["*"], commands=["+@all", f"-{right}"])
    mq = make_queue(server.url.replace("//", "//few:any@"), poll=60, lease=3600)
    outside = make_queue()
    seen = serve(mq, "a", "b")
    try:
        await outside.open()
        await mq.start()
        for n in range(10):
            await outside.produce("ab"[n % 2], n)
            await eventually(lambda: len(seen) == n + 1)  # noqa: B023 - awaited within the turn
        await mq.stop()
    finally:
        await mq.close()
        await redis.acl_deluser("few")
    await outside.produce("a", 1, message_id="A1")
    assert (await outside.find("A1")).state == "pending"
    assert not events(caplog, "server.unavailable")
    assert not events(caplog, "service.failed")


async def test_messages_that_come_while_the_worker_stops_are_given_back(
    make_queue: MakeQueue, redis: Redis
) -> None:
    """The claim behind the wait runs when the wait is ended, and may find something."""
    outside = make_queue()
    await outside.open()
    for n in range(20):
        mq = make_queue(poll=60, lease=3600)
        serve(mq, "t")
        await mq.start()
        await parked(redis)
        await asyncio.gather(mq.stop(), outside.produce("t", n, message_id=f"M{n}"))
        assert (await outside.find(f"M{n}")).state in ("pending", "gone")
    assert await is_sound(outside)


async def test_a_server_that_forgot_the_scripts_does_not_keep_a_message_waiting(
    make_queue: MakeQueue, redis: Redis
) -> None:
    mq = make_queue(poll=60)
    seen = serve(mq, "a", "b")
    await mq.start()
    for n in range(4):
        await parked(redis)
        await redis.script_flush()
        await mq.produce("ab"[n % 2], n)
        await eventually(lambda: len(seen) == n + 1)  # noqa: B023 - awaited within the turn


async def test_what_was_claimed_but_told_too_late_does_not_begin(
    proxy: Proxy, make_queue: MakeQueue, redis: Redis
) -> None:
    """Its lease is counted from when the claim was sent. Another worker has the message by now."""
    slow, other = make_queue(proxy.url, lease=3, poll=60), make_queue(lease=3)
    late, seen = serve(slow, "t"), serve(other, "t")
    await other.open()
    await slow.start()
    await slow.produce("t", 0)
    await eventually(lambda: late == [0])
    await parked(redis)
    proxy.freeze()
    await other.produce("t", 1, message_id="A1")
    await eventually(lambda: redis.hexists(PREFIX + "t:processing", "A1"))
    await other.start()
    await eventually(lambda: seen == [1])
    proxy.thaw()
    await other.produce("t", 2)
    await drained(other)
    assert 1 not in late
    assert sorted(seen + late) == [0, 1, 2]


async def test_every_shard_may_bring_a_message_however_few_can_run(mq: RedisMessageQueue) -> None:
    handlers = [mq.handler(topic)(handle) for topic in ("a", "b")]
    one, many = ReadyJobs(handlers, 1, 0), ReadyJobs(handlers, 100, 0)
    for _ in range(8):
        one.on_room(lambda: False)
        many.on_room(lambda: False)
    assert one.runs_to_share() == 1
    assert many.runs_to_share() == 12


async def handle(payload: int) -> None:
    """Do nothing."""
