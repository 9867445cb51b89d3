"""One shard that does not answer never stops the others."""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from math import inf
from time import monotonic
from typing import TYPE_CHECKING, Any, Literal

import pytest

from mx_rmq import ConfigError, RedisMessageQueue, Retry, ServerUnavailable
from mx_rmq.producing.sync_shards import SyncShard
from mx_rmq.storage.locate import Address
from mx_rmq.storage.shard import shard_number
from mx_rmq.storage.store import Store
from mx_rmq.urls import read_url
from tests.sharding.conftest import AWAY, SHARDS
from tests.words import dead, eventually

if TYPE_CHECKING:
    from collections.abc import Callable

    from redis.asyncio import Redis

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


async def test_the_dlq_shows_the_dead_of_the_shards_that_answer(
    split: Split, proxy: Proxy, key_of: KeyOf
) -> None:
    mq = split()
    await mq.open()
    ids = [key_of(shard) for shard in range(SHARDS)]
    await bury(mq, *ids)
    proxy.away()
    there = [id_ for n, id_ in enumerate(ids) if n != LOST]
    page = await mq.dlq.list(oldest=True)
    assert [letter.id for letter in page.letters] == there
    assert page.read_at
    (missing,) = page.missing
    assert missing.startswith(f"shard {AWAY} at ")
    assert str(page).endswith(f"\nmissing: {missing}")
    assert page.as_dict()["missing"] == [missing]
    facts = await mq.list("t", state="dead", reverse=True)
    assert [each.id for each in facts.messages] == there
    assert len(facts.missing) == 1
    seen, after = [], None
    while True:
        page = await mq.dlq.list(oldest=True, limit=1, after=after)
        assert page.missing
        seen += [letter.id for letter in page.letters]
        if (after := page.next) is None:
            break
    assert seen == there
    proxy.back()
    whole = await mq.dlq.list(oldest=True)
    assert ([letter.id for letter in whole.letters], whole.missing) == (ids, ())


async def test_a_page_of_the_dlq_asks_a_shard_that_is_away_once(split: Split, proxy: Proxy) -> None:
    """A silent shard takes a timeout each time."""
    mq = split()
    await mq.open()
    proxy.away()
    shard: Any = mq._lifecycle.shards[LOST]
    usual, asked = shard.naming, []

    def naming() -> Any:
        asked.append(shard)
        return usual()

    shard.naming = naming
    assert (await mq.dlq.list()).missing
    assert len(asked) == 1


async def test_a_schedule_is_of_the_shards_that_answer(split: Split, proxy: Proxy, key_of: KeyOf) -> None:
    """Its next page has the messages of a shard that is back, from where that was left."""
    mq = split()
    ids = [key_of(shard) for shard in range(SHARDS)]
    for n, id_ in enumerate(ids):
        await mq.produce("t", n, message_id=id_, delay=900.0 + 10 * n)
    proxy.away()
    schedule = await mq.schedule(limit=2)
    assert (schedule.total, sum(schedule.due)) == (3, 3)
    assert [facts.id for facts in schedule.messages] == ids[:2]
    (missing,) = schedule.missing
    assert missing.startswith(f"shard {AWAY} at ")
    assert str(schedule).endswith(f"\nmissing: {missing}")
    assert schedule.as_dict()["missing"] == [missing]
    proxy.back()
    rest = await mq.schedule(after=schedule.next)
    assert (rest.total, rest.missing) == (4, ())
    assert [facts.id for facts in rest.messages] == ids[2:]


async def test_vanished_workers_are_those_that_the_shards_know_that_answer(
    split: Split, proxy: Proxy
) -> None:
    mq = split()
    await mq.open()
    shards = mq._lifecycle.shards
    for n, shard in enumerate(shards):
        await shard.store.note_vanished(f"w{n}", b'{"messages":1,"ids":["a"],"seen_by":"w9"}')
    proxy.away()
    vanished = await mq.vanished()
    assert {worker.name for worker in vanished} == {"w0", "w1", "w3"}
    (missing,) = vanished.missing
    assert missing.startswith(f"shard {AWAY} at ")
    assert str(vanished).endswith(f"\nmissing: {missing}")
    assert vanished.as_dict()["missing"] == [missing]
    proxy.back()
    assert (len(await mq.vanished()), (await mq.vanished()).missing) == (4, ())


