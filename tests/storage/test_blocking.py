from __future__ import annotations

import asyncio
import threading
import time
from typing import TYPE_CHECKING

import pytest
from redis.exceptions import ResponseError

from mx_rmq.errors import ConfigError, OutOfMemory, ServerUnavailable
from mx_rmq.receipt import Stored
from mx_rmq.storage.blocking import BlockingConnections, run_blocking
from mx_rmq.storage.contract import NewMessage
from mx_rmq.storage.embedded import EmbeddedServer
from mx_rmq.storage.keys import Keys
from mx_rmq.storage.store import Store
from tests.harness import At, command
from tests.proxy import Proxy
from tests.words import out_of_memory

if TYPE_CHECKING:
    from redis.asyncio import Redis


def test_the_result_of_a_coroutine_that_never_waits() -> None:
    async def answer() -> int:
        return 42

    assert run_blocking(answer()) == 42


def test_its_error_is_raised() -> None:
    async def fail() -> None:
        raise LookupError("nothing there")

    with pytest.raises(LookupError, match="nothing there"):
        run_blocking(fail())


def test_a_coroutine_that_waits_is_an_error_and_is_ended() -> None:
    ended = []

    async def wait() -> None:
        try:
            await asyncio.sleep(0)
        finally:
            ended.append(True)

    with pytest.raises(RuntimeError, match="waited for an event loop"):
        run_blocking(wait())
    assert ended == [True]


def test_a_store_works_over_a_blocking_connection(server: EmbeddedServer, redis: Redis) -> None:
    commands = BlockingConnections(server.url, timeout=5)
    store = Store(commands, Keys("q"))
    try:
        assert run_blocking(store.produce("t", [NewMessage("A1", b"1")])) == [Stored.STORED]
        assert run_blocking(store.produce("t", [NewMessage("A1", b"1")])) == [Stored.LIVE]
    finally:
        commands.close()


async def test_a_refusal_is_typed_as_over_the_link(server: EmbeddedServer, redis: Redis) -> None:
    commands = BlockingConnections(server.url, timeout=5)
    store = Store(commands, Keys("q"))
    try:
        async with out_of_memory(redis):
            with pytest.raises(OutOfMemory):
                run_blocking(store.produce("t", [NewMessage("A1", b"1")]))
    finally:
        commands.close()


async def test_a_server_that_may_not_write_now_is_unavailable(server: EmbeddedServer, redis: Redis) -> None:
    """A replica that is about to be promoted: the call may be sent again."""
    commands = BlockingConnections(server.url, timeout=5)
    await command(redis, "REPLICAOF", "127.0.0.1", "1")
    try:
        with pytest.raises(ServerUnavailable):
            run_blocking(Store(commands, Keys("q")).produce("t", [NewMessage("A1", b"1")]))
    finally:
        await command(redis, "REPLICAOF", "NO", "ONE")
        commands.close()


def test_a_silent_server_is_unavailable_within_the_timeout(server: EmbeddedServer) -> None:
    with Proxy(server) as proxy:
        commands = BlockingConnections(proxy.url, timeout=0.2)
        assert run_blocking(commands.execute_command("PING"))
        proxy.freeze()
        with pytest.raises(ServerUnavailable):
            run_blocking(commands.execute_command("PING"))
        proxy.thaw()
        assert run_blocking(commands.execute_command("PING"))
        commands.close()


def test_a_command_is_sent_once_however_it_ends(server: EmbeddedServer, redis: Redis) -> None:
    """Whether it may be sent again is decided by whoever knows what it does."""
    with Proxy(server) as proxy:
        commands = BlockingConnections(proxy.url, timeout=5)
        run_blocking(commands.execute_command("PING"))
        proxy.lose_reply()
        with pytest.raises(ServerUnavailable):
            run_blocking(commands.execute_command("EVAL", "return redis.call('INCR', 'n')", 0))
        assert run_blocking(commands.execute_command("GET", "n")) == b"1"
        commands.close()


def test_replies_are_bytes_whatever_the_url_asks_for(server: EmbeddedServer, redis: Redis) -> None:
    commands = BlockingConnections(server.url + "?decode_responses=true&protocol=3", timeout=5)
    redis_call = "redis.call('HSET', 'h', 'f', 'v') return redis.call('HGETALL', 'h')"
    assert run_blocking(commands.execute_command("EVAL", redis_call, 0)) == [b"f", b"v"]
    commands.close()


def test_a_url_with_an_unknown_option_is_a_config_error(server: EmbeddedServer) -> None:
    with pytest.raises(ConfigError, match="nonsense"):
        BlockingConnections(server.url + "?nonsense=1", timeout=5)


async def test_a_connection_that_the_server_closed_while_idle_is_not_used(
    server: EmbeddedServer, redis: Redis
) -> None:
    commands = BlockingConnections(server.url, timeout=5)
    first = run_blocking(commands.execute_command("CLIENT", "ID"))
    await command(redis, "CLIENT", "KILL", "ID", first)
    assert run_blocking(commands.execute_command("CLIENT", "ID")) > first
    commands.close()


