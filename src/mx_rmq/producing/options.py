"""The options of produce, checked once, and the message made from them and a payload."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

import msgspec

from mx_rmq.checks import (
    Duration,
    check_choice,
    check_id,
    check_key,
    check_seconds,
    check_topic,
    is_number,
    refusal,
    refuse_unknown,
    shown,
)
from mx_rmq.config import DURABILITIES, Durability
from mx_rmq.errors import ConfigError, InvalidPayload
from mx_rmq.limits import LONGEST_MEMORY, MOST_SECONDS
from mx_rmq.message import LANES, Lane, Message, encode_message
from mx_rmq.payloads import Encoded, check_payloads, encode_payload, numbered
from mx_rmq.produce_options import DEFAULT, MessageId, ProduceOptions, Ttl
from mx_rmq.producing.ids import new_id
from mx_rmq.storage.contract import NewMessage

if TYPE_CHECKING:
    from mx_rmq.config import Config

OPTIONS: Final = tuple(ProduceOptions.__annotations__)
_ELSEWHERE: Final = {
    "eta": "at",
    "countdown": "delay",
    "defer_by": "delay",
    "defer_until": "at",
    "expires": "ttl",
    "expiration": "ttl",
    "id": "message_id",
    "partition_key": "key",
    "routing_key": "key",
    "group_id": "key",
    "task_id": "message_id",
    "keep_result": "remember",
    "result_ttl": "remember",
    "job_id": "message_id",
    "max_retries": "retry=Retry(max_attempts=…) on the handler",
    "retry": "retry=Retry(…) on the handler",
    "timeout": "timeout= on the handler",
}
"""Names that other libraries use."""

_DECADES: Final = 1e9
"""Seconds: a longer delay (31 years) is a point in time given by mistake."""


class Options(msgspec.Struct, frozen=True, gc=False):
    """Checked options of one message, or of many."""

    message_id: str | None
    priority: Lane
    headers: dict[str, str]
    ttl: float | None
    dedup_for: float | None
    delay: float
    durability: Durability
    remember_for: float | None = None
    key: str = ""

    def message(self, payload: Any) -> NewMessage:
        """Make a message that can be stored.

        Raises:
            InvalidPayload: names the value that JSON would change or cannot hold, and where it is.
        """
        id_ = self.message_id or new_id()
        unstored = Message(
            payload=payload.raw if type(payload) is Encoded else encode_payload(payload),
            priority=self.priority,
            headers=self.headers,
            key=self.key,
            created_at=time.time_ns() // 1_000_000 / 1000,
            ttl=self.ttl,
            dedup_for=self.dedup_for,
            remember_for=self.remember_for,
            delay=self.delay or None,
        )
        try:
            body = encode_message(unstored)
        except UnicodeEncodeError as error:
            raise InvalidPayload(f"a header cannot be written as JSON: {error}") from error
        return NewMessage(
            id_,
            body,
            self.priority,
            self.ttl,
            self.delay,
            self.durability,
            time.monotonic(),
            self.key,
            self.message_id is not None,
        )


def check_options(
    config: Config,
    topic: str,
    *,
    priority: Lane = "normal",
    delay: Duration = 0.0,
    at: datetime | None = None,
    ttl: Ttl = DEFAULT,
    message_id: MessageId | None = None,
    headers: Mapping[str, str] | None = None,
    dedup_for: Duration = 0.0,
    remember: Duration | None = None,
    durability: Durability | None = None,
    key: MessageId | None = None,
) -> Options:
    """Check every option of a produce call.

    Raises:
        ConfigError, InvalidName, InvalidPayload: says which option, and what it must be.
    """
    if type(topic) is not str:  # the producer checks the name itself, once per topic
        check_topic(topic)
    if type(priority) is not str or priority not in LANES:
        check_choice("priority", priority, LANES)
        priority = LANES[LANES.index(priority)]  # a plain str
    wait: float = 0.0
    if delay != 0:
        wait = _check_delay(delay)
    if at is not None:
        wait = _until(at, delay)
    lifetime = config.ttl
    if ttl != DEFAULT:
        lifetime = check_seconds("ttl", ttl, above=0.0, none="no end")
    kept: float | None = None
    if dedup_for != 0:
        kept = check_seconds("dedup_for", dedup_for)
        if message_id is None:
            raise ConfigError("dedup_for needs a message_id: a message without one gets a new id each time")
    memory: float | None = None
    if remember is not None:
        memory = check_seconds("remember", remember, most=LONGEST_MEMORY)
    if durability is None:
        durability = config.durability
    else:
        check_choice("durability", durability, DURABILITIES)
    if message_id is not None:
        message_id = check_id(message_id)
    copied = {} if headers is None else checked_headers(headers)
    label = "" if key is None else check_key(key)
    return Options(message_id, priority, copied, lifetime, kept, wait, durability, memory, label)


def refuse_unknown_options(names: Iterable[str]) -> None:
    """Refuse an option of produce that there is not.

    Raises:
        ConfigError: names the closest one.
    """
    refuse_unknown("option of produce", names, OPTIONS, _ELSEWHERE)


def refuse_one_id(options: Mapping[str, Any]) -> None:
    """Refuse one id for many messages: all but the first would not be stored."""
    if options.get("message_id") is not None:
        check_id(options["message_id"])
        raise ConfigError("message_id names one message; produce them one by one to give each its own")


def _check_delay(delay: Any) -> float:
    if isinstance(delay, datetime) or (is_number(delay) and delay >= _DECADES):
        raise refusal("delay", "seconds from now (use at= for a point in time)", delay)
    seconds: float = check_seconds("delay", delay)
    return seconds


def _until(at: Any, delay: object) -> float:
    """Seconds until a point in time; 0 if it has passed."""
    if not isinstance(at, datetime):
        raise refusal("at", "a datetime with a time zone", at)
    if at.tzinfo is None:
        raise refusal("at", "a datetime with a time zone, such as datetime.now(UTC) + timedelta(hours=1)", at)
    if delay != 0:
        raise ConfigError("delay and at exclude each other; give one of them")
    seconds = at.timestamp() - time.time()
    if seconds >= MOST_SECONDS:
        raise refusal("at", f"at most {MOST_SECONDS:.0f} seconds from now", at)
    return max(0.0, seconds)


def checked_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """Copy headers.

    Raises:
        InvalidPayload: one of them is not a string.
    """
    if not isinstance(headers, Mapping):
        raise InvalidPayload(f"headers must be a mapping of strings to strings, got {shown(headers)}")
    for name, value in headers.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise InvalidPayload(f"a header must be a string, got {shown(name)}: {shown(value)}")
    return dict(headers)


def messages(
    options: Options, payloads: Iterable[Any], fit: Callable[[Any], Any] | None
) -> Iterator[NewMessage]:
    """The messages of ``produce_many``; an error names the place of its payload.

    Args:
        options: of all of them.
        payloads: one for each.
        fit: returns a payload that the handler accepts, or raises ``InvalidPayload``; None if any fits.

    Raises:
        ConfigError: *payloads* is no iterable of payloads, but one payload.
    """
    check_payloads(payloads)
    make = options.message
    return numbered(payloads, make if fit is None else lambda payload: make(fit(payload)))
