"""A message that comes alone: everything that holds for one of many, by a script of its own.

What both scripts are tested for in the same way is in ``test_produce_normal_message.py``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from redis.exceptions import ResponseError

from mx_rmq.errors import InvalidName, MessageTooLarge, StoreError
from mx_rmq.receipt import Stored
from mx_rmq.storage.contract import NewMessage
from mx_rmq.storage.store import Store
from tests.harness import read_state
from tests.scripts.every_script import rich_state
from tests.scripts.helpers import TOPIC, call, claim, delay, keys_of, lease, produce
from tests.scripts.states import everything, seed
from tests.words import PREFIX, new, unchanged

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from mx_rmq.storage.keys import Keys
    from tests.harness import Clock

NAME = "produce_one_message"


@pytest.mark.parametrize("lane", ["high", "normal", "low"])
@pytest.mark.parametrize("ttl", [None, 0.0, 1.5])
@pytest.mark.parametrize("id_", ["n1", "p1-t", "l1-t", "d1-u", "x1-t", "old", "young"])
@pytest.mark.parametrize("calls", [{}, {"producer": "p", "call": "c"}])
async def test_it_does_what_a_call_of_many_does(
    redis: Redis, keys: Keys, clock: Clock, id_: str, lane: Any, ttl: float | None, calls: dict[str, str]
) -> None:
    """Whether its id is free, pending, leased, delayed, dead, or done and remembered."""
    store = Store(redis, keys, history=True, now=clock)
    message = NewMessage(id_, b"body", lane, ttl)
    await seed(redis, rich_state())
    args = (id_, lane, "inf" if ttl is None else round(ttl * 1000), b"body")
    head = ("t", calls.get("call", ""), store.max_bytes, keys.prefix)
    by_many = keys_of("produce_normal_message", "t", calls.get("producer", ""))
    answer = await call(redis, "produce_normal_message", by_many, *head, *args, clock.us)
    state = await everything(redis)
    await redis.flushall()
    await seed(redis, rich_state())
    assert [await store.produce_one("t", message, **calls)] == [Stored(code) for code in answer]
    assert await everything(redis) == state


async def test_a_message_alone_is_pending_and_announced(store: Store, redis: Redis, clock: Clock) -> None:
    assert await store.produce_one(TOPIC, new("m1", ttl=1.5, lane="high")) is Stored.STORED
    assert await read_state(redis, tools=True) == {
        "payload": {"m1": "body of m1", "m1:queue": "orders"},
        "all_expire_monitor": {"m1": clock.ms + 1500},
        "orders:pending:high": ["m1"],
        "orders:wake": ["1"],
        "topics": {"orders"},
        "counters": {"orders:produced": "1"},
    }


async def test_a_later_deadline_keeps_its_last_digit(store: Store, redis: Redis, clock: Clock) -> None:
    """The script sends it as a number, which the server writes with all its digits."""
    await store.produce_one(TOPIC, new("m1", ttl=10_000_000_000.001))
    assert (await read_state(redis))["all_expire_monitor"] == {"m1": clock.ms + 10_000_000_000_001}


@pytest.mark.parametrize("place", ["pending", "processing", "delayed", "dead", "done"])
async def test_an_id_that_is_taken_is_refused(store: Store, redis: Redis, place: str) -> None:
    if place == "delayed":
        await delay(store, "m1", delay=60.0)
    elif place == "pending":
        await produce(store, "m1")
    else:
        (delivery,) = await lease(store, "m1")
        if place == "dead":
            await store.move_to_dlq(TOPIC, [(delivery, b"", b"why")])
        if place == "done":
            await store.complete(TOPIC, [(delivery, 60.0)])
    expected = {"dead": Stored.DEAD, "done": Stored.DONE}.get(place, Stored.LIVE)
    async with unchanged(redis):
        assert await store.produce_one("mails", NewMessage("m1", b"other", "high", 5.0)) is expected


async def test_a_call_sent_again_is_answered_even_if_its_message_is_long_done(
    store: Store, redis: Redis
) -> None:
    assert await store.produce_one(TOPIC, new("m1"), producer="p1", call="7") is Stored.STORED
    assert (await read_state(redis, tools=True))["call=p1"] == "7 1"
    assert 59_000 < await redis.pttl(PREFIX + "call=p1") <= 60_000
    await store.complete(TOPIC, [(delivery, 0.0) for delivery in await claim(store)])
    async with unchanged(redis):
        assert await store.produce_one(TOPIC, new("m1"), producer="p1", call="7") is Stored.STORED
        with pytest.raises(StoreError, match="BELATED"):
            await store.produce_one(TOPIC, new("m2"), producer="p1", call="6")


@pytest.mark.parametrize(
    ("message", "refusal"),
    [
        (["m1", "urgent", "inf", "body"], "BADLANE urgent of message m1"),
        (["m1", "normal", "inf", "x" * 101], "TOOLARGE message m1 has 101 bytes, the limit is 100"),
        (["m1", "normal", "soon", "body"], "arithmetic on"),
    ],
)
async def test_what_makes_no_sense_is_refused_before_anything_is_written(
    redis: Redis, message: list[str], refusal: str
) -> None:
    async with unchanged(redis):
        with pytest.raises(ResponseError, match=refusal):
            await call(redis, NAME, keys_of(NAME), TOPIC, "c1", 100, "", *message, "")


async def test_names_and_size_are_checked_before_anything_is_sent(redis: Redis, keys: Keys) -> None:
    store = Store(redis, keys, max_bytes=10)
    async with unchanged(redis):
        for topic, id_ in (("a b", "m1"), (TOPIC, "m1:queue")):
            with pytest.raises(InvalidName):
                await store.produce_one(topic, NewMessage(id_, b""))
        with pytest.raises(MessageTooLarge):
            await store.produce_one(TOPIC, NewMessage("m1", b"x" * 11))
