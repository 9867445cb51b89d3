from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING

import pytest

from mx_rmq.errors import InvalidName, StoreError, WrongKeyType
from mx_rmq.storage.contract import Claim, Delivery, NewMessage, Settled, Want
from mx_rmq.storage.store import Store
from tests.harness import read_state
from tests.scripts.helpers import TOPIC, claim, lease, names, produce, spoil
from tests.words import PREFIX, new, out_of_memory, unchanged

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from mx_rmq.storage.keys import Keys
    from tests.harness import Clock


async def test_a_claimed_message_is_leased_until_a_deadline(store: Store, redis: Redis, clock: Clock) -> None:
    await produce(store, "m1")
    answer = await store.claim(TOPIC, 10, lease=15.0, holder="w1")
    token = f"1@{clock.us}"
    assert answer == Claim(
        now=clock.us / 1e6,
        deliveries=[Delivery("m1", TOPIC, token, b"body of m1", inf)],
        left=0,
        paused=False,
    )
    assert await read_state(redis) == {
        "payload": {"m1": "body of m1", "m1:queue": "orders"},
        "all_expire_monitor": {"m1": clock.ms + 15_000},
        "orders:processing": {"m1": f"{token} normal inf w1 run"},
    }


async def test_a_claim_counts_nothing_and_forgets_no_tool(store: Store, redis: Redis, clock: Clock) -> None:
    await produce(store, "m1")
    before = await read_state(redis, tools=True)
    await claim(store)
    after = await read_state(redis, tools=True)
    tools = ("topics", "counters")
    assert [after[tool] for tool in tools] == [before[tool] for tool in tools]
    assert after.keys() == {*tools, "fence", "payload", "all_expire_monitor", "orders:processing"}


async def test_urgent_messages_come_first_and_each_lane_in_its_order(
    store: Store, redis: Redis, clock: Clock
) -> None:
    for lane in ("low", "normal", "high"):
        await produce(store, f"{lane}1", f"{lane}2", lane=lane, ttl=60.0)
    expires = clock.ms + 60_000
    assert [delivery.id for delivery in await claim(store, 3)] == ["high1", "high2", "normal1"]
    first, first_end = clock.us, clock.ms + 15_000
    assert [delivery.id for delivery in await claim(store, holder="w2")] == ["normal2", "low1", "low2"]
    ids = ["low1", "low2", "normal1", "normal2", "high1", "high2"]
    assert await read_state(redis) == {
        "payload": {id_: f"body of {id_}" for id_ in ids} | {f"{id_}:queue": "orders" for id_ in ids},
        "all_expire_monitor": dict.fromkeys(ids, clock.ms + 15_000)
        | dict.fromkeys(["high1", "high2", "normal1"], first_end),
        "orders:processing": {
            "high1": f"1@{first} high {expires} w1 run",
            "high2": f"1@{first} high {expires} w1 run",
            "normal1": f"1@{first} normal {expires} w1 run",
            "normal2": f"1@{clock.us} normal {expires} w2 run",
            "low1": f"1@{clock.us} low {expires} w2 run",
            "low2": f"1@{clock.us} low {expires} w2 run",
        },
    }


async def test_the_wake_token_is_passed_on_while_more_is_pending(store: Store, redis: Redis) -> None:
    """One token wakes one worker, so the one that was woken must leave it for the next."""
    await produce(store, "m1", "m2", "m3")
    await redis.delete(PREFIX + "orders:wake")
    assert (await store.claim(TOPIC, 2, lease=15.0, holder="w1")).left == 1
    assert (await read_state(redis))["orders:wake"] == ["1"]
    assert (await store.claim(TOPIC, 2, lease=15.0, holder="w1")).left == 0
    assert "orders:wake" not in await read_state(redis)


async def test_a_claim_sent_again_leases_other_messages(store: Store, redis: Redis, clock: Clock) -> None:
    """Its reply was lost: what it leased waits for the monitor and is never leased twice at once."""
    await produce(store, "m1", "m2")
    (first,) = await claim(store, 1)
    (second,) = await claim(store, 1)
    assert (first.id, second.id) == ("m1", "m2")
    async with unchanged(redis):
        assert await claim(store, 1) == []
    assert (await read_state(redis))["orders:processing"] == {
        "m1": f"{first.token} normal inf w1 run",
        "m2": f"{second.token} normal inf w1 run",
    }


async def test_an_empty_topic_gives_nothing_and_loses_its_wake_token(store: Store, redis: Redis) -> None:
    await redis.lpush(PREFIX + "orders:wake", 1)
    answer = await store.claim(TOPIC, 10, lease=15.0, holder="w1")
    assert (answer.deliveries, answer.left, answer.paused) == ([], 0, False)
    assert await read_state(redis, tools=True) == {}


