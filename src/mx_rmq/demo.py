"""``./mx demo``: ten thousand messages through every corner of a queue, and a count of what is lost."""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from redis.asyncio import Redis
from rich.console import Console
from rich.live import Live
from rich.table import Table

from mx_rmq.audit import AuditReport, audit
from mx_rmq.embedded import open_url
from mx_rmq.ids import new_id
from mx_rmq.keys import LANES, Keys
from mx_rmq.message import (
    Attempt,
    Death,
    Message,
    decode_message,
    encode_death,
    encode_message,
    encode_payload,
)
from mx_rmq.records import NewMessage
from mx_rmq.store import Store

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mx_rmq.records import Delivery

TOPICS: Final = ("orders", "mails", "media")
MAX_ATTEMPTS: Final = 3
CHUNK: Final = 100


@dataclass(slots=True)
class Ledger:
    """What the demo itself saw; kept apart from the server, whose word it checks."""

    sent: dict[str, set[str]] = field(default_factory=lambda: {topic: set() for topic in TOPICS})
    done: dict[str, set[str]] = field(default_factory=lambda: {topic: set() for topic in TOPICS})
    dead: dict[str, set[str]] = field(default_factory=lambda: {topic: set() for topic in TOPICS})
    retries: Counter[str] = field(default_factory=Counter)

    def open(self, topic: str) -> int:
        """How many messages of a topic have neither succeeded nor died."""
        return len(self.sent[topic] - self.done[topic] - self.dead[topic])


def plan(total: int, seed: int) -> list[tuple[str, NewMessage]]:
    """Messages of every kind: three lanes, some delayed, some that fail at first, a few that always do."""
    dice = random.Random(seed)  # noqa: S311 - a repeatable demo, no secrets
    planned = []
    for n in range(total):
        topic = dice.choice(TOPICS)
        fails = dice.choices((0, 1, 2, MAX_ATTEMPTS), weights=(900, 70, 25, 5))[0]
        message = Message(
            v=1,
            id=new_id(),
            topic=topic,
            payload=encode_payload({"n": n, "fails": fails}),
            priority=dice.choices(LANES, weights=(1, 8, 1))[0],
            created_at=time.time(),
            ttl=3600.0,
        )
        delay = dice.random() if dice.random() < 0.1 else 0.0
        body = encode_message(message)
        planned.append((topic, NewMessage(message.id, body, message.priority, message.ttl, delay)))
    return planned


async def produce(store: Store, planned: Sequence[tuple[str, NewMessage]], ledger: Ledger) -> None:
    """Send everything, in chunks."""
    for start in range(0, len(planned), CHUNK):
        for topic in TOPICS:
            chunk = [message for of, message in planned[start : start + CHUNK] if of == topic]
            await store.produce(topic, [message for message in chunk if not message.delay])
            await store.produce_delayed(topic, [message for message in chunk if message.delay])
            ledger.sent[topic] |= {message.id for message in chunk}


async def work(store: Store, topic: str, worker: str, ledger: Ledger, finished: asyncio.Event) -> None:
    """Claim, handle and settle until the demo is over."""
    while not finished.is_set():
        claim = await store.claim(topic, CHUNK, lease=15, holder=worker)
        done: list[tuple[Delivery, float]] = []
        failed: list[tuple[Delivery, float, bytes]] = []
        dead: list[tuple[Delivery, bytes, bytes]] = []
        for delivery in claim.deliveries:
            message = decode_message(delivery.body)
            if fails(message) <= message.attempts:
                done.append((delivery, 0))
                continue
            message.attempts += 1
            message.remember(Attempt(at=claim.now, worker=worker, error="ValueError: not yet"))
            body = encode_message(message)
            if message.attempts < MAX_ATTEMPTS:
                failed.append((delivery, 0.05 * 2**message.attempts, body))
            else:
                reason = Death(reason="failed", error="ValueError: not yet", kind="ValueError")
                dead.append((delivery, body, encode_death(reason)))
        await store.complete(topic, done)
        await store.retry(topic, failed)
        await store.move_to_dlq(topic, dead)
        ledger.done[topic] |= {delivery.id for delivery, _ in done}
        ledger.dead[topic] |= {delivery.id for delivery, _, _ in dead}
        ledger.retries[topic] += len(failed)
        if not claim.deliveries:
            await asyncio.sleep(0.005)


