"""Claims whose answer is lost, topics that cannot be claimed from, and calls that are sent twice."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from mx_rmq import Context, Retry
from mx_rmq.events import MessageCompleted, listen
from tests.proxy import Proxy
from tests.words import dead, drained, events, eventually, in_state, is_sound

if TYPE_CHECKING:
    from collections.abc import Iterator

    from redis.asyncio import Redis

    from mx_rmq.storage.embedded import EmbeddedServer
    from tests.words import MakeQueue


@pytest.fixture
def proxy(server: EmbeddedServer) -> Iterator[Proxy]:
    """Made before the queue, so that it outlives it."""
    with Proxy(server) as proxy:
        yield proxy


async def test_a_claim_whose_reply_was_lost_is_given_back_and_made_again(
    proxy: Proxy, make_queue: MakeQueue, caplog: pytest.LogCaptureFixture
) -> None:
    """Nobody waits for the lease to run out, and nothing counts as a crash."""
    caplog.set_level("INFO", "mx_rmq")
    mq, outside = make_queue(proxy.url, lease=3600, poll=60), make_queue()
    seen: list[tuple[str, int]] = []

    @mq.handler("t", concurrency=1)
    async def on_t(payload: int, ctx: Context) -> None:
        seen.append((ctx.message_id, ctx.attempt))

    await outside.open()
    await mq.start()
    await outside.produce("t", 0, message_id="first")
    await eventually(lambda: len(seen) == 1)
    proxy.lose_reply(script="claim_message")
    await outside.produce("t", 1, message_id="A1")
    await in_state(outside, "A1", "gone")
    assert seen == [("first", 1), ("A1", 1)]
    assert proxy.lost_replies == 1
    (record,) = events(caplog, "claim.given_back")
    assert (record.topic, record.messages) == ("t", 1)
    assert (await outside.counts()).topics["t"].completed == 2


async def test_messages_of_a_claim_whose_reply_was_lost_run_in_their_order(
    proxy: Proxy, make_queue: MakeQueue
) -> None:
    """Their leases are read from a hash, which has no order."""
    mq, outside = make_queue(proxy.url, lease=3600, poll=60), make_queue()
    seen: list[int] = []

    @mq.handler("t")
    async def on_t(payload: int) -> None:
        seen.append(payload)

    await outside.open()
    for n in range(40):
        await outside.produce("t", n, message_id=f"n-{n}")
    proxy.lose_reply(script="claim_message")
    await mq.start()
    await drained(outside)
    assert proxy.lost_replies == 1
    assert seen == list(range(40))


async def test_among_very_many_leases_nobody_looks_for_its_own(
    proxy: Proxy, make_queue: MakeQueue, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a failover every worker would read what all workers hold."""
    monkeypatch.setattr("mx_rmq.worker.fetcher._MOST_READ", 0)
    mq, outside = make_queue(proxy.url, lease=1, poll=60), make_queue()
    mq.handler("t", concurrency=1)(lambda payload: None)
    await outside.open()
    await mq.start()
    await outside.produce("t", 0, message_id="first")
    await in_state(outside, "first", "gone")
    proxy.lose_reply(script="claim_message")
    await outside.produce("t", 1, message_id="A1")
    await in_state(outside, "A1", "gone")
    (record,) = events(caplog, "claim.not_given_back")
    assert record.error == "1 leases are too many to look for its own"


async def test_without_the_right_to_look_for_it_the_lease_runs_out_and_claiming_goes_on(
    proxy: Proxy, redis: Redis, make_queue: MakeQueue, caplog: pytest.LogCaptureFixture
) -> None:
    await redis.acl_setuser("few", enabled=True, nopass=True, keys=["*"], commands=["+@all", "-hscan"])
    mq, outside = make_queue(proxy.url.replace("//", "//few:any@"), lease=1, poll=60), make_queue()
    seen: list[str] = []

    @mq.handler("t", concurrency=1)
    async def on_t(payload: int, ctx: Context) -> None:
        seen.append(ctx.message_id)

    try:
        await outside.open()
        await mq.start()
        await outside.produce("t", 0, message_id="first")
        await eventually(lambda: len(seen) == 1)
        proxy.lose_reply(script="claim_message")
        await outside.produce("t", 1, message_id="A1")
        await eventually(lambda: proxy.lost_replies == 1)
        await outside.produce("t", 2, message_id="A2")
        await drained(outside)
    finally:
        await mq.stop()
        await redis.acl_deluser("few")
    assert sorted(seen) == ["A1", "A2", "first"]
    (record,) = events(caplog, "claim.not_given_back")
    assert "hscan" in record.error


