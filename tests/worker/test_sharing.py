"""``mq.tail()``: what happens in all workers, while it happens."""

from __future__ import annotations

import asyncio
import logging
from contextlib import aclosing, asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

from mx_rmq import ConfigError, RedisMessageQueue, Reject, Retry, StoreError, TailEvent, UnknownTopic, events
from mx_rmq.operating.tail import kinds_of
from mx_rmq.storage.tails import Tails, Want, decode_batch
from mx_rmq.worker import sharing
from tests.harness import command
from tests.words import PREFIX, eventually, store_of
from tests.words import events as logged

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from redis.asyncio import Redis

    from tests.proxy import Proxy
    from tests.words import MakeQueue


class Watch:
    """What a tail has shown so far."""

    def __init__(self) -> None:
        self.seen: list[TailEvent] = []

    def names(self) -> list[str]:
        return [each.event.name for each in self.seen]

    def of(self, name: str) -> list[TailEvent]:
        return [each for each in self.seen if each.event.name == name]


@asynccontextmanager
async def tailing(mq: RedisMessageQueue, *args: Any, **options: Any) -> AsyncIterator[Watch]:
    """Tail in the background; yields once the want is noted."""
    watch = Watch()

    async def run() -> None:
        async with aclosing(mq.tail(*args, **options)) as found:
            async for each in found:
                watch.seen.append(each)

    task = asyncio.create_task(run())
    store = mq._lifecycle.shards.base.operating

    async def noted() -> bool:
        if task.done():
            await task
        return bool(await store.commands.execute_command("EXISTS", store.keys.of_queue("tails")))

    await eventually(noted)
    try:
        yield watch
    finally:
        task.cancel()
        await asyncio.wait([task])


async def sharing_begun() -> None:
    """Wait until a worker of this process listens for a tail."""
    await eventually(lambda: any(each._wants for each in sharing._sharing.values()))


async def test_a_tail_shows_how_messages_end_in_a_worker(mq: RedisMessageQueue) -> None:
    @mq.handler("orders", retry=Retry(2, backoff=[0.0]))
    async def on_order(n: int) -> None:
        if n:
            raise ValueError(f"no order {n}")

    await mq.start()
    async with tailing(mq) as watch:
        await sharing_begun()
        await mq.produce("orders", 0, message_id="good")
        await mq.produce("orders", 1, message_id="bad")
        await eventually(lambda: watch.of("message.dead") and watch.of("message.completed"))
    (completed,) = watch.of("message.completed")
    assert isinstance(completed.event, events.MessageCompleted)
    assert (completed.event.topic, completed.event.id) == ("orders", "good")
    assert completed.worker.startswith(mq.config.worker_name)
    (dead,) = watch.of("message.dead")
    assert "ValueError: no order 1" in dead.event.text
    assert dead.as_dict()["reason"] == "failed"
    assert dead.as_dict()["at"].endswith("+00:00")
    assert watch.names().index("message.retried") < watch.names().index("message.dead")
    assert "messages.claimed" not in watch.names(), "only if it is asked for"


async def test_it_shows_what_it_is_asked_for(mq: RedisMessageQueue) -> None:
    await mq.produce("mails", 1)

    @mq.handler("orders")
    async def on_order(n: int) -> None: ...

    @mq.handler("mails")
    async def on_mail(n: int) -> None:
        raise Reject("no")

    await mq.start()
    async with tailing(mq, "orders", events=["completed", events.MessagesClaimed]) as watch:
        await sharing_begun()
        await mq.produce_many("mails", [1, 2])
        await mq.produce_many("orders", [1, 2])
        await eventually(lambda: len(watch.of("message.completed")) == 2)
    assert set(watch.names()) == {"message.completed", "messages.claimed"}
    assert {each.as_dict()["topic"] for each in watch.seen} == {"orders"}


async def test_two_tails_see_each_what_it_wants(mq: RedisMessageQueue) -> None:
    @mq.handler("orders")
    async def on_order(n: int) -> None:
        if n:
            raise Reject("no")

    await mq.start()
    async with tailing(mq, events=["dead"]) as deaths, tailing(mq, events=["completed"]) as completions:
        await eventually(lambda: any(len(each._wants) == 2 for each in sharing._sharing.values()))
        await mq.produce_many("orders", [0, 1])
        await eventually(lambda: deaths.seen and completions.seen)
    assert (deaths.names(), completions.names()) == (["message.dead"], ["message.completed"])


