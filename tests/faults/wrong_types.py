"""Keys of the queue are overwritten by something that is not what it should be."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from redis.exceptions import ResponseError

from mx_rmq import MxRmqError, RedisMessageQueue
from mx_rmq.errors import WrongKeyType
from mx_rmq.storage.keys import QUEUE_PARTS, TOPIC_PARTS
from tests.faults.arena import TOPIC, Arena, Child, eventually
from tests.faults.ledger import Ledger
from tests.faults.programs import QUEUE
from tests.faults.pulse import KEPT, feel, log_of
from tests.faults.run import Row, Run
from tests.harness import command

if TYPE_CHECKING:
    from mx_rmq.operating.audit_report import AuditReport
    from tests.faults.pulse import Pulse

OTHER = "others"
LEASE = 2.5
RATE = 300
WINDOW = 0.3
SAVED = "mx-f:saved"

IRREPLACEABLE = ("payload", "dlq_payload")
"""Bodies are nowhere else: what the fault overwrote is put back. All the rest the audit finds again."""
IDLE = (
    *("topics", "paused", "counters", "dlq_groups", "workers", "workers_seen", "tails", "trail"),
    *("vanished", "delay_wake", "fence", "workers_connections", "observer", "scheduler"),
)
"""For people and tools, or only for speed; a message never waits for them."""
HEALED = ("wake", "delay_wake", "fence", "observer", "scheduler")
"""A token is thrown away whatever it is and a fence written anew, so such a key soon heals by itself. A turn
is a string too, and a few workers do without."""
SILENT = ("topics", "paused", "counters", "dlq_groups", "tails", "trail", "vanished", "observer", "scheduler")
"""No worker looks at the answer when these are written; the audit names them, and ``tail`` its own."""
SLOW = ("workers", "workers_seen", "workers_connections")
"""Workers write there every few seconds only, for which the short form does not wait."""


async def wrong_types(run: Run) -> Row:
    """Every key in turn holds a string, with two topics under load; then the audit repairs it."""
    # The short form takes some keys, others each time.
    topic_parts = run.dice.sample(list(TOPIC_PARTS), run.size(len(TOPIC_PARTS), 3))
    # Any string is of the layout's type. One that cannot be read has its own error, and stops no worker.
    others = [part for part in QUEUE_PARTS if part != "layout"]
    queue_parts = run.dice.sample(others, run.size(len(others), 4))
    # A retry that falls due while its list is wrong is put off by a minute, too long for the short form.
    mixed: list[tuple[dict[str, Any], int]] = [({}, 30), ({"dead": "of no use"}, 1)]
    mixed += run.size([({"fail": 1}, 2)], [])
    ills: list[str] = []
    slowest, kept = 0.0, 1.0
    async with (
        Arena.open(run) as arena,
        RedisMessageQueue(arena.url, name=QUEUE, lease=LEASE, server_check="off") as operator,
    ):
        workers = [arena.worker({TOPIC: {}, OTHER: {}}, lease=LEASE) for _ in range(2)]
        producers = [
            arena.producer("good", ({}, 1_000_000), topic=OTHER, rate=RATE),
            arena.producer("bad", *mixed * 10_000, topic=TOPIC, callers=10, rate=RATE / 5),
        ]
        await eventually(lambda: any(event.what == "done" for event in arena.events()), within=20)
        await asyncio.sleep(0.5)
        clean = await feel(arena, workers, "good", run.size(10, 4), WINDOW)
        for part in [*topic_parts, *queue_parts]:
            of_topic = part in TOPIC_PARTS
            key = arena.keys.of_topic(TOPIC, part) if of_topic else arena.keys.of_queue(part)
            windows = run.size(12, 3 if of_topic else 1)
            pulse, wrong, took = await _poisoned(arena, operator, workers, key, part, windows)
            runs = of_topic or part in IDLE
            ills += [f"{key}: {ill}" for ill in [*pulse.ills(clean, runs=runs), *wrong]]
            slowest = max(slowest, took)
            if of_topic:
                kept = min(kept, pulse.rate / clean.rate)
        ills += [f"worker {worker.pid} died" for worker in workers if not worker.alive]
        for producer in producers:
            producer.kill()
        await arena.drained(within=90)
        # Under load the counters cannot be compared; those that were overwritten are put right now.
        reports = await operator.audit(repair=True)
        ills += [f"{finding} after the drain" for report in reports for finding in _strays(report)]
        verdict = await arena.verdict()
    parts = len(topic_parts) + len(queue_parts)
    return Row(
        fault=f"a wrong type on each of {parts} keys in turn",
        runs=parts,
        messages=verdict.acked,
        lost=len(verdict.lost),
        duplicates=verdict.duplicates,
        recovery=slowest,
        figure=f"other topics keep >= {KEPT:.0%}, named, no hot loop, the audit repairs it, 0 lost",
        seen="; ".join([f"{kept:.1%} kept", str(verdict), *ills]),
        ok=verdict.ok and verdict.acked > 0 and not ills,
    )


async def _poisoned(
    arena: Arena, operator: RedisMessageQueue, workers: list[Child], key: str, part: str, windows: int
) -> tuple[Pulse, list[str], float]:
    """Overwrite a key, watch, and put it right: the pulse, what was wrong, seconds until all ran again."""
    arena.run.tell(key)
    wrong = []
    logged = [len(log_of(arena, worker)) for worker in workers]
    await _overwrite(arena, key)
    refusal = await _refusal(arena, TOPIC if part in TOPIC_PARTS else OTHER, key)
    pulse = await feel(arena, workers, "good", windows, WINDOW)
    if refusal is not None and not (isinstance(refusal, WrongKeyType) and key in str(refusal)):
        wrong.append(f"produce said {refusal!r}")
    if part not in HEALED:
        findings = [finding for report in await operator.audit() for finding in report.findings]
        if not any(finding.what == key and finding.kind == "wrong-type" for finding in findings):
            wrong.append("the audit did not name it")
    if (refusal is None or part in TOPIC_PARTS) and not _unsaid(arena.run, part):

        def named() -> bool:
            news = [log_of(arena, worker)[start:] for worker, start in zip(workers, logged, strict=True)]
            return any(key in text for text in news)

        try:
            await eventually(named, within=10)
        except AssertionError:
            wrong.append("no worker named it")
    if part in IRREPLACEABLE and await command(arena.redis, "EXISTS", SAVED):
        await command(arena.redis, "RENAME", SAVED, key)
    await command(arena.redis, "DEL", SAVED)
    mended_at = time.monotonic()
    await operator.audit(repair=True)
    for report in await operator.audit():
        wrong += [f"{finding} after the repair" for finding in _strays(report)]
    return pulse, wrong, await _both_run(arena, since=mended_at)


def _strays(report: AuditReport) -> list[str]:
    """What breaks I1 to I3."""
    return [f"{found.kind} {found.what}" for found in report.findings if found.kind != "counters-disagree"]


def _unsaid(run: Run, part: str) -> bool:
    return part in (*HEALED, *SILENT, *(SLOW if run.short else ()))


async def _overwrite(arena: Arena, key: str) -> None:
    """Put a string where the key is, or a list in place of a string; what it held is kept aside."""
    async with arena.redis.pipeline(transaction=True) as pipe:
        pipe.delete(SAVED)
        pipe.rename(key, SAVED)
        if key == arena.keys.of_queue("fence"):
            pipe.rpush(key, "something else")
        else:
            pipe.set(key, "something else")
        with suppress(ResponseError):  # it did not exist
            await pipe.execute()


async def _refusal(arena: Arena, topic: str, key: str) -> MxRmqError | None:
    """What a caller of produce is told; the message counts as any other."""
    id_ = f"ask-{key.removeprefix(arena.keys.prefix).replace(':', '-')}"
    ledger = Ledger(arena.home / "ledgers")
    ledger.write("tried", id_)
    try:
        await arena.queue.produce(topic, {}, message_id=id_)
    except MxRmqError as error:
        return error
    ledger.write("acked", id_)
    return None


async def _both_run(arena: Arena, since: float) -> float:
    """Wait until both topics complete messages that were produced after an instant; how long that took."""
    while True:
        events = arena.events()
        young = {event.id for event in events if event.what == "tried" and event.at > since}
        done = {event.id.partition("-")[0] for event in events if event.what == "done" and event.id in young}
        passed = time.monotonic() - since
        if {"good", "bad"} <= done:
            return passed
        assert passed < 90, f"only {done} went on after 90 s\n{arena.log_text()[-3000:]}"
        await asyncio.sleep(0.05)
