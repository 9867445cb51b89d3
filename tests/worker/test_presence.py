"""Messages of a worker whose connection is gone run elsewhere in seconds, whatever their lease."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import tempfile
from contextlib import asynccontextmanager, suppress
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest
from redis.asyncio import Redis

from mx_rmq import Context, RedisMessageQueue
from mx_rmq.config import Config
from mx_rmq.errors import MxRmqError, ServerUnavailable, StoreError
from mx_rmq.storage.connection import Connection
from mx_rmq.storage.contract import Delivery
from mx_rmq.storage.embedded import EmbeddedServer
from mx_rmq.storage.queries import ClientIdentity, Queries
from mx_rmq.storage.store import Store
from mx_rmq.worker.holdings import Holdings, Job
from mx_rmq.worker.presence import Presence
from tests.harness import command, server_binaries
from tests.proxy import Proxy
from tests.words import ONE_SERVER, PREFIX, drained, events, eventually, in_state, new, shard_at, store_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from mx_rmq.storage.commands import Commands
    from tests.words import MakeQueue

LEASE = 30.0
SOON = 3.0
"""Within this many seconds messages must run elsewhere."""
LONG = 2.0
"""Longer than the grace and a look take: whatever is recovered without a lease has been by then."""

APP = """
import asyncio, sys
from mx_rmq import RedisMessageQueue, run

mq = RedisMessageQueue(sys.argv[1], name="q", server_check="off", lease=30, stop_grace=0, concurrency=2)

@mq.handler("t")
async def on_t(payload: int) -> None:
    print("running", payload, flush=True)
    await asyncio.Event().wait()

