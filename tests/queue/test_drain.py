"""Waiting until nothing is pending, running or due; running until then."""

from __future__ import annotations

import asyncio
import re
import sys
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from mx_rmq import ConfigError, MxRmqError, NoHandler, NotDrained, RedisMessageQueue, Retry
from mx_rmq.operating.drain import Backlog, drained
from tests.words import ONE_SERVER, claim, eventually, is_sound, store_of

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from mx_rmq.storage.embedded import EmbeddedServer
    from tests.proxy import Proxy
    from tests.words import MakeQueue


async def left_in(mq: RedisMessageQueue) -> str:
    with pytest.raises(NotDrained) as error:
        await mq.drain(timeout=0)
    return str(error.value)


async def test_an_empty_queue_is_drained_at_once_and_drain_opens_the_queue(make_queue: MakeQueue) -> None:
    async with asyncio.timeout(5):
        await make_queue().drain()


async def test_drain_waits_for_all_that_is_pending_and_for_what_handlers_produce(
    mq: RedisMessageQueue,
) -> None:
    handled: list[int] = []

    @mq.handler("t")
    async def on_t(n: int) -> None:
        if n > 0:
            await mq.produce("t", n - 1)
        await asyncio.sleep(0.002)
        handled.append(n)

    await mq.produce_many("t", [5] * 20)
    mq.start()  # not awaited: a worker that is being started serves its topics too
    await mq.drain(timeout=15)
    assert sorted(handled) == sorted([*range(6)] * 20)


async def test_drain_waits_for_a_worker_elsewhere(mq: RedisMessageQueue, make_queue: MakeQueue) -> None:
    worker, began, go = make_queue(), asyncio.Event(), asyncio.Event()

    @worker.handler("t")
    async def on_t(_: int) -> None:
        began.set()
        await go.wait()

    await worker.start()
    await mq.produce("t", 1, message_id="A1")
    await began.wait()
    drain = asyncio.create_task(mq.drain())
    done, _ = await asyncio.wait([drain], timeout=0.2)
    assert not done
    go.set()
    await asyncio.wait_for(drain, 5)
    assert (await mq.find("A1")).state == "gone"


async def test_what_is_delayed_and_not_due_does_not_keep_it(mq: RedisMessageQueue) -> None:
    @mq.handler("t", retry=Retry(2, base=3600, backoff="fixed"))
    async def on_t(_: int) -> None:
        raise ValueError("try again in an hour")

    await mq.produce("t", 1, message_id="fails")
    await mq.produce("t", 1, message_id="waits", delay=3600)
    await mq.start()
    await mq.drain(timeout=15)
    assert [(await mq.find(id_)).state for id_ in ("fails", "waits")] == ["delayed", "delayed"]


async def test_a_retry_without_a_wait_is_part_of_it(mq: RedisMessageQueue) -> None:
    attempts: list[int] = []

    @mq.handler("t", retry=Retry(20, base=0, backoff="fixed"))
    async def on_t(n: int) -> None:
        attempts.append(n)
        raise ValueError

    await mq.start()
    for n in range(5):
        await mq.produce("t", n)
        await mq.drain(timeout=15)
        assert len(attempts) == 20 * (n + 1)


async def test_what_is_due_keeps_it_though_no_scheduler_has_moved_it(mq: RedisMessageQueue) -> None:
    await mq.produce("t", 1, delay=0.01)
    await eventually(lambda: drained_of_due(mq))
    assert "delayed messages are due, but no live worker makes them pending: start one" in await left_in(mq)


async def drained_of_due(mq: RedisMessageQueue) -> bool:
    return any([(await shard.store.next_delay()).state == "EXPIRED" for shard in mq._lifecycle.shards])


# -- what is left is named


