"""Who runs when: concurrency, turns, priorities, and no waiting where there is room."""

from __future__ import annotations

import asyncio
import threading
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Any

import pytest

from mx_rmq import RedisMessageQueue
from mx_rmq.worker.ready import ReadyJobs, TopicWork
from tests.words import drained, eventually, in_state

if TYPE_CHECKING:
    from tests.words import MakeQueue


class Gauge:
    """How many run at once, and the most there were."""

    def __init__(self) -> None:
        self.now = self.most = 0

    async def run(self) -> None:
        self.now += 1
        self.most = max(self.most, self.now)
        await asyncio.sleep(0.01)
        self.now -= 1


async def test_never_more_handlers_run_than_the_concurrency_allows(make_queue: MakeQueue) -> None:
    mq = make_queue(concurrency=5)
    total, a, b = Gauge(), Gauge(), Gauge()

    @mq.handler("a", concurrency=2)
    async def on_a(payload: int) -> None:
        await asyncio.gather(total.run(), a.run())

    @mq.handler("b")
    async def on_b(payload: int) -> None:
        await asyncio.gather(total.run(), b.run())

    await mq.produce_many("a", range(30))
    await mq.produce_many("b", range(60))
    await mq.start()
    await drained(mq)
    assert (total.most, a.most) == (5, 2)
    assert 3 <= b.most <= 5


async def test_the_concurrency_of_plain_functions_is_the_same(make_queue: MakeQueue) -> None:
    mq = make_queue(concurrency=3)
    lock = threading.Lock()
    now = most = 0

    @mq.handler("t")
    def on_t(payload: int) -> None:
        nonlocal now, most
        with lock:
            now += 1
            most = max(most, now)
        threading.Event().wait(0.005)
        with lock:
            now -= 1

    await mq.produce_many("t", range(50))
    await mq.start()
    await drained(mq)
    assert most == 3


@pytest.mark.one_shard
async def test_one_at_a_time_runs_in_the_order_of_production(make_queue: MakeQueue) -> None:
    mq = make_queue(concurrency=8)
    seen: list[int] = []

    @mq.handler("t", concurrency=1)
    async def on_t(payload: int) -> None:
        await asyncio.sleep(0)
        seen.append(payload)

    await mq.produce_many("t", range(300))
    await mq.start()
    await drained(mq)
    assert seen == list(range(300))


@pytest.mark.one_shard
async def test_a_busy_topic_does_not_starve_the_others(make_queue: MakeQueue) -> None:
    """Slow handlers, one slot: the other topics' single messages run among the first of a long backlog."""
    mq = make_queue(concurrency=1, prefetch=0)
    seen: list[str] = []

    async def handle(topic: str) -> None:
        seen.append(topic)
        await asyncio.sleep(0.005)

    @mq.handler("busy")
    async def on_busy(payload: int) -> None:
        await handle("busy")

    @mq.handler("b")
    async def on_b(payload: int) -> None:
        await handle("b")

    @mq.handler("c")
    async def on_c(payload: int) -> None:
        await handle("c")

    await mq.produce_many("busy", range(40))
    await mq.produce("b", 1)
    await mq.produce("c", 1)
    await mq.start()
    await drained(mq)
    assert {"b", "c"} <= set(seen[:5])


async def test_all_busy_topics_get_their_turns(make_queue: MakeQueue) -> None:
    mq = make_queue(concurrency=2, prefetch=0)
    seen: list[str] = []
    for topic in ("a", "b", "c"):

        async def handle(payload: str) -> None:
            seen.append(payload)
            await asyncio.sleep(0.002)

        mq.handler(topic)(handle)
        await mq.produce_many(topic, [topic] * 50)
    await mq.start()
    await drained(mq)
    for topic in ("a", "b", "c"):
        assert 15 <= seen[:75].count(topic) <= 35


@pytest.mark.one_shard
async def test_urgent_messages_come_first_and_each_lane_in_its_order(make_queue: MakeQueue) -> None:
    mq = make_queue(concurrency=1, prefetch=0)
    seen: list[str] = []

    @mq.handler("t")
    async def on_t(payload: str) -> None:
        seen.append(payload)

    for n in (1, 2):
        for lane in ("low", "normal", "high"):
            await mq.produce("t", f"{lane}{n}", priority=lane)
    await mq.start()
    await drained(mq)
    assert seen == ["high1", "high2", "normal1", "normal2", "low1", "low2"]


