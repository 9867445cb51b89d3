"""What the repository shows to people runs as shown: the demo, the examples, the README."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import MutableMapping
from pathlib import Path
from typing import Any

import pytest

from tests.project.pages import ROOT, blocks, files, section
from tests.rigs.cluster import Cluster
from tests.rigs.sentinel import SentinelSet

EXAMPLES = {
    "hello": "hello, world",
    "typed_payloads": r"A1: 9.90 due 24 December, attempt 1\nrefused: .*wants Order",
    "delays": r"delayed until .* UTC\ncancelled: True\nfirst after .*\nsecond after ",
    "retries_and_dead_letters": r"(?s)failed after 3 tries.*rejected after 1 tries.*paid 20\nreplayed: 1",
    "blocking_producer": r"produced \w{22}\nmail to ada@example.org",
}


def run(*arguments: str, code: int = 0) -> str:
    done = subprocess.run(
        [sys.executable, *arguments], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_prints_what_it_promises(name: str) -> None:
    assert re.search(EXAMPLES[name], run(f"examples/{name}.py"))


def test_every_example_is_tested() -> None:
    assert {path.stem for path in (ROOT / "examples").glob("*.py")} == {
        *EXAMPLES,
        "broken_shop",  # in tests/cli/test_runbook.py
        "failing_handler",  # in test_docs.py
        "fastapi_app",
    }


async def request(app: Any, method: str, path: str) -> tuple[int, Any]:
    """Call an ASGI application; returns the status and the JSON of the response."""
    sent: list[MutableMapping[str, Any]] = []
    scope = {
        "type": "http",
        "method": method,
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "headers": [],
    }

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(part: MutableMapping[str, Any]) -> None:
        sent.append(part)

    await app(scope, receive, send)
    return sent[0]["status"], json.loads(b"".join(part.get("body", b"") for part in sent))


async def test_the_web_application_handles_what_it_produces_and_stops_with_its_server() -> None:
    from examples.fastapi_app import app, mq

    async with asyncio.timeout(20), app.router.lifespan_context(app):
        assert (await request(app, "POST", "/signups/ada"))[0] == 200
        while await request(app, "GET", "/welcomed") != (200, ["ada"]):
            await asyncio.sleep(0.01)
        assert mq._lifecycle.worker is not None
    assert mq._lifecycle.worker is None


def test_the_quick_start_of_the_readme_runs(tmp_path: Path) -> None:
    (code,) = blocks(section("README.md", "Quick start"), "python")
    program = tmp_path / "quick_start.py"
    program.write_text(code, encoding="utf-8")
    check_quick_start(run(str(program)))


def test_the_quick_start_runs_on_a_cluster_and_with_sentinel_by_another_url(
    tmp_path: Path, cluster: Cluster, sentinels: SentinelSet
) -> None:
    """The README says that only the URL changes."""
    (code,) = blocks(section("README.md", "Quick start"), "python")
    (urls,) = blocks(section("README.md", "From one server to many"), "python")
    there: dict[str, Cluster | SentinelSet]
    there = {"redis+cluster://h1:7000,h2:7001": cluster, "redis+sentinel://h1,h2,h3/mymaster": sentinels}
    (embedded,) = re.findall(r"^mq = .*?\)", code, re.MULTILINE)
    lines = re.findall(r"^mq = .*?\)", urls, re.MULTILINE)
    assert [line.partition("name=")[2] for line in lines] == ['"shop")', '"shop", shards=8)', '"shop")']
    for line in lines:
        (url,) = re.findall('"(redis.*?)"', line)
        there[url].flush()
        program = tmp_path / "quick_start.py"
        program.write_text(code.replace(embedded, line.replace(url, there[url].url)), encoding="utf-8")
        check_quick_start(run(str(program)))


def check_quick_start(output: str) -> None:
    assert output.count("A1 paid at attempt 2\n") == 2
    assert output.count("A2 paid at attempt 2\n") == 1


def test_the_two_processes_of_the_readme_find_each_other(tmp_path: Path) -> None:
    """In any order: the first message is there before the worker is."""
    page = section("README.md", "Two processes")
    for name, code in files(page).items():
        (tmp_path / name).write_text(code, encoding="utf-8")
    (terminal,) = blocks(page)
    worker, producer = ([sys.executable, *shlex.split(line)[1:]] for line in terminal.splitlines())

    def produce() -> str:
        done = subprocess.run(producer, cwd=tmp_path, capture_output=True, text=True, timeout=30, check=False)
        assert re.fullmatch(r"produced \w{22}\n", done.stdout), done.stderr
        return done.stderr

    assert produce() == ""
    with subprocess.Popen(
        worker, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == "A1 paid\n"
            assert produce() == ""
            assert process.stdout.readline() == "A1 paid\n"
        finally:
            process.terminate()
        _, said = process.communicate(timeout=30)
    assert process.returncode == 0
    assert "worker.started: shop at embedded://" in said
    assert {path.name for path in tmp_path.iterdir()} >= {"tasks.py", "producer.py", "data"}


def test_the_examples_of_the_testing_page_pass(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "testing.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n# (\w+\.py)\n(.*?)```", page, re.DOTALL)
    assert len(blocks) == page.count("```python") == 6
    for name, code in blocks:
        (tmp_path / name).write_text(code, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-o", "asyncio_mode=auto"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{page.count('def test_')} passed" in done.stdout


def test_the_demo_loses_nothing_and_says_so() -> None:
    last = run("-m", "mx_rmq.demo", "--messages", "1000").splitlines()[-1]
    assert re.fullmatch(r"1,000 in, \d+ done, \d+ dead, 0 lost; audit clean; [\d.]+ s", last)


def test_the_demo_refuses_what_it_does_not_know() -> None:
    run("-m", "mx_rmq.demo", "--mesages", "5", code=2)


def test_a_small_bench_measures_every_row() -> None:
    """The figures mean nothing at this size; that every measurement runs is what counts."""
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks", "--json", "--scale", "0.004", "--rounds", "1"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode in (0, 1), done.stderr
    assert done.stdout.count('"ok"') >= 26


def test_a_small_bench_of_a_cluster_measures_every_number_of_shards() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks", "--cluster", "--json", "--scale", "0.02", "--rounds", "1"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode in (0, 1), done.stderr
    values = {row["name"]: row["value"] for row in json.loads(done.stdout)}
    drains = [name for name in values if name.endswith("nodes: drain")]
    assert [name[0] for name in drains] == ["1", "2", "4", "8"]
    assert all(value > 0 for value in values.values())
    cost = "8 shards on 3 nodes: server CPU per message"
    assert values[f"{cost}, busiest node"] < values[f"{cost}, all nodes"]