@pytest.mark.parametrize("state", ["pending", "delayed"])
async def test_a_list_shows_the_messages_of_the_shards_that_answer(
    split: Split, proxy: Proxy, state: Literal["pending", "delayed"]
) -> None:
    mq = split()
    ids = await mq.produce_many("t", range(60), delay=900.0 if state == "delayed" else 0.0)
    there = {id_ for id_ in ids if shard_number(id_, SHARDS) != LOST}
    proxy.away()
    page = await mq.list("t", state=state)
    assert {facts.id for facts in page.messages} == there
    (missing,) = page.missing
    assert missing.startswith(f"shard {AWAY} at ")
    assert str(page).endswith(f"\nmissing: {missing}")
    assert page.as_dict()["missing"] == [missing]
    proxy.back()
    page = await mq.list("t", state=state, limit=60)
    assert {facts.id for facts in page.messages} == set(ids)
    assert not page.missing
    assert "missing" not in str(page)


async def test_the_pages_of_a_list_lead_past_a_shard_that_is_away(split: Split, proxy: Proxy) -> None:
    """Also if a page begins on that shard; and it is an error only if no shard answers."""
    mq = split(behind=(AWAY, "3"))
    ids = await mq.produce_many("t", range(60))
    there = [id_ for id_ in ids if shard_number(id_, SHARDS) < LOST]
    page = await mq.list("t", limit=len(there) + 1)
    assert page.next is not None
    assert page.next.startswith(f"pending,{AWAY},")
    proxy.away()
    rest = await mq.list("t", limit=50, after=page.next)
    assert (rest.messages, rest.next, len(rest.missing)) == ([], None, 2)
    assert rest.read_at
    seen, after = [], None
    while True:
        page = await mq.list("t", limit=7, after=after)
        seen += [facts.id for facts in page.messages]
        if (after := page.next) is None:
            break
    assert sorted(seen) == sorted(there)
    lost = split(behind=("", "0", "1", "2", "3"), shards=SHARDS)
    proxy.back()
    await lost.open()
    proxy.away()
    with pytest.raises(ServerUnavailable, match=r"shard 0 at .*shard 3 at "):
        await lost.list("t")


