"""Short words for what tests do again and again."""

from __future__ import annotations

import asyncio
import inspect
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Protocol

import pytest

from mx_rmq import DeadLetter, NotDead, RedisMessageQueue
from mx_rmq.config import Config
from mx_rmq.message import (
    Death,
    Message,
    PastAttempt,
    decode_message,
    encode_death,
    encode_message,
)
from mx_rmq.payloads import encode_payload
from mx_rmq.receipt import Stored
from mx_rmq.storage.contract import NewMessage
from mx_rmq.storage.keys import Keys
from mx_rmq.storage.locate import Address
from mx_rmq.storage.queries import Queries
from mx_rmq.storage.shard import Shard
from mx_rmq.storage.store import Store
from mx_rmq.urls import read_url
from tests.harness import read_state, server_binaries

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from redis.asyncio import Redis

    from mx_rmq import MessageFacts, Receipt
    from mx_rmq.storage.contract import Delivery
    from mx_rmq.storage.place import Place

PREFIX = "mx-rmq:{q}:"

ONE_SERVER = pytest.mark.parametrize(
    "server", list(server_binaries().items())[:1], indirect=True, ids=lambda item: item[0], scope="session"
)
"""For what costs a process or much time, and does not depend on the kind of server."""


# -- messages


def message(payload: Any = None, **fields: Any) -> Message:
    """A message as it is stored."""
    given: dict[str, Any] = {"id": "m1", "topic": "orders", "created_at": 1763230000.25}
    return Message(payload=encode_payload(payload), **given | fields)


def new(id_: str, **options: Any) -> NewMessage:
    """A message to store whose body says whose it is."""
    return NewMessage(id_, b"body of " + id_.encode(), **options)


# -- a worker, step by step


def store_of(redis: Redis) -> Store:
    """The store of the tests' queue, on the server's own clock."""
    return Store(redis, Keys("q"))


def place_at(url: str) -> Place:
    """Where the only shard of the tests' queue is, at one server or in a cluster."""
    return Address(read_url(url)).place(Keys("q").prefix)


def shard_at(url: str, **options: Any) -> Shard:
    """The only shard of the tests' queue."""
    return Shard(Address(read_url(url)), Config(name="q", url=url, **options))


async def produce_elsewhere(mq: RedisMessageQueue, topic: str, payload: Any, **options: Any) -> Receipt:
    """Produce from a program that does not know the topic's handler."""
    async with RedisMessageQueue(mq.config.url, name=mq.config.name, server_check="off") as elsewhere:
        return await elsewhere.produce(topic, payload, **options)


async def put_bytes(redis: Redis, id_: str, body: bytes, topic: str = "t") -> None:
    """Store bytes that no producer would have sent."""
    assert await store_of(redis).produce(topic, [NewMessage(id_, body)]) == [Stored.STORED]


async def claim(redis: Redis, topic: str = "t", limit: int = 1000, *, lease: float = 15.0) -> list[Delivery]:
    """Lease what is pending, as the worker w1."""
    return (await store_of(redis).claim(topic, limit, lease=lease, holder="w1")).deliveries


async def complete(redis: Redis, topic: str = "t") -> list[str]:
    """Handle everything that is pending, and say what that was."""
    deliveries = await claim(redis, topic)
    await store_of(redis).complete(
        topic, [(d, decode_message(d.body, d.id, d.topic).dedup_for or 0.0) for d in deliveries]
    )
    return [delivery.id for delivery in deliveries]


async def bury(redis: Redis, death: Death | None = None, topic: str = "t", *, trace: str = "") -> list[str]:
    """Let everything that is pending fail for good, and say what that was."""
    death = death or Death(reason="failed", error="ValueError: no", kind="ValueError")
    deliveries = await claim(redis, topic)
    dead = []
    for delivery in deliveries:
        message = decode_message(delivery.body, delivery.id, delivery.topic)
        message.attempts += 1
        message.remember(PastAttempt(at=1.0, worker="w1", error=death.error, trace=trace))
        dead.append((delivery, encode_message(message), encode_death(death)))
    if dead:
        await store_of(redis).move_to_dlq(topic, dead)
    return [delivery.id for delivery in deliveries]


