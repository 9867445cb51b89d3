"""Every kind of event, and who hears of it."""

from __future__ import annotations

import ast
import asyncio
import inspect
import logging
import re
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args, get_type_hints

import pytest

from mx_rmq import ConfigError, RedisMessageQueue, Reject, Retry, RetryLater, events
from mx_rmq.events import KINDS, Event, MessageCompleted, ServerBack, ServerUnavailable, emit, heard, listen
from tests.words import dead, eventually, in_state

if TYPE_CHECKING:
    from collections.abc import Iterator

    from redis.asyncio import Redis

    from mx_rmq.events import Listener
    from tests.proxy import Proxy
    from tests.words import MakeQueue

each_kind = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)

PRIVATE = {"payload", "payloads", "body", "raw", "headers", "password", "secret", "url"}
TOLD = (str, int, float, bool, type(None))
"""What a field is made of; a payload could hide in bytes, or in a field of any type."""


def plain_types_in(hint: Any) -> Iterator[Any]:
    """What a type is made of, without its containers."""
    inner = get_args(hint)
    if not inner:
        yield hint
    for each in inner:
        yield from plain_types_in(each)


# -- the kinds


def test_every_class_of_event_is_among_the_kinds_once() -> None:
    """A listener to all of them must not miss one."""
    defined = [kind for kind in vars(events).values() if inspect.isclass(kind) and issubclass(kind, Event)]
    assert len(KINDS) == len(set(KINDS))
    assert {*defined} == {*KINDS, Event}


@each_kind
def test_a_kind_is_called_by_two_words(kind: type[Event]) -> None:
    assert re.fullmatch(r"[a-z]+\.[a-z]+(_[a-z]+)*", str(kind.__struct_config__.tag))


def test_no_two_kinds_share_a_name() -> None:
    tags = [kind.__struct_config__.tag for kind in KINDS]
    assert len(set(tags)) == len(tags)


@each_kind
def test_a_kind_says_what_happened(kind: type[Event]) -> None:
    assert (kind.__dict__.get("__doc__") or "").strip().endswith(".")


@each_kind
def test_no_kind_has_a_field_for_a_payload(kind: type[Event]) -> None:
    """Events are logged and shown, and payloads are not."""
    hints = get_type_hints(kind)
    for field in kind.__struct_fields__:
        assert field not in PRIVATE
        assert set(plain_types_in(hints[field])) <= set(TOLD), field


@each_kind
def test_no_field_hides_what_a_log_record_has_of_its_own(kind: type[Event]) -> None:
    taken = {*logging.makeLogRecord({}).__dict__, "message", "asctime", "event"}
    assert taken.isdisjoint(kind.__struct_fields__)


@each_kind
def test_a_kind_has_a_level_that_logging_has_a_name_for(kind: type[Event]) -> None:
    assert kind.level in (logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR)


def test_an_event_knows_its_name_and_its_fields() -> None:
    event = ServerUnavailable(server="redis://localhost", error="gone")
    assert event.name == "server.unavailable"
    assert event.fields == {"server": "redis://localhost", "error": "gone"}
    assert event.text == "redis://localhost: gone"
    assert event.level == logging.WARNING


def test_an_event_knows_its_queue_if_it_has_one() -> None:
    event = ServerBack(queue="shop", server="redis://localhost", seconds=1.0)
    assert event.fields == {"queue": "shop", "server": "redis://localhost", "seconds": 1.0}


WITHOUT_QUEUE = {
    events.BackoffFailed,  # a Retry may be shared by queues
    events.EmbeddedRestarted,  # so may an embedded server
    events.EmbeddedNotRestarted,
    events.EmbeddedEnded,
    events.LoopIgnoresStop,  # concerns the whole process
    events.ProcessDied,  # the supervisor knows where to import the queue from, not its name
    events.ProcessKilled,
    events.ProcessesGivenUp,
}


def made_in(path: Path) -> Iterator[tuple[str, bool]]:
    """The kinds of events that a module makes, and whether it says whose they are."""
    tree = ast.parse(path.read_text())
    imported = {
        alias.asname or alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module == "mx_rmq.events"
        for alias in node.names
    }
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        match node.func:
            case ast.Attribute(value=ast.Name(id="events"), attr=name):
                pass
            case ast.Name(id=name) if name in imported:
                pass
            case _:
                continue
        if inspect.isclass(getattr(events, name)):
            yield name, any(keyword.arg == "queue" for keyword in node.keywords)


