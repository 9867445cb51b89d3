"""Whatever happens to a connection, consuming goes on when the server is there again."""

from __future__ import annotations

import asyncio
import os
import signal
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from mx_rmq import RedisMessageQueue
from mx_rmq.storage.embedded import EmbeddedServer
from tests.harness import command, server_binaries
from tests.proxy import Proxy
from tests.words import ONE_SERVER, drained, events, eventually, is_sound

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from tests.words import MakeQueue


def listen(mq: RedisMessageQueue) -> list[int]:
    """Register a handler; what it gets ends up in the list."""
    seen: list[int] = []

    @mq.handler("t")
    async def on_t(payload: int) -> None:
        seen.append(payload)

    return seen


def open_in(home: str, binary: Path) -> EmbeddedServer:
    """The server with its data in a directory, started if it is not running."""
    return EmbeddedServer.open(Path(home), binary=binary)


def outages(caplog: pytest.LogCaptureFixture) -> tuple[int, int]:
    """How often it was told that the server was away, and that it was back."""
    return len(events(caplog, "server.unavailable")), len(events(caplog, "server.back"))


async def test_an_idle_worker_whose_connections_are_killed_gets_the_next_message(
    make_queue: MakeQueue, redis: Redis
) -> None:
    mq = make_queue(poll=60)
    seen = listen(mq)
    await mq.start()
    for n in range(5):
        await command(redis, "CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
        await mq.produce("t", n)
        await eventually(lambda: len(seen) == n + 1)  # noqa: B023 - awaited within the turn


async def test_no_message_is_lost_while_connections_are_killed_all_the_time(
    make_queue: MakeQueue, redis: Redis
) -> None:
    mq = make_queue(lease=1)
    seen = listen(mq)
    await mq.start()
    over = asyncio.Event()

    async def kill() -> None:
        while not over.is_set():
            await command(redis, "CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
            await asyncio.sleep(0.02)

    killing = asyncio.create_task(kill())
    for n in range(200):
        await mq.produce("t", n)
    await eventually(lambda: len(set(seen)) > 150, within=30)
    over.set()
    await killing
    await drained(mq, within=30)
    assert set(seen) == set(range(200))
    assert await is_sound(mq)
    counts = (await mq.counts()).topics["t"]
    assert (counts.produced, counts.completed, counts.dead) == (200, 200, 0)


@ONE_SERVER
async def test_a_worker_survives_the_absence_of_its_server_and_says_so_once(
    make_queue: MakeQueue,
    server: EmbeddedServer,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    caplog.set_level("INFO", "mx_rmq")
    monkeypatch.setattr("mx_rmq.worker.scheduler._LONGEST", 0.2)
    with Proxy(server) as proxy:
        mq, outside = make_queue(proxy.url, poll=0.2), make_queue()
        seen = listen(mq)
        await outside.open()
        await mq.start()
        await outside.produce("t", 1)
        await eventually(lambda: seen == [1])
        proxy.away()
        await eventually(lambda: outages(caplog)[0] == 1)
        await asyncio.sleep(0.8)  # several attempts of each
        await outside.produce("t", 2)
        proxy.back()
        await eventually(lambda: seen == [1, 2])
        await eventually(lambda: outages(caplog)[1] == 1)
        assert outages(caplog) == (1, 1)
        await mq.close()


@ONE_SERVER
async def test_a_worker_that_stops_in_an_outage_leaves_nobody_waiting_for_its_end(
    make_queue: MakeQueue, server: EmbeddedServer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "mx_rmq")
    with Proxy(server) as proxy:
        mq = make_queue(proxy.url, poll=0.2)
        listen(mq)
        await mq.start()
        proxy.away()
        await eventually(lambda: outages(caplog) == (1, 0))
        producing = asyncio.create_task(mq.produce("t", 1))
        await mq.stop()
        proxy.back()
        await producing
        await eventually(lambda: outages(caplog) == (1, 1))


@ONE_SERVER
async def test_the_keeper_of_leases_says_once_that_it_cannot(
    make_queue: MakeQueue, server: EmbeddedServer, caplog: pytest.LogCaptureFixture
) -> None:
    with Proxy(server) as proxy:
        mq = make_queue(proxy.url, lease=0.9)
        running, finish = asyncio.Event(), asyncio.Event()

        @mq.handler("t")
        async def on_t(payload: int) -> None:
            running.set()
            await finish.wait()

        await mq.produce("t", 1, message_id="A1")
        await mq.start()
        await running.wait()
        proxy.away()
        await eventually(lambda: events(caplog, "leases.not_extended"))
        await asyncio.sleep(0.7)  # it tries again every 0.3 s
        assert len(events(caplog, "leases.not_extended")) == 1
        proxy.back()
        finish.set()
        await drained(mq)
        await mq.close()


@pytest.mark.parametrize("binary", server_binaries().values(), ids=server_binaries())
async def test_a_worker_goes_on_when_its_server_was_killed_and_started_again(
    binary: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "mx_rmq")
    with tempfile.TemporaryDirectory(prefix="mx-", dir="/tmp") as home, open_in(home, binary) as first:
        async with RedisMessageQueue(first.url, name="q", server_check="off", poll=0.5, stop_grace=0) as mq:
            seen = listen(mq)
            await mq.pause("t")
            await mq.start()
            await mq.produce_many("t", range(100))
            os.kill(first.pid, signal.SIGKILL)
            await eventually(lambda: outages(caplog)[0])
            producing = asyncio.create_task(mq.produce("t", 100))
            with open_in(home, binary):
                await producing
                await mq.resume("t")
                await eventually(lambda: len(seen) == 101)
                assert sorted(seen) == list(range(101))
                await drained(mq)


@ONE_SERVER
async def test_connections_that_fall_silent_are_noticed_and_replaced(
    make_queue: MakeQueue, server: EmbeddedServer
) -> None:
    """Half open: nothing says so, and nothing ever comes."""
    with Proxy(server) as proxy:
        mq, outside = make_queue(proxy.url, poll=0.3, socket_timeout=0.4), make_queue()
        seen = listen(mq)
        await outside.open()
        await mq.start()
        await outside.produce("t", 1)
        await eventually(lambda: seen == [1])
        proxy.half_open()
        for n in range(2, 5):
            await outside.produce("t", n)
        await eventually(lambda: sorted(seen) == [1, 2, 3, 4])
        await mq.close()


@ONE_SERVER
async def test_a_network_that_stands_still_for_a_while_costs_nothing_but_time(
    make_queue: MakeQueue, server: EmbeddedServer
) -> None:
    with Proxy(server) as proxy:
        mq, outside = make_queue(proxy.url, poll=0.3, socket_timeout=0.4, lease=2), make_queue()
        seen: list[int] = []

        @mq.handler("t")
        async def on_t(payload: int) -> None:
            await asyncio.sleep(0.02)
            seen.append(payload)

        await outside.open()
        await mq.start()
        await outside.produce_many("t", range(100))
        await eventually(lambda: len(seen) > 10)
        proxy.freeze()
        await asyncio.sleep(0.6)
        proxy.thaw()
        await drained(outside, within=30)
        assert set(seen) == set(range(100))
        assert (await outside.counts()).dead == 0
        assert await is_sound(outside)
        await mq.close()


async def test_scripts_the_server_forgot_are_sent_again(make_queue: MakeQueue, redis: Redis) -> None:
    mq = make_queue(poll=60)
    seen = listen(mq)
    await mq.start()
    for n in range(3):
        await redis.script_flush()
        await mq.produce("t", n)
        await eventually(lambda: len(seen) == n + 1)  # noqa: B023 - awaited within the turn


# -- a server that is not the primary any more


@ONE_SERVER
@pytest.mark.no_cluster("a cluster has no REPLICAOF")
async def test_one_connection_that_is_told_of_a_demotion_takes_the_others_with_it(
    make_queue: MakeQueue, server: EmbeddedServer, redis: Redis
) -> None:
    """An idle worker only reads over its shared connection, and a replica answers that."""
    with Proxy(server) as proxy, EmbeddedServer.open() as successor:
        mq, outside = make_queue(proxy.url, poll=60), make_queue(successor.url)
        seen = listen(mq)
        await mq.start()
        await mq.produce("t", 1)
        await eventually(lambda: seen == [1])
        await outside.open()
        proxy.lead_to(successor)
        try:
            await command(redis, "REPLICAOF", "127.0.0.1", "1")
            await eventually(lambda: outside.workers(), within=4)
            await outside.produce("t", 2)
            await eventually(lambda: seen == [1, 2])
            await mq.close()
            await outside.close()
        finally:
            await command(redis, "REPLICAOF", "NO", "ONE")


# -- an embedded server that dies


@pytest.mark.parametrize("where", ["private", "short", "long"])
async def test_an_embedded_server_that_dies_is_started_again_by_a_running_queue(
    where: str, caplog: pytest.LogCaptureFixture
) -> None:
    """With a long path its socket is elsewhere each time."""
    with tempfile.TemporaryDirectory(prefix="mx-", dir="/tmp") as home:
        url = {
            "private": "embedded://",
            "short": f"embedded://{home}/d",
            "long": f"embedded://{home}/{'d' * 99}",
        }
        async with RedisMessageQueue(url[where], name="q", server_check="off", poll=0.5, stop_grace=0) as mq:
            seen = listen(mq)
            await mq.start()
            await mq.produce("t", 0)
            await asyncio.to_thread(mq.sync.produce, "t", 1)
            await eventually(lambda: sorted(seen) == [0, 1])
            await mq.produce("other", 1, message_id="KEPT")
            for n in (2, 4):
                server = mq._lifecycle._address._server
                assert server is not None
                os.kill(server.pid, signal.SIGKILL)
                await asyncio.gather(mq.produce("t", n), asyncio.to_thread(mq.sync.produce, "t", n + 1))
                await eventually(lambda: set(seen) == set(range(n + 2)))  # noqa: B023 - awaited within the turn
            assert (await mq.find("KEPT")).state == ("gone" if where == "private" else "pending")
            assert [record.lost for record in events(caplog, "embedded.restarted")] == [
                "everything: it was in memory only" if where == "private" else "nothing"
            ] * 2