def fails(message: Message) -> int:
    """How often the handler is to fail on a message."""
    return int(bytes(message.payload).rpartition(b":")[2].rstrip(b"}"))


async def schedule(store: Store, finished: asyncio.Event) -> None:
    """Promote what is due and take over what timed out."""
    while not finished.is_set():
        await store.promote()
        await store.take_over(CHUNK, lease=15, holder="demo-monitor")
        await asyncio.sleep(0.01)


def table(ledger: Ledger, *, title: str) -> Table:
    """One row per topic, and their sum."""
    result = Table("topic", "in", "done", "retries", "dead", "open", title=title)
    for column in result.columns[1:]:
        column.justify = "right"
    rows = [
        (len(ledger.sent[t]), len(ledger.done[t]), ledger.retries[t], len(ledger.dead[t]), ledger.open(t))
        for t in TOPICS
    ]
    for topic, row in zip(TOPICS, rows, strict=True):
        result.add_row(topic, *(f"{cell:,}" for cell in row))
    result.add_section()
    result.add_row("all", *(f"{sum(column):,}" for column in zip(*rows, strict=True)))
    return result


async def show(live: Live, ledger: Ledger, finished: asyncio.Event) -> None:
    """Keep the table on the terminal fresh."""
    while not finished.is_set():
        live.update(table(ledger, title="mx-rmq demo"))
        await asyncio.sleep(0.1)


async def settled(ledger: Ledger, patience: float = 30.0) -> None:
    """Wait until every message has ended, or none has for *patience* seconds: then some are lost."""
    before, since = -1, time.monotonic()
    while (still := sum(ledger.open(topic) for topic in TOPICS)) and time.monotonic() - since < patience:
        if still != before:
            before, since = still, time.monotonic()
        await asyncio.sleep(0.02)


def verdict(ledger: Ledger, report: AuditReport, took: float) -> tuple[str, bool]:
    """The last line, and whether every message is accounted for."""
    sent, done, dead = (len(set().union(*of.values())) for of in (ledger.sent, ledger.done, ledger.dead))
    lost = sent - done - dead - report.live
    healthy = report.clean and report.places["dead"] == dead and not report.live
    line = (
        f"{sent:,} in, {done:,} done, {dead:,} dead, {lost:,} lost; "
        f"audit {'clean' if healthy else 'NOT clean'}; {took:.1f} s"
    )
    return line, lost == 0 and healthy


async def run(total: int, seed: int, console: Console) -> bool:
    """Run everything on a private server and say whether all is well."""
    ledger, finished = Ledger(), asyncio.Event()
    started = time.perf_counter()
    with open_url("embedded://") as server:
        async with Redis(unix_socket_path=str(server.socket)) as redis:
            store = Store(redis, Keys("demo"))
            with Live(console=console, auto_refresh=console.is_terminal, transient=True) as live:
                async with asyncio.TaskGroup() as tasks:
                    for topic in TOPICS:
                        tasks.create_task(work(store, topic, f"demo-{topic}", ledger, finished))
                    tasks.create_task(schedule(store, finished))
                    if console.is_terminal:
                        tasks.create_task(show(live, ledger, finished))
                    await produce(store, plan(total, seed), ledger)
                    await settled(ledger)
                    finished.set()
            took = time.perf_counter() - started
            report = await audit(store)
    console.print(table(ledger, title="mx-rmq demo"))
    line, healthy = verdict(ledger, report, took)
    console.print(line, highlight=False)
    return healthy


def main() -> int:
    """Run the demo; 0 only if nothing was lost and the audit is clean."""
    parser = argparse.ArgumentParser(prog="mx demo", description=__doc__)
    parser.add_argument("--messages", type=int, default=10_000, help="how many (10,000)")
    parser.add_argument("--seed", type=int, default=1, help="which mixture of delays and failures (1)")
    options = parser.parse_args()
    if options.messages < 1:
        parser.error("--messages wants at least 1")
    return 0 if asyncio.run(run(options.messages, options.seed, Console())) else 1


if __name__ == "__main__":
    sys.exit(main())