def test_every_event_is_made_with_its_queue() -> None:
    """Metrics of two queues in one process are told apart by it."""
    package = Path(events.__file__).parents[1]
    made = {each for path in package.rglob("*.py") for each in made_in(path)}
    assert {name for name, _ in made} == {kind.__name__ for kind in KINDS}, "every kind is made somewhere"
    assert {name for name, says in made if not says} == {kind.__name__ for kind in WITHOUT_QUEUE}


# -- listening


class Ear:
    """Remembers what it was told."""

    def __init__(self) -> None:
        self.told: list[tuple[Event, BaseException | None]] = []

    def __call__(self, event: Event, exception: BaseException | None) -> None:
        self.told.append((event, exception))

    @property
    def events(self) -> list[Event]:
        return [event for event, _ in self.told]


@pytest.fixture
def listening() -> Iterator[Any]:
    """As ``listen``, but everything ends with the test."""
    ends = []

    def begin(listener: Listener, *kinds: type[Event]) -> Any:
        ends.append(listen(listener, *kinds))
        return ends[-1]

    yield begin
    for end in ends:
        end()


def test_a_listener_hears_the_kinds_it_asked_for_and_no_others(listening: Any) -> None:
    ear = Ear()
    listening(ear, ServerBack)
    emit(ServerBack(server="fetcher", seconds=1.0))
    emit(ServerUnavailable(server="redis://localhost", error="gone"))
    assert ear.events == [ServerBack(server="fetcher", seconds=1.0)]


def test_it_hears_what_caused_an_event(listening: Any) -> None:
    ear = Ear()
    listening(ear, ServerBack)
    cause = ValueError("no")
    emit(ServerBack(server="a", seconds=1.0), cause)
    emit(ServerBack(server="b", seconds=1.0))
    assert [exception for _, exception in ear.told] == [cause, None]


def test_it_is_called_where_and_when_the_event_happens(listening: Any) -> None:
    order = []
    listening(lambda event, exception: order.append("heard"), ServerBack)
    emit(ServerBack(server="a", seconds=1.0))
    order.append("after")
    assert order == ["heard", "after"]


def test_every_listener_hears_an_event_in_the_order_they_came(listening: Any) -> None:
    order = []
    listening(lambda event, exception: order.append(1), ServerBack)
    listening(lambda event, exception: order.append(2), ServerBack, ServerUnavailable)
    emit(ServerBack(server="a", seconds=1.0))
    assert order == [1, 2]


def test_a_listener_that_fails_changes_nothing_and_is_logged(
    listening: Any, caplog: pytest.LogCaptureFixture
) -> None:
    def failing(event: Event, exception: BaseException | None) -> None:
        raise ValueError("no")

    ear = Ear()
    listening(failing, ServerBack)
    listening(ear, ServerBack)
    emit(ServerBack(server="a", seconds=1.0))
    assert len(ear.told) == 1
    assert "listener.failed: a listener of server.back raised" in caplog.text
    assert "ValueError: no" in caplog.text


def test_listening_returns_what_ends_it(listening: Any) -> None:
    ear, other = Ear(), Ear()
    end = listening(ear, ServerBack, MessageCompleted)
    listening(other, ServerBack)
    end()
    emit(ServerBack(server="a", seconds=1.0))
    emit(MessageCompleted(topic="t", id="A1", seconds=0.1))
    assert (len(ear.told), len(other.told)) == (0, 1)
    assert not heard(MessageCompleted)
    end()  # a second time is no harm
    emit(ServerBack(server="b", seconds=1.0))
    assert len(other.told) == 2


def test_a_listener_may_end_its_listening_while_it_is_told(listening: Any) -> None:
    first, second = Ear(), Ear()

    def once(event: Event, exception: BaseException | None) -> None:
        first(event, exception)
        end()

    end = listening(once, ServerBack)
    listening(second, ServerBack)
    emit(ServerBack(server="a", seconds=1.0))
    emit(ServerBack(server="b", seconds=1.0))
    assert (len(first.told), len(second.told)) == (1, 2)


