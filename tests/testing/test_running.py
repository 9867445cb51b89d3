"""A queue in a test: its handlers, a private server, and a clock that the test moves."""

from __future__ import annotations

import asyncio
import threading
import time
import traceback
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Unpack

import pytest

from mx_rmq import (
    ConfigError,
    Context,
    NotDrained,
    ProduceOptions,
    QueueOptions,
    RedisMessageQueue,
    Reject,
    Retry,
    RetryLater,
)
from mx_rmq.storage.queries import Queries
from mx_rmq.testing import DoneMessage, MessageFailed, RunningQueue, running
from tests.words import eventually, is_sound

NOWHERE = "unix:///nowhere/at/all"


@dataclass
class Order:
    id: str
    amount: float = 1.0


def a_queue(**options: Unpack[QueueOptions]) -> RedisMessageQueue:
    """A queue as a module has it: at a server that is not there in a test."""
    given: QueueOptions = {"name": "shop", "patience": 0, **options}
    return RedisMessageQueue(NOWHERE, **given)


def ids(messages: list[Any]) -> list[str]:
    return [message.id for message in messages]


# -- isolation


async def test_two_tests_in_a_row_see_nothing_of_each_other() -> None:
    mq = a_queue()

    @mq.handler("orders", retry=Retry(1))
    async def on_order(order: Order) -> None:
        if order.id == "bad":
            raise ValueError

    for _ in range(2):
        async with running(mq) as q:
            assert (q.produced(), q.done, q.dead) == ([], [], [])
            assert (await mq.counts()).topics == {}
            await mq.produce("orders", Order("A1"), message_id="A1")
            await mq.produce("orders", Order("bad"), message_id="A2")
            await q.advance(60)
            assert (ids(q.produced()), ids(q.done), ids(q.dead)) == (["A1", "A2"], ["A1"], ["A2"])


async def test_the_queue_is_left_as_it_was() -> None:
    mq = a_queue()

    @mq.handler("orders")
    async def on_order(_: Order) -> None: ...

    @mq.middleware
    async def layer(call_next: Any, payload: Any, ctx: Any) -> Any:
        return await call_next(payload, ctx)

    @mq.produce_middleware
    async def outer(call_next: Any, topic: str, payload: Any, options: Any) -> Any:
        return await call_next(topic, payload, options)

    config = mq.config
    before = dict(mq._handlers), list(mq._middleware), list(mq._produce_layers.active())
    async with running(mq):
        await mq.produce("orders", {"id": "A1"})
    assert mq.config is config
    assert (mq._handlers, mq._middleware, list(mq._produce_layers.active())) == before
    assert mq._lifecycle.worker is None
    with pytest.raises(ConnectionError):
        await mq.produce("orders", {"id": "A1"})


async def test_a_queue_that_is_open_is_refused() -> None:
    mq = RedisMessageQueue("embedded://")
    async with mq:
        with pytest.raises(ConfigError, match="not open"):
            async with running(mq):
                pass


async def test_an_application_may_open_and_close_the_queue_inside() -> None:
    mq = a_queue()
    handled: list[str] = []

    @mq.handler("orders")
    async def on_order(order: Order) -> None:
        handled.append(order.id)

    async with running(mq) as q:
        async with mq:
            await mq.start()
            await mq.produce("orders", Order("A1"))
            await q.drain()
        await mq.produce("orders", Order("A2"))
        assert handled == ["A1"]
        await mq.start()
        await q.drain()
        assert handled == ["A1", "A2"]


async def test_the_end_does_not_wait_for_handlers() -> None:
    mq = a_queue(stop_grace=20)
    began, ended = asyncio.Event(), asyncio.Event()

    @mq.handler("orders")
    async def on_order(_: Order) -> None:
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    async with asyncio.timeout(10):
        async with running(mq):
            await mq.produce("orders", Order("A1"))
            await began.wait()
    assert ended.is_set()


# -- what was produced


