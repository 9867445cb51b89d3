"""Runs the short forms beside the other tests, which mostly wait and leave a core to them.

Each is a program of its own. Their tests come last and find most of them done.
"""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Generator

Done = subprocess.CompletedProcess[str]

ROOT = Path(__file__).parents[2]
LONGEST = 240
"""Seconds for one."""
RUNS = pytest.StashKey[dict[str, "Future[Done]"]]()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: name_of(item) is not None)


@pytest.hookimpl(wrapper=True)
def pytest_runtestloop(session: pytest.Session) -> Generator[None, object, object]:
    names = [name for item in session.items if (name := name_of(item))]
    if not names or session.config.option.collectonly:
        return (yield)
    names.sort(key=lambda name: name != "soak")  # it takes a minute, so it begins first
    pool = ThreadPoolExecutor(2 if len(names) == len(session.items) else 1)
    session.config.stash[RUNS] = {name: pool.submit(run_alone, name) for name in names}
    try:
        return (yield)
    finally:
        pool.shutdown(cancel_futures=True)


def name_of(item: pytest.Item) -> str | None:
    """Which short form a test waits for; None for any other test."""
    if isinstance(item, pytest.Function) and item.path.name == "test_short_forms.py":
        return str(item.callspec.params["name"])
    return None


def run_alone(name: str) -> Done:
    command = [sys.executable, "-m", "tests.faults", "--short", "--json", name]
    return subprocess.run(command, capture_output=True, text=True, timeout=LONGEST, cwd=ROOT, check=False)


@pytest.fixture
def done(request: pytest.FixtureRequest, name: str) -> Done:
    """How a short form ended; waits for it."""
    return request.config.stash[RUNS][name].result()