@pytest.mark.parametrize("limit", [0, -1])
async def test_a_worker_without_a_free_slot_gets_nothing(store: Store, redis: Redis, limit: int) -> None:
    await produce(store, "m1", "m2")
    async with unchanged(redis):
        answer = await store.claim(TOPIC, limit, lease=15.0, holder="w1")
        assert (answer.deliveries, answer.left) == ([], 2)


async def test_a_message_that_expired_is_leased_too_and_says_so(
    store: Store, redis: Redis, clock: Clock
) -> None:
    """The worker dead-letters it without a look; nothing is decided in the script."""
    await produce(store, "m1", ttl=1.0)
    expires = clock.ms + 1000
    clock.advance(2)
    answer = await store.claim(TOPIC, 10, lease=15.0, holder="w1")
    (delivery,) = answer.deliveries
    assert delivery.expires_at == expires / 1000 < answer.now
    assert await read_state(redis) == {
        "payload": {"m1": "body of m1", "m1:queue": "orders"},
        "all_expire_monitor": {"m1": clock.ms + 15_000},
        "orders:processing": {"m1": f"{delivery.token} normal {expires} w1 run"},
    }


async def test_every_lease_of_a_message_has_a_token_of_its_own(
    store: Store, redis: Redis, clock: Clock
) -> None:
    """The count survives release and retry, so no old token ever becomes good again."""
    tokens = []
    await produce(store, "m1", lane="low", ttl=600.0)
    expires = clock.ms + 600_000
    for settle in ("release", "retry", None):
        (delivery,) = await claim(store)
        tokens.append(delivery.token)
        at = clock.us
        if settle == "release":
            await store.release(TOPIC, [delivery])
        elif settle == "retry":
            await store.retry(TOPIC, [(delivery, 0.0, b"body of m1")])
            await store.promote()
        assert delivery.token == f"{len(tokens)}@{at}"
    assert await read_state(redis) == {
        "payload": {"m1": "body of m1", "m1:queue": "orders", "m1:keep": f"2 low {expires}"},
        "all_expire_monitor": {"m1": clock.ms + 15_000},
        "orders:processing": {"m1": f"{tokens[2]} low {expires} w1 run"},
    }


async def test_an_id_used_again_at_another_time_has_another_token(store: Store) -> None:
    """A count alone would begin again at one, and the first worker's token would be good again."""
    (first,) = await lease(store, "m1")
    await store.complete(TOPIC, [(first, 0.0)])
    (second,) = await lease(store, "m1")
    assert first.token != second.token
    assert await store.complete(TOPIC, [(first, 0.0)]) == [Settled.STALE]


async def test_a_paused_topic_delivers_nothing(store: Store, redis: Redis) -> None:
    await produce(store, "m1")
    await produce(store, "m2", topic="mails")
    await store.pause(TOPIC)
    async with unchanged(redis):
        answer = await store.claim(TOPIC, 10, lease=15.0, holder="w1")
        assert (answer.deliveries, answer.left, answer.paused) == ([], 0, True)
    assert [delivery.id for delivery in await claim(store, topic="mails")] == ["m2"]


# -- an entry is only a hint


async def test_an_entry_without_a_message_behind_it_is_dropped(
    store: Store, redis: Redis, clock: Clock
) -> None:
    """One broken entry of each kind, and the good ones around them are delivered all the same (I8)."""
    (leased,) = await lease(store, "leased")
    (retried,) = await lease(store, "retried")
    end = clock.ms + 15_000
    await store.retry(TOPIC, [(retried, 60.0, b"again")])
    due = clock.ms + 60_000
    await produce(store, "good1", "bodyless", "undated", "topicless", "good2")
    await produce(store, "foreign", topic="mails")
    await redis.hdel(PREFIX + "payload", "bodyless", "topicless:queue")
    await redis.zrem(PREFIX + "all_expire_monitor", "undated")
    hints = ("never-produced", "foreign", "retried", "leased", "good1", "good1:queue", "")
    await redis.rpush(PREFIX + "orders:pending", *hints)
    good = await store.claim(TOPIC, 1000, lease=15.0, holder="w2")
    assert [delivery.id for delivery in good.deliveries] == ["good1", "good2"]
    assert good.left == 0
    assert await read_state(redis) == {
        "payload": {
            "leased": "body of leased",
            "leased:queue": "orders",
            "retried": "again",
            "retried:queue": "orders",
            "retried:keep": "1 normal inf",
            "good1": "body of good1",
            "good1:queue": "orders",
            "bodyless:queue": "orders",
            "undated": "body of undated",
            "undated:queue": "orders",
            "topicless": "body of topicless",
            "good2": "body of good2",
            "good2:queue": "orders",
            "foreign": "body of foreign",
            "foreign:queue": "mails",
        },
        "all_expire_monitor": {
            "leased": end,
            "good1": clock.ms + 15_000,
            "good2": clock.ms + 15_000,
            "bodyless": inf,
            "topicless": inf,
            "foreign": inf,
        },
        "orders:processing": {
            "leased": f"{leased.token} normal inf w1 run",
            "good1": f"1@{clock.us} normal inf w2 run",
            "good2": f"1@{clock.us} normal inf w2 run",
        },
        "delay_tasks": {"retried": due},
        "delay_wake": ["1"],
        "mails:pending": ["foreign"],
        "mails:wake": ["1"],
    }


