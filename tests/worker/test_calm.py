"""After a time in which no owner could extend, lapsed leases are left alone until each has had the chance."""

from __future__ import annotations

import pytest

from mx_rmq.config import Config
from mx_rmq.errors import ServerUnavailable, StoreError
from mx_rmq.storage.contract import Overdue
from mx_rmq.worker.calm import Calm

LEASE, SOCKET_TIMEOUT = 15.0, 5.0
WAIT = 6.0
"""Seconds in which a living owner gets through: the socket timeout and one more."""


class Scene:
    """A monitor's clock, and a server whose clock is ahead of it."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.ahead = 50_000.0
        self.calm = Calm(Config(lease=LEASE, socket_timeout=SOCKET_TIMEOUT), lambda: self.now)

    def take_over(self, *, late: float = 0.0) -> bool:
        """Send a take-over that the server sees so much later; whether it is carried out."""
        sent_at, bound = self.now, self.calm.bound()
        self.now += late
        server_now = self.now + self.ahead
        belated = bound is not None and server_now > bound
        self.calm.answered(sent_at, Overdue(server_now, [], [], [], belated))
        return not belated

    def ask(self, *, late: float = 0.0) -> None:
        """Send something else that the server sees so much later."""
        sent_at = self.now
        self.now += late
        self.calm.heard(sent_at, self.now + self.ahead)

    def advance(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def scene() -> Scene:
    return Scene()


def test_on_a_calm_server_every_take_over_counts(scene: Scene) -> None:
    for _ in range(50):
        assert scene.take_over(late=0.2)
        scene.advance(0.5)


def test_a_take_over_that_was_held_up_on_its_way_does_not_count(scene: Scene) -> None:
    assert scene.take_over()
    assert not scene.take_over(late=LEASE / 2)
    assert scene.calm.holding


def test_a_step_of_the_servers_clock_gives_owners_time(scene: Scene) -> None:
    assert scene.take_over()
    scene.ahead += 3600
    assert not scene.take_over()
    scene.advance(WAIT - 0.1)
    assert not scene.take_over()
    scene.advance(0.2)
    assert scene.take_over()


def test_a_step_back_changes_nothing(scene: Scene) -> None:
    assert scene.take_over()
    scene.ahead -= 3600
    assert scene.take_over()


def test_a_server_that_was_away_gives_owners_time(scene: Scene) -> None:
    assert scene.take_over()
    scene.calm.failed(ServerUnavailable("gone"))
    scene.advance(LEASE)
    assert not scene.take_over()
    scene.advance(WAIT + 0.1)
    assert scene.take_over()


def test_a_connection_that_is_replaced_at_once_costs_nothing(scene: Scene) -> None:
    assert scene.take_over()
    scene.calm.failed(ServerUnavailable("reset"))
    scene.advance(0.5)
    assert scene.take_over()


def test_a_server_that_refused_gives_owners_time_however_short_it_was(scene: Scene) -> None:
    assert scene.take_over()
    scene.calm.failed(StoreError("MISCONF"))
    assert scene.calm.refused
    scene.advance(0.5)
    assert not scene.take_over()
    assert not scene.calm.refused
    assert scene.calm.holding


def test_an_outage_while_owners_are_given_time_begins_it_anew(scene: Scene) -> None:
    assert scene.take_over()
    assert not scene.take_over(late=LEASE)
    scene.advance(WAIT / 2)
    scene.calm.failed(ServerUnavailable("gone again"))
    scene.advance(LEASE)
    assert not scene.take_over()
    scene.advance(WAIT - 0.1)
    assert not scene.take_over()


def test_a_network_that_is_always_slow_delays_recovery_but_never_ends_it(scene: Scene) -> None:
    assert scene.take_over()
    carried_out = 0
    for _ in range(100):
        carried_out += scene.take_over(late=LEASE / 2)
        scene.advance(0.5)
    assert carried_out >= 5


def test_a_worker_that_takes_nothing_over_for_long_notices_a_server_that_stood_still(scene: Scene) -> None:
    """Many workers take turns at take-overs; the others only ask."""
    assert scene.take_over()
    for _ in range(100):
        scene.advance(5)
        scene.ask(late=0.2)
    assert not scene.calm.holding
    scene.ask(late=LEASE / 2)
    assert not scene.take_over()
    scene.advance(WAIT + 0.1)
    assert scene.take_over()


def test_an_outage_that_another_call_meets_gives_owners_time(scene: Scene) -> None:
    assert scene.take_over()
    scene.calm.failed(ServerUnavailable("gone"))
    scene.advance(LEASE)
    scene.ask()
    assert not scene.take_over()


def test_what_other_calls_hear_keeps_a_short_outage_harmless(scene: Scene) -> None:
    assert scene.take_over()
    for _ in range(10):
        scene.advance(LEASE / 3)
        scene.calm.reached()
    scene.calm.failed(ServerUnavailable("gone"))
    scene.advance(1)
    scene.calm.reached()
    assert scene.take_over()
