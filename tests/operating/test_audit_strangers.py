"""The audit among things that somebody else wrote."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from mx_rmq.message import Death, Message, encode_death, encode_message
from mx_rmq.operating.audit import audit
from mx_rmq.payloads import encode_payload
from mx_rmq.storage.contract import NewMessage
from mx_rmq.storage.queries import Queries
from tests.harness import command as send

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from mx_rmq.storage.store import Store
    from tests.harness import Clock

PREFIX = "mx-rmq:{q}:"
BODY = encode_message(Message(payload=encode_payload({}), created_at=0.0))
OLD_BODY = b'{"v":1,"id":"m1","topic":"orders","payload":{},"created_at":0.0}'
"""Of format 1, which names the topic."""


@pytest.mark.parametrize("part", ["payload", "dlq_payload"])
@pytest.mark.parametrize("name", [b"\xff\xfe", b"\xff:queue", b"a:b:c", b"a:", b"a b", b"x" * 200])
async def test_a_field_that_is_no_messages_is_named_and_set_aside(
    store: Store, redis: Redis, part: str, name: bytes
) -> None:
    await send(redis, "HSET", PREFIX + part, name, b"precious")
    (finding,) = (await audit(store)).findings
    assert (finding.kind, finding.what) == ("foreign-field", name.decode(errors="backslashreplace"))
    assert await redis.hget(PREFIX + part, name) == b"precious"

    await audit(store, repair=True)
    assert (await audit(store)).clean
    assert await redis.hgetall(f"{PREFIX}{part}:foreign") == {name: b"precious"}
    assert not await redis.exists(PREFIX + part)


@pytest.mark.parametrize("part", ["all_expire_monitor", "delay_tasks", "dlq"])
async def test_a_member_that_is_no_text_is_named_and_removed(store: Store, redis: Redis, part: str) -> None:
    await redis.zadd(PREFIX + part, {b"\xff\xfe": 7})
    (finding,) = (await audit(store, repair=True)).findings
    assert finding.what == "\\xff\\xfe"
    assert (await audit(store)).clean
    assert not await redis.exists(PREFIX + part)


async def test_a_lease_whose_id_is_no_text_is_removed(store: Store, redis: Redis) -> None:
    await redis.hset(PREFIX + "orders:processing", b"\xff", "1@1 normal inf w1 run")
    (finding,) = (await audit(store, repair=True)).findings
    assert finding.what == "\\xff"
    assert (await audit(store)).clean


async def test_a_key_whose_name_is_no_text_does_not_stop_it(store: Store, redis: Redis) -> None:
    await redis.lpush(PREFIX.encode() + b"\xff:pending", "m1")
    assert (await audit(store)).clean


without_a_topic = pytest.mark.parametrize("topic", [None, b"", b"\xff", b"a:{b}*", b"t" * 129])


async def spoil_topic(redis: Redis, part: str, topic: bytes | None) -> None:
    await redis.hdel(PREFIX + part, "m1:queue")
    if topic is not None:
        await redis.hset(PREFIX + part, "m1:queue", topic)


@without_a_topic
@pytest.mark.parametrize(("body", "kept_in"), [(OLD_BODY, "orders"), (BODY, "unknown")])
async def test_one_repair_is_enough_for_a_body_without_a_topic(
    store: Store, redis: Redis, topic: bytes | None, body: bytes, kept_in: str
) -> None:
    """Even if it has a deadline, by which it looks as if it were pending."""
    await redis.hset(PREFIX + "payload", "m1", body)
    await spoil_topic(redis, "payload", topic)
    await redis.zadd(PREFIX + "all_expire_monitor", {"m1": "inf"})
    findings = {finding.kind: finding for finding in (await audit(store, repair=True)).findings}
    assert findings.keys() == {"body-without-topic", "body-in-no-place", "counters-disagree"}
    lost = findings["body-without-topic"]
    assert (lost.what, lost.topic) == ("m1", kept_in)
    assert ("produce its payload again where it belongs" in lost.detail) == (kept_in == "unknown")
    assert (await audit(store)).clean
    assert await Queries(store).topics() == [kept_in]
    claim = await store.claim(kept_in, 10, lease=15, holder="w1")
    assert [(delivery.id, delivery.body) for delivery in claim.deliveries] == [("m1", body)]


@without_a_topic
async def test_a_pending_message_goes_back_to_the_topic_that_lists_it(
    store: Store, redis: Redis, topic: bytes | None
) -> None:
    await store.produce("mails", [NewMessage("m2", BODY)])
    await store.produce("orders", [NewMessage("m1", BODY)])
    await spoil_topic(redis, "payload", topic)
    (finding,) = (await audit(store, repair=True)).findings
    assert (finding.kind, finding.topic, finding.detail) == ("body-without-topic", "orders", "")
    assert (await audit(store)).clean
    claim = await store.claim("orders", 10, lease=15, holder="w1")
    assert [(delivery.id, delivery.body) for delivery in claim.deliveries] == [("m1", BODY)]


async def test_a_message_that_two_topics_list_is_given_to_neither(store: Store, redis: Redis) -> None:
    """One of the entries is left over from an earlier message; the wrong handler must not get this one."""
    await store.produce("orders", [NewMessage("m1", BODY)])
    await redis.lpush(PREFIX + "mails:pending", "m1")
    await spoil_topic(redis, "payload", None)
    await audit(store, repair=True)
    assert (await audit(store)).clean
    assert await redis.hget(PREFIX + "payload", "m1:queue") == b"unknown"
    for name in ("orders", "mails"):
        assert (await store.claim(name, 10, lease=15, holder="w1")).deliveries == []
    claim = await store.claim("unknown", 10, lease=15, holder="w1")
    assert [(delivery.id, delivery.body) for delivery in claim.deliveries] == [("m1", BODY)]


@without_a_topic
async def test_a_leased_message_stays_with_its_owner(store: Store, redis: Redis, topic: bytes | None) -> None:
    """Whatever lists still have its id."""
    await store.produce("orders", [NewMessage("m1", BODY)])
    (delivery,) = (await store.claim("orders", 1, lease=15, holder="w1")).deliveries
    await redis.lpush(PREFIX + "mails:pending", "m1")
    await spoil_topic(redis, "payload", topic)
    findings = (await audit(store, repair=True)).findings
    assert ("body-without-topic", "orders") in {(each.kind, each.topic) for each in findings}
    assert (await audit(store)).clean
    assert await store.complete("orders", [(delivery, 0)]) == [1]


async def test_a_delayed_message_whose_topic_is_lost_is_kept_as_it_is(
    store: Store, redis: Redis, clock: Clock
) -> None:
    """Nothing else names its topic: an operator finds it, and its bytes, in the topic ``unknown``."""
    await store.produce_delayed("orders", [NewMessage("m1", BODY, lane="high", delay=60)])
    await spoil_topic(redis, "payload", None)
    findings = (await audit(store, repair=True)).findings
    assert findings[0].topic == "unknown"
    assert "produce its payload again where it belongs" in findings[0].detail
    assert (await audit(store)).clean
    clock.advance(60)
    assert (await store.promote()).promoted == ["m1"]
    claim = await store.claim("unknown", 10, lease=15, holder="w1")
    assert [(delivery.id, delivery.body) for delivery in claim.deliveries] == [("m1", BODY)]


@pytest.mark.parametrize(
    ("group", "body", "kept_in"),
    [("named", BODY, "orders"), ("lost", BODY, "unknown"), ("lost", OLD_BODY, "orders")],
)
async def test_a_dead_message_goes_back_to_the_topic_of_its_group(
    store: Store, redis: Redis, group: str, body: bytes, kept_in: str
) -> None:
    await store.produce("orders", [NewMessage("m1", body)])
    claim = await store.claim("orders", 1, lease=15, holder="w1")
    await store.move_to_dlq("orders", [(claim.deliveries[0], b"", encode_death(Death(reason="failed")))])
    await spoil_topic(redis, "dlq_payload", None)
    if group == "lost":
        await redis.hdel(PREFIX + "dlq_payload", "m1:group")
        await redis.delete(PREFIX + "dlq_groups")
    findings = {finding.kind: finding for finding in (await audit(store, repair=True)).findings}
    lost = findings["dead-without-topic"]
    assert (lost.what, lost.topic) == ("m1", kept_in)
    assert ("delete it if it is dead" in lost.detail) == (kept_in == "unknown")
    assert (await audit(store)).clean
    assert await redis.hmget(PREFIX + "dlq_payload", "m1", "m1:queue") == [body, kept_in.encode()]
    assert kept_in in await Queries(store).topics()


async def test_a_topic_that_had_no_message_when_the_audit_began_raises_no_alarm(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its keys do not exist until its first message comes, which is then in no list that was read."""
    send_on = store.commands.execute_command

    async def produce_first(*args: object) -> object:
        reply = await send_on(*args)
        if args[0] == "HGETALL":  # the audit's first look at the counters, after that at the topics
            monkeypatch.undo()
            await store.produce("orders", [NewMessage("m1", BODY)])
        return reply

    monkeypatch.setattr(store.commands, "execute_command", produce_first)
    report = await audit(store)
    assert report.findings == []
    assert report.places == {"pending": 1}


