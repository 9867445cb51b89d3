from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

import pytest

from mx_rmq import (
    ConfigError,
    InvalidPayload,
    MessageTooLarge,
    OutOfMemory,
    RedisMessageQueue,
    ServerUnavailable,
)
from mx_rmq.receipt import Stored
from tests.harness import all_keys, command
from tests.words import PREFIX, complete, eventually, in_order, out_of_memory

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from redis.asyncio import Redis

    from mx_rmq.storage.embedded import EmbeddedServer
    from tests.proxy import Proxy


def through(proxy: Proxy, **options: Any) -> RedisMessageQueue:
    return RedisMessageQueue(proxy.url, **{"name": "q", "server_check": "off"} | options)


@pytest.mark.parametrize(
    "payloads",
    [
        list,
        lambda: [1],
        lambda: (1, 2, 3),
        lambda: range(199),
        lambda: range(200),
        lambda: range(201),
        lambda: (n for n in range(1700)),
        lambda: {"a": 1, "b": 2}.keys(),
        lambda: iter("abc"),
    ],
    ids=["empty", "one", "tuple", "199", "200", "201", "generator", "keys", "iterator"],
)
async def test_any_iterable_is_stored_in_its_order(
    queue: RedisMessageQueue, redis: Redis, payloads: Callable[[], Iterable[Any]]
) -> None:
    kept = list(payloads())
    receipts = await queue.produce_many("t", payloads())
    assert len(receipts) == len(kept)
    assert await in_order(redis) == receipts
    bodies = [(await queue.find(receipt)).message for receipt in receipts[-3:]]
    assert [body and bytes(body.payload) for body in bodies] == [
        (f'"{payload}"' if isinstance(payload, str) else str(payload)).encode() for payload in kept[-3:]
    ]


async def test_ten_thousand_are_stored_in_order_in_few_calls(proxy: Proxy, redis: Redis) -> None:
    async with through(proxy) as queue:
        receipts = await queue.produce_many("t", range(10_000))
        assert len(set(receipts)) == 10_000
        assert not any(receipt.duplicate for receipt in receipts)
        assert await in_order(redis) == receipts
        assert proxy.commands.count(b"EVALSHA") <= 60


async def test_delayed_ones_are_delayed_all(queue: RedisMessageQueue, redis: Redis) -> None:
    before = time.time()
    receipts = await queue.produce_many("t", range(1200), delay=60, priority="high")
    assert await in_order(redis) == []
    assert (await queue.counts()).delayed == 1200
    facts = await queue.find(receipts[-1])
    assert facts.due_at is not None
    assert before + 59 <= facts.due_at <= time.time() + 61
    assert facts.message is not None
    assert facts.message.priority == "high"


async def test_an_error_in_the_iterable_leaves_whole_chunks_and_is_raised(
    queue: RedisMessageQueue, redis: Redis
) -> None:
    def payloads() -> Iterator[int]:
        yield from range(1234)
        raise LookupError("the cursor is gone")

    async with asyncio.timeout(10):
        with pytest.raises(LookupError, match="the cursor is gone"):
            await queue.produce_many("t", payloads())
    assert len(await in_order(redis)) == 1200
    assert await queue.produce("t", 1)


async def test_a_bad_payload_leaves_whole_chunks_and_is_raised(
    queue: RedisMessageQueue, redis: Redis
) -> None:
    with pytest.raises(InvalidPayload):
        await queue.produce_many("t", [*range(700), {1, 2}, *range(700)])
    assert len(await in_order(redis)) == 600


async def test_nothing_is_sent_behind_a_chunk_that_failed(server: EmbeddedServer, redis: Redis) -> None:
    async with RedisMessageQueue(server.url, name="q", server_check="off", max_bytes=1000) as queue:
        with pytest.raises(MessageTooLarge):
            await queue.produce_many("t", [*range(500), "x" * 1000, *range(5000)])
    assert len(await in_order(redis)) == 400


async def test_huge_payloads_are_split_by_their_size(proxy: Proxy, redis: Redis) -> None:
    async with through(proxy, max_bytes=2_000_000) as queue:
        payloads = ["x" * size for size in (10, 400_000, 1_500_000, 10, 800_000, 10, 1_900_000)]
        receipts = await queue.produce_many("t", payloads)
        assert await in_order(redis) == receipts
        assert proxy.commands.count(b"EVALSHA") >= 3
        for receipt, payload in zip(receipts, payloads, strict=True):
            facts = await queue.find(receipt)
            assert facts.message is not None
            assert len(bytes(facts.message.payload)) == len(payload) + 2


