from __future__ import annotations

import asyncio
import os
import re
import time
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from mx_rmq import InvalidName, RedisMessageQueue
from mx_rmq.message import PastAttempt, decode_message, encode_message
from mx_rmq.storage.connection import Connection
from mx_rmq.storage.contract import Delivery, NewMessage
from mx_rmq.storage.keys import Keys
from mx_rmq.storage.queries import Queries
from mx_rmq.storage.store import Store
from tests.harness import command
from tests.words import PREFIX, bury, claim, complete, drained, eventually, in_state, message, store_of

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from redis.asyncio import Redis

    from mx_rmq.message import Lane
    from mx_rmq.storage.embedded import EmbeddedServer
    from tests.proxy import Proxy
    from tests.words import MakeQueue

INSTANT = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC"
FACTS = b'{"topics":["t"],"concurrency":4,"pid":7,"started_at":1.5}'


async def live(redis: Redis, name: str, *topics: str, ago: float = 0.0) -> None:
    """A worker that says that it lives, or said so a while ago."""
    store = Store(redis, Keys("q"), now=lambda: int((time.time() - ago) * 1e6))
    facts = b'{"topics":[%b]}' % b",".join(b'"%b"' % topic.encode() for topic in topics)
    await store.register_worker(name, facts, silence=1e6)


async def retried(redis: Redis, delay: float, topic: str = "t") -> None:
    """What is pending fails once and is delayed."""
    failed = []
    for delivery in await claim(redis, topic):
        message = decode_message(delivery.body, delivery.id, delivery.topic)
        message.attempts += 1
        message.remember(PastAttempt(at=time.time(), worker="w1", error="ValueError: no"))
        failed.append((delivery, delay, encode_message(message)))
    await store_of(redis).retry(topic, failed)


def about(instant: float | None, now: float, within: float = 5.0) -> bool:
    return instant is not None and abs(instant - now) <= within


# -- get


async def test_a_pending_message(queue: RedisMessageQueue) -> None:
    await queue.produce("t", {"a": 1}, message_id="A1", ttl=60)
    facts = await queue.find("A1")
    assert (facts.id, facts.state, facts.topic) == ("A1", "pending", "t")
    assert about(facts.expires_at, time.time() + 60)
    assert facts.message is not None
    assert bytes(facts.message.payload) == b'{"a":1}'
    assert (facts.due_at, facts.holder, facts.died_at) == (None, None, None)


async def test_a_message_without_an_end(queue: RedisMessageQueue) -> None:
    await queue.produce("t", 1, message_id="A1", ttl=None)
    assert (await queue.find("A1")).expires_at == float("inf")
    await queue.produce("t", 1, message_id="A2", ttl=None, delay=60)
    assert (await queue.find("A2")).expires_at == float("inf")


async def test_a_delayed_message(queue: RedisMessageQueue) -> None:
    await queue.produce("t", 1, message_id="A1", delay=100, ttl=60)
    facts = await queue.find("A1")
    assert (facts.state, facts.topic) == ("delayed", "t")
    assert about(facts.due_at, time.time() + 100)
    assert about(facts.expires_at, time.time() + 160)


async def test_a_running_message(queue: RedisMessageQueue, redis: Redis) -> None:
    await queue.produce("t", 1, message_id="A1", ttl=600)
    await claim(redis, lease=20)
    facts = await queue.find("A1")
    assert (facts.state, facts.topic, facts.holder) == ("running", "t", "w1")
    assert about(facts.claimed_at, time.time())
    assert about(facts.lease_until, time.time() + 20)
    assert about(facts.expires_at, time.time() + 600)


async def test_a_message_that_failed_and_waits(queue: RedisMessageQueue, redis: Redis) -> None:
    await queue.produce("t", 1, message_id="A1", ttl=600)
    await retried(redis, 50)
    facts = await queue.find("A1")
    assert facts.state == "delayed"
    assert about(facts.due_at, time.time() + 50)
    assert about(facts.expires_at, time.time() + 600)
    assert facts.message is not None
    assert facts.message.attempts == 1
    assert [attempt.error for attempt in facts.message.history] == ["ValueError: no"]


