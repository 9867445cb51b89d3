"""Many workers take turns at looking after a shard; one that dies or stands still costs a turn, no more."""

from __future__ import annotations

import asyncio
import time
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest

from mx_rmq.config import Config
from mx_rmq.storage.shard import Shard
from mx_rmq.worker.holdings import Holdings
from mx_rmq.worker.rounds import FEW, Rounds
from mx_rmq.worker.scheduler import Scheduler
from tests.words import ONE_SERVER, drained, eventually, new, shard_at, store_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from redis.asyncio import Redis

    from mx_rmq.storage.embedded import EmbeddedServer
    from tests.words import MakeQueue

LEASE = 30.0
MANY = 20
TURN = "mx-rmq:{q}:observer"
SCHEDULER = "mx-rmq:{q}:scheduler"


class Watch:
    """A worker's clock, instead of the loop's."""

    def __init__(self) -> None:
        self.now = 100.0

    def time(self) -> float:
        return self.now


@pytest.fixture
async def shard(server: EmbeddedServer) -> AsyncIterator[Shard]:
    shard = shard_at(server.url, lease=LEASE)
    yield shard
    await shard.close()


def holdings_of(shard: Shard, workers: int) -> Holdings:
    holdings = Holdings(shard)
    holdings.workers = workers
    return holdings


def rounds_of(shard: Shard, worker: str, workers: int = MANY, lease: float = LEASE) -> tuple[Rounds, Watch]:
    watch = Watch()
    rounds: Any = Rounds(holdings_of(shard, workers), Config(name="q", lease=lease), worker)
    rounds._loop = watch
    rounds._made_at = watch.now
    return rounds, watch


# -- turns


async def test_of_many_workers_one_at_a_time_makes_a_round(shard: Shard, redis: Redis) -> None:
    turns = [(await rounds_of(shard, f"w{n}")[0].ask()).mine for n in range(5)]
    assert turns == [True, False, False, False, False]
    assert await redis.get(TURN) == b"w0"
    assert 0 < await redis.pttl(TURN) <= 1000


async def test_a_few_workers_each_make_their_own_rounds_and_write_nothing(shard: Shard, redis: Redis) -> None:
    turns = [await rounds_of(shard, f"w{n}", FEW)[0].ask() for n in range(FEW)]
    assert all(turn.mine for turn in turns)
    assert await redis.keys("*") == []


async def test_a_worker_that_dies_with_its_turn_is_followed_by_another(shard: Shard) -> None:
    assert (await rounds_of(shard, "dies")[0].ask()).mine
    next_one, _ = rounds_of(shard, "next")

    async def has_a_turn() -> bool:
        return (await next_one.ask()).mine

    await eventually(has_a_turn)


@pytest.mark.parametrize("spoilt", ["a list", "a text that stays"])
async def test_a_spoilt_key_makes_rounds_seldom_but_does_not_end_them(
    shard: Shard, redis: Redis, spoilt: str
) -> None:
    await (redis.lpush(TURN, "x") if spoilt == "a list" else redis.set(TURN, "x"))
    rounds, watch = rounds_of(shard, "w")
    assert not (await rounds.ask()).mine
    watch.now += 600
    assert (await rounds.ask()).mine
    assert not (await rounds.ask()).mine


async def test_with_memory_full_rounds_are_made_as_often_as_with_turns(shard: Shard, redis: Redis) -> None:
    """A turn cannot be written then, and killed workers must still be missed in seconds."""
    workers = [rounds_of(shard, f"w{n}") for n in range(MANY)]
    made: list[list[float]] = [[] for _ in workers]
    usual = MANY * 0.45
    await redis.config_set("maxmemory", 1)
    try:
        for tick in range(round(3 * usual)):
            for (rounds, watch), own in zip(workers, made, strict=True):
                watch.now = 100.0 + tick
                if (await rounds.ask()).mine:
                    own.append(tick)
    finally:
        await redis.config_set("maxmemory", 0)
    assert all(2 <= len(own) <= 6 for own in made)
    ticks = sorted(tick for own in made for tick in own)
    assert all(after - before <= 5 for before, after in pairwise(ticks))
    assert max(ticks.count(tick) for tick in ticks) < 0.75 * MANY
    rounds, _ = workers[0]
    assert (await rounds.ask()).mine  # a turn again
    assert not (await workers[1][0].ask()).mine


async def test_the_more_workers_the_more_seldom_each_asks(shard: Shard) -> None:
    waits = []
    for workers in (1, FEW, 40, 100, 1000, 10_000):
        rounds, _ = rounds_of(shard, "w", workers)
        assert rounds.wait() == 0
        await rounds.ask()
        rounds._spread = 1.0
        waits.append(rounds.wait())
    assert waits == [1.0, 1.0, 2.5, 6.25, 10.0, 10.0]


