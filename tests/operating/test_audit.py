from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from mx_rmq.message import Death, Message, encode_death, encode_message
from mx_rmq.operating.audit import audit
from mx_rmq.payloads import encode_payload
from mx_rmq.producing.ids import new_id
from mx_rmq.receipt import Stored
from mx_rmq.storage.contract import NewMessage
from tests.harness import command as send
from tests.harness import read_state

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from mx_rmq.storage.contract import Delivery
    from mx_rmq.storage.store import Store
    from tests.harness import Clock

PREFIX = "mx-rmq:{q}:"


def message(id_: str, topic: str = "orders", delay: float = 0.0) -> NewMessage:
    stored = Message(payload=encode_payload({"n": 1}), created_at=0.0)
    return NewMessage(id_, encode_message(stored), ttl=3600, delay=delay)


async def a_full_queue(store: Store) -> dict[str, Delivery]:
    """Topic ``orders``: p1 p2 pending, r1 r2 running, d1 d2 delayed, x1 x2 dead."""
    await store.produce("orders", [message(id_) for id_ in ("x1", "x2", "r1", "r2", "p1", "p2")])
    await store.produce_delayed("orders", [message(id_, delay=60) for id_ in ("d1", "d2")])
    claim = await store.claim("orders", 4, lease=15, holder="w1")
    deliveries = {delivery.id: delivery for delivery in claim.deliveries}
    error = encode_death(Death(reason="failed"))
    await store.move_to_dlq("orders", [(deliveries["x1"], b"", error), (deliveries["x2"], b"", error)])
    return deliveries


async def drain(store: Store, clock: Clock, topics: tuple[str, ...] = ("orders",)) -> set[str]:
    """Run everything there is, whatever it waits for; returns the ids that ran."""
    done = set()
    for _ in range(3):
        clock.advance(3000)
        await store.promote()
        overdue = await store.take_over(1000, lease=15, holder="m1")
        for taken in overdue.taken:
            await store.retry(taken.delivery.topic, [(taken.delivery, 0, taken.delivery.body)])
        await store.promote()
        for topic in topics:
            while (claim := await store.claim(topic, 100, lease=15, holder="w2")).deliveries:
                await store.complete(topic, [(delivery, 0) for delivery in claim.deliveries])
                done |= {delivery.id for delivery in claim.deliveries}
    return done


async def test_a_healthy_queue_is_clean_and_counted(store: Store) -> None:
    await a_full_queue(store)
    report = await audit(store)
    assert report.clean
    assert report.counters_checked
    assert report.places == {"pending": 2, "processing": 2, "delayed": 2, "dead": 2}
    assert report.live == 6
    assert report.stale_hints == 0


async def test_an_empty_queue_is_clean(store: Store) -> None:
    report = await audit(store, repair=True)
    assert report.clean
    assert not report.places


async def test_the_audit_alone_changes_nothing(store: Store, redis: Redis) -> None:
    await a_full_queue(store)
    await redis.hdel(PREFIX + "payload", "p1:queue", "r1", "d2")
    before = await read_state(redis, tools=True)
    assert not (await audit(store)).clean
    assert await read_state(redis, tools=True) == before