async def test_a_server_out_of_memory_is_an_error_after_whole_chunks(
    queue: RedisMessageQueue, redis: Redis
) -> None:
    await queue.produce_many("t", range(3))
    async with out_of_memory(redis):
        with pytest.raises(OutOfMemory):
            await queue.produce_many("t", range(3000))
    assert len(await in_order(redis)) == 3


async def test_a_generator_is_never_pulled_far_ahead_of_the_server(proxy: Proxy, redis: Redis) -> None:
    """An endless one needs no endless memory."""
    pulled = 0

    def payloads() -> Iterator[int]:
        nonlocal pulled
        while pulled < 10_000:
            pulled += 1
            yield pulled

    async with through(proxy) as queue:
        await queue.produce("warm", 1)
        proxy.freeze()
        call = asyncio.create_task(queue.produce_many("t", payloads()))
        done, _ = await asyncio.wait([call], timeout=0.1)
        assert not done
        assert 200 <= pulled <= 1000
        proxy.thaw()
        assert len(await call) == 10_000


async def test_a_generator_is_pulled_only_as_chunks_are_stored(proxy: Proxy, redis: Redis) -> None:
    far = 0

    async with through(proxy) as queue:
        await queue.produce("warm", 1)
        sent = len(proxy.commands)

        def payloads() -> Iterator[int]:
            nonlocal far
            for n in range(20_000):
                chunks = len(proxy.commands) - sent
                far = max(far, n - 200 * chunks)
                yield n

        await queue.produce_many("t", payloads())
    assert far <= 1000


async def test_other_work_goes_on_meanwhile(queue: RedisMessageQueue) -> None:
    """The loop is not held for longer than it takes to make a chunk."""
    turns = 0
    call = asyncio.create_task(queue.produce_many("t", range(20_000)))
    while not call.done():
        await asyncio.sleep(0)
        turns += 1
    assert len(await call) == 20_000
    assert turns > 40


@pytest.mark.parametrize("nth", [1, 2, 3, 5])
@pytest.mark.parametrize("delay", [0.0, 60.0])
async def test_a_lost_reply_is_no_second_chunk(proxy: Proxy, redis: Redis, nth: int, delay: float) -> None:
    async with through(proxy) as queue:
        await queue.produce("warm", 1, delay=delay)
        proxy.lose_reply(nth)
        receipts = await queue.produce_many("t", range(2400), delay=delay)
        assert proxy.lost_replies == 1
        assert [receipt.stored for receipt in receipts] == [Stored.STORED] * 2400
        counts = await queue.counts()
        assert counts.topics["t"].produced == 2400
        if delay:
            assert counts.delayed == 2401
        else:
            assert await in_order(redis) == receipts


async def test_chunks_keep_their_order_when_they_are_lost_together(proxy: Proxy, redis: Redis) -> None:
    """Two are on their way at a time: neither may overtake the other, nor a third one both."""
    frozen = asyncio.Event()

    def payloads() -> Iterator[int]:
        for n in range(8000):
            if n % 1000 == 500:
                proxy.freeze()  # the next chunks do not arrive
                frozen.set()
            yield n

    async def lose_them() -> None:
        while True:
            await frozen.wait()
            frozen.clear()
            await asyncio.sleep(0.03)  # two chunks have left and wait in the proxy
            proxy.away()
            proxy.thaw()
            await asyncio.sleep(0.1)  # both have tried again, and wait for unequal times
            proxy.back()

    async with through(proxy) as queue:
        await queue.produce("warm", 1)
        loser = asyncio.create_task(lose_them())
        receipts = await queue.produce_many("t", payloads())
        loser.cancel()
    assert proxy.connections >= 9
    assert await in_order(redis) == receipts
    assert len(receipts) == 8000


