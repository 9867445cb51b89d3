from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

from mx_rmq import (
    Config,
    ConfigError,
    InvalidPayload,
    OutOfMemory,
    ProduceOptions,
    RedisMessageQueue,
    ServerUnavailable,
    SyncProducer,
)
from mx_rmq.receipt import Stored
from mx_rmq.storage.embedded import EmbeddedServer
from tests.harness import all_keys, command
from tests.producing.test_produce import REFUSED
from tests.words import PREFIX, bury, complete, eventually, in_order, out_of_memory

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from redis.asyncio import Redis

    from tests.proxy import Proxy


@pytest.fixture
def producer(server: EmbeddedServer, redis: Redis) -> Iterator[SyncProducer]:
    with SyncProducer(Config(url=server.url, name="q")) as producer:
        yield producer


def through(proxy: Proxy, **options: Any) -> SyncProducer:
    return SyncProducer(Config(url=proxy.url, name="q", **options))


# -- the same as produce


async def test_it_stores_what_produce_stores(
    queue: RedisMessageQueue, producer: SyncProducer, redis: Redis
) -> None:
    options: dict[str, Any] = {
        "priority": "high",
        "ttl": 60,
        "headers": {"a": "b"},
        "dedup_for": 5,
    }
    for n, delay in enumerate((0, 60)):
        await queue.produce("t", {"a": 1}, message_id=f"A{n}", delay=delay, **options)
        producer.produce("t", {"a": 1}, message_id=f"S{n}", delay=delay, **options)
        bodies = []
        for id_ in (f"A{n}", f"S{n}"):
            body = json.loads(await command(redis, "HGET", f"{PREFIX}payload", id_))
            assert body.pop("created_at")
            bodies.append(body)
        assert bodies[0] == bodies[1]
        assert (await queue.find(f"A{n}")).state == (await queue.find(f"S{n}")).state
    assert await in_order(redis) == ["A0", "S0"]


@pytest.mark.parametrize(("options", "error", "says"), REFUSED)
async def test_it_refuses_what_produce_refuses(
    producer: SyncProducer, redis: Redis, options: dict[str, Any], error: type[Exception], says: str
) -> None:
    arguments: dict[str, Any] = {"topic": "t", "payload": 1} | options
    with pytest.raises(error, match=says):
        producer.produce(**arguments)
    payload = arguments.pop("payload")
    with pytest.raises(error, match=says):
        producer.produce_many(payloads=[payload], **arguments)
    assert await all_keys(redis) == []


async def test_its_receipts_tell_duplicates(producer: SyncProducer, redis: Redis) -> None:
    assert producer.produce("t", 1, message_id="A1").stored is Stored.STORED
    assert producer.produce("t", 1, message_id="A1").stored is Stored.LIVE
    await bury(redis)
    assert producer.produce("t", 1, message_id="A1").stored is Stored.DEAD
    producer.produce("t", 1, message_id="A2", dedup_for=60)
    await complete(redis)
    assert producer.produce("t", 1, message_id="A2").stored is Stored.DONE


async def test_a_server_out_of_memory_says_so(producer: SyncProducer, redis: Redis) -> None:
    async with out_of_memory(redis):
        with pytest.raises(OutOfMemory):
            producer.produce("t", 1)


# -- many


@pytest.mark.parametrize("count", [0, 1, 499, 500, 501, 10_000])
async def test_many_are_stored_in_order(producer: SyncProducer, redis: Redis, count: int) -> None:
    receipts = producer.produce_many("t", (n for n in range(count)))
    assert len(set(receipts)) == count
    assert await in_order(redis) == receipts


async def test_an_error_in_the_middle_leaves_whole_chunks(producer: SyncProducer, redis: Redis) -> None:
    with pytest.raises(InvalidPayload):
        producer.produce_many("t", [*range(1234), {1, 2}])
    assert len(await in_order(redis)) == 1000


