"""The short form of every fault; ``./mx faults`` runs the long ones."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from tests.faults.catalogue import FAULTS
from tests.faults.run import Row, Run

ROOT = Path(__file__).parents[2]
LONGEST = 240
"""Seconds for the soak, most of which pass while the other faults run."""


@pytest.fixture(scope="module", autouse=True)
def soak() -> Iterator[subprocess.Popen[bytes]]:
    """The soak, which goes on beside the others: it takes a minute, and little of the machine."""
    command = [sys.executable, "-m", "tests.faults", "--short", "--json", "soak"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT) as process:
        yield process
        process.kill()


@pytest.mark.parametrize("name", [name for name in FAULTS if name != "soak"])
async def test_nothing_is_lost(name: str) -> None:
    seed = random.randrange(1_000_000)
    row = await FAULTS[name](Run(short=True, seed=seed))
    assert row.ok, f"seed {seed}: {row}"
    assert row.lost == 0


def test_nothing_is_lost_or_grows_in_a_soak(soak: subprocess.Popen[bytes]) -> None:
    output, log = soak.communicate(timeout=LONGEST)
    (row,) = msgspec.json.decode(output, type=list[Row])
    assert row.ok, f"{log.decode()}: {row}"
    assert row.lost == 0
