"""``./mx bench``: every figure of docs/performance.md, as ratios within one run."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Awaitable, Callable, Iterator

from rich.console import Console

from benchmarks.flatness import flatness, weight
from benchmarks.growth import growth
from benchmarks.latency import latency
from benchmarks.rows import Row, as_json, as_table
from benchmarks.throughput import throughput

Measure = Callable[[float], Awaitable[Iterator[Row]]]


def measures(rounds: int) -> dict[str, Measure]:
    return {
        "throughput": lambda scale: throughput(scale, rounds),
        "latency": lambda scale: latency(scale, rounds),
        "weight": weight,
        "flatness": flatness,
        "growth": growth,
    }


async def run(names: list[str], scale: float, rounds: int, progress: Console) -> list[Row]:
    rows: list[Row] = []
    for n, name in enumerate(names, 1):
        with progress.status(f"{n} of {len(names)}: {name}"):
            rows += await measures(rounds)[name](scale)
        progress.print(f"measured {name}")
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(prog="mx bench", description=__doc__)
    parser.add_argument(
        "what", nargs="*", metavar="WHAT", help=f"one or more of {', '.join(measures(1))}; all"
    )
    parser.add_argument("--json", action="store_true", help="rows for machines instead of a table")
    parser.add_argument(
        "--rounds", type=int, default=8, help="how often speed is measured, latency 3 times at most (8)"
    )
    parser.add_argument(
        "--scale", type=float, default=1.0, help="smaller counts for a quick look; figures are for 1 (1)"
    )
    options = parser.parse_args()
    unknown = set(options.what) - set(measures(1))
    if unknown:
        parser.error(f"there is no {', '.join(sorted(unknown))}; choose from {', '.join(measures(1))}")
    if options.rounds < 1 or not 0 < options.scale <= 1:
        parser.error("--rounds wants at least 1, --scale more than 0 and at most 1")
    progress = Console(stderr=True)
    rows = asyncio.run(run(options.what or list(measures(1)), options.scale, options.rounds, progress))
    if options.json:
        print(as_json(rows))
    else:
        Console(width=None if sys.stdout.isatty() else 110).print(as_table(rows))
    missed = [row.name for row in rows if not row.ok]
    if missed:
        progress.print(f"{len(missed)} of {len(rows)} rows fall short: {'; '.join(missed)}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
