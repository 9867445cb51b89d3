"""What a produce waits for, on servers of their own: a primary that keeps its data on disk, and a replica."""

from __future__ import annotations

import asyncio
import pickle
import time
from contextlib import ExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest
from redis import Redis as Client
from redis.exceptions import RedisError

from mx_rmq import (
    ConfigError,
    MxRmqError,
    NotDurable,
    NotOnDisk,
    NotReplicated,
    ProduceOptions,
    Receipt,
    RedisMessageQueue,
    ServerUnavailable,
    UnsafeServer,
)
from mx_rmq.config import DURABILITIES
from mx_rmq.receipt import Stored
from mx_rmq.storage.connection import Connection
from mx_rmq.storage.server_check import check_server
from mx_rmq.storage.shard import Shard
from tests.faults.servers import Server
from tests.harness import server_binaries
from tests.words import ONE_SERVER, PREFIX, eventually, reader_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
    from pathlib import Path

    from redis.asyncio import Redis

    from mx_rmq.config import Durability
    from tests.proxy import Proxy

BINARIES = pytest.mark.parametrize("binary", server_binaries().values(), ids=server_binaries())


@pytest.fixture
def binary() -> Path:
    """The server to use, where a test does not say."""
    return server_binaries()["valkey"]


@pytest.fixture
def primary(tmp_path: Path, binary: Path) -> Iterator[Server]:
    with Server(tmp_path / "primary", binary) as server:
        yield server


@pytest.fixture
def replica(tmp_path: Path, binary: Path, primary: Server) -> Iterator[Server]:
    with replica_of(primary.port, tmp_path, binary) as server:
        yield server


def replica_of(port: int, home: Path, binary: Path) -> Server:
    """A replica that has caught up."""
    server = Server(home / "replica", binary, replicaof=f"127.0.0.1 {port}").start()
    for _ in range(500):
        if server.command("INFO", "replication")["master_link_status"] == "up":
            return server
        time.sleep(0.02)
    server.kill()
    raise AssertionError("the replica does not catch up")


@pytest.fixture
async def queue(primary: Server) -> AsyncIterator[RedisMessageQueue]:
    """A queue that does not wait long."""
    async with queue_at(primary) as queue:
        yield queue


def queue_at(server: Server, **options: Any) -> RedisMessageQueue:
    given: dict[str, Any] = {"name": "q", "server_check": "off", "durability_timeout": 0.3} | options
    return RedisMessageQueue(server.url, **given)


def ids_on(server: Server) -> set[str]:
    """The messages that a server has."""
    return {name.decode() for name in server.command("HKEYS", f"{PREFIX}payload") if b":" not in name}


def calls_of(server: Server, command: str) -> int:
    """How often a command was sent to a server, since it was started."""
    facts: Any = server.command("INFO", "commandstats").get(f"cmdstat_{command}", {"calls": 0})
    return int(facts["calls"])


# -- replicated


@BINARIES
async def test_a_replicated_message_is_on_the_replica_when_produce_returns(
    primary: Server, replica: Server
) -> None:
    async with queue_at(primary, durability_timeout=10) as queue:
        for n in range(20):
            receipt = await queue.produce("t", n, durability="replicated", delay=60 * (n % 2))
            assert receipt in ids_on(replica)


@BINARIES
async def test_a_replica_that_does_not_answer_is_an_error_that_names_the_message(
    queue: RedisMessageQueue, primary: Server, replica: Server
) -> None:
    replica.pause()
    with pytest.raises(
        NotReplicated, match=r"stored.*0 of 1 replicas confirmed it within 0\.3 s.*A1.*safe"
    ) as error:
        await queue.produce("t", 1, message_id="A1", durability="replicated")
    assert error.value.ids == ("A1",)
    assert ids_on(primary) == {"A1"}


