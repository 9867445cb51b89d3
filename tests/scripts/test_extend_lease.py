from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace
from redis.exceptions import ResponseError

from mx_rmq.errors import StoreError, WrongKeyType
from mx_rmq.storage.contract import Settled
from mx_rmq.storage.store import Store
from tests.harness import read_state
from tests.scripts.helpers import TOPIC, call, claim, keys_of, lease, names, produce, spoil, take_over
from tests.words import PREFIX, out_of_memory, unchanged

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from mx_rmq.storage.contract import Delivery
    from mx_rmq.storage.keys import Keys
    from tests.harness import Clock

NAME = "extend_lease"


async def extend(store: Store, *deliveries: Delivery) -> list[Settled]:
    return await store.extend(TOPIC, deliveries, lease=15.0)


async def test_an_extended_lease_ends_later_and_nothing_else_changes(
    store: Store, redis: Redis, clock: Clock
) -> None:
    m1, m2 = await lease(store, "m1", "m2")
    before = await read_state(redis, tools=True)
    end = clock.ms + 15_000
    clock.advance(10)
    assert await store.extend(TOPIC, [m1], lease=20.0) == [Settled.DONE]
    assert await read_state(redis, tools=True) == before | {
        "all_expire_monitor": {"m1": clock.ms + 20_000, "m2": end}
    }
    assert await store.complete(TOPIC, [(m1, 0.0), (m2, 0.0)]) == [Settled.DONE] * 2


async def test_a_lease_can_be_cut_short(store: Store, redis: Redis, clock: Clock) -> None:
    """The handler's own timeout ends a lease before its usual length."""
    (m1,) = await lease(store, "m1")
    await store.extend(TOPIC, [m1], lease=0.5)
    assert (await read_state(redis))["all_expire_monitor"] == {"m1": clock.ms + 500}


async def test_a_lapsed_lease_is_good_until_someone_takes_over(
    store: Store, redis: Redis, clock: Clock
) -> None:
    """A worker that was late, and nobody noticed, keeps its message: better than running it twice."""
    (m1,) = await lease(store, "m1")
    clock.advance(3600)
    assert await extend(store, m1) == [Settled.DONE]
    assert (await store.take_over(10, lease=15.0, holder="monitor")).taken == []
    assert (await read_state(redis))["all_expire_monitor"] == {"m1": clock.ms + 15_000}


async def test_a_lost_deadline_is_set_anew(store: Store, redis: Redis, clock: Clock) -> None:
    (m1,) = await lease(store, "m1")
    await redis.delete(PREFIX + "all_expire_monitor")
    assert await extend(store, m1) == [Settled.DONE]
    assert (await read_state(redis))["all_expire_monitor"] == {"m1": clock.ms + 15_000}


async def test_a_stale_token_extends_nothing(store: Store, redis: Redis, clock: Clock) -> None:
    """After a take-over, after a release and a new claim: the first lease is worthless (I4)."""
    late, released = await lease(store, "m1", "m2")
    await store.release(TOPIC, [released])
    await claim(store)
    await take_over(store, clock)
    async with unchanged(redis):
        assert await extend(store, late, released) == [Settled.STALE] * 2


@pytest.mark.parametrize("place", ["pending", "delayed"])
async def test_a_message_that_is_leased_to_nobody_is_stale(store: Store, redis: Redis, place: str) -> None:
    (m1,) = await lease(store, "m1")
    await (store.release(TOPIC, [m1]) if place == "pending" else store.retry(TOPIC, [(m1, 60.0, b"again")]))
    async with unchanged(redis):
        assert await extend(store, m1) == [Settled.STALE]


@pytest.mark.parametrize("token", ["", "1", "1@", "2@1763230000000002", "1@17632300000000020", " "])
async def test_a_token_that_is_almost_right_is_stale(store: Store, redis: Redis, token: str) -> None:
    (m1,) = await lease(store, "m1")
    assert m1.token == "1@1763230000000002"
    async with unchanged(redis):
        assert await extend(store, replace(m1, token=token)) == [Settled.STALE]


async def test_a_message_that_is_finished_is_gone(store: Store, redis: Redis) -> None:
    done, dead = await lease(store, "done", "dead")
    await store.complete(TOPIC, [(done, 60.0)])
    await store.move_to_dlq(TOPIC, [(dead, b"", b"why")])
    async with unchanged(redis):
        assert await extend(store, done, dead, replace(done, id="never")) == [Settled.GONE] * 3


async def test_a_lost_lease_does_not_stop_the_others(store: Store, redis: Redis, clock: Clock) -> None:
    m1, m2, m3 = await lease(store, "m1", "m2", "m3")
    await store.complete(TOPIC, [(m2, 0.0)])
    before = await read_state(redis, tools=True)
    clock.advance(5)
    answer = await extend(store, replace(m1, token="9@9"), m2, m3)
    assert answer == [Settled.STALE, Settled.GONE, Settled.DONE]
    deadlines = {"m1": before["all_expire_monitor"]["m1"], "m3": clock.ms + 15_000}
    assert await read_state(redis, tools=True) == before | {"all_expire_monitor": deadlines}