async def test_what_this_worker_knows_it_holds_is_not_given_back(proxy: Proxy, make_queue: MakeQueue) -> None:
    mq, outside = make_queue(proxy.url, lease=3600, poll=60), make_queue()
    begun: list[int] = []
    finish = asyncio.Event()

    @mq.handler("t")
    async def on_t(payload: int) -> None:
        begun.append(payload)
        await finish.wait()

    await outside.open()
    await mq.start()
    await outside.produce("t", 1)
    await eventually(lambda: begun == [1])
    proxy.lose_reply(script="claim_message")
    await outside.produce("t", 2)
    await eventually(lambda: begun == [1, 2])
    finish.set()
    await drained(outside)
    assert begun == [1, 2]


@pytest.mark.parametrize(
    ("script", "payload", "state"),
    [
        ("complete_message", "good", "gone"),
        ("retry_message", "bad", "delayed"),
        ("move_to_dlq", "dead", "dead"),
    ],
)
async def test_an_outcome_whose_reply_was_lost_is_settled_once_and_told(
    proxy: Proxy,
    make_queue: MakeQueue,
    caplog: pytest.LogCaptureFixture,
    request: pytest.FixtureRequest,
    script: str,
    payload: str,
    state: str,
) -> None:
    mq, outside = make_queue(proxy.url, lease=3600), make_queue()
    seen: list[str] = []
    heard: list[str] = []
    mq.on_dead(lambda event: heard.append(f"dead {event.message_id}"))
    mq.on_retry(lambda event: heard.append(f"delayed {event.message_id}"))
    request.addfinalizer(listen(lambda event, _: heard.append(f"gone {event.id}"), MessageCompleted))  # type: ignore[attr-defined] # it has one

    @mq.handler("t", retry=Retry(2, backoff="fixed", base=100, never=(LookupError,)))
    async def on_t(payload: str) -> None:
        seen.append(payload)
        if payload == "bad":
            raise RuntimeError
        if payload == "dead":
            raise KeyError

    await outside.open()
    await mq.start()
    proxy.lose_reply(script=script)
    await outside.produce("t", payload, message_id="A1")
    facts = await in_state(outside, "A1", state)
    await eventually(lambda: proxy.lost_replies == 1)
    await outside.produce("t", "good", message_id="A2")
    await in_state(outside, "A2", "gone")
    assert seen == [payload, "good"]
    if facts.message is not None:
        assert facts.message.attempts == 1
    assert not events(caplog, "lease.lost")
    await eventually(lambda: set(heard) == {f"{state} A1", "gone A2"})
    assert await is_sound(outside)


async def test_a_topic_that_cannot_be_claimed_from_stops_no_other(
    make_queue: MakeQueue, redis: Redis, caplog: pytest.LogCaptureFixture
) -> None:
    """With a poll far away: the others are still woken at once."""
    mq = make_queue(poll=60)
    seen: list[int] = []
    for topic in ("a", "broken", "z"):

        async def handle(payload: int) -> None:
            seen.append(payload)

        mq.handler(topic)(handle)
    await redis.set("mx-rmq:{q}:broken:pending", "something else")
    await mq.start()
    for n in range(20):
        await mq.produce("az"[n % 2], n)
        await eventually(lambda: len(seen) == n + 1, within=10)  # noqa: B023 - awaited within the turn
    (record,) = events(caplog, "topic.failed")
    assert record.topic == "broken"
    assert "broken:pending is a string" in record.error


async def test_a_topic_that_could_not_be_claimed_from_goes_on_when_it_is_mended(
    make_queue: MakeQueue, redis: Redis, caplog: pytest.LogCaptureFixture
) -> None:
    mq = make_queue(poll=0.1)
    seen: list[int] = []

    @mq.handler("t")
    async def on_t(payload: int) -> None:
        seen.append(payload)

    await redis.set("mx-rmq:{q}:t:pending", "something else")
    await mq.start()
    await eventually(lambda: events(caplog, "topic.failed"))
    await redis.delete("mx-rmq:{q}:t:pending")
    await mq.produce("t", 1)
    await eventually(lambda: seen == [1])


