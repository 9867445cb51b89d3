"""Messages of a topic in one state, page by page."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

import pytest

from mx_rmq import ConfigError, InvalidName, RedisMessageQueue
from mx_rmq.operating.messages import STATES
from mx_rmq.storage.contract import NewMessage
from tests.harness import command
from tests.words import PREFIX, bury, claim, in_order, put_bytes, store_of, unchanged

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from mx_rmq import MessageFacts
    from mx_rmq.message import Lane
    from mx_rmq.operating.messages import Asked, Listed
    from tests.proxy import Proxy


BOTH = {"processing": {"running", "held"}}


async def pages(
    queue: RedisMessageQueue,
    topic: str = "t",
    *,
    state: Asked = "pending",
    limit: int = 50,
    reverse: bool = False,
) -> list[list[MessageFacts]]:
    """All pages."""
    found, after = [], None
    while True:
        page = await queue.list(topic, state=state, limit=limit, after=after, reverse=reverse)
        assert len(page.messages) <= limit
        assert {facts.state for facts in page.messages} <= BOTH.get(state, {state})
        found.append(page.messages)
        if page.next is None:
            return found
        assert page.next != after
        after = page.next


async def ids_of(queue: RedisMessageQueue, topic: str = "t", **options: Any) -> list[str]:
    return [facts.id for page in await pages(queue, topic, **options) for facts in page]


@pytest.mark.parametrize("state", STATES)
async def test_a_topic_without_messages_has_one_empty_page(
    queue: RedisMessageQueue, redis: Redis, state: Listed
) -> None:
    async with unchanged(redis):
        page = await queue.list("t", state=state)
    assert (page.messages, page.next) == ([], None)


# -- pending


async def test_pending_messages_are_listed_in_the_order_in_which_they_will_run(
    queue: RedisMessageQueue, redis: Redis
) -> None:
    for n in range(40):
        await queue.produce("t", n, priority="low" if n % 3 == 0 else "high" if n % 3 == 1 else "normal")
    await queue.produce("other", 1)
    expected = await in_order(redis)
    for limit in (1, 7, 40, 41):
        assert await ids_of(queue, limit=limit) == expected
    (first, *_) = (await queue.list("t")).messages
    assert first.payload == 1
    assert (first.topic, first.attempts, first.last_error, first.holder) == ("t", 0, "", None)
    assert first.created_at is not None
    assert abs(first.created_at - time.time()) < 60


async def test_a_full_page_knows_whether_it_is_the_last(queue: RedisMessageQueue) -> None:
    await queue.produce_many("t", range(10))
    assert (await queue.list("t", limit=10)).next is None
    assert (await queue.list("t", limit=9)).next is not None


async def test_thousands_are_listed_once_each(queue: RedisMessageQueue, redis: Redis) -> None:
    ids = [str(receipt) for receipt in await queue.produce_many("t", range(2300))]
    found = await pages(queue, limit=700)
    assert [facts.id for page in found for facts in page] == ids
    assert [len(page) for page in found] == [700, 700, 700, 200]


async def test_entries_that_no_claim_delivers_are_not_listed(queue: RedisMessageQueue, redis: Redis) -> None:
    """Cancelled, delayed or of another topic: their old entries are skipped, also hundreds in a row.

    One that was produced again runs from its old entry, and is listed there and at its new one.
    """
    for n in range(1500):
        await store_of(redis).produce("t", [NewMessage(f"m{n:04}", b"{}")])
    await store_of(redis).cancel([f"m{n:04}" for n in range(1, 900)])
    await queue.produce("t", 1, message_id="m0005", delay=60)
    await queue.produce("other", 1, message_id="m0006")
    await queue.produce("t", 1, message_id="m0007")
    found = await ids_of(queue, limit=100)
    assert found[:2] == ["m0000", "m0007"]
    assert found[2:] == [*(f"m{n:04}" for n in range(900, 1500)), "m0007"]
    assert [delivery.id for delivery in await claim(redis, limit=3)] == found[:3]


async def test_a_page_continues_where_the_one_before_ended_though_others_were_claimed(
    queue: RedisMessageQueue, redis: Redis
) -> None:
    ids = [str(receipt) for receipt in await queue.produce_many("t", range(300))]
    first = await queue.list("t", limit=100)
    await claim(redis, limit=60)
    more = [str(receipt) for receipt in await queue.produce_many("t", range(10))]
    second = await queue.list("t", limit=100, after=first.next)
    assert [facts.id for facts in second.messages] == ids[100:200]
    await claim(redis, limit=500)
    await queue.produce_many("t", range(5))
    third = await queue.list("t", limit=100, after=second.next)
    assert third.messages == []  # the place is gone, and the rest stands before it
    assert more


# -- running and held


async def test_running_and_held_messages_are_listed_with_their_holders(
    queue: RedisMessageQueue, redis: Redis
) -> None:
    store = store_of(redis)
    for n in range(12):
        await queue.produce("t", n, message_id=f"m{n:02}")
        await store.claim("t", 1, lease=20, holder=("w1", "w2")[n % 2])
    facts = b'{"topics":["t"],"concurrency":9,"load":{"t":[4,2]}}'
    await store.register_worker("w1", facts, silence=30)
    await store.register_worker("w2", b'{"topics":["t"],"concurrency":9}', silence=30)
    running, held = await ids_of(queue, state="running", limit=4), await ids_of(queue, state="held", limit=1)
    assert held == ["m08", "m10"]
    assert running == [f"m{n:02}" for n in range(12) if n not in (8, 10)]
    assert await ids_of(queue, state="processing", limit=5) == [f"m{n:02}" for n in range(12)]
    both = (await queue.list("t", state="processing")).messages
    assert [facts.id for facts in both if facts.state == "held"] == held
    (first, *_) = (await queue.list("t", state="held")).messages
    assert (first.holder, first.payload) == ("w1", 8)
    now = time.time()
    assert first.claimed_at is not None
    assert first.lease_until is not None
    assert abs(first.claimed_at - now) < 15
    assert abs(first.lease_until - now - 20) < 15
    assert (await queue.counts()).topics["t"].held == 2


async def test_a_thousand_of_one_claim_are_listed_once_each(queue: RedisMessageQueue, redis: Redis) -> None:
    ids = [str(receipt) for receipt in await queue.produce_many("t", range(700))]
    await claim(redis)
    assert await ids_of(queue, state="running", limit=300) == ids


# -- delayed


async def test_delayed_messages_are_listed_by_due_time(queue: RedisMessageQueue, redis: Redis) -> None:
    for n in range(30):
        await queue.produce("t" if n % 3 else "other", n, message_id=f"m{n:02}", delay=100 - n, ttl=60)
    expected = [f"m{n:02}" for n in reversed(range(30)) if n % 3]
    for limit in (1, 7, 20, 21):
        assert await ids_of(queue, state="delayed", limit=limit) == expected
    (first, *_) = (await queue.list("t", state="delayed")).messages
    assert first.due_at is not None
    assert first.expires_at is not None
    assert abs(first.due_at - time.time() - 71) < 15
    assert abs(first.expires_at - first.due_at - 60) < 1


async def test_many_messages_due_at_the_same_time_are_listed_once_each(
    queue: RedisMessageQueue, redis: Redis
) -> None:
    ids = [str(receipt) for receipt in await queue.produce_many("t", range(1700), delay=60)]
    await queue.produce_many("other", range(1700), delay=60)
    mapping = dict.fromkeys([*ids, *(await ids_of(queue, "other", state="delayed", limit=1000))], 4e12)
    await redis.zadd(f"{PREFIX}delay_tasks", mapping)
    assert sorted(await ids_of(queue, state="delayed", limit=450)) == sorted(ids)


async def test_a_call_looks_at_a_limited_number_of_other_topics_messages(
    queue: RedisMessageQueue, redis: Redis, proxy: Proxy
) -> None:
    """Then the page is short, and its next leads on."""
    for _ in range(12):
        await queue.produce_many("other", range(1000), delay=60)
    await queue.produce("t", 1, message_id="last", delay=3600)
    async with RedisMessageQueue(proxy.url, name="q", server_check="off") as watched:
        page = await watched.list("t", state="delayed")
        assert page.messages == []
        assert page.next is not None
        assert len(proxy.commands) < 100
        page = await watched.list("t", state="delayed", after=page.next)
        assert [facts.id for facts in page.messages] == ["last"]
        assert page.next is None


async def test_a_message_that_failed_and_waits_says_how_it_failed(
    queue: RedisMessageQueue, redis: Redis
) -> None:
    failed = asyncio.Event()

    @queue.handler("t")
    async def handle(payload: int) -> None:
        failed.set()
        raise ValueError("no")

    await queue.produce("t", 1, message_id="A1")
    await queue.start()
    await failed.wait()
    await queue.stop()
    (facts,) = (await queue.list("t", state="delayed")).messages
    assert (facts.attempts, facts.last_error) == (1, "ValueError: no")


# -- dead


async def test_dead_messages_are_listed_with_their_errors(queue: RedisMessageQueue, redis: Redis) -> None:
    for n in range(5):
        await queue.produce("t", n, message_id=f"m{n}")
        await bury(redis)
    await queue.produce("other", 1)
    await bury(redis, topic="other")
    found = await pages(queue, state="dead", limit=2)
    assert sorted(facts.id for page in found for facts in page) == [f"m{n}" for n in range(5)]
    assert [len(page) for page in found] == [2, 2, 1]
    facts = found[0][0]
    assert (facts.reason, facts.last_error, facts.attempts) == ("failed", "ValueError: no", 1)
    assert facts.died_at is not None


async def test_a_call_looks_at_a_limited_number_of_other_topics_dead(
    queue: RedisMessageQueue, redis: Redis
) -> None:
    """12,000 dead messages of another topic between two: a call ends early, and its next leads further."""
    await queue.produce("t", 1, message_id="rare")
    await bury(redis)
    for _ in range(12):
        await queue.produce_many("many", range(1000))
        await bury(redis, topic="many")
    await queue.produce("t", 1, message_id="late")
    await bury(redis)
    first = await queue.list("t", state="dead")
    assert ([facts.id for facts in first.messages], first.next is None) == (["late"], False)
    second = await queue.list("t", state="dead", after=first.next)
    assert (second.messages, second.next is None) == ([], False)
    assert await ids_of(queue, state="dead") == ["late", "rare"]
    first = await queue.list("t", state="dead", reverse=True)
    assert ([facts.id for facts in first.messages], first.next is None) == (["rare"], False)


@pytest.mark.parametrize("reverse", [False, True])
async def test_thousands_that_are_due_at_the_same_instant_are_listed_once_each(
    queue: RedisMessageQueue, redis: Redis, reverse: bool
) -> None:
    """So many that a page is found by rank, among others that are due before and after."""
    await queue.produce_many("t", range(100), delay=10)
    await queue.produce_many("t", range(3500), delay=60)
    await queue.produce_many("t", range(100), delay=90)
    same: list[Any] = await redis.zrange(f"{PREFIX}delay_tasks", 100, 3599, withscores=True)
    due = same[0][1]  # by themselves, chunks of one call have instants of their own
    await redis.zadd(f"{PREFIX}delay_tasks", {id_: due for id_, _ in same})
    found = await ids_of(queue, state="delayed", limit=400, reverse=reverse)
    assert len(found) == len(set(found)) == 3700


async def test_the_few_dead_of_a_topic_are_found_at_once(queue: RedisMessageQueue, redis: Redis) -> None:
    """They are behind more messages of another topic than a call looks at, in either order."""
    for topic, count in (("many", 6), ("t", 1), ("many", 6)):
        for _ in range(count):
            await queue.produce_many(topic, range(1000 if topic == "many" else 2))
            await bury(redis, topic=topic)
    for reverse in (False, True):
        page = await queue.list("t", state="dead", reverse=reverse)
        assert [facts.topic for facts in page.messages] == ["t", "t"]


async def test_dead_messages_in_no_group_are_found_too(queue: RedisMessageQueue, redis: Redis) -> None:
    """Where some are not counted, the groups do not say where a topic's first and last are."""
    for n in range(3):
        await queue.produce("t", n, message_id=f"m{n}")
        await bury(redis)
    (group,) = await queue.dlq.groups()
    await redis.hdel("mx-rmq:{q}:dlq_groups", f"{group.id}:count")
    await queue.produce("u", 1)
    await bury(redis, topic="u")
    assert await ids_of(queue, state="dead") == ["m2", "m1", "m0"]