async def test_an_id_that_stands_in_the_lists_twice_is_leased_once(
    store: Store, redis: Redis, clock: Clock
) -> None:
    await produce(store, "m1", "m2")
    await redis.lpush(PREFIX + "orders:pending", "m1")
    await redis.lpush(PREFIX + "orders:pending:low", "m1", "m2")
    answer = await store.claim(TOPIC, 10, lease=15.0, holder="w1")
    assert [delivery.id for delivery in answer.deliveries] == ["m1", "m2"]
    assert answer.left == 0
    assert await read_state(redis) == {
        "payload": {"m1": "body of m1", "m1:queue": "orders", "m2": "body of m2", "m2:queue": "orders"},
        "all_expire_monitor": dict.fromkeys(["m1", "m2"], clock.ms + 15_000),
        "orders:processing": dict.fromkeys(["m1", "m2"], f"1@{clock.us} normal inf w1 run"),
    }


async def test_hints_do_not_use_up_the_limit(store: Store, redis: Redis) -> None:
    await redis.lpush(PREFIX + "orders:pending", *[f"hint{n}" for n in range(150)])
    await produce(store, "m1", "m2")
    answer = await store.claim(TOPIC, 1, lease=15.0, holder="w1")
    assert [delivery.id for delivery in answer.deliveries] == ["m1"]
    assert answer.left == 1


async def test_one_claim_looks_at_a_thousand_entries_at_most(store: Store, redis: Redis) -> None:
    """A long list of hints costs several short calls and stops nobody else for long (I8)."""
    await redis.lpush(PREFIX + "orders:pending", *[f"hint{n}" for n in range(1500)])
    await produce(store, "m1")
    await redis.delete(PREFIX + "orders:wake")
    answer = await store.claim(TOPIC, 10, lease=15.0, holder="w1")
    assert (answer.deliveries, answer.left) == ([], 501)
    assert (await read_state(redis))["orders:wake"] == ["1"]
    answer = await store.claim(TOPIC, 10, lease=15.0, holder="w1")
    assert ([delivery.id for delivery in answer.deliveries], answer.left) == (["m1"], 0)


# -- several topics in one call


async def claim_some(store: Store, *wants: Want, runs: int = 1000) -> list[tuple[list[str], int]]:
    """What each topic gave, and what it has left."""
    claims = await store.claim_some(wants, runs=runs, lease=15.0, holder="w1")
    return [([delivery.id for delivery in claim.deliveries], claim.left) for claim in claims]


async def test_several_topics_are_claimed_from_in_one_call(store: Store, redis: Redis, clock: Clock) -> None:
    await produce(store, "m1", "m2", ttl=60.0)
    expires = clock.ms + 60_000
    await produce(store, "n1", topic="mails", lane="low")
    answer = await store.claim_some(
        [Want("none", 9), Want("mails", 9), Want(TOPIC, 1)], runs=9, lease=15.0, holder="w1"
    )
    token = f"1@{clock.us}"
    assert answer == [
        Claim(clock.us / 1e6, [], 0, paused=False),
        Claim(clock.us / 1e6, [Delivery("n1", "mails", token, b"body of n1", inf)], 0, paused=False),
        Claim(clock.us / 1e6, [Delivery("m1", TOPIC, token, b"body of m1", expires / 1000)], 1, paused=False),
    ]
    assert await read_state(redis) == {
        "payload": {f"{id_}": f"body of {id_}" for id_ in ("m1", "m2", "n1")}
        | {"m1:queue": "orders", "m2:queue": "orders", "n1:queue": "mails"},
        "all_expire_monitor": {"m1": clock.ms + 15_000, "m2": expires, "n1": clock.ms + 15_000},
        "orders:processing": {"m1": f"{token} normal {expires} w1 run"},
        "mails:processing": {"n1": f"{token} low inf w1 run"},
        "orders:pending": ["m2"],
        "orders:wake": ["1"],
    }


