from __future__ import annotations

import asyncio
import gc
import shutil
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hiredis
import pytest
from redis import ConnectionPool as BlockingPool
from redis.asyncio import ConnectionPool
from redis.exceptions import NoScriptError, ResponseError

from mx_rmq.errors import ConfigError, ServerRefused, ServerUnavailable
from mx_rmq.storage.blocking import BlockingConnections, run_blocking
from mx_rmq.storage.connection import Connection, ConnectionPerCall
from mx_rmq.storage.embedded import EmbeddedServer
from mx_rmq.storage.opening import connections
from mx_rmq.storage.wire import CutShort
from tests.harness import At, CancelledByCtrlC, command
from tests.proxy import Proxy
from tests.tls import Tls
from tests.words import eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

    from redis.asyncio import Redis


@pytest.fixture
async def link(server: EmbeddedServer, redis: Redis) -> AsyncIterator[Connection]:
    link = Connection(server.url, timeout=5)
    yield link
    await link.close()


@asynccontextmanager
async def through(proxy: Proxy, *, seconds: float = 5) -> AsyncIterator[Connection]:
    link = Connection(proxy.url, timeout=seconds)
    yield link
    await link.close()


@asynccontextmanager
async def something_else(answer: Callable[[bytes], bytes]) -> AsyncIterator[str]:
    """The URL of something that is no Redis, and what it answers to what it is sent."""
    talks: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if talk := asyncio.current_task():
            talks.add(talk)
        while data := await reader.read(1 << 16):
            writer.write(answer(data))
        writer.close()
        await writer.wait_closed()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    yield f"redis://{host}:{port}"
    server.close()
    await asyncio.wait(talks, timeout=5)


def pings(*says: bytes) -> Callable[[bytes], bytes]:
    """Answers as Redis would, but to PING with the given words in turn."""
    words, parser = iter(says), hiredis.Reader()

    def answer(data: bytes) -> bytes:
        parser.feed(data)
        said = b""
        while request := parser.gets():
            said += next(words) if request[0] == b"PING" else b"+OK\r\n"
        return said

    return answer


# -- replies


async def test_replies_come_in_the_order_of_a_thousand_concurrent_commands(link: Connection) -> None:
    replies = await asyncio.gather(*(link.execute_command("ECHO", f"{n}") for n in range(1000)))
    assert replies == [str(n).encode() for n in range(1000)]


async def test_all_callers_share_one_connection(link: Connection, redis: Redis) -> None:
    ids = await asyncio.gather(*(link.execute_command("CLIENT", "ID") for _ in range(50)))
    assert len(set(ids)) == 1


async def test_what_is_held_back_leaves_in_one_write(link: Connection, redis: Redis) -> None:
    async def reads() -> int:
        return int((await redis.info("stats"))["total_reads_processed"])

    async def ask(turns: int) -> bytes:
        for _ in range(turns):
            await asyncio.sleep(0)
        return bytes(await link.execute_command("ECHO", str(turns)))

    link.hold_back()  # there is no connection yet, and nothing to hold back
    assert await ask(0) == b"0"
    before = await reads()
    link.hold_back()
    link.hold_back()
    assert await asyncio.gather(*map(ask, range(4))) == [b"0", b"1", b"2", b"3"]
    assert await reads() == before + 2, "one for all of them, and one to ask for the number"
    link.hold_back()
    lost = asyncio.create_task(ask(0))
    await asyncio.sleep(0)
    link.lose("by the test")
    with pytest.raises(ServerUnavailable, match="by the test"):
        await lost
    assert await ask(0) == b"0"


async def test_an_error_is_its_own_commands_only(link: Connection) -> None:
    calls = []
    for n in range(300):
        calls.append(link.execute_command("ECHO", f"{n}"))
        calls.append(link.execute_command("NONSENSE", f"{n}"))
    results = await asyncio.gather(*calls, return_exceptions=True)
    assert results[::2] == [str(n).encode() for n in range(300)]
    assert all(isinstance(error, ResponseError) and "NONSENSE" in str(error) for error in results[1::2])


async def test_a_reply_that_is_cancelled_while_it_arrives_harms_no_other(link: Connection) -> None:
    wire = await link.opened()
    unlucky = [CancelledByCtrlC(), CancelledByCtrlC()]
    wire.send_together([("ECHO", "1"), ("NONSENSE",)], unlucky)
    assert await asyncio.wait_for(link.execute_command("PING"), 10) == b"PONG"
    assert all(future.cancelled() for future in unlucky)
    assert await link.opened() is wire, "the connection is kept"