@BINARIES
async def test_an_error_may_be_answered_by_producing_again(
    queue: RedisMessageQueue, primary: Server, replica: Server
) -> None:
    """A duplicate is waited for like the message itself."""
    replica.pause()
    for _ in range(2):
        with pytest.raises(NotReplicated) as error:
            await queue.produce("t", 1, message_id="A1", durability="replicated")
        assert error.value.ids == ("A1",)
    replica.resume()
    async with queue_at(primary, durability_timeout=10, durability="replicated") as patient:
        assert (await patient.produce("t", 1, message_id="A1")).stored is Stored.LIVE
    assert ids_on(replica) == {"A1"}


async def test_more_replicas_than_there_are(primary: Server, replica: Server) -> None:
    async with queue_at(primary, replicas=2) as queue:
        with pytest.raises(NotReplicated, match="1 of 2 replicas"):
            await queue.produce("t", 1, durability="replicated")


@asynccontextmanager
async def load(server: Server, durability: Any, producers: int = 20) -> AsyncIterator[set[str]]:
    """What has been acknowledged while many produce, until the server is killed."""
    acknowledged: set[str] = set()

    async def produce(queue: RedisMessageQueue) -> None:
        while True:
            acknowledged.add(await queue.produce("t", 1, durability=durability))

    async with queue_at(server, durability_timeout=10, patience=0) as queue:
        tasks = [asyncio.create_task(produce(queue)) for _ in range(producers)]
        await eventually(lambda: len(acknowledged) > 15 * producers)
        yield acknowledged
        ends = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(isinstance(end, ServerUnavailable) for end in ends)


@BINARIES
async def test_when_the_primary_dies_every_replicated_message_is_on_the_promoted_replica(
    primary: Server, replica: Server
) -> None:
    async with load(primary, "replicated") as acknowledged:
        primary.kill()
    replica.command("REPLICAOF", "NO", "ONE")
    assert acknowledged <= ids_on(replica)


@pytest.mark.parametrize("durability", DURABILITIES)
async def test_a_replica_promoted_beside_a_living_primary_has_what_was_replicated_and_no_more(
    primary: Server, replica: Server, durability: Any
) -> None:
    """The network was split: for a while the old primary goes on taking messages."""
    if durability == "disk":
        primary.command("CONFIG", "SET", "appendfsync", "always")
    async with load(primary, durability) as acknowledged:
        replica.command("REPLICAOF", "NO", "ONE")
        before = len(acknowledged)
        if durability == "replicated":
            await asyncio.sleep(0.3)
        else:
            await eventually(lambda: len(acknowledged) > before + 100)
        primary.kill()
    lost = acknowledged - ids_on(replica)
    assert bool(lost) == (durability != "replicated")


async def test_a_primary_that_restarts_empty_takes_its_replica_along(tmp_path: Path, binary: Path) -> None:
    """Replication alone is no persistence: without a file the replica must be promoted first."""
    with ExitStack() as servers:
        primary = servers.enter_context(Server(tmp_path / "primary", appendonly="no"))
        replica = servers.enter_context(replica_of(primary.port, tmp_path, binary))
        async with queue_at(primary, durability_timeout=10) as queue:
            receipt = await queue.produce("t", 1, durability="replicated")
        primary.kill()
        assert ids_on(replica) == {receipt}
        primary.start()
        assert ids_on(primary) == set()
        await eventually(lambda: ids_on(replica) == set())


@ONE_SERVER
async def test_a_message_is_not_taken_for_replicated_because_its_reply_was_lost(
    redis: Redis, tcp: str, proxy: Proxy, tmp_path: Path, binary: Path
) -> None:
    """The call is sent again on another connection and answered from memory: that answer must wait, too."""
    await redis.config_set("repl-diskless-sync-delay", 0)
    with replica_of(int(tcp.rpartition(":")[2]), tmp_path, binary) as replica:
        options: Any = {
            "name": "q",
            "server_check": "off",
            "durability_timeout": 0.5,
            "durability": "replicated",
        }
        async with RedisMessageQueue(proxy.url, **options) as queue:
            await queue.produce("t", 1)
            replica.pause()
            for delay in (0, 60):
                proxy.lose_reply()
                with pytest.raises(NotReplicated):
                    await queue.produce("t", 1, delay=delay)
            assert proxy.lost_replies == 2
    assert int(await redis.hget(f"{PREFIX}counters", "t:produced") or 0) == 3


