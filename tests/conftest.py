from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from redis.asyncio import Redis

from mx_rmq import RedisMessageQueue
from mx_rmq.storage.embedded import EmbeddedServer
from mx_rmq.storage.keys import Keys
from mx_rmq.storage.store import Store
from tests.harness import Clock, free_port, server_binaries
from tests.proxy import Proxy
from tests.rigs.cluster import Cluster
from tests.rigs.sentinel import SentinelSet
from tests.rigs.slots import slot_server
from tests.rigs.suites import SHARDS, ClusterServer, cluster_server, shards_for
from tests.rigs.tls import TlsRig

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from tests.words import MakeQueue


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--slot",
        action="store_true",
        help="run on a node of a cluster that serves the slot of the queue q and no other",
    )
    parser.addoption(
        "--cluster",
        action="store_true",
        help=f"run on a cluster of three primaries, with queues of {SHARDS} shards",
    )


def pytest_configure() -> None:
    """Let tests interrupt the programs they start.

    A shell script that starts a command with ``&`` has it ignore SIGINT, and its children inherit that.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--slot") or config.getoption("--cluster"):
        for item in items:
            if mark := item.get_closest_marker("no_cluster"):
                item.add_marker(pytest.mark.skip(mark.args[0]))


@pytest.hookimpl(optionalhook=True)  # a plain pytest may run without the plugin
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """How many processes ``-n auto`` means: none but this one for files, tests and words (``-k``) named.

    Every other process collects all tests anew, which takes longer than a few tests do. ``-s`` stays here
    too: what another process prints is not shown. The whole suite gets a process for each core: at least two,
    because most tests wait, and at most four. With ``-n 4`` two cores need 12 minutes instead of 20, but if
    the machine is busy with other work, some of the tests that count seconds fail.
    """
    files = all(Path(arg.partition("::")[0]).is_file() for arg in config.args)
    if files or config.option.keyword or config.option.capture == "no":
        return 0
    return min(max(2, os.cpu_count() or 1), 4)


@pytest.fixture(scope="session", params=server_binaries().items(), ids=lambda item: item[0])
def server(request: pytest.FixtureRequest) -> Iterator[EmbeddedServer | ClusterServer]:
    """A private server of each kind at hand, shared by all tests."""
    _, binary = request.param
    if request.config.getoption("--cluster"):
        with cluster_server(binary) as cluster:
            yield cluster
    elif request.config.getoption("--slot"):
        with slot_server(binary, "{q}") as server:
            yield server
    else:
        with EmbeddedServer.open(binary=binary) as server:
            yield server


@pytest.fixture
async def redis(server: EmbeddedServer | ClusterServer) -> AsyncIterator[Redis]:
    """A client of an empty server."""
    async with Redis(unix_socket_path=str(server.socket)) as client:
        if isinstance(server, ClusterServer):
            server.flush()
        await client.flushall()
        await client.script_flush()
        yield client
    if isinstance(server, ClusterServer):
        assert not (faults := server.faults()), faults


@pytest.fixture
async def tcp(server: EmbeddedServer | ClusterServer, redis: Redis) -> AsyncIterator[str]:
    """The URL of the same server over TCP."""
    if isinstance(server, ClusterServer):
        yield server.tcp_url
        return
    port = free_port()
    await redis.config_set("port", port)
    yield f"redis://127.0.0.1:{port}"
    await redis.config_set("port", 0)


@pytest.fixture
def proxy(server: EmbeddedServer) -> Iterator[Proxy]:
    """A socket in front of the server that can fail."""
    with Proxy(server) as proxy:
        yield proxy


@pytest.fixture(scope="session")
def _cluster() -> Iterator[Cluster]:
    with Cluster() as cluster:
        yield cluster


@pytest.fixture
def cluster(_cluster: Cluster) -> Cluster:
    """Three primaries with a replica each, empty and whole; a test may break it."""
    _cluster.mend()
    _cluster.flush()
    return _cluster


@pytest.fixture(scope="session")
def _sentinels() -> Iterator[SentinelSet]:
    with SentinelSet() as sentinels:
        yield sentinels


@pytest.fixture
def sentinels(_sentinels: SentinelSet) -> SentinelSet:
    """A primary with two replicas and three Sentinels, empty and whole; a test may break it."""
    _sentinels.mend()
    _sentinels.flush()
    return _sentinels


@pytest.fixture(scope="session")
def tls_rig() -> Iterator[TlsRig]:
    """A server that takes TLS with client certificates only; its data is what tests left in it."""
    with TlsRig() as rig:
        yield rig


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def keys() -> Keys:
    return Keys("q")


@pytest.fixture
def store(redis: Redis, keys: Keys, clock: Clock) -> Store:
    return Store(redis, keys, now=clock)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Tests that are marked run with one shard and with eight; on a cluster each runs once."""
    marks = {mark.name for mark in metafunc.definition.iter_markers()}
    both = "shards" in metafunc.fixturenames and "sharded" in marks and "one_shard" not in marks
    if both and not metafunc.config.getoption("--cluster"):
        metafunc.parametrize("shards", [None, SHARDS], ids=["one-shard", "eight-shards"], indirect=True)


@pytest.fixture
def shards(request: pytest.FixtureRequest) -> int | None:
    """Over how many shards the queues of the test are spread."""
    if request.config.getoption("--cluster"):
        return None if request.node.get_closest_marker("one_shard") else shards_for(request.function)
    return getattr(request, "param", None)


@pytest.fixture
async def queue(server: EmbeddedServer, redis: Redis, shards: int | None) -> AsyncIterator[RedisMessageQueue]:
    """An open queue on an empty server, as its users get it."""
    async with RedisMessageQueue(server.url, name="q", server_check="off", shards=shards) as queue:
        yield queue


@pytest.fixture
async def make_queue(server: EmbeddedServer, redis: Redis, shards: int | None) -> AsyncIterator[MakeQueue]:
    """Makes queues on an empty server, for tests that run workers, and closes them."""
    made: list[RedisMessageQueue] = []

    def make(url: str = "", **options: Any) -> RedisMessageQueue:
        defaults: dict[str, Any] = {"name": "q", "server_check": "off", "stop_grace": 0.0, "concurrency": 8}
        defaults["shards"] = shards
        queue = RedisMessageQueue(url or server.url, **(defaults | options))
        made.append(queue)
        return queue

    yield make
    for queue in reversed(made):
        await queue.close()


@pytest.fixture
async def mq(make_queue: MakeQueue) -> RedisMessageQueue:
    """One of those, open."""
    queue = make_queue()
    await queue.open()
    return queue
