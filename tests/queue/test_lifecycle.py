from __future__ import annotations

import asyncio
import gc
import os
import sys
import threading
from typing import TYPE_CHECKING, Any

import pytest
from redis.asyncio import Redis

from mx_rmq import (
    ConfigError,
    EmbeddedServerError,
    RedisMessageQueue,
    ServerRefused,
    ServerUnavailable,
    UnsafeServer,
)
from mx_rmq.storage import embedded as embedded_module
from mx_rmq.storage.embedded import EmbeddedServer
from tests.harness import command
from tests.words import eventually, in_order

if TYPE_CHECKING:
    from pathlib import Path

    from tests.proxy import Proxy


def queue_at(server: EmbeddedServer, **options: Any) -> RedisMessageQueue:
    return RedisMessageQueue(server.url, **{"name": "q", "server_check": "off"} | options)


async def no_connection_is_left(redis: Redis) -> None:
    """Only the tests' own client is still there."""

    async def alone() -> bool:
        return len((await command(redis, "CLIENT", "LIST")).splitlines()) == 1

    await eventually(alone)


def server_of(queue: RedisMessageQueue) -> EmbeddedServer | None:
    server = queue._lifecycle._address._server
    assert server is None or isinstance(server, EmbeddedServer)
    return server


async def is_gone(server: EmbeddedServer) -> bool:
    try:
        os.kill(server.pid, 0)
    except ProcessLookupError:
        return not server.socket.exists()
    return False


# -- opening and closing


async def test_async_with_opens_and_closes(server: EmbeddedServer, redis: Redis) -> None:
    async with queue_at(server, server_check="warn") as queue:
        assert len((await command(redis, "CLIENT", "LIST")).splitlines()) == 2
        assert (await queue.counts()).topics == {}
        assert len((await command(redis, "CLIENT", "LIST")).splitlines()) == 3  # operators have their own
    await no_connection_is_left(redis)


async def test_async_with_closes_after_an_error(server: EmbeddedServer, redis: Redis) -> None:
    async def fail() -> None:
        async with queue_at(server) as queue:
            await queue.produce("t", 1)
            raise LookupError

    with pytest.raises(LookupError):
        await fail()
    await no_connection_is_left(redis)


async def test_opening_twice_opens_once(proxy: Proxy) -> None:
    queue = RedisMessageQueue(proxy.url, name="q")
    await queue.open()
    await queue.open()
    async with queue:
        await queue.produce("t", 1)
    assert proxy.connections == 1


async def test_closing_twice_is_fine_and_so_is_closing_what_was_never_open(server: EmbeddedServer) -> None:
    queue = queue_at(server)
    await queue.close()
    await queue.open()
    await queue.close()
    await queue.close()
    await asyncio.gather(queue.close(), queue.close())


async def test_a_closed_queue_can_be_opened_again(server: EmbeddedServer, redis: Redis) -> None:
    queue = queue_at(server)
    for n in range(3):
        async with queue:
            await queue.produce("t", n)
    assert len(await in_order(redis)) == 3
    await no_connection_is_left(redis)


async def test_concurrent_first_uses_open_once(proxy: Proxy, redis: Redis) -> None:
    queue = RedisMessageQueue(proxy.url, name="q")
    await asyncio.gather(
        *(queue.produce("t", n) for n in range(20)),
        *(queue.open() for _ in range(5)),
        queue.produce_many("t", range(20)),
    )
    assert proxy.connections == 1
    assert len(await in_order(redis)) == 40
    await queue.close()


async def test_opening_and_closing_at_once_leaves_it_open_or_closed_but_nothing_in_between(
    server: EmbeddedServer, redis: Redis
) -> None:
    queue = queue_at(server, server_check="warn")
    for _ in range(20):
        await asyncio.gather(queue.open(), queue.close(), queue.produce("t", 1), queue.close())
    await queue.close()
    assert len(await in_order(redis)) == 20
    await no_connection_is_left(redis)


async def test_a_queue_can_be_made_where_no_loop_runs(server: EmbeddedServer, redis: Redis) -> None:
    """At the top of a module."""
    queue = await asyncio.to_thread(queue_at, server)
    async with queue:
        await queue.produce("t", 1)
    assert len(await in_order(redis)) == 1


# -- what fails to open


async def test_an_open_that_is_refused_leaves_nothing_behind(server: EmbeddedServer, redis: Redis) -> None:
    queue = queue_at(server, server_check="refuse")
    for _ in range(3):
        with pytest.raises(UnsafeServer):
            await queue.open()
        with pytest.raises(ConfigError, match="not open"):
            await queue.counts()
    await no_connection_is_left(redis)