async def test_a_dead_message(queue: RedisMessageQueue, redis: Redis) -> None:
    await queue.produce("t", 1, message_id="A1")
    await bury(redis)
    facts = await queue.find("A1")
    assert (facts.state, facts.topic, facts.reason, facts.error) == ("dead", "t", "failed", "ValueError: no")
    assert about(facts.died_at, time.time())
    assert facts.message is not None
    assert facts.message.attempts == 1


@pytest.mark.parametrize("ending", ["never", "completed", "cancelled", "deleted"])
async def test_a_message_that_is_gone(queue: RedisMessageQueue, redis: Redis, ending: str) -> None:
    if ending != "never":
        await queue.produce("t", 1, message_id="A1")
    if ending == "completed":
        await complete(redis)
    if ending == "cancelled":
        await queue.cancel("A1")
    if ending == "deleted":
        await bury(redis)
        await queue.dlq.delete("A1")
    facts = await queue.find("A1")
    assert (facts.id, facts.state, facts.topic, facts.message) == ("A1", "gone", "", None)
    assert await queue.explain("A1") == (
        "there is no message A1: it was completed, cancelled, deleted or never produced"
    )


@pytest.mark.parametrize("state", ["pending", "delayed", "running", "dead"])
async def test_unreadable_bytes_are_found_in_every_state(
    queue: RedisMessageQueue, redis: Redis, state: str
) -> None:
    bad = NewMessage("bad", b"\xff\x00 nonsense", delay=60 if state == "delayed" else 0)
    store = store_of(redis)
    await (store.produce_delayed if bad.delay else store.produce)("t", [bad])
    if state in ("running", "dead"):
        (delivery,) = await claim(redis)
        if state == "dead":
            await store.move_to_dlq("t", [(delivery, b"", b"\xfe why")])
    facts = await queue.find("bad")
    assert (facts.state, facts.topic, facts.message) == (state, "t", None)
    assert facts.body == b"\xff\x00 nonsense"
    assert "stored bytes are not a message" in facts.unreadable
    assert facts.as_dict()["body"] == "ff00206e6f6e73656e7365"
    assert "ff 00 20 6e" in str(facts)
    assert "message bad of topic 't'" in await queue.explain("bad")


@pytest.mark.parametrize("id_", ["", "A1:queue", "A1:keep", "{x}", "x" * 129, None])
async def test_what_cannot_be_an_id_is_refused(queue: RedisMessageQueue, id_: Any) -> None:
    """Fields beside a message's body are no messages."""
    await queue.produce("t", 1, message_id="A1", delay=5)
    for ask in (queue.find, queue.explain, queue.cancel):
        with pytest.raises(InvalidName, match="message id"):
            await ask(id_)


@pytest.mark.parametrize("lease", ["nonsense", "x@y", "1@2 normal", "1@x normal y w1 run"])
async def test_a_lease_that_cannot_be_read_is_still_a_lease(
    queue: RedisMessageQueue, redis: Redis, lease: str
) -> None:
    await queue.produce("t", 1, message_id="A1")
    await claim(redis)
    await command(redis, "HSET", f"{PREFIX}t:processing", "A1", lease)
    assert (await queue.find("A1")).state == "running"
    assert "has been running on an unknown holder;" in await queue.explain("A1")


# -- explain


STRANGE = [1e300, 1e20, -1e300, 1e17, "inf", "-inf"]


