"""What the scripts write about a lease, ``Lease.parse`` reads."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING

import pytest

from mx_rmq.message import LANES, Lane
from mx_rmq.storage.contract import Lease, Settled
from tests.harness import START_US
from tests.words import new

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from mx_rmq.storage.keys import Keys
    from mx_rmq.storage.store import Store
    from tests.harness import Clock


async def stored_lease(redis: Redis, keys: Keys, id_: str, topic: str = "orders") -> str:
    """The bytes in ``processing`` as text."""
    found: bytes = await redis.execute_command("HGET", keys.of_topic(topic, "processing"), id_)
    return found.decode()


@pytest.mark.parametrize("lane", LANES)
@pytest.mark.parametrize("ttl", [None, 60.0])
async def test_a_lease_that_a_claim_wrote_can_be_read(
    redis: Redis, store: Store, keys: Keys, lane: Lane, ttl: float | None
) -> None:
    await store.produce("orders", [new("A1", lane=lane, ttl=ttl)])
    (delivery,) = (await store.claim("orders", 1, lease=15.0, holder="host.7-x")).deliveries
    lease = Lease.parse(await stored_lease(redis, keys, "A1"))
    assert lease == Lease(delivery.token, lane, delivery.expires_at, "host.7-x", "run")
    assert lease.expires_at == (inf if ttl is None else pytest.approx(START_US / 1e6 + ttl, abs=0.01))
    assert lease.claimed_at == delivery.fence / 1e6 == pytest.approx(START_US / 1e6, abs=0.01)


async def test_it_is_still_readable_after_a_noted_start(redis: Redis, store: Store, keys: Keys) -> None:
    await store.produce("orders", [new("A1")])
    (delivery,) = (await store.claim("orders", 1, lease=15.0, holder="w1")).deliveries
    before = await stored_lease(redis, keys, "A1")
    assert await store.start("orders", [delivery]) == [Settled.DONE]
    lease = Lease.parse(before)
    assert lease is not None
    assert Lease.parse(await stored_lease(redis, keys, "A1")) == lease._replace(cause="started")


async def test_a_lease_taken_over_names_its_new_holder(
    redis: Redis, store: Store, keys: Keys, clock: Clock
) -> None:
    await store.produce("orders", [new("A1", lane="low")])
    await store.claim("orders", 1, lease=15.0, holder="w1")
    clock.advance(16)
    (taken,) = (await store.take_over(10, lease=15.0, holder="monitor")).taken
    lease = Lease.parse(await stored_lease(redis, keys, "A1"))
    assert lease == Lease(taken.delivery.token, "low", inf, "monitor", "lapsed")
    assert lease.claimed_at == pytest.approx(START_US / 1e6 + 16, abs=0.01)


@pytest.mark.parametrize("expires", ["soon", "-", "1e", "0x10"])
def test_only_the_expiry_of_a_lease_may_be_unreadable(expires: str) -> None:
    assert Lease.parse(f"1@1763230000000000 normal {expires} w1 run") == Lease(
        "1@1763230000000000", "normal", None, "w1", "run"
    )


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "nonsense",
        "w1",
        "{}",
        "1763230000000000 normal inf w1 run",
        "@1763230000000000 normal inf w1 run",
        "1@ normal inf w1 run",
        "-1@1763230000000000 normal inf w1 run",
        "1@-5 normal inf w1 run",
        "1@12345678901234567 normal inf w1 run",
        "1@1.5 normal inf w1 run",
        "١@1763230000000000 normal inf w1 run",
        "1@١ normal inf w1 run",
        "x1@1763230000000000 normal inf w1 run",
        " 1@1763230000000000 normal inf w1 run",
        "1@1763230000000000 normal inf",
        "1@1763230000000000",
        "1@1763230000000000  normal inf",
        "\ufffd\ufffd",
    ],
    ids=ascii,
)
def test_nonsense_is_no_lease(text: str) -> None:
    """None and never an error: a reader goes on, and the audit mends it."""
    assert Lease.parse(text) is None
