"""``./mx bench sizing``: what its tables say follows from what was measured, and so does docs/scaling.md."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import replace
from io import StringIO
from typing import TYPE_CHECKING

import pytest
from benchmarks import sizing
from benchmarks.costs import NAMES, Costs, NoCosts, read
from rich.console import Console

from tests.project.pages import ROOT, blocks, section

if TYPE_CHECKING:
    from pathlib import Path

COSTS = Costs(
    batched_server=15.0,
    batched_client=25.0,
    batched_wire=500.0,
    batched_trips=0.02,
    alone_server=150.0,
    alone_client=300.0,
    alone_wire=2000.0,
    alone_trips=2.2,
    pending=400.0,
    delayed=500.0,
    connections=3.0,
    idle_of_few=250.0,
    idle_of_some=80.0,
    idle_of_many=50.0,
)


def printed(costs: Costs) -> str:
    out = Console(file=StringIO(), width=110)
    out.print(*sizing.tables(costs), sep="\n")
    assert isinstance(out.file, StringIO)
    return out.file.getvalue()


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("│┃ ").split("│")]


def values_of(costs: Costs) -> dict[str, float]:
    return {name: getattr(costs, field) for field, (name, _) in NAMES.items()}


def test_nodes_follow_from_the_time_that_a_message_takes() -> None:
    rows = [cells(line) for line in printed(COSTS).splitlines()]
    assert ["100,000", "in batches", "3", "6", "5", "1.5", "50"] in rows
    assert ["100,000", "alone", "25", "50", "50", "15.0", "200"] in rows
    assert ["10,000", "in batches", "1", "1", "1", "0.1", "5"] in rows
    twice = printed(replace(COSTS, batched_server=30.0))
    assert ["100,000", "in batches", "5", "10", "5", "3.0", "50"] in [
        cells(line) for line in twice.splitlines()
    ]


def test_nodes_follow_from_the_memory_that_a_message_takes() -> None:
    rows = [cells(line) for line in printed(COSTS).splitlines()]
    assert ["10,000,000", "5.0", "1", "1", "4.0"] in rows
    assert ["1,000,000,000", "500.0", "32", "64", "400.0"] in rows


def test_connections_grow_with_workers_and_shards_and_idle_cost_by_how_many_there_are() -> None:
    rows = [cells(line) for line in printed(COSTS).splitlines()]
    assert ["10", "1", "30", "0.2 %", "as it is"] in rows
    assert ["100", "2", "600", "1.6 %", "as it is"] in rows
    assert ["10,000", "1", "30,000", "50.0 %", "raise to 40,000"] in rows


def test_the_names_of_rows_lead_back_to_the_costs() -> None:
    assert read(values_of(COSTS)) == COSTS


def test_a_row_that_is_missing_is_named() -> None:
    values = values_of(COSTS)
    del values["server CPU per message, alone"]
    with pytest.raises(NoCosts, match=r"missing: server CPU per message, alone; make them with \./mx bench"):
        read(values)


# -- the command


def bench(*args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "benchmarks", *args],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_a_run_can_be_turned_into_tables_later(tmp_path: Path) -> None:
    run = tmp_path / "run.json"
    measured = bench("sizing", "--json", "--scale", "0.01", "--rounds", "1")
    assert measured.returncode == 0, measured.stderr
    run.write_text(measured.stdout)
    values = {row["name"]: row["value"] for row in json.loads(measured.stdout)}
    assert values["connections per worker and shard"] == 3
    done = bench("sizing", "--from", str(run))
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == printed(read(values)).strip()


@pytest.mark.parametrize("text", ["", "{}", "[1]", '[{"name": "drain", "value": 1}]', None])
def test_a_file_that_is_no_run_is_refused(tmp_path: Path, text: str | None) -> None:
    run = tmp_path / "run.json"
    if text is not None:
        run.write_text(text)
    done = bench("sizing", "--from", str(run))
    assert done.returncode == 2
    assert "--from wants what ./mx bench sizing --json printed" in done.stderr
    assert "Traceback" not in done.stderr


def test_from_wants_sizing() -> None:
    done = bench("idle", "--from", "run.json")
    assert done.returncode == 2
    assert "--from wants sizing and nothing else" in done.stderr


# -- docs/scaling.md


def test_the_tables_of_the_page_follow_from_the_costs_on_it() -> None:
    shown = {}
    for line in blocks(section("docs/scaling.md", "What it costs"))[0].splitlines():
        if line.startswith("│"):
            name, value, *_ = cells(line)
            shown[name] = float(value.replace(",", ""))
    tables = [block for block in blocks(section("docs/scaling.md", "Sizing")) if block.startswith("┏")]
    assert [strip(table) for table in tables] == [strip(table) for table in split(printed(read(shown)))]


def split(text: str) -> list[str]:
    return ["┏" + part for part in text.split("┏") if part.strip()]


def strip(text: str) -> list[str]:
    return [re.sub(r"\s+$", "", line) for line in text.strip().splitlines()]