async def test_a_receiver_that_fails_is_told_of(link: Connection) -> None:
    """Only a cancelled receiver is passed over in silence."""

    class Broken(asyncio.Future[Any]):
        def set_result(self, result: Any) -> None:
            raise asyncio.InvalidStateError("broken")

    told: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))
    wire = await link.opened()
    wire.send_together([("PING",)], [Broken()])
    await eventually(lambda: told)
    assert str(told[0]["exception"]) == "broken"


async def test_an_unknown_script_has_its_own_error(link: Connection) -> None:
    with pytest.raises(NoScriptError):
        await link.execute_command("EVALSHA", "0" * 40, 0)
    assert await link.execute_command("PING") == b"PONG"


async def test_replies_are_plain_bytes(link: Connection) -> None:
    await link.execute_command("HSET", "h", "f", b"\xff\x00")
    assert await link.execute_command("HGETALL", "h") == [b"f", b"\xff\x00"]
    assert await link.execute_command("GET", "nothing") is None


async def test_the_url_cannot_ask_for_other_replies(server: EmbeddedServer, redis: Redis) -> None:
    link = Connection(server.url + "?protocol=3&decode_responses=true", timeout=5)
    await link.execute_command("HSET", "h", "f", "v")
    assert await link.execute_command("HGETALL", "h") == [b"f", b"v"]
    await link.close()


async def test_the_url_chooses_the_database(server: EmbeddedServer, redis: Redis) -> None:
    link = Connection(server.url + "?db=3", timeout=5)
    await link.execute_command("SET", "k", "v")
    assert await redis.get("k") is None
    await link.close()


async def test_ten_megabytes_come_whole_among_small_replies(link: Connection) -> None:
    big = b"x" * 10_000_000
    small = link.execute_command("ECHO", "before")
    await link.execute_command("SET", "big", big)
    after = link.execute_command("ECHO", "after")
    assert await link.execute_command("GET", "big") == big
    assert (await small, await after) == (b"before", b"after")


async def test_a_caller_that_gives_up_does_not_shift_the_replies_of_the_others(
    proxy: Proxy, redis: Redis
) -> None:
    async with through(proxy) as link:
        await link.execute_command("PING")
        proxy.freeze()
        calls = [asyncio.ensure_future(link.execute_command("ECHO", f"{n}")) for n in range(100)]
        for call in calls[::3]:
            call.cancel()
        proxy.thaw()
        results = await asyncio.gather(*calls, return_exceptions=True)
        for n, result in enumerate(results):
            if n % 3 == 0:
                assert isinstance(result, asyncio.CancelledError)
            else:
                assert result == str(n).encode()


async def test_a_command_that_cannot_be_written_disturbs_nobody(link: Connection) -> None:
    await link.execute_command("PING")
    before = link.execute_command("ECHO", "before")
    with pytest.raises(TypeError):
        await link.execute_command("ECHO", object())
    assert await link.execute_command("ECHO", "after") == b"after"
    assert await before == b"before"


# -- a server that cannot serve now


async def test_a_replica_is_unavailable(link: Connection, redis: Redis) -> None:
    await command(redis, "REPLICAOF", "127.0.0.1", "1")
    try:
        with pytest.raises(ServerUnavailable, match="READONLY"):
            await link.execute_command("EVAL", "return redis.call('SET', 'k', 'v')", 0)
    finally:
        await command(redis, "REPLICAOF", "NO", "ONE")


async def test_a_server_without_its_replicas_is_unavailable(link: Connection, redis: Redis) -> None:
    await redis.config_set("min-replicas-to-write", 1)
    try:
        with pytest.raises(ServerUnavailable, match="NOREPLICAS"):
            await link.execute_command("EVAL", "return redis.call('SET', 'k', 'v')", 0)
    finally:
        await redis.config_set("min-replicas-to-write", 0)


async def test_a_server_in_somebody_elses_endless_script_is_unavailable(
    server: EmbeddedServer, link: Connection, redis: Redis
) -> None:
    await link.execute_command("PING")
    await redis.config_set("lua-time-limit", 10)
    other = Connection(server.url, timeout=30)
    endless = asyncio.ensure_future(other.execute_command("EVAL", "while true do end", 0))

    async def busy() -> bool:
        try:
            await link.execute_command("EVAL", "return 1", 0)
        except ServerUnavailable as error:
            return "BUSY" in str(error)
        return False

    try:
        await eventually(busy)
    finally:
        await command(redis, "SCRIPT", "KILL")
        with pytest.raises(ResponseError):
            await endless
        await redis.config_set("lua-time-limit", 5000)
        await other.close()