async def test_sent_again_it_moves_the_deadline_again(store: Store, redis: Redis, clock: Clock) -> None:
    """The token does not name the deadline, so a heartbeat whose reply was lost locks nobody out (I5)."""
    (m1,) = await lease(store, "m1")
    assert await extend(store, m1) == [Settled.DONE]
    clock.advance(5)
    assert await extend(store, m1) == [Settled.DONE]
    assert (await read_state(redis))["all_expire_monitor"] == {"m1": clock.ms + 15_000}


async def test_a_delivery_of_another_topic_is_not_touched(store: Store, redis: Redis) -> None:
    (m1,) = await lease(store, "m1")
    async with unchanged(redis):
        assert await store.extend("mails", [m1], lease=99.0) == [Settled.STALE]


async def test_an_id_twice_in_one_call_is_extended_by_the_token_that_is_good(
    store: Store, redis: Redis, clock: Clock
) -> None:
    (m1,) = await lease(store, "m1")
    clock.advance(5)
    assert await extend(store, replace(m1, token="9@9"), m1, m1) == [
        Settled.STALE,
        Settled.DONE,
        Settled.STALE,
    ]
    assert (await read_state(redis))["all_expire_monitor"] == {"m1": clock.ms + 15_000}


async def test_a_lease_whose_body_is_missing_can_be_extended(
    store: Store, redis: Redis, clock: Clock
) -> None:
    """Its worker holds the body and will settle it; the lease is all that is asked for."""
    (m1,) = await lease(store, "m1")
    await redis.hdel(PREFIX + "payload", "m1")
    before = await read_state(redis, tools=True)
    assert await extend(store, m1) == [Settled.DONE]
    assert await read_state(redis, tools=True) == before | {"all_expire_monitor": {"m1": clock.ms + 15_000}}


async def test_an_empty_call_does_nothing(store: Store, redis: Redis) -> None:
    await lease(store, "m1")
    async with unchanged(redis):
        assert await extend(store) == []


async def test_a_thousand_leases_are_extended_in_one_call(store: Store, redis: Redis, clock: Clock) -> None:
    deliveries = await lease(store, *names(1000))
    before = await read_state(redis, tools=True)
    clock.advance(5)
    assert await extend(store, *deliveries) == [Settled.DONE] * 1000
    deadlines = dict.fromkeys(names(1000), clock.ms + 15_000)
    assert await read_state(redis, tools=True) == before | {"all_expire_monitor": deadlines}


async def test_one_more_than_a_thousand_is_refused_and_none_is_extended(store: Store, redis: Redis) -> None:
    deliveries = await lease(store, *names(1000))
    await produce(store, "m1001")
    deliveries += await claim(store)
    async with unchanged(redis):
        with pytest.raises(StoreError, match="TOOMANY 1001"):
            await extend(store, *deliveries)


@pytest.mark.parametrize(
    ("args", "refusal"), [(["soon", "m1", "1@1"], "arithmetic on"), (["15", "m1"], "BADARGS")]
)
async def test_what_makes_no_sense_is_refused(
    store: Store, redis: Redis, args: list[str], refusal: str
) -> None:
    await lease(store, "m1")
    async with unchanged(redis):
        with pytest.raises(ResponseError, match=refusal):
            await call(redis, NAME, keys_of(NAME), *args, "")


async def test_without_a_given_time_the_clock_of_the_server_counts(redis: Redis, keys: Keys) -> None:
    """The owner's clock may be hours away (I7)."""
    store = Store(redis, keys)
    (m1,) = await lease(store, "m1")
    before = await redis.time()
    await extend(store, m1)
    after = await redis.time()
    end = (await read_state(redis))["all_expire_monitor"]["m1"] - 15_000
    assert before[0] * 1000 + before[1] // 1000 <= end <= after[0] * 1000 + after[1] // 1000


@pytest.mark.parametrize("key", ["payload", "orders:processing", "all_expire_monitor"])
async def test_a_key_of_another_type_is_named_and_nothing_changes(
    store: Store, redis: Redis, key: str
) -> None:
    deliveries = await lease(store, "m1")
    await spoil(redis, key)
    async with unchanged(redis):
        with pytest.raises(WrongKeyType, match=key):
            await extend(store, *deliveries)


async def test_a_server_without_memory_still_extends(store: Store, redis: Redis, clock: Clock) -> None:
    """Otherwise every running handler would be taken over just when the server is in trouble."""
    deliveries = await lease(store, "m1")
    clock.advance(5)
    async with out_of_memory(redis):
        assert await extend(store, *deliveries) == [Settled.DONE]
    assert (await read_state(redis))["all_expire_monitor"] == {"m1": clock.ms + 15_000}