async def test_a_refused_embedded_server_is_let_go(tmp_path: Path) -> None:
    with EmbeddedServer.open(tmp_path / "data") as server:
        async with Redis.from_url(server.url) as somebody:
            await somebody.config_set("appendonly", "no")
        with pytest.raises(UnsafeServer):
            await RedisMessageQueue(f"embedded://{tmp_path}/data", server_check="refuse").open()
    await eventually(lambda: is_gone(server))


async def test_an_open_that_is_cancelled_leaves_no_server_behind() -> None:
    before = set(embedded_module._open)
    queue = RedisMessageQueue("embedded://")
    opening = asyncio.create_task(queue.open())
    await asyncio.sleep(0)
    opening.cancel()
    with pytest.raises(asyncio.CancelledError):
        await opening
    assert set(embedded_module._open) == before
    assert server_of(queue) is None
    async with queue:
        await queue.produce("t", 1)


async def test_an_open_that_is_cancelled_leaves_no_connection_behind(proxy: Proxy, redis: Redis) -> None:
    queue = RedisMessageQueue(proxy.url, name="q")
    proxy.freeze()
    opening = asyncio.create_task(queue.open())

    async def connecting() -> bool:
        return proxy.connections == 1

    await eventually(connecting)
    opening.cancel()
    with pytest.raises(asyncio.CancelledError):
        await opening
    proxy.thaw()
    async with queue:
        await queue.produce("t", 1)
    await no_connection_is_left(redis)
    gc.collect()


async def test_nobody_there_is_unavailable_when_the_patience_is_over(tmp_path: Path) -> None:
    queue = RedisMessageQueue(f"unix://{tmp_path}/nothing", patience=0.2)
    with pytest.raises(ServerUnavailable, match=r"refused the connection: .*gave up after 0\.2 s"):
        await queue.open()


async def test_the_server_may_start_after_the_service(tmp_path: Path) -> None:
    queue = RedisMessageQueue(f"unix://{tmp_path}/server.sock", server_check="warn")
    opening = asyncio.create_task(queue.open())
    done, _ = await asyncio.wait([opening], timeout=0.1)
    assert not done
    with EmbeddedServer.open() as server:
        (tmp_path / "server.sock").symlink_to(server.socket)
        await opening
        await queue.close()


async def test_tls_to_a_plain_server_is_refused(tcp: str) -> None:
    queue = RedisMessageQueue(tcp.replace("redis://", "rediss://"), patience=0, socket_timeout=2)
    with pytest.raises(ConfigError, match="does not speak TLS on this port"):
        await queue.produce("t", 1)
    gc.collect()


@pytest.mark.parametrize(
    "url", ["http://localhost", "localhost:6379", "redis:/localhost", "amqp://localhost"]
)
def test_a_url_of_another_kind_is_refused_when_the_queue_is_made(url: str) -> None:
    with pytest.raises(ConfigError, match="url must begin with redis://"):
        RedisMessageQueue(url)