async def test_a_lost_reply_is_no_second_chunk_even_if_it_was_completed_meanwhile(
    proxy: Proxy, redis: Redis
) -> None:
    async with through(proxy) as queue:
        await queue.produce("warm", 1)
        proxy.lose_reply(stay_away=True)
        call = asyncio.create_task(queue.produce_many("t", range(100)))

        async def reply_lost() -> bool:
            return proxy.lost_replies == 1

        await eventually(reply_lost)
        done = await complete(redis)
        assert len(done) == 100
        proxy.back()
        assert await call == done
        assert await in_order(redis) == []


async def test_a_server_that_goes_away_in_the_middle_is_waited_for(proxy: Proxy, redis: Redis) -> None:
    async with through(proxy) as queue:

        def payloads() -> Iterator[int]:
            for n in range(3000):
                if n == 1600:
                    proxy.away()
                    asyncio.get_running_loop().call_later(0.1, proxy.back)
                yield n

        receipts = await queue.produce_many("t", payloads())
        assert await in_order(redis) == receipts
        assert len(receipts) == 3000


async def test_a_server_that_stays_away_is_an_error_when_the_patience_is_over(proxy: Proxy) -> None:
    async with through(proxy, patience=0.2) as queue:
        await queue.produce("t", 1)
        proxy.away()
        async with asyncio.timeout(5):
            with pytest.raises(ServerUnavailable, match="gave up"):
                await queue.produce_many("t", range(3000))


async def test_a_cancelled_call_ends_at_once_even_while_the_server_is_away(proxy: Proxy) -> None:
    async with through(proxy) as queue:
        await queue.produce("t", 1)
        proxy.away()
        call = asyncio.create_task(queue.produce_many("t", range(3000)))
        done, _ = await asyncio.wait([call], timeout=0.1)
        assert not done
        call.cancel()
        done, _ = await asyncio.wait([call], timeout=5)
        proxy.back()
        assert done
        assert call.cancelled()


async def test_closing_the_queue_ends_it_after_whole_chunks(proxy: Proxy, redis: Redis) -> None:
    queue = through(proxy)
    await queue.open()
    closing: list[asyncio.Task[None]] = []

    def payloads() -> Iterator[int]:
        for n in range(10_000):
            if n == 1600:
                closing.append(asyncio.ensure_future(queue.close()))
            yield n

    with pytest.raises(ServerUnavailable, match="was closed in the middle"):
        await queue.produce_many("t", payloads())
    await closing[0]
    stored = len(await in_order(redis))
    assert stored % 200 == 0
    assert 1400 <= stored < 10_000

    async def no_connection() -> bool:
        clients = await command(redis, "CLIENT", "LIST")
        return len(clients.splitlines()) == 1

    await eventually(no_connection)


async def test_nothing_is_stored_of_a_wrong_topic(queue: RedisMessageQueue, redis: Redis) -> None:
    with pytest.raises(ValueError, match="a topic must be 1 to 128 letters"):
        await queue.produce_many("a b", range(10))
    assert await all_keys(redis) == []


async def test_two_calls_at_once_each_keep_their_order(queue: RedisMessageQueue, redis: Redis) -> None:
    """Also the first ones after the server's start, when it knows no script yet."""
    first, second = await asyncio.gather(
        queue.produce_many("t", range(1500)), queue.produce_many("t", range(1500))
    )
    ran = await in_order(redis)
    assert [id_ for id_ in ran if id_ in set(first)] == first
    assert [id_ for id_ in ran if id_ in set(second)] == second


async def test_the_memory_of_calls_on_the_server_is_bounded(queue: RedisMessageQueue, redis: Redis) -> None:
    """Chunks have names that the server remembers, for a minute only."""
    await queue.produce_many("t", range(2000))
    calls = [key for key in await all_keys(redis) if key.startswith(f"{PREFIX}call=")]
    assert len(calls) == 2
    for key in calls:
        assert 0 < await command(redis, "PTTL", key) <= 60_000


async def test_one_id_for_many_messages_is_refused(queue: RedisMessageQueue, redis: Redis) -> None:
    """All but the first would be duplicates, and silently not stored."""
    with pytest.raises(ConfigError, match="message_id"):
        await queue.produce_many("t", [1, 2], message_id="A1")  # type: ignore[call-arg]
    with pytest.raises(ConfigError, match="message_id"):
        queue.sync.produce_many("t", [1, 2], message_id="A1")  # type: ignore[call-arg]
    assert await all_keys(redis) == []
