from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING

import pytest
from redis.exceptions import ResponseError

from mx_rmq.errors import InvalidName, MessageTooLarge, OutOfMemory, StoreError, WrongKeyType
from mx_rmq.receipt import Stored
from mx_rmq.storage.contract import NewMessage
from mx_rmq.storage.store import Store
from tests.harness import read_state
from tests.scripts.helpers import TOPIC, call, claim, count_of, delay, keys_of, lease, names, produce, spoil
from tests.scripts.states import grouped
from tests.words import PREFIX, new, out_of_memory, unchanged

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from mx_rmq.storage.keys import Keys
    from tests.harness import Clock

NAME = "produce_delay_message"


async def test_a_delayed_message_is_delayed_and_announced(store: Store, redis: Redis, clock: Clock) -> None:
    assert await store.produce_delayed(TOPIC, [new("m1", delay=60.0)]) == [Stored.STORED]
    assert await read_state(redis, tools=True) == {
        "payload": {"m1": "body of m1", "m1:queue": "orders", "m1:keep": "0 normal inf"},
        "delay_tasks": {"m1": clock.ms + 60_000},
        "delay_wake": ["1"],
        "topics": {"orders"},
        "counters": {"orders:produced": "1"},
    }


async def test_a_lifetime_starts_when_the_delay_ends(store: Store, redis: Redis, clock: Clock) -> None:
    """A reminder for next week with a lifetime of an hour must not be dead by then."""
    await store.produce_delayed(TOPIC, [new("m1", delay=60.0, ttl=1.5), new("m2", delay=0.25, ttl=0.0)])
    state = await read_state(redis)
    assert state["payload"]["m1:keep"] == f"0 normal {clock.ms + 61_500}"
    assert state["payload"]["m2:keep"] == f"0 normal {clock.ms + 250}"


async def test_priority_and_expiry_survive_the_delay(store: Store, redis: Redis, clock: Clock) -> None:
    await store.produce_delayed(
        TOPIC,
        [
            new("low", lane="low", delay=1.0),
            new("high", lane="high", delay=1.0, ttl=5.0),
            new("m1", delay=1.0),
        ],
    )
    due = clock.ms + 1000
    clock.advance(1)
    await store.promote()
    assert await read_state(redis) == {
        "payload": {
            "low": "body of low",
            "low:queue": "orders",
            "high": "body of high",
            "high:queue": "orders",
            "m1": "body of m1",
            "m1:queue": "orders",
        },
        "all_expire_monitor": {"low": inf, "high": due + 5000, "m1": inf},
        "orders:pending:high": ["high"],
        "orders:pending": ["m1"],
        "orders:pending:low": ["low"],
        "orders:wake": ["1"],
    }


async def test_a_delay_that_is_over_is_due_at_once(store: Store, redis: Redis, clock: Clock) -> None:
    await store.produce_delayed(TOPIC, [new("m1", delay=0.0), new("m2", delay=-5.0)])
    assert await read_state(redis) == {
        "payload": {
            "m1": "body of m1",
            "m1:queue": "orders",
            "m1:keep": "0 normal inf",
            "m2": "body of m2",
            "m2:queue": "orders",
            "m2:keep": "0 normal inf",
        },
        "delay_tasks": {"m1": clock.ms, "m2": clock.ms - 5000},
        "delay_wake": ["1"],
    }
    assert (await store.promote()).promoted == ["m2", "m1"]


async def test_the_scheduler_is_woken_only_for_a_message_due_before_all_others(
    store: Store, redis: Redis
) -> None:
    """It sleeps until the first due time; a later message does not change when that is."""
    await delay(store, "m1", delay=60.0)
    await redis.delete(PREFIX + "delay_wake")
    await delay(store, "later", delay=61.0)
    await delay(store, "m2", "m3", delay=60.0)
    assert "delay_wake" not in await read_state(redis)
    await store.produce_delayed(
        TOPIC, [new("m4", delay=90.0), new("sooner", delay=59.0), new("m5", delay=90.0)]
    )
    assert (await read_state(redis))["delay_wake"] == ["1"]
    await delay(store, "soonest", delay=1.0)
    assert (await read_state(redis))["delay_wake"] == ["1"]


