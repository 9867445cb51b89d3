"""One shard that does not answer never stops the others."""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from math import inf
from time import monotonic
from typing import TYPE_CHECKING, Any

import pytest

from mx_rmq import ConfigError, Retry, ServerUnavailable
from mx_rmq.producing.sync import _SyncShard
from mx_rmq.storage.locate import Address
from mx_rmq.storage.shard import shard_number
from mx_rmq.storage.store import Store
from mx_rmq.urls import read_url
from tests.sharding.conftest import AWAY, SHARDS
from tests.words import dead, eventually

if TYPE_CHECKING:
    from collections.abc import Callable

    from mx_rmq import RedisMessageQueue
    from mx_rmq.producing.sync import SyncProducer
    from tests.proxy import Proxy
    from tests.words import MakeQueue

    Split = Callable[..., RedisMessageQueue]
    KeyOf = Callable[[int], str]

LOST = int(AWAY)


async def go_away(mq: RedisMessageQueue, proxy: Proxy) -> None:
    """Cut the shard off, and wait until the program knows: what it sends before may have been stored."""
    proxy.away()
    await eventually(lambda: not mq._lifecycle.shards[LOST].connection.number)


async def test_without_key_and_id_a_message_goes_to_a_shard_that_answers(split: Split, proxy: Proxy) -> None:
    """Its id leads to that shard, so it is found at once."""
    mq = split()
    await mq.produce_many("t", range(100))
    await go_away(mq, proxy)
    receipts = [await mq.produce("t", n) for n in range(60)]
    receipts += await mq.produce_many("t", range(600))
    assert LOST not in {shard_number(id_, SHARDS) for id_ in receipts}
    assert len(set(receipts)) == 660
    for n, id_ in ((5, receipts[5]), (0, receipts[60]), (599, receipts[-1])):
        assert (await mq.find(id_)).payload == n


async def test_a_shard_that_is_back_takes_messages_again(split: Split, proxy: Proxy) -> None:
    mq = split()
    await mq.produce("t", 0, key="any")
    await go_away(mq, proxy)
    await mq.produce_many("t", range(400))
    proxy.back()

    async def is_used() -> bool:
        return LOST in {shard_number(id_, SHARDS) for id_ in await mq.produce_many("t", range(40))}

    await eventually(is_used)


async def test_with_a_key_or_an_id_it_waits_and_then_names_the_shard(
    split: Split, proxy: Proxy, key_of: KeyOf
) -> None:
    mq = split(patience=0.2)
    await mq.open()
    proxy.away()
    with pytest.raises(ServerUnavailable, match=rf"shard {AWAY} at .*gave up after 0\.2 s"):
        await mq.produce("t", 1, key=key_of(LOST))
    with pytest.raises(ServerUnavailable, match=f"shard {AWAY} at "):
        await mq.produce("t", 1, message_id=key_of(LOST))
    with pytest.raises(ServerUnavailable, match=f"shard {AWAY} at "):
        await mq.produce_many("t", range(9), key=key_of(LOST))
    assert await mq.produce("t", 1, key=key_of(1))


async def test_a_message_with_a_key_is_stored_when_the_shard_is_back_in_time(
    split: Split, proxy: Proxy, key_of: KeyOf
) -> None:
    mq = split(patience=15.0)
    await mq.open()
    proxy.away()
    waiting = asyncio.create_task(mq.produce("t", 1, key=key_of(LOST)))
    assert await mq.produce("t", 1, key=key_of(0))
    assert not waiting.done()
    proxy.back()
    assert (await mq.find(await waiting)).state == "pending"


async def test_a_queue_opens_without_one_of_its_shards(split: Split, proxy: Proxy) -> None:
    """Its worker begins with those that answer, and takes up the other when that is back."""
    first = split()
    ids = await first.produce_many("t", range(200))
    proxy.away()
    done: set[int] = set()
    mq = split(server_check="warn", patience=30.0, concurrency=16)

    @mq.handler("t")
    async def handle(n: int) -> None:
        done.add(n)

    await asyncio.wait_for(mq.start(), 10)
    there = {n for n, id_ in enumerate(ids) if shard_number(id_, SHARDS) != LOST}
    await eventually(lambda: done == there)
    proxy.back()
    await eventually(lambda: len(done) == 200)