async def test_a_paused_topic_is_not_delivered_until_it_is_resumed(make_queue: MakeQueue) -> None:
    """With a poll far away: the resume itself wakes the worker."""
    mq = make_queue(poll=60)
    seen: list[str] = []

    @mq.handler("paused")
    async def on_paused(payload: str) -> None:
        seen.append(payload)

    @mq.handler("other")
    async def on_other(payload: str) -> None:
        seen.append(payload)

    await mq.open()
    await mq.pause("paused")
    await mq.start()
    await mq.produce("paused", "a")
    await mq.produce("other", "b")
    await eventually(lambda: seen == ["b"])
    await mq.produce("other", "c")
    await eventually(lambda: seen == ["b", "c"])
    await mq.resume("paused")
    await eventually(lambda: seen == ["b", "c", "a"])


async def test_a_message_for_an_idle_worker_starts_at_once(make_queue: MakeQueue) -> None:
    """Whichever topic it is for, and with a poll a minute away."""
    mq = make_queue(poll=60)
    seen: list[int] = []
    for topic in ("a", "b", "c"):

        async def handle(payload: int) -> None:
            seen.append(payload)

        mq.handler(topic)(handle)
    await mq.start()
    for n in range(30):
        await mq.produce("abc"[n % 3], n)
        await eventually(lambda: len(seen) == n + 1, within=10)  # noqa: B023 - awaited within the turn
    assert seen == list(range(30))


async def test_a_worker_at_its_limit_leaves_the_message_to_an_idle_one(make_queue: MakeQueue) -> None:
    finish = asyncio.Event()
    ran: list[int] = []

    def worker() -> RedisMessageQueue:
        mq = make_queue(concurrency=1, poll=60)

        @mq.handler("t")
        async def on_t(payload: int) -> None:
            ran.append(payload)
            await finish.wait()

        return mq

    first, second, third = worker(), worker(), worker()
    for n, mq in enumerate((first, second, third), start=1):
        await mq.start()
        await first.produce("t", n)
        await eventually(lambda: len(ran) == n, within=10)  # noqa: B023 - awaited within the turn
    finish.set()


async def test_many_idle_workers_share_a_burst(make_queue: MakeQueue) -> None:
    """One token is enough for all of them: it is passed on while more is pending."""
    finish = asyncio.Event()
    ran: list[int] = []
    queues = []
    for _ in range(5):
        mq = make_queue(concurrency=1, poll=60)

        @mq.handler("t")
        async def on_t(payload: int) -> None:
            ran.append(payload)
            await finish.wait()

        await mq.start()
        queues.append(mq)
    await asyncio.sleep(0.1)  # all of them wait by now
    await queues[0].produce_many("t", range(5))
    await eventually(lambda: len(ran) == 5, within=10)
    finish.set()


@pytest.mark.parametrize("limit", ["topic", "worker"])
async def test_what_was_full_gets_its_next_message_as_soon_as_it_has_room(
    make_queue: MakeQueue, limit: str
) -> None:
    mq = make_queue(poll=60, concurrency=1 if limit == "worker" else 8)
    turns: asyncio.Queue[None] = asyncio.Queue()
    begun: list[int] = []

    @mq.handler("t", concurrency=1)
    async def on_t(payload: int) -> None:
        begun.append(payload)
        await turns.get()

    @mq.handler("other")
    async def other(payload: int) -> None:
        begun.append(payload)

    await mq.start()
    await mq.produce("t", 0)
    await eventually(lambda: begun == [0], within=10)
    for n in range(1, 6):
        await mq.produce("t", n)
        if limit == "topic":
            await mq.produce("other", -n)
            await eventually(lambda: -n in begun, within=10)  # noqa: B023 - awaited within the turn
        turns.put_nowait(None)
        await eventually(lambda: n in begun, within=10)  # noqa: B023 - awaited within the turn
    turns.put_nowait(None)