async def test_the_first_topics_use_up_the_runs(store: Store) -> None:
    for topic in ("a", "b", "c"):
        await produce(store, f"{topic}1", f"{topic}2", f"{topic}3", topic=topic)
    wants = [Want("a", 2), Want("b", 9), Want("c", 9)]
    assert await claim_some(store, *wants, runs=3) == [(["a1", "a2"], 1), (["b1"], 2), ([], 3)]


async def test_a_batch_is_one_run(store: Store) -> None:
    await produce(store, *names(5), topic="a")
    await produce(store, "b1", "b2", topic="b")
    wants = [Want("a", 9, 2), Want("b", 9)]
    assert await claim_some(store, *wants, runs=2) == [(["m1", "m2", "m3", "m4"], 1), ([], 2)]
    assert await claim_some(store, *wants, runs=2) == [(["m5"], 0), (["b1"], 1)]


async def test_topics_that_got_nothing_keep_their_tokens(store: Store, redis: Redis) -> None:
    """The pop took the token of a topic for which no run was left."""
    await produce(store, "a1", "a2", topic="a")
    await produce(store, "b1", topic="b")
    await redis.delete(PREFIX + "a:wake", PREFIX + "b:wake")
    await claim_some(store, Want("a", 9), Want("b", 9), runs=1)
    state = await read_state(redis)
    assert (state["a:wake"], state["b:wake"]) == (["1"], ["1"])


async def test_a_paused_topic_and_a_broken_one_stop_no_other(store: Store, redis: Redis) -> None:
    for topic in ("a", "b", "c", "d"):
        await produce(store, f"{topic}1", topic=topic)
    await store.pause("a")
    await spoil(redis, "b:pending:low")
    await spoil(redis, "c:processing")
    wants = [Want(topic, 9) for topic in ("a", "b", "c", "d")]
    paused, lane, leases, good = await store.claim_some(wants, runs=9, lease=15.0, holder="w1")
    assert (paused.paused, paused.refusal, paused.deliveries) == (True, "", [])
    for broken in (lane, leases):
        assert "WRONGTYPE" in broken.refusal
        assert (broken.deliveries, broken.left, broken.paused) == ([], 0, False)
    assert [delivery.id for delivery in good.deliveries] == ["d1"]
    with pytest.raises(WrongKeyType, match="b:pending:low"):
        await claim(store, topic="b")


async def test_an_entry_of_another_topic_of_the_call_is_claimed_from_its_own(
    store: Store, redis: Redis
) -> None:
    await produce(store, "b1", topic="b")
    await redis.lpush(PREFIX + "a:pending", "b1")
    assert await claim_some(store, Want("a", 9), Want("b", 9)) == [([], 0), (["b1"], 0)]


async def test_all_topics_together_give_a_thousand_at_most(store: Store) -> None:
    await produce(store, *names(600), topic="a")
    await produce(store, *(f"b{n}" for n in range(600)), topic="b")
    (first, _), (second, left) = await claim_some(store, Want("a", 1000), Want("b", 1000))
    assert (len(first), len(second), left) == (600, 400, 200)


async def test_all_topics_together_give_no_more_than_a_reply_holds(store: Store) -> None:
    large = b"x" * 42_000
    for topic in ("a", "b"):
        await store.produce(topic, [NewMessage(f"{topic}{n}", large) for n in range(60)])
    (first, _), (second, left) = await claim_some(store, Want("a", 1000), Want("b", 1000))
    assert (len(first), len(second), left) == (60, 40, 20)


@pytest.mark.parametrize("topics", [1, 20])
async def test_a_claim_that_finds_nothing_costs_the_same_for_any_number_of_topics(
    store: Store, redis: Redis, topics: int
) -> None:
    wants = [Want(f"t{n}", 9) for n in range(topics)]
    await claim_some(store, *wants)
    await redis.config_resetstat()
    await claim_some(store, *wants)
    stats = await redis.info("commandstats")
    done = {name.removeprefix("cmdstat_"): row["calls"] for name, row in stats.items()}
    done.pop("config|resetstat", None)
    done.pop("hlen", None)  # a claim of one topic checks that it could be served
    assert done == {"evalsha": 1, "exists": 1, "hdel": 1}


# -- how many, how large


