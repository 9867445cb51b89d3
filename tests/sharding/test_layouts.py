"""The number of shards is stored with the queue."""

from __future__ import annotations

import asyncio
from math import inf
from typing import TYPE_CHECKING, Any

import pytest

from mx_rmq import ConfigError, RedisMessageQueue, StoreError
from mx_rmq.operating import resharding
from mx_rmq.storage.layout import Generation, Layout
from mx_rmq.storage.queries import Queries
from mx_rmq.storage.shards import copy_layout
from tests.harness import command
from tests.words import events, eventually, new, store_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from redis.asyncio import Redis

    from mx_rmq.storage.store import Store
    from tests.proxy import Proxy
    from tests.words import MakeQueue


@pytest.mark.parametrize("text", ["0:1", "0:8", "0:2 1:5", "3:1024", "1:5 2:3 7:1"])
def test_a_layout_is_written_as_it_is_read(text: str) -> None:
    layout = Layout.parse(text)
    assert layout is not None
    assert str(layout) == text


@pytest.mark.parametrize("text", ["", "8", "0:0", "0:1025", "1:2 0:3", "0:2 0:3", "0:8 ", "a:b", "0:-1"])
def test_another_text_is_no_layout(text: str) -> None:
    assert Layout.parse(text) is None


def test_the_shards_of_two_generations_share_no_name() -> None:
    assert Generation(0, 1).names == ("",)
    assert Generation(0, 3).names == ("0", "1", "2")
    assert Generation(1, 1).names == ("1.0",)
    assert Generation(12, 2).names == ("12.0", "12.1")


async def test_the_first_program_that_names_a_number_decides(make_queue: MakeQueue, redis: Redis) -> None:
    await make_queue(shards=8).open()
    assert await redis.get("mx-rmq:{q}:layout") == b"0:8"
    unset = make_queue(server_check="warn")
    await unset.open()
    assert len(unset._lifecycle.shards) == 8
    with pytest.raises(
        ConfigError, match=r"queue 'q' has 8 shards, not 3: leave shards= out or write shards=8"
    ):
        await make_queue(shards=3).open()
    with pytest.raises(ConfigError, match="has 8 shards, not 3"):
        make_queue(shards=3).sync.produce("t", 1)


async def test_a_queue_that_was_used_without_a_number_has_one_shard(
    make_queue: MakeQueue, redis: Redis
) -> None:
    await make_queue().produce("t", 1)
    assert not await redis.exists("mx-rmq:{q}:layout")
    with pytest.raises(ConfigError, match="queue 'q' has 1 shard, not 2"):
        await make_queue(shards=2).open()
    await make_queue(shards=1).open()
    assert await redis.get("mx-rmq:{q}:layout") == b"0:1"


async def test_a_program_that_took_a_new_queue_for_one_shard_learns_better(make_queue: MakeQueue) -> None:
    """It was open before the first one that named a number."""
    early, late = make_queue(), make_queue()
    await early.open()
    await late.open()
    eight = make_queue(shards=8)
    await eight.open()
    assert len(await early.produce_many("t", range(500))) == 500
    await late.produce("t", 500)
    assert early.sync.produce("t", 501, key="k")
    counts = await eight.counts()
    assert counts.pending == 502
    assert (await early.counts()).pending == 502


async def test_a_worker_that_took_a_new_queue_for_one_shard_learns_better(make_queue: MakeQueue) -> None:
    done: list[int] = []
    mq = make_queue()

    @mq.handler("t")
    async def handle(n: int) -> None:
        done.append(n)

    await mq.open()  # finds nothing stored
    eight = make_queue(shards=8)
    await eight.open()
    await mq.start()
    await eight.produce_many("t", range(100))
    await eventually(lambda: len(done) == 100)


async def test_programs_of_both_kinds_that_begin_together_agree(make_queue: MakeQueue) -> None:
    first, second = make_queue(shards=4), make_queue(shards=4)
    await first.open()
    first.sync.produce("t", 1)
    second.sync.produce("t", 2)
    assert (await first.counts()).pending == 2


async def test_a_layout_that_cannot_be_read_is_named(make_queue: MakeQueue, redis: Redis) -> None:
    await redis.set("mx-rmq:{q}:layout", "many")
    with pytest.raises(StoreError, match=r"mx-rmq:\{q\}:layout holds 'many'"):
        await make_queue(shards=2).open()


