"""``./mx bench --against COMMIT``: by which ratios it judges, and that it measures what it says."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from benchmarks import subject
from benchmarks.__main__ import parse
from benchmarks.against import MEASURES, CannotCompare, Measure, Subject, is_wanted, resolve
from benchmarks.comparison import Compared, Figure, as_json, as_table, percentile, rise

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from mx_rmq.storage.embedded import EmbeddedServer

ROOT = Path(__file__).parents[2]

SPEED = Figure("drain", "msg/s", max)
MEMORY = Figure("memory", "bytes")
SHOWN = Figure("p99", "ms", percentile(99), judged=False)

in_git = pytest.mark.skipif(
    shutil.which("git") is None or not (ROOT / ".git").exists(), reason="needs git and a checkout"
)


def compared(figure: Figure, *pairs: tuple[float, float], reach: float = 0.97) -> Compared:
    row = Compared(figure, reach)
    for this, other in pairs:
        row.add([this], [other])
    return row


# How it judges


def test_the_ratio_is_the_median_of_what_each_round_says() -> None:
    """A round in which the whole machine was slow counts like any other."""
    row = compared(SPEED, (100, 100), (10, 10), (99, 110))
    assert row.ratio == 1.0
    assert (row.this, row.other) == (99, 100)


def test_a_round_is_reduced_before_it_is_compared() -> None:
    row = Compared(SPEED, 0.97)
    row.add([5, 20], [10, 3])
    assert row.ratio == 2.0


@pytest.mark.parametrize(
    ("figure", "this", "ok"),
    [
        (SPEED, 97, True),
        (SPEED, 96.9, False),
        (SPEED, 200, True),
        (MEMORY, 103, True),
        (MEMORY, 103.2, False),
        (MEMORY, 1, True),
        (SHOWN, 1000, True),
    ],
)
def test_what_is_judged_and_how(figure: Figure, this: float, ok: bool) -> None:
    assert compared(figure, (this, 100)).ok is ok


def test_a_ratio_is_sure_when_its_rounds_agree() -> None:
    assert not compared(SPEED, (100, 100)).settled
    assert compared(SPEED, *[(100, 100), (101, 100)] * 4).settled
    assert not compared(SPEED, *[(100, 100), (130, 100)] * 4).settled
    assert compared(SHOWN, *[(100, 100), (130, 100)] * 4).settled


def test_more_rounds_are_for_what_is_not_sure() -> None:
    sure, unsure = compared(SPEED, *[(1, 1)] * 8), compared(SPEED, *[(1, 1), (2, 1)] * 4)
    few = Measure(1, [], rounds=3)
    many = Measure(1, [])
    assert is_wanted(7, 8, many, [sure])
    assert not is_wanted(8, 8, many, [sure])
    assert is_wanted(8, 8, many, [sure, unsure])
    assert not is_wanted(3, 8, few, [unsure])


def test_percentiles_and_the_rise_of_samples() -> None:
    assert [percentile(which)([3, 1, 2, 4]) for which in (0, 50, 99)] == [1, 3, 4]
    assert rise([5, 9, 7]) == 4


def test_the_table_and_the_json_say_what_is_judged() -> None:
    rows = [compared(SPEED, (90, 100), (90, 100)), compared(SHOWN, (2, 0))]
    assert as_table(rows, "abc").row_count == 2
    one, two = json.loads(as_json(rows))
    assert (one["ratio"], one["error"], one["reach"], one["ok"]) == (0.9, 0.0, ">= 0.97", False)
    assert (two["ratio"], two["error"], two["reach"], two["ok"]) == (1.0, None, "", True)


# What it is asked


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["--reach", "0.9"], "--against COMMIT"),
        (["--against", "HEAD", "--reach", "1.5"], "at most 1, got 1.5"),
        (["--against", "HEAD", "--rounds", "0"], "--rounds wants at least 1"),
        (["--against", "HEAD", "flatness"], "there is no flatness; choose from throughput, latency"),
    ],
)
def test_a_wrong_argument_is_refused(argv: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        parse(argv)
    assert ended.value.code == 2
    assert said in capsys.readouterr().err


def test_by_default_everything_is_compared_and_97_percent_is_enough() -> None:
    options = parse(["--against", "HEAD"])
    assert (options.reach, options.what) == (0.97, list(MEASURES))


@in_git
@pytest.mark.parametrize("commit", ["no-such-commit", "", "--help", "HEAD:mx"])
def test_what_is_no_commit_is_named(commit: str) -> None:
    with pytest.raises(CannotCompare, match="wants a commit of this repository") as error:
        resolve(commit)
    assert repr(commit) in str(error.value)


# Measuring


@pytest.mark.parametrize("name", subject.MEASURES)
async def test_every_measure_runs(name: str, server: EmbeddedServer, redis: Redis) -> None:
    if name == "growth":
        await subject.MEASURES["produce_many"](server.url, 100)
    samples = await subject.MEASURES[name](server.url, 100)
    assert samples
    # The server keeps instants in whole milliseconds, so a delay may end up to one of them early.
    assert min(samples) > (-1 if name == "delay" else 0)


def test_every_measure_has_its_figures() -> None:
    compared = {name for group in MEASURES.values() for name in group}
    assert compared == {*subject.MEASURES, "weight", "alone"}


def test_another_package_than_the_one_meant_is_not_measured(tmp_path: Path) -> None:
    """Without sources there, Python finds the installed package."""
    with pytest.raises(CannotCompare, match=r"measured would be .*__init__.py, not what is in"):
        Subject("abc", tmp_path, tmp_path / "log").__enter__()


def test_a_version_that_cannot_run_says_why(tmp_path: Path) -> None:
    (tmp_path / "mx_rmq").mkdir()
    (tmp_path / "mx_rmq" / "__init__.py").write_text("raise ImportError('needs a newer msgspec')")
    with pytest.raises(CannotCompare, match=r"(?s)abc cannot be measured.*needs a newer msgspec"):
        Subject("abc", tmp_path, tmp_path / "log").__enter__()


@pytest.fixture
def home() -> Iterator[Path]:
    """For temporary files: short enough for a socket."""
    with tempfile.TemporaryDirectory(prefix="mx-", dir="/tmp") as home:
        yield Path(home)


def start(home: Path, *args: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "benchmarks", "--against", "HEAD", "--json", *args],
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(home)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        # Where the tests run in the background of a script, SIGINT is ignored, and would be so here.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


@in_git
def test_this_tree_is_compared_with_a_commit(home: Path) -> None:
    """The figures mean nothing at this size; that both versions are measured is what counts."""
    with start(home, "weight", "--rounds", "1", "--scale", "0.01") as process:
        out, said = process.communicate(timeout=60)
    assert process.returncode in (0, 1), said
    assert out, said
    rows = json.loads(out)
    assert [row["name"] for row in rows] == [
        "server memory per pending message",
        "server time for a message produced alone",
    ]
    assert min(value for row in rows for value in (row["this"], row["other"])) > 0
    assert list(home.iterdir()) == []


@in_git
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_leaves_nothing_behind(home: Path, number: signal.Signals) -> None:
    """Ctrl-C reaches all its processes, `kill` only the first."""
    with start(home, "throughput") as process:
        deadline = time.monotonic() + 30
        while not list(home.glob("mx-bench-*/log")):
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < deadline
            time.sleep(0.01)
        (os.killpg if number == signal.SIGINT else os.kill)(process.pid, number)
        process.communicate(timeout=30)
    assert process.returncode != 0
    assert list(home.iterdir()) == []
    # A process that was only just started notices by itself: its standard input has ended.
    deadline = time.monotonic() + 30
    while left := living(process.pid):
        assert time.monotonic() < deadline, left
        time.sleep(0.01)


def living(group: int) -> list[str]:
    """The processes of *group* that run. One that ended may wait long for its parent to notice."""
    stats = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(FileNotFoundError, ProcessLookupError):  # it ends just now
            stats.append(stat.read_text())
    after_name = [stat.rpartition(")")[2].split() for stat in stats]
    return [
        stat
        for stat, (state, _, its_group, *_) in zip(stats, after_name, strict=True)
        if int(its_group) == group and state not in "ZX"
    ]