CORRUPTIONS: dict[str, tuple[tuple[str, ...], set[str], set[str]]] = {
    # what someone did to the server: (command, findings, messages whose body is gone for good)
    "a list lost its entries": (("DEL", PREFIX + "orders:pending"), {"body-in-no-place"}, set()),
    "leases vanished": (("DEL", PREFIX + "orders:processing"), {"body-in-no-place"}, set()),
    "delays vanished": (("DEL", PREFIX + "delay_tasks"), {"body-in-no-place"}, set()),
    "deadlines vanished": (
        ("DEL", PREFIX + "all_expire_monitor"),
        {"body-in-no-place", "lease-without-deadline"},
        set(),
    ),
    "one deadline vanished": (
        ("ZREM", PREFIX + "all_expire_monitor", "r1"),
        {"lease-without-deadline"},
        set(),
    ),
    "a running body vanished": (
        ("HDEL", PREFIX + "payload", "r1"),
        {"lease-without-body", "deadline-without-body", "fields-without-body", "counters-disagree"},
        {"r1"},
    ),
    "a running body and its topic vanished": (
        ("HDEL", PREFIX + "payload", "r1", "r1:queue"),
        {"lease-in-wrong-topic", "deadline-without-body", "counters-disagree"},
        {"r1"},
    ),
    "a delayed body vanished": (
        ("HDEL", PREFIX + "payload", "d1"),
        {"delay-without-body", "fields-without-body", "counters-disagree"},
        {"d1"},
    ),
    "a pending body vanished": (
        ("HDEL", PREFIX + "payload", "p1"),
        {"deadline-without-body", "fields-without-body", "counters-disagree"},
        {"p1"},
    ),
    "a topic vanished": (("HDEL", PREFIX + "payload", "p1:queue"), {"body-without-topic"}, set()),
    "a running topic vanished": (("HDEL", PREFIX + "payload", "r1:queue"), {"body-without-topic"}, set()),
    "a deadline without message": (
        ("ZADD", PREFIX + "all_expire_monitor", "1", "ghost"),
        {"deadline-without-body"},
        set(),
    ),
    "a lease without message": (
        ("HSET", PREFIX + "orders:processing", "ghost", "1@1 normal inf w run"),
        {"lease-in-wrong-topic"},
        set(),
    ),
    "a lease in another topic": (
        ("HSET", PREFIX + "mails:processing", "p1", "1@1 normal inf w run"),
        {"lease-in-wrong-topic"},
        set(),
    ),
    "leased and delayed": (("ZADD", PREFIX + "delay_tasks", "5", "r1"), {"leased-and-delayed"}, set()),
    "delayed with a deadline": (
        ("ZADD", PREFIX + "all_expire_monitor", "inf", "d1"),
        {"delayed-with-deadline"},
        set(),
    ),
    "the dead lost their list": (("DEL", PREFIX + "dlq"), {"dead-but-unlisted"}, set()),
    "a dead topic vanished": (("HDEL", PREFIX + "dlq_payload", "x1:queue"), {"dead-without-topic"}, set()),
    "a dead body vanished": (
        ("HDEL", PREFIX + "dlq_payload", "x1"),
        {"dead-without-body", "counters-disagree"},
        set(),
    ),
    "live and dead": (
        ("HSET", PREFIX + "dlq_payload", "p1", "{}"),
        {"live-and-dead", "counters-disagree"},
        set(),
    ),
    "a foreign type in a topic": (
        ("SET", PREFIX + "orders:processing", "x"),
        {"wrong-type", "body-in-no-place"},
        set(),
    ),
    "a foreign type in the queue": (
        ("SET", PREFIX + "delay_tasks", "x"),
        {"wrong-type", "body-in-no-place"},
        set(),
    ),
    "counters were set back": (
        ("HSET", PREFIX + "counters", "orders:produced", "0"),
        {"counters-disagree"},
        set(),
    ),
}


@pytest.mark.parametrize(("command", "findings", "gone"), CORRUPTIONS.values(), ids=CORRUPTIONS)
async def test_whatever_is_stray_is_named_and_mended(
    store: Store,
    redis: Redis,
    clock: Clock,
    command: tuple[str, ...],
    findings: set[str],
    gone: set[str],
) -> None:
    """One repair is enough, and every message whose body is still there runs afterwards."""
    await a_full_queue(store)
    await send(redis, *command)

    report = await audit(store, repair=True)
    assert {finding.kind for finding in report.findings} == findings
    assert all(finding.repaired for finding in report.findings)

    again = await audit(store)
    assert again.findings == []
    assert await drain(store, clock) == {"p1", "p2", "r1", "r2", "d1", "d2"} - gone
    assert (await audit(store)).live == 0


async def test_a_healthy_owner_keeps_its_lease_through_a_repair(store: Store, redis: Redis) -> None:
    """A lease without deadline gets a new one; its holder still completes."""
    running = await a_full_queue(store)
    await redis.zrem(PREFIX + "all_expire_monitor", "r1")
    await audit(store, repair=True)
    assert await store.complete("orders", [(running["r1"], 0)]) == [1]


async def test_a_body_of_unknown_topic_and_form_is_kept(store: Store, redis: Redis) -> None:
    """Bytes nobody can read still become a message one can look at, in the topic ``unknown``."""
    await redis.hset(PREFIX + "payload", "odd", b"\xff\xfe not json")
    report = await audit(store, repair=True)
    assert {f.kind for f in report.findings} == {
        "body-without-topic",
        "body-in-no-place",
        "counters-disagree",
    }
    claim = await store.claim("unknown", 10, lease=15, holder="w1")
    assert [(d.id, d.body) for d in claim.deliveries] == [("odd", b"\xff\xfe not json")]


async def test_the_dead_copy_of_a_live_message_gets_a_name_of_its_own(store: Store, redis: Redis) -> None:
    await a_full_queue(store)
    await redis.hset(PREFIX + "dlq_payload", mapping={"p1": "{}", "p1:queue": "orders"})
    await redis.zadd(PREFIX + "dlq", {"p1": 7})
    await audit(store, repair=True)
    state = await read_state(redis)
    assert state["dlq"]["p1.dead"] == 7
    assert state["dlq_payload"]["p1.dead"] == "{}"
    assert "p1" not in state["dlq"]


async def test_entries_that_no_claim_would_deliver_are_counted_but_no_fault(
    store: Store, redis: Redis
) -> None:
    """Cancelled messages and ids that are used again leave hints behind; a claim drops them."""
    await store.produce("orders", [message(f"m{n}") for n in range(5)])
    await store.cancel(["m1", "m2"])
    await store.produce("orders", [message("m1")])
    report = await audit(store)
    assert report.clean
    assert report.stale_hints == 2
    claim = await store.claim("orders", 10, lease=15, holder="w1")
    assert [delivery.id for delivery in claim.deliveries] == ["m0", "m1", "m3", "m4"]
    assert (await audit(store)).stale_hints == 0


