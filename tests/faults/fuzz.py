"""Bodies and names that make no sense, through the front door and past it."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

from mx_rmq import MxRmqError
from mx_rmq.errors import InvalidPayload, UnreadableMessage
from mx_rmq.message import decode_message
from mx_rmq.payloads import encode_payload
from mx_rmq.storage.contract import NewMessage
from mx_rmq.storage.store import Store
from mx_rmq.worker.payload_types import PayloadType
from tests.faults.arena import Arena
from tests.faults.ledger import Ledger, ids
from tests.faults.noise import TOPICS, Noise
from tests.faults.run import Row, Run
from tests.harness import command

OTHER = "others"
LEASE = 1.5
AT_ONCE = 100
HANDLED = PayloadType(dict[str, Any])
"""What the handlers of the workers take."""


async def fuzz(run: Run) -> Row:
    """Most of it is produced as anybody may, a fifth is written as another client would write it."""
    total = run.size(50_000, 3_000)
    front, back = total * 4 // 5, total // 5
    others = run.size(5_000, 500)
    noise = Noise(run.dice)
    async with Arena.open(run) as arena:
        ledger = Ledger(arena.home / "ledgers")
        bodies = await _past_the_door(arena, ledger, noise, back)
        workers = [arena.worker({topic: {} for topic in (*TOPICS, OTHER)}, lease=LEASE) for _ in range(2)]
        producer = arena.producer("good", ({}, others), topic=OTHER, rate=run.size(200, 150))
        payloads, refused, ills = await _at_the_door(arena, ledger, noise, front)
        assert await producer.ended(120) == 0
        await arena.drained(within=120)
        ills += [f"worker {worker.pid} died" for worker in workers if not worker.alive]
        done = ids(arena.events(), "done")
        dead = await _dead(arena)
        ills += [ill for id_, payload in payloads.items() if (ill := _fate(id_, payload, done, dead))]
        ills += [ill for id_, body in bodies.items() if (ill := _fate_of_body(id_, body, done, dead))]
        foreign = [key async for key in arena.redis.scan_iter(count=1000)]
        foreign = [key for key in foreign if not key.startswith(arena.keys.prefix.encode())]
        ills += [f"the key {key!r}" for key in foreign]
        verdict = await arena.verdict()
    seen = [
        f"{sum(refused.values())} refused ({dict(refused)})",
        str(verdict),
        *(f"{n} x {ill}" for ill, n in Counter(ills).most_common(5)),
    ]
    return Row(
        fault="fuzzed bodies and names",
        messages=total + others,
        lost=len(verdict.lost),
        duplicates=verdict.duplicates,
        figure="refused by name, handled, or dead with its bytes; 0 worker deaths, 0 foreign keys",
        seen="; ".join(seen),
        ok=verdict.ok
        and not ills
        and sum(refused.values()) + len(payloads) == front
        and len(bodies) == back
        and verdict.acked == len(payloads) + len(bodies) + others
        and min(len(refused), len(payloads), len(dead)) > 0,
    )


async def _at_the_door(
    arena: Arena, ledger: Ledger, noise: Noise, count: int
) -> tuple[dict[str, Any], Counter[str], list[str]]:
    """Produce noise: what was stored by its id, what was refused, and what should not have happened."""
    stored: dict[str, Any] = {}
    refused: Counter[str] = Counter()
    ills: list[str] = []

    async def one(n: int) -> None:
        call, fine = noise.produce(n)
        try:
            receipt = await arena.queue.produce(**call)
        except MxRmqError as error:
            refused[type(error).__name__] += 1
            if fine:
                ills.append(f"refused, though in order: {error!s:.200}")
        except Exception as error:
            ills.append(f"{type(error).__name__} instead of a refusal: {error!s:.200}")
        else:
            stored[receipt] = call["payload"]
            ledger.write("tried", receipt)
            ledger.write("acked", receipt)

    for start in range(0, count, AT_ONCE):
        arena.run.tell(f"{start:,} of {count:,} produced")
        await asyncio.gather(*(one(n) for n in range(start, min(start + AT_ONCE, count))))
    return stored, refused, ills


async def _past_the_door(arena: Arena, ledger: Ledger, noise: Noise, count: int) -> dict[str, bytes]:
    """Store noise as another client would, and let the leases of some of it run out."""
    store = Store(arena.redis, arena.keys)
    bodies: dict[str, bytes] = {}
    for start in range(0, count, AT_ONCE):
        topic = TOPICS[start // AT_ONCE % len(TOPICS)]
        own = [f"b-{n}" for n in range(start, min(start + AT_ONCE, count))]
        chunk = [NewMessage(id_, noise.body(id_, topic)) for id_ in own]
        ledger.write("tried", *own)
        await store.produce(topic, chunk)
        ledger.write("acked", *own)
        await store.claim(topic, AT_ONCE // 3, lease=0.01, holder="nobody")
        bodies |= {message.id: message.body for message in chunk}
    return bodies


async def _dead(arena: Arena) -> dict[str, bytes]:
    fields = await command(arena.redis, "HGETALL", arena.keys.of_queue("dlq_payload"))
    return {name.decode(): value for name, value in fields.items()}


def _fate(id_: str, payload: Any, done: set[str], dead: dict[str, bytes]) -> str:
    """What went wrong with a payload that was accepted, if anything did."""
    if isinstance(payload, dict):
        return "" if id_ in done else f"{id_} was not handled: {dead.get(id_ + ':error')!r}"
    if id_ not in dead:
        return f"{id_} is not dead, though no handler takes it"
    kept = bytes(decode_message(dead[id_], id_, "").payload)
    return "" if kept == bytes(encode_payload(payload)) else f"the payload of {id_} was changed"


def _fate_of_body(id_: str, body: bytes, done: set[str], dead: dict[str, bytes]) -> str:
    """What went wrong with a body that somebody stored, if anything did."""
    if id_ in done:
        return "" if _is_fit(body) else f"{id_} was handled, though nobody can read it"
    if id_ not in dead:
        return f"{id_} is neither done nor dead"
    try:
        before = bytes(decode_message(body, "", "").payload)
    except UnreadableMessage:
        return "" if dead[id_] == body else f"the bytes of {id_} were changed"
    after = bytes(decode_message(dead[id_], id_, "").payload)
    return "" if after == before else f"the payload of {id_} was changed"


def _is_fit(body: bytes) -> bool:
    try:
        HANDLED.decode(decode_message(body, "", "").payload)
    except (UnreadableMessage, InvalidPayload):
        return False
    return True