@pytest.mark.parametrize("score", STRANGE)
@pytest.mark.parametrize("place", ["pending", "running", "delayed", "dead"])
async def test_a_time_that_cannot_be_read_is_no_reason_to_say_nothing(
    queue: RedisMessageQueue, redis: Redis, place: str, score: float | str
) -> None:
    """Another program may have written any number."""
    await queue.produce("t", 1, message_id="A1", delay=60 if place == "delayed" else 0)
    if place == "running":
        await claim(redis)
    if place == "dead":
        await bury(redis)
    part = {"delayed": "delay_tasks", "dead": "dlq"}.get(place, "all_expire_monitor")
    await command(redis, "ZADD", PREFIX + part, score, "A1")
    assert (await queue.find("A1")).state == place
    said = await queue.explain("A1")
    assert said.startswith("message A1 of topic 't' ")
    if place != "pending" and score != "inf":
        assert "an unreadable time" in said


@pytest.mark.parametrize("claimed", ["9" * 400, "9" * 5000, "9" * 16, "-5", "x"])
async def test_a_lease_since_a_time_that_cannot_be_read_is_explained(
    queue: RedisMessageQueue, redis: Redis, claimed: str
) -> None:
    await queue.produce("t", 1, message_id="A1")
    await claim(redis)
    await command(redis, "HSET", PREFIX + "t:processing", "A1", f"1@{claimed} normal inf w1 run")
    assert (await queue.find("A1")).state == "running"
    assert "has been running on" in await queue.explain("A1")


async def explained(queue: RedisMessageQueue, id_: str = "A1") -> str:
    """The sentence, every instant in it replaced by a word."""
    return re.sub(INSTANT, "<then>", await queue.explain(id_))


async def test_why_a_delayed_message_has_not_run(queue: RedisMessageQueue) -> None:
    await queue.produce("t", 1, message_id="A1", delay=3600)
    assert await explained(queue) == "message A1 of topic 't' is delayed until <then>"
    facts = await queue.find("A1")
    assert facts.due_at is not None
    then = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(facts.due_at))
    assert then in await queue.explain("A1")


async def test_why_a_failed_message_has_not_run_again(queue: RedisMessageQueue, redis: Redis) -> None:
    await queue.produce("t", 1, message_id="A1")
    await retried(redis, 3600)
    assert await explained(queue) == (
        "message A1 of topic 't' is delayed after 1 failed attempt until <then>"
    )


async def test_why_a_message_that_is_due_has_not_moved(queue: RedisMessageQueue, redis: Redis) -> None:
    await queue.produce("t", 1, message_id="A1", delay=0.001)

    async def due() -> bool:
        return "was delayed" in await queue.explain("A1")

    await eventually(due)
    assert await explained(queue) == (
        "message A1 of topic 't' was delayed until <then>: no live worker is there to move it"
    )
    await live(redis, "w1", "other")
    assert (await explained(queue)).endswith("<then>: 1 worker will move it shortly")


async def test_why_a_message_of_a_paused_topic_has_not_run(queue: RedisMessageQueue, redis: Redis) -> None:
    await queue.produce("t", 1, message_id="A1")
    await live(redis, "w1", "t")
    await queue.pause("t")
    assert await explained(queue) == ("message A1 of topic 't' is pending: the topic is paused")
    await queue.resume("t")
    assert "paused" not in await explained(queue)


async def test_why_a_message_without_a_worker_has_not_run(queue: RedisMessageQueue, redis: Redis) -> None:
    await queue.produce("t", 1, message_id="A1")
    sentence = "message A1 of topic 't' is pending: no live worker has a handler for the topic"
    assert await explained(queue) == sentence
    await live(redis, "w1", "other")
    assert await explained(queue) == f"{sentence}; 1 worker for other topics"
    await live(redis, "w2", "more")
    assert await explained(queue) == f"{sentence}; 2 workers for other topics"


async def test_a_worker_that_vanished_does_not_count(queue: RedisMessageQueue, redis: Redis) -> None:
    """When the last one was killed, nobody is left to forget it."""
    await queue.produce("t", 1, message_id="A1")
    await live(redis, "w1", "t", ago=31)
    assert await queue.workers() == []
    assert "no live worker has a handler for the topic" in await explained(queue)
    await live(redis, "w2", "t", ago=20)
    assert [worker.name for worker in await queue.workers()] == ["w2"]