async def test_without_a_given_time_the_clock_of_the_server_counts(redis: Redis, keys: Keys) -> None:
    before = await redis.time()
    await Store(redis, keys).produce_delayed(TOPIC, [new("m1", delay=60.0)])
    after = await redis.time()
    due = (await read_state(redis))["delay_tasks"]["m1"] - 60_000
    assert before[0] * 1000 + before[1] // 1000 <= due <= after[0] * 1000 + after[1] // 1000


async def test_any_bytes_are_stored_as_they_are(store: Store) -> None:
    body = bytes(range(256)) + b"\r\n\xff"
    await store.produce_delayed(TOPIC, [NewMessage("m1", body), NewMessage("m2", b"")])
    await store.promote()
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
        sooner = NewMessage("m1", b"other", "high", 5.0, 1.0)
        assert await store.produce_delayed(TOPIC, [sooner]) == [Stored.LIVE]
        assert await store.produce_delayed("mails", [sooner]) == [Stored.LIVE]


async def test_the_id_of_a_dead_message_is_taken(store: Store, redis: Redis) -> None:
    (delivery,) = await lease(store, "m1")
    await store.move_to_dlq(TOPIC, [(delivery, b"", b"why")])
    async with unchanged(redis):
        assert await store.produce_delayed(TOPIC, [new("m1", delay=1.0)]) == [Stored.DEAD]


async def test_the_id_of_a_done_message_is_taken_for_as_long_as_was_asked(
    store: Store, redis: Redis, clock: Clock
) -> None:
    (delivery,) = await lease(store, "m1")
    await store.complete(TOPIC, [(delivery, 60.0)])
    clock.advance(59.99)
    async with unchanged(redis):
        assert await store.produce_delayed(TOPIC, [new("m1", delay=1.0)]) == [Stored.DONE]
    clock.advance(0.01)
    assert await store.produce_delayed(TOPIC, [new("m1", delay=1.0)]) == [Stored.STORED]


async def test_an_id_twice_in_one_call_is_stored_once(store: Store, redis: Redis, clock: Clock) -> None:
    """The first one wins, and the second one's due time counts for nothing, not even for the wake."""
    await delay(store, "m0", delay=50.0)
    await redis.delete(PREFIX + "delay_wake")
    twice = [NewMessage("m1", b"first", delay=60.0), NewMessage("m1", b"second", "high", 1.0, 1.0)]
    assert await store.produce_delayed(TOPIC, twice) == [Stored.STORED, Stored.LIVE]
    assert await read_state(redis) == {
        "payload": {
            "m0": "body of m0",
            "m0:queue": "orders",
            "m0:keep": "0 normal inf",
            "m1": "first",
            "m1:queue": "orders",
            "m1:keep": "0 normal inf",
        },
        "delay_tasks": {"m0": clock.ms + 50_000, "m1": clock.ms + 60_000},
    }
    assert await count_of(redis) == {"produced": 2}


async def test_a_taken_id_does_not_keep_out_the_others(store: Store, redis: Redis, clock: Clock) -> None:
    dead, done = await lease(store, "dead", "done")
    await store.move_to_dlq(TOPIC, [(dead, b"", b"why")])
    await store.complete(TOPIC, [(done, 60.0)])
    settled = clock.ms
    await produce(store, "live")
    batch = [new(id_, delay=5.0) for id_ in ("live", "m1", "dead", "done", "m2")]
    assert await store.produce_delayed(TOPIC, batch) == [
        Stored.LIVE,
        Stored.STORED,
        Stored.DEAD,
        Stored.DONE,
        Stored.STORED,
    ]
    assert await read_state(redis) == {
        "payload": {
            "live": "body of live",
            "live:queue": "orders",
            "m1": "body of m1",
            "m1:queue": "orders",
            "m1:keep": "0 normal inf",
            "m2": "body of m2",
            "m2:queue": "orders",
            "m2:keep": "0 normal inf",
        },
        "all_expire_monitor": {"live": inf},
        "orders:pending": ["live"],
        "orders:wake": ["1"],
        "delay_tasks": {"m1": clock.ms + 5000, "m2": clock.ms + 5000},
        "delay_wake": ["1"],
        **grouped("dead", TOPIC, died=settled),
        "done": {"done": settled + 60_000},
    }
    assert (await count_of(redis))["produced"] == 5


