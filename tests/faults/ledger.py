"""Ledgers: what happened, written down outside the server by whoever did it.

Each process appends to a file of its own, so that a killed one leaves whole lines but for its last. Times
are of the machine's monotonic clock, which all its processes share.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from mx_rmq.producing.ids import new_id


class Event(NamedTuple):
    """One line: what happened to which message under which token, when and in which process."""

    what: str
    """tried | acked | start | end | failed | done | refused | retried | dead | taken | promoted; vitals, with
    figures for a token; blamed, a start that is not the first attempt, with its number for a token"""
    id: str
    token: str
    at: float
    pid: int


class Ledger:
    """The file of one process."""

    def __init__(self, folder: Path) -> None:
        self._pid = os.getpid()
        self._file = os.open(folder / f"{self._pid}.{new_id()}", os.O_CREAT | os.O_WRONLY | os.O_APPEND)

    def write(self, what: str, *ids: str, token: str = "-") -> None:
        """Note that something happened to messages just now."""
        at = time.monotonic()
        lines = "".join(f"{what} {id_} {token} {at:.6f} {self._pid}\n" for id_ in ids)
        os.write(self._file, lines.encode())


def read(folder: Path) -> list[Event]:
    """Every line of every process, in the order of time."""
    events = []
    for file in folder.iterdir():
        whole, _, _ = file.read_text().rpartition("\n")
        for line in whole.splitlines():
            what, id_, token, at, pid = line.split()
            events.append(Event(what, id_, token, float(at), int(pid)))
    return sorted(events, key=lambda event: event.at)


def ids(events: Iterable[Event], *what: str) -> set[str]:
    """The messages to which one of these things happened."""
    return {event.id for event in events if event.what in what}