async def test_the_error_names_what_is_left(mq: RedisMessageQueue, redis: Redis) -> None:
    await mq.produce("orders", 1)
    await claim(redis, "orders")
    await mq.produce_many("orders", [2, 3])
    await mq.produce("mails", 4)
    said = await left_in(mq)
    assert said.startswith("not drained within 0 s: ")
    assert "2 pending, 1 running in orders, which no live worker serves" in said
    assert "1 pending in mails, which no live worker serves" in said
    assert issubclass(NotDrained, TimeoutError)
    assert issubclass(NotDrained, MxRmqError)


async def test_what_waits_for_a_batch_is_named_as_held(mq: RedisMessageQueue) -> None:
    @mq.handler("orders", batch=100, linger=20)
    async def on_orders(_: list[int]) -> None: ...

    await mq.start()
    await mq.produce_many("orders", [1, 2, 3])

    async def are_held() -> bool:
        return (await mq.counts()).topics["orders"].held == 3

    await eventually(are_held)
    with pytest.raises(NotDrained, match=r"^not drained within 0\.1 s: 3 held in orders$"):
        await mq.drain(timeout=0.1)


async def test_a_handler_that_takes_too_long_is_named_as_running(mq: RedisMessageQueue) -> None:
    began, go = asyncio.Event(), asyncio.Event()

    @mq.handler("orders")
    async def on_order(_: int) -> None:
        began.set()
        await go.wait()

    await mq.start()
    await mq.produce("orders", 1)
    await began.wait()
    with pytest.raises(NotDrained, match=r"^not drained within 0\.1 s: 1 running in orders$"):
        await mq.drain(timeout=timedelta(seconds=0.1))
    go.set()
    await mq.drain(timeout=5)


async def test_a_paused_topic_is_named_as_such(mq: RedisMessageQueue) -> None:
    @mq.handler("orders")
    async def on_order(_: int) -> None: ...

    await mq.pause("orders")
    await mq.produce("orders", 1)
    await mq.start()
    assert await left_in(mq) == "not drained within 0 s: 1 pending in orders, which is paused: resume it"
    await mq.resume("orders")
    await mq.drain(timeout=15)


async def test_without_a_timeout_what_no_worker_serves_is_given_up_after_a_while(
    mq: RedisMessageQueue, make_queue: MakeQueue
) -> None:
    await mq.produce("orders", 1)
    backlog = Backlog(mq._lifecycle.shards)
    with pytest.raises(
        NotDrained, match="cannot be drained: 1 pending in orders, which no live worker serves"
    ):
        await drained(backlog, unserved=0.1)
    waiting = asyncio.create_task(drained(backlog, unserved=5.0))
    worker = make_queue()

    @worker.handler("orders")
    async def on_order(_: int) -> None: ...

    await worker.start()
    await asyncio.wait_for(waiting, 5)


async def test_the_topics_of_this_worker_count_as_served_before_it_has_registered(
    mq: RedisMessageQueue, redis: Redis
) -> None:
    await mq.produce("orders", 1)
    said, stuck = await Backlog(mq._lifecycle.shards).describe(["orders"])
    assert (said, stuck) == ("1 pending in orders", False)


@pytest.mark.parametrize("timeout", [-1, "5s", True, float("nan")])
async def test_a_timeout_that_is_no_time_is_refused(mq: RedisMessageQueue, timeout: Any) -> None:
    with pytest.raises(ConfigError, match="timeout must be seconds >= 0, or None for no limit, got"):
        await mq.drain(timeout)


async def test_an_outage_does_not_end_a_drain(make_queue: MakeQueue, proxy: Proxy, redis: Redis) -> None:
    mq = make_queue(proxy.url, patience=20)
    await mq.produce("t", 1)
    (delivery,) = await claim(redis)
    drain = asyncio.create_task(mq.drain())
    proxy.away()
    done, _ = await asyncio.wait([drain], timeout=0.3)
    assert not done
    await store_of(redis).complete("t", [(delivery, 0.0)])
    proxy.back()
    await asyncio.wait_for(drain, 15)


# -- until idle