async def test_a_lost_token_costs_no_more_than_the_poll(make_queue: MakeQueue, redis: Redis) -> None:
    mq = make_queue(poll=0.2)
    seen: list[int] = []

    @mq.handler("t")
    async def on_t(payload: int) -> None:
        seen.append(payload)

    await mq.produce("t", 1)
    await redis.delete("mx-rmq:{q}:t:wake")
    await mq.start()
    await eventually(lambda: seen == [1])
    await mq.pause("t")
    await mq.produce("t", 2)
    await redis.delete("mx-rmq:{q}:t:wake")
    await redis.srem("mx-rmq:{q}:paused", "t")  # a resume that wakes nobody
    await eventually(lambda: seen == [1, 2])


@pytest.mark.parametrize("lost", [False, True], ids=["told", "reply-lost"])
async def test_a_token_that_finds_no_room_is_passed_on(
    proxy: Proxy, make_queue: MakeQueue, redis: Redis, lost: bool
) -> None:
    """Or the message would wait for the poll of a worker that has room.

    Only where claims cannot wait on the server: a claim that does passes the token on by itself.
    """
    await redis.acl_setuser("few", enabled=True, nopass=True, keys=["*"], commands=["+@all", "-client|id"])
    mq = make_queue(proxy.url.replace("//", "//few:any@"), poll=60, concurrency=1, prefetch=0)
    seen: list[int] = []
    release = asyncio.Event()

    @mq.handler("t")
    async def hold(payload: int) -> None:
        seen.append(payload)
        await release.wait()

    try:
        await mq.start()
        await eventually(lambda: waits_for_tokens(redis))
        await mq.pause("t")
        await mq.produce("t", 1)
        await eventually(lambda: waits_for_tokens(redis))
        await redis.srem("mx-rmq:{q}:paused", "t")  # a resume that wakes nobody
        assert mq._lifecycle.worker is not None
        (fetcher,) = mq._lifecycle.worker._fetchers
        fetcher._heat("t")  # as a poll does, while the pop is under way
        fetcher.alarm.ring()
        await eventually(lambda: seen == [1])
        if lost:
            proxy.lose_reply(script="wake_topic")
        await mq.produce("t", 2)
        await eventually(lambda: redis.llen("mx-rmq:{q}:t:wake"))
        assert not await waits_for_tokens(redis)
        release.set()
        await eventually(lambda: seen == [1, 2])
        assert proxy.lost_replies == lost
    finally:
        await mq.close()
        await redis.acl_deluser("few")


async def waits_for_tokens(redis: Redis) -> bool:
    """Whether the fetcher does; the scheduler always waits for its own."""
    return bool((await redis.info("clients"))["blocked_clients"] == 2)


async def test_entries_that_are_only_hints_are_passed_over_by_the_thousand(
    make_queue: MakeQueue, redis: Redis
) -> None:
    """Cancelled in mid-list they stay there; the message behind them runs all the same."""
    mq = make_queue(poll=60)
    seen: list[int] = []

    @mq.handler("t")
    async def on_t(payload: int) -> None:
        seen.append(payload)

    await mq.produce("t", 1)
    await redis.lpush("mx-rmq:{q}:t:pending", *(f"gone{n}" for n in range(3500)))
    await mq.produce("t", 2)
    await mq.start()
    await eventually(lambda: seen == [1, 2])


@pytest.mark.usefixtures("watchful")
async def test_a_poisoned_message_under_a_lease_is_reported(
    make_queue: MakeQueue, redis: Redis, caplog: pytest.LogCaptureFixture
) -> None:
    mq = make_queue(lease=0.2)
    ran = asyncio.Event()

    @mq.handler("t", retry=Retry(1))
    async def on_t(payload: int) -> None:
        ran.set()

    await mq.open()
    await mq.pause("t")
    await mq.produce("t", 1, message_id="A1", ttl=0.05)
    await mq.produce("t", 1, message_id="A2", ttl=0.05)
    await redis.hdel("mx-rmq:{q}:payload", "A1:queue")
    await mq.start()
    await dead(mq, "A2")
    (record,) = events(caplog, "message.poisoned")
    assert record.id == "A1"
    assert not ran.is_set()
