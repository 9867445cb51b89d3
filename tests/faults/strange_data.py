"""Somebody else writes into the queue's own keys: of the right type, and wrong all the same."""

from __future__ import annotations

import asyncio
import json
import time
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from mx_rmq import RedisMessageQueue, UnknownTopic
from mx_rmq.message import Message, encode_message
from mx_rmq.payloads import encode_payload
from tests.faults.arena import TOPIC, Arena, Child, eventually
from tests.faults.ledger import Ledger, ids
from tests.faults.programs import QUEUE
from tests.faults.pulse import KEPT, feel, log_of
from tests.faults.run import Row, Run
from tests.harness import command

if TYPE_CHECKING:
    from tests.faults.pulse import Pulse

OTHER = "others"
LEASE = 1.5
RATE = 300
WINDOW = 0.3

LEASES = (
    b"nonsense",
    b"",
    b"5@1 \xff\xfe garbage \xff\xfe \xff",
    b"1@1 nolane nan holder run",
    b"99999999999999999999999999@1 high inf x",
    b"z" * 10_000,
)
KEEPS = (b"0 normal garbage", b"x y z", b"3 nolane nan", b"\xff \xfe \xff", b"9" * 400 + b" low 0x1p9")


@dataclass
class Strangers:
    """What was strewn in: messages that shall run, and things that must be noticed."""

    messages: list[str] = field(default_factory=list)
    found: list[bytes] = field(default_factory=list)
    """Of the audit's findings."""
    logged: list[str] = field(default_factory=list)
    """By the workers."""
    kept: list[str] = field(default_factory=list)
    """Dead in the end, since the audit throws away no body."""
    put_off: list[str] = field(default_factory=list)
    """Messages that a worker has put off by a minute, to be seen at the end."""
    nameless: dict[str, bytes] = field(default_factory=dict)
    """Bodies by id, of messages that nothing gives a topic: the audit keeps them in the topic ``unknown``."""


async def strange_data(run: Run) -> Row:
    """Two topics under load; foreign fields, members and leases in one of them, then audit and repair."""
    rounds = run.size(8, 1)
    ills: list[str] = []
    kept = 1.0
    odd = 0
    async with (
        Arena.open(run) as arena,
        RedisMessageQueue(arena.url, name=QUEUE, lease=LEASE, server_check="off") as operator,
    ):
        workers = [arena.worker({TOPIC: {}, OTHER: {}}, lease=LEASE) for _ in range(2)]
        producers = [
            arena.producer("good", ({}, 1_000_000), topic=OTHER, rate=RATE),
            arena.producer("bad", ({}, 1_000_000), topic=TOPIC, callers=10, rate=RATE / 5),
        ]
        await eventually(lambda: any(event.what == "done" for event in arena.events()), within=20)
        await asyncio.sleep(0.5)
        clean = await feel(arena, workers, "good", run.size(10, 4), WINDOW)
        for n in range(rounds):
            run.tell(f"round {n + 1} of {rounds}")
            strangers, pulse, wrong = await _round(arena, operator, workers, n)
            ills += [f"round {n}: {ill}" for ill in [*pulse.ills(clean), *wrong]]
            kept = min(kept, pulse.rate / clean.rate)
            odd += len(strangers.messages)
        ills += [f"worker {worker.pid} died" for worker in workers if not worker.alive]
        for producer in producers:
            producer.kill()
        await arena.drained(within=90)
        await operator.audit(repair=True)  # of the counters, which did not see the strangers come
        verdict = await arena.verdict()
        ills += [f"{len(keys)} foreign keys" for keys in [await _foreign_keys(arena)] if keys]
    return Row(
        fault="foreign fields, members, leases and ids",
        runs=rounds,
        messages=verdict.acked,
        lost=len(verdict.lost),
        duplicates=verdict.duplicates,
        figure=f"other topics keep >= {KEPT:.0%}, named, no hot loop, the audit repairs it, each runs once",
        seen="; ".join([f"{kept:.1%} kept", f"{odd} odd messages", str(verdict), *ills]),
        ok=verdict.ok and verdict.acked > odd > 0 and verdict.duplicates == 0 and not ills,
    )


