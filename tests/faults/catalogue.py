"""Every fault by its name, in the order of the table."""

from __future__ import annotations

from tests.faults.clients_killed import clients_killed
from tests.faults.replies_cut import replies_cut
from tests.faults.run import Fault
from tests.faults.silence import black_hole, half_open
from tests.faults.slow_network import jitter, trickle
from tests.faults.workers_killed import workers_killed

FAULTS: dict[str, Fault] = {
    "workers-killed": workers_killed,
    "replies-cut": replies_cut,
    "jitter": jitter,
    "trickle": trickle,
    "half-open": half_open,
    "black-hole": black_hole,
    "client-kill": clients_killed,
}
