"""The short form of every fault; ``./mx faults`` runs the long ones."""

from __future__ import annotations

import random

import pytest

from tests.faults.catalogue import FAULTS
from tests.faults.run import Run


@pytest.mark.parametrize("name", FAULTS)
async def test_nothing_is_lost(name: str) -> None:
    seed = random.randrange(1_000_000)
    row = await FAULTS[name](Run(short=True, seed=seed))
    assert row.ok, f"seed {seed}: {row}"
    assert row.lost == 0
