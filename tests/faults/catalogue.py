"""Every fault by its name, in the order of the table."""

from __future__ import annotations

from tests.faults.fuzz import fuzz
from tests.faults.run import Fault
from tests.faults.strange_data import strange_data
from tests.faults.workers_killed import workers_killed
from tests.faults.wrong_types import wrong_types

FAULTS: dict[str, Fault] = {
    "workers-killed": workers_killed,
    "wrong-types": wrong_types,
    "strange-data": strange_data,
    "fuzz": fuzz,
}
