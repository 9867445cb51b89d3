"""Everything that an operator's calls return prints as a table and becomes JSON."""

from __future__ import annotations

import json
from base64 import b64decode
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from mx_rmq import (
    AuditReport,
    Counts,
    DeadLetter,
    Finding,
    MessageFacts,
    MessagePage,
    Page,
    RedisMessageQueue,
    TopicCounts,
    WorkerFacts,
    Workers,
)
from mx_rmq.message import Death
from mx_rmq.storage.facts import Load
from tests.harness import command
from tests.words import PREFIX, bury, claim, message, put_bytes, store_of

if TYPE_CHECKING:
    from redis.asyncio import Redis

FACTS = b'{"topics":["t","u"],"concurrency":4,"pid":7,"started_at":1763230000.5,"load":{"t":[1,2]}}'
DEATH = Death(
    reason="failed", error="ValueError: no\nsecond line", kind="ValueError", place="shop.py:31 in f"
)


def as_json(facts: Any) -> Any:
    """What another program gets."""
    return json.loads(json.dumps(facts.as_dict(), allow_nan=False))


def lines(facts: Any) -> list[str]:
    """What is printed; every line is printable."""
    found = str(facts).splitlines()
    assert all(line.isprintable() for line in found)
    return found


def recent(text: str) -> bool:
    """Whether an ISO text is an instant of this test."""
    return abs(datetime.fromisoformat(text) - datetime.now(UTC)) < timedelta(minutes=1)


async def test_counts(queue: RedisMessageQueue, redis: Redis) -> None:
    assert lines(await queue.counts()) == ["no topic"]
    await queue.produce_many("t", range(3))
    await queue.produce("orders", 1, delay=60)
    await claim(redis, limit=1)
    await queue.pause("t")
    counts = await queue.counts()
    header, orders, t, everything = (line.split("  ") for line in lines(counts))
    assert [cell.strip() for cell in header if cell.strip()] == [
        *("topic", "pending", "running", "held", "delayed", "dead", "oldest", "paused"),
        *("produced", "completed", "retried", "recovered"),
    ]
    assert [cell.strip() for cell in orders if cell.strip()][:5] == ["orders", "0", "0", "0", "1"]
    assert [cell.strip() for cell in t if cell.strip()][5:8] == ["0", "now", "yes"]
    assert [cell.strip() for cell in everything if cell.strip()][:5] == ["all", "2", "1", "0", "1"]
    assert len({len(line) for line in lines(counts)}) == 1
    found = as_json(counts)
    assert (found["pending"], found["running"], found["delayed"], found["dead"]) == (2, 1, 1, 0)
    assert found["topics"]["t"]["paused"] is True
    assert recent(found["topics"]["t"]["oldest_at"])
    assert recent(found["read_at"])
    assert lines(counts.topics["t"])[1].split()[:2] == ["2", "1"]


async def test_workers(queue: RedisMessageQueue, redis: Redis) -> None:
    assert lines(await queue.workers()) == ["no live worker"]
    assert as_json(await queue.workers())["workers"] == []
    for name in ("b", "a"):
        await store_of(redis).register_worker(name, FACTS, silence=30)
    workers = await queue.workers()
    header, first, second = lines(workers)
    assert header.split()[:3] == ["worker", "running", "held"]
    assert first.split()[:5] == ["a", "1", "2", "4", "7"]
    assert second.endswith("t, u")
    found = as_json(workers)["workers"][0]
    assert (found["name"], found["running"], found["held"], found["topics"]) == ("a", 1, 2, ["t", "u"])
    assert found["load"] == {"t": {"running": 1, "held": 2}}
    assert found["started_at"] == "2025-11-15T18:06:40.500+00:00"
    assert lines(workers[0])[0] == "worker   a"


async def test_what_is_known_of_a_message(queue: RedisMessageQueue, redis: Redis) -> None:
    await queue.produce("t", {"a": [1, "x"]}, message_id="A1", headers={"h": "v"}, ttl=None)
    found = as_json(await queue.find("A1"))
    assert (found["state"], found["payload"], found["headers"]) == ("pending", {"a": [1, "x"]}, {"h": "v"})
    assert (found["expires_at"], found["due_at"]) == (None, None)
    assert recent(found["created_at"])
    printed = dict(line.split(None, 1) for line in lines(await queue.find("A1")))
    assert (printed["state"], printed["payload"]) == ("pending", '{"a":[1,"x"]}')
    gone = await queue.find("never")
    assert lines(gone) == ["message  never", "state    gone"]
    assert as_json(gone)["payload"] is None


