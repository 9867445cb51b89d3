from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from redis.exceptions import ResponseError

from mx_rmq.errors import StoreError
from mx_rmq.storage.contract import Restore, Restored
from tests.scripts.helpers import call, keys_of
from tests.scripts.states import (
    NOW,
    counted,
    dead,
    delayed,
    everything,
    grouped,
    leased,
    pending,
    seed,
    together,
)
from tests.words import unchanged

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from mx_rmq.storage.store import Store

NEIGHBOURS = together(pending("p"), leased("l"), delayed("d", due=NOW + 5), grouped("x", died=NOW - 5))
"""A message in every place, none of which a call may touch."""


def restore(id_: str, topic: str = "t", died: float = NOW, error: bytes = b"why") -> Restore:
    return Restore(id_, topic, died / 1000, f"body of {id_}".encode(), error)


async def test_a_message_is_dead_again_as_it_was(store: Store, redis: Redis) -> None:
    await seed(redis, NEIGHBOURS)
    assert await store.restore([restore("a", died=NOW - 90)]) == [Restored.RESTORED]
    assert await everything(redis) == together(
        NEIGHBOURS, grouped("a", died=NOW - 90), {"topics": {"t"}}, counted({"t:restored": 1})
    )


async def test_what_is_live_or_dead_stays_as_it_is(store: Store, redis: Redis) -> None:
    await seed(redis, NEIGHBOURS, dead("old"))
    async with unchanged(redis):
        reply = await store.restore([restore(id_) for id_ in ("p", "l", "d", "x", "old")])
    assert reply == [Restored.LIVE] * 3 + [Restored.DEAD] * 2


async def test_a_body_that_the_dlq_does_not_list_is_not_written_over(store: Store, redis: Redis) -> None:
    await seed(redis, dead("a", body="other"))
    await redis.zrem("mx-rmq:{q}:dlq", "a")
    async with unchanged(redis):
        assert await store.restore([restore("a")]) == [Restored.DEAD]


async def test_sent_again_it_changes_nothing(store: Store, redis: Redis) -> None:
    assert await store.restore([restore("a"), restore("b")]) == [Restored.RESTORED] * 2
    async with unchanged(redis):
        assert await store.restore([restore("a"), restore("b")]) == [Restored.DEAD] * 2


async def test_the_same_id_twice_in_one_call_is_restored_once(store: Store, redis: Redis) -> None:
    reply = await store.restore([restore("a"), restore("a", "u")])
    assert reply == [Restored.RESTORED, Restored.DEAD]
    assert await everything(redis) == together(grouped("a"), {"topics": {"t"}}, counted({"t:restored": 1}))


async def test_a_group_knows_its_first_and_last_death(store: Store, redis: Redis) -> None:
    await seed(redis, grouped("x", died=NOW - 50))
    await store.restore(
        [restore("a", died=NOW - 90), restore("b", died=NOW - 70), restore("c", died=NOW - 10)]
    )
    groups = (await everything(redis))["dlq_groups"]
    values = {field.partition(":")[2]: value for field, value in groups.items()}
    assert (values["count"], values["first_at"], values["last_at"]) == ("4", str(NOW - 90), str(NOW - 10))


@pytest.mark.parametrize(
    ("topic", "died", "body"),
    [("", "5", "x"), ("t", "", "x"), ("t", "5", ""), ("t", "9" * 17, "x"), ("t", "-5", "x")],
)
async def test_half_a_message_is_refused_before_anything_is_written(
    redis: Redis, topic: str, died: str, body: str
) -> None:
    whole = ["a", "t", "5", "body", "why", ""]
    async with unchanged(redis):
        with pytest.raises(ResponseError, match="BADARGS message b lacks"):
            await call(
                redis, "restore_dlq", keys_of("restore_dlq"), *whole, "b", topic, died, body, "why", "", ""
            )


async def test_a_thousand_in_one_call_pass(store: Store, redis: Redis) -> None:
    ids = [f"m{n}" for n in range(1000)]
    assert await store.restore([restore(id_) for id_ in ids]) == [Restored.RESTORED] * 1000
    assert await everything(redis) == together(
        *(grouped(id_) for id_ in ids), {"topics": {"t"}}, counted({"t:restored": 1000})
    )


async def test_one_more_than_a_thousand_is_refused_whole(store: Store, redis: Redis) -> None:
    async with unchanged(redis):
        with pytest.raises(StoreError, match="TOOMANY 1001 messages"):
            await store.restore([restore(f"m{n}") for n in range(1001)])
