"""What the lease keeper's thread does in place of an event loop that hangs."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
from redis import Redis as Client

from mx_rmq import Retry
from mx_rmq import events as all_events
from tests.words import ONE_SERVER, PREFIX, dead, drained, events, eventually, in_state

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from mx_rmq.events import Event
    from mx_rmq.storage.embedded import EmbeddedServer
    from tests.words import MakeQueue

pytestmark = [ONE_SERVER, pytest.mark.one_shard]


def block(seconds: float, until: Callable[[], object] = bool) -> None:
    """Keep the thread for so long, or until something is true."""
    end = time.monotonic() + seconds
    while not until() and time.monotonic() < end:
        time.sleep(0.02)


@contextmanager
def client(server: EmbeddedServer) -> Iterator[Any]:
    """Looks at the server while the loop is blocked."""
    with Client(unix_socket_path=str(server.socket)) as client:
        yield client


async def test_a_topic_that_is_refused_keeps_no_other_from_being_settled_and_is_told_once(
    make_queue: MakeQueue, server: EmbeddedServer, caplog: pytest.LogCaptureFixture
) -> None:
    mq = make_queue(lease=3600, patience=0)
    topics = [f"bad{n}" for n in range(6)] + ["good"]
    running: Counter[str] = Counter()
    gate = asyncio.Event()
    settled: list[bool] = []

    async def waits(payload: str) -> None:
        running[payload] += 1
        await gate.wait()

    for topic in topics:
        mq.handler(topic)(waits)

    @mq.handler("blocks")
    async def blocks(payload: int) -> None:
        await eventually(lambda: len(running) == len(topics))
        with client(server) as look:
            for topic in topics[:-1]:
                look.delete(f"{PREFIX}{topic}:processing")
                look.set(f"{PREFIX}{topic}:processing", "something else")
            gate.set()
            await asyncio.sleep(0)  # the others end in this turn of the loop; their settlements have not left
            block(8, lambda: not look.exists(f"{PREFIX}good:processing"))
            settled.append(not look.exists(f"{PREFIX}good:processing"))
            block(1.2)  # two more turns of the thread

    for topic in topics:
        await mq.produce(topic, topic)
    await mq.produce("blocks", 1, message_id="B1")
    await mq.start()
    await in_state(mq, "B1", "gone")
    assert settled == [True]
    told = Counter(record.topic for record in events(caplog, "settle.delayed"))
    assert told == dict.fromkeys(topics[:-1], 1)


async def test_what_the_thread_settles_is_told_once_and_what_it_is_refused_is_called_lost(
    make_queue: MakeQueue, server: EmbeddedServer, caplog: pytest.LogCaptureFixture
) -> None:
    mq = make_queue(lease=3600)
    running: list[int] = []
    gate = asyncio.Event()
    completed: list[str] = []
    meanwhile: list[str] = []

    def hear(event: Event, _: BaseException | None) -> None:
        assert isinstance(event, all_events.MessageCompleted)
        completed.append(event.id)

    @mq.handler("t")
    async def on_t(payload: int) -> None:
        running.append(payload)
        await gate.wait()

    @mq.handler("blocks")
    async def blocks(payload: int) -> None:
        await eventually(lambda: len(running) == 2)
        gate.set()
        await asyncio.sleep(0)
        with client(server) as look:  # as another worker would
            look.hset(PREFIX + "t:processing", "S1", "99@1763230000000000 normal inf thief run")
        block(8, lambda: events(caplog, "loop.hangs"))
        block(1.2)
        meanwhile.extend(completed)

    end = all_events.listen(hear, all_events.MessageCompleted)
    try:
        await mq.produce("t", 1, message_id="A1")
        await mq.produce("t", 2, message_id="S1")
        await mq.produce("blocks", 1, message_id="B1")
        await mq.start()
        await in_state(mq, "B1", "gone")
        await eventually(lambda: "B1" in completed)
    finally:
        end()
    assert meanwhile == ["A1"]
    assert completed == ["A1", "B1"]
    (hang,) = events(caplog, "loop.hangs")
    assert hang.settled == {"done": 1}
    assert [record.id for record in events(caplog, "lease.lost")] == ["S1"]


async def test_a_message_that_dies_while_the_loop_hangs_is_remembered(make_queue: MakeQueue) -> None:
    mq = make_queue(lease=3600)

    @mq.handler("t", timeout=0.3, retry=Retry(1), remember=3600)
    async def on_t(payload: int) -> None:
        block(2.5)

    await mq.produce("t", 1, message_id="A1")
    await mq.start()
    assert (await dead(mq, "A1")).kind == "TimeoutError"
    await drained(mq)
    await mq.dlq.delete("A1")
    assert (await mq.find("A1")).state == "dead"
