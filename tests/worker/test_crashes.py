"""A message that takes its worker down is tried again, but not for ever."""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from mx_rmq import Context, RedisMessageQueue, Retry
from mx_rmq.message import Message, encode_message
from mx_rmq.storage.contract import Settled
from mx_rmq.storage.store import Store
from tests.harness import command
from tests.words import ONE_SERVER, dead, drained, events, eventually, in_state, put_bytes, store_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from redis.asyncio import Redis

    from mx_rmq.storage.contract import Delivery
    from mx_rmq.storage.embedded import EmbeddedServer
    from tests.words import MakeQueue

pytestmark = pytest.mark.usefixtures("watchful")

CRASHER = """
import os, sys
from mx_rmq import RedisMessageQueue, run

mq = RedisMessageQueue(sys.argv[1], name="q", server_check="off", lease=0.3, stop_grace=0)

@mq.handler("t")
async def on_t(payload: int) -> None:
    print("running", flush=True)
    os._exit(9)

run(mq)
"""


async def claim(redis: Redis, holder: str, *, begin: bool = True) -> Delivery:
    """Be a worker that takes the message, begins to run it or not, and vanishes."""
    deliveries: list[Delivery] = []

    async def look() -> bool:
        deliveries.extend((await store_of(redis).claim("t", 1, lease=15, holder=holder)).deliveries)
        return bool(deliveries)

    await eventually(look)
    if begin:
        await store_of(redis).start("t", deliveries)
    await store_of(redis).extend("t", deliveries, lease=0.01)
    return deliveries[0]


async def healthy(make_queue: MakeQueue, **options: Any) -> RedisMessageQueue:
    """A worker that serves another topic, and recovers what others left."""
    mq = make_queue(lease=0.3, **options)

    @mq.handler("other")
    async def other(payload: int) -> None: ...

    await mq.start()
    return mq


async def test_what_a_vanished_worker_held_runs_in_its_order(redis: Redis, make_queue: MakeQueue) -> None:
    """Its leases end at the same instant, and ids such as these are sorted otherwise."""
    mq, store, seen = make_queue(lease=0.3), store_of(redis), list[int]()

    @mq.handler("t", concurrency=1)
    async def on_t(payload: int) -> None:
        seen.append(payload)

    await mq.open()
    for n in range(12):
        await mq.produce("t", n, message_id=f"n-{n}")
    held = (await store.claim("t", 12, lease=15, holder="gone")).deliveries
    await store.extend("t", held, lease=0.01)
    await mq.start()
    await drained(mq)
    assert seen == list(range(12))


async def test_the_third_crash_is_the_last(make_queue: MakeQueue, redis: Redis) -> None:
    mq = await healthy(make_queue)
    await mq.produce("t", 1, message_id="A1")
    for n in (1, 2, 3):
        assert (await claim(redis, f"w{n}")).id == "A1"
    letter = await dead(mq, "A1")
    assert letter.reason == "crashed"
    assert "3 times" in letter.error
    assert letter.message is not None
    assert (letter.message.crashes, letter.message.attempts) == (3, 0)
    assert [attempt.worker for attempt in letter.message.history] == ["w1", "w2", "w3"]
    assert all("vanished" in attempt.error for attempt in letter.message.history)


async def test_the_limit_of_crashes_can_be_set(make_queue: MakeQueue, redis: Redis) -> None:
    mq = await healthy(make_queue, crash_limit=1)
    await mq.produce("t", 1, message_id="A1")
    await claim(redis, "w1")
    assert (await dead(mq, "A1")).reason == "crashed"


async def test_crashes_are_no_failed_attempts(make_queue: MakeQueue, redis: Redis) -> None:
    """Two crashes leave a handler that may run once its one attempt."""
    mq = make_queue(lease=0.3)
    attempts: list[int] = []

    @mq.handler("t", retry=Retry(1))
    async def on_t(payload: int, ctx: Context) -> None:
        attempts.append(ctx.attempt)
        raise KeyError

    await mq.produce("t", 1, message_id="A1")
    other = await healthy(make_queue)
    for n in (1, 2):
        await claim(redis, f"w{n}")
    await other.stop()
    await mq.start()
    letter = await dead(mq, "A1")
    assert (letter.reason, letter.kind, attempts) == ("failed", "KeyError", [3])
    assert letter.message is not None
    assert (letter.message.crashes, letter.message.attempts) == (2, 1)


