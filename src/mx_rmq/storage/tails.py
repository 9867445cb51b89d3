"""What programs that tail a queue and its workers tell each other, over the server.

A program notes what it wants in the key ``tails``. Workers look for it several times in a second. While there
is something in it, they publish their events on a channel of the queue.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple, Union

import msgspec
from redis.exceptions import ResponseError

from mx_rmq.events import KINDS, Event
from mx_rmq.message import ENCODER

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from mx_rmq.storage.keys import Keys
    from mx_rmq.storage.store import Store

LASTS: Final = 10.0
"""Seconds for which a want counts, unless it is noted again."""
MOST_BYTES: Final = 64 * 1024
"""Bytes of the longest batch: other calls of the worker wait behind it."""


class Want(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a program wants to hear of."""

    events: tuple[str, ...]
    """The names of the kinds, sorted: programs that want the same share one entry."""
    topic: str | None = None
    """Only events of this topic; None for all events."""


class _Heard(msgspec.Struct, array_like=True):
    """An event as it is published: when it happened by the worker's clock, and the event."""

    at: float
    event: msgspec.Raw


class _Batch(msgspec.Struct, omit_defaults=True):
    """What a worker publishes at once."""

    worker: str
    events: list[_Heard] = []
    left_out: dict[str, int] = {}


class Shared(NamedTuple):
    """What a worker published at once."""

    worker: str
    events: list[tuple[float, Event]]
    """When each happened, by the worker's clock."""
    left_out: dict[str, int]
    """How many more events happened, by name."""


_UNKNOWN: Final = "unknown"
"""Stands for events that this version does not know."""
_batches: Final = msgspec.json.Decoder(_Batch)
_wants: Final = msgspec.json.Decoder(Want)
_any_event: Any = Union[tuple(KINDS)]  # noqa: UP007 - X | Y needs the names, and KINDS is a list
_events: Final[msgspec.json.Decoder[Event]] = msgspec.json.Decoder(_any_event)


class Tails:
    """The wants and the channel of one shard."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._key = store.keys.of_queue("tails")
        self._channel = channel_of(store.keys)

    async def note(self, want: Want) -> bool:
        """Note a want for ``LASTS`` seconds; False if there are too many others."""
        return await self._store.watch(ENCODER.encode(want), lasts=LASTS)

    async def wants(self) -> list[Want]:
        """What programs want now; what another program wrote there is passed over."""
        try:
            texts = await self._store.commands.execute_command("ZRANGE", self._key, 0, -1)
        except ResponseError:  # another program's key; no message depends on it
            return []
        wants = []
        for text in texts:
            try:
                wants.append(_wants.decode(text))
            except (msgspec.MsgspecError, UnicodeDecodeError):
                continue
        return wants

    async def publish(
        self, worker: str, events: Sequence[tuple[float, Event]], left_out: Mapping[str, int]
    ) -> None:
        """Publish events of a worker, as many as fit into a batch; the others are counted as left out.

        Raises:
            ResponseError: the user may not publish.
        """
        batch, size, more = _Batch(worker), 0, dict(left_out)
        for at, event in events:
            encoded = _encoded(event)
            if size + len(encoded) > MOST_BYTES:
                more[event.name] = more.get(event.name, 0) + 1
            else:
                size += len(encoded)
                batch.events.append(_Heard(round(at, 3), msgspec.Raw(encoded)))
        batch.left_out = more
        await self._store.commands.execute_command("PUBLISH", self._channel, ENCODER.encode(batch))


def channel_of(keys: Keys) -> str:
    """The channel on which workers publish their events."""
    return keys.of_queue("events")


def decode_batch(data: bytes) -> Shared | None:
    """Read what a worker published; None for what another program did."""
    try:
        batch = _batches.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    known, left_out = [], dict(batch.left_out)
    for heard in batch.events:
        try:
            known.append((heard.at, _events.decode(heard.event)))
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):  # of a later version
            left_out[_UNKNOWN] = left_out.get(_UNKNOWN, 0) + 1
    return Shared(batch.worker, known, left_out)


def _encoded(event: Event) -> bytes:
    try:
        return ENCODER.encode(event)
    except UnicodeEncodeError:  # an error's text with a lone surrogate
        plain = {name: _writable(value) for name, value in event.fields.items()}
        return ENCODER.encode({"event": event.name, **plain})


def _writable(value: object) -> object:
    return value.encode(errors="backslashreplace").decode() if isinstance(value, str) else value