run(mq)
"""


# -- with processes


@asynccontextmanager
async def busy_worker(mq: RedisMessageQueue, url: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """A process that runs two messages for ever."""
    for n in range(2):
        await mq.produce("t", n, message_id=f"A{n}")
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", APP, url, stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    try:
        for _ in range(2):
            async with asyncio.timeout(20):
                assert (await process.stdout.readline()).startswith(b"running")
        await watching(mq, 1)
        yield process
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        await process.communicate()


def listen(mq: RedisMessageQueue) -> list[int]:
    seen: list[int] = []

    @mq.handler("t")
    async def on_t(payload: int) -> None:
        seen.append(payload)

    return seen


async def watching(mq: RedisMessageQueue, count: int) -> None:
    """Wait until so many workers are registered with their connection."""

    async def look() -> bool:
        return sum(worker.connection > 0 for worker in await mq.workers()) == count

    await eventually(look)


@pytest.mark.parametrize("peer", ["started before", "started after"])
async def test_messages_of_a_killed_process_run_elsewhere_long_before_their_lease_ends(
    make_queue: MakeQueue, server: EmbeddedServer, peer: str
) -> None:
    mq, outside = make_queue(lease=LEASE), make_queue()
    seen = listen(mq)
    history: set[tuple[str, str]] = set()

    @mq.middleware
    async def remember(call_next: Any, payload: Any, ctx: Context) -> Any:
        message = (await outside.find(ctx.message_id)).message
        assert message is not None
        history.update((attempt.worker, attempt.error) for attempt in message.history)
        return await call_next(payload, ctx)

    async with busy_worker(outside, server.url) as process:
        if peer == "started before":
            await mq.start()
            await watching(outside, 2)
        killed = (await outside.find("A0")).holder
        process.kill()
        await process.wait()
        if peer == "started after":
            await mq.start()
        await eventually(lambda: sorted(seen) == [0, 1], within=SOON)
    await drained(outside)
    assert killed not in {worker.name for worker in await outside.workers()}
    assert history == {(killed, "the worker vanished: its connection was gone")}
    (noted,) = await outside.vanished()
    assert (noted.name, noted.messages, "A0" in noted.ids) == (killed, 2, True)


@ONE_SERVER
async def test_a_process_that_stands_still_keeps_its_messages_while_its_lease_lasts(
    make_queue: MakeQueue, server: EmbeddedServer
) -> None:
    mq, outside = make_queue(lease=LEASE), make_queue()
    seen = listen(mq)
    async with busy_worker(outside, server.url) as process:
        await mq.start()
        await watching(outside, 2)
        os.kill(process.pid, signal.SIGSTOP)
        await asyncio.sleep(LONG)
        assert seen == []
        assert (await outside.counts()).processing == 2


@ONE_SERVER
async def test_a_half_open_connection_leaves_it_to_the_lease(
    make_queue: MakeQueue, server: EmbeddedServer
) -> None:
    """The host lost its power: nothing tells the server that nobody is there."""
    mq, outside = make_queue(lease=LEASE), make_queue()
    seen = listen(mq)
    with Proxy(server) as proxy:
        async with busy_worker(outside, proxy.url) as process:
            await mq.start()
            await watching(outside, 2)
            proxy.freeze()
            await asyncio.sleep(1)  # something is on its way in each connection, so the proxy sees no end
            process.kill()
            await process.wait()
            await asyncio.sleep(LONG)
            assert seen == []
            assert (await outside.counts()).processing == 2
            proxy.thaw()  # the server hears that it is gone
            await eventually(lambda: len(seen) == 2, within=SOON)


async def test_after_a_restart_of_the_server_old_registrations_mean_nothing() -> None:
    """Client ids start again with 1, and everybody is reconnecting."""
    binary = next(iter(server_binaries().values()))
    options: dict[str, Any] = {"name": "q", "server_check": "off", "stop_grace": 0.0, "lease": LEASE}
    with (
        tempfile.TemporaryDirectory(prefix="mx-", dir="/tmp") as home,
        EmbeddedServer.open(Path(home), binary=binary) as first,
    ):
        async with RedisMessageQueue(first.url, **options) as mq:
            seen = listen(mq)
            async with busy_worker(mq, first.url) as process:
                await mq.start()
                await watching(mq, 2)
                os.kill(process.pid, signal.SIGSTOP)
                os.kill(first.pid, signal.SIGKILL)
                await asyncio.sleep(0.2)
                with EmbeddedServer.open(Path(home), binary=binary):
                    await eventually(lambda: comes_back(mq))
                    await asyncio.sleep(LONG)
                    assert seen == []
                    assert (await mq.counts()).processing == 2
                    assert len(await mq.workers()) == 2
                    await mq.close()


async def comes_back(mq: RedisMessageQueue) -> bool:
    """Whether two registrations are there, under different runs of the server."""
    return len({worker.server for worker in await mq.workers()}) == 2


@ONE_SERVER
async def test_workers_whose_connections_are_all_cut_come_back_and_keep_their_messages(
    make_queue: MakeQueue, redis: Redis
) -> None:
    started: list[int] = []
    finish = asyncio.Event()
    queues = [make_queue(lease=LEASE) for _ in range(2)]
    for mq in queues:

        @mq.handler("t")
        async def on_t(payload: int) -> None:
            started.append(payload)
            await finish.wait()

        await mq.start()
    await watching(queues[0], 2)
    await queues[0].produce_many("t", range(10))
    await eventually(lambda: len(started) == 10)
    for _ in range(2):
        before = {worker.connection for worker in await queues[0].workers()}
        await command(redis, "CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
        await asyncio.sleep(LONG)
        after = {worker.connection for worker in await queues[0].workers()}
        assert len(after) == 2
        assert not after & before
    finish.set()
    await drained(queues[0])
    assert sorted(started) == list(range(10))


@ONE_SERVER
async def test_a_worker_whose_connection_is_half_open_keeps_what_it_holds(
    make_queue: MakeQueue, server: EmbeddedServer, redis: Redis
) -> None:
    """Its parked claim is still answered, so it begins what it holds without asking."""
    with Proxy(server) as proxy:
        holder = make_queue(proxy.url, lease=LEASE, recovery_grace=0.5, socket_timeout=10)
        other = make_queue(lease=LEASE, recovery_grace=0.5)
        begun: list[str] = []

        @holder.handler("t", batch=2, linger=3)
        async def linger(payloads: list[int]) -> None:
            begun.append("holder")

        @other.handler("t")
        async def begin(payload: int) -> None:
            begun.append("other")

        for mq in (holder, other):

            @mq.handler("u")
            async def on_u(payload: int) -> None:
                pass

        async def is_known_by_both() -> bool:
            said = await command(redis, "HGETALL", PREFIX + "workers_connections")
            return [b"+" in each for each in said.values()] == [True]

        async def has_begun() -> bool:
            await other.produce("u", 0)  # for the parked claim of either
            return "holder" in begun

        await other.open()
        await holder.start()
        await eventually(is_known_by_both)
        (first,) = await other.workers()
        await other.produce("t", 1, message_id="A1")
        await in_state(other, "A1", "held")
        await other.start()
        proxy.conceal_ends()
        await command(redis, "CLIENT", "KILL", "ID", first.connection)
        await eventually(has_begun)
        proxy.cut()
        await drained(other)
        assert begun == ["holder"]
        await holder.close()


# -- step by step


class Watch:
    """The time of an observer, instead of the loop's."""

    def __init__(self) -> None:
        self.now = 100.0

    def time(self) -> float:
        return self.now