@pytest.mark.parametrize(
    "reply",
    [
        "LOADING Redis is loading the dataset in memory",
        "MASTERDOWN Connection with MASTER is down and replica-serve-stale-data is set to 'no'.",
        "CLUSTERDOWN The cluster is down",
        "TRYAGAIN Multiple keys request during rehashing of slot",
        "UNBLOCKED force unblock from blocking operation",
        "ERR Error running script (call to f_0): @user_script:19: @user_script: 19: -READONLY You may not",
    ],
)
async def test_other_ways_to_say_not_now(reply: str) -> None:
    """Those of servers that are not at hand, or not in that state."""
    async with something_else(pings(f"-{reply}\r\n".encode())) as url:
        link = Connection(url, timeout=5)
        with pytest.raises(ServerUnavailable, match="cannot serve now"):
            await link.execute_command("PING")
        await link.close()


@pytest.mark.parametrize("reply", ["BUSYKEY Target key name already exists.", "ERR READONLY is no command"])
async def test_what_only_looks_like_it_is_a_refusal(reply: str) -> None:
    async with something_else(pings(f"-{reply}\r\n".encode())) as url:
        link = Connection(url, timeout=5)
        with pytest.raises(ResponseError):
            await link.execute_command("PING")
        await link.close()


# -- losing the connection


async def test_it_opens_again_after_the_server_hung_up(link: Connection, redis: Redis) -> None:
    first = await link.execute_command("CLIENT", "ID")
    await command(redis, "CLIENT", "KILL", "ID", first)

    async def answers() -> bool:
        try:
            return bool(await link.execute_command("CLIENT", "ID") != first)
        except ServerUnavailable:
            return False

    await eventually(answers)


async def test_it_says_which_connection_is_in_use(link: Connection, redis: Redis) -> None:
    assert link.number == 0
    first = await link.execute_command("CLIENT", "ID")
    assert link.number == 1
    await link.execute_command("PING")
    assert link.number == 1
    await command(redis, "CLIENT", "KILL", "ID", first)
    await eventually(lambda: link.number == 0)
    await link.execute_command("PING")
    assert link.number == 2


async def test_everyone_who_waits_is_told_when_the_connection_is_cut(proxy: Proxy) -> None:
    async with through(proxy) as link:
        await link.execute_command("PING")
        proxy.freeze()
        calls = [asyncio.ensure_future(link.execute_command("PING")) for _ in range(100)]
        proxy.cut()
        async with asyncio.timeout(5):
            results = await asyncio.gather(*calls, return_exceptions=True)
        assert all(isinstance(result, ServerUnavailable) for result in results)
        proxy.thaw()
        assert await link.execute_command("PING") == b"PONG"


async def test_a_silent_connection_is_given_up_after_the_timeout(proxy: Proxy) -> None:
    """A half-open socket reports nothing, ever; the other end may have been gone for hours."""
    async with through(proxy, seconds=0.3) as link:
        await link.execute_command("PING")
        proxy.freeze()
        async with asyncio.timeout(5):
            with pytest.raises(ServerUnavailable, match=r"no answer within 0\.3 s"):
                await link.execute_command("PING")
        proxy.thaw()
        assert await link.execute_command("PING") == b"PONG"
        assert proxy.connections == 2


async def test_an_idle_connection_is_kept(proxy: Proxy) -> None:
    async with through(proxy, seconds=0.3) as link:
        await link.execute_command("PING")
        await asyncio.sleep(0.7)
        await link.execute_command("PING")
        assert proxy.connections == 1


async def test_a_reply_that_takes_long_but_comes_is_waited_for(proxy: Proxy, redis: Redis) -> None:
    """A large claim over a thin line: giving it up would only ask for the same again, for ever."""
    await redis.set("big", b"x" * 60_000)
    async with through(proxy, seconds=0.3) as link:
        await link.execute_command("PING")
        proxy.dribble(0.05)
        reply = asyncio.ensure_future(link.execute_command("GET", "big"))
        started = asyncio.get_running_loop().time()
        assert len(await reply) == 60_000
        assert asyncio.get_running_loop().time() - started > 0.6
        assert proxy.connections == 1