async def test_huge_payloads_are_split_by_their_size(proxy: Proxy, redis: Redis) -> None:
    with through(proxy, max_bytes=2_000_000) as producer:
        receipts = producer.produce_many("t", ("x" * 1_000_000 for _ in range(10)))
        assert await in_order(redis) == receipts
        assert proxy.commands.count(b"EVALSHA") >= 5


# -- lost replies and lost servers


@pytest.mark.parametrize("delay", [0.0, 60.0])
async def test_a_lost_reply_is_not_a_second_message(proxy: Proxy, redis: Redis, delay: float) -> None:
    with through(proxy) as producer:
        producer.produce("warm", 1)
        for _ in range(2):
            proxy.lose_reply()
            assert producer.produce("t", 1, delay=delay).stored is Stored.STORED
        assert proxy.lost_replies == 2
        proxy.lose_reply(2)
        receipts = producer.produce_many("t", range(1200), delay=delay)
        assert [receipt.stored for receipt in receipts] == [Stored.STORED] * 1200
        assert proxy.lost_replies == 3
    assert int(await command(redis, "HGET", f"{PREFIX}counters", "t:produced")) == 1202


async def test_a_lost_reply_is_no_second_message_even_if_it_was_completed_meanwhile(
    proxy: Proxy, redis: Redis
) -> None:
    with through(proxy) as producer:
        producer.produce("warm", 1)
        proxy.lose_reply(stay_away=True)
        call = asyncio.create_task(asyncio.to_thread(producer.produce, "t", 1, message_id="A1"))

        async def reply_lost() -> bool:
            return proxy.lost_replies == 1

        await eventually(reply_lost)
        assert await complete(redis) == ["A1"]
        proxy.back()
        assert (await call).stored is Stored.STORED
        assert await in_order(redis) == []


def test_a_server_that_is_away_briefly_costs_only_time(proxy: Proxy, redis: Redis) -> None:
    with through(proxy) as producer:
        producer.produce("t", 1)
        proxy.away()
        back = threading.Timer(0.2, proxy.back)
        back.start()
        assert not producer.produce("t", 1).duplicate
        back.join()


def test_a_server_that_stays_away_is_unavailable_when_the_patience_is_over(proxy: Proxy) -> None:
    with through(proxy, patience=0.3) as producer:
        proxy.away()
        started = time.monotonic()
        with pytest.raises(ServerUnavailable, match=r"gave up after 0\.3 s"):
            producer.produce("t", 1)
        assert time.monotonic() - started < 5
        proxy.back()
        assert producer.produce("t", 1)


async def test_a_replica_is_waited_for(producer: SyncProducer, redis: Redis) -> None:
    """It may be promoted any moment."""
    await command(redis, "REPLICAOF", "127.0.0.1", "1")
    call = asyncio.create_task(asyncio.to_thread(producer.produce, "t", 1))
    try:
        done, _ = await asyncio.wait([call], timeout=0.1)
        assert not done
    finally:
        await command(redis, "REPLICAOF", "NO", "ONE")
    assert not (await call).duplicate


async def test_a_wrong_password_is_refused_at_once_and_not_shown(tcp: str, redis: Redis) -> None:
    await redis.config_set("requirepass", "right-secret")
    try:
        with pytest.raises(ConfigError) as refused:
            SyncProducer(Config(url=tcp.replace("://", "://default:wrong-secret@"))).produce("t", 1)
        assert "secret" not in str(refused.value)
    finally:
        await redis.config_set("requirepass", "")


# -- threads and forks


async def test_many_threads_share_it(producer: SyncProducer, redis: Redis) -> None:
    """More of them than redis-py has connections by default."""
    start = threading.Barrier(150)
    ids: list[str] = []
    errors: list[Exception] = []

    def work() -> None:
        start.wait(30)
        try:
            ids.extend(producer.produce("t", n) for n in range(5))
            ids.extend(producer.produce_many("t", range(5)))
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(150)]
    for thread in threads:
        thread.start()
    for thread in threads:
        await asyncio.to_thread(thread.join, 30)
    assert errors == []
    assert len(set(ids)) == 1500
    assert sorted(await in_order(redis)) == sorted(ids)


