"""The options of produce, checked once, and the message made from them and a payload."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec

from mx_rmq.checks import check_choice, check_name, check_seconds, plain, shown
from mx_rmq.config import DURABILITIES, Durability
from mx_rmq.errors import ConfigError, InvalidPayload
from mx_rmq.message import FORMAT, LANES, Lane, Message, encode_message
from mx_rmq.payloads import Encoded, encode_payload
from mx_rmq.producing.ids import new_id
from mx_rmq.storage.contract import NewMessage

if TYPE_CHECKING:
    from mx_rmq.config import Config

DEFAULT: Final = "default"
"""Means the queue's own setting, since None means no end."""

Ttl = float | Literal["default"] | None


class Options(msgspec.Struct, frozen=True, gc=False):
    """Checked options of one message, or of many."""

    topic: str
    message_id: str | None
    priority: Lane
    headers: dict[str, str]
    ttl: float | None
    dedup_for: float | None
    delay: float
    durability: Durability

    def message(self, payload: Any) -> NewMessage:
        """Make a message that can be stored.

        Raises:
            InvalidPayload: names the value that JSON would change or cannot hold, and where it is.
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
        return NewMessage(id_, body, self.priority, self.ttl, self.delay, self.durability, time.monotonic())


def check_options(
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
) -> Options:
    """Check every option of a produce call.

    Raises:
        ConfigError, InvalidName, InvalidPayload: says which option, and what it must be.
    """
    if not isinstance(topic, str):  # the producer checks the name itself, once per topic
        check_name("topic", topic)
    if priority not in LANES:
        check_choice("priority", priority, LANES)
    if type(priority) is not str:
        priority = LANES[LANES.index(priority)]
    if delay != 0:
        check_seconds("delay", delay)
    lifetime = config.ttl
    if ttl != DEFAULT:
        check_seconds("ttl", ttl, above=0.0, none="no end")
        lifetime = ttl
    if dedup_for != 0:
        check_seconds("dedup_for", dedup_for)
    if durability is None:
        durability = config.durability
    else:
        check_choice("durability", durability, DURABILITIES)
    if message_id is not None:
        message_id = check_name("message id", message_id)
    copied = {} if headers is None else checked_headers(headers)
    return Options(plain(topic), message_id, priority, copied, lifetime, dedup_for or None, delay, durability)


def refuse_one_id(options: Mapping[str, Any]) -> None:
    """Refuse one id for many messages: all but the first would not be stored."""
    if options.get("message_id") is not None:
        check_name("message id", options["message_id"])
        raise ConfigError("message_id names one message; produce them one by one to give each its own")


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