async def test_a_monitor_that_dies_with_a_message_in_hand_is_no_second_crash(
    make_queue: MakeQueue, redis: Redis
) -> None:
    mq = make_queue(lease=0.3)
    await mq.produce("t", 1, message_id="A1")
    await claim(redis, "w1")

    async def taken() -> bool:
        return bool((await store_of(redis).take_over(10, lease=0.01, holder="m1")).taken)

    await eventually(taken)
    await healthy(make_queue)

    async def recovered() -> int:
        message = (await mq.find("A1")).message
        return message.crashes if message is not None else 0

    assert await eventually(recovered) == 1
    await claim(redis, "w2")
    assert await recovered() == 1


async def test_bytes_that_cannot_be_read_are_kept_when_their_worker_vanishes(
    make_queue: MakeQueue, redis: Redis
) -> None:
    mq = await healthy(make_queue)
    await put_bytes(redis, "A1", b"\xff\x00")
    await claim(redis, "w1")
    letter = await dead(mq, "A1")
    assert (letter.reason, letter.body) == ("unparsable", b"\xff\x00")


async def test_a_message_that_expired_with_its_worker_is_expired(make_queue: MakeQueue, redis: Redis) -> None:
    mq = make_queue(lease=0.3)
    await mq.produce("t", 1, message_id="A1", ttl=0.05)
    await claim(redis, "w1")
    await asyncio.sleep(0.1)
    await healthy(make_queue)
    letter = await dead(mq, "A1")
    assert letter.reason == "expired"


@ONE_SERVER
async def test_a_handler_that_kills_its_process_runs_three_times_and_no_more(
    make_queue: MakeQueue, server: EmbeddedServer
) -> None:
    mq = await healthy(make_queue)
    await mq.produce("t", 1, message_id="A1")
    outputs: list[bytes] = []
    codes: list[int | None] = []
    for _ in range(3):
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", CRASHER, server.url, stdout=asyncio.subprocess.PIPE
        )
        output, _ = await asyncio.wait_for(process.communicate(), 20)
        outputs.append(output)
        codes.append(process.returncode)
    letter = await dead(mq, "A1")
    assert (outputs, codes) == ([b"running\n"] * 3, [9] * 3)
    assert letter.reason == "crashed"
    assert letter.message is not None
    assert letter.message.crashes == 3
    assert len({attempt.worker for attempt in letter.message.history}) == 3


async def test_recovery_does_not_wait_for_a_token_that_went_to_a_worker_standing_still(
    make_queue: MakeQueue, redis: Redis
) -> None:
    mq = make_queue(lease=0.3, poll=60)
    ran = asyncio.Event()

    @mq.handler("t")
    async def on_t(payload: int) -> None:
        ran.set()

    await mq.produce("t", 1, message_id="A1")
    await claim(redis, "w1")
    wake = store_of(redis).keys.of_topic("t", "wake")
    still = asyncio.create_task(command(redis, "BLPOP", wake, 20))
    await asyncio.sleep(0.1)  # it is the first in line
    await mq.start()
    await asyncio.wait_for(ran.wait(), 10)
    assert await still is not None


async def test_who_only_waits_in_the_hands_of_workers_that_vanish_is_blamed_once(
    make_queue: MakeQueue, redis: Redis
) -> None:
    """Otherwise a message that kills its workers would take others to the DLQ with it."""
    mq = await healthy(make_queue)
    await mq.produce("t", 1, message_id="A1")
    for n in range(1, 6):
        await claim(redis, f"w{n}", begin=False)
    await claim(redis, "w6")
    await in_state(mq, "A1", "pending")
    message = (await mq.find("A1")).message
    assert message is not None
    assert (message.crashes, message.unbegun) == (2, 4)