async def test_produced_knows_every_way_to_produce_and_the_options() -> None:
    mq = a_queue()

    @mq.handler("orders")
    async def on_order(_: Order) -> None: ...

    async with running(mq) as q:
        await mq.produce(
            "orders",
            {"id": "A1", "amount": 2.0},
            message_id="A1",
            headers={"trace": "7"},
            priority="high",
            delay=5,
            ttl=60,
            dedup_for=30,
        )
        await on_order.produce(Order("A2"))
        await mq.produce_many("orders", [{"id": "A3"}, {"id": "A4"}])
        await asyncio.to_thread(mq.sync.produce, "orders", {"id": "A5"})
        await asyncio.to_thread(mq.sync.produce_many, "orders", [{"id": "A6"}])
        await mq.produce("mails", {"to": "ada"})
        await mq.produce("orders", {"id": "A1"}, message_id="A1")  # taken: nothing is stored
        assert [order.payload.id for order in q.produced("orders")] == [f"A{n}" for n in range(1, 7)]
        assert [mail.payload for mail in q.produced("mails")] == [{"to": "ada"}]
        assert len(q.produced()) == 7
        first = q.produced("orders")[0]
        assert first.payload == Order("A1", 2.0)
        assert (first.topic, first.id, first.headers, first.priority) == (
            "orders",
            "A1",
            {"trace": "7"},
            "high",
        )
        assert (first.delay, first.ttl, first.dedup_for) == (5.0, 60, 30)


async def test_what_handlers_produce_in_the_loop_and_in_threads_is_there_too() -> None:
    mq = a_queue()

    @mq.handler("orders")
    async def on_order(order: Order) -> None:
        await mq.produce("invoices", order.id)

    @mq.handler("invoices")
    def on_invoice(order_id: str) -> None:
        mq.sync.produce("mails", f"paid {order_id}")

    async with running(mq) as q:
        await mq.produce("orders", Order("A1"))
        await q.drain(raise_errors=True)
        assert [(message.topic, message.payload) for message in q.produced()] == [
            ("orders", Order("A1")),
            ("invoices", "A1"),
            ("mails", "paid A1"),
        ]
        assert [done.topic for done in q.done] == ["orders", "invoices"]


async def test_produced_shows_what_the_middleware_made_of_it() -> None:
    mq = a_queue()

    @mq.produce_middleware
    async def traced(call_next: Any, topic: str, payload: Any, options: ProduceOptions) -> Any:
        return await call_next(topic, payload, {**options, "headers": {"trace": "7"}})

    async with running(mq) as q:
        await mq.produce("mails", 1)
        await asyncio.to_thread(mq.sync.produce, "mails", 2)
        assert [mail.headers for mail in q.produced("mails")] == [{"trace": "7"}] * 2


async def test_a_queue_without_handlers_only_records() -> None:
    mq = a_queue()
    async with running(mq) as q:
        await mq.produce("mails", 1)
        await mq.produce("mails", 2, delay=60)
        await q.drain()
        await q.advance(60)
        assert [mail.payload for mail in q.produced("mails")] == [1, 2]


# -- draining


async def test_drain_leaves_topics_without_a_handler_alone() -> None:
    mq = a_queue()

    @mq.handler("orders")
    async def on_order(_: Order) -> None:
        await mq.produce("mails", "for another service")

    async with running(mq) as q, asyncio.timeout(5):
        await mq.produce("orders", Order("A1"))
        await q.drain()
        assert len(q.done) == len(q.produced("mails")) == 1


async def test_done_is_complete_when_drain_returns() -> None:
    """The server has done it a moment before its answer is here."""
    mq = a_queue(concurrency=8)

    @mq.handler("t")
    async def on_t(_: int) -> None: ...

    async with running(mq) as q:
        for n in range(50):
            await mq.produce_many("t", range(10))
            await q.drain()
            assert len(q.done) == 10 * (n + 1)
        assert q.done[0] == DoneMessage("t", q.produced()[0].id, 0, 1)


