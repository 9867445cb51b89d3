"""set_layout and seal_shard: which shards a queue has, and which of them take messages."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from mx_rmq.receipt import Stored
from mx_rmq.storage.contract import NewMessage, Replay, Replayed, Restore
from mx_rmq.storage.queries import Queries
from mx_rmq.storage.refusals import Sealed
from tests.scripts.states import NOW, dead, delayed, everything, leased, pending, seed, together
from tests.words import new, unchanged

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from mx_rmq.storage.store import Store
    from tests.harness import Clock


async def test_the_first_layout_of_several_shards_seals_the_queues_own_tag(
    store: Store, redis: Redis
) -> None:
    """A program that still believes in one shard is refused, and reads the layout."""
    assert await store.set_layout("", "0:8", seal=True) == (1, "0:8")
    assert await everything(redis) == {"layout": "0:8", "done": {"=sealed": float("inf")}}


async def test_one_shard_is_the_queues_own_tag_and_takes_messages(store: Store, redis: Redis) -> None:
    assert await store.set_layout("", "0:1") == (1, "0:1")
    assert await everything(redis) == {"layout": "0:1"}
    assert await store.produce("t", [new("a")]) == [Stored.STORED]


async def test_the_second_program_gets_the_layout_of_the_first(store: Store, redis: Redis) -> None:
    await store.set_layout("", "0:8", seal=True)
    async with unchanged(redis):
        assert await store.set_layout("", "0:4", seal=True) == (0, "0:8")
        assert await store.set_layout("", "0:1") == (0, "0:8")


async def test_writing_the_same_layout_again_changes_nothing(store: Store, redis: Redis) -> None:
    """I5: its reply may have been lost."""
    await store.set_layout("", "0:8", seal=True)
    async with unchanged(redis):
        assert await store.set_layout("", "0:8", seal=True) == (1, "0:8")


async def test_a_layout_is_replaced_by_a_program_that_has_read_it(store: Store, redis: Redis) -> None:
    await store.set_layout("", "0:2", seal=True)
    assert await store.set_layout("0:2", "0:2 1:5") == (1, "0:2 1:5")
    async with unchanged(redis):
        assert await store.set_layout("0:2", "0:2 1:3") == (0, "0:2 1:5")


@pytest.mark.parametrize(
    "state", [{"topics": {"t"}}, {"workers": {"w": "facts"}}], ids=["produced to", "served"]
)
async def test_a_queue_that_is_in_use_as_one_shard_stays_it(
    state: dict[str, object], store: Store, redis: Redis
) -> None:
    await seed(redis, state)
    async with unchanged(redis):
        assert await store.set_layout("", "0:8", seal=True) == (-1, "")


async def test_a_sealed_shard_takes_no_message_and_nothing_is_written(store: Store, redis: Redis) -> None:
    assert await store.seal() is True
    assert await store.seal() is False
    async with unchanged(redis):
        for call in (store.produce, store.produce_delayed):
            with pytest.raises(Sealed):
                await call("t", [new("a"), NewMessage("b", b"2", "high")], producer="p", call="1")


async def test_a_call_that_was_stored_before_the_seal_is_answered_after_it(store: Store) -> None:
    """I5: never stored twice, and never refused after it was stored."""
    assert await store.produce("t", [new("a")], producer="p", call="1") == [Stored.STORED]
    await store.seal()
    assert await store.produce("t", [new("a")], producer="p", call="1") == [Stored.STORED]
    with pytest.raises(Sealed):
        await store.produce("t", [new("b")], producer="p", call="2")


async def test_what_is_in_a_sealed_shard_goes_on_as_before(store: Store, redis: Redis, clock: Clock) -> None:
    """It drains: it is claimed, promoted, retried and replayed, and its ids stay taken."""
    state = together(pending("p"), leased("l", token="1@5"), delayed("d", due=NOW + 500), dead("x"))
    await seed(redis, state)
    await store.seal()
    assert [each.id for each in (await store.claim("t", 9, lease=15, holder="w")).deliveries] == ["p"]
    clock.advance(1)
    assert (await store.promote()).promoted == ["d"]
    assert await store.replay([Replay("x")]) == [Replayed.REPLAYED]
    claimed = (await store.claim("t", 9, lease=15, holder="w")).deliveries
    assert [each.id for each in claimed] == ["d", "x"]
    await store.complete("t", [(each, 60.0) for each in claimed])
    assert (await everything(redis))["done"].keys() == {"=sealed", "d", "x"}


async def test_the_seal_stays_when_ids_are_forgotten(store: Store, redis: Redis, clock: Clock) -> None:
    await store.seal()
    await seed(redis, {"done": {"old": NOW + 1.0}})
    clock.advance(60)
    await store.take_over(10, lease=1, holder="m")
    assert (await everything(redis))["done"] == {"=sealed": float("inf")}


async def test_a_sealed_shard_takes_no_dead_message_of_an_export(store: Store, redis: Redis) -> None:
    await store.seal()
    async with unchanged(redis):
        with pytest.raises(Sealed):
            await store.restore([Restore("r", "t", 9.0, b"body", b"why")])


async def test_a_sealed_shard_says_which_ids_are_taken(store: Store, redis: Redis, clock: Clock) -> None:
    await seed(redis, together(pending("p"), leased("l"), delayed("d", due=NOW), dead("x")))
    await seed(redis, {"done": {"kept": NOW + 9_000.0, "over": NOW - 9_000.0}})
    async with unchanged(redis):
        taken = await store.taken(["p", "l", "d", "x", "kept", "over", "free"])
    assert taken == [Stored.LIVE] * 3 + [Stored.DEAD, Stored.DONE, Stored.STORED, Stored.STORED]


async def test_ids_that_are_carried_stay_taken_for_the_longer_time(store: Store, redis: Redis) -> None:
    await seed(redis, {"done": {"a": NOW + 5.0, "b": NOW + 5.0}})
    assert await store.carry([("a", NOW + 9), ("b", NOW + 1), ("c", NOW + 7)]) == 2
    assert (await everything(redis))["done"] == {"a": NOW + 9, "b": NOW + 5, "c": NOW + 7}
    assert await store.carry([("a", NOW + 9), ("c", NOW + 7)]) == 0


async def test_what_is_left_is_counted(store: Store, redis: Redis) -> None:
    assert (await store.left()).nothing
    await seed(redis, together(pending("p"), leased("l"), delayed("d", due=NOW), dead("x")))
    left = await store.left()
    assert (left.active, left.delayed, left.dead, left.nothing) == (2, 1, 1, False)


async def test_a_topic_that_is_held_is_not_delivered_and_does_not_count_as_paused(
    store: Store, redis: Redis
) -> None:
    await seed(redis, together(pending("p"), pending("q", "u")))
    assert await store.hold("t")
    assert not await store.hold("t")
    assert (await store.claim("t", 9, lease=15, holder="w")).deliveries == []
    assert len((await store.claim("u", 9, lease=15, holder="w")).deliveries) == 1
    assert not await Queries(store).paused("t")
    await store.pause("t")
    assert await store.let_go("t")
    assert (await store.claim("t", 9, lease=15, holder="w")).deliveries == []
    await store.resume("t")
    assert len((await store.claim("t", 9, lease=15, holder="w")).deliveries) == 1
