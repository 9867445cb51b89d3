"""The short form of every fault; ``./mx faults`` runs the long ones."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from tests.faults.catalogue import FAULTS
from tests.faults.run import Row

ROOT = Path(__file__).parents[2]
LONGEST = 240
"""Seconds for one."""


@pytest.fixture
def environment() -> Iterator[dict[str, str]]:
    """What a fault sees: nothing of pytest or of a queue of ours, and temporary files of its own."""
    foreign = ("PYTEST_", "MX_RMQ_")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
    # Not tmp_path: a socket's path has to be short.
    with tempfile.TemporaryDirectory(prefix="mx-", dir="/tmp", ignore_cleanup_errors=True) as home:
        yield {**kept, "TMPDIR": home}


@pytest.mark.parametrize("name", sorted(FAULTS, key=lambda name: name != "soak"))  # the longest begins first
def test_nothing_is_lost(name: str, environment: dict[str, str]) -> None:
    command = [sys.executable, "-m", "tests.faults", "--short", "--json", name]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=LONGEST, cwd=ROOT, env=environment, check=False
    )
    assert done.stdout, done.stderr
    (row,) = msgspec.json.decode(done.stdout, type=list[Row])
    assert row.ok, f"{done.stderr}: {row}"
    assert row.lost == 0
    assert done.returncode == 0


def test_a_fault_sees_nothing_of_the_tests_beside_it(
    monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    monkeypatch.setenv("TMPDIR", "/nowhere")
    monkeypatch.setenv("MX_RMQ_URL", "redis://elsewhere")
    environment: dict[str, str] = request.getfixturevalue("environment")
    assert Path(environment["TMPDIR"]).is_dir()
    assert not {"MX_RMQ_URL", "PYTEST_CURRENT_TEST"} & environment.keys()
    assert environment["PATH"] == os.environ["PATH"]