async def test_a_program_starts_while_the_server_of_the_layout_is_away(
    split: Split, make_queue: MakeQueue, proxy: Proxy
) -> None:
    """Each shard has a copy of the layout, for programs that name the number of shards."""
    await make_queue(shards=SHARDS).open()
    proxy.away()
    mq = split(behind=("", AWAY))
    await mq.open()
    assert len(await mq.produce_many("t", range(100))) == 100
    with pytest.raises(ConfigError, match=f"has {SHARDS} shards, not {SHARDS + 1}"):
        await split(behind=("", AWAY), shards=SHARDS + 1, patience=0.1).open()


@pytest.mark.parametrize("number", [None, SHARDS])
@pytest.mark.usefixtures("spread")
async def test_a_program_starts_after_a_reshard_while_the_server_of_the_layout_is_away(
    split: Split, make_queue: MakeQueue, proxy: Proxy, number: int | None
) -> None:
    """Copies of the layout are where every program looks, also one that names no number."""
    first = make_queue(shards=SHARDS + 1)
    await first.open()
    await first.reshard(SHARDS)
    proxy.away()
    for check in ("off", "warn"):
        mq = split(behind=("",), shards=number, server_check=check)
        await mq.open()
        assert (await mq.counts()).pending == 0
        assert str(mq._lifecycle.shards.layout) == f"1:{SHARDS}"
    assert blocking(split(shards=SHARDS), proxy, "").produce("t", 1)
    assert (await mq.counts()).pending == 1


@pytest.mark.parametrize("how", ["away", "silent"])
async def test_claims_delays_and_recovery_of_the_others_go_on(split: Split, proxy: Proxy, how: str) -> None:
    done: list[int] = []
    mq = split(lease=1.5, socket_timeout=0.5, patience=30.0, recovery_grace=None, concurrency=16)

    @mq.handler("t")
    async def handle(n: int) -> None:
        done.append(n)

    await mq.start()
    await mq.produce_many("t", range(50))
    await eventually(lambda: len(done) == 50)
    if how == "away":
        proxy.away()
    else:
        proxy.freeze()
    await eventually(lambda: not mq._lifecycle.shards[LOST].is_well)
    receipts = await mq.produce_many("t", range(100, 400))
    receipts += await mq.produce_many("t", range(400, 450), delay=0.2)
    assert LOST not in {shard_number(id_, SHARDS) for id_ in receipts}
    await eventually(lambda: len(done) == 400)
    assert sorted(done[50:]) == list(range(100, 450))
    proxy.back()
    proxy.thaw()


async def test_leases_of_the_others_are_extended_while_one_shard_is_silent(
    split: Split, proxy: Proxy, key_of: KeyOf
) -> None:
    """A handler that runs for several leases keeps its message."""
    mq = split(lease=1.0, socket_timeout=2.0, recovery_grace=None)
    runs: list[str] = []
    release = asyncio.Event()

    @mq.handler("t")
    async def handle(payload: str) -> None:
        runs.append(payload)
        await release.wait()

    await mq.start()
    await mq.produce("t", "lost", key=key_of(LOST))
    await mq.produce("t", "kept", key=key_of(1))
    await eventually(lambda: len(runs) == 2)
    proxy.freeze()
    await asyncio.sleep(3.2)
    assert runs.count("kept") == 1
    health = await mq.health()
    assert health.leases_lost == 0
    release.set()
    proxy.thaw()