async def test_pages_of_messages(queue: RedisMessageQueue, redis: Redis) -> None:
    assert lines(await queue.list("t")) == ["no message"]
    await queue.produce_many("t", range(3), delay=7200)
    page = await queue.list("t", state="delayed", limit=2)
    header, first, _, more = lines(page)
    assert header.split() == ["message", "state", "produced", "due", "attempts"]
    assert first.split()[1:] == ["delayed", "now", "in", "1h", "0"]
    assert more == f"… more with after={page.next!r}"
    found = as_json(page)
    assert [each["payload"] for each in found["messages"]] == [0, 1]
    assert found["next"] == page.next
    await queue.produce("u", 1, message_id="A1")
    await claim(redis, "u")
    (_, row) = lines(await queue.list("u", state="running"))
    assert "w1" in row


async def test_dead_messages(queue: RedisMessageQueue, redis: Redis) -> None:
    assert lines(await queue.dlq.list()) == ["no dead message"]
    await queue.produce("t", {"n": 1}, message_id="A1")
    await bury(redis, DEATH)
    page = await queue.dlq.list()
    header, row = lines(page)
    assert header.split() == ["message", "topic", "died", "reason", "place", "error"]
    assert row.split("  ")[0].strip() == "A1"
    assert row.endswith("failed  shop.py:31 in f  ValueError: no second line")
    (found,) = as_json(page)["letters"]
    assert (found["payload"], found["place"], found["kind"]) == ({"n": 1}, "shop.py:31 in f", "ValueError")
    assert recent(found["died_at"])
    assert [each["error"] for each in found["history"]] == ["ValueError: no\nsecond line"]
    assert json.loads(found["body"])["payload"] == {"n": 1}
    (letter,) = page.letters
    assert lines(letter)[:2] == ["message     A1", "state       dead"]


async def test_messages_that_cannot_be_read(queue: RedisMessageQueue, redis: Redis) -> None:
    await put_bytes(redis, "bad", b"\xff\x1b[31m")
    assert as_json(await queue.list("t"))["messages"][0]["payload"] is None
    lines(await queue.list("t"))
    (delivery,) = await claim(redis)
    await store_of(redis).move_to_dlq("t", [(delivery, b"", b"\xfe why \x1b")])
    await command(redis, "ZADD", PREFIX + "dlq", 1e300, "bad")
    (found,) = as_json(await queue.dlq.list())["letters"]
    assert (b64decode(found["body_base64"]), found["died_at"]) == (b"\xff\x1b[31m", None)
    assert (found["payload"], "body" in found) == (None, False)
    lines(await queue.dlq.list())
    lines((await queue.dlq.list()).letters[0])


async def test_reports_of_the_audit(queue: RedisMessageQueue, redis: Redis) -> None:
    await queue.produce("t", 1, message_id="A1")
    (report,) = await queue.audit()
    assert lines(report) == ["clean: 1 pending, 0 processing, 0 delayed, 0 dead"]
    assert as_json(report)["clean"] is True
    await redis.delete(f"{PREFIX}t:pending")
    (report,) = await queue.audit()
    first, header, row = lines(report)
    assert first == "1 finding: 1 pending, 0 processing, 0 delayed, 0 dead"
    assert header.split() == ["problem", "what", "topic", "repaired", "detail"]
    assert row.split()[:4] == ["body-in-no-place", "A1", "t", "no"]
    assert as_json(report)["findings"] == [
        {"kind": "body-in-no-place", "what": "A1", "topic": "t", "repaired": False, "detail": ""}
    ]


def test_every_type_can_be_printed_and_written_without_a_queue() -> None:
    facts = MessageFacts("A1", "running", "t", message({"a": 1}), expires_at=float("inf"))
    letter = DeadLetter("A1", "t", 1763230000.0, "failed", "no", "ValueError", b"")
    worker = WorkerFacts("w", 1763230000.0, ("t",), load={"t": Load(1, 2)})
    everything: list[Any] = [
        *(facts, letter, worker, TopicCounts(), Counts({"t": TopicCounts(oldest_at=5.0)}), Load(1, 2)),
        *(MessagePage([facts], "x"), Page([letter], "0.1"), Workers([worker]), Workers()),
        *(AuditReport(), AuditReport(findings=[Finding("kind", "what")], counters_checked=False)),
        Finding("kind", "what"),
    ]
    for each in everything:
        assert as_json(each)
        assert str(each)
