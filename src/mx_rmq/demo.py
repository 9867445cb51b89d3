"""``./mx demo``: send ten thousand messages of every kind through a queue and count what is lost."""

from __future__ import annotations

import argparse
import asyncio
import logging
import random
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from rich.console import Console
from rich.live import Live
from rich.table import Table

from mx_rmq import Context, RedisMessageQueue, Reject, Retry
from mx_rmq.message import LANES

if TYPE_CHECKING:
    from mx_rmq import AuditReport
    from mx_rmq.message import Lane

TOPICS: Final = ("orders", "mails", "media")
MAX_ATTEMPTS: Final = 3
PATIENCE: Final = 30.0
"""Seconds without progress after which the demo stops waiting: something is lost then."""


@dataclass(frozen=True, slots=True)
class Task:
    """What a handler must do: fail *fails* times, then succeed."""

    number: int
    fails: int


@dataclass(slots=True)
class Ledger:
    """What the demo itself counted, independent of the server, whose counts are checked against it."""

    sent: Counter[str] = field(default_factory=Counter)
    done: dict[str, set[str]] = field(default_factory=lambda: {topic: set() for topic in TOPICS})
    failed: Counter[str] = field(default_factory=Counter)
    dead: dict[str, set[str]] = field(default_factory=lambda: {topic: set() for topic in TOPICS})

    def open(self, topic: str) -> int:
        """How many messages of a topic have neither succeeded nor died."""
        return self.sent[topic] - len(self.done[topic]) - len(self.dead[topic])

    @property
    def all_open(self) -> int:
        """The same for all topics."""
        return sum(self.open(topic) for topic in TOPICS)


def make_queue(ledger: Ledger) -> RedisMessageQueue:
    """A queue with a handler for each topic; the handlers record in the ledger what they do."""
    mq = RedisMessageQueue("embedded://", name="demo")

    async def handle(task: Task, ctx: Context) -> None:
        if task.fails == MAX_ATTEMPTS and ctx.topic == "media":
            ledger.dead[ctx.topic].add(ctx.message_id)
            raise Reject("this one can never succeed")
        if ctx.attempt <= task.fails:
            ledger.failed[ctx.topic] += 1
            if ctx.attempt == MAX_ATTEMPTS:
                ledger.dead[ctx.topic].add(ctx.message_id)
            raise ValueError(f"failing for the {ctx.attempt}. time")
        ledger.done[ctx.topic].add(ctx.message_id)

    for topic in TOPICS:
        mq.handler(topic, retry=Retry(MAX_ATTEMPTS, base=0.05, cap=0.5))(handle)
    return mq


async def produce(mq: RedisMessageQueue, total: int, seed: int, ledger: Ledger) -> None:
    """Send messages of every kind: three lanes, some delayed, some that fail at first or always."""
    dice = random.Random(seed)  # noqa: S311 - a repeatable demo, no secrets

    async def send(topic: str, task: Task, priority: Lane, delay: float) -> None:
        await mq.produce(topic, task, priority=priority, delay=delay)
        ledger.sent[topic] += 1

    calls = []
    for n in range(total):
        fails = dice.choices((0, 1, 2, MAX_ATTEMPTS), weights=(900, 70, 25, 5))[0]
        priority = dice.choices(LANES, weights=(1, 8, 1))[0]
        delay = dice.random() if dice.random() < 0.1 else 0.0
        calls.append(send(dice.choice(TOPICS), Task(n, fails), priority, delay))
        if len(calls) == 500 or n == total - 1:
            await asyncio.gather(*calls)
            calls.clear()


async def settled(ledger: Ledger) -> None:
    """Wait until every message has ended, or until none has for ``PATIENCE`` seconds."""
    before, since = -1, time.monotonic()
    while ledger.all_open and time.monotonic() - since < PATIENCE:
        if ledger.all_open != before:
            before, since = ledger.all_open, time.monotonic()
        await asyncio.sleep(0.02)


def table(ledger: Ledger) -> Table:
    """One row per topic, and their sum."""
    result = Table("topic", "in", "done", "failed attempts", "dead", "open", title="mx-rmq demo")
    for column in result.columns[1:]:
        column.justify = "right"
    rows = [
        (ledger.sent[t], len(ledger.done[t]), ledger.failed[t], len(ledger.dead[t]), ledger.open(t))
        for t in TOPICS
    ]
    for topic, row in zip(TOPICS, rows, strict=True):
        result.add_row(topic, *(f"{cell:,}" for cell in row))
    result.add_section()
    result.add_row("all", *(f"{sum(column):,}" for column in zip(*rows, strict=True)))
    return result


async def show(live: Live, ledger: Ledger) -> None:
    """Redraw the table on the terminal ten times a second."""
    while True:
        live.update(table(ledger))
        await asyncio.sleep(0.1)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of the messages, by the ledger and by the server."""

    sent: int
    done: int
    dead: int
    lost: int
    clean: bool
    """Whether the audit is clean, and agrees with the ledger."""
    seconds: float

    @property
    def is_good(self) -> bool:
        """Whether nothing is lost."""
        return self.lost == 0 and self.clean

    def __str__(self) -> str:
        return (
            f"{self.sent:,} in, {self.done:,} done, {self.dead:,} dead, {self.lost:,} lost; "
            f"audit {'clean' if self.clean else 'NOT clean'}; {self.seconds:.1f} s"
        )


def verdict(ledger: Ledger, report: AuditReport, took: float) -> Verdict:
    """Compare the ledger and the server."""
    sent = ledger.sent.total()
    done, dead = (sum(map(len, ended.values())) for ended in (ledger.done, ledger.dead))
    lost = sent - done - report.places["dead"] - report.live
    clean = report.clean and report.places["dead"] == dead and not report.live
    return Verdict(sent, done, dead, lost, clean, took)


async def run(total: int, seed: int, console: Console) -> Verdict:
    """Run the demo on a private server."""
    ledger = Ledger()
    mq = make_queue(ledger)
    started = time.perf_counter()
    with Live(console=console, auto_refresh=console.is_terminal, transient=True) as live:
        async with mq:
            painter = asyncio.create_task(show(live, ledger)) if console.is_terminal else None
            await mq.start()
            await produce(mq, total, seed, ledger)
            await settled(ledger)
            await mq.stop()
            took = time.perf_counter() - started
            (report,) = await mq.audit()
            if painter is not None:
                painter.cancel()
    console.print(table(ledger))
    found = verdict(ledger, report, took)
    console.print(str(found), highlight=False)
    return found


def main() -> int:
    """Run the demo; 0 only if nothing was lost and the audit is clean."""
    parser = argparse.ArgumentParser(prog="mx demo", description=__doc__)
    parser.add_argument("--messages", type=int, default=10_000, help="how many (10,000)")
    parser.add_argument("--seed", type=int, default=1, help="which mixture of delays and failures (1)")
    options = parser.parse_args()
    if options.messages < 1:
        parser.error("--messages wants at least 1")
    logging.getLogger("mx_rmq").setLevel(logging.ERROR)  # the table shows the dead messages
    return 0 if asyncio.run(run(options.messages, options.seed, Console())).is_good else 1


if __name__ == "__main__":
    sys.exit(main())
