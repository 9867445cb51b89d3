"""The short form of every fault; ``./mx faults`` runs the long ones.

Each is a program of its own, two at a time: they wait more than they work. The soak takes a minute, so
it begins first.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import msgspec
import pytest

from tests.faults.catalogue import FAULTS
from tests.faults.run import Row

ROOT = Path(__file__).parents[2]
LONGEST = 240
"""Seconds for one."""

Runs = dict[str, "Future[subprocess.CompletedProcess[str]]"]


@pytest.fixture(scope="module")
def runs() -> Iterator[Runs]:
    """All of them, under way or waiting for their turn."""
    names = ["soak", *(name for name in FAULTS if name != "soak")]
    pool = ThreadPoolExecutor(2)
    yield {name: pool.submit(run_alone, name) for name in names}
    pool.shutdown(cancel_futures=True)


def run_alone(name: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.faults", "--short", "--json", name]
    return subprocess.run(command, capture_output=True, text=True, timeout=LONGEST, cwd=ROOT, check=False)


@pytest.mark.parametrize("name", FAULTS)
def test_nothing_is_lost(name: str, runs: Runs) -> None:
    done = runs[name].result()
    (row,) = msgspec.json.decode(done.stdout, type=list[Row])
    assert row.ok, f"{done.stderr}: {row}"
    assert row.lost == 0
    assert done.returncode == 0