async def test_why_a_message_in_a_busy_topic_has_not_run(queue: RedisMessageQueue, redis: Redis) -> None:
    await queue.produce_many("t", range(3))
    await claim(redis)
    await queue.produce("t", 1)
    await queue.produce("t", 1, message_id="A1")
    await live(redis, "w1", "t")
    assert await explained(queue) == (
        "message A1 of topic 't' is pending: the topic is served by 1 worker, "
        "with 3 running, 0 held ready and 2 waiting"
    )
    await live(redis, "w2", "t", "other")
    assert "served by 2 workers" in await explained(queue)


async def test_why_an_expired_message_has_not_run(queue: RedisMessageQueue, redis: Redis) -> None:
    await queue.produce("t", 1, message_id="A1", ttl=0.001)

    async def expired() -> bool:
        return "lifetime ended" in await queue.explain("A1")

    await eventually(expired)
    assert await explained(queue) == (
        "message A1 of topic 't' is pending: its lifetime ended at <then>; no live worker is there to move it"
    )


async def test_why_a_running_message_has_not_ended(queue: RedisMessageQueue, redis: Redis) -> None:
    await queue.produce("t", 1, message_id="A1")
    await claim(redis, lease=600)
    assert await explained(queue) == (
        "message A1 of topic 't' has been running on w1 since <then>; "
        "unless extended, the lease ends at <then>"
    )


async def test_why_a_message_whose_worker_vanished_has_not_run(
    queue: RedisMessageQueue, redis: Redis
) -> None:
    await queue.produce("t", 1, message_id="A1")
    await claim(redis, lease=0.001)

    async def lapsed() -> bool:
        return "ran out" in await queue.explain("A1")

    await eventually(lapsed)
    assert await explained(queue) == (
        "message A1 of topic 't' has been running on w1 since <then>; the lease ran out at <then>: "
        "no live worker is there to move it"
    )


async def test_why_a_dead_message_does_not_run(queue: RedisMessageQueue, redis: Redis) -> None:
    await queue.produce("t", 1, message_id="A1")
    await bury(redis)
    assert await explained(queue) == (
        "message A1 of topic 't' has been dead since <then>, failed: ValueError: no; it may be replayed"
    )


# -- counts and workers


async def test_counts_tell_how_every_topic_stands(queue: RedisMessageQueue, redis: Redis) -> None:
    assert (await queue.counts()).topics == {}
    await queue.produce_many("t", range(3))
    await queue.produce("t", 1, priority="high")
    await queue.produce("t", 1, priority="low")
    await queue.produce("t", 1, delay=60)
    await queue.produce("done", 1)
    await complete(redis, "done")
    await queue.produce("dead", 1)
    await bury(redis, topic="dead")
    await queue.produce("again", 1)
    await retried(redis, 60, "again")
    await claim(redis, limit=2)
    await queue.pause("t")
    counts = await queue.counts()
    assert list(counts.topics) == ["again", "dead", "done", "t"]
    t = counts.topics["t"]
    assert (t.pending, t.processing, t.paused, t.produced) == (3, 2, True, 6)
    assert counts.topics["done"].completed == 1
    assert counts.topics["dead"].dead == 1
    assert counts.topics["again"].retried == 1
    assert not counts.topics["done"].paused
    assert (counts.pending, counts.processing, counts.delayed, counts.dead) == (3, 2, 2, 1)