async def test_each_asks_several_times_in_a_lease_however_many_they_are(shard: Shard) -> None:
    """A server that stands still until leases end must meet a question of each of them."""
    rounds, _ = rounds_of(shard, "w", 10_000, lease=3.0)
    await rounds.ask()
    assert rounds.wait() < 2.0


async def test_a_worker_that_holds_messages_asks_sooner(shard: Shard) -> None:
    rounds, _ = rounds_of(shard, "w", 1)
    await rounds.ask()
    assert rounds.wait() == 1.0
    rounds._holdings.jobs.add(object())  # type: ignore[arg-type]
    assert rounds.wait() == 0.5


async def test_a_worker_that_hears_of_fewer_workers_asks_sooner(shard: Shard) -> None:
    rounds, watch = rounds_of(shard, "w", 1000)
    await rounds.ask()
    watch.now += 2
    assert rounds.wait() > 0
    rounds._holdings.workers = 3
    assert rounds.wait() == 0


async def test_of_many_workers_each_hears_the_servers_time(shard: Shard) -> None:
    """So that it knows of a server that stood still, though another worker had every turn."""
    await rounds_of(shard, "w1")[0].ask()
    turn = await rounds_of(shard, "w2")[0].ask()
    assert not turn.mine
    assert turn.heard is not None
    assert turn.heard[1] == pytest.approx(time.time(), abs=5)


# -- the worker that is woken for delayed messages


async def test_of_many_schedulers_one_waits_for_tokens(shard: Shard, redis: Redis) -> None:
    first, second = (Scheduler(holdings_of(shard, MANY), name) for name in ("w1", "w2"))
    await first.step()
    await second.step()
    assert await redis.get(SCHEDULER) == b"w1"
    await first.step()
    assert await redis.get(SCHEDULER) == b"w1"
    await first.close()
    await second.close()


async def test_the_place_of_a_scheduler_that_is_gone_is_taken(shard: Shard, redis: Redis) -> None:
    """Also before that, what becomes due is promoted, a little late."""
    store = store_of(redis)
    gone, next_one = (Scheduler(holdings_of(shard, MANY), name) for name in ("gone", "next"))
    await gone.step()
    task = asyncio.create_task(next_one.run())
    await store.produce_delayed("t", [new("A1", delay=0.05)])

    async def promoted() -> bool:
        return bool(await redis.llen("mx-rmq:{q}:t:pending"))

    await eventually(promoted)

    async def taken() -> bool:
        return bool(await redis.get(SCHEDULER) == b"next")

    await eventually(taken)
    await store.produce_delayed("u", [new("A2", delay=0.05)])

    async def promptly() -> bool:
        return bool(await redis.llen("mx-rmq:{q}:u:pending"))

    await eventually(promptly)
    next_one.stop()
    await task
    await gone.close()


@pytest.mark.parametrize("spoilt", ["a list", "a text that stays"])
async def test_a_spoilt_key_of_the_scheduler_stops_no_delayed_message(
    shard: Shard, redis: Redis, spoilt: str
) -> None:
    await (redis.lpush(SCHEDULER, "x") if spoilt == "a list" else redis.set(SCHEDULER, "x"))
    scheduler = Scheduler(holdings_of(shard, MANY), "w")
    task = asyncio.create_task(scheduler.run())
    await store_of(redis).produce_delayed("t", [new("A1", delay=0.05)])

    async def promoted() -> bool:
        return bool(await redis.llen("mx-rmq:{q}:t:pending"))

    await eventually(promoted)
    scheduler.stop()
    await task


# -- many real workers


@ONE_SERVER
async def test_many_workers_run_delayed_messages_and_leave(make_queue: MakeQueue) -> None:
    queues = [make_queue(lease=LEASE, concurrency=2) for _ in range(FEW + 4)]
    seen: list[int] = []
    for mq in queues:

        @mq.handler("t")
        async def on_t(payload: int) -> None:
            seen.append(payload)

        await mq.start()
    for mq in queues:  # each hears how many they are when it registers
        await mq.produce("t", 2, delay=0.1)
    await eventually(lambda: seen.count(2) == len(queues))
    await drained(queues[0])
    for mq in queues[:6]:
        await mq.close()
    await queues[-1].produce("t", 3, delay=0.2)
    await eventually(lambda: 3 in seen)
    assert len(await queues[-1].workers()) == len(queues) - 6