async def test_one_server_that_lost_everything_gets_the_layout_again(
    make_queue: MakeQueue, redis: Redis
) -> None:
    mq = make_queue(shards=3)

    @mq.handler("t")
    async def handle(n: int) -> None: ...

    await mq.start()
    await redis.flushall()
    await eventually(lambda: redis.get("mx-rmq:{q}:layout"))
    await mq.produce_many("t", range(30))
    await mq.drain(timeout=10)


async def lose(redis: Redis) -> None:
    """The node of the queue's own tag comes back empty; those of its shards were never away."""
    await command(redis, "DEL", *await command(redis, "KEYS", "mx-rmq:{q}:*"))


async def resharded(make_queue: MakeQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    """A queue of three shards, which had two before."""
    monkeypatch.setattr(resharding, "_GRACE", 0.0)
    mq = make_queue(shards=2)
    await mq.open()
    await mq.reshard(3)
    await mq.close()


@pytest.mark.parametrize("copied", [True, False])
async def test_a_worker_serves_its_shards_though_the_layout_is_lost(
    make_queue: MakeQueue, redis: Redis, monkeypatch: pytest.MonkeyPatch, copied: bool
) -> None:
    """It writes again what it knows; a queue with a worker was not deleted."""
    await resharded(make_queue, monkeypatch)
    mq, done = make_queue(server_check="warn"), set[int]()

    @mq.handler("t")
    async def handle(n: int) -> None:
        done.add(n)

    await mq.start()
    if not copied:
        await command(redis, "DEL", *await command(redis, "KEYS", "mx-rmq:*:layout"))
    await lose(redis)

    async def is_back() -> bool:
        return await redis.get("mx-rmq:{q}:layout") == b"1:3"

    await eventually(is_back)
    assert await redis.zscore("mx-rmq:{q}:done", "=sealed")
    producer = make_queue()
    producer.sync.produce_many("t", range(30))
    await producer.produce_many("t", range(30, 60))
    await eventually(lambda: len(done) == 60)
    assert len(await command(redis, "KEYS", "mx-rmq:{q:[01]}:layout")) == 2


@pytest.mark.parametrize("number", [None, 3])
@pytest.mark.usefixtures("spread")
async def test_a_program_finds_a_layout_that_is_lost(
    make_queue: MakeQueue, redis: Redis, monkeypatch: pytest.MonkeyPatch, number: int | None
) -> None:
    """One that runs, and one that starts; a number that it names is not taken for that of a new queue."""
    await resharded(make_queue, monkeypatch)
    mq = make_queue(shards=number)
    await mq.produce_many("t", range(30))
    await lose(redis)
    mq._lifecycle.shards._read_at = -inf
    assert (await mq.counts()).pending == 30
    assert await redis.get("mx-rmq:{q}:layout") == b"1:3"
    await lose(redis)
    started = make_queue(shards=3, server_check="warn")
    await started.open()
    assert (await started.counts()).pending == 30
    await lose(redis)
    with pytest.raises(ConfigError, match="has 3 shards, not 2"):
        await make_queue(shards=2).open()
    await lose(redis)
    make_queue(shards=3).sync.produce("t", 30)
    assert (await started.counts()).pending == 31


@pytest.mark.usefixtures("spread")
async def test_what_was_stored_while_the_layout_was_lost_is_served(
    make_queue: MakeQueue, redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a producer that took the queue for one shard: its own tag becomes an older generation."""
    await resharded(make_queue, monkeypatch)
    mq, done = make_queue(shards=3, server_check="warn"), set[int]()

    @mq.handler("t")
    async def handle(n: int) -> None:
        done.add(n)

    await lose(redis)
    make_queue().sync.produce("t", 1)
    await mq.start()
    assert await redis.get("mx-rmq:{q}:layout") == b"0:1 1:3"
    await mq.produce("t", 2)
    await eventually(lambda: done == {1, 2})
    await mq.reshard(3)
    assert await redis.get("mx-rmq:{q}:layout") == b"1:3"


async def test_a_first_layout_is_not_written_again_over_messages(make_queue: MakeQueue, redis: Redis) -> None:
    """No generation can name the queue's own tag then."""
    await make_queue(shards=2).open()
    await lose(redis)
    make_queue().sync.produce("t", 1)
    with pytest.raises(StoreError, match="the queue was used as one shard since"):
        await make_queue(shards=2).open()
    assert not await redis.exists("mx-rmq:{q}:layout")


async def test_a_deleted_queue_stays_deleted(
    make_queue: MakeQueue, redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if a program knows the layout that it had."""
    await resharded(make_queue, monkeypatch)
    watching, operator = make_queue(), make_queue()
    await watching.open()
    assert (await watching.counts()).pending == 0
    await operator.open()
    await operator.delete()
    watching._lifecycle.shards._read_at = -inf
    assert (await watching.counts()).pending == 0
    assert sorted(await redis.keys("*")) == [b"mx-rmq:{q:0}:done", b"mx-rmq:{q:1}:done"]
    await make_queue(shards=4).open()


async def test_a_copy_is_never_replaced_by_an_older_one(store: Store) -> None:
    for written, expected in (("0:2", "0:2"), ("0:2 1:3", "0:2 1:3"), ("0:2", "0:2 1:3"), ("1:3", "1:3")):
        layout = Layout.parse(written)
        assert layout is not None
        await copy_layout(store, layout)
        assert await Queries(store).layout() == expected
    layout = Layout.parse("0:2 1:3")
    assert layout is not None
    await copy_layout(store, layout)
    assert await Queries(store).layout() == "1:3"


@pytest.mark.parametrize("ask", [lambda mq: mq.dlq.delete("A1"), lambda mq: mq.doctor(audit_for=0)])
async def test_a_layout_that_changes_while_shards_are_asked_disturbs_no_operator(
    make_queue: MakeQueue, ask: Callable[[RedisMessageQueue], Any]
) -> None:
    mq = make_queue(shards=2)
    await mq.open()
    shards = await mq._lifecycle.shards.now()
    asking = asyncio.ensure_future(ask(mq))
    await asyncio.sleep(0)  # now it has asked
    shards.use(shards.layout.grown(3))
    await asking


async def test_deleting_a_queue_deletes_its_layout(make_queue: MakeQueue, redis: Redis) -> None:
    mq = make_queue(shards=3)
    await mq.produce_many("t", range(30))
    assert await mq.delete() > 9
    assert await redis.keys("*") == []


@pytest.mark.parametrize("shards", [0, 1025, 2.0, True, "8"])
def test_the_number_is_checked(shards: object) -> None:
    with pytest.raises(ConfigError, match="shards must be a whole number from 1 to 1024"):
        RedisMessageQueue("embedded://", shards=shards)  # type: ignore[arg-type]


async def test_one_shard_costs_a_producer_no_further_command(make_queue: MakeQueue, proxy: Proxy) -> None:
    """Neither the layout nor the seal is asked for when a message is produced."""
    mq = make_queue(proxy.url)
    await mq.produce("t", 0)
    before = len(proxy.commands)
    for n in range(10):
        await mq.produce("t", n)
    assert proxy.commands[before:] == [b"EVALSHA"] * 10


@pytest.mark.parametrize("spoilt", [("SET", "no layout"), ("LPUSH", "x")], ids=["text", "type"])
async def test_a_spoilt_layout_is_told_once_and_stops_no_recovery(
    make_queue: MakeQueue, redis: Redis, caplog: pytest.LogCaptureFixture, spoilt: tuple[str, str]
) -> None:
    mq, done = make_queue(lease=0.5), list[int]()

    @mq.handler("t")
    async def handle(payload: int) -> None:
        done.append(payload)

    await mq.start()
    verb, text = spoilt
    await command(redis, verb, "mx-rmq:{q}:layout", text)
    store = store_of(redis)
    await store.produce("u", [new("left")])
    assert (await store.claim("u", 1, lease=0.3, holder="gone")).deliveries
    await mq.produce("t", 1)

    async def recovered() -> bool:
        return bool(await redis.zcard("mx-rmq:{q}:dlq"))  # it cannot be read, so the monitor buries it

    await eventually(recovered)
    await eventually(lambda: done)
    assert [record.service for record in events(caplog, "service.failed")] == ["layout"]