async def test_counts_tell_where_the_messages_of_a_topic_are_and_how_long_they_wait(
    queue: RedisMessageQueue, redis: Redis
) -> None:
    """Delayed ones are counted though all topics share one set of them."""
    await queue.produce("done", 1)
    assert about((await queue.counts()).topics["done"].oldest_at, time.time())
    await complete(redis, "done")
    await queue.produce_many("t", range(3))
    await queue.produce_many("t", range(4), delay=60)
    await queue.produce("other", 1, delay=60)
    await retried(redis, 60)
    await queue.produce_many("t", range(2))
    await bury(redis)
    await queue.produce("t", 1)
    await claim(redis)
    await queue.produce("t", 1, message_id="A1")
    counts = await queue.counts()
    t, done, other = (counts.topics[name] for name in ("t", "done", "other"))
    assert (t.pending, t.processing, t.delayed, t.in_dlq) == (1, 1, 7, 2)
    assert (t.produced, t.retried, t.dead, t.recovered) == (11, 3, 2, 0)
    facts = await queue.find("A1")
    assert facts.message is not None
    assert t.oldest_at == facts.message.created_at
    assert (done.completed, done.delayed, done.oldest_at) == (1, 0, None)
    assert (other.delayed, other.pending) == (1, 0)
    assert (counts.delayed, counts.dead) == (8, 2)
    await queue.dlq.replay_all()
    await queue.cancel("A1")
    await queue.dlq.purge()
    t = (await queue.counts()).topics["t"]
    assert (t.pending, t.delayed, t.in_dlq, t.dead) == (2, 7, 0, 2)


async def test_a_message_that_was_taken_over_is_recovered_and_not_retried(
    queue: RedisMessageQueue, redis: Redis
) -> None:
    await queue.produce("t", 1)
    await claim(redis, lease=0.0)
    (taken,) = (await store_of(redis).take_over(10, lease=15, holder="m")).taken
    await store_of(redis).release("t", [taken.delivery])
    t = (await queue.counts()).topics["t"]
    assert (t.pending, t.recovered, t.retried) == (1, 1, 0)