# -- the other way round


@pytest.mark.parametrize("limit", [1, 3, 7, 500])
@pytest.mark.parametrize("state", ["pending", "processing", "delayed", "dead"])
async def test_every_list_can_be_read_from_its_other_end(
    queue: RedisMessageQueue, redis: Redis, state: Asked, limit: int
) -> None:
    lanes: list[Lane] = ["low", "high", "normal"]
    for n in range(30 if limit > 1 else 12):
        delay = 60 + n % 4 if state == "delayed" else 0
        await queue.produce("t", n, message_id=f"m{n:02}", delay=delay, priority=lanes[n % 3])
        if state == "dead" and n % 3 == 2:
            await bury(redis)
        if state == "processing" and n % 3 == 2:
            await claim(redis)
    forth = await ids_of(queue, state=state, limit=limit)
    assert len(forth) == (30 if limit > 1 else 12)
    assert await ids_of(queue, state=state, limit=limit, reverse=True) == forth[::-1]


async def test_a_reversed_page_continues_though_messages_arrived(queue: RedisMessageQueue) -> None:
    for n in range(10):
        await queue.produce("t", n, message_id=f"m{n}")
    first = await queue.list("t", limit=3, reverse=True)
    assert [facts.id for facts in first.messages] == ["m9", "m8", "m7"]
    await queue.produce_many("t", range(100))
    second = await queue.list("t", limit=3, after=first.next, reverse=True)
    assert [facts.id for facts in second.messages] == ["m6", "m5", "m4"]


