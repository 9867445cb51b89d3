"""Groups of the dead are counted by every script that moves a message in or out of the DLQ."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from mx_rmq.storage.contract import Replay, Replayed, Restore, Restored, Settled, Suspect
from tests.scripts.states import (
    NOW,
    counted,
    dead,
    delivery,
    everything,
    grouped,
    leased,
    pending,
    seed,
    together,
)
from tests.words import PREFIX

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from mx_rmq.storage.store import Store

GROUPS = f"{PREFIX}dlq_groups"


async def groups(redis: Redis) -> dict[str, int]:
    """The counts of the groups by the text of their labels."""
    fields = (await everything(redis)).get("dlq_groups", {})
    labels = {name.partition(":")[0]: value for name, value in fields.items() if name.endswith(":label")}
    counts = {name.partition(":")[0]: int(value) for name, value in fields.items() if name.endswith(":count")}
    assert len(fields) == 4 * len(counts)
    return {labels[id_]: count for id_, count in counts.items()}


async def test_deaths_of_one_cause_are_one_group(store: Store, redis: Redis) -> None:
    await seed(redis, *(leased(id_) for id_ in "abc"), leased("d", "u"))
    errors = {"a": b"no order 17", "b": b"no order 4", "c": b"no bank"}
    await store.move_to_dlq("t", [(delivery(id_), b"", why) for id_, why in errors.items()])
    await store.move_to_dlq("u", [(delivery("d", "u"), b"", b"no order 17")])
    label = '{{"topic":"{}","error":"unknown","text":"{}"}}'.format
    assert await groups(redis) == {
        label("t", "no order 17"): 2,
        label("t", "no bank"): 1,
        label("u", "no order 17"): 1,
    }


async def test_a_replay_a_deletion_and_a_trim_leave_the_group(store: Store, redis: Redis) -> None:
    await seed(redis, *(grouped(f"m{n}", died=NOW - 10 + n) for n in range(6)), dead("old", died=NOW - 20))
    assert await store.replay([Replay("m5"), Replay("old")]) == [Replayed.REPLAYED] * 2
    assert list((await groups(redis)).values()) == [5]
    assert await store.delete_dead(["m4", "m4", "nobody"]) == 1
    assert list((await groups(redis)).values()) == [4]
    assert await store.trim_dead(max_count=1) == 3
    assert list((await groups(redis)).values()) == [1]
    assert await store.delete_dead(["m3"]) == 1
    assert "dlq_groups" not in await everything(redis)


@pytest.mark.parametrize("broken", ["text", "9" * 400, "-5", ""])
async def test_a_broken_count_stops_nothing(store: Store, redis: Redis, broken: str) -> None:
    state = await seed(redis, leased("a"), grouped("b"), grouped("c"))
    group = state["dlq_payload"]["b:group"]
    for part in ("count", "first_at", "last_at"):
        await redis.hset(GROUPS, f"{group}:{part}", broken)
    assert await store.move_to_dlq("t", [(delivery("a"), b"", b"why")]) == [Settled.DONE]
    assert await store.replay([Replay("b")]) == [Replayed.REPLAYED]
    assert await store.delete_dead(["c"]) == 1
    after = await everything(redis)
    assert after["dlq"] == {"a": NOW}
    assert after["dlq_payload"].keys() == {"a", "a:queue", "a:error", "a:group"}
    assert after["payload"].keys() == {"b", "b:queue"}


@pytest.mark.parametrize("group", ["", "x y", "0f", "0f ", " {}"])
async def test_a_message_without_a_group_dies_all_the_same(store: Store, redis: Redis, group: str) -> None:
    await seed(redis, leased("a"))
    keys = store.keys.of_script(store._scripts["move_to_dlq"], "t")
    text = store._scripts["move_to_dlq"].text
    args = (PREFIX, "t", "", "a", "1@5", "", "why", "", group, str(NOW * 1000))
    assert await redis.execute_command("EVAL", text, len(keys), *keys, *args) == [1]
    assert await everything(redis) == together(dead("a"), counted({"t:dead": 1}))


async def test_the_audit_counts_one_that_died_before_there_were_groups(store: Store, redis: Redis) -> None:
    whole = await seed(redis, grouped("a", died=NOW - 5))
    group = whole["dlq_payload"]["a:group"]
    label = whole["dlq_groups"][f"{group}:label"]
    suspect = Suspect("a", group=f"{group} {label}".encode())
    await redis.delete(GROUPS)
    await redis.hdel(f"{PREFIX}dlq_payload", "a:group")
    before = await everything(redis)
    assert (await store.examine([suspect]))[0].findings == ("ungrouped",)
    assert await everything(redis) == before
    assert (await store.examine([suspect], mend=True))[0].findings == ("ungrouped",)
    assert await everything(redis) == whole
    assert (await store.examine([suspect], mend=True))[0].findings == ()
    assert await everything(redis) == whole


async def test_what_the_audit_removes_leaves_its_group(store: Store, redis: Redis) -> None:
    await seed(redis, grouped("a"), grouped("b"))
    await redis.hdel(f"{PREFIX}dlq_payload", "a")
    assert (await store.examine([Suspect("a")], mend=True))[0].findings == ("dead-without-body",)
    assert await everything(redis) == grouped("b")


async def test_one_that_lives_and_is_dead_stays_in_its_group_under_another_id(
    store: Store, redis: Redis
) -> None:
    await seed(redis, pending("a"), grouped("a"))
    assert (await store.examine([Suspect("a")], mend=True))[0].findings == ("live-and-dead",)
    assert await everything(redis) == together(pending("a"), grouped("a.dead", body="body of a"))


async def test_a_restored_message_joins_its_group(store: Store, redis: Redis) -> None:
    await seed(redis, grouped("a"))
    assert await store.restore([Restore("b", "t", NOW / 1000, b"x", b"why")]) == [Restored.RESTORED]
    assert list((await groups(redis)).values()) == [2]