def test_completions_are_heard_only_while_something_listens() -> None:
    """They happen for every message, so that without a listener they must cost nothing; logs are none."""
    assert not heard(MessageCompleted)
    first = listen(Ear(), MessageCompleted)
    second = listen(Ear(), MessageCompleted)
    assert heard(MessageCompleted)
    first()
    assert heard(MessageCompleted)
    second()
    assert not heard(MessageCompleted)


def test_what_happens_for_every_message_or_call_is_frequent_and_not_logged() -> None:
    frequent = [kind for kind in KINDS if kind.is_frequent]
    assert frequent == [kind for kind in KINDS if not heard(kind)]
    assert [kind.__name__ for kind in frequent] == [
        "MessagesProduced",
        "MessagesClaimed",
        "MessageCompleted",
    ]


@pytest.mark.parametrize("kinds", [(), ("message.dead",), (Event,)], ids=["none", "a name", "the root"])
def test_what_is_no_kind_of_event_cannot_be_listened_to(kinds: tuple[Any, ...]) -> None:
    with pytest.raises(ConfigError, match=r"listen needs kinds of events, such as events.MessageDead, got"):
        listen(Ear(), *kinds)


def test_an_event_without_a_listener_is_no_error() -> None:
    emit(MessageCompleted(topic="t", id="A1", seconds=0.1))


# -- on a real queue


async def test_a_completion_is_told_once_per_completed_message(make_queue: MakeQueue, listening: Any) -> None:
    """With its topic, its id and how long the handler ran; what failed or died is not among them."""
    mq = make_queue()
    ear = Ear()
    listening(ear, MessageCompleted)

    @mq.handler("quick")
    async def quick(payload: int) -> None: ...

    @mq.handler("slow")
    async def slow(payload: int) -> None:
        await asyncio.sleep(0.05)

    @mq.handler("threaded")
    def threaded(payload: int) -> None:
        time.sleep(0.05)

    @mq.handler("batches", batch=10)
    async def batches(payloads: list[int]) -> None: ...

    failed: list[int] = []

    @mq.handler("flaky", retry=Retry(2, backoff=[0.0]))
    async def flaky(payload: int) -> None:
        if payload not in failed:
            failed.append(payload)
            raise ValueError("once")

    @mq.handler("rejecting")
    async def rejecting(payload: int) -> None:
        raise Reject("never")

    expected = []
    for topic in ("quick", "slow", "threaded", "batches", "flaky", "rejecting"):
        for n in range(5):
            await mq.produce(topic, n, message_id=f"{topic}-{n}")
            if topic != "rejecting":
                expected.append((topic, f"{topic}-{n}"))
    began = time.monotonic()
    async with mq:
        mq.start()
        await eventually(lambda: len(ear.told) >= len(expected))
        for n in range(5):
            await dead(mq, f"rejecting-{n}")
    elapsed = time.monotonic() - began

    completed = [event for event in ear.events if isinstance(event, MessageCompleted)]
    assert len(completed) == len(ear.told)
    assert sorted((event.topic, event.id) for event in completed) == sorted(expected)
    assert {exception for _, exception in ear.told} == {None}
    for event in completed:
        least = 0.045 if event.topic in ("slow", "threaded") else 0.0
        assert least <= event.seconds <= elapsed


async def test_a_call_of_produce_is_told_once_with_its_count(mq: RedisMessageQueue, listening: Any) -> None:
    """Those whose id was taken are counted apart; the blocking producer tells the same."""
    ear = Ear()
    listening(ear, events.MessagesProduced)
    await mq.produce_many("many", range(150))
    await mq.produce("one", 1, message_id="A1")
    await mq.produce("one", 1, message_id="A1")
    await mq.produce("later", 1, delay=60)
    await asyncio.to_thread(mq.sync.produce_many, "sync", range(3))
    told = [
        (event.queue, event.topic, event.messages, event.duplicates)
        for event in ear.events
        if isinstance(event, events.MessagesProduced)
    ]
    assert told == [
        ("q", "many", 150, 0),
        ("q", "one", 1, 0),
        ("q", "one", 0, 1),
        ("q", "later", 1, 0),
        ("q", "sync", 3, 0),
    ]


