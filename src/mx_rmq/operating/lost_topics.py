"""Where else a queue names the topic of a message whose own topic field is lost or cannot be read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mx_rmq.checks import check_topic, is_label
from mx_rmq.errors import InvalidName, UnreadableMessage
from mx_rmq.fingerprint import decode_label
from mx_rmq.message import topic_within
from mx_rmq.storage.keys import GROUP_FIELD

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from mx_rmq.operating.scan import Scan
    from mx_rmq.storage.keys import Keys

UNKNOWN: Final = "unknown"
"""The topic in which a repair keeps a message if nothing says which topic it had."""

WHAT_TO_DO: Final = (
    "nothing says which topic it had, so a repair keeps it in the topic 'unknown'; "
    "produce its payload again where it belongs, then cancel it, or delete it if it is dead"
)


def topic_in(body: bytes | None) -> str | None:
    """The topic that a body names; empty if it names none, None if it cannot be read."""
    try:
        topic = topic_within(body or b"")
        return check_topic(topic) if topic else ""
    except (UnreadableMessage, InvalidName):
        return None


async def topics_of_live(
    scan: Scan,
    keys: Keys,
    ids: Sequence[str],
    listed: Mapping[str, Iterable[bytes]],
    usable: set[str],
) -> list[str]:
    """The topic in which each message is leased, or else in whose pending lists it is; empty if in none.

    An entry of a list may be left over from an earlier message with the id. So if several topics list it,
    none of them is believed.
    """
    found = dict.fromkeys(ids, "")
    for topic, entries in listed.items():
        for id_ in ids:
            if id_.encode() in entries:
                found[id_] = topic if not found[id_] else UNKNOWN
    for topic in listed:
        key = keys.of_topic(topic, "processing")
        leases = await scan.command("HMGET", key, *ids) if key in usable else ()
        found |= {id_: topic for id_, lease in zip(ids, leases, strict=False) if lease is not None}
    return [found[id_] for id_ in ids]


async def topics_of_dead(scan: Scan, keys: Keys, ids: Sequence[str]) -> list[str]:
    """The topic of each dead message's group; empty if it is in none."""
    fields = [id_ + GROUP_FIELD for id_ in ids]
    groups = await scan.command("HMGET", keys.of_queue("dlq_payload"), *fields)
    names = [(group or b"").decode(errors="replace") + ":label" for group in groups]
    labels = await scan.command("HMGET", keys.of_queue("dlq_groups"), *names)
    topics = [decode_label(label).topic for label in labels]
    return [topic if is_label(topic) else "" for topic in topics]