async def test_the_right_user_and_password_are_let_in_and_shown_nowhere(
    tcp: str, redis: Redis, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    await command(redis, "ACL", "SETUSER", "ada", "on", ">gehe/im", "~*", "+@all")
    try:
        async with RedisMessageQueue(tcp.replace("://", "://ada:gehe%2Fim@"), name="q") as queue:
            await queue.produce("t", 1)
            await asyncio.to_thread(queue.sync.produce, "t", 1)
            texts = [repr(queue), repr(queue.config)]
        for user, password in (("ada", "wrong-geheim"), ("bob", "gehe%2Fim")):
            wrong = RedisMessageQueue(tcp.replace("://", f"://{user}:{password}@"), name="q")
            for produce in (wrong.produce("t", 1), asyncio.to_thread(wrong.sync.produce, "t", 1)):
                with pytest.raises(ServerRefused, match="refuses the connection") as refused:
                    await produce
                texts.append(str(refused.value))
    finally:
        await command(redis, "ACL", "DELUSER", "ada")
    texts += [f"{record.getMessage()} {record.__dict__}" for record in caplog.records]
    assert len(await in_order(redis)) == 2
    assert not [text for text in texts if "gehe" in text]


# -- embedded servers


async def test_a_private_server_is_gone_after_close() -> None:
    queue = RedisMessageQueue("embedded://")
    await asyncio.gather(*(queue.produce("t", n) for n in range(10)))
    server = server_of(queue)
    assert server is not None
    assert (await queue.counts()).pending == 10
    await queue.close()
    await eventually(lambda: is_gone(server))


async def test_a_private_server_is_not_stopped_under_somebody_who_opens_it() -> None:
    queue = RedisMessageQueue("embedded://", patience=0)
    for _ in range(3):
        await asyncio.gather(queue.open(), queue.close(), queue.produce("t", 1), queue.close())
    await queue.close()
    assert server_of(queue) is None


async def test_two_private_queues_share_nothing() -> None:
    async with RedisMessageQueue("embedded://") as one, RedisMessageQueue("embedded://") as other:
        await one.produce("t", 1)
        assert (await other.counts()).topics == {}


async def test_a_persistent_server_keeps_messages_from_one_use_to_the_next(tmp_path: Path) -> None:
    url = f"embedded://{tmp_path}/data"
    async with RedisMessageQueue(url) as queue:
        await queue.produce("t", 1, message_id="A1")
    async with RedisMessageQueue(url) as queue:
        assert (await queue.find("A1")).state == "pending"


async def test_a_path_that_cannot_hold_a_server_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for url, says in (
        (f"embedded://{tmp_path}/file", "is a file"),
        ("embedded:///proc/nothing", "cannot run an embedded server in /proc/nothing"),
        ("embedded://relative/path", "write embedded:// for a private one"),
        ("embedded:///", "write embedded:// for a private one"),
    ):
        queue = RedisMessageQueue(url)
        for _ in range(2):
            with pytest.raises(EmbeddedServerError, match=says):
                await queue.produce("t", 1)
        await queue.close()


# -- event loops


def test_a_queue_serves_one_loop_after_another(server: EmbeddedServer) -> None:
    """Its locks must not belong to the first."""
    queue = queue_at(server, server_check="warn")

    async def use() -> int:
        await asyncio.gather(*(queue.produce("t", n) for n in range(5)), queue.open(), queue.open())
        pending = (await queue.counts()).topics["t"].pending
        await asyncio.gather(queue.close(), queue.close())
        return pending

    async def clean() -> None:
        async with queue:
            await queue.purge("t")

    asyncio.run(clean())
    assert [asyncio.run(use()) for _ in range(3)] == [5, 10, 15]


def test_a_private_server_serves_one_loop_after_another() -> None:
    queue = RedisMessageQueue("embedded://")
    queue.sync.produce("t", 1)

    async def use() -> None:
        async with queue:
            await queue.produce("t", 1)

    for _ in range(2):
        asyncio.run(use())
    queue.sync.close()


FORGETFUL = """
import asyncio, sys
from mx_rmq import RedisMessageQueue
queue = RedisMessageQueue(sys.argv[1], name="q", server_check="off")
for n in range(3):
    print(asyncio.run(queue.produce("t", n)))
"""


async def test_a_script_that_never_closes_the_queue_works_in_every_loop(
    server: EmbeddedServer, redis: Redis
) -> None:
    """``asyncio.run(queue.produce(...))`` is the first thing that comes to mind."""
    run = await asyncio.create_subprocess_exec(
        sys.executable, "-c", FORGETFUL, server.url, stdout=asyncio.subprocess.PIPE
    )
    out, _ = await asyncio.wait_for(run.communicate(), 30)
    assert run.returncode == 0
    assert out.decode().split() == await in_order(redis)
    assert len(out.split()) == 3


async def test_a_queue_does_not_serve_two_loops_at_once(queue: RedisMessageQueue, redis: Redis) -> None:
    await queue.produce("t", 1)
    raised: list[Exception] = []

    def elsewhere() -> None:
        for call in (queue.produce("t", 2), queue.counts()):
            try:
                asyncio.run(call)
            except Exception as error:
                raised.append(error)

    thread = threading.Thread(target=elsewhere)
    thread.start()
    await asyncio.to_thread(thread.join)
    assert [type(error) for error in raised] == [ConfigError, ConfigError]
    assert "another event loop" in str(raised[0])
    await queue.produce("t", 3)
    assert len(await in_order(redis)) == 2


def test_uvloop_is_as_good(server: EmbeddedServer) -> None:
    uvloop = pytest.importorskip("uvloop")

    async def use() -> list[int]:
        handled: list[int] = []
        async with queue_at(server, name="uv") as queue:
            done = asyncio.Event()

            @queue.handler("t")
            async def handle(payload: int) -> None:
                handled.append(payload)
                if len(handled) == 100:
                    done.set()

            await asyncio.gather(*(queue.produce("t", n) for n in range(50)))
            await queue.start()
            await queue.produce_many("t", range(50, 100))
            async with asyncio.timeout(10):
                await done.wait()
        return sorted(handled)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert runner.run(use()) == list(range(100))
