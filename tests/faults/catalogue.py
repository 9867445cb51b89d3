"""Every fault by its name, in the order of the table."""

from __future__ import annotations

from tests.faults.run import Fault
from tests.faults.soak import soak
from tests.faults.workers_killed import workers_killed

FAULTS: dict[str, Fault] = {
    "workers-killed": workers_killed,
    "soak": soak,
}
