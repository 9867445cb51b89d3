"""Health: a process says whether it and its worker are well, and what is wrong if not."""

from __future__ import annotations

import asyncio
import json
import threading
from time import monotonic
from typing import TYPE_CHECKING, Any

import pytest

from mx_rmq import Health, RedisMessageQueue
from mx_rmq.worker.pulse import Pulse
from tests.observing.test_metrics import get
from tests.words import ONE_SERVER, PREFIX, drained, eventually, steal

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from mx_rmq import AsgiApp, WorkerFacts
    from mx_rmq.storage.embedded import EmbeddedServer
    from tests.proxy import Proxy
    from tests.words import MakeQueue

QUICK: dict[str, Any] = {"lease": 1.0, "poll": 0.1, "socket_timeout": 0.5}
"""A service that has done nothing for 1.5 s is sick; the scheduler for 15.5 s."""


def serve(mq: RedisMessageQueue) -> None:
    @mq.handler("t")
    async def handle(payload: int) -> None: ...


async def answer(app: AsgiApp, path: str) -> tuple[int, Any]:
    status, text = await get(app, path)
    return status, json.loads(text)


# -- well


@pytest.mark.one_shard
async def test_a_worker_that_consumes_is_well(make_queue: MakeQueue) -> None:
    mq = make_queue()
    serve(mq)
    await mq.start()
    await mq.produce("t", 1)
    await drained(mq)
    health = await mq.health()
    assert health.ok
    assert health.problems == []
    assert health.worker.startswith(mq.config.worker_name)
    (shard,) = health.shards
    assert shard.round_trip is not None
    assert 0 < shard.round_trip < 3
    assert shard.last_claim is not None
    assert 0 <= shard.last_claim < 5
    assert shard.looks.keys() == {"fetcher", "scheduler", "monitor"}
    assert max(shard.looks.values()) < 10
    assert shard.refused == {}
    assert health.loop_lag is not None
    assert 0 <= health.loop_lag < 5
    assert (health.running, health.held, health.leases_lost) == (0, 0, 0)


async def test_an_idle_worker_stays_well(make_queue: MakeQueue) -> None:
    """It looks again and again, though there is nothing to do."""
    mq = make_queue(poll=0.05)
    serve(mq)
    await mq.start()
    first = await eventually(lambda: _claimed(mq))
    await eventually(lambda: _later(mq, first))
    assert (await mq.health()).ok


async def _claimed(mq: RedisMessageQueue) -> float:
    age = (await mq.health()).shards[0].last_claim
    return 0.0 if age is None else monotonic() - age


async def _later(mq: RedisMessageQueue, first: float) -> bool:
    return await _claimed(mq) > first + 0.04


async def test_health_prints_for_people_and_as_json(make_queue: MakeQueue) -> None:
    mq = make_queue()
    serve(mq)
    await mq.start()
    await eventually(lambda: _claimed(mq))
    health = await mq.health()
    text = str(health)
    assert text.startswith("health      ok\nqueue       q\nserver ")
    assert "\nlast claim  0." in text
    assert "fetcher 0." in text
    told = json.loads(json.dumps(health.as_dict()))
    assert (told["ok"], told["queue"], told["problems"]) == (True, "q", [])
    assert told["shards"][0]["looks"].keys() == {"fetcher", "scheduler", "monitor"}
    sick = Health("q", problems=["one thing", "another"])
    assert not sick.ok
    assert str(sick).startswith("health  one thing; another\n")


async def test_a_producer_is_well_while_its_server_answers(mq: RedisMessageQueue) -> None:
    health = await mq.health()
    assert (health.ok, health.worker, health.loop_lag) == (True, "", None)


async def test_a_queue_that_is_not_open_says_so(make_queue: MakeQueue) -> None:
    health = await make_queue().health()
    assert health.problems == ["the queue is not open"]
    assert not health.is_open


# -- not well


async def test_a_server_that_is_away_is_a_problem_and_health_never_raises(proxy: Proxy, redis: Redis) -> None:
    async with RedisMessageQueue(proxy.url, name="q", server_check="off", stop_grace=0, **QUICK) as mq:
        serve(mq)
        await mq.start()
        await eventually(lambda: _claimed(mq))
        proxy.away()
        health = await mq.health()
        assert health.shards[0].round_trip is None
        assert health.problems[0].startswith("the server does not answer: ")
        await eventually(lambda: _problem(mq, "the fetcher has failed for "))
        assert (await mq.health()).is_alive, "a restart would not help"
        proxy.back()
        await becomes_well(mq)


async def test_replies_that_do_not_come_are_seen_within_seconds(proxy: Proxy, redis: Redis) -> None:
    """Claims reach the server, their replies are swallowed: a worker that is up and does not consume."""
    async with RedisMessageQueue(proxy.url, name="q", server_check="off", stop_grace=0, **QUICK) as mq:
        serve(mq)
        await mq.start()
        await eventually(lambda: _claimed(mq))
        proxy.swallow_replies()
        began = monotonic()
        health = await mq.health()
        assert monotonic() - began < 4
        assert not health.ok
        await eventually(lambda: _problem(mq, "the fetcher has failed for "))
        proxy.return_replies()
        await becomes_well(mq)


