"""What operators see of the history: rows, sums, percentiles, rates."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from mx_rmq import (
    ConfigError,
    HistoryRow,
    InvalidName,
    RedisMessageQueue,
    Reject,
    Retry,
    RetryLater,
    UnknownTopic,
)
from mx_rmq.operating.history import bars, history, rates
from mx_rmq.storage.connection import Connection
from mx_rmq.storage.history import MOST_TOPICS
from mx_rmq.storage.keys import Keys
from mx_rmq.storage.naming import ShardNaming
from mx_rmq.storage.store import Store
from tests.harness import START_US
from tests.words import drained, eventually, new

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from redis.asyncio import Redis

    from mx_rmq.storage.commands import Commands
    from mx_rmq.storage.embedded import EmbeddedServer
    from mx_rmq.storage.shard import Shard
    from tests.harness import Clock
    from tests.words import MakeQueue

MINUTE = START_US // 60_000_000


class Counted:
    """Counts round trips: commands that are sent at once are one."""

    def __init__(self, commands: Commands) -> None:
        self._commands = commands
        self.trips = 0
        self._under_way = 0

    async def execute_command(self, *args: Any) -> Any:
        self.trips += not self._under_way
        self._under_way += 1
        try:
            return await self._commands.execute_command(*args)
        finally:
            self._under_way -= 1


def shards_of(*stores: Store) -> list[Shard]:
    return [cast("Shard", SimpleNamespace(operating=store, naming=ShardNaming("", ""))) for store in stores]


@pytest.fixture
async def connection(server: EmbeddedServer, redis: Redis) -> AsyncIterator[Connection]:
    """A connection as operators have it: commands that are sent at once go in one write."""
    connection = Connection(server.url, timeout=5.0, waits=0.0)
    yield connection
    await connection.close(for_good=True)


@pytest.fixture
def counting(connection: Connection, clock: Clock) -> Store:
    clock.us = MINUTE * 60_000_000
    return Store(connection, Keys("q"), history=True, now=clock)


async def work(store: Store, topic: str, count: int = 1, times: str = "") -> None:
    """Produce, claim and complete messages."""
    ids = [f"{topic}-{n}" for n in range(count)]
    await store.produce(topic, [new(id_) for id_ in ids])
    claim = await store.claim(topic, count, lease=15, holder="w")
    await store.complete(topic, [(delivery, 0.0) for delivery in claim.deliveries], times)


def filled(rows: tuple[HistoryRow, ...]) -> dict[int, int]:
    """What was completed, by minutes from the first one on."""
    return {int(row.begins_at // 60) - MINUTE: row.completed for row in rows if row.completed}


async def test_a_row_tells_what_happened_in_its_minute(counting: Store, clock: Clock) -> None:
    await work(counting, "t", 3, "4:3 29:3")
    clock.advance(5 * 60)
    await work(counting, "t", 2, "14:2")
    found = await history(shards_of(counting), "t", minutes=10)
    assert [row.begins_at for row in found.rows] == [(MINUTE - 4 + n) * 60.0 for n in range(10)]
    assert found.rows[4].produced == found.rows[4].delivered == found.rows[4].completed == 3
    assert found.rows[4].run_p50 == pytest.approx(0.0015)
    assert found.rows[4].wait_p95 == pytest.approx(0.000125 + 0.95 * 0.000125)
    assert (found.rows[9].completed, found.rows[9].run_p50, found.rows[9].wait_p50) == (2, 1.536, None)
    assert found.rows[5] == HistoryRow((MINUTE + 1) * 60.0)
    assert (found.total.completed, found.step, found.partial) == (5, 1, False)
    assert found.total.run_p95 == pytest.approx(1.024 + 1.024 * 1.75 / 2)
    assert not found.is_empty


async def test_rows_may_be_longer_and_begin_at_a_multiple_of_their_length(
    counting: Store, clock: Clock
) -> None:
    for minutes in range(60):
        await work(counting, "t", 1, f"{minutes // 20}:1")
        clock.advance(60)
    clock.advance(-60)
    found = await history(shards_of(counting), "t", minutes=60, step=30)
    assert all(row.begins_at % 1800 == 0 for row in found.rows)
    assert sum(row.completed for row in found.rows) == found.total.completed == 60
    found = await history(shards_of(counting), "t", minutes=10, step=20)
    assert len(found.rows) <= 2
    assert found.rows[0].begins_at % 1200 == 0


async def test_times_of_more_than_two_hours_ago_are_known_for_whole_sheets(
    counting: Store, clock: Clock
) -> None:
    clock.advance((20 - MINUTE % 20) * 60)  # the first minute of a sheet
    await work(counting, "t", 2, "4:2")
    clock.advance(60 * 60)
    await work(counting, "t", 2, "4:2")
    clock.advance(59 * 60)
    by_minute = await history(shards_of(counting), "t", minutes=120)
    assert [row.run_p50 for row in by_minute.rows if row.completed] == [pytest.approx(0.0015)] * 2
    clock.advance(60 * 60)
    default = await history(shards_of(counting), "t", minutes=180)
    assert default.step == 20
    assert [row.run_p50 for row in default.rows if row.completed] == [pytest.approx(0.0015)] * 2
    assert default.total.run_p50 == pytest.approx(0.0015)
    odd = await history(shards_of(counting), "t", minutes=180, step=1)
    assert [row.run_p50 for row in odd.rows if row.completed] == [None, pytest.approx(0.0015)]
    assert odd.total.run_p50 is None, "not known for just this time"
    assert odd.total.completed == 4


async def test_the_history_reaches_back_72_hours(counting: Store, clock: Clock) -> None:
    await work(counting, "t", 7)
    clock.advance((72 * 60 - 1) * 60)
    found = await history(shards_of(counting), "t", minutes=72 * 60, step=1)
    assert (len(found.rows), found.rows[0].completed, found.total.completed) == (4320, 7, 7)


async def test_all_topics_are_summed_those_counted_together_too(counting: Store) -> None:
    for n in range(MOST_TOPICS + 10):
        await work(counting, f"t{n}", 1, "4:1")
    found = await history(shards_of(counting))
    assert (found.topic, found.total.completed, found.partial) == (None, MOST_TOPICS + 10, False)
    assert found.total.run_p50 == pytest.approx(0.0015)


async def test_a_topic_that_may_have_been_counted_with_others_says_so(counting: Store) -> None:
    for n in range(MOST_TOPICS + 1):
        await work(counting, f"t{n}")
    (counted, beyond) = [await history(shards_of(counting), topic) for topic in ("t0", f"t{MOST_TOPICS}")]
    assert (counted.total.completed, counted.partial) == (1, False)
    assert (beyond.total.completed, beyond.partial) == (0, True)
    assert "incomplete" in str(beyond)


async def test_the_shards_of_a_queue_are_summed(connection: Connection, clock: Clock) -> None:
    stores = [Store(connection, Keys("q", n), history=True, now=clock) for n in range(2)]
    for store in stores:
        await work(store, "t", 2, "4:2")
    found = await history(shards_of(*stores), "t")
    assert found.total.completed == 4
    assert found.total.run_p50 == pytest.approx(0.0015)
    assert (await rates(shards_of(*stores))).topics["t"].completions[-1] == 4


async def test_rates_are_of_the_last_sixty_seconds(counting: Store, clock: Clock) -> None:
    await work(counting, "t", 120, "4:120")
    clock.advance(75)  # a quarter of the next minute is over: three quarters of the first count
    await counting.produce("t", [new(f"n{n}") for n in range(30)])
    of = (await rates(shards_of(counting))).topics["t"]
    assert of.produced == pytest.approx((30 + 0.75 * 120) / 60, rel=1e-3)
    assert of.completed == pytest.approx(0.75 * 120 / 60, rel=1e-3)
    assert of.failed == 0.0
    assert of.run_p50 == pytest.approx(0.0015)
    assert (len(of.completions), of.completions[-2:]) == (60, (120, 0))
    clock.advance(120)
    of = (await rates(shards_of(counting))).topics["t"]
    assert (of.produced, of.completed, of.run_p50) == (0.0, 0.0, None)
    clock.advance(3600)
    assert (await rates(shards_of(counting))).topics == {}


async def test_retries_and_deaths_are_failures(counting: Store) -> None:
    await counting.produce("t", [new(f"n{n}") for n in range(2)])
    one, two = (await counting.claim("t", 2, lease=15, holder="w")).deliveries
    await counting.retry("t", [(one, 9.0, b"x")])
    await counting.move_to_dlq("t", [(two, b"x", b'{"reason":"rejected"}')])
    assert (await rates(shards_of(counting))).topics["t"].failed == pytest.approx(2 / 60, rel=0.02)
    assert (await history(shards_of(counting), "t")).total.dead == {"rejected": 1}


async def test_a_few_round_trips_do_for_a_thousand_topics(
    counting: Store, connection: Connection, clock: Clock
) -> None:
    for n in range(1000):
        await counting.produce(f"t{n}", [new(f"m{n}")])
    counted = Counted(connection)
    store = Store(counted, Keys("q"), history=True, now=clock)
    found = await rates(shards_of(store))
    assert (len(found.topics), counted.trips) == (MOST_TOPICS + 1, 3)
    counted.trips = 0
    assert (await history(shards_of(store))).total.produced == 1000
    assert counted.trips <= 4


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"minutes": 0}, "minutes must be"),
        ({"minutes": 72 * 60 + 1}, "minutes must be"),
        ({"minutes": 1.5}, "minutes must be"),
        ({"step": 0}, "step must be"),
        ({"step": 61}, "step must be"),
        ({"step": "1"}, "step must be"),
    ],
)
async def test_what_cannot_be_asked_for_is_refused(
    options: dict[str, Any], said: str, queue: RedisMessageQueue
) -> None:
    with pytest.raises(ConfigError, match=said):
        await queue.history("t", **options)


async def test_a_topic_that_there_is_not_is_refused(queue: RedisMessageQueue) -> None:
    await queue.produce("orders", 1)
    with pytest.raises(UnknownTopic, match="did you mean 'orders'"):
        await queue.history("order")
    with pytest.raises(InvalidName):
        await queue.history("no topic")


async def test_a_topic_without_a_history_has_empty_rows(make_queue: MakeQueue) -> None:
    queue = make_queue(history=False)
    await queue.open()
    await queue.produce("t", 1)
    found = await queue.history("t", minutes=3)
    assert (found.is_empty, len(found.rows)) == (True, 3)
    assert (await queue.rates()).topics == {}


async def test_a_worker_measures_how_long_messages_ran_and_waited(make_queue: MakeQueue) -> None:
    queue = make_queue(retry=Retry(max_attempts=2, backoff=[0.0]))
    tries: list[int] = []

    @queue.handler("t")
    async def on_t(seconds: float) -> None:
        await asyncio.sleep(seconds)

    @queue.handler("u")
    async def on_u(payload: int) -> None:
        tries.append(payload)
        if tries.count(payload) == 1:
            raise RetryLater(0.0, count=payload == 1)
        if payload == 3:
            raise Reject("no")

    await queue.open()
    await queue.produce_many("t", [0.3] * 3)
    await queue.produce("t", 0.0, delay=0.2)
    await asyncio.sleep(0.4)  # what is waited for is time itself
    await queue.start()
    await eventually(lambda: _completed(queue, "t", 4))
    total = (await queue.history("t")).total
    assert total.wait_p50 is not None
    assert total.run_p95 is not None
    assert 0.25 <= total.run_p95 <= 0.6
    assert 0.12 <= total.wait_p50 <= 2.0, "the delay does not count"
    for n in range(1, 4):
        await queue.produce("u", n)
    await drained(queue)
    total = (await queue.history("u")).total
    assert (total.produced, total.delivered, total.completed) == (3, 6, 2)
    assert (total.retried, total.put_off, total.dead) == (1, 2, {"rejected": 1})
    assert total.run_p50 is not None
    assert total.wait_p50 is None, "how long a message waited that is tried again is not known"


async def _completed(queue: RedisMessageQueue, topic: str, count: int) -> bool:
    return (await queue.history(topic)).total.completed == count


async def test_a_history_prints_as_a_table_and_becomes_json(counting: Store, clock: Clock) -> None:
    await work(counting, "t", 3, "4:3 41:3")
    found = await history(shards_of(counting), "t", minutes=2)
    header, *rows = str(found).splitlines()
    assert header.split("  ")[0] == "from, UTC"
    assert len(rows) == 3
    assert rows[1].split() == ["18:06", *("3",) * 3, *("0",) * 4, "1.5ms", "1.9ms", "768ms", "998ms"]
    assert rows[2].split()[0] == "total"
    as_json = json.loads(json.dumps(found.as_dict(), allow_nan=False))
    assert as_json["rows"][1]["begins_at"] == "2025-11-15T18:06:00.000+00:00"
    assert as_json["rows"][1]["completed"] == 3
    assert as_json["total"]["dead"] == {}
    long = await history(shards_of(counting), minutes=72 * 60)
    assert str(long).splitlines()[1].startswith("2025-11-12 18:00")
    assert str(await rates(shards_of(counting))).splitlines()[1].startswith("t ")
    assert json.dumps((await rates(shards_of(counting))).as_dict(), allow_nan=False)
    clock.advance(86400)
    assert str(await rates(shards_of(counting))) == "no topic was used in the last hour"


def test_bars_are_as_high_as_their_numbers() -> None:
    assert bars([0, 1, 50, 100]) == " ▁▄█"
    assert bars([]) == ""
    assert bars([0, 0]) == "  "