async def test_a_server_that_does_not_answer_the_first_word_is_given_up_after_the_timeout(
    proxy: Proxy,
) -> None:
    proxy.freeze()
    async with through(proxy, seconds=0.2) as link:
        with pytest.raises(ServerUnavailable, match=r"no answer within 0\.2 s"):
            await link.execute_command("PING")
    proxy.thaw()


async def test_nobody_there_is_unavailable_at_once(tmp_path: Path) -> None:
    link = Connection(f"unix://{tmp_path}/nothing", timeout=5)
    with pytest.raises(ServerUnavailable, match="refused the connection: no server listens there"):
        await link.execute_command("PING")


async def test_many_first_callers_open_one_connection(proxy: Proxy) -> None:
    async with through(proxy) as link:
        await asyncio.gather(*(link.execute_command("PING") for _ in range(100)))
        assert proxy.connections == 1


async def test_a_caller_that_gives_up_while_connecting_does_not_end_it_for_the_others(proxy: Proxy) -> None:
    proxy.freeze()
    async with through(proxy) as link:
        first = asyncio.ensure_future(link.execute_command("PING"))
        second = asyncio.ensure_future(link.execute_command("PING"))

        async def connecting() -> bool:
            return proxy.connections == 1

        await eventually(connecting)
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        proxy.thaw()
        assert await second == b"PONG"
        assert proxy.connections == 1


async def test_callers_that_all_give_up_while_connecting_leave_no_connection_behind(proxy: Proxy) -> None:
    """Warnings are errors here, and an unclosed connection would warn."""
    proxy.freeze()
    async with through(proxy) as link:
        calls = [asyncio.ensure_future(link.execute_command("PING")) for _ in range(2)]
        await eventually(lambda: proxy.connections == 1)
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)
        proxy.thaw()
        assert link.number == 0
        assert await link.execute_command("PING") == b"PONG"
        assert proxy.connections == 2
    gc.collect()


async def test_a_failed_connect_is_told_to_all_who_wait_for_it(proxy: Proxy) -> None:
    """Not one attempt after the other: the last of a hundred would wait for a hundred timeouts."""
    proxy.freeze()
    async with through(proxy, seconds=0.3) as link:
        began = asyncio.get_running_loop().time()
        calls = [link.execute_command("PING") for _ in range(100)]
        results = await asyncio.gather(*calls, return_exceptions=True)
        assert all(isinstance(result, ServerUnavailable) for result in results)
        assert len(set(map(id, results))) == 100
        assert asyncio.get_running_loop().time() - began < 3
        assert proxy.connections == 1
    proxy.thaw()


async def test_connecting_and_the_first_reply_have_one_timeout(proxy: Proxy, redis: Redis) -> None:
    """The connection is kept: if it is only slow, the next attempt has all the time for its reply."""
    proxy.freeze()
    async with through(proxy, seconds=2) as link:
        began = asyncio.get_running_loop().time()
        call = asyncio.ensure_future(link.execute_command("BLPOP", "nothing", 30))
        await asyncio.sleep(1.4)
        proxy.thaw()
        with pytest.raises(ServerUnavailable, match="no answer within 2 s"):
            await call
        assert asyncio.get_running_loop().time() - began < 3
        assert link.number == 1


# -- a server that is not the primary any more


async def test_a_demoted_server_is_left_and_its_address_asked_again(proxy: Proxy, redis: Redis) -> None:
    """The old one lives on as a replica, so its connections are never closed by it."""
    with EmbeddedServer.open() as successor:
        async with through(proxy) as link, through(proxy) as popping:
            await link.execute_command("PING")
            pop = asyncio.ensure_future(popping.execute_command("BLPOP", "nothing", 30))
            await eventually(lambda: b"BLPOP" in proxy.commands)
            await command(redis, "REPLICAOF", "127.0.0.1", "1")
            try:
                with pytest.raises(ServerUnavailable, match=r"UNBLOCKED|lost"):
                    await pop
                others = [link.execute_command("ECHO", "other") for _ in range(3)]
                write = link.execute_command("SET", "k", "v")
                behind = [link.execute_command("ECHO", "behind") for _ in range(3)]
                assert await asyncio.gather(*others) == [b"other"] * 3
                with pytest.raises(ServerUnavailable, match="READONLY"):
                    await write
                for each in await asyncio.gather(*behind, return_exceptions=True):
                    assert isinstance(each, ServerUnavailable)
                proxy.lead_to(successor)
                assert await link.execute_command("SET", "k", "v") == b"OK"
                assert await popping.execute_command("GET", "k") == b"v"
            finally:
                await command(redis, "REPLICAOF", "NO", "ONE")


