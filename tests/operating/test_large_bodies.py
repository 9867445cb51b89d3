"""However large the bodies are, an operator's replies are short, few, and on a connection of their own."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from redis.exceptions import ResponseError

from mx_rmq import NotDead, RedisMessageQueue
from mx_rmq.message import Death, encode_death
from mx_rmq.operating.audit import audit
from mx_rmq.storage.contract import NewMessage
from mx_rmq.storage.keys import Keys
from mx_rmq.storage.store import Store
from tests.harness import command
from tests.words import PREFIX, claim, eventually, in_order, store_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from redis.asyncio import Redis

    from tests.proxy import Proxy

LARGE = 700_000
REPLY_BYTES = 4_000_000
SLACK = 70_000
"""What the proxy may count too much."""


@pytest.fixture
async def watched(proxy: Proxy, redis: Redis) -> AsyncIterator[RedisMessageQueue]:
    """An open queue behind a proxy that measures its replies."""
    async with RedisMessageQueue(proxy.url, name="q", server_check="off") as queue:
        yield queue


async def die(queue: RedisMessageQueue, redis: Redis, *ids: str, topic: str = "t", size: int = LARGE) -> None:
    """Let messages of so many bytes die."""
    error = encode_death(Death(reason="failed", error=f"ValueError: {topic}", kind="ValueError"))
    for id_ in ids:
        await queue.produce(topic, "x" * size, message_id=id_)
        (delivery,) = await claim(redis, topic)
        await store_of(redis).move_to_dlq(topic, [(delivery, b"", error)])


async def test_a_page_reads_the_bodies_it_shows_and_no_others(
    watched: RedisMessageQueue, redis: Redis, proxy: Proxy
) -> None:
    await die(watched, redis, *(f"a{n}" for n in range(8)))
    await die(watched, redis, "b1", topic="other", size=10)
    proxy.longest_reply = 0
    assert [letter.id for letter in (await watched.dlq.list(topic="other")).letters] == ["b1"]
    assert [(group.topic, group.count) for group in await watched.dlq.groups()] == [("t", 8), ("other", 1)]
    assert [letter.id for letter in (await watched.dlq.list(error="other")).letters] == ["b1"]
    assert proxy.longest_reply < SLACK
    page = await watched.dlq.list(topic="t", limit=1)
    assert [len(letter.payload) for letter in page.letters] == [LARGE]
    assert LARGE < proxy.longest_reply < LARGE + SLACK
    everything = (await watched.dlq.list(limit=100)).letters
    assert Counter(len(letter.payload) for letter in everything) == {LARGE: 8, 10: 1}
    assert proxy.longest_reply <= REPLY_BYTES + SLACK


async def test_a_body_longer_than_a_reply_should_be_comes_alone(proxy: Proxy, redis: Redis) -> None:
    big = REPLY_BYTES + 1000
    async with RedisMessageQueue(proxy.url, name="q", server_check="off", max_bytes=2 * big) as queue:
        await die(queue, redis, "a", "b", "c", size=big)
        proxy.longest_reply = 0
        letters = (await queue.dlq.list()).letters
        assert [letter.id for letter in letters] == ["c", "b", "a"]
        assert {len(letter.payload) for letter in letters} == {big}
        assert proxy.longest_reply < big + SLACK


async def test_a_purge_reads_no_body_and_a_replay_reads_some_at_a_time(
    watched: RedisMessageQueue, redis: Redis, proxy: Proxy
) -> None:
    ids = [f"a{n:02}" for n in range(12)]
    await die(watched, redis, *ids)
    await die(watched, redis, *(f"b{n}" for n in range(12)), topic="other")
    proxy.longest_reply = 0
    assert await watched.dlq.purge(topic="other") == 12
    assert proxy.longest_reply < SLACK
    assert await watched.dlq.replay_all(topic="t") == 12
    assert 2 * LARGE < proxy.longest_reply <= REPLY_BYTES + SLACK
    assert await in_order(redis) == ids
    facts = await watched.find("a03")
    assert facts.message is not None
    assert facts.message.replays == 1


async def test_many_messages_cost_few_round_trips(
    watched: RedisMessageQueue, redis: Redis, proxy: Proxy
) -> None:
    """Lengths are asked for in a row and answered in a row; everything else is asked for together."""
    ids = [str(receipt) for receipt in await watched.produce_many("t", range(300))]
    store, why = store_of(redis), encode_death(Death(reason="failed"))
    await store.move_to_dlq("t", [(each, b"", why) for each in await claim(redis)])
    await watched._lifecycle.shards.now()  # reads the layout, which is done once a second at most

    async def asked(call: Any) -> Counter[bytes]:
        before = len(proxy.commands)
        await call
        return Counter(name for name in proxy.commands[before:] if name not in (b"HSTRLEN", b"CLIENT"))

    assert (await asked(watched.dlq.list(limit=300))).total() <= 8
    assert (await asked(watched.dlq.groups())).total() <= 6
    assert (await asked(watched.dlq.replay(*ids[:250]))).total() <= 8
    assert await in_order(redis) == ids[:250]
    assert (await asked(watched.dlq.replay_all(topic="t"))).total() <= 8
    assert await in_order(redis) == ids


async def test_those_before_one_that_is_not_dead_are_replayed(
    watched: RedisMessageQueue, redis: Redis
) -> None:
    await die(watched, redis, "a", "b", "c", "d", size=10)
    await watched.produce("live", 1, message_id="alive")
    for first, unknown in (("a", "alive"), ("b", "nobody")):
        with pytest.raises(NotDead, match=unknown):
            await watched.dlq.replay(first, unknown, "c")
    assert await in_order(redis) == ["a", "b"]
    with pytest.raises(NotDead, match="'d'"):
        await watched.dlq.replay("d", "c", "d")
    assert await in_order(redis) == ["a", "b", "d", "c"]


async def test_operators_read_on_a_connection_of_their_own(
    watched: RedisMessageQueue, redis: Redis, proxy: Proxy
) -> None:
    async def connected() -> int:
        facts = await command(redis, "INFO", "clients")
        return int(facts["connected_clients"])

    before = await connected()
    await watched.produce("t", 1, message_id="a")
    assert proxy.connections == 1
    await watched.dlq.list()
    await watched.explain("a")
    await watched.audit()
    await watched.produce("t", 1)
    assert proxy.connections == 2
    await watched.close()

    async def gone() -> bool:
        return await connected() <= before

    await eventually(gone)


class OldServer:
    """One that cannot leave values out of a scan, as Redis before 7.4."""

    def __init__(self, redis: Redis) -> None:
        self._redis = redis
        self.longest = 0

    async def execute_command(self, *args: Any) -> Any:
        if "NOVALUES" in args:
            raise ResponseError("syntax error")
        reply = await command(self._redis, *args)
        if args[0] == "HSCAN":
            self.longest = max(self.longest, sum(len(cell) for pair in reply[1].items() for cell in pair))
        return reply


async def knows_novalues(redis: Redis) -> bool:
    """Whether the server can scan a hash without its values."""
    try:
        await command(redis, "HSCAN", Keys("q").of_queue("payload"), 0, "NOVALUES")
    except ResponseError:
        return False
    return True


async def is_valkey(redis: Redis) -> bool:
    return "valkey_version" in await command(redis, "INFO", "server")


@pytest.mark.parametrize("old", [False, True])
async def test_an_audit_reads_no_bodies_or_few_at_a_time(
    queue: RedisMessageQueue, redis: Redis, proxy: Proxy, old: bool
) -> None:
    """Also among thousands of small ones, after which more are asked for at a time."""
    if old and await is_valkey(redis):
        pytest.skip("every Valkey leaves the bodies out; its hashes would send seven fields at a time")
    await queue.produce_many("t", range(3000))
    for n in range(30):
        await store_of(redis).produce("big", [NewMessage(f"b{n}", b"x" * LARGE)])
    await die(queue, redis, *(f"d{n}" for n in range(10)), topic="dying")
    if old:
        server = OldServer(redis)
        report = await audit(Store(server, Keys("q")))
        assert server.longest <= REPLY_BYTES
    else:
        async with RedisMessageQueue(proxy.url, name="q", server_check="off") as watched:
            (report,) = await watched.audit()
        # Redis before 7.4 cannot leave the bodies out, and is asked for few fields at a time.
        without_bodies = await knows_novalues(redis)
        assert proxy.longest_reply <= (SLACK + 64_000 if without_bodies else REPLY_BYTES)
    assert report.findings == []
    assert report.places == {"pending": 3030, "dead": 10}


async def test_a_large_message_without_a_topic_gets_the_one_its_body_names(
    queue: RedisMessageQueue, redis: Redis
) -> None:
    await queue.produce("orders", "x" * LARGE, message_id="a")
    await die(queue, redis, "d", topic="t")
    await command(redis, "HDEL", f"{PREFIX}payload", "a:queue")
    await command(redis, "HDEL", f"{PREFIX}dlq_payload", "d:queue")
    (report,) = await queue.audit(repair=True)
    assert {(finding.kind, finding.topic) for finding in report.findings if finding.what in "ad"} == {
        ("body-without-topic", "orders"),
        ("dead-without-topic", "t"),
    }
    assert (await queue.find("a")).topic == "orders"
    assert (await queue.dlq.get("d")).topic == "t"
