"""The cluster that other tests break does what they are told it does."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
from redis.exceptions import MovedError

from tests.harness import server_binaries
from tests.rigs.cluster import Cluster

KEY = "mx-rmq:{orders}:payload"
SLOT = Cluster.slot_of(KEY)


@pytest.mark.parametrize("binary", server_binaries().values(), ids=server_binaries())
def test_every_slot_has_a_primary_with_a_replica(binary: Path) -> None:
    with Cluster(2, 1, binary) as cluster:
        first, second = cluster.primaries()
        assert (cluster.primary_of(0), cluster.primary_of(8191)) == (first, first)
        assert (cluster.primary_of(8192), cluster.primary_of(16_383)) == (second, second)
        assert {*cluster.replicas_of(0), *cluster.replicas_of(16_383)} == set(cluster.nodes) - {first, second}
        home = first.home
    assert not home.parent.exists()


def test_a_key_is_served_by_its_primary_alone(cluster: Cluster) -> None:
    primary = cluster.primary_of(SLOT)
    assert primary.command("SET", KEY, "1") == b"OK"
    for other in cluster.nodes:
        if other is not primary:
            with pytest.raises(MovedError, match=f"^{SLOT} 127.0.0.1:{primary.port}"):
                other.command("GET", KEY)


def test_a_replica_takes_over_with_the_data(cluster: Cluster) -> None:
    before = cluster.primary_of(SLOT)
    before.command("SET", KEY, "1")
    after = cluster.failover(SLOT)
    assert after is not before
    assert cluster.primary_of(SLOT) is after
    assert after.command("GET", KEY) == b"1"
    cluster.mend()
    assert cluster.replicas_of(SLOT) == [before]


def test_a_slot_moves_with_its_keys(cluster: Cluster) -> None:
    source, target = cluster.primary_of(SLOT), cluster.primary_of((SLOT + 6000) % 16_384)
    keys = [f"{KEY}:{number}" for number in range(250)]
    for key in keys:
        source.command("SET", key, key)
    cluster.move_slot(SLOT, target)
    assert cluster.primary_of(SLOT) is target
    assert target.command("MGET", *keys) == [key.encode() for key in keys]
    with pytest.raises(MovedError):
        source.command("GET", keys[0])
    cluster.move_slot(SLOT, source)
    assert source.command("GET", keys[0]) == keys[0].encode()


@pytest.mark.parametrize("how", ["kill", "pause"])
def test_a_lost_primary_is_replaced_and_comes_back_as_a_replica(cluster: Cluster, how: str) -> None:
    before = cluster.primary_of(SLOT)
    before.command("SET", KEY, "1")
    before.command("WAIT", 1, 5000)
    getattr(cluster, how)(before)
    after = cluster.wait_for_failover(SLOT, before)
    assert after is not before
    assert after.command("GET", KEY) == b"1"
    cluster.mend()
    assert cluster.primary_of(SLOT) is after
    assert cluster.replicas_of(SLOT) == [before]


def test_nodes_and_files_end_with_a_process_that_is_killed() -> None:
    program = (
        "import time; from tests.rigs.cluster import Cluster; rig = Cluster(1, 0); "
        "print(rig.nodes[0].pid, rig.nodes[0].home.parent, flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        pid, home = process.stdout.readline().split()
        process.kill()
    deadline = time.monotonic() + 20
    while (_runs(int(pid)) or Path(home).exists()) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not _runs(int(pid))
    assert not Path(home).exists()


def _runs(pid: int) -> bool:
    with suppress(ProcessLookupError):
        os.kill(pid, 0)
        return True
    return False