async def test_what_is_never_seen_to_begin_is_not_tried_for_ever(
    make_queue: MakeQueue, redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mx_rmq.worker.outcome._UNBEGUN", 2)
    mq = await healthy(make_queue, crash_limit=2)
    await mq.produce("t", 1, message_id="A1")
    for n in range(1, 6):
        await claim(redis, f"w{n}", begin=False)
    letter = await dead(mq, "A1")
    assert letter.reason == "crashed"
    assert "5 times" in letter.error


def with_crashes(id_: str, crashes: int) -> bytes:
    return encode_message(
        Message(id=id_, topic="t", payload=msgspec.Raw(b"1"), created_at=0.0, crashes=crashes)
    )


async def test_a_message_that_a_further_crash_would_kill_begins_alone(
    mq: RedisMessageQueue, redis: Redis
) -> None:
    """So it is never mistaken for the one that takes its worker down; all others run together as ever."""
    running: set[str] = set()
    most: dict[str, int] = {}

    @mq.handler("t")
    async def on_t(payload: int, ctx: Context) -> None:
        running.add(ctx.message_id)
        await asyncio.sleep(0.05)
        for id_ in running:
            most[id_] = max(most.get(id_, 0), len(running))
        running.remove(ctx.message_id)

    for n in range(4):
        await put_bytes(redis, f"new{n}", with_crashes(f"new{n}", 0))
        await put_bytes(redis, f"once{n}", with_crashes(f"once{n}", 1))
        await put_bytes(redis, f"last{n}", with_crashes(f"last{n}", 2))
    await mq.start()
    await drained(mq)
    assert len(most) == 12
    assert [most[f"last{n}"] for n in range(4)] == [1] * 4
    assert min(most[f"{kind}{n}"] for kind in ("new", "once") for n in range(2)) > 1


async def test_beginning_alone_nobody_waits_for_what_runs_long(make_queue: MakeQueue, redis: Redis) -> None:
    mq = make_queue(stop_grace=0.1)
    ran = asyncio.Event()

    @mq.handler("endless")
    async def endless(payload: int) -> None:
        await asyncio.sleep(60)

    @mq.handler("t")
    async def on_t(payload: int) -> None:
        ran.set()

    await mq.produce("endless", 1, message_id="E1")
    await mq.start()
    await in_state(mq, "E1", "running")
    await put_bytes(redis, "last", with_crashes("last", 2))
    await asyncio.wait_for(ran.wait(), 10)
    await mq.stop()


async def test_what_began_alone_and_runs_long_keeps_nobody_waiting(
    make_queue: MakeQueue, redis: Redis
) -> None:
    """Workers that were killed twice may leave many such messages behind, and each may run for minutes."""
    mq = make_queue(stop_grace=0.1)
    running: set[str] = set()

    @mq.handler("t")
    async def on_t(payload: int, ctx: Context) -> None:
        running.add(ctx.message_id)
        await asyncio.sleep(60)

    for id_, crashes in (("last1", 2), ("last2", 2), ("new", 0)):
        await put_bytes(redis, id_, with_crashes(id_, crashes))
    await mq.start()
    await eventually(lambda: running == {"last1", "last2", "new"})
    await mq.stop()


async def test_a_message_whose_lease_is_lost_before_it_begins_does_not_run(
    mq: RedisMessageQueue, redis: Redis, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran = []

    @mq.handler("t")
    async def on_t(payload: int) -> None:
        ran.append(payload)

    async def stale(store: Store, topic: str, deliveries: Sequence[Delivery]) -> list[Settled]:
        return [Settled.STALE for _ in deliveries]

    monkeypatch.setattr(Store, "start", stale)
    await put_bytes(redis, "A1", with_crashes("A1", 1))
    await mq.start()
    await eventually(lambda: events(caplog, "lease.lost"))
    assert ran == []