async def test_without_a_tail_no_worker_listens(mq: RedisMessageQueue, redis: Redis) -> None:
    @mq.handler("orders")
    async def on_order(n: int) -> None: ...

    await mq.start()
    async with tailing(mq) as watch:
        await sharing_begun()
        assert events.heard(events.MessageCompleted)
    await command(redis, "DEL", f"{PREFIX}tails")  # in place of its lifetime
    await eventually(lambda: not any(each._wants for each in sharing._sharing.values()))
    assert not events.heard(events.MessageCompleted)
    assert not watch.of("message.completed")


async def test_a_want_that_is_not_renewed_is_forgotten_by_the_server(
    mq: RedisMessageQueue, redis: Redis
) -> None:
    async with tailing(mq):
        assert 0 < await command(redis, "TTL", f"{PREFIX}tails") <= 10


async def test_too_many_events_are_counted_not_shown(mq: RedisMessageQueue) -> None:
    @mq.handler("orders")
    async def on_order(n: int) -> None:
        if n == 0:
            raise Reject("no")

    await mq.start()
    async with tailing(mq) as watch:
        await sharing_begun()
        await mq.produce_many("orders", range(3000))

        def told() -> int:
            more = [each.event for each in watch.of("events.left_out")]
            left_out = sum(
                each.counts.get("message.completed", 0)
                for each in more
                if isinstance(each, events.EventsLeftOut)
            )
            return left_out + len(watch.of("message.completed"))

        await eventually(lambda: told() == 2999)
    assert watch.of("events.left_out")
    assert watch.of("message.dead"), "what is rare has its room"


async def test_a_worker_that_starts_and_stops_is_seen(make_queue: MakeQueue) -> None:
    mq, watching = make_queue(), make_queue()
    await watching.open()

    @mq.handler("orders")
    async def on_order(n: int) -> None: ...

    async with tailing(watching) as watch:
        await mq.start()
        await eventually(lambda: watch.of("worker.started"))
        await mq.stop()
        await eventually(lambda: watch.of("worker.stopped"))
    assert len(watch.of("worker.started")) == 1


async def test_two_workers_of_a_process_tell_each_event_once(make_queue: MakeQueue) -> None:
    queues = [make_queue(), make_queue()]
    for queue in queues:

        @queue.handler("orders")
        async def on_order(n: int) -> None: ...

        await queue.start()
    async with tailing(queues[0]) as watch:
        await sharing_begun()
        await queues[0].produce_many("orders", range(10))
        await eventually(lambda: len(watch.of("message.completed")) >= 10)
        await queues[0].produce("orders", 10)
        await eventually(lambda: len(watch.of("message.completed")) >= 11)
    assert len(watch.of("message.completed")) == 11


async def test_an_outage_is_told_and_survived(make_queue: MakeQueue, proxy: Proxy) -> None:
    mq = make_queue()
    watching = make_queue(proxy.url, patience=1.0, socket_timeout=1.0)
    await watching.open()

    @mq.handler("orders")
    async def on_order(n: int) -> None: ...

    await mq.start()
    async with tailing(watching) as watch:
        await sharing_begun()
        proxy.away()
        await eventually(lambda: watch.of("server.unavailable"))
        proxy.back()
        await eventually(lambda: watch.of("server.back"))
        await sharing_begun()
        await mq.produce("orders", 1)
        await eventually(lambda: watch.of("message.completed"))
    assert len(watch.of("server.unavailable")) == 1
    assert watch.of("server.back")[0].worker == ""


async def test_a_connection_that_fell_silent_is_noticed(make_queue: MakeQueue, proxy: Proxy) -> None:
    """A router that forgets an idle connection tells neither end."""
    mq = make_queue()
    watching = make_queue(proxy.url, patience=0.5, socket_timeout=0.5)
    await watching.open()

    @mq.handler("orders")
    async def on_order(n: int) -> None: ...

    await mq.start()
    async with tailing(watching) as watch:
        proxy.half_open()
        await eventually(lambda: watch.of("server.back"))
        await sharing_begun()
        await mq.produce("orders", 1)
        await eventually(lambda: watch.of("message.completed"))


async def test_a_tail_ends_with_its_queue(make_queue: MakeQueue) -> None:
    mq = make_queue()
    await mq.open()
    async with tailing(mq):
        (task,) = [each for each in asyncio.all_tasks() if "tailing" in repr(each.get_coro())]
        await mq.close()
        await asyncio.wait_for(task, 15)


