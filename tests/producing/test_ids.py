from __future__ import annotations

import random
import subprocess
import sys
import threading
from itertools import pairwise

import pytest

from mx_rmq.checks import check_name
from mx_rmq.producing import ids
from mx_rmq.producing.ids import IdMaker, new_id

START = 1_763_230_000_000_000_000


class Time:
    """The clock of the id maker in ns."""

    def __init__(self) -> None:
        self.ns = START

    def time_ns(self) -> int:
        return self.ns


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> Time:
    time = Time()
    monkeypatch.setattr(ids, "time", time)
    return time


def test_an_id_is_a_good_name_and_short() -> None:
    """It is stored in four places per message."""
    made = new_id()
    assert check_name("message id", made) == made
    assert len(made) <= 26


def test_ids_are_strictly_increasing() -> None:
    made = [new_id() for _ in range(20_000)]
    assert all(earlier < later for earlier, later in pairwise(made))


def test_ids_of_one_millisecond_are_strictly_increasing(time: Time) -> None:
    make = IdMaker()
    made = [make() for _ in range(20_000)]
    assert time.ns == START
    assert all(earlier < later for earlier, later in pairwise(made))
    assert {len(id_) for id_ in made} == {len(made[0])}


def test_the_number_behind_the_millisecond_does_not_run_over(
    time: Time, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever it starts, it can count for longer than a millisecond lasts."""
    monkeypatch.setattr(random.Random, "getrandbits", lambda self, bits: 2**bits - 1)
    make = IdMaker()
    made = [make() for _ in range(20_000)]
    time.ns += 1_000_000
    made.append(make())
    assert all(earlier < later for earlier, later in pairwise(made))
    assert {len(id_) for id_ in made} == {len(made[0])}


def test_ids_increase_while_the_clock_steps_back(time: Time) -> None:
    make = IdMaker()
    made = [make()]
    for step in (-3600, 1, 3598, 1, 1):
        time.ns += step * 1_000_000_000
        made += [make(), make()]
    assert all(earlier < later for earlier, later in pairwise(made))


def test_ids_of_different_makers_sort_by_time(time: Time) -> None:
    made = []
    for _ in range(100):
        made.append(IdMaker()())
        time.ns += 1_000_000
    time.ns += 3_155_760_000 * 1_000_000_000
    made.append(IdMaker()())
    assert made == sorted(made)
    assert {len(id_) for id_ in made} == {len(made[0])}


def test_makers_in_the_same_millisecond_do_not_meet(time: Time) -> None:
    makers = [IdMaker() for _ in range(100)]
    made = [make() for make in makers for _ in range(100)]
    assert time.ns == START
    assert len(set(made)) == len(made)


FORKS = """
import os
import sys
from mx_rmq.producing import ids

class Stopped:
    time_ns = staticmethod(lambda: 1_763_230_000_000_000_000)

ids.time = Stopped  # so that only the fork can make a difference
ids.new_id()
for child in range(4):
    if os.fork() == 0:
        break
else:
    for _ in range(4):
        os.wait()
os.write(1, "".join(ids.new_id() + "\\n" for _ in range(100)).encode())
"""


def test_forked_processes_do_not_go_on_counting_where_their_parent_was() -> None:
    """The second message with one id would be taken for a repetition of the first, and be lost."""
    made = subprocess.run([sys.executable, "-c", FORKS], capture_output=True, check=True, timeout=30)
    lines = made.stdout.decode().split()
    assert len(lines) == 500
    assert len(set(lines)) == 500


def test_threads_share_no_id() -> None:
    made: list[list[str]] = [[] for _ in range(4)]
    threads = [
        threading.Thread(target=lambda mine=mine: mine.extend(new_id() for _ in range(5000))) for mine in made
    ]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert len({id_ for mine in made for id_ in mine}) == 20_000
