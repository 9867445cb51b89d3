"""A node of a cluster that serves a few slots and refuses all other keys.

It refuses them also in the middle of a script, so whatever runs on it keeps to its hash tags. A node with
other slots besides would let a script that runs there use their keys.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from redis import Redis
from redis.crc import key_slot

from mx_rmq.errors import EmbeddedServerError
from mx_rmq.storage.embedded import EmbeddedServer
from mx_rmq.storage.embedded_cluster import NODE_SETTINGS, port_candidates
from tests.rigs.parts import until


@contextmanager
def slot_server(binary: Path | None, *tags: str) -> Iterator[EmbeddedServer]:
    """A private server on a unix socket that serves the slots of hash tags such as ``{q}``, and no others."""
    with _open(binary) as server, Redis(unix_socket_path=str(server.socket)) as client:
        slots = {key_slot(tag.encode()) for tag in tags}
        client.execute_command("CLUSTER", "ADDSLOTS", *slots)
        until(lambda: client.execute_command("EXISTS", tags[0]) == 0, 20, "the node serves its slots")
        yield server


def _open(binary: Path | None) -> EmbeddedServer:
    settings = [part for name, value in NODE_SETTINGS.items() for part in (f"--{name}", value)]
    for port in port_candidates():
        try:
            return EmbeddedServer.open(binary=binary, options=[*settings, "--cluster-port", str(port)])
        except EmbeddedServerError as error:
            if "in use" not in str(error):
                raise
    raise AssertionError("found no free port")