class Trips:
    """Notes of every command how many replies had come when it was sent."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._answered = 0
        self.sent: list[int] = []

    def execute_command(self, *args: Any) -> Awaitable[Any]:
        self.sent.append(self._answered)
        reply = asyncio.ensure_future(self._connection.execute_command(*args))
        reply.add_done_callback(self._answer)
        return reply

    def _answer(self, _: object) -> None:
        self._answered += 1

    @property
    def round_trips(self) -> int:
        """Commands that were sent before the next reply came went together."""
        return len(set(self.sent))


async def test_any_number_of_topics_is_counted_in_a_few_round_trips(
    queue: RedisMessageQueue, redis: Redis, server: EmbeddedServer
) -> None:
    store = store_of(redis)
    topics = [f"t{n:04}" for n in range(1500)]
    for topic in topics:
        await store.produce(topic, [NewMessage(topic, encode_message(message(id=topic, topic=topic)))])
    connection = Connection(server.url, timeout=30.0)
    trips = Trips(connection)
    queries = Queries(Store(trips, Keys("q")))
    await queries.topic_counts("t0000")  # the server has the script now
    trips.sent.clear()
    counts = await queries.counts()
    assert list(counts.topics) == topics
    assert {(each.pending, each.oldest_at) for each in counts.topics.values()} == {(1, 1763230000.25)}
    assert trips.round_trips <= 3
    assert len(trips.sent) <= 20
    await connection.close()


async def test_counters_that_few_topics_have_are_counted_among_thousands(
    queue: RedisMessageQueue, redis: Redis
) -> None:
    """More fields than one look for rare ones takes; a topic may have a colon."""
    fields = {f"t{n}:{name}": 3 for n in range(6000) for name in ("produced", "completed")}
    rare = {"t7:cancelled": 1, "t7:lapsed": 2, "a:b:put_off": 4, "a:b:produced": 9, "a:b:completed": 9}
    await command(redis, "SADD", PREFIX + "topics", "a:b", *(f"t{n}" for n in range(6000)))
    flat = [cell for pair in (fields | rare | {"t7:completed": 2}).items() for cell in pair]
    await command(redis, "HSET", PREFIX + "counters", *flat)
    topics = (await queue.counts()).topics
    assert len(topics) == 6001
    assert (topics["t7"].recovered, topics["t7"].delayed, topics["t7"].completed) == (2, 0, 2)
    assert (topics["a:b"].put_off, topics["a:b"].produced) == (4, 9)
    others = [of for topic, of in topics.items() if topic not in ("t7", "a:b")]
    assert {(of.produced, of.completed, of.recovered, of.put_off) for of in others} == {(3, 3, 0, 0)}


async def test_counters_of_another_type_count_nothing(queue: RedisMessageQueue, redis: Redis) -> None:
    await queue.produce("t", 1)
    await redis.delete(PREFIX + "counters")
    await redis.set(PREFIX + "counters", "something else")
    t = (await queue.counts()).topics["t"]
    assert (t.pending, t.produced) == (1, 0)


async def test_a_topic_that_cannot_be_counted_hides_no_other(queue: RedisMessageQueue, redis: Redis) -> None:
    await queue.produce("t", 1)
    await queue.produce("u", 1)
    await redis.delete(f"{PREFIX}t:pending")
    await redis.set(f"{PREFIX}t:pending", "something else")
    counts = await queue.counts()
    assert (counts.topics["t"].pending, counts.topics["u"].pending) == (0, 1)


async def test_entries_that_no_claim_delivers_are_not_counted_as_pending(
    queue: RedisMessageQueue, redis: Redis
) -> None:
    """Cancelled messages leave their entries in the lists, and one is produced again."""
    ids = [f"m{n}" for n in range(200)]
    for id_ in ids:
        await queue.produce("t", 1, message_id=id_)
    for id_ in ids[1:-1]:
        await queue.cancel(id_)
    await queue.produce("t", 2, message_id="m7")
    assert await command(redis, "LLEN", PREFIX + "t:pending") == 201
    assert (await queue.counts()).topics["t"].pending == 3
    assert sorted(delivery.id for delivery in await claim(redis, "t", limit=2)) == ["m0", "m7"]
    assert (await queue.counts()).topics["t"].pending == 1
    assert [delivery.id for delivery in await claim(redis, "t", limit=1000)] == ["m199"]
    assert (await queue.counts()).topics["t"].pending == 0
    assert not await command(redis, "HEXISTS", PREFIX + "counters", "t:stale")


async def test_expired_messages_are_not_counted_as_pending(queue: RedisMessageQueue, redis: Redis) -> None:
    for id_, ttl in (("a", 60), ("b", 0.001), ("c", 60), ("d", 0.001), ("e", 60)):
        await queue.produce("t", 1, message_id=id_, ttl=ttl)

    async def expired() -> bool:
        await store_of(redis).take_over(10, lease=15, holder="m")
        return (await queue.counts()).topics["t"].processing == 2

    await eventually(expired)
    assert (await queue.counts()).topics["t"].pending == 3


@pytest.mark.parametrize("stale", [b"9" * 400, b"9" * 5000, b"-3", b"x", b"77"])
async def test_counts_survive_what_another_program_counted(
    queue: RedisMessageQueue, redis: Redis, stale: bytes
) -> None:
    await queue.produce("t", 1)
    await command(redis, "HSET", PREFIX + "counters", "t:stale", stale, "t:retried", stale)
    assert (await queue.counts()).topics["t"].pending in (0, 1)


async def test_workers_tell_what_they_serve(queue: RedisMessageQueue, redis: Redis) -> None:
    assert await queue.workers() == []
    await store_of(redis).register_worker("b", FACTS, silence=30)
    await store_of(redis).register_worker("a", FACTS, silence=30)
    first, second = await queue.workers()
    assert (first.name, second.name) == ("a", "b")
    assert (first.topics, first.concurrency, first.pid, first.started_at) == (("t",), 4, 7, 1.5)
    assert about(first.seen_at, time.time())


@pytest.mark.parametrize(
    "facts", [b'{"topics":["t"],"later":{"more":1}}', b"{}", b"[]", b"\xff", b"null", b'{"topics":7}']
)
async def test_a_worker_of_another_version_hides_nobody(
    queue: RedisMessageQueue, redis: Redis, facts: bytes
) -> None:
    await store_of(redis).register_worker("a", FACTS, silence=30)
    await store_of(redis).register_worker("odd", facts, silence=30)
    assert [worker.name for worker in await queue.workers()] == ["a", "odd"]


async def test_a_real_worker_is_listed_while_it_runs(queue: RedisMessageQueue) -> None:
    @queue.handler("t", concurrency=2)
    async def handle(payload: int) -> None: ...

    async def listed() -> bool:
        return bool(await queue.workers())

    await queue.start()
    await eventually(listed)
    (worker,) = await queue.workers()
    assert worker.name.startswith(f"{queue.config.worker_name}.{os.getpid()}.")
    assert worker.topics == ("t",)
    assert worker.concurrency == queue.config.concurrency
    await queue.stop()
    assert await queue.workers() == []


async def test_questions_can_be_asked_at_once(queue: RedisMessageQueue) -> None:
    ids = await queue.produce_many("t", range(100))
    facts = await asyncio.gather(*(queue.find(id_) for id_ in ids))
    assert [fact.id for fact in facts] == ids
    assert {fact.state for fact in facts} == {"pending"}


# -- held is not running


async def say(redis: Redis, name: str = "w1", **facts: Any) -> None:
    """A worker of topic t says what it has."""
    said = msgspec.json.encode({"topics": ["t"]} | facts)
    await store_of(redis).register_worker(name, said, silence=30)


async def leased(redis: Redis, *ids: str, holder: str = "w1") -> None:
    """Messages that a worker has claimed, each in a claim of its own."""
    store = store_of(redis)
    for id_ in ids:
        await store.produce("t", [NewMessage(id_, encode_message(message(id=id_, topic="t")))])
        await store.claim("t", 1, lease=15, holder=holder)


async def states(queue: RedisMessageQueue, *ids: str) -> list[str]:
    return [(await queue.find(id_)).state for id_ in ids]


async def test_what_a_worker_holds_ready_is_not_running(queue: RedisMessageQueue, redis: Redis) -> None:
    """Messages begin in the order of their claims: it holds the newest."""
    await leased(redis, "a", "d", "c", "b")
    assert await states(queue, "a", "d", "c", "b") == ["running"] * 4
    await say(redis, load={"t": [2, 2], "other": [7, 7]})
    assert await states(queue, "a", "d", "c", "b") == ["running", "running", "held", "held"]
    t = (await queue.counts()).topics["t"]
    assert (t.running, t.held, t.processing) == (2, 2, 4)
    counts = await queue.counts()
    assert (counts.running, counts.held, counts.processing) == (2, 2, 4)
    (worker,) = await queue.workers()
    assert (worker.running, worker.held, worker.load["t"]) == (9, 9, (2, 2))
    said = "message b of topic 't' is held ready by w1, it has not begun; unless extended, the lease ends at"
    assert (await queue.explain("b")).startswith(said)
    assert "message a of topic 't' has been running on w1 since" in await queue.explain("a")
    await queue.produce("t", 1, message_id="A1")
    assert "with 2 running, 2 held ready and 1 waiting" in await queue.explain("A1")


async def test_more_than_a_worker_runs_at_once_it_holds(queue: RedisMessageQueue, redis: Redis) -> None:
    """Before it has said so."""
    await say(redis, concurrency=2)
    await leased(redis, *"abcd")
    assert await states(queue, *"abcd") == ["running", "running", "held", "held"]
    await say(redis, concurrency=9, limits={"t": 3})
    assert await states(queue, *"abcd") == ["running", "running", "running", "held"]
    t = (await queue.counts()).topics["t"]
    assert (t.running, t.held) == (3, 1)
    await say(redis, "w2", concurrency=5)
    t = (await queue.counts()).topics["t"]
    assert (t.running, t.held) == (4, 0)


async def test_a_worker_that_claims_to_hold_more_than_there_is_holds_all(
    queue: RedisMessageQueue, redis: Redis
) -> None:
    await leased(redis, "a", "b")
    await leased(redis, "c", holder="w2")
    await say(redis, load={"t": [0, 50]})
    assert await states(queue, *"abc") == ["held", "held", "running"]
    t = (await queue.counts()).topics["t"]
    assert (t.running, t.held) == (0, 3)  # the sum is all that is known without a look at each lease


async def test_a_message_that_is_known_to_have_begun_is_running(
    queue: RedisMessageQueue, redis: Redis
) -> None:
    await leased(redis, "a", "b")
    await say(redis, load={"t": [1, 1]})
    store = store_of(redis)
    lease = await command(redis, "HGET", f"{PREFIX}t:processing", "b")
    await store.start("t", [Delivery("b", "t", lease.split()[0].decode(), b"", 0.0)])
    assert await states(queue, "a", "b") == ["held", "running"]


async def test_the_messages_of_one_claim_are_held_by_lane_and_id(
    queue: RedisMessageQueue, redis: Redis
) -> None:
    lanes: dict[str, Lane] = {"a": "low", "b": "normal", "c": "normal", "d": "high"}
    for id_, priority in lanes.items():
        await queue.produce("t", 1, message_id=id_, priority=priority)
    await claim(redis)
    await say(redis, load={"t": [2, 2]})
    assert await states(queue, "d", "b", "c", "a") == ["running", "running", "held", "held"]


@pytest.mark.parametrize("load", [{"t": "x"}, {"t": [1]}, 7, {"t": [-1, 2, 3]}])
async def test_a_load_that_cannot_be_read_hides_no_worker(
    queue: RedisMessageQueue, redis: Redis, load: Any
) -> None:
    await leased(redis, "a")
    await say(redis, load=load)
    assert [worker.name for worker in await queue.workers()] == ["w1"]
    assert await states(queue, "a") == ["running"]


async def test_a_real_worker_tells_what_it_runs_and_what_it_holds(make_queue: MakeQueue) -> None:
    """What lingers for its batch is held; it begins with the last message of the batch."""
    mq = make_queue()
    over = asyncio.Event()

    @mq.handler("t", batch=3, linger=60)
    async def handle(payloads: list[int]) -> None:
        await over.wait()

    await mq.start()
    for id_ in ("a", "b"):
        await mq.produce("t", 1, message_id=id_)
    await in_state(mq, "b", "held")
    t = (await mq.counts()).topics["t"]
    assert (t.running, t.held) == (0, 2)
    (worker,) = await mq.workers()
    assert (worker.load, worker.limits) == ({"t": (0, 2)}, {"t": 24})
    await mq.produce("t", 1, message_id="c")
    await in_state(mq, "b", "running")
    (worker,) = await mq.workers()
    assert (worker.running, worker.held) == (3, 0)
    over.set()
    await drained(mq)

    async def idle() -> bool:
        (worker,) = await mq.workers()
        return worker.load == {}

    await eventually(idle)


async def test_a_worker_whose_load_does_not_change_says_nothing_more(
    make_queue: MakeQueue, redis: Redis, proxy: Proxy
) -> None:
    mq, outside = make_queue(proxy.url), make_queue()
    over = asyncio.Event()

    @mq.handler("t")
    async def handle(payload: int) -> None:
        await over.wait()

    async def said_at() -> float:
        ((_, score),) = await command(redis, "ZRANGE", f"{PREFIX}workers_seen", 0, -1, "WITHSCORES")
        return float(score)

    await outside.open()
    await mq.start()
    await outside.produce("t", 1, message_id="a")

    async def runs() -> bool:
        return [worker.running for worker in await outside.workers()] == [1]

    await eventually(runs)
    before, looks = await said_at(), proxy.commands.count(b"HGETALL")
    await eventually(lambda: proxy.commands.count(b"HGETALL") >= looks + 2)  # two steps of the monitor
    assert await said_at() == before
    over.set()