async def test_what_needs_every_shard_names_the_one_that_does_not_answer(split: Split, proxy: Proxy) -> None:
    mq = split()
    await mq.produce_many("t", range(40))
    proxy.away()
    calls: list[Any] = [
        mq.pause("t"),
        mq.purge("t"),
        mq.dlq.count(),
        mq.dlq.purge(),
        mq.audit(),
        mq.find("not-there"),
        mq.topics(),
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


async def bury(mq: RedisMessageQueue, *ids: str, topic: str = "t") -> None:
    """Put messages into the DLQ, each on the shard to which its id leads."""
    body = '{"payload":1,"created_at":1.0}'
    death = {"topic": topic, "body": body, "reason": "failed", "error": "E: x"}
    await mq.dlq.restore([death | {"id": id_, "died_at": 1e9 + n} for n, id_ in enumerate(ids)])


async def test_messages_of_shards_that_answer_are_replayed_and_deleted_by_id(
    split: Split, proxy: Proxy, key_of: KeyOf
) -> None:
    """Only an id that is not found on the others needs the shard that is away."""
    mq = split()
    await mq.open()
    first, second, lost = key_of(0), key_of(1), key_of(LOST)
    await bury(mq, first, second, lost)
    proxy.away()
    assert await mq.dlq.replay(first) == 1
    assert (await mq.find(first)).state == "pending"
    for ids in ([lost], [second, lost], [second, "unknown"]):
        for act in (mq.dlq.replay, mq.dlq.delete):
            with pytest.raises(ServerUnavailable, match=f"^shard {AWAY} at [^;]*$"):
                await act(*ids)
    assert (await mq.find(second)).state == "dead"  # nothing was done for a part of the ids
    assert await mq.dlq.delete(second) == 1
    proxy.back()
    assert await mq.dlq.delete(lost, second, "unknown") == 1


async def test_an_act_on_many_does_nothing_while_a_shard_is_away(
    split: Split, proxy: Proxy, key_of: KeyOf
) -> None:
    """It names the shard before it begins, so it is known that no part is done."""
    mq = split()
    await mq.produce("t", 1, key=key_of(0))
    await bury(mq, key_of(1))
    proxy.away()
    for act in (mq.purge("t"), mq.dlq.purge(), mq.dlq.purge(topic="t"), mq.dlq.replay_all()):
        with pytest.raises(ServerUnavailable, match=f"shard {AWAY} at "):
            await act
    counts = await mq.counts()
    assert (counts.pending, counts.dead) == (1, 1)
    proxy.back()
    assert (await mq.purge("t"), await mq.dlq.purge()) == (1, 1)


async def test_a_dead_message_with_a_key_is_replayed_while_its_ids_shard_is_away(
    split: Split, proxy: Proxy, key_of: KeyOf
) -> None:
    """It is not where its id leads to, so the other shards are asked for it."""
    mq = split()

    @mq.handler("t", retry=Retry(max_attempts=1))
    async def handle(n: int) -> None:
        raise ValueError(n)

    await mq.start()
    ids = [await mq.produce("t", 1, key=key_of(1), message_id=key_of(of_id)) for of_id in (LOST, 3)]
    for id_ in ids:
        await dead(mq, id_)
    await mq.stop()
    proxy.away()
    assert await mq.dlq.replay(*ids) == 2


def blocking(mq: RedisMessageQueue, proxy: Proxy, *behind: str) -> SyncProducer:
    """The blocking producer of a queue, which reaches some shards through the proxy only."""
    shards: Any = mq.sync._shards
    usual = shards._new_shard
    address = Address(read_url(proxy.url))
    shards._new_shard = lambda name: (
        SyncShard(address, mq.config, name, Store) if name in behind else usual(name)
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


async def test_a_batch_does_not_wait_for_the_messages_of_a_shard_that_is_away(
    split: Split, proxy: Proxy, key_of: KeyOf
) -> None:
    """Whether they are still this worker's cannot be asked; those of the other shards are."""
    mq = split(patience=20, recovery_grace=0.5)
    seen: list[int] = []

    @mq.handler("t", batch=3, linger=2.0)
    async def on_t(numbers: list[int]) -> None:
        seen.extend(numbers)

    await mq.start()
    await mq.produce("t", 1, key=key_of(LOST))
    await mq.produce("t", 2, key=key_of(0))

    async def are_held() -> bool:
        return (await mq.counts()).topics["t"].held == 2

    await eventually(are_held)
    proxy.away()
    await eventually(lambda: seen == [2], within=10)
    proxy.back()
    await eventually(lambda: sorted(seen) == [1, 2], within=20)


@pytest.mark.parametrize("how", ["async", "blocking", "many"])
async def test_producing_ends_if_no_shard_answers(proxy: Proxy, redis: Redis, how: str) -> None:
    """A network that swallows everything takes the timeout for each shard, up to the patience."""
    mq = RedisMessageQueue(
        proxy.url, name="q", shards=8, socket_timeout=0.5, patience=1.0, durability_timeout=1.0
    )
    produce: dict[str, Callable[[], Any]] = {
        "async": lambda: mq.produce("t", 1),
        "blocking": lambda: asyncio.to_thread(mq.sync.produce, "t", 1),
        "many": lambda: mq.produce_many("t", [1, 2, 3]),
    }
    async with mq:
        await produce[how]()
        proxy.freeze()
        proxy.cut()
        async with asyncio.timeout(3):
            with pytest.raises(ServerUnavailable, match="gave up after 1 s"):
                await produce[how]()
        proxy.thaw()


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
    sync = blocking(split(shards=None, socket_timeout=0.5), proxy, "")
    shards = sync._shards
    await asyncio.to_thread(sync.produce, "t", 0)
    assert len(shards._older) == 1
    proxy.freeze()
    shards._read_at = -inf

    def took() -> float:
        began = monotonic()
        sync.produce("t", 1)
        return monotonic() - began

    with ThreadPoolExecutor(4) as threads:
        loop = asyncio.get_running_loop()
        waited = await asyncio.gather(*(loop.run_in_executor(threads, took) for _ in range(4)))
        assert [each for each in sorted(waited) if each > 0.4] == [max(waited)]
        shards._read_at -= 1.0  # as after a second
        assert max(await asyncio.gather(*(loop.run_in_executor(threads, took) for _ in range(4)))) < 0.4
    proxy.thaw()
    shards._read_at = -inf
    await asyncio.to_thread(sync.produce, "t", 2)
    assert shards._read_at > -inf
