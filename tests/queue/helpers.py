"""Short words for what the tests of a queue do again and again."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mx_rmq.message import Death, PastAttempt, decode_message, encode_death, encode_message
from mx_rmq.storage.keys import Keys
from mx_rmq.storage.store import Store

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from mx_rmq.storage.contract import Delivery

PREFIX = "mx-rmq:{q}:"


def store_of(redis: Redis) -> Store:
    """A worker's view of the tests' queue, for playing one step by step."""
    return Store(redis, Keys("q"))


async def claim(redis: Redis, topic: str = "t", limit: int = 1000, *, lease: float = 15.0) -> list[Delivery]:
    """Lease what is pending, as the worker w1."""
    return (await store_of(redis).claim(topic, limit, lease=lease, holder="w1")).deliveries


async def complete(redis: Redis, topic: str = "t") -> list[str]:
    """Handle everything that is pending, and say what that was."""
    deliveries = await claim(redis, topic)
    await store_of(redis).complete(topic, [(d, decode_message(d.body).dedup_for or 0.0) for d in deliveries])
    return [delivery.id for delivery in deliveries]


async def bury(redis: Redis, death: Death | None = None, topic: str = "t") -> list[str]:
    """Let everything that is pending fail for good, and say what that was."""
    death = death or Death(reason="failed", error="ValueError: no", kind="ValueError")
    deliveries = await claim(redis, topic)
    dead = []
    for delivery in deliveries:
        message = decode_message(delivery.body)
        message.attempts += 1
        message.remember(PastAttempt(at=1.0, worker="w1", error=death.error))
        dead.append((delivery, encode_message(message), encode_death(death)))
    if dead:
        await store_of(redis).move_to_dlq(topic, dead)
    return [delivery.id for delivery in deliveries]


async def in_order(redis: Redis, topic: str = "t") -> list[str]:
    """The ids that are pending, in the order in which they would run."""
    ids: list[str] = []
    for lane in ("pending:high", "pending", "pending:low"):
        found = await redis.execute_command("LRANGE", f"{PREFIX}{topic}:{lane}", 0, -1)
        ids += [id_.decode() for id_ in reversed(found)]
    return ids