async def test_a_replica_is_waited_for_until_it_is_promoted(primary: Server, replica: Server) -> None:
    """The queue was pointed at what is a replica for another moment."""
    replica.command("CONFIG", "SET", "appendfsync", "always")
    async with queue_at(replica, durability="disk", durability_timeout=5) as queue:
        produce = asyncio.create_task(queue.produce("t", 1))
        done, _ = await asyncio.wait([produce], timeout=0.2)
        assert not done
        replica.command("REPLICAOF", "NO", "ONE")
        assert not (await produce).duplicate


# -- disk


async def test_a_message_on_disk_has_been_synced_when_produce_returns(primary: Server) -> None:
    """The append-only file is read as another would find it."""
    primary.command("CONFIG", "SET", "appendfsync", "always")
    async with queue_at(primary, durability="disk", durability_timeout=10) as queue:
        await queue.produce("t", 1)
        before = calls_of(primary, "waitaof")
        receipt = await queue.produce("t", 1)
        assert calls_of(primary, "waitaof") == before + 1
    aof = b"".join(file.read_bytes() for file in (primary.home / "appendonlydir").iterdir())
    assert receipt.encode() in aof


@pytest.mark.parametrize("how", ["async", "sync"])
async def test_a_server_that_answers_before_its_disk_does_is_refused(
    queue: RedisMessageQueue, primary: Server, how: str
) -> None:
    """The bundled Valkey, as long as it syncs once a second; it may do better one day."""
    began = time.monotonic()
    for _ in range(3):
        with Client(host="127.0.0.1", port=primary.port) as client:
            client.set("a", 1)
            client.execute_command("WAITAOF", 1, 0, 2000)
    if time.monotonic() - began > 1.8:
        pytest.skip("this server waits for its disk")
    calls: dict[str, Callable[[], Awaitable[Any]]] = {
        "async": lambda: queue.produce("t", 1, durability="disk"),
        "sync": lambda: asyncio.to_thread(queue.sync.produce, "t", 1, durability="disk"),
    }
    with pytest.raises(UnsafeServer, match="unless appendfsync is always"):
        await calls[how]()
    assert ids_on(primary) == set()
    primary.command("CONFIG", "SET", "appendfsync", "always")
    assert await queue.produce("t", 1, durability="disk") in ids_on(primary)


async def test_a_disk_that_is_never_synced_is_an_error_that_names_the_message(
    queue: RedisMessageQueue, primary: Server
) -> None:
    primary.command("CONFIG", "SET", "appendfsync", "no")
    with pytest.raises(NotOnDisk, match=r"not synced to disk within 0\.3 s.*A1") as error:
        await queue.produce("t", 1, message_id="A1", durability="disk")
    assert error.value.ids == ("A1",)
    assert ids_on(primary) == {"A1"}


async def test_a_server_whose_file_is_switched_off_later_is_no_lie(primary: Server) -> None:
    primary.command("CONFIG", "SET", "appendfsync", "always")
    async with queue_at(primary, durability="disk", durability_timeout=10) as queue:
        await queue.produce("t", 1)
        primary.command("CONFIG", "SET", "appendonly", "no")
        with pytest.raises(NotOnDisk, match="appendonly is disabled"):
            await queue.produce("t", 1, message_id="A1")
    assert "A1" in ids_on(primary)