async def test_a_message_without_body_leaves_its_id_free(store: Store, redis: Redis, clock: Clock) -> None:
    """What has no body does not exist (I2); its leftovers become the new message's own."""
    await delay(store, "m1", delay=60.0, lane="high", ttl=1.0)
    await redis.hdel(PREFIX + "payload", "m1")
    assert await store.produce_delayed(TOPIC, [NewMessage("m1", b"new", delay=90.0)]) == [Stored.STORED]
    assert await read_state(redis) == {
        "payload": {"m1": "new", "m1:queue": "orders", "m1:keep": "0 normal inf"},
        "delay_tasks": {"m1": clock.ms + 90_000},
        "delay_wake": ["1"],
    }


# -- a call sent again


async def test_a_call_sent_again_is_answered_even_if_its_message_is_long_done(
    store: Store, redis: Redis
) -> None:
    """Its reply was lost on the wire; a worker was faster than the second try (I5)."""
    batch = [new("m1"), new("m1"), new("m2")]
    first = await store.produce_delayed(TOPIC, batch, producer="p1", call="c1")
    assert first == [Stored.STORED, Stored.LIVE, Stored.STORED]
    await store.promote()
    await store.complete(TOPIC, [(delivery, 0.0) for delivery in await claim(store)])
    async with unchanged(redis):
        assert await store.produce_delayed(TOPIC, batch, producer="p1", call="c1") == first
    assert await read_state(redis) == {}


async def test_a_call_without_name_sent_again_changes_no_due_time(
    store: Store, redis: Redis, clock: Clock
) -> None:
    await delay(store, "m1", "m2", delay=60.0)
    clock.advance(30)
    async with unchanged(redis):
        again = [new("m1", delay=60.0), new("m2", delay=60.0)]
        assert await store.produce_delayed(TOPIC, again) == [Stored.LIVE] * 2


async def test_a_call_that_arrives_after_a_later_one_is_refused(store: Store, redis: Redis) -> None:
    """It was held up on a silent connection; meanwhile it was sent again, and its message is done."""
    for number in ("9", "10"):
        await store.produce_delayed(TOPIC, [new(f"m{number}")], producer="p1", call=number)
    await store.promote()
    await store.complete(TOPIC, [(delivery, 0.0) for delivery in await claim(store)])
    async with unchanged(redis):
        with pytest.raises(StoreError, match="BELATED"):
            await store.produce_delayed(TOPIC, [new("m9")], producer="p1", call="9")
    assert await store.produce_delayed(TOPIC, [new("m9")], producer="p2", call="9") == [Stored.STORED]


async def test_a_call_is_remembered_for_a_minute(store: Store, redis: Redis) -> None:
    await store.produce_delayed(TOPIC, [new("m1", delay=9.0), new("m1")], producer="p1", call="c1")
    assert (await read_state(redis, tools=True))["call=p1"] == "c1 1 0"
    assert 59_000 < await redis.pttl(PREFIX + "call=p1") <= 60_000


async def test_a_call_that_could_be_taken_for_another_one_is_refused(store: Store, redis: Redis) -> None:
    async with unchanged(redis):
        for producer, name in (("", "c1"), ("p1", "c 1")):
            with pytest.raises(InvalidName):
                await store.produce_delayed(TOPIC, [new("m1")], producer=producer, call=name)


# -- how many, how large, what names


async def test_an_empty_call_does_nothing(store: Store, redis: Redis) -> None:
    async with unchanged(redis):
        assert await store.produce_delayed(TOPIC, []) == []


async def test_a_thousand_messages_go_in_one_call(store: Store, redis: Redis, clock: Clock) -> None:
    ids = names(1000)
    await delay(store, *ids, delay=1.0, lane="low", ttl=1.0)
    expiry = f"0 low {clock.ms + 2000}"
    assert await read_state(redis) == {
        "payload": {id_: f"body of {id_}" for id_ in ids}
        | {f"{id_}:queue": "orders" for id_ in ids}
        | {f"{id_}:keep": expiry for id_ in ids},
        "delay_tasks": dict.fromkeys(ids, clock.ms + 1000),
        "delay_wake": ["1"],
    }
    assert await count_of(redis) == {"produced": 1000}


