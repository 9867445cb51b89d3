"""Every kind of event, and who hears of it."""

from __future__ import annotations

import asyncio
import inspect
import logging
import re
import time
from typing import TYPE_CHECKING, Any, get_args, get_type_hints

import pytest

from mx_rmq import Reject, Retry, events
from mx_rmq.events import KINDS, Event, MessageCompleted, ServerBack, ServerUnavailable, emit, heard, listen
from tests.words import dead, eventually, in_state

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mx_rmq.events import Listener
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
    defined = [
        kind
        for kind in vars(events).values()
        if inspect.isclass(kind) and issubclass(kind, Event) and kind is not Event
    ]
    assert defined == KINDS


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


def test_every_other_kind_is_heard_by_the_logs() -> None:
    assert [kind for kind in KINDS if not heard(kind)] == [MessageCompleted]


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
