"""What is stored about a worker that vanished."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mx_rmq.storage.contract import Delivery

_IDS: Final = 5
"""Messages that are named."""


class VanishedNote(msgspec.Struct, omit_defaults=True):
    """What another worker notes about a worker that vanished."""

    seen_by: str = ""
    """The worker that missed it."""
    messages: int = 0
    """How many messages it had."""
    ids: list[str] = []
    """Some of them."""


def encode_vanished(seen_by: str, deliveries: Sequence[Delivery]) -> bytes:
    """A note about a worker that had *deliveries*."""
    ids = [delivery.id for delivery in deliveries[:_IDS]]
    return msgspec.json.encode(VanishedNote(seen_by, len(deliveries), ids))


def decode_vanished(stored: bytes) -> tuple[float, VanishedNote] | None:
    """When a worker was noted, and what; None if another program wrote it."""
    at, _, text = stored.partition(b" ")
    try:
        return int(at) / 1000, msgspec.json.decode(text, type=VanishedNote)
    except (ValueError, OverflowError, msgspec.MsgspecError):
        return None