async def test_thousands_are_listed_in_reverse_once_each(queue: RedisMessageQueue, redis: Redis) -> None:
    for _ in range(3):
        await queue.produce_many("t", range(1000))
    assert await ids_of(queue, limit=700, reverse=True) == (await in_order(redis))[::-1]


@pytest.mark.parametrize("state", ["pending", "delayed", "dead", "running"])
async def test_the_next_of_the_other_order_is_refused(
    queue: RedisMessageQueue, redis: Redis, state: Listed
) -> None:
    await queue.produce_many("t", range(5), delay=60 if state == "delayed" else 0)
    if state == "dead":
        await bury(redis)
    if state == "running":
        await claim(redis)
    page = await queue.list("t", state=state, limit=2)
    assert page.next is not None
    with pytest.raises(ConfigError, match=f"an earlier page of {state} messages in reverse, got"):
        await queue.list("t", state=state, limit=2, after=page.next, reverse=True)


# -- what may go wrong


@pytest.mark.parametrize("state", ["pending", "running", "delayed"])
async def test_unreadable_messages_are_listed(queue: RedisMessageQueue, redis: Redis, state: Listed) -> None:
    if state == "delayed":
        await store_of(redis).produce_delayed("t", [NewMessage("bad", b"\xff", delay=60)])
    else:
        await put_bytes(redis, "bad", b"\xff")
    if state == "running":
        await claim(redis)
    (facts,) = (await queue.list("t", state=state)).messages
    assert (facts.id, facts.state, facts.message, facts.payload) == ("bad", state, None, None)
    assert (facts.created_at, facts.attempts, facts.last_error) == (None, 0, "")