async def test_a_server_that_stays_a_replica_is_not_asked_in_a_hot_loop(proxy: Proxy, redis: Redis) -> None:
    await command(redis, "REPLICAOF", "127.0.0.1", "1")
    try:
        async with through(proxy) as link:
            tries, until = 0, asyncio.get_running_loop().time() + 1.5
            while asyncio.get_running_loop().time() < until:
                with pytest.raises(ServerUnavailable, match="READONLY"):
                    await link.execute_command("SET", "k", "v")
                tries += 1
            assert 2 <= tries < 15
    finally:
        await command(redis, "REPLICAOF", "NO", "ONE")


async def test_connections_for_each_call_are_given_up_with_one_that_is_dead(proxy: Proxy) -> None:
    links = ConnectionPerCall(proxy.url, timeout=0.5)
    both = [links.execute_together(("BLPOP", "nothing", 0.1)) for _ in range(3)]
    await asyncio.gather(*both)
    assert proxy.connections == 3
    proxy.half_open()
    (lost,) = await links.execute_together(("PING",))
    assert isinstance(lost, ServerUnavailable)
    replies = await asyncio.gather(*(links.execute_together(("PING",)) for _ in range(3)))
    assert replies == [[b"PONG"]] * 3
    assert proxy.connections == 6
    await links.close()


# -- a line that is slow


async def test_a_command_that_is_still_leaving_is_not_given_up(server: EmbeddedServer, tcp: str) -> None:
    """Silence counts from when the server can have got the whole of it."""
    with Proxy(At(tcp)) as proxy:
        proxy.throttle(400_000)
        async with through(proxy, seconds=0.5) as link:
            await link.execute_command("PING")
            calls = [link.execute_command("SET", f"k{n}", b"x" * 400_000) for n in range(2)]
            assert await asyncio.gather(*calls) == [b"OK"] * 2
            assert proxy.connections == 1


async def test_a_line_that_stands_still_is_given_up_although_bytes_are_waiting(
    server: EmbeddedServer, tcp: str
) -> None:
    with Proxy(At(tcp)) as proxy:
        proxy.throttle(400_000)
        async with through(proxy, seconds=0.5) as link:
            await link.execute_command("PING")
            proxy.freeze()
            async with asyncio.timeout(5):
                with pytest.raises(CutShort, match=r"no answer within 0\.5 s"):
                    await link.execute_command("SET", "k", b"x" * 10_000_000)
        proxy.thaw()


async def test_close_fails_those_who_wait(proxy: Proxy) -> None:
    async with through(proxy) as link:
        await link.execute_command("PING")
        proxy.freeze()
        calls = [asyncio.ensure_future(link.execute_command("PING")) for _ in range(3)]
        await link.close()
        results = await asyncio.gather(*calls, return_exceptions=True)
        assert [str(result) for result in results] == ["the connection was lost: closed"] * 3


async def test_close_fails_those_who_are_still_connecting(proxy: Proxy) -> None:
    proxy.freeze()
    async with through(proxy) as link:
        call = asyncio.ensure_future(link.execute_command("PING"))

        async def connecting() -> bool:
            return proxy.connections == 1

        await eventually(connecting)
        await link.close()
        proxy.thaw()
        with pytest.raises(ServerUnavailable):
            await call
    gc.collect()


async def test_it_can_be_closed_twice_and_used_again(link: Connection) -> None:
    await link.close()
    await link.execute_command("PING")
    await link.close()
    await link.close()
    assert await link.execute_command("PING") == b"PONG"


# -- who is there


async def test_a_server_that_is_no_redis_is_refused_cleanly() -> None:
    async with something_else(lambda _: b"HTTP/1.1 400 Bad Request\r\nServer: nginx\r\n\r\n") as url:
        link = Connection(url, timeout=5)
        with pytest.raises(ServerUnavailable):
            await link.execute_command("PING")