async def test_a_thousand_messages_are_leased_in_one_call(store: Store, redis: Redis, clock: Clock) -> None:
    ids = names(1000)
    await produce(store, *ids, lane="high")
    assert [delivery.id for delivery in await claim(store, 1000)] == ids
    assert await read_state(redis) == {
        "payload": {id_: f"body of {id_}" for id_ in ids} | {f"{id_}:queue": "orders" for id_ in ids},
        "all_expire_monitor": dict.fromkeys(ids, clock.ms + 15_000),
        "orders:processing": dict.fromkeys(ids, f"1@{clock.us} high inf w1 run"),
    }


async def test_nobody_gets_more_than_a_thousand_at_once(store: Store) -> None:
    await produce(store, *names(1000))
    await produce(store, "last1", "last2", lane="low")
    answer = await store.claim(TOPIC, 5000, lease=15.0, holder="w1")
    assert [delivery.id for delivery in answer.deliveries] == names(1000)
    assert answer.left == 2


async def test_large_bodies_end_a_claim_early(store: Store) -> None:
    """A reply of many megabytes would stall the server for everybody."""
    large = b"x" * 42_000
    await store.produce(TOPIC, [NewMessage(id_, large) for id_ in names(102)])
    answer = await store.claim(TOPIC, 1000, lease=15.0, holder="w1")
    assert (len(answer.deliveries), answer.left) == (100, 2)
    answer = await store.claim(TOPIC, 1000, lease=15.0, holder="w1")
    assert (len(answer.deliveries), answer.left) == (2, 0)


async def test_a_holder_whose_name_would_break_the_lease_is_refused(store: Store, redis: Redis) -> None:
    """A lease is read word by word; a name of two words would hide why the message is held."""
    await produce(store, "m1")
    async with unchanged(redis):
        for holder in ("my worker", "", "w\n"):
            with pytest.raises(InvalidName, match="worker"):
                await store.claim(TOPIC, 1, lease=15.0, holder=holder)


@pytest.mark.parametrize("limit", ["many", "1.5"])
async def test_a_limit_that_makes_no_sense_is_refused_before_anything_is_taken(
    store: Store, redis: Redis, limit: str
) -> None:
    await produce(store, "m1")
    async with unchanged(redis):
        with pytest.raises(StoreError, match="claim_message"):
            await store.claim(TOPIC, limit, lease=15.0, holder="w1")  # type: ignore[arg-type]


async def test_without_a_given_time_the_clock_of_the_server_counts(redis: Redis, keys: Keys) -> None:
    store = Store(redis, keys)
    await store.produce(TOPIC, [new("m1")])
    before = await redis.time()
    answer = await store.claim(TOPIC, 1, lease=15.0, holder="w1")
    after = await redis.time()
    assert before[0] + before[1] / 1e6 <= answer.now <= after[0] + after[1] / 1e6
    claimed_us = int(answer.deliveries[0].token.removeprefix("1@"))
    assert claimed_us == round(answer.now * 1e6)
    assert (await read_state(redis))["all_expire_monitor"] == {"m1": claimed_us // 1000 + 15_000}


# -- a server in trouble


@pytest.mark.parametrize(
    "key",
    [
        "payload",
        "all_expire_monitor",
        "orders:processing",
        "orders:pending:high",
        "orders:pending",
        "orders:pending:low",
    ],
)
async def test_a_key_of_another_type_is_named_and_nothing_is_taken(
    store: Store, redis: Redis, key: str
) -> None:
    for lane in ("high", "normal", "low"):
        await produce(store, lane, lane=lane)
    await spoil(redis, key)
    async with unchanged(redis):
        with pytest.raises(WrongKeyType, match=key):
            await claim(store)


@pytest.mark.parametrize("key", ["orders:wake", "paused"])
async def test_what_the_lease_does_not_need_cannot_stop_it(store: Store, redis: Redis, key: str) -> None:
    await produce(store, "m1", "m2")
    await spoil(redis, key)
    assert [delivery.id for delivery in await claim(store, 1)] == ["m1"]
    assert (await read_state(redis))[key] == "something else"


async def test_a_server_without_memory_still_delivers(store: Store, redis: Redis, clock: Clock) -> None:
    """Only workers can make room again."""
    await produce(store, "m1", "m2")
    async with out_of_memory(redis):
        (delivery,) = await claim(store, 1)
    assert await read_state(redis) == {
        "payload": {"m1": "body of m1", "m1:queue": "orders", "m2": "body of m2", "m2:queue": "orders"},
        "all_expire_monitor": {"m1": clock.ms + 15_000, "m2": inf},
        "orders:processing": {"m1": f"{delivery.token} normal inf w1 run"},
        "orders:pending": ["m2"],
        "orders:wake": ["1"],
    }
