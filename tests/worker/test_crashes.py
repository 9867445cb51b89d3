"""A message that takes its worker down is tried again, but not for ever."""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING, Any

import pytest

from mx_rmq import Context, RedisMessageQueue, Retry
from tests.worker.helpers import ONE_SERVER, dead, eventually, put_bytes, store_of

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from mx_rmq.embedded import EmbeddedServer
    from mx_rmq.records import Delivery
    from tests.worker.helpers import MakeQueue

pytestmark = pytest.mark.usefixtures("watchful")

CRASHER = """
import os, sys
from mx_rmq import RedisMessageQueue, run

mq = RedisMessageQueue(sys.argv[1], name="q", check="off", lease=0.3, grace=0)

@mq.handler("t")
async def on_t(payload: int) -> None:
    print("running", flush=True)
    os._exit(9)

run(mq)
"""


async def claim(redis: Redis, holder: str) -> Delivery:
    """Be a worker that takes the message, and vanishes."""
    deliveries: list[Delivery] = []

    async def look() -> bool:
        deliveries.extend((await store_of(redis).claim("t", 1, lease=0.01, holder=holder)).deliveries)
        return bool(deliveries)

    await eventually(look)
    return deliveries[0]


async def healthy(make_queue: MakeQueue, **options: Any) -> RedisMessageQueue:
    """A worker that serves another topic, and recovers what others left."""
    mq = make_queue(lease=0.3, **options)

    @mq.handler("other")
    async def other(payload: int) -> None: ...

    await mq.start()
    return mq


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
        message = (await mq.get("A1")).message
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