async def test_drain_waits_for_the_answer_of_the_server_too() -> None:
    mq = a_queue()

    @mq.handler("t")
    async def on_t(_: int) -> None: ...

    async with running(mq) as q:
        with q._records.answer():
            drain = asyncio.create_task(q.drain())
            done, _ = await asyncio.wait([drain], timeout=0.1)
            assert not done
        await asyncio.wait_for(drain, 5)


async def test_drain_raises_the_first_error_of_a_handler_with_its_traceback() -> None:
    mq = a_queue()

    @mq.handler("orders", retry=Retry(2, base=60))
    async def on_order(order: Order) -> None:
        if order.id == "A1":
            raise LookupError("no such customer")

    async with running(mq) as q:
        await mq.produce("orders", Order("A1"), message_id="A1")
        await mq.produce("orders", Order("A2"))
        with pytest.raises(LookupError, match="no such customer") as raised:
            await q.drain(raise_errors=True)
        assert "on_order" in [frame.name for frame in traceback.extract_tb(raised.tb)]
        assert "message.retried: orders A1 attempt 1 of 2 failed" in raised.value.__notes__[0]
        await q.drain(raise_errors=True)  # each is raised once
        assert len(q.done) == 1
        await q.advance(60)
        (dead,) = q.dead
        assert (dead.topic, dead.id, dead.payload, dead.attempts) == ("orders", "A1", Order("A1"), 2)
        assert (dead.reason, dead.error) == ("failed", "LookupError: no such customer")
        assert isinstance(dead.exception, LookupError)
        with pytest.raises(LookupError):
            await q.drain(raise_errors=True)


async def test_without_asking_drain_raises_no_error() -> None:
    mq = a_queue()

    @mq.handler("orders", retry=Retry(1))
    async def on_order(_: Order) -> None:
        raise LookupError

    async with running(mq) as q:
        await mq.produce("orders", Order("A1"))
        await q.drain()
        assert [dead.reason for dead in q.dead] == ["failed"]


async def test_to_be_tried_later_is_no_error_and_to_be_rejected_is_one() -> None:
    mq = a_queue()

    @mq.handler("orders")
    async def on_order(order: Order) -> None:
        if order.id == "later":
            raise RetryLater(60)
        raise Reject("no stock")

    async with running(mq) as q:
        await mq.produce("orders", Order("later"))
        await q.drain(raise_errors=True)
        await mq.produce("orders", Order("A2"))
        with pytest.raises(Reject, match="no stock"):
            await q.drain(raise_errors=True)
        assert [(dead.reason, dead.error) for dead in q.dead] == [("rejected", "no stock")]


async def test_to_be_tried_later_is_an_error_if_it_was_the_last_attempt() -> None:
    mq = a_queue()

    @mq.handler("orders", retry=Retry(1))
    async def on_order(order: Order) -> None:
        raise RetryLater(0)

    async with running(mq) as q:
        await mq.produce("orders", Order("A1"))
        with pytest.raises(RetryLater):
            await q.drain(raise_errors=True)


async def test_a_failure_without_an_exception_is_told_in_words() -> None:
    mq = a_queue()

    @mq.handler("orders")
    async def on_order(_: Order) -> None: ...

    async with running(mq) as q:
        await mq.pause("orders")
        await mq.produce("orders", Order("A1"), message_id="A1", ttl=60)
        await q.advance(120)
        with pytest.raises(MessageFailed, match=r"orders A1 is dead \(expired\)"):
            await q.drain(raise_errors=True)


async def test_a_handler_past_its_timeout_raises_a_timeout() -> None:
    mq = a_queue()

    @mq.handler("orders", retry=Retry(1), timeout=0.05)
    async def on_order(_: Order) -> None:
        await asyncio.sleep(60)

    async with running(mq) as q:
        await mq.produce("orders", Order("A1"), message_id="A1")
        with pytest.raises(TimeoutError, match="the handler timed out after"):
            await q.drain(raise_errors=True)


