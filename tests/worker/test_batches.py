"""Batch handlers: many messages in one call, each with its own fate."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from mx_rmq import Context, RedisMessageQueue, Reject, Retry, RetryLater
from tests.words import (
    ONE_SERVER,
    dead,
    drained,
    eventually,
    in_state,
    is_sound,
    produce_elsewhere,
    put_bytes,
    steal,
)

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from tests.words import MakeQueue

# A batch is what is there when it begins, and several shards answer one after the other.
pytestmark = pytest.mark.one_shard

ONCE = Retry(1)


@dataclass
class Event:
    n: int


async def test_full_batches_run_at_once_however_long_they_might_linger(mq: RedisMessageQueue) -> None:
    batches: list[list[int]] = []

    @mq.handler("t", batch=5, linger=60)
    async def on_t(payloads: list[int]) -> None:
        batches.append(payloads)

    await mq.produce_many("t", range(10))
    await mq.start()
    await drained(mq)
    assert batches == [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9]]


async def test_a_batch_that_does_not_fill_runs_after_lingering(mq: RedisMessageQueue) -> None:
    batches: list[list[int]] = []

    @mq.handler("t", batch=100, linger=0.3)
    async def on_t(payloads: list[int]) -> None:
        batches.append(payloads)

    await mq.start()
    for n in range(5):
        await mq.produce("t", n)
    await drained(mq)
    assert batches == [[0, 1, 2, 3, 4]]


@ONE_SERVER
async def test_a_batch_lingers_from_its_own_first_message_on(mq: RedisMessageQueue) -> None:
    """What filled the batch before it does not cut its time short."""
    batches: list[list[int]] = []
    begun = asyncio.get_running_loop().time

    times: list[float] = []

    @mq.handler("t", batch=2, linger=0.2)
    async def on_t(payloads: list[int]) -> None:
        batches.append(payloads)
        times.append(begun())

    await mq.start()
    await mq.produce("t", 1)
    await asyncio.sleep(0.15)  # most of the first batch's time, which then fills up
    await mq.produce("t", 2)
    await eventually(lambda: batches == [[1, 2]])
    alone = begun()
    await mq.produce("t", 3)
    await eventually(lambda: len(batches) == 2)
    assert batches[1] == [3]
    assert times[1] - alone >= 0.2


async def test_without_lingering_a_batch_is_what_there_is(mq: RedisMessageQueue) -> None:
    batches: list[list[int]] = []

    @mq.handler("t", batch=100)
    async def on_t(payloads: list[int]) -> None:
        batches.append(payloads)

    await mq.produce_many("t", range(7))
    await mq.start()
    await drained(mq)
    assert batches == [[0, 1, 2, 3, 4, 5, 6]]


async def test_a_batch_of_one_is_still_a_list(mq: RedisMessageQueue) -> None:
    batches: list[list[int]] = []

    @mq.handler("t", batch=1)
    async def on_t(payloads: list[int]) -> None:
        batches.append(payloads)

    await mq.start()
    await mq.produce_many("t", range(3))
    await drained(mq)
    assert sorted(batches) == [[0], [1], [2]]


async def test_a_batch_comes_typed_and_with_a_context_for_each(mq: RedisMessageQueue) -> None:
    seen: list[tuple[str, Event, int]] = []

    @mq.handler("t", batch=10)
    async def on_t(events: list[Event], contexts: list[Context]) -> None:
        seen.extend((ctx.message_id, event, ctx.attempt) for event, ctx in zip(events, contexts, strict=True))

    for n in range(3):
        await mq.produce("t", Event(n), message_id=f"A{n}")
    await mq.start()
    await drained(mq)
    assert seen == [("A0", Event(0), 1), ("A1", Event(1), 1), ("A2", Event(2), 1)]


async def test_a_plain_function_takes_batches_in_a_thread(mq: RedisMessageQueue) -> None:
    batches: list[Any] = []

    @mq.handler("t", batch=10)
    def on_t(payloads: list[int]) -> None:
        batches.append((payloads, threading.current_thread() is threading.main_thread()))

    await mq.produce_many("t", range(3))
    await mq.start()
    await drained(mq)
    assert batches == [([0, 1, 2], False)]


async def test_an_exception_fails_all_of_the_batch(mq: RedisMessageQueue) -> None:
    calls: list[int] = []

    @mq.handler("t", batch=10, retry=Retry(2, backoff="fixed", base=0))
    async def on_t(payloads: list[int], contexts: list[Context]) -> None:
        calls.extend(ctx.attempt for ctx in contexts)
        raise KeyError("all")

    ids = await mq.produce_many("t", range(3))
    await mq.start()
    for id_ in ids:
        letter = await dead(mq, id_)
        assert (letter.reason, letter.error) == ("failed", "KeyError: 'all'")
        assert letter.message is not None
        assert letter.message.attempts == 2
    assert sorted(calls) == [1, 1, 1, 2, 2, 2]


@pytest.mark.parametrize("error", [asyncio.CancelledError, SystemExit, KeyboardInterrupt])
async def test_no_exception_of_a_batch_ends_its_runner(
    make_queue: MakeQueue, error: type[BaseException]
) -> None:
    mq = make_queue(concurrency=2)

    @mq.handler("t", batch=2, linger=60, retry=ONCE)
    async def on_t(payloads: list[int]) -> None:
        if payloads[0] < 50:
            raise error

    await mq.produce_many("t", range(52))
    await mq.start()
    await drained(mq)
    counts = await mq.counts()
    assert (counts.dead, counts.topics["t"].completed) == (50, 2)


async def test_every_message_of_a_batch_may_have_its_own_outcome(mq: RedisMessageQueue) -> None:
    @mq.handler("t", batch=10, retry=Retry(3, backoff="fixed", base=1000))
    async def on_t(payloads: list[str]) -> list[BaseException | None]:
        outcomes: dict[str, BaseException | None] = {
            "good": None,
            "fails": ValueError("odd"),
            "dead": Reject("no such thing"),
            "later": RetryLater(5000),
        }
        return [outcomes[payload] for payload in payloads]

    for payload in ("good", "fails", "dead", "later"):
        await mq.produce("t", payload, message_id=payload)
    await mq.start()
    await in_state(mq, "good", "gone")
    assert (await dead(mq, "dead")).error == "no such thing"
    fails = await in_state(mq, "fails", "delayed")
    later = await in_state(mq, "later", "delayed")
    assert fails.message is not None
    assert [attempt.error for attempt in fails.message.history] == ["ValueError: odd"]
    assert fails.due_at is not None
    assert later.due_at is not None
    assert later.due_at - fails.due_at > 3000  # the one by RetryLater, capped by nothing
    assert await is_sound(mq)


@pytest.mark.parametrize(
    ("result", "said"),
    [
        ([None], "a list of 3 outcomes"),
        ([None] * 4, "a list of 3 outcomes"),
        ((None, None, None), "a list of 3 outcomes"),
        (3, "a list of 3 outcomes"),
        ([None, True, None], "outcome 1 of the batch is a bool"),
        ([None, None, ValueError], "outcome 2 of the batch is a type"),
        (["ok", None, None], "outcome 0 of the batch is a str"),
    ],
    ids=str,
)
async def test_outcomes_that_make_no_sense_fail_all_and_say_why(
    mq: RedisMessageQueue, result: Any, said: str
) -> None:
    @mq.handler("t", batch=10, retry=ONCE)
    async def on_t(payloads: list[int]) -> Any:
        return result

    ids = await mq.produce_many("t", range(3))
    await mq.start()
    for id_ in ids:
        letter = await dead(mq, id_)
        assert letter.kind == "TypeError"
        assert said in letter.error


async def test_what_cannot_be_read_is_left_out_of_the_batch(mq: RedisMessageQueue, redis: Redis) -> None:
    batches: list[list[Event]] = []

    @mq.handler("t", batch=10)
    async def on_t(payloads: list[Event]) -> None:
        batches.append(payloads)

    await mq.produce("t", Event(1))
    await produce_elsewhere(mq, "t", {"n": "x"}, message_id="invalid")
    await put_bytes(redis, "garbage", b"\xff")
    await mq.produce("t", Event(2))
    await mq.start()
    assert (await dead(mq, "invalid")).reason == "invalid"
    assert (await dead(mq, "garbage")).reason == "unparsable"
    await drained(mq)
    assert batches == [[Event(1), Event(2)]]


async def test_a_batch_of_which_nothing_can_be_read_does_not_run(mq: RedisMessageQueue) -> None:
    ran: list[Any] = []

    @mq.handler("t", batch=10)
    async def on_t(payloads: list[Event]) -> None:
        ran.append(payloads)

    await produce_elsewhere(mq, "t", 1, message_id="A1")
    await produce_elsewhere(mq, "t", 2, message_id="A2")
    await mq.start()
    await dead(mq, "A1")
    await dead(mq, "A2")
    assert ran == []


async def test_a_batch_past_its_timeout_fails_as_a_whole(mq: RedisMessageQueue) -> None:
    @mq.handler("t", batch=10, timeout=0.1, retry=ONCE)
    async def on_t(payloads: list[int]) -> None:
        await asyncio.Event().wait()

    ids = await mq.produce_many("t", range(3))
    await mq.start()
    for id_ in ids:
        assert (await dead(mq, id_)).kind == "TimeoutError"


@ONE_SERVER
async def test_one_context_extends_the_time_of_all_the_batch(make_queue: MakeQueue) -> None:
    """And with it the leases of all, else the others would be delivered a second time."""
    mq = make_queue(lease=0.3)
    calls: list[int] = []
    remaining: list[float] = []

    @mq.handler("t", batch=10, timeout=0.2, retry=ONCE)
    async def on_t(payloads: list[int], contexts: list[Context]) -> None:
        calls.append(len(payloads))
        contexts[0].extend(30)
        remaining.extend(ctx.remaining for ctx in contexts)
        await asyncio.sleep(0.9)

    await mq.produce_many("t", range(3))
    await mq.start()
    await drained(mq)
    assert calls == [3]
    assert all(29 < seconds <= 30 for seconds in remaining)
    assert (await mq.counts()).dead == 0


@ONE_SERVER
async def test_a_batch_longer_than_the_lease_runs_once(make_queue: MakeQueue) -> None:
    mq = make_queue(lease=0.2)
    calls: list[int] = []

    @mq.handler("t", batch=10)
    async def on_t(payloads: list[int]) -> None:
        calls.append(len(payloads))
        await asyncio.sleep(0.6)

    await mq.produce_many("t", range(3))
    await mq.start()
    await drained(mq)
    assert calls == [3]


async def test_a_lost_message_leaves_the_rest_of_its_batch_running(
    make_queue: MakeQueue, redis: Redis
) -> None:
    mq = make_queue(lease=0.2)
    lost: list[str] = []

    @mq.handler("t", batch=10, retry=ONCE)
    async def on_t(payloads: list[int], contexts: list[Context]) -> None:
        await steal(redis, "A1")
        await contexts[1].lost.wait()
        lost.extend(ctx.message_id for ctx in contexts if ctx.lost.is_set())

    for n in range(3):
        await mq.produce("t", n, message_id=f"A{n}")
    await mq.start()
    await in_state(mq, "A0", "gone")
    await in_state(mq, "A2", "gone")
    assert lost == ["A1"]
    assert (await mq.find("A1")).holder == "thief"


async def test_a_batch_all_of_which_is_lost_is_cancelled(make_queue: MakeQueue, redis: Redis) -> None:
    mq = make_queue(lease=0.2)
    ended: list[list[bool]] = []

    @mq.handler("t", batch=10, retry=ONCE)
    async def on_t(payloads: list[int], contexts: list[Context]) -> None:
        await steal(redis, "A0")
        await steal(redis, "A1")
        try:
            await asyncio.Event().wait()
        finally:
            ended.append([ctx.lost.is_set() for ctx in contexts])

    for n in range(2):
        await mq.produce("t", n, message_id=f"A{n}")
    await mq.start()
    await eventually(lambda: ended == [[True, True]])
    for n in range(2):
        facts = await mq.find(f"A{n}")
        assert (facts.state, facts.holder) == ("running", "thief")


async def test_a_batch_counts_as_one_run_against_the_concurrency(make_queue: MakeQueue) -> None:
    mq = make_queue(concurrency=8)
    running = most = 0
    calls: list[int] = []

    @mq.handler("t", batch=5, concurrency=2)
    async def on_t(payloads: list[int]) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        calls.append(len(payloads))
        await asyncio.sleep(0.01)
        running -= 1

    await mq.produce_many("t", range(50))
    await mq.start()
    await drained(mq)
    assert most == 2
    assert sum(calls) == 50
    assert max(calls) == 5


async def test_a_lingering_batch_goes_back_when_the_worker_stops(mq: RedisMessageQueue) -> None:
    ran: list[Any] = []

    @mq.handler("t", batch=100, linger=60)
    async def on_t(payloads: list[int]) -> None:
        ran.append(payloads)

    await mq.start()
    for n in range(3):
        await mq.produce("t", n, message_id=f"A{n}")
    for n in range(3):
        await in_state(mq, f"A{n}", "running")
    await mq.stop()
    assert ran == []
    facts = [await mq.find(f"A{n}") for n in range(3)]
    assert [fact.state for fact in facts] == ["pending"] * 3
    assert [fact.message and fact.message.attempts for fact in facts] == [0] * 3