async def test_one_more_than_a_thousand_is_refused_and_none_is_stored(store: Store, redis: Redis) -> None:
    async with unchanged(redis):
        with pytest.raises(StoreError, match="TOOMANY 1001 messages in one call, the limit is 1000"):
            await store.produce_delayed(TOPIC, [new(id_) for id_ in names(1001)], producer="p1", call="c1")


async def test_a_body_may_be_as_large_as_the_limit_and_not_larger(redis: Redis, keys: Keys) -> None:
    store = Store(redis, keys, max_bytes=100)
    assert await store.produce_delayed(TOPIC, [NewMessage("m1", b"x" * 100)]) == [Stored.STORED]
    async with unchanged(redis):
        with pytest.raises(
            MessageTooLarge, match="message m3 for topic 'orders' has 101 bytes, the limit is 100"
        ):
            await store.produce_delayed(TOPIC, [NewMessage("m2", b""), NewMessage("m3", b"x" * 101)])


async def test_the_script_itself_refuses_a_body_past_the_limit(redis: Redis) -> None:
    """A producer of another language or version is held to it too; none of its batch is stored."""
    messages = ["m1", "normal", "inf", 5, b"x" * 100, "m2", "normal", "inf", 5, b"x" * 101]
    async with unchanged(redis):
        with pytest.raises(ResponseError, match="TOOLARGE message m2 has 101 bytes, the limit is 100"):
            await call(redis, NAME, keys_of(NAME), TOPIC, "c1", 100, "", *messages, "")
    assert await call(redis, NAME, keys_of(NAME), TOPIC, "c1", 101, "", *messages, "") == [1, 1]


@pytest.mark.parametrize(
    ("messages", "refusal"),
    [
        (
            ["m1", "low", "inf", "5", "body", "m2", "urgent", "inf", "5", "body"],
            "BADLANE urgent of message m2",
        ),
        (
            ["m1", "low", "inf", "5", "body", "m2", "low", "inf", "5"],
            "BADARGS the last message is incomplete",
        ),
        (["m1", "low", "inf", "soon", "body"], "arithmetic on a nil value"),
        (["m1", "low", "long", "5", "body"], "arithmetic on a nil value"),
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
    async with unchanged(redis):
        with pytest.raises(InvalidName):
            await store.produce_delayed(topic, [new("m0"), new(id_)])


# -- a server in trouble


@pytest.mark.parametrize("key", ["payload", "delay_tasks", "dlq", "done", "call=p1"])
async def test_a_key_of_another_type_is_named_and_nothing_is_stored(
    store: Store, redis: Redis, key: str
) -> None:
    await delay(store, "m1", delay=60.0)
    await spoil(redis, key)
    async with unchanged(redis):
        with pytest.raises(WrongKeyType, match=key):
            await store.produce_delayed(TOPIC, [new("m2")], producer="p1", call="c1")


@pytest.mark.parametrize("key", ["delay_wake", "topics", "counters"])
async def test_what_the_message_does_not_need_cannot_stop_it(
    store: Store, redis: Redis, clock: Clock, key: str
) -> None:
    await spoil(redis, key)
    await delay(store, "m1", delay=60.0)
    assert await read_state(redis, tools=True) == {
        "payload": {"m1": "body of m1", "m1:queue": "orders", "m1:keep": "0 normal inf"},
        "delay_tasks": {"m1": clock.ms + 60_000},
        "delay_wake": ["1"],
        "topics": {"orders"},
        "counters": {"orders:produced": "1"},
    } | {key: "something else"}


async def test_a_server_without_memory_refuses_cleanly(store: Store, redis: Redis) -> None:
    async with unchanged(redis), out_of_memory(redis):
        with pytest.raises(OutOfMemory, match="maxmemory"):
            await store.produce_delayed(TOPIC, [new("m1"), new("m2")], producer="p1", call="c1")
    assert await store.produce_delayed(TOPIC, [new("m1")], producer="p1", call="c1") == [Stored.STORED]
