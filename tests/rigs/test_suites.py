"""A part of the suites on a cluster; ``./mx test --cluster`` runs them whole."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.harness import server_binaries
from tests.rigs.suites import SHARDS, cluster_server, shards_for

ROOT = Path(__file__).parents[2]
LONGEST = 300
"""Seconds for a part, on a machine that does much else; alone it takes less than half a minute."""
ON_A_CLUSTER = [
    "tests/scripts/test_claim_message.py",
    "tests/scripts/test_produce_normal_message.py",
    "tests/worker/test_outcomes.py",
    "tests/worker/test_put_off.py",
    "tests/queue/test_drain.py",
]
IN_ONE_SLOT = ["tests/scripts/test_wrong_types.py"]
"""It calls every script on a queue that has all kinds of keys."""


@pytest.mark.parametrize(
    ("option", "files"),
    [("--cluster", ON_A_CLUSTER), ("--slot", IN_ONE_SLOT)],
    ids=["cluster", "slot"],
)
def test_suites_for_one_server_pass_in_a_cluster(option: str, files: Sequence[str]) -> None:
    """Also no key is outside of the slots of its queue, and no command is refused for keys of two."""
    kind = next(iter(server_binaries()))
    foreign = ("PYTEST_", "MX_RMQ_")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-n", "0", "-k", kind, option, "--tb=short", *files],
        capture_output=True,
        text=True,
        timeout=LONGEST,
        cwd=ROOT,
        env={name: value for name, value in os.environ.items() if not name.startswith(foreign)},
        check=False,
    )
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed, done.stdout[-500:]
    assert int(passed[1]) > 50


def test_a_key_outside_of_the_slots_of_its_queue_is_seen() -> None:
    with cluster_server(next(iter(server_binaries().values()))) as server:
        server.flush()
        client = server.client("mx-rmq:{q}:")
        client.set("mx-rmq:{q}:layout", "0:2 1:3")
        for tag in ("q:0", "q:1", "q:1.2"):
            server.client(f"mx-rmq:{{{tag}}}:").set(f"mx-rmq:{{{tag}}}:payload", "1")
        assert server.faults() == []
        for key in ("mx-rmq:{q}:payload", "mx-rmq:{q:2}:payload", "mx-rmq:{r:0}:payload", "payload"):
            server.client(key).set(key, "1")
            assert [fault.partition(" ")[0] for fault in server.faults()] == [key]
            server.client(key).delete(key)


def test_a_command_with_keys_of_two_slots_is_seen() -> None:
    with cluster_server(next(iter(server_binaries().values()))) as server:
        server.flush()
        with pytest.raises(Exception, match="slot"):
            server.client("mx-rmq:{q}:").mget("mx-rmq:{q}:a", "mx-rmq:{r}:a")
        (fault,) = server.faults()
        assert fault.startswith("errorstat_CROSSSLOT")


def test_who_works_with_keys_or_one_server_has_one_shard() -> None:
    async def by_queue(make_queue: object) -> None: ...

    async def by_keys(make_queue: object, redis: object) -> None: ...

    assert shards_for(by_queue) == SHARDS
    assert shards_for(by_keys) is None