async def test_a_topic_with_a_backlog_it_may_not_run_keeps_nobody_waiting(make_queue: MakeQueue) -> None:
    """Quick at first, so that many are held ready; then one hangs, and its topic may run one at a time."""
    mq = make_queue(concurrency=4, prefetch=1000, poll=60)
    finish, hanging = asyncio.Event(), asyncio.Event()
    done = 0
    seen: list[int] = []

    @mq.handler("slow", concurrency=1)
    async def slow(payload: int) -> None:
        nonlocal done
        done += 1
        if done == 5000:
            hanging.set()
            await finish.wait()

    @mq.handler("other")
    async def other(payload: int) -> None:
        seen.append(payload)

    await mq.produce_many("slow", range(10_000))
    await mq.start()
    await asyncio.wait_for(hanging.wait(), 30)
    assert (await mq.counts()).processing > 1  # held ready, or the test shows nothing
    for n in range(10):
        await mq.produce("other", n)
        await eventually(lambda: len(seen) == n + 1, within=10)  # noqa: B023 - awaited within the turn
    finish.set()


async def test_a_lingering_batch_keeps_nobody_waiting(make_queue: MakeQueue) -> None:
    mq = make_queue(concurrency=2, poll=60)
    seen: list[int] = []

    @mq.handler("batch", batch=1000, linger=600)
    async def on_batch(payloads: list[int]) -> None: ...

    @mq.handler("other")
    async def other(payload: int) -> None:
        seen.append(payload)

    ids = await mq.produce_many("batch", range(50))
    await mq.start()
    await in_state(mq, ids[-1], "held")
    for n in range(5):
        await mq.produce("other", n)
        await eventually(lambda: len(seen) == n + 1, within=10)  # noqa: B023 - awaited within the turn


@pytest.mark.one_shard
async def test_a_running_batch_keeps_nobody_waiting(make_queue: MakeQueue) -> None:
    """A hundred messages in one run take up one run, not a hundred."""
    mq = make_queue(concurrency=4, poll=60)
    finish = asyncio.Event()
    seen: list[int] = []

    @mq.handler("batch", batch=100)
    async def on_batch(payloads: list[int]) -> None:
        await finish.wait()

    @mq.handler("other")
    async def other(payload: int) -> None:
        seen.append(payload)

    await mq.produce_many("batch", range(100))
    await mq.produce("other", 1)
    await mq.start()
    await eventually(lambda: seen == [1], within=10)
    finish.set()


async def test_slow_handlers_hold_nothing_that_another_worker_could_run(make_queue: MakeQueue) -> None:
    mq = make_queue(concurrency=2, prefetch=1000)
    running: list[int] = []
    finish = asyncio.Event()

    @mq.handler("t")
    async def on_t(payload: int) -> None:
        running.append(payload)
        await finish.wait()

    await mq.produce_many("t", range(100))
    await mq.start()
    await eventually(lambda: len(running) == 2)
    await asyncio.sleep(0.1)
    counts = (await mq.counts()).topics["t"]
    assert (counts.processing, counts.pending) == (2, 98)
    finish.set()


async def test_quick_handlers_hold_some_ready_but_no_more_than_allowed(make_queue: MakeQueue) -> None:
    mq = make_queue(concurrency=2, prefetch=50)
    finish = asyncio.Event()
    seen = 0

    @mq.handler("t")
    async def on_t(payload: int) -> None:
        nonlocal seen
        seen += 1
        if seen >= 2000:
            await finish.wait()

    await mq.produce_many("t", range(5000))
    await mq.start()

    async def settled() -> bool:
        return (await mq.counts()).topics["t"].completed == 1999

    await eventually(settled)
    assert 2 < (await mq.counts()).processing <= 2 + 50
    finish.set()


async def test_one_handler_per_topic_among_many_topics(make_queue: MakeQueue) -> None:
    mq = make_queue(concurrency=4, poll=60)
    seen: list[Any] = []
    for n in range(40):

        async def handle(payload: int) -> None:
            seen.append(payload)
            await asyncio.sleep(0)

        mq.handler(f"t{n}")(handle)
    await mq.start()
    for n in range(40):
        await mq.produce_many(f"t{n}", [n] * 5)
    await eventually(lambda: len(seen) == 200)
    assert sorted(seen) == sorted(list(range(40)) * 5)


async def test_a_pool_that_is_closed_starts_nothing_but_gives_everything_back() -> None:
    mq = RedisMessageQueue("embedded://")

    @mq.handler("t")
    async def on_t(payload: int) -> None: ...

    pool = ReadyJobs([on_t], 2, 10)
    work = pool.topics["t"]
    jobs: list[Any] = ["first", "second", "third"]
    pool.offer(work, jobs[:2])
    pool.close()
    pool.offer(work, jobs[2:])
    assert pool.take() is None
    assert pool.drain() == jobs