@pytest.mark.parametrize(
    ("keep", "mended"),
    [
        (f"0 normal {'9' * 400}", "0 normal inf"),
        (f"{'9' * 400} high 1763230000000", "0 high 1763230000000"),
        ("2 nolane nan", "2 normal inf"),
        ("garbage", "0 normal inf"),
        ("", "0 normal inf"),
    ],
)
@pytest.mark.parametrize("place", ["delayed", "pending", "stray"])
async def test_what_is_kept_of_a_message_and_cannot_be_read_is_named_and_written_anew(
    store: Store, redis: Redis, place: str, keep: str, mended: str
) -> None:
    """The scripts take it for nothing, so no message waits for the repair."""
    if place == "delayed":
        await store.produce_delayed("orders", [NewMessage("m1", BODY, delay=60)])
    else:
        await store.produce("orders", [NewMessage("m1", BODY)])
    await redis.hset(PREFIX + "payload", "m1:keep", keep)
    if place == "stray":
        await redis.zrem(PREFIX + "all_expire_monitor", "m1")
    kinds = ["strange-keep", "body-in-no-place"] if place == "stray" else ["strange-keep"]
    for repair in (False, True):
        findings = (await audit(store, repair=repair)).findings
        assert [(each.kind, each.what) for each in findings] == [(kind, "m1") for kind in kinds]
    assert (await audit(store)).clean
    assert await redis.hget(PREFIX + "payload", "m1:keep") == mended.encode()