async def test_a_life_is_told_from_claim_to_end(make_queue: MakeQueue, listening: Any) -> None:
    mq = make_queue(retry=Retry(2, backoff=[0.0]))
    ear = Ear()
    listening(
        ear,
        events.MessagesClaimed,
        events.MessageRetried,
        events.MessagePutOff,
        events.MessageCompleted,
        events.MessageDead,
    )
    tries = 0

    @mq.handler("t")
    async def handle(payload: int) -> None:
        nonlocal tries
        tries += 1
        if tries == 1:
            raise RetryLater(0.0, count=False)
        if tries == 2:
            raise ValueError("once")

    @mq.handler("dying", retry=Retry(1))
    async def die(payload: int) -> None:
        raise ValueError("always")

    await mq.produce("t", 1, message_id="A1")
    async with mq:
        mq.start()
        await in_state(mq, "A1", "gone")
        await mq.produce("dying", 1, message_id="A2")
        await dead(mq, "A2")
    assert {event.queue for event in ear.events} == {"q"}
    assert [event.name for event in ear.events] == [
        "messages.claimed",
        "message.put_off",
        "messages.claimed",
        "message.retried",
        "messages.claimed",
        "message.completed",
        "messages.claimed",
        "message.dead",
    ]
    for event in ear.events:
        if isinstance(event, events.MessagePutOff | events.MessageDead):
            assert event.seconds is not None
            assert 0 < event.seconds < 5


@pytest.mark.parametrize("ttl", [3600, None])
async def test_the_end_of_the_first_run_tells_how_long_a_message_was_ready(
    make_queue: MakeQueue, listening: Any, ttl: float | None
) -> None:
    """At its first attempt; of a later one it is not known since when it was ready."""
    mq = make_queue()
    ear = Ear()
    listening(ear, events.MessageRetried, MessageCompleted)
    tries = 0

    @mq.handler("t", retry=Retry(2, backoff=[0.0]))
    async def handle(payload: int) -> None:
        nonlocal tries
        tries += 1
        if tries == 1:
            raise ValueError("once")

    began = time.monotonic()
    await mq.produce("t", 1, message_id="A1", ttl=ttl)
    produced = time.monotonic()
    await eventually(lambda: time.monotonic() > produced + 0.1)
    async with mq:
        mq.start()
        await in_state(mq, "A1", "gone")
    first, second = ear.events
    assert isinstance(first, events.MessageRetried)
    assert isinstance(second, MessageCompleted)
    assert first.waited is not None
    assert 0.09 < first.waited < time.monotonic() - began + 0.1
    assert second.waited is None


async def test_a_delay_is_no_waiting(make_queue: MakeQueue, listening: Any) -> None:
    mq = make_queue()
    ear = Ear()
    listening(ear, MessageCompleted)

    @mq.handler("t")
    async def handle(payload: int) -> None: ...

    await mq.produce("t", 1, message_id="A1", delay=1.0)
    async with mq:
        mq.start()
        await in_state(mq, "A1", "gone")
    (completed,) = ear.events
    assert isinstance(completed, MessageCompleted)
    assert completed.waited is not None
    assert completed.waited < 0.9


async def test_a_lost_connection_that_is_open_again_is_told(
    proxy: Proxy, redis: Redis, listening: Any
) -> None:
    ear = Ear()
    listening(ear, events.ServerReconnected)
    async with RedisMessageQueue(proxy.url, name="q", server_check="off") as mq:
        await mq.produce("t", 1)
        assert ear.told == []
        proxy.cut()
        await mq.produce("t", 2)
        assert [event.queue for event in ear.events] == ["q"]
    assert len(ear.told) == 1, "to close is not to lose"


async def test_without_a_listener_a_message_is_completed_as_well(make_queue: MakeQueue) -> None:
    mq = make_queue()
    done: list[int] = []

    @mq.handler("t")
    async def handle(payload: int) -> None:
        done.append(payload)

    async with mq:
        await mq.produce("t", 1, message_id="A1")
        mq.start()
        await in_state(mq, "A1", "gone")
    assert done == [1]
