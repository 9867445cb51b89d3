"""Every fault by its name, in the order of the table."""

from __future__ import annotations

from tests.faults.aof_cut import aof_cut
from tests.faults.clients_killed import clients_killed
from tests.faults.clocks import clocks
from tests.faults.cluster import cluster, cluster_killed_memory, cluster_killed_replicated
from tests.faults.computing_threads import computing_threads
from tests.faults.dead_idle import dead_idle
from tests.faults.demoted_primary import demoted_primary
from tests.faults.foreign_digits import foreign_digits
from tests.faults.fuzz import fuzz
from tests.faults.hung_loop import hung_loop, slow_neighbour
from tests.faults.large_bodies import large_bodies
from tests.faults.long_outage import disk_full, long_outage
from tests.faults.memory_full import memory_full
from tests.faults.million import million
from tests.faults.monitors_killed import monitors_killed
from tests.faults.node_down import node_down
from tests.faults.poison_pills import poison_pills
from tests.faults.primary_lost import primary_lost_memory, primary_lost_replicated
from tests.faults.replies_cut import replies_cut
from tests.faults.resharded import resharded, resharded_killed
from tests.faults.run import Fault
from tests.faults.scripts_flushed import least_privilege, scripts_flushed
from tests.faults.sentinel import sentinel
from tests.faults.server_killed import server_killed
from tests.faults.sigterm import sigterm
from tests.faults.silence import black_hole, half_open
from tests.faults.slow_handlers import blocking_handler, long_handler, worker_stopped
from tests.faults.slow_network import jitter, trickle
from tests.faults.slow_uplink import slow_uplink
from tests.faults.soak import soak
from tests.faults.strange_data import strange_data
from tests.faults.swallowed import swallowed
from tests.faults.tls import tls
from tests.faults.vanished import vanished
from tests.faults.workers_killed import workers_killed
from tests.faults.wrong_types import wrong_types

FAULTS: dict[str, Fault] = {
    "workers-killed": workers_killed,
    "workers-vanished": vanished,
    "monitors-killed": monitors_killed,
    "poison-pills": poison_pills,
    "long-handler": long_handler,
    "blocking-handler": blocking_handler,
    "worker-stopped": worker_stopped,
    "clocks": clocks,
    "sigterm": sigterm,
    "server-killed": server_killed,
    "aof-cut": aof_cut,
    "primary-lost": primary_lost_replicated,
    "primary-lost-unreplicated": primary_lost_memory,
    "scripts-flushed": scripts_flushed,
    "least-privilege": least_privilege,
    "replies-cut": replies_cut,
    "jitter": jitter,
    "trickle": trickle,
    "half-open": half_open,
    "black-hole": black_hole,
    "client-kill": clients_killed,
    "memory-full": memory_full,
    "wrong-types": wrong_types,
    "strange-data": strange_data,
    "fuzz": fuzz,
    "million": million,
    "large-bodies": large_bodies,
    "hung-loop": hung_loop,
    "slow-neighbour": slow_neighbour,
    "disk-full": disk_full,
    "computing-threads": computing_threads,
    "long-outage": long_outage,
    "demoted-primary": demoted_primary,
    "swallowed-network": swallowed,
    "dead-idle-connections": dead_idle,
    "slow-uplink": slow_uplink,
    "foreign-digits": foreign_digits,
    "cluster": cluster,
    "cluster-killed": cluster_killed_replicated,
    "cluster-killed-unreplicated": cluster_killed_memory,
    "cluster-node-down": node_down,
    "sentinel": sentinel,
    "tls": tls,
    "reshard": resharded,
    "reshard-killed": resharded_killed,
    "soak": soak,
}
