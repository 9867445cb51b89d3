"""Inject faults into real servers and processes, and show that nothing is lost.

Each fault prints a row; the exit code is 1 when a figure is missed.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import random
import sys
import time
from contextlib import suppress

import msgspec
from rich.console import Console
from rich.table import Table

from tests.faults.catalogue import FAULTS
from tests.faults.run import Row, Run


def as_table(rows: list[Row]) -> Table:
    table = Table(title="mx-rmq faults")
    for name in ("fault", "runs", "messages", "kills", "lost", "dupl.", "recovery", "figure", "ok"):
        table.add_column(name, justify="left" if name in ("fault", "figure") else "right")
    for row in rows:
        recovery = "" if row.recovery is None else f"{row.recovery:.2f} s"
        counts = (f"{count:,}" for count in (row.runs, row.messages, row.kills, row.lost, row.duplicates))
        table.add_row(row.fault, *counts, recovery, row.figure, "yes" if row.ok else "NO")
    return table


def as_markdown(rows: list[Row]) -> str:
    """The table of docs/reliability.md."""
    lines = [
        "| fault | runs | messages | kills | lost | duplicates | recovery | figure | reached |",
        "|---|--:|--:|--:|--:|--:|--:|---|---|",
    ]
    for row in rows:
        recovery = "" if row.recovery is None else f"{row.recovery:.2f} s"
        counts = [f"{n:,}" for n in (row.runs, row.messages, row.kills, row.lost, row.duplicates)]
        cells = [row.fault, *counts, recovery, row.figure, "yes" if row.ok else f"no: {row.seen}"]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


async def run(names: list[str], *, short: bool, seed: int, minutes: float, console: Console) -> list[Row]:
    rows = []
    for n, name in enumerate(names, 1):
        started = time.monotonic()
        with console.status(name) as status:

            def tell(text: str, where: str = f"{n} of {len(names)}: {name}") -> None:
                status.update(f"{where}: {text}")

            try:
                row = await FAULTS[name](Run(short, seed, tell, minutes))
            except Exception as error:  # a fault that cannot be run is one that was not survived
                row = Row(fault=name, figure="to run", seen=f"{type(error).__name__}: {error}", ok=False)
        rows.append(row)
        took = time.monotonic() - started
        verdict = "ok" if row.ok else f"MISSED {row.figure}: {row.seen}"
        console.print(f"{name}: {verdict} ({took:.0f} s)", highlight=False, markup=False)
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(prog="mx faults", description=__doc__)
    parser.add_argument("what", nargs="*", metavar="FAULT", help=f"of {', '.join(FAULTS)}; all but soak")
    parser.add_argument("--short", action="store_true", help="the size that the tests run")
    parser.add_argument("--soak", action="store_true", help="everything at random, for long")
    parser.add_argument("--minutes", type=float, default=30.0, help="how long the soak takes (30)")
    parser.add_argument("--seed", type=int, help="repeat a run")
    parser.add_argument("--json", action="store_true", help="rows for machines instead of a table")
    parser.add_argument("--markdown", action="store_true", help="the table for the documentation")
    options = parser.parse_args()
    if unknown := set(options.what) - set(FAULTS):
        parser.error(f"there is no {', '.join(sorted(unknown))}; choose from {', '.join(FAULTS)}")
    if not 1 <= options.minutes <= 55:
        parser.error("--minutes wants 1 to 55")
    names = options.what or [name for name in FAULTS if name != "soak"]
    if options.soak:
        names = ["soak"]
    seed = random.SystemRandom().randrange(1_000_000) if options.seed is None else options.seed
    console = Console(stderr=True)
    logging.getLogger("mx_rmq").addHandler(logging.NullHandler())  # or it would write into the progress
    console.print(f"seed {seed}", highlight=False)
    with suppress(PermissionError):  # most figures are times: what else runs here must not be measured
        os.nice(-10)
    rows = asyncio.run(run(names, short=options.short, seed=seed, minutes=options.minutes, console=console))
    if options.json:
        print(msgspec.json.encode(rows).decode())
    elif options.markdown:
        print(as_markdown(rows))
    else:
        Console(width=None if sys.stdout.isatty() else 150).print(as_table(rows))
    return 0 if all(row.ok for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
