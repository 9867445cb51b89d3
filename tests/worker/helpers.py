"""Short words for what the tests of the worker do again and again."""

from __future__ import annotations

import asyncio
import inspect
from typing import TYPE_CHECKING, Any, Protocol

import pytest

from mx_rmq import DeadLetter, NotDead
from mx_rmq.receipt import Stored
from mx_rmq.storage.contract import NewMessage
from mx_rmq.storage.keys import Keys
from mx_rmq.storage.store import Store
from tests.harness import server_binaries

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from redis.asyncio import Redis

    from mx_rmq import MessageFacts, RedisMessageQueue


ONE_SERVER = pytest.mark.parametrize(
    "server", list(server_binaries().items())[:1], indirect=True, ids=lambda item: item[0], scope="session"
)
"""For what costs a process or much time, and does not depend on the kind of server."""


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
    """Wait until nothing is alive in the queue: until no body is stored, which is one look at one key."""
    store = mq._lifecycle.shards[0].store

    async def look() -> bool:
        return not await store.commands.execute_command("EXISTS", store.keys.of_queue("payload"))

    await eventually(look, within)


def store_of(redis: Redis) -> Store:
    """The store of the tests' queue, on the server's own clock."""
    return Store(redis, Keys("q"))


async def put_bytes(redis: Redis, id_: str, body: bytes, topic: str = "t") -> None:
    """Store bytes that no producer would have sent."""
    assert await store_of(redis).produce(topic, [NewMessage(id_, body)]) == [Stored.STORED]


async def is_sound(mq: RedisMessageQueue) -> bool:
    """Whether every message is in exactly one place, by the audit."""
    return not any(report.findings for report in await mq.audit())


def events(caplog: pytest.LogCaptureFixture, name: str) -> list[Any]:
    """The log records of one event."""
    return [record for record in caplog.records if record.getMessage() == name]


async def steal(redis: Redis, id_: str, topic: str = "t") -> None:
    """Make a delivery somebody else's, as a take-over after a lapsed lease does."""
    async with redis.pipeline(transaction=True) as pipe:
        pipe.hset(f"mx-rmq:{{q}}:{topic}:processing", id_, "99@1763230000000000 normal inf thief run")
        pipe.zadd("mx-rmq:{q}:all_expire_monitor", {id_: 10**13})
        await pipe.execute()