async def _round(
    arena: Arena, operator: RedisMessageQueue, workers: list[Child], n: int
) -> tuple[Strangers, Pulse, list[str]]:
    """Strew strangers in, watch, let the audit find and repair them, and see their messages run."""
    wrong: list[str] = []
    strangers = await _strew(arena, n)
    pulse = await feel(arena, workers, "good", 5, WINDOW)
    await operator.counts()
    await operator.workers()

    def unsaid() -> list[str]:
        said = "".join(log_of(arena, worker) for worker in workers)
        return [what for what in strangers.logged if repr(what)[1:-1] not in said]

    try:
        await eventually(lambda: not unsaid(), within=5)
    except AssertionError:
        wrong.append(f"no worker named {unsaid()}")
    found = {finding.what for report in await operator.audit(repair=True) for finding in report.findings}
    missed = [what for what in strangers.found if what.decode(errors="backslashreplace") not in found]
    if missed:
        wrong.append(f"the audit did not find {missed}")
    for report in await operator.audit():
        left = [f"{f.kind} {f.what}" for f in report.findings if f.kind != "counters-disagree"]
        wrong += [f"{what} after the repair" for what in left]
    wrong += [f"{id_} was not kept" for id_ in await _unkept(arena, strangers)]
    with suppress(UnknownTopic):
        await operator.purge("unknown")  # where the audit keeps what says of no topic that it is its own

    def undone() -> set[str]:
        return set(strangers.messages) - set(strangers.put_off) - ids(arena.events(), "done")

    try:
        await eventually(lambda: not undone(), within=4 * LEASE + 2)
    except AssertionError:
        wrong.append(f"not run: {sorted(undone())}")
    return strangers, pulse, wrong


async def _unkept(arena: Arena, strangers: Strangers) -> list[str]:
    """The messages without a topic that are not, byte for byte, where an operator looks for them."""
    payload = arena.keys.of_queue("payload")
    return [
        id_
        for id_, body in strangers.nameless.items()
        if await command(arena.redis, "HMGET", payload, id_, f"{id_}:queue") != [body, b"unknown"]
    ]


async def _strew(arena: Arena, n: int) -> Strangers:
    """Write it all at once, as some other program would."""
    strangers, keys = Strangers(), arena.keys
    ledger = Ledger(arena.home / "ledgers")
    now = time.time() * 1000
    past, future = now - 1000, now + 3_600_000
    payload, monitor = keys.of_queue("payload"), keys.of_queue("all_expire_monitor")
    delays, processing = keys.of_queue("delay_tasks"), keys.of_topic(TOPIC, "processing")
    pending = keys.of_topic(TOPIC, "pending")
    pipe: Any = arena.redis.pipeline(transaction=True)

    def message(kind: str, topic: str | bytes | None = TOPIC, **options: Any) -> str:
        id_ = f"odd-{n}-{kind}"
        strangers.messages.append(id_)
        ledger.write("tried", id_)
        ledger.write("acked", id_)
        # Where the topic is to be found in the body it is of format 1; format 2 has none in it.
        pipe.hset(payload, id_, _body() if topic in (TOPIC, OTHER) else _old_body(id_, TOPIC))
        if topic is not None:
            pipe.hset(payload, f"{id_}:queue", topic)
        return id_

    # Entries of lists: nobody's, of one message twice, of one message in two topics.
    pipe.lpush(pending, f"nobody-{n}", b"\xff\xfe", "", "a:b", "x:queue")
    id_ = message("twice")
    pipe.zadd(monitor, {id_: "inf"})
    pipe.lpush(pending, id_, id_, id_)
    id_ = message("in-two-lists", OTHER)
    pipe.zadd(monitor, {id_: "inf"})
    pipe.lpush(pending, id_)
    pipe.lpush(keys.of_topic(OTHER, "pending"), id_)
    pipe.lpush(keys.of_topic(TOPIC, "wake"), "strange", b"\xff")

    # Leases: held by nobody, of nonsense, without a deadline, without a body.
    for k, lease in enumerate([b"1@1 normal inf nobody.1 run", *LEASES]):
        id_ = message(f"lease{k}")
        pipe.hset(processing, id_, lease)
        pipe.zadd(monitor, {id_: past})
        strangers.logged.append(id_)
        id_ = message(f"endless-lease{k}")
        pipe.hset(processing, id_, lease)
        strangers.found.append(id_.encode())
    for ghost in _names("leased", n):
        pipe.hset(processing, ghost, "1@1 normal inf nobody.1 run")
        strangers.found.append(ghost)

    # Delayed: with nonsense about their past, beside one that is in order.
    for k, keep in enumerate([b"1 high inf", *KEEPS]):
        id_ = message(f"keep{k}")
        pipe.hset(payload, f"{id_}:keep", keep)
        pipe.zadd(delays, {id_: past})

    # Bodies without a topic, and of one that cannot be: found by whoever looks for them.
    for k, topic in enumerate((None, b"", b"\xff\xfe", b"a:{b}*\x00", b"t" * 200)):
        id_ = message(f"topicless{k}", topic)
        pipe.zadd(monitor, {id_: past})
        strangers.logged.append(id_)
        strangers.found.append(id_.encode())
        id_ = message(f"topicless-delayed{k}", topic)
        strangers.found.append(id_.encode())
        if arena.run.short:  # it comes up when it has been repaired, and is not put off by a minute
            pipe.zadd(delays, {id_: now + 4000})
        else:
            pipe.zadd(delays, {id_: past})
            strangers.logged.append(id_)
            strangers.put_off.append(id_)
        id_ = message(f"topicless-nowhere{k}", topic)
        strangers.found.append(id_.encode())
        for place in ("nameless", "nameless-delayed", "nameless-nowhere"):
            id_ = f"odd-{n}-{place}{k}"
            strangers.nameless[id_] = _body()
            strangers.found.append(id_.encode())
            pipe.hset(payload, id_, strangers.nameless[id_])
            if topic is not None:
                pipe.hset(payload, f"{id_}:queue", topic)
            if place != "nameless-nowhere":
                pipe.zadd(monitor if place == "nameless" else delays, {id_: past})
                strangers.logged.append(id_)

    _ghosts(pipe, arena, strangers, n, past, future)
    _foreign_fields(pipe, arena, strangers, n)
    await pipe.execute()
    ledger.write("tried", *strangers.kept, *strangers.nameless)
    return strangers