async def test_hints_that_another_program_left_are_counted_by_a_repair(store: Store, redis: Redis) -> None:
    await store.produce("orders", [message(f"m{n}") for n in range(5)])
    await store.cancel(["m2"])
    await redis.lpush(PREFIX + "orders:pending", "m1", "nobody")
    await redis.hset(PREFIX + "counters", "mails:stale", "7")
    assert await redis.hget(PREFIX + "counters", "orders:stale") == b"1"
    for repair in (False, True):
        findings = (await audit(store, repair=repair)).findings
        assert [(each.kind, each.what) for each in findings] == [
            ("counters-disagree", "mails:stale"),
            ("counters-disagree", "orders:stale"),
        ]
    assert (await audit(store)).clean
    assert await redis.hget(PREFIX + "counters", "orders:stale") == b"3"


@pytest.mark.parametrize("value", [b"9" * 5000, b"\xff", b"-", b""])
async def test_a_counter_of_nonsense_does_not_stop_it(store: Store, redis: Redis, value: bytes) -> None:
    await store.produce("orders", [message("m1")])
    await redis.hset(PREFIX + "counters", mapping={"orders:stale": value, "orders:retried": value})
    assert (await audit(store)).clean


async def test_a_list_that_grows_during_the_audit_makes_no_finding(store: Store, redis: Redis) -> None:
    """A claim between two looks changes no counter, but the lists."""
    await store.produce("orders", [message(f"m{n}") for n in range(5)])
    commands = store.commands

    class Claiming:
        async def execute_command(self, *args: Any) -> Any:
            reply = await commands.execute_command(*args)
            if args[0] == "LRANGE" and reply:
                store.commands = commands
                await store.claim("orders", 1, lease=15, holder="w1")
            return reply

    store.commands = Claiming()
    report = await audit(store)
    assert report.clean
    assert not report.counters_checked


async def test_a_wrong_type_is_named_with_its_key_and_set_aside_not_deleted(
    store: Store, redis: Redis
) -> None:
    await a_full_queue(store)
    await redis.set(PREFIX + "mails:pending", "precious")
    (finding,) = (await audit(store)).findings
    assert finding.what == PREFIX + "mails:pending"
    assert finding.detail == "is a string, not a list"
    await audit(store, repair=True)
    aside = await redis.keys(PREFIX + "mails:pending:foreign:*")
    assert [await redis.get(key) for key in aside] == [b"precious"]


async def test_more_than_a_chunk_of_everything_is_read_once(store: Store, clock: Clock) -> None:
    for start in range(0, 3000, 1000):
        await store.produce("orders", [message(f"p{n}") for n in range(start, start + 1000)])
        await store.produce_delayed("orders", [message(f"d{n}", delay=9) for n in range(start, start + 1000)])
    await store.claim("orders", 1000, lease=15, holder="w1")
    report = await audit(store)
    assert report.clean
    assert report.places == {"pending": 2000, "processing": 1000, "delayed": 3000}
    assert len(await drain(store, clock)) > 0


async def test_traffic_during_the_audit_raises_no_false_alarm(store: Store) -> None:
    """Messages that move while it reads are never called stray."""
    stop = asyncio.Event()

    async def traffic() -> None:
        while not stop.is_set():
            fresh = [message(new_id(), topic="mails") for _ in range(20)]
            assert set(await store.produce("mails", fresh)) == {Stored.STORED}
            claim = await store.claim("mails", 15, lease=15, holder="w1")
            half = claim.deliveries[:5]
            await store.release("mails", half)
            await store.retry("mails", [(d, 0, d.body) for d in claim.deliveries[5:8]])
            await store.complete("mails", [(d, 0) for d in claim.deliveries[8:]])
            await store.promote()

    await store.produce("mails", [message(new_id(), topic="mails") for _ in range(1000)])
    moving = asyncio.create_task(traffic())
    reports = [await audit(store) for _ in range(10)]
    stop.set()
    await moving
    assert [report.findings for report in reports] == [[]] * 10
    assert not all(report.counters_checked for report in reports)
    final = await audit(store)
    assert final.clean
    assert final.counters_checked


async def test_an_audit_returns_what_it_found_when_its_time_is_over(store: Store) -> None:
    for start in range(0, 20_000, 1000):
        await store.produce("orders", [message(f"p{n}") for n in range(start, start + 1000)])
    report = await audit(store, within=0.01)
    assert not report.finished
    assert not report.counters_checked
    assert report.places.total() < 20_000
    assert "the time was over before everything was looked at" in str(report)
    whole = await audit(store, within=60)
    assert whole.finished
    assert whole.places["pending"] == 20_000