@pytest.mark.parametrize("how", ["async", "many", "sync"])
@pytest.mark.parametrize("why", ["no file", "too old"])
async def test_a_server_that_cannot_do_it_is_refused_before_anything_is_stored(
    tmp_path: Path, why: str, how: str
) -> None:
    binaries = server_binaries()
    if why == "too old" and "redis" not in binaries:
        pytest.skip("no old server at hand")
    binary, appendonly = (binaries["redis"], "yes") if why == "too old" else (binaries["valkey"], "no")
    with Server(tmp_path, binary, appendonly=appendonly) as server:
        if why == "too old" and server.command("INFO", "server")["redis_version"] > "7.2":
            pytest.skip("the server at hand is not old")
        async with queue_at(server) as queue:
            calls: dict[str, Callable[[], Awaitable[Any]]] = {
                "async": lambda: queue.produce("t", 1, durability="disk"),
                "many": lambda: queue.produce_many("t", range(3), durability="disk"),
                "sync": lambda: asyncio.to_thread(queue.sync.produce, "t", 1, durability="disk"),
            }
            for _ in range(2):
                with pytest.raises(UnsafeServer, match=r"'disk' needs .*7\.2 or later, and appendonly"):
                    await calls[how]()
            assert server.command("KEYS", "*") == []
            await queue.produce("t", 1)


@pytest.mark.parametrize("durability", DURABILITIES)
async def test_when_the_server_is_killed_every_acknowledged_message_is_there_after_its_restart(
    primary: Server, replica: Server, durability: Any
) -> None:
    """A killed process takes nothing with it that it had written, synced or not."""
    if durability == "disk":
        primary.command("CONFIG", "SET", "appendfsync", "always")
    async with load(primary, durability) as acknowledged:
        primary.kill()
    primary.start()
    assert acknowledged <= ids_on(primary)


# -- many at once


async def test_what_is_produced_at_once_is_waited_for_at_once(primary: Server, replica: Server) -> None:
    async with queue_at(primary, durability="replicated", durability_timeout=10) as queue:
        await queue.produce("t", 1)
        before = calls_of(primary, "wait")
        await asyncio.gather(*(queue.produce("t", n) for n in range(100)))
    assert len(ids_on(replica)) == 101
    assert calls_of(primary, "wait") <= before + 10


async def test_each_of_those_who_failed_together_is_told_of_its_own_message(
    queue: RedisMessageQueue, replica: Server
) -> None:
    replica.pause()
    names = [f"A{n}" for n in range(20)]
    produces = (queue.produce("t", 1, message_id=name, durability="replicated") for name in names)
    errors: list[Any] = await asyncio.gather(*produces, return_exceptions=True)
    assert [error.ids for error in errors] == [(name,) for name in names]
    assert all(f"message {name};" in str(error) for name, error in zip(names, errors, strict=True))


async def test_those_who_ask_for_more_do_not_travel_with_those_who_do_not(
    queue: RedisMessageQueue, replica: Server
) -> None:
    """One call waits for all that it carries."""
    replica.pause()
    classes: list[Durability] = ["memory", "replicated"] * 20
    calls = (queue.produce("t", 1, durability=durability) for durability in classes)
    results = await asyncio.gather(*calls, return_exceptions=True)
    assert [type(result) for result in results] == [Receipt, NotReplicated] * 20


async def test_those_who_do_not_ask_do_not_wait(primary: Server, replica: Server) -> None:
    """Neither for replicas nor behind others who do."""
    primary.command("CONFIG", "SET", "appendfsync", "always")
    replica.pause()
    async with queue_at(primary, durability_timeout=30, patience=0) as slow:
        waiting = asyncio.create_task(slow.produce("t", 1, durability="replicated"))
        await asyncio.sleep(0)
        async with asyncio.timeout(10):
            for n in range(100):
                await slow.produce("t", n)
            assert len(await slow.produce_many("t", range(1000))) == 1000
            await slow.produce("t", 1, durability="disk")
        assert not waiting.done()
        replica.resume()
        await waiting