class Between:
    """Commands that something happens to before they are sent."""

    def __init__(self, commands: Commands, act: Callable[[tuple[Any, ...]], Awaitable[Any]]) -> None:
        self._commands = commands
        self._act = act

    async def execute_command(self, *args: Any) -> Any:
        answer = await self._act(args)
        return await self._commands.execute_command(*args) if answer is None else answer


class Scene:
    """An observer whose clock we own, and other workers that are there or not."""

    def __init__(self, url: str, redis: Redis, **options: Any) -> None:
        self.redis = redis
        self.store = store_of(redis)
        self.link = Connection(f"unix://{redis.connection_pool.connection_kwargs['path']}", timeout=5)
        self.reader = Queries(Store(self.link, self.store.keys))
        self.watch = Watch()
        self.shard = shard_at(url, lease=LEASE, **options)
        self.presence = self.observer(**options)

    def observer(self, **options: Any) -> Presence:
        config = Config(name="q", lease=LEASE, **options)
        self.holdings = Holdings(self.shard)
        presence: Any = Presence(self.holdings, config, "observer", {"topics": []})
        presence._loop = self.watch
        return cast("Presence", presence)

    def between(self, act: Callable[[tuple[Any, ...]], Awaitable[Any]]) -> None:
        """Let something happen before each of the observer's plain commands."""
        self.presence._queries._commands = Between(self.shard.connection, act)

    async def step(self, seconds: float = 0.0, *, look: bool = True) -> bool:
        """Let some time pass, then let the observer look."""
        self.watch.now += seconds
        return await self.presence.step(look=look)

    async def register(
        self, worker: str, *, server: str = "", there: bool = False, parked: bool | None = None
    ) -> None:
        """Register a worker by a connection that is there, or not any more; and by a second one, if told."""
        async with Redis(unix_socket_path=self.redis.connection_pool.connection_kwargs["path"]) as client:
            gone = await command(client, "CLIENT", "ID")
        here = await command(self.redis, "CLIENT", "ID")
        run = server or (await command(self.redis, "INFO", "server"))["run_id"]
        second = 0 if parked is None else here if parked else gone
        client_id = ClientIdentity(here if there else gone, run, second)
        await self.store.register_worker(worker, b"{}", connection=client_id.text, silence=60)

    async def claim(self, holder: str, *ids: str, topic: str = "t") -> None:
        """Let a worker hold messages for long."""
        await self.store.produce(topic, [new(id_) for id_ in ids])
        claim = await self.store.claim(topic, 1000, lease=600, holder=holder)
        assert len(claim.deliveries) == len(ids)

    async def ended(self) -> list[str]:
        """Whose lease is over."""
        overdue = await self.store.take_over(1000, lease=600, holder="monitor")
        return sorted(takeover.delivery.id for takeover in overdue.taken)

    async def close(self) -> None:
        await self.shard.close()
        await self.link.close()

    async def registered(self) -> set[str]:
        return set(await self.reader.connections())


@pytest.fixture
async def scene(server: EmbeddedServer, redis: Redis) -> AsyncIterator[Scene]:
    scene = Scene(server.url, redis)
    yield scene
    await scene.close()


