"""The short form of every fault; ``./mx faults`` runs the long ones."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest

from tests.faults.catalogue import FAULTS
from tests.faults.run import Row

if TYPE_CHECKING:
    from tests.faults.conftest import Done


@pytest.mark.parametrize("name", FAULTS)
def test_nothing_is_lost(done: Done) -> None:
    (row,) = msgspec.json.decode(done.stdout, type=list[Row])
    assert row.ok, f"{done.stderr}: {row}"
    assert row.lost == 0
    assert done.returncode == 0
