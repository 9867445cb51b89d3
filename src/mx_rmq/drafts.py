"""Drafts: from a payload and its options to a message that can be stored."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec

from mx_rmq.config import MOST_SECONDS, Durability, check_durability
from mx_rmq.errors import ConfigError, InvalidPayload
from mx_rmq.ids import new_id
from mx_rmq.keys import LANES, Lane, check_name, plain, shown
from mx_rmq.message import FORMAT, Encoded, Message, encode_message, encode_payload
from mx_rmq.records import NewMessage

if TYPE_CHECKING:
    from mx_rmq.config import Config

DEFAULT: Final = "default"
"""Stands for the queue's own lifetime, since None means no end."""

Ttl = float | Literal["default"] | None


class Draft(msgspec.Struct, frozen=True, gc=False):
    """The options of one message or of many, checked once for all of them."""

    topic: str
    message_id: str | None
    priority: Lane
    headers: dict[str, str]
    ttl: float | None
    dedup_for: float | None
    delay: float
    durability: Durability

    def message(self, payload: Any) -> NewMessage:
        """A message that can be stored.

        Raises:
            InvalidPayload: says what JSON would rewrite or cannot hold, and where it is.
        """
        id_ = self.message_id or new_id()
        unstored = Message(
            v=FORMAT,
            id=id_,
            topic=self.topic,
            payload=payload.raw if type(payload) is Encoded else encode_payload(payload),
            priority=self.priority,
            headers=self.headers,
            created_at=time.time_ns() // 1_000_000 / 1000,
            ttl=self.ttl,
            dedup_for=self.dedup_for,
        )
        try:
            body = encode_message(unstored)
        except UnicodeEncodeError as error:
            check_name("topic", self.topic)
            raise InvalidPayload(f"a header cannot be written as JSON: {error}") from error
        return NewMessage(id_, body, self.priority, self.ttl, self.delay, self.durability)


def draft(
    config: Config,
    topic: str,
    *,
    priority: Lane = "normal",
    delay: float = 0.0,
    ttl: Ttl = DEFAULT,
    message_id: str | None = None,
    headers: Mapping[str, str] | None = None,
    dedup_for: float = 0.0,
    durability: Durability | None = None,
) -> Draft:
    """Check every option of a produce call.

    Raises:
        ConfigError, InvalidName, InvalidPayload: says which option, and what it should be.
    """
    if not isinstance(topic, str):  # the rest of its grammar is checked once per topic, by who stores it
        check_name("topic", topic)
    if priority not in LANES:
        raise ConfigError(f"priority is {shown(priority)}, but wants 'high', 'normal' or 'low'")
    if type(priority) is not str:
        priority = LANES[LANES.index(priority)]
    if delay != 0 and not _is_duration(delay):
        raise ConfigError(f"delay is {shown(delay)}, but wants seconds")
    lifetime = config.ttl
    if ttl != DEFAULT:
        lifetime = ttl
        if lifetime is not None and not (_is_duration(lifetime) and lifetime > 0):
            raise ConfigError(f"ttl is {shown(ttl)}, but wants seconds, or None for no end")
    if dedup_for != 0 and not _is_duration(dedup_for):
        raise ConfigError(f"dedup_for is {shown(dedup_for)}, but wants seconds")
    if durability is None:
        durability = config.durability
    else:
        check_durability(durability)
    if message_id is not None:
        message_id = check_name("message id", message_id)
    copied = {} if headers is None else _checked_headers(headers)
    return Draft(plain(topic), message_id, priority, copied, lifetime, dedup_for or None, delay, durability)


def refuse_one_id(options: Mapping[str, Any]) -> None:
    """One id for many messages would leave all but the first unstored."""
    if options.get("message_id") is not None:
        check_name("message id", options["message_id"])
        raise ConfigError("message_id names one message; produce them one by one to give each its own")


def _is_duration(value: object) -> bool:
    return isinstance(value, int | float) and value is not True and 0 <= value < MOST_SECONDS


def _checked_headers(headers: Mapping[str, str]) -> dict[str, str]:
    if not isinstance(headers, Mapping):
        raise InvalidPayload(f"headers is a {type(headers).__name__}, but wants a mapping of strings")
    for name, value in headers.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise InvalidPayload(f"header {shown(name)} is {shown(value)}, but headers are strings")
    return dict(headers)
