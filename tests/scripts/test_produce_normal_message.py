from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, Any

import pytest
from redis.exceptions import ResponseError

from mx_rmq.errors import InvalidName, MessageTooLarge, OutOfMemory, StoreError, WrongKeyType
from mx_rmq.receipt import Stored
from mx_rmq.storage.contract import Cancelled, NewMessage, Settled
from mx_rmq.storage.store import Store
from tests.harness import read_state
from tests.scripts.helpers import TOPIC, call, claim, count_of, delay, keys_of, lease, names, produce, spoil
from tests.scripts.states import grouped
from tests.words import PREFIX, new, out_of_memory, unchanged

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from mx_rmq.storage.keys import Keys
    from tests.harness import Clock

NAME = "produce_normal_message"
BOTH = pytest.mark.parametrize("count", [1, 2], ids=["alone", "two"])
"""A message that comes alone is stored by a script of its own, ``produce_one_message``."""


def messages(count: int, **options: Any) -> list[NewMessage]:
    """As many as asked for: m1, m2 and so on."""
    return [new(f"m{n}", **options) for n in range(1, count + 1)]


def state_with(count: int) -> dict[str, Any]:
    """What the server holds after ``messages(count)`` were produced to nothing else."""
    ids = [f"m{n}" for n in range(1, count + 1)]
    return {
        "payload": {f"{id_}": f"body of {id_}" for id_ in ids} | {f"{id_}:queue": "orders" for id_ in ids},
        "all_expire_monitor": dict.fromkeys(ids, inf),
        "orders:pending": ids,
        "orders:wake": ["1"],
        "topics": {"orders"},
        "counters": {"orders:produced": str(count)},
    }


@BOTH
async def test_a_produced_message_is_pending_and_announced(store: Store, redis: Redis, count: int) -> None:
    assert await store.produce(TOPIC, messages(count)) == [Stored.STORED] * count
    assert await read_state(redis, tools=True) == state_with(count)


async def test_messages_wait_in_the_lane_of_their_priority_first_come_first_served(
    store: Store, redis: Redis
) -> None:
    """An urgent message that came later must not pass an urgent one that came earlier."""
    for number in ("1", "2"):
        for lane in ("high", "normal", "low"):
            await produce(store, f"{lane}{number}", lane=lane)
    await store.produce(
        TOPIC, [new("high3", lane="high"), new("low3", lane="low"), new("high4", lane="high")]
    )
    ids = ["high1", "normal1", "low1", "high2", "normal2", "low2", "high3", "low3", "high4"]
    assert await read_state(redis) == {
        "payload": {id_: f"body of {id_}" for id_ in ids} | {f"{id_}:queue": "orders" for id_ in ids},
        "all_expire_monitor": dict.fromkeys(ids, inf),
        "orders:pending:high": ["high1", "high2", "high3", "high4"],
        "orders:pending": ["normal1", "normal2"],
        "orders:pending:low": ["low1", "low2", "low3"],
        "orders:wake": ["1"],
    }


async def test_a_lifetime_starts_when_the_message_is_produced(
    store: Store, redis: Redis, clock: Clock
) -> None:
    await store.produce(TOPIC, [new("short", ttl=1.5), new("ever"), new("none", ttl=0.0)])
    assert (await read_state(redis))["all_expire_monitor"] == {
        "short": clock.ms + 1500,
        "ever": inf,
        "none": clock.ms,
    }


@BOTH
async def test_without_a_given_time_the_clock_of_the_server_counts(
    redis: Redis, keys: Keys, count: int
) -> None:
    """A caller whose clock is wrong must not decide when a message expires (I7)."""
    before = await redis.time()
    await Store(redis, keys).produce(TOPIC, messages(count, ttl=60.0))
    after = await redis.time()
    expires = (await read_state(redis))["all_expire_monitor"]["m1"] - 60_000
    assert before[0] * 1000 + before[1] // 1000 <= expires <= after[0] * 1000 + after[1] // 1000


async def test_topics_do_not_touch_each_other(store: Store, redis: Redis) -> None:
    await produce(store, "m1")
    await produce(store, "m2", topic="mails")
    assert await read_state(redis) == {
        "payload": {"m1": "body of m1", "m1:queue": "orders", "m2": "body of m2", "m2:queue": "mails"},
        "all_expire_monitor": {"m1": inf, "m2": inf},
        "orders:pending": ["m1"],
        "orders:wake": ["1"],
        "mails:pending": ["m2"],
        "mails:wake": ["1"],
    }


async def test_any_bytes_are_stored_as_they_are(store: Store) -> None:
    body = bytes(range(256)) + b"\r\n\xff"
    await store.produce(TOPIC, [NewMessage("m1", body), NewMessage("m2", b"")])
    assert [delivery.body for delivery in await claim(store)] == [body, b""]