@pytest.mark.one_shard
async def test_run_until_idle_does_what_there_is_to_do_and_returns(
    mq: RedisMessageQueue, make_queue: MakeQueue
) -> None:
    job = make_queue()
    handled: list[str] = []

    @job.handler("reports", retry=Retry(2, base=3600, backoff="fixed"))
    async def on_report(name: str) -> None:
        if name == "chain":
            await job.produce("reports", "link")
        if name == "fails":
            raise ValueError
        handled.append(name)

    await mq.produce_many("reports", ["first", "chain", "fails"])
    await mq.produce("reports", "later", delay=3600)
    await mq.produce("elsewhere", "not for this job")
    async with asyncio.timeout(10):
        await job.run(until_idle=True)
    assert handled == ["first", "chain", "link"]
    counts = await mq.counts()
    assert (counts.delayed, counts.pending, counts.topics["elsewhere"].pending) == (2, 1, 1)
    assert await mq.workers() == []
    assert await is_sound(mq)
    async with asyncio.timeout(10):  # and again, as a cron job does
        await job.run(until_idle=True)


async def test_run_serves_only_the_topics_that_it_is_given(
    mq: RedisMessageQueue, make_queue: MakeQueue
) -> None:
    job = make_queue()
    handled: list[str] = []
    for topic in ("reports", "mails", "bills"):
        job.handler(topic)(handled.append)
        await mq.produce(topic, topic)
    async with asyncio.timeout(10):
        await job.run(until_idle=True, topics=["reports", "bills"])
    assert sorted(handled) == ["bills", "reports"]
    async with asyncio.timeout(10):  # and all of them when it is not given any
        await job.run(until_idle=True)
    assert sorted(handled) == ["bills", "mails", "reports"]


@pytest.mark.parametrize(
    ("topics", "kind", "said"),
    [
        (["report"], NoHandler, "no handler for the topic 'report'; did you mean 'reports'?"),
        (["x"], NoHandler, "no handler for the topic 'x'; there are: mails, reports"),
        ([], ConfigError, "topics must be a list of at least one topic"),
        ("reports", ConfigError, "topics must be a list of at least one topic, got 'reports'"),
    ],
    ids=str,
)
async def test_topics_that_run_cannot_serve_are_refused(
    mq: RedisMessageQueue, topics: Any, kind: type[Exception], said: str
) -> None:
    for topic in ("reports", "mails"):
        mq.handler(topic)(lambda payload: None)
    with pytest.raises(kind, match=re.escape(said)):
        await mq.run(until_idle=True, topics=topics)


async def test_a_worker_that_has_started_serves_what_it_serves(mq: RedisMessageQueue) -> None:
    mq.handler("reports")(lambda payload: None)
    await mq.start()
    with pytest.raises(ConfigError, match="the worker has started already, with all topics"):
        await mq.run(topics=["reports"])


async def test_run_until_idle_is_not_kept_by_a_paused_topic(
    mq: RedisMessageQueue, make_queue: MakeQueue
) -> None:
    job = make_queue()

    @job.handler("reports")
    async def on_report(_: int) -> None: ...

    await mq.produce("reports", 1, message_id="A1")
    await mq.pause("reports")
    async with asyncio.timeout(10):
        await job.run(until_idle=True)
    assert (await mq.find("A1")).state == "pending"


SCRIPT = """
import sys
from mx_rmq import RedisMessageQueue, run

mq = RedisMessageQueue(sys.argv[1], name="q", server_check="off")

@mq.handler("t")
def on_t(n: int) -> None:
    sys.stdout.write(f"handled {n}\\n")  # in one piece: several threads write

for n in range(3):
    mq.sync.produce("t", n)
run(mq, until_idle=True)
print("ended")
"""


@ONE_SERVER
async def test_a_script_runs_until_idle(server: EmbeddedServer, redis: Redis) -> None:
    script = await asyncio.create_subprocess_exec(
        sys.executable, "-c", SCRIPT, server.url, stdout=asyncio.subprocess.PIPE
    )
    out, _ = await asyncio.wait_for(script.communicate(), 30)
    assert sorted(out.decode().split("\n")) == ["", "ended", *(f"handled {n}" for n in range(3))]
    assert script.returncode == 0
