from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from mx_rmq.message import Death, Message, PastAttempt, encode_death, encode_message
from mx_rmq.payloads import encode_payload
from mx_rmq.storage.contract import NewMessage
from mx_rmq.storage.keys import Keys
from mx_rmq.storage.store import Store
from tests.harness import all_keys, command

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from tests.harness import Clock

ROOT = Path(__file__).parents[2]
DESIGN = ROOT / "docs" / "design.md"


async def reading(redis: Redis) -> str:
    """Every key of the queue as ``redis-cli`` would read it, bookkeeping with a lifetime left out."""
    lines = []
    for key in sorted(await all_keys(redis)):
        if ":counters" in key:
            continue
        kind = (await command(redis, "TYPE", key)).decode()
        read = {"hash": "HGETALL", "zset": "ZRANGE", "list": "LRANGE", "set": "SMEMBERS", "string": "GET"}[
            kind
        ]
        rest = {"zset": " 0 -1 WITHSCORES", "list": " 0 -1"}.get(kind, "")
        lines.append(f"> {read} {key}{rest}")
        reply = await command(redis, read, key, *rest.split())
        if isinstance(reply, dict):
            lines += [f"  {field.decode():<9} {value.decode()}" for field, value in sorted(reply.items())]
        elif kind == "zset":
            lines += [f"  {member.decode():<9} {score:.0f}" for member, score in reply]
        elif kind == "string":
            lines.append(f"  {reply.decode()}")
        else:
            lines += [f"  {member.decode()}" for member in sorted(reply)]
    return "\n".join(lines)


async def life(redis: Redis, clock: Clock) -> dict[str, str]:
    """One message produced, claimed, retried and dead: what the server holds after each step."""
    store, seen = Store(redis, Keys("shop"), now=clock), {}
    payload = encode_payload({"order_id": "A1", "amount": 9.9})
    message = Message(payload=payload, created_at=clock.us / 1e6, ttl=3600.0)
    await store.produce("orders", [NewMessage("A1", encode_message(message), ttl=3600.0)])
    seen["produce"] = await reading(redis)

    clock.advance(1)
    (delivery,) = (await store.claim("orders", 1, lease=15, holder="web1.4711")).deliveries
    seen["claim"] = await reading(redis)

    clock.advance(2)
    message.attempts = 1
    error = "TimeoutError: bank did not answer"
    message.remember(PastAttempt(at=clock.us / 1e6, worker="web1.4711", took=2.0, error=error))
    await store.retry("orders", [(delivery, 5, encode_message(message))])
    seen["retry"] = await reading(redis)

    clock.advance(5)
    await store.promote()
    (delivery,) = (await store.claim("orders", 1, lease=15, holder="web2.815")).deliveries
    death = Death(reason="failed", error=error, kind="TimeoutError")
    await store.move_to_dlq("orders", [(delivery, b"", encode_death(death))])
    seen["dead letter"] = await reading(redis)
    return seen


async def test_the_design_document_shows_the_keys_as_they_are(redis: Redis, clock: Clock) -> None:
    text = DESIGN.read_text(encoding="utf-8")
    for step, listing in (await life(redis, clock)).items():
        assert f"After **{step}**:\n\n```\n{listing}\n```" in text, (
            f"docs/design.md, after {step}:\n{listing}"
        )


def test_every_departure_names_a_test_that_exists() -> None:
    """Each line of the table ends with ``file::test``."""
    text = DESIGN.read_text(encoding="utf-8")
    rows = text.partition("## Where we depart")[2].partition("\n## ")[0].splitlines()
    named = [row for row in rows if row.startswith("| 0")]
    assert len(named) >= 10
    for row in named:
        found = re.search(r"`(tests/\S+\.py)::(\w+)`", row)
        assert found, f"no test in: {row}"
        assert f"def {found[2]}(" in (ROOT / found[1]).read_text(encoding="utf-8"), (
            f"{found[0]} does not exist"
        )