# -- an id that is taken


@pytest.mark.parametrize("place", ["pending", "processing", "delayed"])
async def test_the_id_of_a_live_message_is_taken_wherever_it_is(
    store: Store, redis: Redis, place: str
) -> None:
    """Otherwise one id would be in two places (I1)."""
    if place == "delayed":
        await delay(store, "m1", delay=60.0)
    else:
        await produce(store, "m1")
        assert len(await claim(store, 1 if place == "processing" else 0)) == (place == "processing")
    async with unchanged(redis):
        assert await store.produce(TOPIC, [NewMessage("m1", b"other", "high", 5.0)]) == [Stored.LIVE]
        assert await store.produce("mails", [NewMessage("m1", b"other")]) == [Stored.LIVE]


async def test_the_id_of_a_dead_message_is_taken(store: Store, redis: Redis) -> None:
    """A dead id is in the DLQ only, so a second life begins with a replay (I1)."""
    (delivery,) = await lease(store, "m1")
    assert await store.move_to_dlq(TOPIC, [(delivery, b"", b"why")]) == [Settled.DONE]
    async with unchanged(redis):
        assert await store.produce(TOPIC, [new("m1")]) == [Stored.DEAD]


async def test_the_id_of_a_done_message_is_taken_for_as_long_as_was_asked(
    store: Store, redis: Redis, clock: Clock
) -> None:
    (delivery,) = await lease(store, "m1")
    await store.complete(TOPIC, [(delivery, 60.0)])
    clock.advance(59.99)
    async with unchanged(redis):
        assert await store.produce(TOPIC, [new("m1")]) == [Stored.DONE]
    clock.advance(0.01)
    assert await store.produce(TOPIC, [new("m1")]) == [Stored.STORED]


async def test_an_id_twice_in_one_call_is_stored_once(store: Store, redis: Redis, clock: Clock) -> None:
    """The first one wins, as it would have in two calls."""
    twice = [NewMessage("m1", b"first"), NewMessage("m1", b"second", "high", 1.0)]
    assert await store.produce(TOPIC, twice) == [Stored.STORED, Stored.LIVE]
    assert await read_state(redis) == {
        "payload": {"m1": "first", "m1:queue": "orders"},
        "all_expire_monitor": {"m1": inf},
        "orders:pending": ["m1"],
        "orders:wake": ["1"],
    }
    assert await count_of(redis) == {"produced": 1}


async def test_a_taken_id_does_not_keep_out_the_others(store: Store, redis: Redis, clock: Clock) -> None:
    dead, done = await lease(store, "dead", "done")
    await store.move_to_dlq(TOPIC, [(dead, b"", b"why")])
    await store.complete(TOPIC, [(done, 60.0)])
    await produce(store, "live")
    remembered = clock.ms
    batch = [new(id_) for id_ in ("m1", "live", "dead", "m2", "done", "m3")]
    assert await store.produce(TOPIC, batch) == [
        Stored.STORED,
        Stored.LIVE,
        Stored.DEAD,
        Stored.STORED,
        Stored.DONE,
        Stored.STORED,
    ]
    ids = ["live", "m1", "m2", "m3"]
    assert await read_state(redis) == {
        "payload": {id_: f"body of {id_}" for id_ in ids} | {f"{id_}:queue": "orders" for id_ in ids},
        "all_expire_monitor": dict.fromkeys(ids, inf),
        "orders:pending": ids,
        "orders:wake": ["1"],
        **grouped("dead", TOPIC, died=remembered),
        "done": {"done": remembered + 60_000},
    }
    assert (await count_of(redis))["produced"] == 6


async def test_a_message_without_body_leaves_its_id_free(store: Store, redis: Redis) -> None:
    """What has no body does not exist (I2); its leftovers become the new message's own."""
    await produce(store, "m1")
    await redis.hdel(PREFIX + "payload", "m1")
    await redis.hset(PREFIX + "payload", "m1:queue", "mails")
    assert await store.produce(TOPIC, [NewMessage("m1", b"new", ttl=None)]) == [Stored.STORED]
    assert await read_state(redis) == {
        "payload": {"m1": "new", "m1:queue": "orders"},
        "all_expire_monitor": {"m1": inf},
        "orders:pending": ["m1", "m1"],
        "orders:wake": ["1"],
    }
    assert [delivery.id for delivery in await claim(store)] == ["m1"]


