from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from mx_rmq.errors import WrongKeyType
from mx_rmq.limits import REPLY_BYTES
from mx_rmq.message import PastAttempt, encode_message
from mx_rmq.storage.contract import NewMessage, TopicRow
from mx_rmq.storage.counters import Counters
from tests.scripts.helpers import TOPIC, claim, delay, lease, names, produce, spoil
from tests.words import PREFIX, message, unchanged

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from mx_rmq.message import Lane
    from mx_rmq.storage.store import Store
    from tests.harness import Clock

EMPTY = TopicRow(0, 0, 0, 0, None, 0, 0, 0, 0, 0, 0)


async def produce_at(
    store: Store,
    id_: str,
    at: float,
    topic: str = TOPIC,
    *,
    lane: Lane = "normal",
    payload: Any = 1,
    **fields: Any,
) -> None:
    """Make a message pending that was produced at an instant."""
    body = encode_message(message(payload, id=id_, topic=topic, created_at=at, **fields))
    await store.produce(topic, [NewMessage(id_, body, lane)])


async def row(store: Store, topic: str = TOPIC) -> TopicRow:
    (found,) = await store.count([topic])
    return found


async def test_a_topic_that_never_was_has_nothing(store: Store, redis: Redis) -> None:
    async with unchanged(redis):
        assert await store.count(["never", "nor-this"]) == [EMPTY, EMPTY]
        assert await store.count([]) == []


async def test_every_place_is_counted_by_the_laws(store: Store, redis: Redis, clock: Clock) -> None:
    """Five produced and one delayed: one done, one dead, one retried, one leased, one pending."""
    done, died, again, _ = await lease(store, *names(4))
    await produce(store, "m5")
    await delay(store, "m6", delay=60)
    await store.complete(TOPIC, [(done, 0.0)])
    await store.move_to_dlq(TOPIC, [(died, b"", b"why")])
    await store.retry(TOPIC, [(again, 60.0, b"again")])
    async with unchanged(redis):
        found = await row(store)
    assert (found.pending, found.leases) == (1, 1)
    assert found.delayed == 2  # m3 and m6
    assert (found.in_dlq, found.retried) == (1, 1)


@pytest.mark.parametrize("name", Counters._fields)
async def test_the_script_has_the_laws_of_the_counters(store: Store, redis: Redis, name: str) -> None:
    await redis.hset(PREFIX + "counters", mapping={f"{TOPIC}:produced": 9, f"{TOPIC}:dead": 7})
    await redis.hincrby(PREFIX + "counters", f"{TOPIC}:{name}", 2)
    of = Counters(**{"produced": 9, "dead": 7} | {name: {"produced": 11, "dead": 9}.get(name, 2)})
    found = await row(store)
    assert (found.delayed, found.in_dlq) == (of.live, of.in_dlq)
    assert found[5:] == (of.produced, of.completed, of.retried, of.put_off, of.lapsed, of.dead)


async def test_of_the_rare_counters_those_asked_for_are_read(store: Store) -> None:
    """Each topic has its own, also in a second block of topics."""
    topics = [f"t{n}" for n in range(50)]
    for topic in topics:
        await produce(store, f"{topic}a", f"{topic}b", topic=topic)
        await store.cancel([f"{topic}a"])
    rare = {"t1": ["cancelled"], "t2": ["stale", "cancelled", "lapsed"], "t30": ["cancelled"]}
    rows = dict(zip(topics, await store.count(topics, rare), strict=True))
    assert {of.produced for of in rows.values()} == {2}
    assert {topic for topic, of in rows.items() if not of.delayed} == set(rare)  # one is missing elsewhere
    assert {of.pending for of in rows.values()} == {1}


async def test_the_message_next_in_line_is_the_oldest_of_the_lanes(store: Store, redis: Redis) -> None:
    await produce_at(store, "a", 1763230005.5)
    await produce_at(store, "b", 1763230004.5)
    assert (await row(store)).oldest_at == b"1763230005.5"
    await produce_at(store, "c", 1763230003.25, lane="low")
    await produce_at(store, "d", 1763230009.0, lane="high")
    assert (await row(store)).oldest_at == b"1763230003.25"
    await claim(store)
    assert (await row(store)).oldest_at is None


async def test_entries_that_no_claim_delivers_are_not_next_in_line(store: Store, redis: Redis) -> None:
    """Cancelled in the middle, m1 to m3 leave their entries behind; they reach the end of the list."""
    for n in range(6):
        await produce_at(store, f"m{n}", 1763230000.0 + n)
    await store.cancel(["m2", "m3", "m1"])
    await claim(store, 1)
    found = await row(store)
    assert found.pending == 2
    assert found.oldest_at == b"1763230004.0"


async def test_a_payload_and_a_history_that_name_the_field_confuse_nothing(store: Store) -> None:
    """Large ones too, as long as the history may be."""
    error = '","created_at":9,"' * 20
    history = [PastAttempt(at=1.0, worker="w", error=error, trace="x" * 2000) for _ in range(20)]
    payload = {"created_at": 5, "x": {"created_at": 6.5}, "text": '"created_at":7', "large": "x" * 200_000}
    await produce_at(
        store, "a", 1763230000.125, payload=payload, headers={"created_at": "8"}, history=history
    )
    assert (await row(store)).oldest_at == b"1763230000.125"


@pytest.mark.parametrize(
    "body",
    [
        *(b"", b"\xff", b'{"created_at":"x"}', b'{"created_at":1.2.3}', b"x" * 5000),
        b'{"payload":{"created_at":5},"created_at":null}',
    ],
)
async def test_an_unreadable_message_has_no_time(store: Store, body: bytes) -> None:
    await store.produce(TOPIC, [NewMessage("a", body)])
    found = await row(store)
    assert (found.pending, found.oldest_at) == (1, None)


async def test_large_bodies_are_read_some_at_a_time(store: Store, redis: Redis) -> None:
    topics = [f"t{n}" for n in range(8)]
    for topic in topics:
        await produce_at(store, topic, 1763230000.0, topic, payload="x" * (REPLY_BYTES // 4 - 1000))
    first = await store.count(topics)
    assert len(first) == 5
    rest = await store.count(topics[len(first) :])
    assert [each.oldest_at for each in first + rest] == [b"1763230000.0"] * 8


@pytest.mark.parametrize("key", ["payload", "all_expire_monitor"])
async def test_a_key_of_another_type_is_named(store: Store, redis: Redis, key: str) -> None:
    await spoil(redis, key)
    with pytest.raises(WrongKeyType, match=key):
        await row(store)


@pytest.mark.parametrize("part", ["pending:high", "pending", "pending:low", "processing"])
async def test_a_topic_with_a_key_of_another_type_hides_no_other(
    store: Store, redis: Redis, part: str
) -> None:
    await produce(store, "m1")
    await produce(store, "m2", topic="mails")
    await spoil(redis, f"{TOPIC}:{part}")
    spoilt, sound = await store.count([TOPIC, "mails"])
    assert spoilt.leases == 0
    assert (sound.pending, sound.produced) == (1, 1)


async def test_broken_counters_count_nothing(store: Store, redis: Redis) -> None:
    await produce(store, "m1")
    await redis.hset(PREFIX + "counters", mapping={f"{TOPIC}:retried": "7 8", f"{TOPIC}:dead": "9" * 400})
    found = await row(store)
    assert (found.retried, found.dead, found.produced) == (0, 0, 1)
    await spoil(redis, "counters")
    assert await row(store) == EMPTY._replace(pending=1)
