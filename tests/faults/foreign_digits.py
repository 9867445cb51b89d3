"""Another program writes numbers that are too long to be any, where a message's expiry or count is kept."""

from __future__ import annotations

import asyncio
from typing import Any

from mx_rmq import RedisMessageQueue
from mx_rmq.storage.contract import Delivery, Settled
from mx_rmq.storage.store import Store
from tests.faults.arena import TOPIC, Arena
from tests.faults.programs import QUEUE
from tests.faults.run import Row, Run

DELAYED = 1000
HELD = 100
"""Messages in one call that releases or retries them, and in the hands of a worker that vanished."""
DELAY = 1.0
LEASE = 1.0
DIGITS = "9" * 400


async def foreign_digits(run: Run) -> Row:
    """Delayed, released, retried and timed out messages; one of each has 400 digits where a time belongs."""
    rounds = run.size(10, 1)
    ills: list[str] = []
    named = 0
    async with (
        Arena.open(run) as arena,
        RedisMessageQueue(arena.url, name=QUEUE, server_check="off") as operator,
    ):
        store = Store(arena.redis, arena.keys)
        for n in range(rounds):
            run.tell(f"round {n + 1} of {rounds}")
            ills += await _leave(arena, store, n)
            reports = await operator.audit()
            named += sum(f.kind == "strange-keep" for report in reports for f in report.findings)
            worker = arena.worker(lease=LEASE)
            await arena.drained(within=60)
            worker.kill()
            found = [f for report in await operator.audit(repair=True) for f in report.findings]
            ills += [f"round {n}: {f.kind} {f.what} after the drain" for f in found]
        verdict = await arena.verdict()
    if named != 2 * rounds:
        ills.append(f"the audit named {named} of {2 * rounds} spoilt delays")
    messages = rounds * (DELAYED + 3 * HELD)
    return Row(
        fault="400 digits for an expiry or a count, in one of 1,000 delayed messages and one of every lease",
        runs=rounds,
        messages=verdict.acked,
        lost=len(verdict.lost),
        duplicates=verdict.duplicates,
        figure="the audit names it, nothing is stranded, every message runs once",
        seen="; ".join([str(verdict), *ills]),
        ok=verdict.ok and verdict.acked == messages and verdict.duplicates == 0 and not ills,
    )


async def _leave(arena: Arena, store: Store, n: int) -> list[str]:
    """Messages for the workers to come, with one in every crowd that another program has spoilt."""
    processing = arena.keys.of_topic(TOPIC, "processing")
    ills = []
    for verb in ("retry", "release", "lapse"):
        await _produce(arena, [f"{verb}-{n}-{k}" for k in range(HELD)])
        # What was released is pending again, and stands before these.
        held = (await store.claim(TOPIC, 2 * HELD, lease=LEASE / 10, holder="elsewhere")).deliveries
        mine = [delivery for delivery in held if delivery.id.startswith(verb)]
        spoilt = mine[HELD // 2]
        await arena.redis.hset(processing, spoilt.id, f"{spoilt.token} normal {DIGITS} elsewhere run")
        if verb == "lapse":
            await store.release(TOPIC, [delivery for delivery in held if delivery not in mine])
            continue
        try:
            settled = await _settle(store, verb, mine)
        except Exception as error:
            ills.append(f"round {n}: {verb} said {error}")
        else:
            ills += [f"round {n}: {verb} {status!r}" for status in set(settled) - {Settled.DONE}]
    ids = [f"delayed-{n}-{k}" for k in range(DELAYED)]
    await _produce(arena, ids, delay=DELAY)
    payload = arena.keys.of_queue("payload")
    await arena.redis.hset(payload, f"{ids[DELAYED // 2]}:keep", f"0 normal {DIGITS}")
    await arena.redis.hset(payload, f"{ids[DELAYED // 3]}:keep", f"{DIGITS} normal inf")
    return ills


async def _settle(store: Store, verb: str, held: list[Delivery]) -> list[Settled]:
    if verb == "release":
        return await store.release(TOPIC, held)
    return await store.retry(TOPIC, [(delivery, DELAY, delivery.body) for delivery in held])


async def _produce(arena: Arena, ids: list[str], **options: Any) -> None:
    arena.ledger.write("tried", *ids)
    await asyncio.gather(*(arena.queue.produce(TOPIC, {}, message_id=id_, **options) for id_ in ids))
    arena.ledger.write("acked", *ids)