async def test_an_id_withdrawn_in_the_middle_of_a_list_can_be_used_again(store: Store, redis: Redis) -> None:
    """The old entry stays behind as a hint; the message must still run exactly once."""
    await produce(store, "m1", "m2", "m3")
    assert await store.cancel(["m2"]) == [Cancelled.CANCELLED]
    await produce(store, "m2")
    assert (await read_state(redis))["orders:pending"] == ["m1", "m2", "m3", "m2"]
    assert [delivery.id for delivery in await claim(store)] == ["m1", "m2", "m3"]
    assert await claim(store) == []


# -- a call sent again


async def test_a_call_sent_again_is_answered_even_if_its_message_is_long_done(
    store: Store, redis: Redis
) -> None:
    """Its reply was lost on the wire; a worker was faster than the second try (I5)."""
    batch = [new("m1"), new("m1"), new("m2")]
    first = await store.produce(TOPIC, batch, producer="p1", call="c1")
    assert first == [Stored.STORED, Stored.LIVE, Stored.STORED]
    await store.complete(TOPIC, [(delivery, 0.0) for delivery in await claim(store)])
    async with unchanged(redis):
        assert await store.produce(TOPIC, batch, producer="p1", call="c1") == first
    assert await read_state(redis) == {}


async def test_a_call_without_name_sent_again_stores_nothing_twice(store: Store, redis: Redis) -> None:
    await produce(store, "m1", "m2")
    async with unchanged(redis):
        assert await store.produce(TOPIC, [new("m1"), new("m2")]) == [Stored.LIVE] * 2


async def test_a_call_that_arrives_after_a_later_one_is_refused(store: Store, redis: Redis) -> None:
    """It was held up on a silent connection; meanwhile it was sent again, and its message is done."""
    for number in ("9", "10"):
        await store.produce(TOPIC, [new(f"m{number}")], producer="p1", call=number)
    await store.complete(TOPIC, [(delivery, 0.0) for delivery in await claim(store)])
    async with unchanged(redis):
        with pytest.raises(StoreError, match="BELATED"):
            await store.produce(TOPIC, [new("m9")], producer="p1", call="9")
    assert await store.produce(TOPIC, [new("m9")], producer="p2", call="9") == [Stored.STORED]


async def test_a_call_is_remembered_for_a_minute(store: Store, redis: Redis) -> None:
    await store.produce(TOPIC, [new("m1"), new("m1")], producer="p1", call="c1")
    assert (await read_state(redis, tools=True))["call=p1"] == "c1 1 0"
    assert 59_000 < await redis.pttl(PREFIX + "call=p1") <= 60_000


async def test_only_the_last_call_of_the_same_producer_is_remembered(store: Store) -> None:
    """One small key for each producer, however many calls it makes."""
    assert await store.produce(TOPIC, [new("m1")], producer="p1", call="c1") == [Stored.STORED]
    assert await store.produce(TOPIC, [new("m1")], producer="p2", call="c1") == [Stored.LIVE]
    assert await store.produce(TOPIC, [new("m2")], producer="p1", call="c11") == [Stored.STORED]
    assert await store.produce(TOPIC, [new("m3")], producer="p1", call="c1") == [Stored.STORED]


async def test_a_refused_call_is_not_remembered(store: Store, redis: Redis) -> None:
    async with unchanged(redis):
        with pytest.raises(StoreError, match="TOOMANY"):
            await store.produce(TOPIC, [new(id_) for id_ in names(1001)], producer="p1", call="c1")
    assert await store.produce(TOPIC, [new("m1")], producer="p1", call="c1") == [Stored.STORED]


@pytest.mark.parametrize(("producer", "name"), [("", "c1"), ("p 1", "c1"), ("p1", "c 1"), ("p1", "c1 ")])
async def test_a_call_that_could_be_taken_for_another_one_is_refused(
    store: Store, redis: Redis, producer: str, name: str
) -> None:
    """The memory of "c 1" begins like one of "c": its answer would be given to messages never stored."""
    async with unchanged(redis):
        with pytest.raises(InvalidName):
            await store.produce(TOPIC, [new("m1")], producer=producer, call=name)


# -- how many, how large, what names


async def test_an_empty_call_does_nothing(store: Store, redis: Redis) -> None:
    async with unchanged(redis):
        assert await store.produce(TOPIC, []) == []


async def test_a_thousand_messages_go_in_one_call(store: Store, redis: Redis, clock: Clock) -> None:
    ids = names(1000)
    assert (
        await store.produce(TOPIC, [new(id_, lane="low", ttl=1.0) for id_ in ids]) == [Stored.STORED] * 1000
    )
    assert await read_state(redis) == {
        "payload": {id_: f"body of {id_}" for id_ in ids} | {f"{id_}:queue": "orders" for id_ in ids},
        "all_expire_monitor": dict.fromkeys(ids, clock.ms + 1000),
        "orders:pending:low": ids,
        "orders:wake": ["1"],
    }
    assert await count_of(redis) == {"produced": 1000}


