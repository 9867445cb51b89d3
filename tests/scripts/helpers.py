"""Short words for what the tests of the scripts do again and again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mx_rmq.receipt import Stored
from mx_rmq.storage.scripts import SCRIPTS
from tests.harness import read_state
from tests.words import PREFIX, new

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from mx_rmq.storage.contract import Delivery
    from mx_rmq.storage.store import Store
    from tests.harness import Clock

TOPIC = "orders"


def names(count: int) -> list[str]:
    """That many ids."""
    return [f"m{n}" for n in range(1, count + 1)]


async def produce(store: Store, *ids: str, topic: str = TOPIC, **options: Any) -> None:
    """Make messages pending, at most 1,000."""
    stored = await store.produce(topic, [new(id_, **options) for id_ in ids])
    assert stored == [Stored.STORED] * len(ids)


async def delay(store: Store, *ids: str, delay: float, topic: str = TOPIC, **options: Any) -> None:
    """Store messages that are due after *delay* seconds, at most 1,000."""
    stored = await store.produce_delayed(topic, [new(id_, delay=delay, **options) for id_ in ids])
    assert stored == [Stored.STORED] * len(ids)


async def claim(
    store: Store, limit: int = 1000, *, topic: str = TOPIC, lease: float = 15.0, holder: str = "w1"
) -> list[Delivery]:
    """Lease what is pending."""
    return (await store.claim(topic, limit, lease=lease, holder=holder)).deliveries


async def lease(store: Store, *ids: str, topic: str = TOPIC, **options: Any) -> list[Delivery]:
    """Produce messages and claim them at once."""
    await produce(store, *ids, topic=topic, **options)
    deliveries = await claim(store, topic=topic)
    assert [delivery.id for delivery in deliveries] == list(ids)
    return deliveries


async def take_over(store: Store, clock: Clock, *, holder: str = "monitor") -> list[Delivery]:
    """Let an hour pass, so that every lease is lapsed, and take over what it was for."""
    clock.advance(3600)
    return [taken.delivery for taken in (await store.take_over(1000, lease=15.0, holder=holder)).taken]


async def call(redis: Redis, name: str, keys: list[str], *args: Any) -> Any:
    """Run a script past every check of the client; keys without the queue's prefix."""
    full = [PREFIX + key for key in keys]
    return await redis.execute_command("EVAL", SCRIPTS[name].text, len(full), *full, *args)


def keys_of(name: str, topic: str = TOPIC, producer: str = "p1") -> list[str]:
    """The keys a script's header asks for, without the queue's prefix."""
    by_topic = ("pending", "pending:high", "pending:low", "processing", "wake")
    return [
        f"{topic}:{key}" if key in by_topic else f"call={producer}" if key == "call" else key
        for key, _ in SCRIPTS[name].keys
    ]


async def count_of(redis: Redis, topic: str = TOPIC) -> dict[str, int]:
    """The topic's counters."""
    counters = (await read_state(redis, tools=True)).get("counters", {})
    return {
        field.removeprefix(topic + ":"): int(value)
        for field, value in counters.items()
        if field.startswith(topic + ":")
    }


async def spoil(redis: Redis, key: str) -> None:
    """Replace what is at a key (without the queue's prefix) by a value of another type."""
    await redis.delete(PREFIX + key)
    await redis.execute_command("RPUSH" if key.startswith("call=") else "SET", PREFIX + key, "something else")