async def test_the_server_remembers_as_many_calls_as_were_under_way_at_once(
    producer: SyncProducer, redis: Redis
) -> None:
    """Not one for each of the last minute's messages."""
    for n in range(300):
        producer.produce("t", n)
    assert len([key for key in await all_keys(redis) if ":call=" in key]) == 1


FORKS = """
import os, sys, threading
from mx_rmq import Config, SyncProducer

producer = SyncProducer(Config(url=sys.argv[1], name="q", patience=10))
if sys.argv[2] == "busy":
    # So many threads that at any moment some of them hold locks and connections.
    going = threading.Event()
    def work():
        while not going.is_set():
            producer.produce("noise", 1)
    threads = [threading.Thread(target=work, daemon=True) for _ in range(8)]
    for thread in threads:
        thread.start()
producer.produce("t", "parent before")
children = []
for child in range(6):
    pid = os.fork()
    if pid == 0:
        for n in range(20):
            producer.produce("t", f"child {child} {n}")
        os._exit(0)
    children.append(pid)
    producer.produce("t", f"parent {child}")
ends = [os.waitpid(pid, 0)[1] for pid in children]
if sys.argv[2] == "busy":
    going.set()
    for thread in threads:
        thread.join()
producer.produce("t", "parent after")
producer.close()
sys.exit(any(ends))
"""


@pytest.mark.parametrize("how", ["alone", "busy"])
async def test_it_works_after_a_fork_in_parent_and_children(
    server: EmbeddedServer, redis: Redis, how: str
) -> None:
    """No socket is shared, no lock stays held and no message is taken for another's."""
    run = await asyncio.create_subprocess_exec(
        sys.executable, "-c", FORKS, server.url, how, start_new_session=True
    )
    try:
        async with asyncio.timeout(20):
            assert await run.wait() == 0
    finally:
        if run.returncode is None:  # it hangs, and so do some of its children
            os.killpg(run.pid, signal.SIGKILL)
    bodies = await command(redis, "HMGET", f"{PREFIX}payload", *await in_order(redis))
    payloads = [json.loads(body)["payload"] for body in bodies]
    expected = ["parent before", "parent after", *(f"parent {child}" for child in range(6))]
    expected += [f"child {child} {n}" for child in range(6) for n in range(20)]
    assert sorted(payloads) == sorted(expected)


# -- where the server is


async def test_the_queue_and_its_sync_producer_share_a_private_server() -> None:
    """Otherwise what one produces the other would never handle."""
    queue = RedisMessageQueue("embedded://")
    handled = asyncio.Event()

    @queue.handler("t")
    async def handle(payload: int) -> None:
        handled.set()

    await asyncio.to_thread(queue.sync.produce, "t", 1)
    async with queue:
        await queue.start()
        async with asyncio.timeout(10):
            await handled.wait()
        receipt = await asyncio.to_thread(queue.sync.produce, "other", 2)
        assert (await queue.find(receipt)).state == "pending"


def test_a_private_server_is_gone_after_close() -> None:
    producer = SyncProducer(Config(url="embedded://"))
    producer.produce("t", 1)
    server: Any = producer._shards._address._server
    assert server.socket.exists()
    producer.close()
    assert not server.socket.exists()
    producer.close()


def test_a_persistent_server_keeps_what_was_produced(tmp_path: Path) -> None:
    url = f"embedded://{tmp_path}/data"
    with SyncProducer(Config(url=url)) as producer:
        assert not producer.produce("t", 1, message_id="A1").duplicate
    with SyncProducer(Config(url=url)) as producer:
        assert producer.produce("t", 1, message_id="A1").duplicate


