"""A small cluster of one's own: what it serves, how it ends, and that nothing of it stays."""

from __future__ import annotations

import logging
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from redis.crc import key_slot

from mx_rmq.errors import ConfigError
from mx_rmq.storage import embedded_cluster
from mx_rmq.storage.embedded_cluster import SLOTS, EmbeddedCluster, client_of, is_whole, open_cluster
from tests.harness import server_binaries
from tests.rigs.parts import until
from tests.words import events


@pytest.fixture(scope="module", params=server_binaries().values(), ids=list(server_binaries()))
def cluster(request: pytest.FixtureRequest) -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster.open(binary=request.param) as cluster:
        yield cluster


def ports_of(url: str) -> list[int]:
    assert re.fullmatch(r"redis\+cluster://127\.0\.0\.1:\d+(,127\.0\.0\.1:\d+)*", url)
    return [int(port) for port in re.findall(r":(\d+)", url)]


def test_three_primaries_serve_every_slot(cluster: EmbeddedCluster) -> None:
    ports = ports_of(cluster.url)
    assert len(ports) == 3
    assert cluster.is_running
    with client_of(ports[0]) as client:
        ranges = sorted(client.execute_command("CLUSTER", "SLOTS"))
    assert [(first, last) for first, last, *_ in ranges] == [(0, 5460), (5461, 10_922), (10_923, SLOTS - 1)]
    assert [node[1] for _, _, node in ranges] == ports


def test_its_ports_are_on_loopback_and_its_data_in_memory(cluster: EmbeddedCluster) -> None:
    for port in ports_of(cluster.url):
        with client_of(port) as client:
            settings = {
                name: client.execute_command("CONFIG", "GET", name)[1]
                for name in ("bind", "save", "appendonly")
            }
        assert settings == {"bind": b"127.0.0.1", "save": b"", "appendonly": b"no"}


def test_a_node_that_died_comes_back_empty_with_its_slots(cluster: EmbeddedCluster) -> None:
    ports, before = ports_of(cluster.url), cluster.pid
    cluster.rejoin()
    assert cluster.pid == before
    with client_of(ports[1]) as client:
        pid = int(re.search(rb"process_id:(\d+)", client.execute_command("INFO", "server"))[1])  # type: ignore[index]
        os.kill(pid, signal.SIGKILL)
        until(lambda: not cluster.is_running, 10, "the node is gone")
        cluster.rejoin()
        assert cluster.pid != before
        assert ports_of(cluster.url) == ports
        until(lambda: is_whole(client, 3), 20, "it serves its slots")
        assert client.execute_command("DBSIZE") == 0


def test_its_end_with_messages_in_it_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "mx_rmq")
    cluster = EmbeddedCluster.open(2)
    ports = ports_of(cluster.url)
    keys = [f"mx-rmq:{{{queue}}}:delay_tasks" for queue in "abcdefgh"]
    halves = [key_slot(key.encode()) * 2 // SLOTS for key in keys]
    assert min(halves.count(0), halves.count(1)) > 1, "a node has messages in several slots"
    for key, half in zip(keys, halves, strict=True):
        with client_of(ports[half]) as client:
            client.execute_command("ZADD", key, 1, "an-id")
    cluster.close()
    cluster.close()
    assert [record.messages for record in events(caplog, "embedded.ended")] == [len(keys)]


def test_a_node_takes_another_port_if_one_is_taken(
    cluster: EmbeddedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken, free = ports_of(cluster.url)[0], list(embedded_cluster.port_candidates())
    monkeypatch.setattr(embedded_cluster, "port_candidates", lambda: iter([taken, *free]))
    with EmbeddedCluster.open(1) as other:
        assert ports_of(other.url) == [free[0]]


@pytest.mark.parametrize("ending", ["os.kill(os.getpid(), 9)", "sys.exit()"])
def test_it_ends_with_its_process(ending: str, tmp_path: Path) -> None:
    program = (
        "import os, sys; from mx_rmq.storage.embedded_cluster import open_cluster; cluster = open_cluster(); "
        f"print(*(node.pid for node in cluster._nodes.values()), flush=True); {ending}"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "TMPDIR": str(tmp_path)},
        stdout=subprocess.PIPE,
        check=False,
    )
    pids = [int(pid) for pid in done.stdout.split()]
    assert len(pids) == 3
    deadline = time.monotonic() + 20
    while (any(map(_runs, pids)) or any(tmp_path.iterdir())) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not any(map(_runs, pids))
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize(
    "url", ["embedded+cluster:///tmp/q", "embedded+cluster://x", "embedded+cluster://?a=1"]
)
def test_a_place_for_its_data_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match=r"write embedded\+cluster://, or embedded:///absolute/path"):
        open_cluster(url)


def _runs(pid: int) -> bool:
    with suppress(ProcessLookupError):
        os.kill(pid, 0)
        return True
    return False