def _ghosts(pipe: Any, arena: Arena, strangers: Strangers, n: int, past: float, future: float) -> None:
    """Deadlines, delays and deaths of messages that do not exist."""
    keys = arena.keys
    for part in ("all_expire_monitor", "delay_tasks", "dlq"):
        for ghost in _names(f"late-{part}", n):
            pipe.zadd(keys.of_queue(part), {ghost: past})
            if part == "dlq":
                strangers.found.append(ghost)
            elif part == "all_expire_monitor":
                strangers.logged.append(ghost.decode(errors="backslashreplace"))
        for ghost in _names(f"ghost-{part}", n):
            pipe.zadd(keys.of_queue(part), {ghost: future})
            strangers.found.append(ghost)
    pipe.zadd(keys.of_queue("done"), {b"\xff%d" % n: past, b"\xfe%d" % n: future})
    pipe.zadd(keys.of_queue("workers_seen"), {b"\xff%d" % n: future})


def _foreign_fields(pipe: Any, arena: Arena, strangers: Strangers, n: int) -> None:
    """Fields that are no message's, a whole message under an id that is none, and nonsense for people."""
    keys = arena.keys
    payload = keys.of_queue("payload")
    for part in ("payload", "dlq_payload"):
        for name in (
            b"field-%d" % n,
            b"a%d:b:c" % n,
            b"%d:" % n,
            b"\xff%d" % n,
            b"q%d:queue" % n,
            b"\xfe%d:x" % n,
        ):
            pipe.hset(keys.of_queue(part), part.encode() + name, b"\xff\xfenot a message")
            strangers.found.append(part.encode() + name.removesuffix(b":queue"))
    strangers.kept.append(f"dlq_payloadfield-{n}")
    for name in (b"whole-\xff\xfe%d" % n, b"whole lease \xff%d" % n):
        pipe.hset(payload, name, _body())
        pipe.hset(payload, name + b":queue", TOPIC)
        strangers.found.append(name)
    pipe.zadd(keys.of_queue("all_expire_monitor"), {b"whole-\xff\xfe%d" % n: "inf"})
    pipe.lpush(keys.of_topic(TOPIC, "pending"), b"whole-\xff\xfe%d" % n)
    pipe.hset(keys.of_topic(TOPIC, "processing"), b"whole lease \xff%d" % n, "1@1 normal inf \xff run")
    pipe.zadd(keys.of_queue("all_expire_monitor"), {b"whole lease \xff%d" % n: 1})
    pipe.sadd(keys.of_queue("topics"), b"\xff", "no:such", "")
    pipe.sadd(keys.of_queue("paused"), b"\xff")
    pipe.hset(keys.of_queue("counters"), mapping={"strange": "abc", b"\xff": "1", f"{TOPIC}:retried": "x"})
    pipe.hset(keys.of_queue("workers"), b"\xff%d" % n, b"\xff")


def _names(kind: str, n: int) -> list[bytes]:
    """An id that might be one, and two that cannot."""
    return [f"{kind}-{n}".encode(), f"{kind}-{n}".encode() + b"\xff\xfe", f"{kind} {n}:b:c".encode()]


def _body() -> bytes:
    return encode_message(Message(payload=encode_payload({}), created_at=time.time()))


def _old_body(id_: str, topic: str) -> bytes:
    """Of format 1, with id and topic in it."""
    said = {"v": 1, "id": id_, "topic": topic, "payload": {}, "created_at": time.time()}
    return json.dumps(said).encode()


async def _foreign_keys(arena: Arena) -> list[bytes]:
    return [key async for key in arena.redis.scan_iter() if not key.startswith(arena.keys.prefix.encode())]