async def test_many_are_waited_for_chunk_by_chunk(
    queue: RedisMessageQueue, primary: Server, replica: Server
) -> None:
    async with queue_at(primary, durability_timeout=10) as patient:
        receipts = await patient.produce_many("t", range(1200), durability="replicated")
        assert ids_on(replica) == set(receipts)
        assert 4 <= calls_of(primary, "wait") <= 6
    replica.pause()
    with pytest.raises(NotReplicated, match=r"message .*, .*, .* and 497 more") as error:
        await queue.produce_many("t", range(600), durability="replicated")
    assert len(error.value.ids) == 500
    assert set(error.value.ids) <= ids_on(primary)


# -- who says


async def test_the_queue_has_a_default_and_a_message_may_differ(primary: Server, replica: Server) -> None:
    replica.pause()
    async with queue_at(primary, durability="replicated") as queue:

        @queue.handler("t")
        async def handle(payload: int) -> None: ...

        for produce in (queue.produce("t", 1), handle.produce(1)):
            with pytest.raises(NotReplicated):
                await produce
        assert not (await queue.produce("t", 1, durability="memory")).duplicate
        assert not (await handle.produce(1, durability="memory")).duplicate
    async with queue_at(primary) as queue:
        assert not (await queue.produce("t", 1)).duplicate


async def test_middleware_sees_it_and_may_change_it(queue: RedisMessageQueue, replica: Server) -> None:
    seen = []

    @queue.produce_middleware
    async def layer(call_next: Any, topic: str, payload: Any, options: ProduceOptions) -> Receipt:
        seen.append(options["durability"])
        receipt: Receipt = await call_next(topic, payload, options | {"durability": "replicated"})
        return receipt

    replica.pause()
    for produce in (queue.produce("t", 1), queue.produce("t", 1, durability="memory")):
        with pytest.raises(NotReplicated):
            await produce
    assert seen == [None, "memory"]


@pytest.mark.parametrize("wrong", ["", "ram", "Disk", 1, True, ["disk"]])
async def test_a_class_that_there_is_not_is_refused(
    queue: RedisMessageQueue, primary: Server, wrong: Any
) -> None:
    says = "durability must be 'memory', 'disk' or 'replicated', got "
    with pytest.raises(ConfigError, match=says):
        await queue.produce("t", 1, durability=wrong)
    with pytest.raises(ConfigError, match=says):
        await queue.produce_many("t", [1], durability=wrong)
    with pytest.raises(ConfigError, match=says):
        queue.sync.produce("t", 1, durability=wrong)
    with pytest.raises(ConfigError, match=says):
        queue_at(primary, durability=wrong)
    assert primary.command("KEYS", "*") == []


@BINARIES
async def test_the_blocking_producer_waits_too(primary: Server, replica: Server) -> None:
    with queue_at(primary, durability="replicated", durability_timeout=10).sync as producer:
        assert producer.produce("t", 1, message_id="A1") in ids_on(replica)
        assert set(producer.produce_many("t", range(600))) < ids_on(replica)
    replica.pause()
    with queue_at(primary, durability="replicated").sync as producer:
        for id_ in ("A1", "A2"):  # whether it is there already or not
            with pytest.raises(NotReplicated) as error:
                producer.produce("t", 1, message_id=id_)
            assert error.value.ids == (id_,)
        assert not producer.produce("t", 1, durability="memory").duplicate
        with pytest.raises(NotReplicated) as error:
            producer.produce_many("t", range(3))
        assert len(error.value.ids) == 3
    assert "A2" in ids_on(primary)


@ONE_SERVER
async def test_the_blocking_producer_waits_after_a_lost_reply(
    redis: Redis, tcp: str, proxy: Proxy, tmp_path: Path, binary: Path
) -> None:
    await redis.config_set("repl-diskless-sync-delay", 0)
    with replica_of(int(tcp.rpartition(":")[2]), tmp_path, binary) as replica:
        options: Any = {"name": "q", "durability_timeout": 0.5, "durability": "replicated"}
        with RedisMessageQueue(proxy.url, **options).sync as producer:
            producer.produce("t", 1)
            replica.pause()
            proxy.lose_reply()
            with pytest.raises(NotReplicated):
                producer.produce("t", 1)
            assert proxy.lost_replies == 1


