"""The history that the scripts keep: what is counted, where, for how long, and that it stops nothing."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from mx_rmq.errors import StoreError
from mx_rmq.message import Death, encode_death
from mx_rmq.storage.history import KEPT_FINE, MOST_TOPICS, OTHERS, SHEET, SHEETS, Recorded, Sheets
from mx_rmq.storage.keys import Keys
from mx_rmq.storage.store import Store
from tests.harness import START_US, all_keys, command
from tests.scripts.every_script import CALLS, HELD, healthy, rich_state
from tests.scripts.states import everything, seed
from tests.words import PREFIX, new, unchanged

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from tests.harness import Clock

MINUTE = START_US // 60_000_000
NUMBER = MINUTE // SHEET
DESIGN = Path(__file__).parents[2] / "docs" / "design.md"


@pytest.fixture
def counting(redis: Redis, clock: Clock) -> Store:
    """A store that keeps the history."""
    return Store(redis, Keys("q"), history=True, now=clock)


async def noted(store: Store, topic: str = "t") -> dict[int, tuple[int, ...]]:
    """What is counted of a topic, by minutes from the first one on: events, then deaths."""
    found = Recorded()
    numbers = range(NUMBER - 1, NUMBER + 300)
    await Sheets(store).topic(topic, numbers, numbers, found)
    return {minute - MINUTE: tuple(counts) for minute, counts in found.counts.items()}


def only(**events: int) -> tuple[int, ...]:
    """One minute in which these things happened."""
    names = (
        *("produced", "delivered", "completed", "retried", "put_off", "recovered"),
        *("failed", "crashed", "expired", "rejected", "unparsable", "invalid", "unknown"),
    )
    assert set(events) <= set(names)
    return tuple(events.get(name, 0) for name in names)


def without_history(state: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in state.items() if not key.startswith(("history=", "recent="))}


COUNTED = {
    "produce_normal_message": only(produced=3),
    "produce_one_message": only(produced=1),
    "produce_delay_message": only(produced=3),
    "claim_message": only(delivered=4),
    "complete_message": only(completed=2),
    "retry_message": only(retried=2),
    "move_to_dlq": only(unknown=2),
    "handle_timeout_message": only(recovered=1),
}
"""What each call leaves in the history of its topic; the others leave none."""


@pytest.mark.parametrize("script", sorted(CALLS))
async def test_a_script_does_the_same_with_the_history_and_without(
    script: str, store: Store, counting: Store, redis: Redis, clock: Clock
) -> None:
    answer, state = await healthy(script, store, redis, clock)
    assert without_history(state) == state
    assert await CALLS[script](counting, clock) == answer
    after = await everything(redis)
    assert without_history(after) == state
    assert await noted(counting) == ({0: COUNTED[script]} if script in COUNTED else {})


SPOILT = (
    {f"history={NUMBER}": "not a set"},
    {f"history={NUMBER}": ["not a set"], f"history={NUMBER}=*": ["not a sheet"]},
    {f"history={NUMBER}=t": ["not a string"], f"recent={NUMBER}=t": {"not": "a string"}},
    {f"history={NUMBER}=t": "short", f"recent={NUMBER}=t": "short"},
    {f"recent={NUMBER}=t": ["not a string"]},
)


@pytest.mark.parametrize("script", sorted(COUNTED))
@pytest.mark.parametrize("spoilt", SPOILT, ids=lambda keys: "+".join(keys))
async def test_a_history_that_cannot_be_written_stops_nothing(
    script: str, spoilt: dict[str, Any], store: Store, counting: Store, redis: Redis, clock: Clock
) -> None:
    answer, state = await healthy(script, store, redis, clock)
    await seed(redis, spoilt)
    assert await CALLS[script](counting, clock) == answer
    assert without_history(await everything(redis)) == state


async def test_every_event_is_counted_in_its_minute(counting: Store, clock: Clock) -> None:
    await counting.produce("t", [new(f"m{n}") for n in range(9)])
    clock.advance(60)
    claim = await counting.claim("t", 9, lease=15, holder="w")
    one, two, three, *rest = claim.deliveries
    clock.advance(20 * 60)  # on the next sheet
    await counting.extend("t", claim.deliveries, lease=15)
    await counting.complete("t", [(one, 0.0)])
    await counting.retry("t", [(two, 60.0, b"x")])
    await counting.put_off("t", [(three, 60.0, b"x")])
    reasons = ("failed", "crashed", "expired", "rejected", "unparsable", "invalid")
    deaths = [encode_death(Death(reason=reason)) for reason in reasons]  # type: ignore[arg-type]
    await counting.move_to_dlq("t", [(each, b"", why) for each, why in zip(rest, deaths, strict=True)])
    assert await noted(counting) == {
        0: only(produced=9),
        1: only(delivered=9),
        21: only(completed=1, retried=1, put_off=1, **dict.fromkeys(reasons, 1)),
    }


async def test_a_call_without_effect_is_not_in_the_history(counting: Store, redis: Redis) -> None:
    """It was late, was sent twice, or found nothing to do."""
    await counting.produce("t", [new("m1")], producer="p", call="1")
    claim = await counting.claim("t", 9, lease=15, holder="w")
    await counting.complete("t", [(claim.deliveries[0], 0.0)], "1:1 29:1")
    async with unchanged(redis):
        await counting.complete("t", [(claim.deliveries[0], 0.0)], "1:1 29:1")
        await counting.retry("t", [(claim.deliveries[0], 0.0, b"x")])
        await counting.move_to_dlq("t", [(claim.deliveries[0], b"x", b"y")])
        await counting.take_over(9, lease=15, holder="m")
    await counting.produce("t", [new("m1")], producer="p", call="1")
    assert await noted(counting) == {0: only(produced=1, delivered=1, completed=1)}


async def test_without_the_option_nothing_is_kept(store: Store, redis: Redis) -> None:
    await store.produce("t", [new("m1")])
    claim = await store.claim("t", 9, lease=15, holder="w")
    await store.complete("t", [(claim.deliveries[0], 0.0)], "1:1 29:1")
    assert [key for key in await all_keys(redis) if "=" in key] == []


async def test_times_are_kept_by_the_minute_and_for_the_whole_sheet(counting: Store, clock: Clock) -> None:
    for times in ("0:2 27:1 33:3", "", "55:1000"):
        await counting.produce("t", [new(f"m{clock.us}")])
        claim = await counting.claim("t", 9, lease=15, holder="w")
        await counting.complete("t", [(claim.deliveries[0], 0.0)], times)
        clock.advance(60)
    found = Recorded()
    await Sheets(counting).topic("t", range(NUMBER, NUMBER + 1), range(NUMBER, NUMBER + 1), found)
    fine = {minute - MINUTE: (_filled(runs), _filled(waits)) for minute, (runs, waits) in found.fine.items()}
    assert fine == {0: ({0: 2, 27: 1}, {5: 3}), 2: ({}, {27: 1000})}
    runs, waits = found.spreads[NUMBER]
    assert (_filled(runs), _filled(waits)) == ({0: 2, 27: 1}, {5: 3, 27: 1000})


def _filled(buckets: Any) -> dict[int, int]:
    return {n: times for n, times in enumerate(buckets) if times}


@pytest.mark.parametrize(
    "times",
    ["56:1", "r1:1", "1", "1:10000", "1:", "-1:1", "1:1,29:1", "1:1  1:1", " 1:1", "1:1 " * 57, "\xff"],
)
async def test_times_that_cannot_be_read_are_refused_before_the_first_write(
    times: str, counting: Store, redis: Redis
) -> None:
    await seed(redis, rich_state())
    async with unchanged(redis):
        with pytest.raises(StoreError, match="BADARGS no times are in"):
            await counting.complete("t", [(each, 0.0) for each in HELD], times)


async def test_a_number_that_is_full_stays_full(counting: Store, redis: Redis) -> None:
    await counting.produce("t", [new("m1")])
    key = f"{PREFIX}history={NUMBER}=t"
    await command(redis, "BITFIELD", key, "SET", "u24", f"#{56 + MINUTE % SHEET * 13}", 2**24 - 2)
    await counting.produce("t", [new(f"n{n}") for n in range(3)])
    assert await noted(counting) == {0: only(produced=2**24 - 1)}


async def test_a_sheet_expires_when_it_is_too_old_to_be_asked_for(counting: Store, redis: Redis) -> None:
    await counting.produce("t", [new("m1")])
    claim = await counting.claim("t", 9, lease=15, holder="w")
    await counting.complete("t", [(claim.deliveries[0], 0.0)], "1:1")
    hours = {
        key: await redis.ttl(f"{PREFIX}{key}=t") / 3600 for key in (f"history={NUMBER}", f"recent={NUMBER}")
    }
    hours["topics"] = await redis.ttl(f"{PREFIX}history={NUMBER}") / 3600
    assert {key: round(ttl, 1) for key, ttl in hours.items()} == {
        f"history={NUMBER}": 74.0,
        f"recent={NUMBER}": 2.5,
        "topics": 74.0,
    }
    assert KEPT_FINE / 60 + SHEET / 60 < 2.5


async def test_a_sheet_that_another_program_deleted_expires_too(counting: Store, redis: Redis) -> None:
    await counting.produce("t", [new("m1")])
    await redis.delete(f"{PREFIX}history={NUMBER}=t")
    await counting.produce("t", [new("m2")])
    assert await redis.ttl(f"{PREFIX}history={NUMBER}=t") > 0
    assert await noted(counting) == {0: only(produced=1)}


async def test_topics_beyond_the_limit_are_counted_together(counting: Store, redis: Redis) -> None:
    topics = [f"t{n}" for n in range(MOST_TOPICS + 5)]
    for topic in (*topics, *topics):
        await counting.produce(topic, [new(f"m{topic}")])
        await counting.claim(topic, 9, lease=15, holder="w")
    assert await noted(counting, topics[MOST_TOPICS - 1]) == {0: only(produced=1, delivered=1)}
    assert await noted(counting, topics[MOST_TOPICS]) == {}
    assert await noted(counting, OTHERS) == {0: only(produced=5, delivered=5)}
    assert await command(redis, "SCARD", f"{PREFIX}history={NUMBER}") == MOST_TOPICS
    assert len([key for key in await all_keys(redis) if "history=" in key]) == MOST_TOPICS + 2


async def test_the_history_never_takes_more_than_the_design_says(counting: Store, redis: Redis) -> None:
    """One sheet in use by 1,000 topics with the longest names, times as many sheets as there can be."""
    topics = [f"{n:0128}" for n in range(1000)]
    times = " ".join(f"{bucket}:9" for bucket in range(56))
    for n, topic in enumerate(topics):
        await counting.produce(topic, [new(f"m{n}")])
        if n < MOST_TOPICS + 9:
            claim = await counting.claim(topic, 9, lease=15, holder="w")
            await counting.complete(topic, [(claim.deliveries[0], 0.0)], times)
    taken = {}
    for kind in SHEETS:
        keys = [key for key in await all_keys(redis) if key.startswith(f"{PREFIX}{kind}=")]
        assert MOST_TOPICS < len(keys) <= MOST_TOPICS + 2
        before = await used(redis)
        await redis.delete(*keys)
        taken[kind] = before - await used(redis)
    sheets, recent = 74 * 60 // SHEET + 1, 150 // SHEET + 1
    most = taken["history"] * sheets + taken["recent"] * recent
    (said,) = re.findall(r"The history takes\s+at\s+most (\d+) MB", DESIGN.read_text())
    assert 0.5 * int(said) < most / 1e6 <= int(said)


async def used(redis: Redis) -> int:
    info = await redis.info("memory")
    return int(info["used_memory"])
