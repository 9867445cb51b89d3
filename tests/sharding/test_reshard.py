"""A live queue gets another number of shards: nothing is lost, nothing runs twice, keys keep their order."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from math import inf
from typing import TYPE_CHECKING, Any

import pytest

from mx_rmq import ConfigError, Retry, ServerUnavailable, Stored
from mx_rmq.operating import resharding
from mx_rmq.storage.queries import Queries
from mx_rmq.storage.shard import shard_number
from mx_rmq.worker import holds
from tests.harness import command
from tests.words import dead, drained, events, eventually, in_state, is_sound, new

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from mx_rmq import RedisMessageQueue, Resharding
    from tests.words import MakeQueue


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """A generation that is gone is cleared soon after the workers have seen that."""
    monkeypatch.setattr(resharding, "_GRACE", 0.6)


def working(mq: RedisMessageQueue, topic: str = "t") -> Counter[Any]:
    """Give a queue a handler, and say how often it ran for what."""
    done: Counter[Any] = Counter()

    @mq.handler(topic, retry=Retry(max_attempts=1))
    async def handle(payload: Any) -> None:
        done[payload] += 1
        if payload == "bad":
            raise ValueError(payload)

    return done


@pytest.mark.parametrize(("first", "second"), [(None, 4), (2, 5), (5, 2), (3, 1)])
async def test_everything_is_served_while_the_number_changes(
    make_queue: MakeQueue, redis: Redis, first: int | None, second: int
) -> None:
    mq, producer = make_queue(shards=first), make_queue()
    done = working(mq)
    await mq.produce_many("t", range(300))
    await mq.produce_many("t", range(300, 350), delay=0.4)
    await mq.start()
    going = asyncio.create_task(mq.reshard(second))
    for n in range(350, 600):
        await producer.produce("t", n)
    producer.sync.produce_many("t", range(600, 700))
    await producer.produce_many("t", range(700, 1000))
    await going
    await eventually(lambda: len(done) == 1000)
    assert set(done.values()) == {1}
    assert await redis.get("mx-rmq:{q}:layout") == f"1:{second}".encode()
    assert [shard.name for shard in await mq.shards()] == [f"1.{n}" for n in range(second)]
    assert await is_sound(mq)
    await producer.produce("t", 1000)
    await eventually(lambda: done[1000])


async def test_nothing_stays_of_an_older_generation_but_seals_and_copies_of_the_layout(
    make_queue: MakeQueue, redis: Redis
) -> None:
    """A program that comes back after a month must not store a message where no worker looks."""
    mq, late = make_queue(shards=2), make_queue(shards=2)
    working(mq)
    await late.open()
    await mq.produce_many("t", range(20))
    await mq.start()
    await mq.reshard(3)

    async def left() -> set[str]:
        keys = {str(key, "utf-8") for key in await command(redis, "KEYS", "mx-rmq:{q:[01]}:*")}
        return {key.split(":", 3)[-1] for key in keys if "=" not in key}

    await eventually(lambda: left(), 5)
    assert await left() == {"done", "layout"}
    assert await redis.zrange("mx-rmq:{q:0}:done", 0, -1) == [b"=sealed"]
    for call in (late.produce("t", 100), late.produce("t", 101, key="k"), late.produce_many("t", [102])):
        assert await call
    assert (await mq.counts()).topics["t"].produced == 3


async def test_a_reshard_that_ends_early_leaves_nothing_of_the_older_shards(
    make_queue: MakeQueue, redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is interrupted while workers learn that the older shards are gone; the second call cannot know."""
    monkeypatch.setattr(resharding, "_GRACE", 60)
    mq = make_queue(shards=2)
    done = working(mq)
    await mq.start()
    for n in range(20):
        await mq.produce("t", n, message_id=f"A{n}", dedup_for=3600)
    await eventually(lambda: len(done) == 20)
    going = asyncio.create_task(mq.reshard(3))

    async def is_last() -> bool:
        return await redis.get("mx-rmq:{q}:layout") == b"1:3"

    await eventually(is_last)
    going.cancel()
    await asyncio.wait([going])
    await mq.reshard(3)

    async def is_clear() -> bool:
        keys = await command(redis, "KEYS", "mx-rmq:{q:[01]}:*")
        return not [key for key in keys if b"=" not in key and not key.endswith((b":done", b":layout"))]

    await eventually(is_clear, 5)
    assert await redis.zrange("mx-rmq:{q:0}:done", 0, -1) == [b"=sealed"]
    assert (await mq.produce("t", 0, message_id="A3")).stored is Stored.DONE