async def test_counts_and_workers_say_what_is_missing(split: Split, proxy: Proxy) -> None:
    mq = split()

    @mq.handler("t")
    async def handle(n: int) -> None: ...

    ids = await mq.produce_many("t", range(100))
    there = [id_ for id_ in ids if shard_number(id_, SHARDS) != LOST]
    proxy.away()
    counts = await mq.counts()
    assert counts.pending == len(there)
    (missing,) = counts.missing
    assert missing.startswith(f"shard {AWAY} at ")
    assert f"missing: shard {AWAY} at " in str(counts)
    for partial in (await mq.workers(), await mq.dlq.groups(), await mq.history(), await mq.rates()):
        assert partial.missing == (missing,)
        assert f"missing: shard {AWAY}" in str(partial)
    proxy.back()
    assert not (await mq.counts()).missing


async def test_what_needs_every_shard_names_the_one_that_does_not_answer(split: Split, proxy: Proxy) -> None:
    mq = split()
    await mq.produce_many("t", range(40))
    proxy.away()
    calls: list[Any] = [
        mq.pause("t"),
        mq.purge("t"),
        mq.dlq.list(),
        mq.dlq.count(),
        mq.dlq.purge(),
        mq.audit(),
        mq.find("not-there"),
        mq.topics(),
        mq.schedule(),
        mq.vanished(),
    ]
    for call in calls:
        with pytest.raises(ServerUnavailable, match=f"shard {AWAY} at "):
            await call
    proxy.back()
    assert next(iter((await mq.counts()).topics.values())).paused  # the others were paused all the same
    await mq.pause("t")
    await mq.resume("t")


async def test_health_and_doctor_name_the_shard(split: Split, proxy: Proxy) -> None:
    mq = split()

    @mq.handler("t")
    async def handle(n: int) -> None: ...

    await mq.start()
    proxy.away()
    health = await mq.health()
    assert any(
        problem.startswith(f"the server of shard {AWAY} does not answer") for problem in health.problems
    )
    assert health.answers
    assert [shard.name for shard in health.shards] == ["0", "1", "2", "3"]
    checkup = await mq.doctor(audit_for=1.0)
    assert any(f"shard {AWAY} at " in each.said and each.level == "problem" for each in checkup.diagnoses)


async def test_a_worker_stops_without_one_of_its_shards(split: Split, proxy: Proxy) -> None:
    mq = split(stop_grace=0.5)
    running = asyncio.Event()

    @mq.handler("t")
    async def handle(n: int) -> None:
        running.set()
        await asyncio.sleep(30)

    await mq.start()
    await mq.produce_many("t", range(20))
    await running.wait()
    proxy.freeze()
    await asyncio.wait_for(mq.stop(), 10)
    proxy.thaw()
    counts = await mq.counts()
    assert counts.topics["t"].produced == 20


async def test_a_worker_with_many_shards_stops_at_once(make_queue: MakeQueue) -> None:
    """The thread of each shard is told, and does not wait for its next look."""
    mq = make_queue(shards=8)

    @mq.handler("t")
    async def on_t(payload: int) -> None: ...

    took: list[float] = []
    for _ in range(4):
        await mq.start()
        began = time.monotonic()
        await mq.stop()
        took.append(time.monotonic() - began)
    assert min(took) < 0.25


async def test_a_dead_message_of_another_shard_is_read_and_replayed(
    split: Split, proxy: Proxy, key_of: KeyOf
) -> None:
    mq = split()

    @mq.handler("t", retry=Retry(max_attempts=1))
    async def handle(n: int) -> None:
        raise ValueError(n)

    await mq.start()
    id_ = await mq.produce("t", 7, message_id=key_of(1))
    await dead(mq, id_)
    await mq.stop()
    proxy.away()
    assert (await mq.dlq.get(id_)).payload == 7


def blocking(mq: RedisMessageQueue, proxy: Proxy, *behind: str) -> SyncProducer:
    """The blocking producer of a queue, which reaches some shards through the proxy only."""
    sync: Any = mq.sync
    usual = sync._new_shard
    address = Address(read_url(proxy.url))
    sync._new_shard = lambda name: (
        _SyncShard(address, mq.config, name, Store) if name in behind else usual(name)
    )
    return mq.sync


