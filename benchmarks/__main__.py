"""Every figure of docs/performance.md, as ratios within one run; or another commit beside this tree."""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import signal
import sys
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

from rich.console import Console

from benchmarks import against, comparison, sizing
from benchmarks.cluster import cluster
from benchmarks.costs import NoCosts, costs, read
from benchmarks.dashboard import dashboard
from benchmarks.flatness import flatness, weight
from benchmarks.growth import growth
from benchmarks.idle import WORKERS, idle
from benchmarks.latency import latency
from benchmarks.observing import observing
from benchmarks.operating import operating
from benchmarks.rows import Row, as_json, as_table
from benchmarks.throughput import throughput

Measure = Callable[[float], Awaitable[Iterator[Row]]]


def measures(rounds: int, workers: int = WORKERS) -> dict[str, Measure]:
    return {
        "throughput": lambda scale: throughput(scale, rounds),
        "latency": lambda scale: latency(scale, rounds),
        "weight": weight,
        "flatness": flatness,
        "growth": growth,
        "idle": lambda scale: idle(scale, workers),
        "observing": lambda scale: observing(scale, rounds),
        "operating": operating,
        "sizing": lambda scale: costs(scale, rounds),
        "cluster": lambda scale: cluster(scale, rounds),
        "dashboard": lambda scale: dashboard(scale, rounds),
    }


ON_REQUEST = {"sizing", "cluster"}
"""Measured only if asked for."""


async def run(names: list[str], scale: float, chosen: dict[str, Measure], progress: Console) -> list[Row]:
    rows: list[Row] = []
    for n, name in enumerate(names, 1):
        with progress.status(f"{n} of {len(names)}: {name}"):
            rows += await chosen[name](scale)
        progress.print(f"measured {name}")
    return rows


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="mx bench", description=__doc__)
    parser.add_argument(
        "what",
        nargs="*",
        metavar="WHAT",
        help=f"one or more of {', '.join(measures(1))}; all but {' and '.join(sorted(ON_REQUEST))}",
    )
    parser.add_argument(
        "--cluster", action="store_true", help="the same as cluster: 1 to 8 shards on three servers"
    )
    parser.add_argument("--json", action="store_true", help="rows for machines instead of a table")
    parser.add_argument(
        "--rounds",
        type=int,
        default=8,
        help="how often speed is measured, latency 3 times at most; "
        "with --against up to 3 times as often, until the ratios are sure (8)",
    )
    parser.add_argument(
        "--scale", type=float, default=1.0, help="smaller counts for a quick look; figures are for 1 (1)"
    )
    parser.add_argument(
        "--workers", type=int, default=WORKERS, help=f"how many workers are idle, for idle ({WORKERS})"
    )
    parser.add_argument(
        "--against", metavar="COMMIT", help="measure this tree and COMMIT in turns, and print their ratios"
    )
    parser.add_argument(
        "--reach", type=float, help="with --against: the share of COMMIT's speed to reach, or exit 1 (0.97)"
    )
    parser.add_argument(
        "--from",
        dest="source",
        metavar="FILE",
        type=Path,
        help="with sizing: compute the tables from what an earlier `sizing --json` printed",
    )
    options = parser.parse_args(argv)
    choice = list(measures(1) if options.against is None else against.MEASURES)
    if options.cluster:
        options.what.append("cluster")
    if unknown := sorted(set(options.what) - set(choice)):
        parser.error(f"there is no {', '.join(unknown)}; choose from {', '.join(choice)}")
    options.what = options.what or [name for name in choice if name not in ON_REQUEST]
    if options.rounds < 1 or not 0 < options.scale <= 1:
        parser.error("--rounds wants at least 1, --scale more than 0 and at most 1")
    if options.workers < 1:
        parser.error(f"--workers wants at least 1, got {options.workers}")
    if options.source is not None and options.what != ["sizing"]:
        parser.error("--from wants sizing and nothing else: ./mx bench sizing --from FILE")
    if options.reach is not None and options.against is None:
        parser.error("--reach wants a commit to compare with: --against COMMIT")
    options.reach = 0.97 if options.reach is None else options.reach
    if not 0 < options.reach <= 1:
        parser.error(f"--reach wants a share more than 0 and at most 1, got {options.reach:g}")
    return options


def main() -> int:
    options = parse()
    # Servers of a benchmark end with messages in them, on purpose; only errors are news here.
    logging.getLogger("mx_rmq").setLevel(logging.ERROR)
    # So that Ctrl-C and `kill` alike leave no process and no file behind.
    signal.signal(signal.SIGTERM, lambda number, _frame: sys.exit(128 + number))
    progress = Console(stderr=True)
    out = Console(width=None if sys.stdout.isatty() else 110)
    if options.against is not None:
        return compare(options, out, progress)
    if options.source is not None:
        return size(options.source, out)
    chosen = measures(options.rounds, options.workers)
    rows = asyncio.run(run(options.what, options.scale, chosen, progress))
    if options.json:
        print(as_json(rows))
    else:
        out.print(as_table(rows))
        if "sizing" in options.what:
            out.print(*sizing.tables(read({row.name: row.value for row in rows})), sep="\n")
    return verdict([row.name for row in rows if not row.ok], len(rows), progress)


def size(source: Path, out: Console) -> int:
    """Print what an earlier run makes of the tables."""
    try:
        rows = json.loads(source.read_text("utf-8"))
        found = read({row["name"]: row["value"] for row in rows})
    except (OSError, ValueError, LookupError, TypeError, NoCosts) as error:
        print(f"mx bench: --from wants what ./mx bench sizing --json printed: {error}", file=sys.stderr)
        return 2
    out.print(*sizing.tables(found), sep="\n")
    return 0


def compare(options: argparse.Namespace, out: Console, progress: Console) -> int:
    try:
        with progress.status("preparing") as status:
            other, rows = against.compare(
                options.against,
                options.what,
                rounds=options.rounds,
                scale=options.scale,
                reach=options.reach,
                tell=status.update,
            )
    except against.CannotCompare as error:
        print(f"mx bench: {error}", file=sys.stderr)
        return 2
    if options.json:
        print(comparison.as_json(rows))
    else:
        out.print(comparison.as_table(rows, other))
    if unsettled := [row.figure.name for row in rows if not row.settled]:
        progress.print(f"not sure at this reach, measure on a quiet machine: {'; '.join(unsettled)}")
    return verdict([row.figure.name for row in rows if not row.ok], len(rows), progress)


def verdict(missed: list[str], rows: int, progress: Console) -> int:
    if missed:
        progress.print(f"{len(missed)} of {rows} rows fall short: {'; '.join(missed)}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