async def _problem(mq: RedisMessageQueue, begins: str) -> bool:
    return any(problem.startswith(begins) for problem in (await mq.health()).problems)


async def becomes_well(mq: RedisMessageQueue) -> None:
    try:
        await eventually(lambda: _well(mq))
    except AssertionError as error:
        raise AssertionError(f"{error}: {(await mq.health()).problems}") from None


async def _well(mq: RedisMessageQueue) -> bool:
    """Whether nothing is wrong but that a busy machine held up the loop, which is told for ten seconds."""
    problems = (await mq.health()).problems
    return all(problem.startswith("the event loop was blocked") for problem in problems)


@pytest.mark.one_shard
async def test_a_fetcher_that_hangs_is_reported_here_by_the_probe_and_to_others(
    make_queue: MakeQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its task waits for something that never comes; leases, timeouts and the registration go on."""
    mq, outside = make_queue(**QUICK), make_queue()
    serve(mq)
    await outside.open()
    await mq.start()
    await eventually(lambda: _claimed(mq))
    app = mq.health_app()
    assert (await answer(app, "/livez"))[0] == 200
    worker = mq._lifecycle.worker
    assert worker is not None
    (fetcher,) = worker._fetchers
    never = asyncio.Event()

    async def hang() -> float:
        await never.wait()
        return 0.0

    monkeypatch.setattr(fetcher, "step", hang)
    await eventually(lambda: _problem(mq, "the fetcher has been stuck for "))
    status, told = await answer(app, "/livez")
    assert (status, told["live"]) == (503, False)
    assert told["shards"][0]["last_claim"] > 1.0
    assert (await answer(app, "/readyz"))[0] == 200, "others may still need what it holds"
    facts = await eventually(lambda: _sick(outside))
    assert facts.problems[0].startswith("the fetcher has been stuck for ")
    assert "the fetcher has been stuck for " in str(await outside.workers())
    never.set()
    monkeypatch.undo()
    fetcher.alarm.ring()
    await becomes_well(mq)


async def _sick(outside: RedisMessageQueue) -> WorkerFacts | None:
    return next((worker for worker in await outside.workers() if worker.problems), None)


async def test_a_topic_whose_claims_are_refused_is_named_here_and_to_others(
    make_queue: MakeQueue, redis: Redis
) -> None:
    mq, outside = make_queue(**QUICK), make_queue()
    serve(mq)

    @mq.handler("broken")
    async def handle(payload: int) -> None: ...

    await outside.open()
    await mq.start()
    await eventually(lambda: _claimed(mq))
    await redis.set(f"{PREFIX}broken:pending", "no list")
    await eventually(lambda: _problem(mq, "the server refuses claims of broken: "))
    assert (await mq.health()).shards[0].refused.keys() == {"broken"}
    facts = await eventually(lambda: _sick(outside))
    assert facts.problems[0].startswith("the server refuses claims of broken: ")
    await redis.delete(f"{PREFIX}broken:pending")
    await becomes_well(mq)


@ONE_SERVER
async def test_a_handler_that_blocks_the_loop_is_reported_to_others_while_it_does(
    make_queue: MakeQueue, server: EmbeddedServer
) -> None:
    """The loop cannot say it, so the thread that keeps the leases does."""
    mq = make_queue(lease=2.0)
    seen: list[WorkerFacts] = []

    def watch() -> None:
        async def look() -> None:
            async with RedisMessageQueue(server.url, name="q", server_check="off") as outside:
                seen.append(await eventually(lambda: _sick(outside)))

        asyncio.run(look())

    @mq.handler("t")
    async def handle(payload: int) -> None:
        thread = threading.Thread(target=watch)
        thread.start()
        thread.join(20)

    await mq.produce("t", 1)
    await mq.start()
    await eventually(lambda: seen, within=30)
    (facts,) = seen
    assert facts.problems[0].startswith("the event loop was blocked for ")
    assert facts.loop_lag >= 1.0
    health = await mq.health()
    assert health.loop_lag is not None
    assert health.loop_lag > 0.6, "the past seconds count"
    assert any(problem.startswith("the event loop was blocked for ") for problem in health.problems)


async def test_lost_leases_are_a_problem_for_a_minute(make_queue: MakeQueue, redis: Redis) -> None:
    mq = make_queue()
    began, go = asyncio.Event(), asyncio.Event()

    @mq.handler("t")
    async def handle(payload: int) -> None:
        began.set()
        await go.wait()

    await mq.start()
    await mq.produce("t", 1, message_id="A1")
    async with asyncio.timeout(10):
        await began.wait()
    assert (await mq.health()).running == 1
    await steal(redis, "A1")
    go.set()
    await eventually(lambda: _problem(mq, "1 leases were lost in the last minute"))
    worker = mq._lifecycle.worker
    assert worker is not None
    (holdings,) = worker._holdings
    holdings.losses[0] -= 61
    assert (await mq.health()).ok


def test_the_lag_of_a_loop_is_forgotten_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr("mx_rmq.worker.pulse.monotonic", lambda: now)
    loop = asyncio.new_event_loop()
    pulse = Pulse([], loop)
    loop.close()
    pulse.beat(0.5)
    assert pulse.lag() == 0.5
    for _ in range(9):
        now += 1.0
        pulse.beat(0.01)
        assert pulse.lag() == 0.5
    now += 2.0
    assert pulse.lag() == 2.0, "the beat that is missing now"
    pulse.beat()
    assert pulse.lag() == 0.5
    now += 11.0
    pulse.beat()
    assert pulse.lag() == 0.0


# -- the probes


async def test_a_process_is_ready_once_it_is_open_and_its_worker_has_started(make_queue: MakeQueue) -> None:
    mq = make_queue()
    serve(mq)
    app = mq.health_app()
    assert await answer(app, "/livez") == (200, {"live": True, **(await mq.health()).as_dict()})
    assert (await answer(app, "/readyz"))[0] == 503
    await mq.open()
    assert (await answer(app, "/readyz"))[0] == 503
    assert (await answer(mq.health_app(worker=False), "/readyz"))[0] == 200
    await mq.start()
    status, told = await answer(app, "/readyz")
    assert (status, told["ready"], told["ok"]) == (200, True, True)
    await mq.stop()
    assert (await answer(app, "/readyz"))[0] == 503
    assert (await get(app, "/"))[0] == 404
    assert (await get(app, "/probes/readyz/"))[0] == 503


async def test_without_its_server_a_process_is_alive_but_not_ready(proxy: Proxy, redis: Redis) -> None:
    """Kubernetes must not restart every worker because Redis is away."""
    async with RedisMessageQueue(proxy.url, name="q", server_check="off", stop_grace=0, **QUICK) as mq:
        serve(mq)
        app = mq.health_app()
        await mq.start()
        await eventually(lambda: _claimed(mq))
        proxy.away()
        await eventually(lambda: _problem(mq, "the fetcher has failed for "))
        assert (await answer(app, "/livez"))[0] == 200
        status, told = await answer(app, "/readyz")
        assert (status, told["ready"]) == (503, False)
        proxy.back()
        await becomes_well(mq)


async def test_health_asks_only_for_rights_that_workers_have(redis: Redis, server: EmbeddedServer) -> None:
    """TIME is among the documented rights, PING is not."""
    await redis.execute_command(
        "ACL", "SETUSER", "little", "on", ">pw", "~*", "-@all", "+time", "+eval", "+evalsha"
    )
    url = server.url.replace("unix://", "unix://little:pw@")
    try:
        async with RedisMessageQueue(url, name="q", server_check="off", patience=0.0) as mq:
            assert (await mq.health()).problems == []
    finally:
        await redis.execute_command("ACL", "DELUSER", "little")


# -- what workers() tells


async def test_workers_tell_their_host_version_lag_and_last_claim(make_queue: MakeQueue) -> None:
    import socket

    import mx_rmq

    mq = make_queue(poll=0.05)
    serve(mq)
    await mq.start()
    await mq.produce("t", 1)

    async def registered() -> WorkerFacts | None:
        return next((worker for worker in await mq.workers() if worker.claimed_at), None)

    facts = await eventually(registered)
    assert (facts.host, facts.version) == (socket.gethostname()[:100], mx_rmq.__version__)
    workers = await mq.workers()
    assert facts.claimed_at is not None
    assert abs(workers.read_at - facts.claimed_at) < 10
    assert 0 <= facts.loop_lag < 5
    assert facts.problems == ()
    assert facts.in_flight == facts.running + facts.held
    told = facts.as_dict()
    assert (told["in_flight"], told["version"], told["problems"]) == (0, mx_rmq.__version__, [])
    columns = str(workers).splitlines()[0].split()
    assert {"claimed", "lag", "seen"} <= set(columns)
    assert f"version   {mx_rmq.__version__}" in str(facts)


async def test_a_worker_of_an_older_version_is_shown_without_what_it_does_not_say(
    mq: RedisMessageQueue, redis: Redis
) -> None:
    from tests.words import store_of

    record = b'{"topics": ["t"], "concurrency": 8, "pid": 7, "load": {"t": [1, 2]}, "started_at": 1.0}'
    await store_of(redis).register_worker("old.7.x", record, silence=60)
    (worker,) = await mq.workers()
    assert (worker.in_flight, worker.claimed_at, worker.version, worker.problems) == (3, None, "", ())
    assert str(await mq.workers()).splitlines()[1].split()[-3:] == ["-", "-", "t"]