async def steal(redis: Redis, id_: str, topic: str = "t") -> None:
    """Make a delivery another worker's, as a take-over after a lapsed lease does."""
    async with redis.pipeline(transaction=True) as pipe:
        pipe.hset(f"mx-rmq:{{q}}:{topic}:processing", id_, "99@1763230000000000 normal inf thief run")
        pipe.zadd("mx-rmq:{q}:all_expire_monitor", {id_: 10**13})
        await pipe.execute()


async def in_order(redis: Redis, topic: str = "t") -> list[str]:
    """The ids that are pending, in the order in which they would run."""
    ids: list[str] = []
    for lane in ("pending:high", "pending", "pending:low"):
        found = await redis.execute_command("LRANGE", f"{PREFIX}{topic}:{lane}", 0, -1)
        ids += [id_.decode() for id_ in reversed(found)]
    return ids


# -- a queue


class MakeQueue(Protocol):
    """Makes a queue that is closed when the test ends."""

    def __call__(self, url: str = "", **options: Any) -> RedisMessageQueue: ...


async def eventually(predicate: Callable[[], Awaitable[Any] | Any], within: float = 15.0) -> Any:
    """Wait until *predicate* says something true, and return that."""
    last: Any = None
    try:
        async with asyncio.timeout(within):
            while True:
                last = predicate()
                if inspect.isawaitable(last):
                    last = await last
                if last:
                    return last
                await asyncio.sleep(0.005)
    except TimeoutError:
        raise AssertionError(f"not within {within:g} s; the last answer was {last!r}") from None


async def dead(mq: RedisMessageQueue, id_: str, within: float = 15.0) -> DeadLetter:
    """Wait until a message is dead."""

    async def look() -> DeadLetter | None:
        try:
            return await mq.dlq.get(id_)
        except NotDead:
            return None

    letter = await eventually(look, within)
    assert isinstance(letter, DeadLetter)
    return letter


async def in_state(mq: RedisMessageQueue, id_: str, state: str, within: float = 15.0) -> MessageFacts:
    """Wait until a message is in a state."""
    last: MessageFacts | None = None

    async def look() -> bool:
        nonlocal last
        last = await mq.find(id_)
        return last.state == state

    await eventually(look, within)
    assert last is not None
    return last


async def drained(mq: RedisMessageQueue, within: float = 15.0) -> None:
    """Wait until nothing is alive in the queue: until no body is stored, which is one look at a key."""
    stores = [shard.store for shard in mq._lifecycle.shards]

    async def look() -> bool:
        asked = [each.commands.execute_command("EXISTS", each.keys.of_queue("payload")) for each in stores]
        return not any(await asyncio.gather(*asked))

    await eventually(look, within)


async def is_sound(mq: RedisMessageQueue) -> bool:
    """Whether every message is in exactly one place, by the audit."""
    return not any(report.findings for report in await mq.audit())


def events(caplog: pytest.LogCaptureFixture, name: str) -> list[Any]:
    """The log records of one event."""
    return [record for record in caplog.records if getattr(record, "event", "") == name]


# -- a server


@asynccontextmanager
async def unchanged(redis: Redis) -> AsyncIterator[None]:
    """What happens inside writes nothing, not even a counter (I4, I5, I6)."""
    before = await read_state(redis, tools=True)
    yield
    assert await read_state(redis, tools=True) == before


@asynccontextmanager
async def out_of_memory(redis: Redis) -> AsyncIterator[None]:
    """Inside, the server has reached its maxmemory."""
    await redis.config_set("maxmemory", "1")
    try:
        yield
    finally:
        await redis.config_set("maxmemory", "0")


class Says:
    """A server of a version that is not at hand, as far as it matters: what it says of itself."""

    def __init__(self, info: str) -> None:
        self._info = info.replace(" ", "\r\n").encode()

    async def execute_command(self, *args: Any) -> Any:
        assert args == ("INFO",)
        return self._info


def reader_of(info: str) -> Queries:
    """What reads such a server."""
    return Queries(Store(Says(info), Keys("q")))