@pytest.mark.parametrize("cleared", [False, True])
async def test_a_message_that_comes_to_an_older_shard_at_the_last_moment_is_served(
    make_queue: MakeQueue, redis: Redis, monkeypatch: pytest.MonkeyPatch, cleared: bool
) -> None:
    """From a producer that took the seal for an old one; before or after the shard was cleared."""
    mq, late = make_queue(shards=2), make_queue(shards=2)
    done = working(mq)
    await late.open()
    clear = resharding._clear

    async def and_then(shard: Any, **options: Any) -> bool:
        if options.get("served", False) is not cleared:
            monkeypatch.setattr(resharding, "_clear", clear)
            await redis.zrem("mx-rmq:{q:0}:done", "=sealed")
            await late.produce(
                "t", 1, message_id=next(f"A{n}" for n in range(9) if not shard_number(f"A{n}", 2))
            )
        return await clear(shard, **options)

    monkeypatch.setattr(resharding, "_clear", and_then)
    await mq.start()
    await mq.reshard(3)
    await eventually(lambda: done[1] == 1, 3)
    assert [shard.generation for shard in await mq.shards()] == [1] * 3


async def test_dead_messages_are_moved_with_their_deaths(make_queue: MakeQueue) -> None:
    mq = make_queue(shards=2)
    done = working(mq)
    ids = [str(await mq.produce("t", "bad", key=f"k{n}")) for n in range(10)]
    await mq.start()
    before = {id_: await dead(mq, id_) for id_ in ids}
    seen: list[Resharding] = []
    await mq.reshard(3, progress=seen.append)
    assert seen[-1].left == 0
    assert seen[-1].moved == 10
    after = {id_: await mq.dlq.get(id_) for id_ in ids}
    assert after == before
    assert await mq.dlq.count() == 10
    assert sum(group.count for group in await mq.dlq.groups()) == 10
    for shard in mq._lifecycle.shards.current:
        rows = [row async for row in _dead_on(shard)]
        assert all(
            shard_number(letter.message.key, 3) == mq._lifecycle.shards.current.index(shard)
            for letter in rows
        )
    assert await is_sound(mq)
    assert await mq.dlq.replay(*ids) == 10
    await eventually(lambda: done["bad"] == 20)


async def _dead_on(shard: Any) -> Any:
    from mx_rmq.operating.dlq_reader import Filter, Walk
    from mx_rmq.operating.letters import letter_of

    with Walk(shard.operating, Filter()) as walk:
        while rows := await walk.next(100):
            for row in rows:
                yield letter_of(row)


async def test_an_id_stays_taken_through_a_reshard(make_queue: MakeQueue) -> None:
    """While the older generation is there, and after it: live, dead or done and remembered."""
    mq, producer = make_queue(shards=2), make_queue(shards=2)
    working(mq)
    await producer.open()
    await mq.produce("t", "later", message_id="delayed", delay=600)
    await mq.produce("t", "bad", message_id="dead")
    await mq.produce("t", 1, message_id="done", dedup_for=60)
    await mq.produce("t", 1, message_id="done-with-key", key="k", dedup_for=60)
    await mq.start()
    await dead(mq, "dead")
    await eventually(lambda: _nothing_active(mq))
    expected = {"delayed": Stored.LIVE, "dead": Stored.DEAD, "done": Stored.DONE}

    async def check(names: set[str]) -> None:
        for name in names:
            assert (await producer.produce("t", 2, message_id=name)).stored is expected[name]
            assert producer.sync.produce("t", 2, message_id=name).stored is expected[name]
        again = await producer.produce("t", 2, message_id="done-with-key", key="k")
        assert again.stored is Stored.DONE

    begun = asyncio.Event()
    going = asyncio.create_task(mq.reshard(5, progress=lambda _: begun.set()))
    await begun.wait()
    await check({"delayed", "dead", "done"})
    assert not (await producer.produce("t", 3, message_id="new")).duplicate
    assert await producer.run_now("delayed")
    await going
    await check({"dead", "done"})
    assert (await producer.find("dead")).state == "dead"


