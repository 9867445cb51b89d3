"""The audit among things that somebody else wrote."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from mx_rmq.message import Message, encode_message
from mx_rmq.operating.audit import audit
from mx_rmq.payloads import encode_payload
from mx_rmq.storage.contract import NewMessage
from tests.harness import command as send

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from mx_rmq.storage.store import Store

PREFIX = "mx-rmq:{q}:"
BODY = encode_message(Message(v=1, id="m1", topic="orders", payload=encode_payload({}), created_at=0.0))


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


@pytest.mark.parametrize("topic", [None, b"", b"\xff", b"a:{b}*", b"t" * 129])
async def test_one_repair_is_enough_for_a_body_without_a_topic(
    store: Store, redis: Redis, topic: bytes | None
) -> None:
    """Even if it has a deadline, by which it looks as if it were pending."""
    await redis.hset(PREFIX + "payload", "m1", BODY)
    if topic is not None:
        await redis.hset(PREFIX + "payload", "m1:queue", topic)
    await redis.zadd(PREFIX + "all_expire_monitor", {"m1": "inf"})
    kinds = {finding.kind for finding in (await audit(store, repair=True)).findings}
    assert kinds == {"body-without-topic", "body-in-no-place", "counters-disagree"}
    assert (await audit(store)).clean
    claim = await store.claim("orders", 10, lease=15, holder="w1")
    assert [delivery.id for delivery in claim.deliveries] == ["m1"]


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
