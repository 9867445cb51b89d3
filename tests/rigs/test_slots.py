"""The node of a cluster that serves one slot lets no script out of it."""

from __future__ import annotations

from pathlib import Path

import pytest
from redis import Redis
from redis.exceptions import ClusterDownError, ResponseError

from tests.harness import server_binaries
from tests.rigs.slots import slot_server


@pytest.mark.parametrize("binary", server_binaries().values(), ids=server_binaries())
def test_only_keys_of_its_slots_are_served(binary: Path) -> None:
    script = "return redis.call('SET', ARGV[1], '1')"
    with (
        slot_server(binary, "{q}", "{q:1}") as server,
        Redis(unix_socket_path=str(server.socket)) as client,
    ):
        assert client.eval(script, 1, "a{q}", "b{q}") == b"OK"
        assert client.set("a{q:1}", "1")
        with pytest.raises(ClusterDownError, match="Hash slot not served"):
            client.set("a{q:2}", "1")
        with pytest.raises(ResponseError, match="access a non local key in a cluster node"):
            client.eval(script, 1, "a{q}", "b{q:2}")