async def test_an_error_comes_before_what_it_left_undone() -> None:
    mq = a_queue()

    @mq.handler("orders")
    async def on_order(order: Order) -> None:
        if order.id == "A1":
            raise LookupError("that is why")
        await asyncio.Event().wait()

    async with running(mq) as q:
        await mq.produce("orders", Order("A1"))
        await mq.produce("orders", Order("A2"))
        with pytest.raises(NotDrained, match=r"not drained within 0\.1 s: 1 running in orders"):
            await q.drain(0.1)
        with pytest.raises(LookupError, match="that is why"):
            await q.drain(0.1, raise_errors=True)


async def test_errors_of_another_queue_are_not_this_ones() -> None:
    mq, other = a_queue(), a_queue(name="other")

    @other.handler("orders", retry=Retry(1))
    async def on_order(_: Order) -> None:
        raise LookupError

    async with running(mq) as q, running(other) as o:
        await other.produce("orders", Order("A1"))
        await o.drain()
        await q.drain(raise_errors=True)
        assert (q.produced(), q.dead, len(o.dead)) == ([], [], 1)


# -- time


async def test_a_delay_of_an_hour_takes_milliseconds() -> None:
    mq = a_queue()

    @mq.handler("reminders")
    async def on_reminder(_: str) -> None: ...

    async with running(mq) as q:
        await mq.produce("reminders", "x", delay=3600)
        began = time.monotonic()
        await q.advance(3590)
        assert q.done == []
        await q.advance(11)
        assert len(q.done) == 1
        assert time.monotonic() - began < 5


async def test_an_hour_of_retries_takes_milliseconds_and_each_comes_at_its_time() -> None:
    mq = a_queue()
    tried: list[float] = []
    q: RunningQueue

    @mq.handler("orders", retry=Retry(5, base=60, backoff="fixed"))
    async def on_order(_: Order) -> None:
        tried.append(await time_of(mq))
        raise ConnectionError

    async with running(mq) as q:
        await mq.produce("orders", Order("A1"))
        await q.advance(59)
        assert len(tried) == 1
        await q.advance(2)
        assert len(tried) == 2
        await q.advance(3600)
        assert [dead.attempts for dead in q.dead] == [5]
        waits = [later - earlier for earlier, later in pairwise(tried)]
        assert waits == pytest.approx([60] * 4, abs=1)


async def time_of(mq: RedisMessageQueue) -> float:
    return await Queries(mq._lifecycle.shards[0].operating).time()


async def test_what_becomes_due_on_the_way_runs_before_it_expires() -> None:
    mq = a_queue()
    handled: list[int] = []

    @mq.handler("steps")
    async def on_step(n: int) -> None:
        handled.append(n)
        if n < 5:
            await mq.produce("steps", n + 1, delay=600, ttl=60)

    async with running(mq) as q:
        await mq.produce("steps", 1, delay=600, ttl=60)
        await q.advance(3600)
        assert handled == [1, 2, 3, 4, 5]
        assert q.dead == []


async def test_a_lifetime_ends() -> None:
    mq = a_queue()

    @mq.handler("orders")
    async def on_order(_: Order) -> None: ...

    async with running(mq) as q:
        await mq.pause("orders")
        await mq.produce("orders", Order("A1"), message_id="A1", ttl=3600)
        await q.advance(3590)
        assert q.dead == []
        await q.advance(20)
        (dead,) = await eventually(lambda: q.dead)
        assert (dead.id, dead.reason, dead.payload) == ("A1", "expired", Order("A1"))
        with pytest.raises(MessageFailed, match="orders A1 is dead \\(expired\\)"):
            await q.drain(raise_errors=True)


async def test_an_id_is_free_again_after_dedup_for() -> None:
    mq = a_queue()

    @mq.handler("orders")
    async def on_order(_: Order) -> None: ...

    async with running(mq) as q:
        for passes, stored in ((0, 1), (3500, 1), (200, 2)):
            await q.advance(passes)
            await mq.produce("orders", Order("A1"), message_id="A1", dedup_for=3600)
            await q.drain()
            assert len(q.produced()) == len(q.done) == stored


