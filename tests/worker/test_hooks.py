"""Hooks are told what dies and what is retried, once the server has it, and can harm nothing."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any

import pytest

from mx_rmq import ConfigError, Context, DeadEvent, RedisMessageQueue, Reject, Retry, RetryEvent, RetryLater
from mx_rmq.worker.hooks import _MOST_WAITING
from tests.words import ONE_SERVER, dead, drained, events, eventually, in_state, put_bytes, steal, store_of

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from mx_rmq import Handler
    from tests.words import MakeQueue

AT_ONCE = Retry(2, backoff="fixed", base=0)


def failing(mq: RedisMessageQueue, topic: str = "t", retry: Retry = AT_ONCE) -> Handler[..., Any]:
    @mq.handler(topic, retry=retry)
    async def on_t(payload: Any) -> None:
        raise KeyError("n")

    return on_t


@pytest.mark.sharded
async def test_hooks_are_told_what_became_of_a_message(mq: RedisMessageQueue) -> None:
    retried: list[RetryEvent] = []
    died: list[DeadEvent] = []
    threads: list[threading.Thread] = []

    @mq.on_retry
    async def on_retry(event: RetryEvent) -> None:
        retried.append(event)

    @mq.on_dead
    def on_dead(event: DeadEvent) -> None:
        threads.append(threading.current_thread())
        died.append(event)

    failing(mq)
    await mq.produce("t", {"n": 1}, message_id="A1", headers={"trace": "7"})
    await mq.start()
    await eventually(lambda: died)
    (again,), (dead_event,) = retried, died
    for event in (again, dead_event):
        assert (event.topic, event.message_id, event.payload) == ("t", "A1", {"n": 1})
        assert event.headers == {"trace": "7"}
        assert event.error == "KeyError: 'n'"
        assert "test_hooks.py" in event.place
        assert isinstance(event.exception, KeyError)
        assert event.exception.__traceback__ is not None
    assert (again.attempt, again.max_attempts, again.delay) == (1, 2, 0)
    assert (dead_event.reason, dead_event.attempts) == ("failed", 2)
    assert threads[0] is not threading.current_thread(), "a plain function runs in a thread"


@pytest.mark.sharded
async def test_a_hook_is_called_after_the_server_has_it(mq: RedisMessageQueue) -> None:
    states: list[str] = []

    @mq.on_dead
    async def on_dead(event: DeadEvent) -> None:
        states.append((await mq.find(event.message_id)).state)

    failing(mq, retry=Retry(1))
    await mq.produce("t", 1)
    await mq.start()
    await eventually(lambda: states)
    assert states == ["dead"]


async def test_who_lost_its_message_calls_no_hook(
    make_queue: MakeQueue, redis: Redis, caplog: pytest.LogCaptureFixture
) -> None:
    mq = make_queue(lease=3600)
    called: list[Any] = []
    mq.on_dead(called.append)
    mq.on_retry(called.append)

    @mq.handler("t", retry=AT_ONCE)
    async def on_t(payload: int, ctx: Context) -> None:
        await steal(redis, ctx.message_id)
        raise Reject if payload else KeyError

    await mq.start()
    await mq.produce("t", 0)
    await mq.produce("t", 1)
    await eventually(lambda: len(events(caplog, "lease.lost")) == 2)
    await mq.stop()
    assert called == []


@pytest.mark.usefixtures("watchful")
async def test_a_hook_hears_of_every_kind_of_death(make_queue: MakeQueue, redis: Redis) -> None:
    """Whether a runner judged it or a monitor, and whether it could be read or not."""
    mq, elsewhere = make_queue(lease=0.3, crash_limit=1), make_queue()
    died: dict[str, DeadEvent] = {}
    retried: list[Any] = []
    mq.on_dead(lambda event: died.update({event.message_id: event}))
    mq.on_retry(retried.append)

    @mq.handler("t", retry=Retry(1))
    async def on_t(payload: int) -> None:
        raise Reject("no") if payload else ValueError

    await elsewhere.open()
    await elsewhere.produce("t", 0, message_id="crashed", headers={"h": "1"})
    await store_of(redis).claim("t", 1, lease=0.01, holder="gone")
    await elsewhere.produce("unserved", 5, message_id="expired", ttl=0.05)
    await put_bytes(redis, "unparsable", b"\xff\x00")
    await elsewhere.produce("t", "x", message_id="invalid")
    await elsewhere.produce("t", 0, message_id="failed")
    await elsewhere.produce("t", 1, message_id="rejected")
    await mq.start()
    await eventually(lambda: len(died) == 6)
    assert {id_: event.reason for id_, event in died.items()} == {id_: id_ for id_ in died}
    assert {id_: event.payload for id_, event in died.items()} == {
        "crashed": 0,
        "expired": 5,
        "unparsable": None,
        "invalid": "x",
        "failed": 0,
        "rejected": 1,
    }
    assert died["crashed"].headers == {"h": "1"}
    assert died["unparsable"].headers == {}
    assert {id_ for id_, event in died.items() if event.exception is None} == {"crashed", "expired"}
    assert died["expired"].topic == "unserved"
    assert retried == []


@pytest.mark.usefixtures("watchful")
async def test_a_hook_hears_of_the_retry_that_a_monitor_decides(make_queue: MakeQueue, redis: Redis) -> None:
    """A message that had begun when its connected worker let the lease run out."""
    mq, other = make_queue(lease=0.3), make_queue(lease=3600)
    retried: list[RetryEvent] = []
    mq.on_retry(retried.append)
    other.on_retry(retried.append)  # its monitor may be the first to look
    running = asyncio.Event()

    @mq.handler("other")
    async def on_other(payload: int) -> None: ...

    @other.handler("t")
    async def on_t(payload: int) -> None:
        running.set()
        await asyncio.Event().wait()

    await other.start()
    await mq.start()
    await mq.produce("t", 1, message_id="A1")
    await running.wait()
    await eventually(lambda: _seen_by(mq, other))
    await eventually(lambda: _seen_by(other, other))
    held = [job.delivery for holdings in _worker(other)._holdings for job in holdings.jobs]
    await store_of(redis).start("t", held)
    await store_of(redis).end_leases("t", held)
    await eventually(lambda: retried)
    assert (retried[0].message_id, retried[0].attempt) == ("A1", 1)
    assert isinstance(retried[0].exception, TimeoutError)


def _worker(mq: RedisMessageQueue) -> Any:
    return mq._lifecycle.worker


async def _seen_by(mq: RedisMessageQueue, other: RedisMessageQueue) -> bool:
    return bool(await _worker(mq)._monitors[0]._presence.seen([_worker(other).name]))


@pytest.mark.sharded
async def test_an_error_in_a_hook_is_logged_and_changes_nothing(
    mq: RedisMessageQueue, caplog: pytest.LogCaptureFixture
) -> None:
    called: list[str] = []

    @mq.on_dead
    async def breaks(event: DeadEvent) -> None:
        raise ZeroDivisionError

    @mq.on_dead
    def exits(event: DeadEvent) -> None:
        raise SystemExit(3)

    @mq.on_dead
    async def follows(event: DeadEvent) -> None:
        called.append(event.message_id)

    failing(mq)
    await mq.produce("t", 1, message_id="A1")
    await mq.start()
    await eventually(lambda: called == ["A1"])
    assert (await dead(mq, "A1")).reason == "failed"
    first, second = events(caplog, "hook.failed")
    assert (first.levelname, first.hook, first.topic, first.id) == ("ERROR", "breaks", "t", "A1")
    assert first.exc_info[0] is ZeroDivisionError
    assert (second.hook, second.exc_info[0]) == ("exits", SystemExit)
    await mq.produce("t", 1, message_id="A2")
    await eventually(lambda: called == ["A1", "A2"])


@pytest.mark.sharded
@ONE_SERVER
async def test_a_slow_hook_holds_up_no_settlement_and_is_not_called_without_bound(
    mq: RedisMessageQueue, caplog: pytest.LogCaptureFixture
) -> None:
    messages = _MOST_WAITING + 500
    gate = asyncio.Event()
    called: list[str] = []

    @mq.on_dead
    async def slow(event: DeadEvent) -> None:
        await gate.wait()
        called.append(event.message_id)

    failing(mq, retry=Retry(1))
    await mq.produce_many("t", range(messages))
    await mq.start()

    async def all_dead() -> bool:
        return (await mq.counts()).dead == messages

    await eventually(all_dead)
    assert called == []
    (first,) = events(caplog, "hooks.skipped")
    assert (first.skipped, first.waiting) == (1, _MOST_WAITING)
    gate.set()
    await eventually(lambda: len(events(caplog, "hooks.skipped")) == 2)
    assert len(set(called)) == len(called)
    assert len(called) + events(caplog, "hooks.skipped")[1].skipped == messages


@pytest.mark.sharded
async def test_a_stop_waits_for_hooks_within_its_grace(make_queue: MakeQueue) -> None:
    mq = make_queue(stop_grace=15)
    begun, finish = asyncio.Event(), asyncio.Event()
    called: list[str] = []

    @mq.on_dead
    async def slow(event: DeadEvent) -> None:
        begun.set()
        await finish.wait()
        called.append(event.message_id)

    failing(mq, retry=Retry(1))
    await mq.produce("t", 1, message_id="A1")
    await mq.start()
    await begun.wait()
    stopping = asyncio.create_task(mq.stop())
    await asyncio.sleep(0.1)
    assert not stopping.done()
    finish.set()
    await stopping
    assert called == ["A1"]


@pytest.mark.sharded
@ONE_SERVER
@pytest.mark.parametrize("plain", [True, False], ids=["plain", "async"])
async def test_a_stop_ends_hooks_that_take_longer(
    make_queue: MakeQueue, plain: bool, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mx_rmq.worker.worker._LAST_WORDS", 0.1)
    mq = make_queue(stop_grace=0.0)
    begun = threading.Event()

    def endless(event: DeadEvent) -> None:
        begun.set()
        while True:
            threading.Event().wait(0.01)

    async def waits(event: DeadEvent) -> None:
        begun.set()
        await asyncio.Event().wait()

    mq.on_dead(endless if plain else waits)
    failing(mq, retry=Retry(1))
    await mq.produce("t", 1, message_id="A1")
    await mq.start()
    await eventually(begun.is_set)
    await asyncio.wait_for(mq.stop(), 10)
    (ended,) = events(caplog, "hook.failed")
    assert (ended.hook, ended.id) == ("endless" if plain else "waits", "A1")


@pytest.mark.sharded
async def test_a_hook_may_be_added_while_the_worker_runs(mq: RedisMessageQueue) -> None:
    died: list[DeadEvent] = []
    failing(mq, retry=Retry(1))
    await mq.start()
    mq.on_dead(died.append)
    await mq.produce("t", 1)
    await eventually(lambda: died)


@pytest.mark.sharded
async def test_what_succeeds_or_is_put_off_calls_no_hook(mq: RedisMessageQueue) -> None:
    called: list[Any] = []
    mq.on_dead(called.append)
    mq.on_retry(called.append)

    @mq.handler("t", retry=Retry(1))
    async def on_t(payload: int, ctx: Context) -> None:
        if payload and ctx.token.startswith("1@"):
            raise RetryLater(0, count=False)

    await mq.produce_many("t", [0, 1])
    await mq.start()
    await drained(mq)
    await mq.stop()
    assert called == []


@pytest.mark.sharded
@ONE_SERVER
async def test_a_hook_hears_of_a_time_out_that_the_lease_thread_decided(make_queue: MakeQueue) -> None:
    mq = make_queue(lease=3600)
    died: list[DeadEvent] = []
    mq.on_dead(died.append)

    @mq.handler("t", timeout=0.2, retry=Retry(1))
    async def on_t(payload: int) -> None:
        threading.Event().wait(1.8)  # the loop hangs

    await mq.produce("t", 1, message_id="A1")
    await mq.start()
    await eventually(lambda: died)
    await in_state(mq, "A1", "dead")
    assert (died[0].message_id, died[0].reason) == ("A1", "failed")
    assert isinstance(died[0].exception, TimeoutError)
    assert len(died) == 1


@pytest.mark.parametrize("hook", [None, "on_dead", lambda: None, lambda one, two: None])
def test_what_cannot_be_called_with_an_event_is_refused(hook: Any) -> None:
    mq = RedisMessageQueue("embedded://")
    for name in ("on_dead", "on_retry"):
        with pytest.raises(ConfigError, match=rf"{name} must be a function that takes one argument, the"):
            getattr(mq, name)(hook)