async def test_a_blocking_producer_passes_over_a_shard_that_is_away(
    split: Split, proxy: Proxy, key_of: KeyOf
) -> None:
    mq = split(patience=0.3)
    sync = blocking(mq, proxy, AWAY)
    assert len(sync.produce_many("t", range(100))) == 100
    proxy.away()
    with pytest.raises(ServerUnavailable, match=rf"shard {AWAY} at .*gave up after 0\.3 s"):
        sync.produce("t", 1, key=key_of(LOST))
    receipts = sync.produce_many("t", range(100))
    assert LOST not in {shard_number(id_, SHARDS) for id_ in receipts}


@pytest.mark.parametrize("known", [False, True])
async def test_a_blocking_producer_needs_no_failure_to_pass_over_a_shard(
    split: Split, proxy: Proxy, known: bool
) -> None:
    """A message that may go anywhere is not sent before there is a connection."""
    sync = blocking(split(), proxy, AWAY)
    if known:
        sync.produce_many("t", range(100))
    proxy.away()
    receipts = [sync.produce("t", n) for n in range(20)] + sync.produce_many("t", range(100))
    assert LOST not in {shard_number(id_, SHARDS) for id_ in receipts}


async def test_a_blocking_producer_starts_while_the_server_of_the_layout_is_away(
    split: Split, make_queue: MakeQueue, proxy: Proxy
) -> None:
    await make_queue(shards=SHARDS).open()
    proxy.away()
    assert len(blocking(split(), proxy, "", AWAY).produce_many("t", range(100))) == 100
    other = blocking(split(shards=SHARDS + 1, patience=0.1), proxy, "", AWAY)
    with pytest.raises(ConfigError, match=f"has {SHARDS} shards, not {SHARDS + 1}"):
        other.produce("t", 1)


async def test_an_older_shard_that_is_away_is_named(split: Split, proxy: Proxy, key_of: KeyOf) -> None:
    """Whether an id is taken there must be known before it is stored on the new shards."""
    mq = split(patience=0.3)
    sync = blocking(mq, proxy, AWAY)
    sync.produce("t", 0)
    await mq.produce("t", 0, delay=3600)
    begun = asyncio.Event()
    going = asyncio.create_task(mq.reshard(1, progress=lambda _: begun.set()))
    await begun.wait()
    going.cancel()
    await asyncio.wait([going])
    sync.produce_many("t", range(100))
    proxy.away()
    for produce in (mq.produce, lambda *args, **options: asyncio.to_thread(sync.produce, *args, **options)):
        with pytest.raises(ServerUnavailable, match=f"shard {AWAY} at .*gave up"):
            await produce("t", 1, message_id=key_of(LOST))


async def test_a_blocking_producer_does_not_wait_for_a_silent_server_of_the_layout(
    split: Split, make_queue: MakeQueue, proxy: Proxy
) -> None:
    """While older generations drain it looks for their end; one message waits for that, and no other."""
    mq = make_queue(shards=2)
    await mq.produce("t", 0, delay=3600)
    begun = asyncio.Event()
    going = asyncio.create_task(mq.reshard(3, progress=lambda _: begun.set()))
    await begun.wait()
    going.cancel()
    await asyncio.wait([going])
    sync: Any = blocking(split(shards=None, socket_timeout=0.5), proxy, "")
    await asyncio.to_thread(sync.produce, "t", 0)
    assert len(sync._older) == 1
    proxy.freeze()
    sync._read_at = -inf

    def took() -> float:
        began = monotonic()
        sync.produce("t", 1)
        return monotonic() - began

    with ThreadPoolExecutor(4) as threads:
        loop = asyncio.get_running_loop()
        waited = await asyncio.gather(*(loop.run_in_executor(threads, took) for _ in range(4)))
        assert [each for each in sorted(waited) if each > 0.4] == [max(waited)]
        sync._read_at -= 1.0  # as after a second
        assert max(await asyncio.gather(*(loop.run_in_executor(threads, took) for _ in range(4)))) < 0.4
    proxy.thaw()
    sync._read_at = -inf
    await asyncio.to_thread(sync.produce, "t", 2)
    assert sync._read_at > -inf
