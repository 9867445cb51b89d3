"""The pytest plugin in projects with pytest-asyncio, with anyio and without either."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

CONFTEST = """
pytest_plugins = ["mx_rmq.testing.plugin"]
"""
PLAIN = """
def test_one(mx_rmq_queue, mx_rmq_url):
    assert mx_rmq_url.startswith("unix://")
    mx_rmq_queue.sync.produce("t", 1, message_id="A1")
    assert mx_rmq_queue.sync.produce("t", 1, message_id="A1").duplicate

def test_two(mx_rmq_queue):
    assert not mx_rmq_queue.sync.produce("t", 1, message_id="A1").duplicate
"""
ASYNC = """
import pytest
from mx_rmq import RedisMessageQueue, testing

mq = RedisMessageQueue("unix:///nowhere")

@mq.handler("t")
async def on_t(n: int) -> None:
    ...

MARK
async def test_one(mx_rmq_queue):
    async with mx_rmq_queue as queue:
        await queue.produce("t", 1)
        assert (await queue.counts()).pending == 1

@pytest.fixture
async def q():
    async with testing.running(mq) as q:
        yield q

MARK
async def test_two(q):
    await mq.produce("t", 1, delay=60)
    await q.advance(60)
    assert len(q.done) == 1
"""


ANYIO_BACKEND = """
import pytest
@pytest.fixture
def anyio_backend():
    return "asyncio"
"""


def run_pytest(home: Path, test: str, *options: str) -> str:
    (home / "conftest.py").write_text(CONFTEST + ANYIO_BACKEND)
    (home / "test_it.py").write_text(test)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "error", *options],
        cwd=home,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_without_an_async_plugin(tmp_path: Path) -> None:
    assert "2 passed" in run_pytest(tmp_path, PLAIN, "-p", "no:asyncio", "-p", "no:anyio")


def test_with_pytest_asyncio(tmp_path: Path) -> None:
    test = ASYNC.replace("MARK\n", "")
    options = ("-o", "asyncio_mode=auto", "-o", "asyncio_default_fixture_loop_scope=function")
    assert "2 passed" in run_pytest(tmp_path, test, *options, "-p", "no:anyio")


def test_with_anyio(tmp_path: Path) -> None:
    test = ASYNC.replace("MARK", "@pytest.mark.anyio")
    assert "2 passed" in run_pytest(tmp_path, test, "-p", "no:asyncio")


@pytest.mark.parametrize("name", ["mx_rmq_url", "mx_rmq_queue"])
def test_the_fixtures_are_not_there_unless_asked_for(name: str, request: pytest.FixtureRequest) -> None:
    with pytest.raises(pytest.FixtureLookupError):
        request.getfixturevalue(name)