async def test_the_leases_of_who_is_gone_for_the_grace_end(scene: Scene) -> None:
    await scene.register("gone")
    await scene.register("here", there=True)
    await scene.claim("gone", "A1", "A2")
    await scene.claim("gone", "B1", topic="u")
    await scene.claim("gone.monitor", "A3")
    await scene.claim("here", "A4")
    await scene.claim("unknown", "A5")
    assert not await scene.step()
    assert not await scene.step(0.99)
    assert await scene.ended() == []
    assert await scene.registered() == {"gone", "here", "observer"}
    assert await scene.step(0.02)
    assert await scene.ended() == ["A1", "A2", "A3", "B1"]
    assert await scene.registered() == {"here", "observer"}
    assert scene.presence.vanished("gone")
    assert scene.presence.vanished("gone.monitor")
    assert not scene.presence.vanished("here")


async def test_many_messages_in_hand_are_no_obstacle(scene: Scene) -> None:
    await scene.register("gone")
    for start in range(0, 3000, 1000):
        await scene.claim("gone", *(f"m{start + n}" for n in range(1000)))
    await scene.step()
    await scene.step(1)
    assert sum([len(await scene.ended()) for _ in range(3)]) == 3000


async def test_who_comes_back_in_time_keeps_its_messages(scene: Scene) -> None:
    await scene.register("back")
    await scene.claim("back", "A1")
    await scene.step()
    await scene.step(0.9)
    await scene.register("back", there=True)
    assert not await scene.step(0.2)
    assert not await scene.step(10)
    assert await scene.ended() == []


async def test_who_is_cut_again_and_again_has_the_whole_grace_each_time(scene: Scene) -> None:
    await scene.claim("back", "A1")
    for _ in range(5):
        await scene.register("back")
        assert not await scene.step(0.9)
    assert await scene.ended() == []