async def _nothing_active(mq: RedisMessageQueue) -> bool:
    counts = await mq.counts()
    return not counts.pending and not counts.processing


async def test_messages_of_one_key_keep_their_order(make_queue: MakeQueue) -> None:
    """What is on older shards begins first, though new ones are free; one at a time, so that it is seen."""
    mq, producer = make_queue(shards=2, concurrency=1), make_queue()
    seen: dict[str, list[int]] = defaultdict(list)

    @mq.handler("t")
    async def handle(payload: list[Any]) -> None:
        seen[payload[0]].append(payload[1])
        await asyncio.sleep(0.001)

    await mq.open()
    keys = [f"k{n}" for n in range(12)]
    numbers = iter(range(10_000))

    async def produce(rounds: int) -> None:
        for n in (next(numbers) for _ in range(rounds)):
            for key in keys:
                await producer.produce("t", [key, n], key=key)

    await produce(30)
    await mq.start()
    for shards in (5, 3):
        going = asyncio.create_task(mq.reshard(shards))
        await produce(30)
        await going
        await produce(5)
    await drained(mq, 30)
    await eventually(lambda: sum(map(len, seen.values())) == 12 * 100)
    assert all(found == sorted(found) for found in seen.values())


async def test_a_topic_with_keys_waits_on_the_new_shards_and_another_does_not(make_queue: MakeQueue) -> None:
    mq, producer = make_queue(shards=2), make_queue(shards=2)
    await producer.produce("keyed", "old", key="k")
    await producer.produce("plain", "old")
    begun = asyncio.Event()
    going = asyncio.create_task(producer.reshard(4, progress=lambda _: begun.set()))
    await begun.wait()
    await producer.produce("keyed", "new", key="k")
    await producer.produce("plain", "new")
    shard = producer._lifecycle.shards.home("k")
    assert (await shard.store.claim("keyed", 9, lease=1, holder="w")).paused
    plain = [
        delivery
        for shard in producer._lifecycle.shards.current
        for delivery in (await shard.store.claim("plain", 9, lease=0.1, holder="w")).deliveries
    ]
    assert len(plain) == 1
    assert not (await producer.counts()).topics["keyed"].paused
    done, plainly = working(mq, "keyed"), working(mq, "plain")
    await mq.start()
    await eventually(lambda: len(done) == 2)
    assert list(done) == ["old", "new"]
    await eventually(lambda: len(plainly) == 2)
    await going


