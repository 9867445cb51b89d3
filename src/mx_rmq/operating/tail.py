"""Tail: what happens in all workers of a queue, while it happens."""

from __future__ import annotations

import asyncio
import time
from collections import Counter, deque
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from mx_rmq import events
from mx_rmq.checks import refusal, refuse_unknown
from mx_rmq.errors import ServerUnavailable, StoreError
from mx_rmq.operating.topics import refuse_unknown_topic
from mx_rmq.storage.resend import GrowingWait
from mx_rmq.storage.tails import LASTS, Tails, Want, channel_of, decode_batch
from mx_rmq.tables import iso, plain

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Collection, Iterable, Mapping, Sequence

    from mx_rmq.events import Event
    from mx_rmq.storage.shard import Shard
    from mx_rmq.storage.shards import Shards
    from mx_rmq.storage.subscription import Subscription

_RENEW: Final = LASTS / 4
"""Seconds after which a want is noted again, and the connection is tried."""
_MOST: Final = 10_000
"""Events that wait for a slow reader; further ones are counted."""
_KINDS: Final = {str(kind.__struct_config__.tag): kind for kind in events.KINDS}


@dataclass(frozen=True, slots=True)
class TailEvent:
    """An event of a worker."""

    at: float
    """When it happened, by the worker's clock."""
    worker: str
    """The worker's name; empty for what this program noticed itself."""
    event: Event

    def as_dict(self) -> dict[str, Any]:
        """As JSON has it; the instant as ISO text in UTC."""
        own = {"at": iso(self.at), "event": self.event.name, "worker": self.worker}
        return {**own, **plain(self.event.fields), "text": self.event.text}

    def __str__(self) -> str:
        return f"{self.event.name}: {self.event.text}"


def kinds_of(wanted: Iterable[str | type[Event]]) -> list[type[Event]]:
    """The kinds of events by name, such as ``message.dead``, or by the last part of it, such as ``dead``.

    For none, all that workers report but what happens before a message ends.

    Raises:
        ConfigError: there is no such kind; names the closest one.
    """
    if isinstance(wanted, str):
        raise refusal("events", "a list of names", wanted)
    names = [name for name, kind in _KINDS.items() if kind is not events.EventsLeftOut]  # is told at any rate
    found: list[type[Event]] = []
    for each in wanted:
        if each in events.KINDS:
            found.append(each)
            continue
        if not isinstance(each, str):
            raise refusal("an event", "a name such as 'dead', or a class of mx_rmq.events", each)
        same = [name for name in names if each in (name, name.partition(".")[2])]
        if not same:
            lasts = dict.fromkeys(name.partition(".")[2] for name in names)
            refuse_unknown("event", [each], [*lasts, *names] if "." in each else list(lasts))
        found += [_KINDS[name] for name in same]
    kinds = found or [
        _KINDS[name]
        for name in names
        if not _KINDS[name].is_frequent or _KINDS[name] is events.MessageCompleted
    ]
    return list(dict.fromkeys(kinds))


async def tail(
    shards: Shards,
    topic: str | None,
    kinds: Sequence[type[Event]],
    *,
    queue: str,
    server: str,
    handled: Collection[str] = (),
) -> AsyncGenerator[TailEvent, None]:
    """Yield the events of all workers; see ``RedisMessageQueue.tail``."""
    if topic is not None:
        await refuse_unknown_topic(shards, topic, handled)
    names = tuple(sorted(str(kind.__struct_config__.tag) for kind in kinds))
    heard = _Ear(queue, topic, frozenset(names))
    hearing = _Hearing(shards.base, Want(names, topic), heard)
    waits, away_since = GrowingWait(), None
    try:
        await hearing.begin()
        while True:
            try:
                if away_since is not None:
                    await hearing.begin()
                    seconds, away_since = time.monotonic() - away_since, None
                    back = events.ServerBack(queue=queue, server=server, seconds=seconds)
                    waits.reset()
                    yield TailEvent(time.time(), "", back)
                await hearing.some()
            except ServerUnavailable as error:
                if shards.base.is_closed:
                    return
                if away_since is None:
                    away_since = time.monotonic()
                    said = f"{error}; trying until it answers"
                    lost = events.ServerUnavailable(queue=queue, server=server, error=said)
                    yield TailEvent(time.time(), "", lost)
                await asyncio.sleep(waits.next())
            for each in heard.take():
                yield each
    finally:
        hearing.end()


class _Ear:
    """What was heard and not yet taken."""

    def __init__(self, queue: str, topic: str | None, names: frozenset[str]) -> None:
        self._queue = queue
        self._topic = topic
        self._names = names
        self._events: deque[TailEvent] = deque()
        self._left_out: Counter[str] = Counter()
        self.news = asyncio.Event()
        """Set when there is something to take, or the connection is lost."""

    def hear(self, data: bytes) -> None:
        """Note what a worker published, as far as it is wanted: another program may want other events."""
        if (batch := decode_batch(data)) is None:
            return
        worker = batch.worker
        for at, event in batch.events:
            if self._wants(event):
                self._put(TailEvent(at, worker, event))
        more = {name: n for name, n in batch.left_out.items() if name in self._names or name not in _KINDS}
        if more:
            self._put(TailEvent(time.time(), worker, self._more(more)))
        self.news.set()

    def _wants(self, event: Event) -> bool:
        if self._topic is not None and getattr(event, "topic", None) != self._topic:
            return False
        return event.name in self._names

    def _put(self, each: TailEvent) -> None:
        if len(self._events) < _MOST:
            self._events.append(each)
        else:
            self._left_out[each.event.name] += 1

    def take(self) -> Iterable[TailEvent]:
        """What was heard, in its order."""
        self.news.clear()
        while self._events:
            yield self._events.popleft()
        if self._left_out:
            left_out, self._left_out = self._left_out, Counter()
            yield TailEvent(time.time(), "", self._more(left_out))

    def _more(self, counts: Mapping[str, int]) -> Event:
        return events.EventsLeftOut(queue=self._queue, counts=dict(counts))


class _Hearing:
    """Keeps the want noted and the channel open."""

    def __init__(self, shard: Shard, want: Want, ear: _Ear) -> None:
        self._shard = shard
        self._tails = Tails(shard.operating)
        self._want = want
        self._ear = ear
        self._subscription: Subscription | None = None
        self._due = 0.0

    async def begin(self) -> None:
        """Open the channel, again after a loss."""
        self.end()
        channel = channel_of(self._shard.keys)
        self._subscription = await self._shard.subscribe(channel, self._ear.hear, self._ear.news.set)
        await self._note()
        self._due = time.monotonic() + _RENEW

    async def some(self) -> None:
        """Wait for something to take; keeps the want noted.

        Raises:
            ServerUnavailable: the connection is lost.
        """
        subscription = self._subscription
        assert subscription is not None
        left = self._due - time.monotonic()
        if left > 0:
            with suppress(TimeoutError):
                async with asyncio.timeout(left):
                    await self._ear.news.wait()
        else:
            await self._note()
        if left <= 0 or subscription.lost:
            await subscription.confirm()  # raises if it is lost
            self._due = time.monotonic() + _RENEW

    async def _note(self) -> None:
        if not await self._tails.note(self._want):
            raise StoreError("too many different tails of this queue are running; end one of them")

    def end(self) -> None:
        """Close the channel."""
        if self._subscription is not None:
            self._subscription.close()