async def test_large_bodies_come_some_at_a_time(queue: RedisMessageQueue, redis: Redis, proxy: Proxy) -> None:
    for _ in range(12):
        await queue.produce("t", "x" * 700_000)
    async with RedisMessageQueue(proxy.url, name="q", server_check="off") as watched:
        assert len((await watched.list("t", limit=12)).messages) == 12
    assert proxy.longest_reply < 4_300_000


async def test_due_times_of_another_program_stop_nothing(queue: RedisMessageQueue, redis: Redis) -> None:
    scores = ["-inf", "-1e+300", "0.5", "1e+300", "inf"]
    for n, score in enumerate(scores):
        await queue.produce("t", 1, message_id=f"m{n}", delay=60)
        await command(redis, "ZADD", f"{PREFIX}delay_tasks", score, f"m{n}")
    assert await ids_of(queue, state="delayed", limit=1) == [f"m{n}" for n in range(5)]


@pytest.mark.parametrize(
    "after",
    [
        "",
        "x",
        "pending",
        "pending,0",
        "pending,1,",
        "pending,-1,",
        "pending,0,urgent,5,x",
        "pending,0,high,-5,x",
        "pending,0,high,x,x",
        "delayed,0,",
        "running,0,5,x",
        5,
    ],
)
async def test_what_is_no_next_is_refused(queue: RedisMessageQueue, after: Any) -> None:
    with pytest.raises(
        ConfigError, match="after must be the next of an earlier page of pending messages, got"
    ):
        await queue.list("t", after=after)


@pytest.mark.parametrize(
    ("state", "after"),
    [
        ("delayed", "delayed,0,nan,0"),
        ("delayed", "delayed,0,1_0,0"),
        ("delayed", "delayed,0,1"),
        ("delayed", "delayed,0,1,2,3"),
        ("running", "running,0,x,y"),
        ("held", "running,0,5,y"),
        ("dead", "dead,0,x"),
        ("dead", "dead,0,0.x"),
    ],
)
async def test_what_is_no_next_of_this_state_is_refused(
    queue: RedisMessageQueue, state: Listed, after: str
) -> None:
    with pytest.raises(ConfigError, match="after must be the next of an earlier page"):
        await queue.list("t", state=state, after=after)


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"state": "done"}, "state must be 'pending', 'running', 'held', 'delayed', 'dead' or 'processing'"),
        ({"state": None}, "state must be"),
        ({"limit": 0}, "limit must be a whole number from 1 to 1000, got 0"),
        ({"limit": 1001}, "limit must be"),
        ({"limit": "5"}, "limit must be"),
    ],
)
async def test_what_makes_no_sense_is_refused(
    queue: RedisMessageQueue, options: dict[str, Any], error: str
) -> None:
    with pytest.raises(ConfigError, match=error):
        await queue.list("t", **options)


async def test_what_cannot_be_a_topic_is_refused(queue: RedisMessageQueue) -> None:
    with pytest.raises(InvalidName, match="topic"):
        await queue.list("a b")