async def test_one_more_than_a_thousand_is_refused_and_none_is_stored(store: Store, redis: Redis) -> None:
    async with unchanged(redis):
        with pytest.raises(StoreError, match="TOOMANY 1001 messages in one call, the limit is 1000"):
            await store.produce(TOPIC, [new(id_) for id_ in names(1001)])


async def test_a_body_may_be_as_large_as_the_limit_and_not_larger(redis: Redis, keys: Keys) -> None:
    store = Store(redis, keys, max_bytes=100)
    assert await store.produce(TOPIC, [NewMessage("m1", b"x" * 100)]) == [Stored.STORED]
    async with unchanged(redis):
        with pytest.raises(
            MessageTooLarge, match="message m3 for topic 'orders' has 101 bytes, the limit is 100"
        ):
            await store.produce(TOPIC, [NewMessage("m2", b""), NewMessage("m3", b"x" * 101)])


async def test_the_script_itself_refuses_a_body_past_the_limit(redis: Redis) -> None:
    """A producer of another language or version is held to it too; none of its batch is stored."""
    messages = ["m1", "normal", "inf", b"x" * 100, "m2", "normal", "inf", b"x" * 101]
    async with unchanged(redis):
        with pytest.raises(ResponseError, match="TOOLARGE message m2 has 101 bytes, the limit is 100"):
            await call(redis, NAME, keys_of(NAME), TOPIC, "c1", 100, "", *messages, "")
    assert await call(redis, NAME, keys_of(NAME), TOPIC, "c1", 101, "", *messages, "") == [1, 1]


@pytest.mark.parametrize(
    ("messages", "refusal"),
    [
        (["m1", "normal", "inf", "body", "m2", "urgent", "inf", "body"], "BADLANE urgent of message m2"),
        (["m1", "normal", "inf", "body", "m2", "low", "inf"], "BADARGS the last message is incomplete"),
        (["m1", "normal", "soon", "body"], "arithmetic on a nil value"),
    ],
)
async def test_what_makes_no_sense_is_refused_before_anything_is_written(
    redis: Redis, messages: list[str], refusal: str
) -> None:
    """The server does not undo what a script has written when it fails (I6)."""
    async with unchanged(redis):
        with pytest.raises(ResponseError, match=refusal):
            await call(redis, NAME, keys_of(NAME), TOPIC, "c1", 1000, "", *messages, "")


@pytest.mark.parametrize(("topic", "id_"), [("a b", "m1"), ("", "m1"), (TOPIC, "m1:queue"), (TOPIC, "{m}")])
async def test_names_are_checked_before_anything_is_sent(
    store: Store, redis: Redis, topic: str, id_: str
) -> None:
    """An id such as m1:queue would overwrite a field of the message m1."""
    async with unchanged(redis):
        with pytest.raises(InvalidName):
            await store.produce(topic, [new("m0"), new(id_)])


# -- a server in trouble


@pytest.mark.parametrize(
    "key",
    ["payload", "all_expire_monitor", "dlq", "done", "orders:pending:high", "orders:pending", "call=p1"],
)
async def test_a_key_of_another_type_is_named_and_nothing_is_stored(
    store: Store, redis: Redis, key: str
) -> None:
    await produce(store, "m1", lane="low")
    await spoil(redis, key)
    async with unchanged(redis):
        with pytest.raises(WrongKeyType, match=key):
            await store.produce(TOPIC, [new("m2"), new("m3", lane="high")], producer="p1", call="c1")
        if key != "orders:pending:high":
            with pytest.raises(WrongKeyType, match=key):
                await store.produce_one(TOPIC, new("m2"), producer="p1", call="c1")


@BOTH
@pytest.mark.parametrize("key", ["orders:wake", "topics", "counters", "orders:pending:high"])
async def test_what_the_message_does_not_need_cannot_stop_it(
    store: Store, redis: Redis, key: str, count: int
) -> None:
    await spoil(redis, key)
    assert await store.produce(TOPIC, messages(count)) == [Stored.STORED] * count
    assert await read_state(redis, tools=True) == state_with(count) | {key: "something else"}


@BOTH
async def test_a_server_without_memory_refuses_cleanly(store: Store, redis: Redis, count: int) -> None:
    async with unchanged(redis), out_of_memory(redis):
        with pytest.raises(OutOfMemory, match="maxmemory"):
            await store.produce(TOPIC, messages(count), producer="p1", call="c1")
    assert await store.produce(TOPIC, messages(count), producer="p1", call="c1") == [Stored.STORED] * count