async def test_a_topic_that_was_held_too_late_is_let_go(
    make_queue: MakeQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a producer that stood still while the older generation went away."""
    monkeypatch.setattr(holds, "_SELDOM", 0.3)
    mq = make_queue(shards=2)
    done = working(mq)
    await mq.start()
    await mq.reshard(3)
    for shard in mq._lifecycle.shards:
        await shard.store.hold("t")
    await mq.produce_many("t", range(20), key="k")
    await eventually(lambda: len(done) == 20)


async def test_a_topic_that_was_held_on_the_oldest_shards_is_let_go(make_queue: MakeQueue) -> None:
    """By a producer that took them for the new ones; nothing is older than they are."""
    mq = make_queue(shards=2)
    done = working(mq)
    await mq.produce_many("t", range(20))
    await mq.produce("t", 20, delay=0.6)
    for shard in mq._lifecycle.shards:
        await shard.store.hold("t")
    held = (await mq.produce("t", 21)).split()[0]
    assert "`mx-rmq shards` shows what they have left" in await mq.explain(held)
    await mq.start()
    await mq.reshard(3)
    await eventually(lambda: len(done) == 22)


async def test_held_topics_are_looked_for_as_often_as_there_is_need(
    make_queue: MakeQueue, redis: Redis
) -> None:
    """Every worker looks at every shard, so that many of them would look very often."""
    mq = make_queue(shards=2)
    await mq.produce("t", 1, key="k")
    begun = asyncio.Event()
    going = asyncio.create_task(mq.reshard(3, progress=lambda _: begun.set()))
    await begun.wait()
    going.cancel()
    await asyncio.wait([going])
    looks = holds.Holds(mq._lifecycle.shards)
    assert await looks.step() == 2.0
    await mq.produce("t", 2, key="k")
    assert await looks.step() == 0.25
    for workers, seconds in ((64, 4.0), (1000, 5.0)):
        await redis.zadd("mx-rmq:{q:1.0}:workers_seen", {f"w{n}": n for n in range(workers)})
        assert await looks.step() == seconds
    assert await Queries(mq._lifecycle.shards.home("k").store).held() == {"t"}
    looks.alarm.ring()
    await asyncio.wait_for(looks.wait(60), 1)


async def test_a_producer_holds_no_topic_on_an_older_shard(make_queue: MakeQueue) -> None:
    mq, late = make_queue(shards=2), make_queue(shards=2)
    await late.open()
    await mq.produce("t", 1, delay=60)
    begun = asyncio.Event()
    going = asyncio.create_task(mq.reshard(3, progress=lambda _: begun.set()))
    await begun.wait()
    await late._lifecycle.shards.look()
    (old,) = {shard for some in late._lifecycle.shards.older for shard in some[:1]}
    message, producer = new("m", key="k"), late._lifecycle.producer
    assert producer is not None
    await producer._placing.before(old, "t", message)
    assert await Queries(old.store).held() == set()
    current = late._lifecycle.shards.current[0]
    await producer._placing.before(current, "t", message)
    assert await Queries(current.store).held() == {"t"}
    going.cancel()


async def test_a_reshard_ends_no_generation_that_another_has_begun_since(
    make_queue: MakeQueue, redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of that it has looked at no shard, and would delete what is there."""
    mq = make_queue(shards=2)
    working(mq)
    await mq.start()
    carry_done = resharding._carry_done

    async def meanwhile(shards: Any, old: Any) -> None:
        await carry_done(shards, old)
        await redis.set("mx-rmq:{q}:layout", "0:2 1:3 2:4")
        await shards.look()

    monkeypatch.setattr(resharding, "_carry_done", meanwhile)
    with pytest.raises(ConfigError, match="another program reshards the queue"):
        await mq.reshard(3)
    assert await redis.get("mx-rmq:{q}:layout") == b"0:2 1:3 2:4"


async def test_a_reshard_that_stood_still_opens_no_shard_that_the_next_one_has_sealed(
    make_queue: MakeQueue, redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A producer that knows the layout of the first would store a message there, and the second delete it."""
    slow, quick, producer = make_queue(shards=2), make_queue(), make_queue()
    await slow.open()
    await quick.open()
    copy, stands, goes_on = resharding._copy, asyncio.Event(), asyncio.Event()

    async def wait(shards: Any, layout: Any) -> None:
        await copy(shards, layout)
        if shards is slow._lifecycle.shards:
            stands.set()
            await goes_on.wait()

    monkeypatch.setattr(resharding, "_copy", wait)
    first = asyncio.create_task(slow.reshard(5))
    await stands.wait()
    await producer.open()
    await producer._lifecycle.shards.look()
    assert str(producer._lifecycle.shards.layout) == "0:2 1:5"
    second = asyncio.create_task(quick.reshard(3))

    async def is_last() -> bool:
        return await redis.get("mx-rmq:{q}:layout") == b"2:3"

    await eventually(is_last)
    goes_on.set()
    await asyncio.sleep(0.1)
    id_ = await producer.produce("t", 1)
    await asyncio.gather(first, second, return_exceptions=True)
    assert (await quick.find(id_)).state == "pending"


async def test_a_reshard_says_that_another_has_overtaken_it(make_queue: MakeQueue) -> None:
    """Or its program would believe that the queue has the number of shards that it asked for."""
    mq, other = make_queue(shards=2), make_queue()
    await other.open()
    id_ = await mq.produce("t", 1, delay=60)
    begun, later = asyncio.Event(), asyncio.Event()
    first = asyncio.create_task(mq.reshard(5, progress=lambda _: begun.set()))
    await begun.wait()
    second = asyncio.create_task(other.reshard(3, progress=lambda _: later.set()))
    await later.wait()
    with pytest.raises(ConfigError, match="another program reshards the queue to 3 shards"):
        await asyncio.wait_for(first, 10)
    assert await other.cancel(id_)
    await second


async def test_a_reshard_that_another_has_overtaken_and_ended_says_so(
    make_queue: MakeQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    mq, other = make_queue(shards=2), make_queue()
    await mq.open()
    await other.open()
    copy = resharding._copy

    async def overtaken(shards: Any, layout: Any) -> None:
        await copy(shards, layout)
        monkeypatch.setattr(resharding, "_copy", copy)
        await other.reshard(3)
        await shards.look()

    monkeypatch.setattr(resharding, "_copy", overtaken)
    with pytest.raises(ConfigError, match="another program reshards the queue to 3 shards"):
        await mq.reshard(5)


async def test_a_reshard_whose_new_shards_take_no_dead_message_says_why(
    make_queue: MakeQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another one has sealed them."""
    mq, other = make_queue(shards=2), make_queue()
    done = working(mq)
    await mq.produce("t", "bad", message_id="A1")
    await mq.produce("t", 1, delay=60)
    await mq.start()
    await dead(mq, "A1")
    await mq.stop()
    assert done["bad"] == 1
    await other.open()
    put, going = resharding._put, list[asyncio.Task[None]]()

    async def overtaken(home: Any, rows: Any) -> None:
        monkeypatch.setattr(resharding, "_put", put)
        later = asyncio.Event()
        going.append(asyncio.create_task(other.reshard(3, progress=lambda _: later.set())))
        await later.wait()
        await put(home, rows)

    monkeypatch.setattr(resharding, "_put", overtaken)
    again = make_queue()
    await again.open()
    with pytest.raises(ConfigError, match="another program reshards the queue to 3 shards"):
        await again.reshard(5)
    assert await other.dlq.count() == 1
    going[0].cancel()
    await asyncio.wait(going)


async def test_a_shard_that_has_a_message_is_not_cleared(make_queue: MakeQueue) -> None:
    mq = make_queue(shards=2)
    id_ = await mq.produce("t", 1)
    home = mq._lifecycle.shards.home(id_)
    assert not await resharding._clear(home, is_base=False)
    assert (await mq.find(id_)).state == "pending"
    assert await mq.cancel(id_)
    assert await resharding._clear(home, is_base=False)


async def test_a_queue_that_was_resharded_and_deleted_can_be_made_again(make_queue: MakeQueue) -> None:
    """The seals of its first life are left; nobody knows how many shards it had then."""
    mq = make_queue(shards=2)
    working(mq)
    await mq.start()
    await mq.reshard(3)
    await mq.stop()
    operator = make_queue()
    await operator.open()
    await operator.delete()
    again, stale = make_queue(shards=2), make_queue()
    done = working(again)
    await again.produce_many("t", range(10))
    stale.sync.produce_many("t", range(10, 20))
    for shard in again._lifecycle.shards:
        await shard.store.seal()  # as if it had been away when the queue was made
    await again.produce_many("t", range(20, 30))
    for shard in again._lifecycle.shards:
        await shard.store.seal()
    await asyncio.to_thread(stale.sync.produce_many, "t", range(30, 40))
    await again.produce("t", "bad")
    await again.start()
    await eventually(lambda: len(done) == 41)
    await again.reshard(3)  # to shards that were sealed in the first life, too
    assert await again.dlq.count() == 1
    await again.produce("t", 40)
    await eventually(lambda: done[40])


async def test_a_producer_learns_that_the_older_shards_are_gone(make_queue: MakeQueue) -> None:
    """Or it would ask them for ever whether an id is taken."""
    mq, producer = make_queue(shards=2), make_queue()
    working(mq)
    await mq.start()
    await mq.produce("t", 1, delay=0.5)
    begun = asyncio.Event()
    going = asyncio.create_task(mq.reshard(3, progress=lambda _: begun.set()))
    await begun.wait()
    await producer.produce("t", 2, message_id="a")
    assert producer._lifecycle.shards.older
    await going

    async def knows() -> bool:
        await producer.produce("t", 3)
        return not producer._lifecycle.shards.older

    await eventually(knows)


async def test_receipts_keep_the_order_when_shards_are_learnt_of(make_queue: MakeQueue) -> None:
    mq, producer = make_queue(), make_queue()
    working(mq)
    await mq.start()
    await producer.produce("t", -1)  # it knows one shard
    await mq.reshard(5)
    ids = [str(receipt) for receipt in await producer.produce_many("t", range(100), delay=60)]
    payloads = [(await mq.find(id_)).payload for id_ in ids]
    assert payloads == list(range(100))


async def test_a_reshard_that_was_interrupted_goes_on(make_queue: MakeQueue) -> None:
    mq = make_queue(shards=2)
    done = working(mq)
    await mq.produce_many("t", range(100))
    await mq.produce_many("t", range(100, 120), delay=1.0)
    begun = asyncio.Event()
    going = asyncio.create_task(mq.reshard(5, progress=lambda _: begun.set()))
    await begun.wait()
    going.cancel()
    await asyncio.gather(going, return_exceptions=True)
    states = Counter((shard.generation, shard.state) for shard in await mq.shards())
    assert states == {(1, "serving"): 5, (0, "draining"): 2}
    await mq.start()
    await mq.produce_many("t", range(120, 200))
    await mq.reshard(3)  # to another number: both older generations drain
    assert [(shard.generation, shard.state) for shard in await mq.shards()] == [(2, "serving")] * 3
    await eventually(lambda: len(done) == 200)
    assert set(done.values()) == {1}
    await mq.reshard(3)  # nothing to do


async def test_a_layout_that_a_failover_undid_is_written_again(make_queue: MakeQueue, redis: Redis) -> None:
    """The replica that takes over may not have heard of it, if messages need not be replicated."""
    mq = make_queue(shards=2)
    done = working(mq)
    await mq.produce_many("t", range(20), delay=1.0)
    begun = asyncio.Event()
    going = asyncio.create_task(mq.reshard(3, progress=lambda _: begun.set()))
    await begun.wait()
    await mq.produce_many("t", range(20, 40))
    await redis.set("mx-rmq:{q}:layout", "0:2")
    mq._lifecycle.shards._read_at = -inf
    await mq.start()
    await going
    assert await redis.get("mx-rmq:{q}:layout") == b"1:3"
    await eventually(lambda: len(done) == 40)
    assert set(done.values()) == {1}


async def test_what_is_moved_is_deleted_only_once_it_is_durable(make_queue: MakeQueue) -> None:
    mq = make_queue(shards=2)
    working(mq)
    ids = [str(await mq.produce("t", "bad")) for _ in range(4)]
    await mq.start()
    for id_ in ids:
        await dead(mq, id_)
    await mq.stop()
    wary = make_queue(durability="replicated", durability_timeout=0.05)
    await wary.open()
    with pytest.raises(ServerUnavailable, match=r"written, but 0 of 1 replicas .*; call reshard again"):
        await wary.reshard(3)
    seen: asyncio.Queue[Resharding] = asyncio.Queue()
    going = asyncio.create_task(wary.reshard(3, progress=seen.put_nowait))
    first = await seen.get()
    going.cancel()
    assert first.moved == 0
    assert all("copied to it, but 0 of 1 replicas confirmed it within 0.05 s" in away for away in first.away)
    assert {away.split(" at ")[0] for away in first.away} <= {f"shard 1.{n}" for n in range(3)}
    old = [shard for some in wary._lifecycle.shards.older for shard in some]
    assert sum([(await shard.operating.left()).dead for shard in old]) == 4
    plain = make_queue()
    await plain.open()
    await plain.reshard(3)
    assert await plain.dlq.count() == 4


async def test_what_belongs_to_no_message_is_named_and_mended(make_queue: MakeQueue, redis: Redis) -> None:
    """Or a reshard would wait for ever, and not say for what."""
    mq = make_queue(shards=2)
    await mq.open()
    await redis.hset("mx-rmq:{q:1}:payload", "foreign", "x")
    seen: asyncio.Queue[Resharding] = asyncio.Queue()
    going = asyncio.create_task(mq.reshard(3, progress=seen.put_nowait))
    first = await seen.get()
    assert (first.left, first.strays) == (0, 1)
    assert "; 1 strays: mend them with `mx-rmq audit --repair`" in str(first)
    await mq.audit(repair=True)  # keeps it as a message
    assert await mq.cancel("foreign")
    async with asyncio.timeout(15):
        await going


async def test_programs_that_start_in_the_middle_may_name_either_number(make_queue: MakeQueue) -> None:
    mq = make_queue(shards=2)
    await mq.produce("t", 1)
    begun = asyncio.Event()
    going = asyncio.create_task(mq.reshard(5, progress=lambda _: begun.set()))
    await begun.wait()
    for number in (2, 5, None):
        queue = make_queue(shards=number, server_check="warn")
        await queue.open()
        assert len(queue._lifecycle.shards) == 7
    with pytest.raises(ConfigError, match="has 5 shards, not 3"):
        await make_queue(shards=3).open()
    going.cancel()
    await asyncio.gather(going, return_exceptions=True)


async def test_a_message_on_an_older_shard_is_found_and_cancelled(make_queue: MakeQueue) -> None:
    mq = make_queue(shards=2)
    ids = [str(await mq.produce("t", n, delay=60, key=f"k{n}")) for n in range(8)]
    begun = asyncio.Event()
    going = asyncio.create_task(mq.reshard(5, progress=lambda _: begun.set()))
    await begun.wait()
    for id_ in ids:
        assert (await mq.find(id_)).state == "delayed"
    assert await mq.cancel(ids[0])
    assert await mq.cancel_many(ids) == 7
    await going


async def test_the_schedule_is_that_of_all_generations(make_queue: MakeQueue) -> None:
    """Also for a program that has not heard of the reshard."""
    mq, other = make_queue(shards=2), make_queue()
    await mq.produce_many("t", range(8), delay=60)
    await other.open()
    begun = asyncio.Event()
    going = asyncio.create_task(mq.reshard(5, progress=lambda _: begun.set()))
    await begun.wait()
    await mq.produce_many("t", range(8), delay=60)
    other._lifecycle.shards._read_at = -inf  # as after a second
    assert (await other.schedule()).total == 16
    going.cancel()
    await asyncio.wait([going])


async def test_a_blocking_producer_forgets_older_generations_when_they_are_gone(
    make_queue: MakeQueue,
) -> None:
    """Otherwise it would hold topics, and ask for ids, where nothing is any more."""
    mq = make_queue(shards=2)
    sync, shards = mq.sync, mq.sync._shards
    working(mq)
    await mq.produce("t", 1, delay=0.5)
    sync.produce("t", 2)
    begun = asyncio.Event()
    going = asyncio.create_task(mq.reshard(3, progress=lambda _: begun.set()))
    await begun.wait()
    await asyncio.to_thread(sync.produce, "t", 3, message_id="own")
    assert [len(some) for some in (shards._current, *shards._older)] == [3, 2]
    await mq.start()
    await going
    shards._read_at = -inf
    await asyncio.to_thread(sync.produce, "t", 4, key="k")
    assert [len(some) for some in (shards._current, *shards._older)] == [3]
    assert [await Queries(shard.store).held() for shard in mq._lifecycle.shards] == [set()] * 3


async def test_a_paused_topic_stays_paused_on_the_new_shards(make_queue: MakeQueue) -> None:
    mq, operator = make_queue(shards=2), make_queue()
    done = working(mq)
    working(mq, "u")
    await mq.produce_many("t", range(20))
    await mq.pause("t")
    await operator.produce("u", 1)
    assert {topic: count.paused for topic, count in (await operator.counts()).topics.items()} == {
        "t": True,
        "u": False,
    }
    await mq.start()
    begun = asyncio.Event()
    going = asyncio.create_task(mq.reshard(3, progress=lambda _: begun.set()))
    await begun.wait()
    await operator.pause("u")  # by a layout that it read before
    await mq.produce_many("t", range(20, 40))
    for shard in mq._lifecycle.shards:
        assert await Queries(shard.store).paused_topics() == {"t", "u"}
    await mq.resume("t")
    await going
    await eventually(lambda: len(done) == 40)
    assert [await Queries(shard.store).paused_topics() for shard in mq._lifecycle.shards] == [{"u"}] * 3


async def test_a_reshard_that_failed_leaves_no_pause_behind(
    make_queue: MakeQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The topic was resumed before the second try, on the shards that the layout had then."""
    mq = make_queue(shards=2)
    done = working(mq)
    await mq.start()
    await mq.pause("t")
    await mq.produce_many("t", range(10))
    with monkeypatch.context() as away:

        async def set_layout(*_: Any) -> bool:
            raise ServerUnavailable("the server of the layout is away")

        away.setattr(resharding, "_set_layout", set_layout)
        with pytest.raises(ServerUnavailable, match="of the layout is away"):
            await mq.reshard(3)
    await mq.resume("t")
    await mq.reshard(3)
    await mq.produce_many("t", range(10, 20))
    await eventually(lambda: len(done) == 20)


async def test_what_operators_did_is_known_after_a_reshard(make_queue: MakeQueue, redis: Redis) -> None:
    mq = make_queue()
    await mq.open()
    for number in (2, 3):
        await mq.note_act("ada", f"reshard to {number}")
        await mq.reshard(number)
    assert [act.what for act in await mq.trail()] == ["reshard to 3", "reshard to 2"]
    assert await command(redis, "KEYS", "mx-rmq:*trail") == [b"mx-rmq:{q}:trail"]


async def test_what_still_runs_of_a_shard_that_is_gone_ends_quietly(
    make_queue: MakeQueue, caplog: pytest.LogCaptureFixture
) -> None:
    """Its lease was lost, and another worker has finished the message."""
    mq = make_queue(shards=2, lease=60)
    finish = asyncio.Event()
    ended: list[int] = []

    @mq.handler("t")
    async def on_t(payload: int) -> None:
        await finish.wait()
        ended.append(payload)

    await mq.produce("t", 1, message_id="A1")
    await mq.start()
    await in_state(mq, "A1", "running")
    worker: Any = mq._lifecycle.worker
    ((shard, job),) = [(each.shard, job) for each in worker._holdings for job in each.jobs]
    await shard.store.complete("t", [(job.delivery, 0.0)])
    await mq.reshard(3)
    await eventually(lambda: len(worker._holdings) == 3)
    finish.set()
    await eventually(lambda: ended)
    await mq.close()
    assert not events(caplog, "runner.failed")


async def test_a_list_goes_on_where_it_was_when_a_reshard_begins(make_queue: MakeQueue) -> None:
    mq = make_queue(shards=2)
    stored = await mq.produce_many("t", range(40))
    first = await mq.list("t", state="pending", limit=5)
    begun = asyncio.Event()
    going = asyncio.create_task(mq.reshard(3, progress=lambda _: begun.set()))
    await begun.wait()
    ids, following = [each.id for each in first.messages], first.next
    while following is not None:
        page = await mq.list("t", state="pending", limit=5, after=following)
        ids += [each.id for each in page.messages]
        following = page.next
    assert Counter(ids) == Counter(map(str, stored))
    going.cancel()
    await asyncio.wait([going])


async def test_what_another_program_wrote_into_the_dlq_is_not_moved(
    make_queue: MakeQueue, redis: Redis
) -> None:
    """It has no id; the audit takes it out, and the reshard goes on."""
    mq = make_queue(shards=2)
    await mq.open()
    await redis.zadd("mx-rmq:{q:0}:dlq", {b"\xff": 1})
    await redis.hset("mx-rmq:{q:0}:dlq_payload", b"\xff", b"?")
    seen: list[Resharding] = []
    going = asyncio.create_task(mq.reshard(3, progress=seen.append))
    await eventually(lambda: len(seen) > 2)
    assert (seen[-1].dead, seen[-1].moved) == (1, 0)
    assert not await command(redis, "KEYS", "mx-rmq:{q:1*dlq*")
    await mq.audit(repair=True)
    await going


async def test_what_an_export_has_goes_to_the_new_shards(make_queue: MakeQueue) -> None:
    mq, other = make_queue(shards=2), make_queue(shards=2)
    working(mq)
    ids = [str(await mq.produce("t", "bad", key=f"k{n}")) for n in range(6)]
    await mq.start()
    for id_ in ids:
        await dead(mq, id_)
    await other.open()
    records = [letter.as_dict() async for letter in other.dlq.export()]
    await mq.dlq.purge()
    await mq.reshard(4)
    assert (await other.dlq.restore(records)).restored == 6
    assert await mq.dlq.count() == 6


@pytest.mark.parametrize("number", [0, 1025, "4", None])
async def test_the_number_is_checked(make_queue: MakeQueue, number: Any) -> None:
    mq = make_queue()
    await mq.open()
    with pytest.raises(ConfigError, match="shards must be a whole number from 1 to 1024"):
        await mq.reshard(number)


async def test_the_table_of_shards(make_queue: MakeQueue) -> None:
    mq = make_queue(shards=2)
    await mq.produce_many("t", range(10), key="k")
    await mq.produce_many("t", range(3), key="k", delay=60)
    table = await mq.shards()
    assert sum(shard.pending for shard in table) == 10
    assert sum(shard.delayed for shard in table) == 3
    assert str(table).splitlines()[0].split()[:3] == ["shard", "generation", "state"]
    assert [each["name"] for each in table.as_dict()["shards"]] == ["0", "1"]
