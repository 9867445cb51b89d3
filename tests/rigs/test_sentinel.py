"""The Sentinel set that other tests break does what they are told it does."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.harness import server_binaries
from tests.rigs.sentinel import SentinelSet


@pytest.mark.parametrize("binary", server_binaries().values(), ids=server_binaries())
def test_the_sentinels_name_the_primary(binary: Path) -> None:
    with SentinelSet(1, 3, binary) as sentinels:
        assert sentinels.primary() is sentinels.servers[0]
        assert [server.role() for server in sentinels.servers] == ["master", "slave"]
        assert sentinels.failover() is sentinels.servers[1]
        home = sentinels.servers[0].home
    assert not home.parent.exists()


@pytest.mark.parametrize("how", ["kill", "pause"])
def test_a_lost_primary_is_replaced_and_comes_back_as_a_replica(how: str) -> None:
    with SentinelSet(down_after=3.0) as sentinels:  # or a busy machine has them replace the new one too
        before = sentinels.primary()
        before.command("SET", "key", "1")
        before.command("WAIT", 2, 5000)
        getattr(sentinels, how)(before)
        after = sentinels.wait_for_failover(before)
        assert after is not before
        assert after.command("GET", "key") == b"1"
        sentinels.mend()
        assert sentinels.primary() is after
        assert before.role() == "slave"


def test_two_of_three_sentinels_are_enough(sentinels: SentinelSet) -> None:
    before = sentinels.primary()
    sentinels.kill(sentinels.sentinels[0])
    sentinels.kill(before)
    assert sentinels.wait_for_failover(before) is not before
