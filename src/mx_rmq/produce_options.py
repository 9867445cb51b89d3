"""The options of produce, by name and type: what type checkers check and editors complete."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Final, Literal, TypedDict
from uuid import UUID

from mx_rmq.checks import Duration
from mx_rmq.config import Durability
from mx_rmq.message import Lane

MessageId = str | int | UUID

DEFAULT: Final = "default"
"""Means the queue's own setting, since None means no end."""

Ttl = Duration | Literal["default"] | None


class ProduceManyOptions(TypedDict, total=False):
    """The options of ``produce_many``, the same for all its messages; see ``RedisMessageQueue.produce``."""

    priority: Lane
    delay: Duration
    at: datetime | None
    ttl: Ttl
    headers: Mapping[str, str] | None
    key: MessageId | None
    remember: Duration | None
    durability: Durability | None


class ProduceOptions(ProduceManyOptions, total=False):
    """The options of ``produce``, explained at ``RedisMessageQueue.produce``."""

    message_id: MessageId | None
    dedup_for: Duration