def test_a_connection_is_used_again(server: EmbeddedServer) -> None:
    commands = BlockingConnections(server.url, timeout=5)
    ids = set()
    for _ in range(5):
        ids.add(run_blocking(commands.execute_command("CLIENT", "ID")))
        with pytest.raises(ResponseError):
            run_blocking(commands.execute_command("NONSENSE"))
    assert len(ids) == 1
    commands.close()


def test_a_database_that_is_not_there_is_refused_at_once(server: EmbeddedServer) -> None:
    commands = BlockingConnections(server.url + "?db=99999", timeout=5)
    with pytest.raises(ConfigError, match="DB index is out of range"):
        run_blocking(commands.execute_command("PING"))


def test_many_threads_share_it(server: EmbeddedServer, redis: Redis) -> None:
    commands = BlockingConnections(server.url, timeout=5)
    wrong: list[object] = []

    def work(name: str) -> None:
        for n in range(200):
            said = f"{name} {n}".encode()
            reply = run_blocking(commands.execute_command("ECHO", said))
            if reply != said:
                wrong.append(reply)

    threads = [threading.Thread(target=work, args=(f"t{n}",)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert wrong == []
    commands.close()


# -- neither dead nor healthy


def idle_connections(commands: BlockingConnections, count: int) -> None:
    """Leave so many connections behind."""
    start = threading.Barrier(count)

    def one() -> None:
        start.wait(10)
        run_blocking(commands.execute_command("BLPOP", "nothing", 0.2))

    threads = [threading.Thread(target=one) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)


def test_idle_connections_are_given_up_with_one_that_is_dead(server: EmbeddedServer, redis: Redis) -> None:
    """A router forgets them together; else each attempt would take the next dead one."""
    with Proxy(server) as proxy:
        commands = BlockingConnections(proxy.url, timeout=0.5)
        idle_connections(commands, 5)
        assert proxy.connections == 5
        proxy.half_open()
        with pytest.raises(ServerUnavailable):
            run_blocking(commands.execute_command("PING"))
        assert run_blocking(commands.execute_command("PING"))
        assert proxy.connections == 6
        commands.close()


async def test_a_demoted_server_is_left_by_all_connections(server: EmbeddedServer, redis: Redis) -> None:
    with Proxy(server) as proxy, EmbeddedServer.open() as successor:
        commands = BlockingConnections(proxy.url, timeout=5)
        idle_connections(commands, 3)
        await command(redis, "REPLICAOF", "127.0.0.1", "1")
        try:
            with pytest.raises(ServerUnavailable, match="cannot serve now"):
                run_blocking(commands.execute_command("EVAL", "return redis.call('SET', 'k', 'v')", 0))
            proxy.lead_to(successor)
            for _ in range(3):
                assert run_blocking(commands.execute_command("SET", "k", "v"))
        finally:
            await command(redis, "REPLICAOF", "NO", "ONE")
        commands.close()


def test_a_connection_in_use_when_the_others_are_given_up_is_closed_after_it(
    server: EmbeddedServer, redis: Redis
) -> None:
    with Proxy(server) as proxy:
        commands = BlockingConnections(proxy.url, timeout=5)
        popping = threading.Thread(
            target=run_blocking, args=[commands.execute_command("BLPOP", "nothing", 0.5)]
        )
        popping.start()
        while b"BLPOP" not in proxy.commands:
            time.sleep(0.01)
        commands.close()
        popping.join()
        assert run_blocking(commands.execute_command("PING"))
        assert proxy.connections == 2
        commands.close()


async def test_a_command_that_is_still_leaving_is_not_given_up(tcp: str) -> None:
    with Proxy(At(tcp)) as proxy:
        proxy.throttle(400_000)
        commands = BlockingConnections(proxy.url, timeout=0.5)
        big = b"x" * 800_000
        reply = await asyncio.to_thread(run_blocking, commands.execute_command("SET", "big", big))
        assert reply in (b"OK", True)
        assert await asyncio.to_thread(run_blocking, commands.execute_command("STRLEN", "big")) == 800_000
        assert proxy.connections == 1
        commands.close()


async def test_a_line_that_stands_still_is_given_up_although_bytes_are_waiting(tcp: str) -> None:
    with Proxy(At(tcp)) as proxy:
        proxy.throttle(400_000)
        commands = BlockingConnections(proxy.url, timeout=0.5)
        await asyncio.to_thread(run_blocking, commands.execute_command("PING"))
        proxy.freeze()
        async with asyncio.timeout(5):
            with pytest.raises(ServerUnavailable):
                await asyncio.to_thread(
                    run_blocking, commands.execute_command("SET", "big", b"x" * 10_000_000)
                )
        proxy.thaw()
        commands.close()