@pytest.mark.parametrize("garbage", [b"garbage\r\n", b"$-5\r\n", b"$99999999999999999999999\r\n"])
async def test_garbage_costs_the_connection_and_nothing_else(garbage: bytes) -> None:
    async with something_else(pings(b"+PONG\r\n", garbage, b"+PONG\r\n")) as url:
        link = Connection(url, timeout=5)
        await link.execute_command("PING")
        with pytest.raises(ServerUnavailable, match="reply cannot be read"):
            await link.execute_command("PING")
        assert await link.execute_command("PING") == b"PONG"
        await link.close()


async def test_a_reply_that_nobody_asked_for_is_given_to_nobody() -> None:
    async with something_else(pings(b"+PONG\r\n+unasked\r\n", b"+second\r\n")) as url:
        link = Connection(url, timeout=5)
        assert await link.execute_command("PING") == b"PONG"
        assert await link.execute_command("PING") == b"second"
        await link.close()


@pytest.mark.parametrize("door", ["tcp", "unix"])
async def test_a_wrong_password_is_refused_at_once_and_not_shown(
    server: EmbeddedServer, redis: Redis, tcp: str, door: str
) -> None:
    """Waiting would not help."""
    url = tcp if door == "tcp" else server.url
    link = Connection(url.replace("://", "://default:wrong-secret@"), timeout=5)
    await redis.config_set("requirepass", "right-secret")
    try:
        with pytest.raises(ConfigError) as refused:
            await link.execute_command("PING")
        assert "secret" not in str(refused.value)
    finally:
        await redis.config_set("requirepass", "")


async def test_a_database_that_is_not_there_is_refused_at_once(server: EmbeddedServer) -> None:
    link = Connection(server.url + "?db=99999", timeout=5)
    with pytest.raises(ConfigError, match="DB index is out of range"):
        await link.execute_command("PING")


@pytest.mark.parametrize(
    "url",
    [
        "http://user:hidden@localhost",
        "redis://:hidden#@localhost",
        "redis://:hid/den@localhost:6379",
        "redis://user:hidden@localhost:port",
        "redis://user:hidden@[::1",
        "redis://user:1@hidden/2@localhost:6379",
        "redis://:1/hidden@localhost:6379",
        "redis://:1?hidden@localhost:6379",
        "redis://user:1@hidden#2@localhost:6379",
        "unix://user:1/hidden@/run/redis.sock",
        "redis://user:hidden\u2100@localhost",
        "redis://user:hidden@localhost?db=nonsense",
        "redis://user:hidden@localhost?nonsense=1",
        "rediss://user:hidden@localhost?ssl_cert_reqs=nonsense",
    ],
)
def test_a_wrong_url_is_a_config_error_that_does_not_show_it(url: str) -> None:
    with pytest.raises(ConfigError) as refused:
        Connection(url, timeout=5)
    assert "hid" not in str(refused.value)
    assert refused.value.__cause__ is None
    assert refused.value.__suppress_context__


# -- TLS


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tls]:
    """A server behind a door that speaks TLS."""
    if shutil.which("openssl") is None:
        pytest.skip("needs openssl to make a certificate")
    with EmbeddedServer.open() as server, Tls(server, tmp_path_factory.mktemp("tls")) as door:
        yield door


@pytest.fixture(params=["link", "blocking"])
def ping(request: pytest.FixtureRequest) -> Callable[[str], Awaitable[bytes]]:
    """Asks a server over each kind of connection."""

    async def over_link(url: str) -> bytes:
        link = Connection(url, timeout=5)
        try:
            pong: bytes = await link.execute_command("PING")
        finally:
            await link.close()
        return pong

    async def over_blocking(url: str) -> bytes:
        commands = BlockingConnections(url, timeout=5)
        try:
            pong: bytes = await asyncio.to_thread(run_blocking, commands.execute_command("PING"))
        finally:
            commands.close()
        return pong

    return over_link if request.param == "link" else over_blocking


async def test_it_speaks_tls(tls: Tls) -> None:
    link = Connection(f"{tls.url}?ssl_ca_certs={tls.certificate}", timeout=5)
    big = b"x" * 3_000_000
    await link.execute_command("SET", "big", big)
    replies = await asyncio.gather(
        link.execute_command("GET", "big"), *(link.execute_command("ECHO", f"{n}") for n in range(100))
    )
    assert replies == [big, *(str(n).encode() for n in range(100))]
    await link.close()
    assert await link.execute_command("PING") == b"PONG"
    await link.close()