def pool_of_two_shards(
    concurrency: int, *, prefetch: int = 0, **options: Any
) -> tuple[ReadyJobs, TopicWork, list[str]]:
    """A pool with one topic, its work, and which fetchers were told of room; the prefetch stays as it is."""
    mq = RedisMessageQueue("embedded://")

    @mq.handler("t", **options)
    async def on_t(payload: Any) -> None: ...

    pool = ReadyJobs([on_t], concurrency, 1000)
    work = pool.topics["t"]
    work.pace.prefetch, work.pace._measured_at = prefetch, inf
    told: list[str] = []
    for name in ("first", "second"):
        pool.on_room(partial(note, told, name))
    return pool, work, told


def note(told: list[str], name: str, *, is_about_to_claim: bool = False) -> bool:
    told.append(name)
    return is_about_to_claim


async def test_while_another_shard_is_asked_for_most_of_it_no_small_claim_is_made() -> None:
    """Eight shards would otherwise mean claims of an eighth; but one that is silent stops no other."""
    pool, work, _ = pool_of_two_shards(4, prefetch=400)
    jobs: list[Any] = [object() for _ in range(250)]
    pool.offer(work, jobs)
    assert pool.room(work) == 4 + 400 - 250
    work.claiming = 150
    assert pool.room(work) == 0, "250 are ready and 150 are on their way"
    for _ in range(147):
        work.ready.pop()
    assert pool.room(work) == 4 + 400 - 103 - 150, "what is ready may end before the claim is answered"
    work.claiming = 0


async def test_fetchers_are_told_of_room_once_until_one_looks_and_not_while_enough_is_coming() -> None:
    """Eight fetchers would otherwise be woken for every message that ends."""
    pool, work, told = pool_of_two_shards(4, prefetch=400)
    jobs: list[Any] = [object() for _ in range(303)]
    pool.offer(work, jobs)

    def end_one() -> list[str]:
        assert pool.take() is not None
        pool.finished(work, 1)
        said = told.copy()
        told.clear()
        return said

    assert end_one() == [], "302 of 400 are more than three quarters"
    assert [end_one(), end_one()] == [[], ["first", "second"]]
    assert end_one() == [], "none has looked since"
    with pool.claiming(work, pool.room(work)):
        assert end_one() == [], "what was asked for is on its way"
    assert sorted(told) == ["first", "second"], "it brought nothing"
    while len(work.ready) > 1:
        work.ready.pop()
    work.claiming = 250
    pool.room(work)
    told.clear()
    assert sorted(end_one()) == ["first", "second"], "a shard that does not answer stops no other"


async def test_room_is_offered_to_one_fetcher_after_the_other_until_one_is_about_to_claim() -> None:
    """Eight fetchers would otherwise be woken for room that one of them takes."""
    pool, work, told = pool_of_two_shards(4)
    pool.on_room(third := partial(note, told, "third", is_about_to_claim=True))
    pool.on_room(partial(note, told, "fourth"))
    pool.offer_room()
    assert told == ["first", "second", "third"]
    told.clear()
    with pool.claiming(work, pool.room(work)):
        assert told == [], "it takes all room"
    told.clear()
    with pool.claiming(work, 1):
        assert told == ["second", "third"], "it leaves room to the others; the first one's turn is over"
    told.clear()
    pool.not_on_room(third)
    assert told == ["fourth", "first", "second"], "it was about to claim, and does not any more"


async def test_a_batch_that_lingers_keeps_no_fetcher_from_filling_it() -> None:
    pool, work, told = pool_of_two_shards(10, batch=10, linger=5.0)
    jobs: list[Any] = [object() for _ in range(3)]
    pool.offer(work, jobs)
    with pool.claiming(work, room := pool.room(work)):
        assert (room, pool.room(work)) == (100 - 3, 0)
    assert sorted(told) == ["first", "second"]
    pool.close()


async def test_a_shard_that_does_not_answer_keeps_no_room_from_the_others() -> None:
    pool, work, told = pool_of_two_shards(4)
    with pool.claiming(work, pool.room(work)):
        assert pool.room(work) == 0
        await eventually(lambda: told)
        assert pool.room(work) == 4
        with pool.claiming(work, 4):
            assert pool.room(work) == 0
        told.clear()
    assert (work.claiming, pool.room(work), told) == (0, 4, [])