async def test_an_observer_that_was_cut_itself_judges_nobody_from_before(scene: Scene) -> None:
    await scene.register("gone")
    await scene.claim("gone", "A1")
    await scene.step()
    await command(scene.redis, "CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
    await eventually(lambda: scene.shard.connection.number == 0)
    assert not await scene.step(10)
    assert not await scene.step(0.9)
    assert await scene.step(0.2)
    assert await scene.ended() == ["A1"]


async def test_an_observer_that_was_busy_while_somebody_came_back_does_not_judge(scene: Scene) -> None:
    """Its loop stood still between two questions; only the first answer is old."""
    await scene.register("back")
    await scene.claim("back", "A1")
    await scene.step()

    async def busy(args: tuple[Any, ...]) -> None:
        if args[:2] == ("CLIENT", "LIST"):
            await scene.register("back", there=True)
            scene.watch.now += 60

    scene.between(busy)
    assert not await scene.step(0.5)
    assert not await scene.step()
    assert await scene.ended() == []


async def test_who_comes_back_while_it_is_being_judged_keeps_its_messages(scene: Scene) -> None:
    await scene.register("back")
    await scene.claim("back", "A1")
    await scene.step()

    async def come_back(args: tuple[Any, ...]) -> None:
        if args[0] == "HSCAN":
            await scene.register("back", there=True)

    scene.between(come_back)
    await scene.step(2)
    assert await scene.ended() == []
    assert await scene.registered() == {"back", "observer"}


async def test_a_registration_of_another_run_of_the_server_says_nothing(scene: Scene) -> None:
    await scene.register("old", server="a" * 40)
    await scene.claim("old", "A1")
    assert not await scene.step()
    assert not await scene.step(60)
    assert await scene.ended() == []
    assert "old" in await scene.registered()


@pytest.mark.parametrize(
    "connection",
    [" -1", " 0", " 1e99", f" {'9' * 30}", ' "7"', " ", "", "\xff 7", " 7 8", " 7+", " 7+0", " 7+8+9"],
)
async def test_nonsense_in_the_registry_is_nobodys_end(scene: Scene, connection: str) -> None:
    run = (await command(scene.redis, "INFO", "server"))["run_id"]
    await scene.store.register_worker("odd", b"{}", connection=f"{run}{connection}".encode(), silence=60)
    await scene.register("gone")
    await scene.claim("gone", "A1")
    await scene.claim("odd", "A2")
    await scene.step()
    await scene.step(2)
    assert await scene.ended() == ["A1"]


async def test_a_topic_that_cannot_be_read_does_not_stop_the_others(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    await scene.register("gone")
    for topic in ("a", "b", "c"):
        await scene.claim("gone", f"{topic}1", topic=topic)
    await scene.redis.set("mx-rmq:{q}:b:processing", "wrong")
    await scene.redis.hset("mx-rmq:{q}:c:processing", b"\xff", b"\xff\xfe")
    await scene.step()
    await scene.step(2)
    assert await scene.ended() == ["a1", "c1"]
    assert [record.topic for record in events(caplog, "topic.failed")] == ["b"]


async def test_the_next_look_comes_when_the_grace_is_over(scene: Scene) -> None:
    await scene.step()
    assert scene.presence.pause(0.5) == 0.5
    await scene.register("gone")
    await scene.step()
    assert scene.presence.pause(0.5) == 0.5
    await scene.step(0.7)
    assert scene.presence.pause(0.5) == pytest.approx(0.3)


async def test_a_worker_that_was_forgotten_registers_again(scene: Scene) -> None:
    await scene.step()
    await scene.store.register_worker("observer", b"", silence=60)
    await scene.step(0.5)
    assert await scene.registered() == {"observer"}


async def test_a_worker_is_remembered_for_as_long_as_its_lease_may_last(
    server: EmbeddedServer, redis: Redis
) -> None:
    """So that one that starts a minute after the other's end still sees that it is gone."""
    scene = Scene(server.url, redis)
    long = Presence(Holdings(scene.shard), Config(name="q", lease=90.0), "observer", {})
    await scene.register("gone")
    seconds, _ = await redis.time()
    await redis.zadd("mx-rmq:{q}:workers_seen", {"gone": (seconds - 90) * 1000})
    await long.step()
    assert await scene.registered() == {"gone", "observer"}
    await scene.close()


# -- in turns with others


@pytest.mark.parametrize(("workers", "every"), [(1, 5.0), (350, 5.0), (700, 10.0), (10_000, 15.0)])
async def test_of_very_many_workers_each_registers_more_seldom(
    scene: Scene, workers: int, every: float
) -> None:
    """But twice at least in the time after which it would be forgotten."""
    await scene.step()
    scene.holdings.workers = workers
    scene.watch.now += every - 0.01
    assert not scene.presence.is_due()
    scene.watch.now += 0.02
    assert scene.presence.is_due()


async def test_who_was_missed_is_looked_at_again_without_a_turn(scene: Scene) -> None:
    """Another worker may have every turn from now on."""
    await scene.register("gone")
    await scene.claim("gone", "A1")
    await scene.step()
    assert not await scene.step(0.9, look=False)
    assert await scene.step(0.2, look=False)
    assert await scene.ended() == ["A1"]


async def test_without_a_turn_no_other_worker_is_looked_at(scene: Scene) -> None:
    await scene.step()
    await scene.register("gone")
    asked: list[tuple[Any, ...]] = []

    async def note(args: tuple[Any, ...]) -> None:
        asked.append(args[:2])

    scene.between(note)
    for _ in range(5):
        assert not await scene.step(1.0, look=False)
    assert asked == []


async def test_an_observer_that_stood_still_looks_anew_before_it_judges(scene: Scene) -> None:
    await scene.register("back")
    await scene.claim("back", "A1")
    await scene.step()
    await scene.register("back", there=True)
    assert not await scene.step(60, look=False)
    assert await scene.ended() == []
    assert "back" in await scene.registered()


async def test_a_worker_that_holds_messages_sees_that_it_was_forgotten(scene: Scene) -> None:
    await scene.step()
    await scene.store.register_worker("observer", b"", silence=60)
    handler: Any = None
    held = Job(Delivery("A1", "t", "", b"", inf), scene.holdings, handler, asyncio.get_running_loop(), 0, 0)
    scene.holdings.jobs.add(held)
    scene.presence._load = scene.holdings.load()
    await scene.step(0.5, look=False)
    assert await scene.registered() == {"observer"}
    assert scene.holdings.present_until == scene.watch.now + 1


async def test_a_worker_is_there_as_long_as_one_of_its_connections_is(scene: Scene) -> None:
    await scene.register("gone", parked=False)
    await scene.register("half-open", parked=True)
    await scene.register("here", there=True, parked=False)
    for holder in ("gone", "half-open", "here"):
        await scene.claim(holder, f"of-{holder}")
    await scene.step()
    assert await scene.presence.seen({"gone", "half-open", "here"}) == {"half-open", "here"}
    for _ in range(4):
        await scene.step(0.6)
    assert await scene.ended() == ["of-gone"]
    assert await scene.registered() == {"half-open", "here", "observer"}


async def test_who_has_registered_anew_is_not_removed(scene: Scene) -> None:
    await scene.register("back")
    before = (await scene.reader.connections(["back"]))["back"]
    await scene.register("back", there=True)
    await scene.store.register_worker("back", b"", connection=before, silence=60)
    assert await scene.registered() == {"back"}


async def test_the_reply_to_a_claim_shows_that_others_see_this_worker(scene: Scene) -> None:
    """An idle worker does not look at itself; its first message must not wait for that."""
    await scene.step()
    now = asyncio.get_running_loop().time()
    scene.holdings.present_until = now - 100
    scene.holdings.set_clock(5000 + now)
    assert scene.holdings.present_until == pytest.approx(now + 1, abs=0.5)


async def test_the_reply_to_a_parked_claim_shows_it_once_that_connection_is_registered(
    scene: Scene,
) -> None:
    """The shard's own connection may be half-open by then, which this process does not know."""
    await scene.step()
    now = asyncio.get_running_loop().time()
    own = scene.presence._own
    assert own is not None
    scene.holdings.present_until = now - 100
    scene.holdings.set_clock(5000 + now, parked=True)
    scene.holdings.parked = ClientIdentity(await command(scene.redis, "CLIENT", "ID"), own.server)
    scene.holdings.set_clock(5000 + now, parked=True)
    assert scene.holdings.present_until == now - 100
    await scene.step(0.5, look=False)
    assert (await scene.reader.connections())["observer"] == own._replace(
        parked=scene.holdings.parked.id
    ).text
    scene.holdings.present_until = now - 100
    scene.holdings.set_clock(5000 + now, parked=True)
    assert scene.holdings.present_until == pytest.approx(now + 1, abs=0.5)


async def test_a_parked_connection_to_another_server_is_not_registered(scene: Scene) -> None:
    """After a failover its client id would be that of a stranger."""
    await scene.step()
    scene.holdings.parked = ClientIdentity(4711, "another")
    await scene.step(0.5)
    assert scene.presence._own is not None
    assert (await scene.reader.connections())["observer"] == scene.presence._own.text


async def test_a_reply_that_was_read_late_shows_no_more_than_when_it_was_written(scene: Scene) -> None:
    """This process may have stood still after the server wrote it."""
    await scene.step()
    now = asyncio.get_running_loop().time()
    scene.holdings.set_clock(5000 + now)
    scene.holdings.present_until = now - 100
    scene.holdings.set_clock(5000 + now - 30)
    assert scene.holdings.present_until == pytest.approx(now - 29, abs=0.5)


async def test_a_reply_on_another_connection_than_the_registered_one_shows_nothing(scene: Scene) -> None:
    await scene.step()
    scene.holdings.present_until = -100.0
    await command(scene.redis, "CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
    await eventually(lambda: scene.shard.connection.number == 0)
    await scene.shard.store.commands.execute_command("TIME")
    scene.holdings.set_clock(5000.0)
    assert scene.holdings.present_until == -100.0


# -- where it cannot work


async def test_none_turns_it_off(server: EmbeddedServer, redis: Redis) -> None:
    scene = Scene(server.url, redis, recovery_grace=None)
    await scene.register("gone")
    await scene.claim("gone", "A1")
    for seconds in (0, 60, 60):
        assert not await scene.step(seconds)
    assert await scene.ended() == []
    assert [(worker.name, worker.connection) for worker in await scene.reader.workers()][-1] == (
        "observer",
        0,
    )
    await scene.close()


async def test_behind_a_proxy_that_shares_connections_it_is_off(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    """Each command may go through another connection, which says nothing of who sent it."""
    await scene.register("gone")
    await scene.claim("gone", "A1")

    async def pooled(args: tuple[Any, ...]) -> Any:
        if args != ("CLIENT", "ID"):
            return None
        path = scene.redis.connection_pool.connection_kwargs["path"]
        async with Redis(unix_socket_path=path) as other:
            return await command(other, *args)

    scene.between(pooled)
    for _ in range(3):
        assert not await scene.step(2)
        workers = {worker.name: worker.connection for worker in await scene.reader.workers()}
        assert workers["observer"] == 0  # others must not judge it by a connection that is not its own
    assert await scene.ended() == []
    assert len(events(caplog, "recovery.by_lease")) == 1


@pytest.mark.parametrize("missing", ["-client|list", "-client|id", "-info", "-hgetall"])
async def test_without_a_right_it_is_off_and_the_start_up_check_says_so(
    make_queue: MakeQueue,
    server: EmbeddedServer,
    redis: Redis,
    caplog: pytest.LogCaptureFixture,
    missing: str,
) -> None:
    await redis.config_set("appendonly", "yes")
    rights = f"on >secret ~mx-rmq:* +@all {missing}"
    await command(redis, "ACL", "SETUSER", "limited", "reset", *rights.split())
    try:
        url = server.url.replace("//", "//limited:secret@")
        mq = make_queue(url, lease=1.0, server_check="refuse")
        seen = listen(mq)
        await mq.open()
        (said,) = events(caplog, "recovery.by_lease")
        assert "messages of a vanished worker are recovered after their lease of 1 s: NOPERM" in said.error
        await mq.start()
        await eventually(lambda: len(events(caplog, "recovery.by_lease")) == 2)

        scene = Scene(server.url, redis)
        await scene.register("gone")
        await mq.produce("t", 1)
        await eventually(lambda: len(seen) == 1)
        await command(redis, "CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
        await mq.produce("t", 2)
        await eventually(lambda: len(seen) == 2)
        await asyncio.sleep(0.6)  # longer than a step
        assert len(events(caplog, "recovery.by_lease")) == 2
        assert events(caplog, "service.failed") == []
        assert "gone" in await scene.registered()
        await scene.close()
        await mq.close()
    finally:
        await command(redis, "ACL", "DELUSER", "limited")
        await redis.config_set("appendonly", "no")


async def test_a_right_that_is_taken_away_while_working_leaves_it_to_the_leases(
    server: EmbeddedServer, redis: Redis, caplog: pytest.LogCaptureFixture
) -> None:
    await command(redis, "ACL", "SETUSER", "limited", "reset", "on", ">secret", "~*", "+@all")
    scene = Scene(server.url.replace("//", "//limited:secret@"), redis)
    try:
        await scene.step()
        assert [worker.connection > 0 for worker in await scene.reader.workers()] == [True]
        await command(redis, "ACL", "SETUSER", "limited", "-client|list")
        await scene.register("gone")
        await scene.claim("gone", "A1")
        for _ in range(3):
            assert not await scene.step(2)
        assert await scene.ended() == []
        workers = {worker.name: worker.connection for worker in await scene.reader.workers()}
        assert workers["observer"] == 0
        assert len(events(caplog, "recovery.by_lease")) == 1
    finally:
        await scene.close()
        await command(redis, "ACL", "DELUSER", "limited")


async def test_a_right_that_is_given_back_is_used_after_a_minute(
    server: EmbeddedServer, redis: Redis, caplog: pytest.LogCaptureFixture
) -> None:
    await command(redis, "ACL", "SETUSER", "limited", "reset", "on", ">secret", "~*", "+@all")
    scene = Scene(server.url.replace("//", "//limited:secret@"), redis)
    try:
        await scene.step()
        await scene.register("here", there=True)
        for n in (1, 2):
            await command(redis, "ACL", "SETUSER", "limited", "-client|list")
            await scene.step(1)
            await scene.step(61)
            assert len(events(caplog, "recovery.by_lease")) == n
            await command(redis, "ACL", "SETUSER", "limited", "+client|list")
            await scene.register("gone")
            await scene.claim("gone", f"A{n}")
            await scene.step(55)
            assert not await scene.step(2)
            assert await scene.ended() == []
            await scene.step(5)
            assert await scene.step(2)
            assert await scene.ended() == [f"A{n}"]
            assert await scene.registered() == {"here", "observer"}
    finally:
        await scene.close()
        await command(redis, "ACL", "DELUSER", "limited")


async def test_a_registry_of_the_wrong_type_is_named_and_used_again_when_it_is_mended(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    await scene.step()
    await scene.redis.delete(PREFIX + "workers_connections")
    await scene.redis.set(PREFIX + "workers_connections", "something else")
    for _ in range(3):
        assert not await scene.step(1)
    (said,) = events(caplog, "recovery.by_lease")
    assert f"{PREFIX}workers_connections is not a hash" in said.error
    await scene.redis.delete(PREFIX + "workers_connections")
    await scene.register("gone")
    await scene.claim("gone", "A1")
    for _ in range(3):
        await scene.step(1.1)
    assert await scene.ended() == ["A1"]
    assert await scene.registered() == {"observer"}


async def test_topics_that_cannot_be_listed_leave_the_workers_own(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    scene.presence._facts["topics"] = ["t"]
    await scene.register("gone")
    await scene.claim("gone", "A1")
    await scene.redis.delete(PREFIX + "topics")
    await scene.redis.set(PREFIX + "topics", "something else")
    await scene.step()
    assert await scene.step(1)
    assert await scene.ended() == ["A1"]
    (said,) = events(caplog, "recovery.by_lease")
    assert f"{PREFIX}topics is not a set" in said.error
    await scene.register("another")
    await scene.claim("another", "A2")
    await scene.step()
    assert await scene.step(1)
    assert await scene.ended() == ["A2"]


@pytest.mark.parametrize("part", ["workers", "workers_seen"])
async def test_a_vanished_worker_that_cannot_be_removed_is_recovered_once(
    scene: Scene, caplog: pytest.LogCaptureFixture, part: str
) -> None:
    await scene.step()
    for name in ("gone", "away"):
        await scene.register(name)
        await scene.claim(name, name)
    await scene.redis.delete(PREFIX + part)
    await scene.redis.set(PREFIX + part, "something else")
    await scene.step()
    assert await scene.step(1)
    assert await scene.ended() == ["away", "gone"]
    for _ in range(5):
        assert not await scene.step(1)
        assert scene.presence.pause(10) == 0.5
    assert sorted(record.worker for record in events(caplog, "worker.vanished")) == ["away", "gone"]
    assert not events(caplog, "recovery.by_lease")
    (told,) = events(caplog, "server.unavailable")
    assert f"{PREFIX}{part} is a string" in told.error


@pytest.mark.parametrize("error", [ServerUnavailable("no answer"), StoreError("refused")])
async def test_a_registration_without_a_reply_may_have_been_seen(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, error: MxRmqError
) -> None:
    async def fails(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr(scene.shard.store, "register_worker", fails)
    with suppress(ServerUnavailable):
        await scene.step()
    seen_until = scene.watch.now + 1.0
    assert scene.holdings.present_until == (inf if isinstance(error, StoreError) else seen_until)


@ONE_SERVER
async def test_a_worker_that_vanished_is_recovered_by_lease_where_nobody_can_see_it(
    make_queue: MakeQueue, redis: Redis
) -> None:
    mq = make_queue(lease=1.0, recovery_grace=None)
    seen = listen(mq)
    await mq.open()
    scene = Scene(mq.config.url, redis)
    await scene.register("gone")
    await mq.produce("t", 7, message_id="A1")
    claim = await scene.store.claim("t", 1, lease=LONG + 1, holder="gone")
    assert len(claim.deliveries) == 1
    await mq.start()
    await asyncio.sleep(LONG)
    assert seen == []
    assert (await in_state(mq, "A1", "running")).holder == "gone"
    await eventually(lambda: seen == [7])
    await scene.close()