async def test_dead_messages_are_kept_as_long_as_the_queue_says() -> None:
    mq = a_queue(dlq_max_age=86400)

    @mq.handler("orders")
    async def on_order(_: Order) -> None:
        raise Reject("no")

    async with running(mq) as q:
        await mq.produce("orders", Order("A1"))
        await q.advance(86000)
        assert (await mq.counts()).dead == 1
        await q.advance(1000)
        assert (await mq.counts()).dead == 0


async def test_a_handler_that_runs_keeps_its_message_however_far_the_clock_moves() -> None:
    mq = a_queue(lease=15)
    starts: list[str] = []
    go, blocked = asyncio.Event(), threading.Event()
    lost: list[bool] = []

    @mq.handler("orders")
    async def on_order(order: Order, ctx: Context) -> None:
        starts.append(order.id)
        await go.wait()
        lost.append(ctx.lost.is_set())

    @mq.handler("files")
    def on_file(name: str) -> None:
        starts.append(name)
        blocked.wait(30)

    async with running(mq) as q:
        await mq.produce("orders", Order("A1"))
        await mq.produce("files", "F1")
        await eventually(lambda: len(starts) == 2)
        await q.advance(3600)
        await q.advance(3600)
        assert (q.done, sorted(starts)) == ([], ["A1", "F1"])
        go.set()
        blocked.set()
        await q.drain(raise_errors=True)
        assert [(done.topic, done.attempt) for done in q.done] in (
            [("orders", 1), ("files", 1)],
            [("files", 1), ("orders", 1)],
        )
        assert lost == [False]
        assert len(starts) == 2
        assert await is_sound(mq)


async def test_no_message_runs_twice_because_the_clock_moved_while_it_was_claimed() -> None:
    mq = a_queue(lease=1)
    starts: list[int] = []

    @mq.handler("t")
    async def on_t(n: int) -> None:
        starts.append(n)
        await asyncio.sleep(0)

    async def produce(first: int) -> None:
        for n in range(first, first + 20):
            await mq.produce("t", n)

    async with running(mq) as q:
        for first in range(0, 400, 20):
            await asyncio.gather(produce(first), q.advance(100), q.advance(100))
        await q.drain(raise_errors=True)
        assert sorted(starts) == list(range(400))
        assert {done.attempt for done in q.done} == {1}


async def test_the_lease_of_a_vanished_worker_ends() -> None:
    mq = a_queue()

    @mq.handler("orders")
    async def on_order(_: Order) -> None: ...

    async with running(mq) as q:
        await mq.produce("elsewhere", 1, message_id="A1")
        store = mq._lifecycle.shards[0].store
        await store.claim("elsewhere", 1, lease=3600, holder="ghost")
        await q.advance(3590)
        assert (await mq.find("A1")).holder == "ghost"
        await q.advance(20)
        facts = await mq.find("A1")
        assert (facts.state, facts.message and facts.message.crashes) == ("pending", 1)


async def test_what_the_queue_says_of_itself_agrees_with_the_moved_clock() -> None:
    mq = a_queue()

    @mq.handler("orders")
    async def on_order(_: Order) -> None: ...

    async with running(mq) as q:
        await mq.produce("orders", Order("A1"), message_id="A1", delay=7200)
        await q.advance(3600)
        assert await time_of(mq) == pytest.approx(time.time() + 3600, abs=5)
        assert len(await mq.workers()) == 1
        facts = await mq.find("A1")
        assert facts.due_at == pytest.approx(time.time() + 7200, abs=5)
        await q.advance(3601)
        assert len(q.done) == 1
        assert await is_sound(mq)


@pytest.mark.parametrize("seconds", [-1, "1h", None])
async def test_a_time_that_is_none_is_refused(seconds: Any) -> None:
    async with running(a_queue()) as q:
        with pytest.raises(ConfigError, match=r"the time for advance\(\) must be seconds >= 0"):
            await q.advance(seconds)