# -- the ends


async def test_scripts_that_the_server_has_forgotten_are_sent_and_waited_for(
    primary: Server, replica: Server
) -> None:
    async with queue_at(primary, durability="replicated", durability_timeout=10) as queue:
        for flush in (False, True):
            if flush:
                primary.command("SCRIPT", "FLUSH")
            assert await queue.produce("t", 1) in ids_on(replica)
            with queue.sync as producer:
                primary.command("SCRIPT", "FLUSH")
                assert await asyncio.to_thread(producer.produce, "t", 1) in ids_on(replica)


async def test_closing_leaves_no_connection_and_opens_none(primary: Server) -> None:
    primary.command("CONFIG", "SET", "appendfsync", "always")
    shard = Shard(primary.url, queue_at(primary, durability="disk", durability_timeout=10).config)
    store = shard.store_for("disk")
    await store.produce("t", [])
    await shard.close()
    with pytest.raises(MxRmqError, match="closed"):
        await store.produce("t", [])
    await eventually(lambda: len(primary.command("CLIENT", "LIST").splitlines()) == 1)


async def test_a_caller_who_gives_up_does_not_make_the_next_one_wait(
    primary: Server, replica: Server
) -> None:
    primary.command("CONFIG", "SET", "appendfsync", "always")
    replica.pause()
    async with queue_at(primary, durability_timeout=30, patience=0) as slow:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await slow.produce("t", 1, durability="replicated")
        async with asyncio.timeout(10):
            await slow.produce("t", 1, durability="disk")


async def test_several_commands_share_one_connection_and_a_refusal_is_one_of_the_replies(
    primary: Server,
) -> None:
    link = Connection(primary.url, timeout=5)
    first, refused, second = await link.execute_together(("CLIENT", "ID"), ("NONSENSE",), ("CLIENT", "ID"))
    assert first == second
    assert isinstance(refused, RedisError)
    await link.close()


def test_an_error_survives_a_process_boundary() -> None:
    error = NotReplicated(("A1", "A2"), "0 of 1 replicas confirmed it")
    copy = pickle.loads(pickle.dumps(error))
    assert isinstance(copy, NotDurable)
    assert (copy.ids, str(copy)) == (error.ids, str(error))


# -- the start-up check


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"durability": "replicated"}, "'replicated' and wants 1 replicas, but 0 are connected"),
        ({"durability": "replicated", "replicas": 2}, "wants 2 replicas, but 0 are connected"),
    ],
)
async def test_too_few_replicas_are_found_at_the_start(primary: Server, options: Any, says: str) -> None:
    with pytest.raises(UnsafeServer, match=says):
        await queue_at(primary, server_check="refuse", **options).open()


async def test_enough_replicas_are_no_problem(primary: Server, replica: Server) -> None:
    async with queue_at(primary, server_check="refuse", durability="replicated"):
        pass
    async with queue_at(primary, server_check="refuse", durability="disk"):
        pass


async def test_a_server_without_a_file_is_found_at_the_start(tmp_path: Path) -> None:
    says = "durability is 'disk', but appendonly is off"
    with Server(tmp_path, appendonly="no") as server, pytest.raises(UnsafeServer, match=says):
        await queue_at(server, server_check="refuse", durability="disk").open()
    with pytest.raises(UnsafeServer, match=says):
        await RedisMessageQueue("embedded://", server_check="refuse", durability="disk").open()


async def test_a_server_that_is_too_old_for_it_is_found_at_the_start() -> None:
    says = r"durability is 'disk', but redis 7\.0\.15 has no WAITAOF"
    reader = reader_of("redis_version:7.0.15 aof_enabled:1 connected_slaves:0")
    with pytest.raises(UnsafeServer, match=says):
        await check_server(reader, mode="refuse", durability="disk")
    assert await check_server(reader, mode="refuse") == []