async def test_a_certificate_that_nobody_vouches_for_is_refused_at_once(
    tls: Tls, ping: Callable[[str], Awaitable[bytes]]
) -> None:
    """Waiting would not help."""
    with pytest.raises(ConfigError, match=r"certificate is refused: .*ssl_ca_certs"):
        await ping(tls.url)


async def test_the_host_name_in_a_certificate_is_checked(
    tls: Tls, ping: Callable[[str], Awaitable[bytes]]
) -> None:
    """The certificate is valid, but for another host: 127.0.0.2 leads to the same door and is not in it."""
    elsewhere = f"{tls.url.replace('127.0.0.1', '127.0.0.2')}?ssl_ca_certs={tls.certificate}"
    with pytest.raises(ConfigError, match="certificate is refused"):
        await ping(elsewhere)
    assert await ping(f"{elsewhere}&ssl_check_hostname=false") in (b"PONG", True)
    assert await ping(f"{tls.url}?ssl_ca_certs={tls.certificate}") in (b"PONG", True)
    assert await ping(f"{tls.url.replace('127.0.0.1', '127.0.0.2')}?ssl_cert_reqs=none") in (b"PONG", True)


@pytest.mark.parametrize("kind", [ConnectionPool, BlockingPool])
def test_host_names_are_checked_by_every_version_of_redis_py(kind: type[Any]) -> None:
    """Those before 6 do it only if they are told to."""

    def checks(url: str) -> object:
        return connections(kind, url).connection_kwargs.get("ssl_check_hostname")

    assert checks("rediss://host") is True
    assert checks("rediss://host?ssl_check_hostname=true") is True
    assert checks("rediss://host?ssl_check_hostname=false") is False
    assert checks("rediss://host?ssl_cert_reqs=optional") is True
    assert checks("rediss://host?ssl_cert_reqs=none") in (None, False)
    assert checks("redis://host") is None


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("ssl_ca_certs={none}", "ssl_ca_certs must be a file that can be read, got"),
        ("ssl_ca_certs={text}", "ssl_ca_certs must be a file with certificates in PEM form"),
        ("ssl_ca_data=text", "ssl_ca_data such certificates"),
        ("ssl_certfile={none}", "ssl_certfile must be a file that can be read, got"),
        ("ssl_certfile={text}", "ssl_certfile and ssl_keyfile must be a certificate and its key in PEM form"),
        ("ssl_certfile={certificate}&ssl_keyfile={none}", "ssl_keyfile must be a file that can be read, got"),
        ("ssl_certfile={certificate}", "must be a certificate and its key"),
    ],
)
async def test_a_certificate_that_cannot_be_read_is_not_a_lost_server(
    tls: Tls, ping: Callable[[str], Awaitable[bytes]], tmp_path: Path, options: str, said: str
) -> None:
    """It is refused at once, and the error names the option."""
    (tmp_path / "text").write_text("text")
    files = {"none": tmp_path / "none", "text": tmp_path / "text", "certificate": tls.certificate}
    with pytest.raises(ConfigError, match=said):
        await ping(f"{tls.url}?{options.format(**files)}")


def test_the_option_with_a_wrong_value_is_named() -> None:
    with pytest.raises(ConfigError, match="socket_timeout in the server's URL has a value that it cannot"):
        Connection("redis://user:hidden@localhost?socket_timeout=soon", timeout=5)


async def test_tls_to_a_plain_server_is_refused_cleanly(tcp: str) -> None:
    """Waiting would not help, and the error says what would."""
    link = Connection(tcp.replace("redis://", "rediss://"), timeout=2)
    with pytest.raises(ServerRefused, match=r"does not speak TLS on this port; .* write redis://"):
        await link.execute_command("PING")
    gc.collect()


async def test_a_plain_connection_to_a_tls_server_is_refused_cleanly(tls: Tls) -> None:
    link = Connection(tls.url.replace("rediss://", "redis://"), timeout=2)
    with pytest.raises(ServerRefused, match="speaks TLS on this port; write rediss://"):
        await link.execute_command("PING")
    gc.collect()


async def test_a_link_closed_for_good_stays_closed(server: EmbeddedServer) -> None:
    """Whoever still holds it gets an error, not a connection that nobody closes."""
    link = Connection(server.url, timeout=5)
    assert await link.execute_command("PING") == b"PONG"
    await link.close()
    assert await link.execute_command("PING") == b"PONG"
    await link.close(for_good=True)
    with pytest.raises(ServerUnavailable, match="closed"):
        await link.execute_command("PING")