async def test_it_can_be_closed_and_used_again(producer: SyncProducer, redis: Redis) -> None:
    producer.close()
    producer.produce("t", 1)
    producer.close()
    producer.close()
    producer.produce("t", 2)
    assert len(await in_order(redis)) == 2


async def test_closing_it_leaves_no_connection(producer: SyncProducer, redis: Redis) -> None:
    def work() -> None:
        producer.produce("t", 1)

    await asyncio.gather(*(asyncio.to_thread(work) for _ in range(5)))
    producer.close()

    async def alone() -> bool:
        return len((await command(redis, "CLIENT", "LIST")).splitlines()) == 1

    await eventually(alone)


async def test_closing_the_queue_closes_its_sync_producer(server: EmbeddedServer, redis: Redis) -> None:
    async with RedisMessageQueue(server.url, name="q", server_check="off") as queue:
        await asyncio.to_thread(queue.sync.produce, "t", 1)

    async def alone() -> bool:
        return len((await command(redis, "CLIENT", "LIST")).splitlines()) == 1

    await eventually(alone)


def test_a_script_that_forgets_to_close_ends_all_the_same() -> None:
    script = "from mx_rmq import *; print(SyncProducer(Config(url='embedded://')).produce('t', 1))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, timeout=30, check=True)
    assert len(done.stdout.strip()) == 22
    assert done.stderr.startswith(b"embedded.ended: the private server ended with 1 message in it")


# -- middleware


async def test_the_produce_middleware_is_around_it_too(queue: RedisMessageQueue, redis: Redis) -> None:
    @queue.produce_middleware
    async def outer(call_next: Any, topic: str, payload: Any, options: ProduceOptions) -> Any:
        options["headers"] = {**(options.get("headers") or {}), "trace": "T1"}
        return await call_next(topic, [payload], options)

    @queue.produce_middleware
    async def inner(call_next: Any, topic: str, payload: Any, options: ProduceOptions) -> Any:
        return await call_next("moved", [*payload, (options["headers"] or {})["trace"]], options)

    receipts = [queue.sync.produce("t", 1, headers={"a": "b"}), *queue.sync.produce_many("t", [2, 3])]
    assert await in_order(redis, "moved") == receipts
    bodies = [json.loads(await command(redis, "HGET", f"{PREFIX}payload", id_)) for id_ in receipts]
    assert [body["payload"] for body in bodies] == [[n, "T1"] for n in (1, 2, 3)]
    assert bodies[0]["headers"] == {"a": "b", "trace": "T1"}


async def test_middleware_that_waits_is_refused_and_says_what_was_stored(
    queue: RedisMessageQueue, redis: Redis
) -> None:
    early = True

    @queue.produce_middleware
    async def waits(call_next: Any, topic: str, payload: Any, options: ProduceOptions) -> Any:
        if early:
            await asyncio.sleep(0)
        receipt = await call_next(topic, payload, options)
        await asyncio.sleep(0)
        return receipt

    with pytest.raises(ConfigError, match=r"nothing was stored; use await mq\.produce"):
        queue.sync.produce("t", 1)
    assert await in_order(redis) == []
    early = False
    with pytest.raises(ConfigError, match="message A1 was stored before that"):
        queue.sync.produce("t", 1, message_id="A1")
    assert await in_order(redis) == ["A1"]


# -- connections that are neither dead nor healthy


async def test_idle_connections_that_are_all_dead_cost_one_timeout(proxy: Proxy, redis: Redis) -> None:
    with through(proxy, socket_timeout=1) as producer:
        start = threading.Barrier(6)

        def work() -> None:
            start.wait(10)
            for n in range(10):
                producer.produce("t", n)

        await asyncio.gather(*(asyncio.to_thread(work) for _ in range(6)))
        proxy.half_open()
        began = time.monotonic()
        assert await asyncio.to_thread(producer.produce, "t", 1)
        assert time.monotonic() - began < 2