async def test_a_worker_that_may_not_publish_says_so_once(
    make_queue: MakeQueue, redis: Redis, tcp: str, caplog: pytest.LogCaptureFixture
) -> None:
    await command(redis, "ACL", "SETUSER", "w", "on", ">s", "~*", "&*", "+@all", "-publish")
    try:
        mq = make_queue(tcp.replace("redis://", "redis://w:s@"))
        await mq.open()

        @mq.handler("orders")
        async def on_order(n: int) -> None: ...

        await mq.start()
        async with tailing(mq):
            await sharing_begun()
            await mq.produce("orders", 1)
            (told,) = await eventually(lambda: logged(caplog, "events.not_shared"))
            assert "publish" in told.getMessage()
            await eventually(lambda: not events.heard(events.MessageCompleted))
            assert told.levelno == logging.WARNING
        await mq.close()
    finally:
        await command(redis, "ACL", "DELUSER", "w")


async def test_a_program_that_may_not_subscribe_is_told_which_right_it_lacks(
    make_queue: MakeQueue, redis: Redis, tcp: str
) -> None:
    await command(redis, "ACL", "SETUSER", "w", "on", ">s", "~*", "resetchannels", "+@all")
    try:
        mq = make_queue(tcp.replace("redis://", "redis://w:s@"))
        await mq.open()
        with pytest.raises(StoreError, match=r"give its user \+subscribe and the channel &mx-rmq:{q}:events"):
            await anext(mq.tail())
        await mq.close()
    finally:
        await command(redis, "ACL", "DELUSER", "w")


async def test_unknown_topics_and_events_are_refused(mq: RedisMessageQueue) -> None:
    await mq.produce("orders", 1)
    with pytest.raises(UnknownTopic, match="did you mean 'orders'"):
        await anext(mq.tail("ordres"))
    with pytest.raises(ConfigError, match="there is no event 'deads'; did you mean 'dead'"):
        mq.tail(events=["deads"])
    with pytest.raises(ConfigError, match=r"there is no event 'message.deda'; did you mean 'message.dead'"):
        mq.tail(events=["message.deda"])
    with pytest.raises(ConfigError, match="events must be a list of names"):
        mq.tail(events="dead")


def test_a_last_part_may_stand_for_several() -> None:
    names = {kind.__struct_config__.tag for kind in kinds_of(["failed"])}
    assert {"settle.failed", "topic.failed", "hook.failed"} <= names


async def test_too_many_different_tails_are_refused(mq: RedisMessageQueue, redis: Redis) -> None:
    for n in range(16):
        assert await store_of(redis).watch(b"%d" % n, lasts=10)
    with pytest.raises(StoreError, match="too many different tails"):
        await anext(mq.tail())


async def test_strange_wants_and_batches_disturb_none(mq: RedisMessageQueue, redis: Redis) -> None:
    tails = Tails(mq._lifecycle.shards[0].store)
    for strange in (b"\xff", b"[]", b"{}", b'{"events":1}'):
        await store_of(redis).watch(strange, lasts=10)
    await tails.note(Want(("message.dead",)))
    assert await tails.wants() == [Want(("message.dead",))]
    await command(redis, "DEL", f"{PREFIX}tails")
    await command(redis, "SET", f"{PREFIX}tails", "wrong")
    assert await tails.wants() == []
    await command(redis, "DEL", f"{PREFIX}tails")
    assert decode_batch(b"\xff") is None
    assert decode_batch(b'{"worker":"w","events":' + b"[" * 100_000) is None
    later = decode_batch(b'{"worker":"w","events":[[1.5,{"event":"message.dreamt"}]]}')
    assert later is not None
    assert (later.events, later.left_out) == ([], {"unknown": 1})
    async with tailing(mq, events=["dead"]) as watch:
        await command(redis, "PUBLISH", f"{PREFIX}events", "noise")
        await command(redis, "PUBLISH", f"{PREFIX}events", '{"worker":"w","left_out":{"message.dead":3}}')
        await eventually(lambda: watch.seen)
    assert str(watch.seen[0]) == "events.left_out: … 3 more: 3 message.dead"


async def test_a_batch_has_a_bound_in_bytes_and_any_text(mq: RedisMessageQueue, redis: Redis) -> None:
    tails = Tails(mq._lifecycle.shards[0].store)
    large = events.TopicsForgotten(queue="q", topics=["t" * 100] * 1000)
    small = events.MessageDead(queue="q", topic="t", id="a", reason="failed", error="\udcff no")
    async with tailing(mq) as watch:
        await tails.publish("w", [(1.0, large), (2.0, small)], {"message.completed": 2})
        await eventually(lambda: len(watch.seen) == 2)
    dead, more = watch.seen
    assert "\\udcff no" in dead.event.text
    assert more.as_dict()["counts"] == {"message.completed": 2, "topics.forgotten": 1}
