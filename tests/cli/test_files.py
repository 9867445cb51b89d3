"""Files that an export writes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from mx_rmq import ServerUnavailable
from mx_rmq.cli.exits import Failure
from mx_rmq.cli.files import new_file

if TYPE_CHECKING:
    from pathlib import Path


def export(file: Path, error: Exception) -> None:
    with new_file(str(file)) as write:
        write({"id": "A1"})
        raise error


def test_a_lost_server_is_not_taken_for_a_broken_disk(tmp_path: Path) -> None:
    file = tmp_path / "dead.jsonl"
    with pytest.raises(ServerUnavailable, match="gone"):
        export(file, ServerUnavailable("gone"))
    assert not file.exists()


def test_a_full_disk_is_a_failure_that_names_the_file(tmp_path: Path) -> None:
    file = tmp_path / "dead.jsonl"
    with pytest.raises(Failure, match=r"dead\.jsonl cannot be written: No space left on device"):
        export(file, OSError(28, "No space left on device"))
    assert not file.exists()
