"""Sharing: publishes the events of this process while a program tails the queue."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections import Counter
from math import inf
from typing import TYPE_CHECKING, Final

from redis.exceptions import ResponseError

from mx_rmq import events
from mx_rmq.errors import MxRmqError
from mx_rmq.storage.tails import Tails

if TYPE_CHECKING:
    from collections.abc import Callable, Set

    from mx_rmq.events import Event
    from mx_rmq.storage.shard import Shard
    from mx_rmq.storage.tails import Want

_EVERY: Final = 0.25
"""Seconds between two publications."""
_MOST: Final = 100
"""Events in one publication; further ones are counted."""
_MOST_FREQUENT: Final = 80
"""Events that happen for every message leave some room for the others."""
_REFUSED: Final = 60.0
"""Seconds after a refusal before it is tried again."""
_KINDS: Final = {str(kind.__struct_config__.tag): kind for kind in events.KINDS}

_sharing: dict[tuple[int, str, str], Sharing] = {}
"""Who shares the events of a process with the programs that tail a queue on a server; one is enough."""


class Sharing:
    """Listens to the events that programs want, and publishes them on the queue's channel.

    While no program wants any, nothing is listened to.

    Args:
        shard: where to look and to publish; for a queue with several, the first.
        worker: the worker's name.
    """

    def __init__(self, shard: Shard, worker: str) -> None:
        self._tails = Tails(shard.store)
        self._queue = shard.keys.queue
        self._worker = worker
        self._place = os.getpid(), shard.url, shard.keys.prefix
        self._loop = asyncio.get_running_loop()
        self._wants: Set[Want] = frozenset()
        self._topics: dict[type[Event], Set[str] | None] = {}
        """The topics of each wanted kind, None for all events of it."""
        self._end_listening: Callable[[], None] | None = None
        self._lock = threading.Lock()
        self._heard: list[tuple[float, Event]] = []
        self._left_out: Counter[str] = Counter()
        self._publishing: asyncio.Task[None] | None = None
        self._not_before = -inf
        self._told = False
        self._first: tuple[float, Event] | None = None

    def begin(self, started: Event) -> None:
        """Remember the event with which the worker began: it happens before the first look."""
        self._first = time.time(), started

    async def look(self) -> None:
        """See what programs want now."""
        wants = frozenset(await self._tails.wants())
        if wants and (self._loop.time() < self._not_before or not self._is_first()):
            wants = frozenset()
        if wants != self._wants:
            self._follow(wants)
        if (first := self._first) is not None:
            self._first = None
            self._hear(first[1], None, first[0])

    async def close(self) -> None:
        """Publish what was heard, and listen no more."""
        self._follow(frozenset())
        if self._publishing is not None:
            self._publishing.cancel()
            await self._publish()
        if _sharing.get(self._place) is self:
            del _sharing[self._place]

    def _is_first(self) -> bool:
        """Whether this is the one of its process that shares."""
        other = _sharing.get(self._place)
        if other is None or other._loop.is_closed():
            _sharing[self._place] = self
            if other is not None:
                other._follow(frozenset())
        return _sharing[self._place] is self

    def _follow(self, wants: Set[Want]) -> None:
        """Listen to what is wanted now."""
        if self._end_listening is not None:
            self._end_listening()
            self._end_listening = None
        topics: dict[type[Event], Set[str] | None] = {}
        for want in wants:
            for kind in (_KINDS[name] for name in want.events if name in _KINDS):
                before = topics.get(kind, frozenset())
                topics[kind] = None if want.topic is None or before is None else {*before, want.topic}
        self._wants, self._topics = wants, topics
        if topics:
            self._end_listening = events.listen(self._hear, *topics)
            if self._publishing is None or self._publishing.done():
                self._publishing = self._loop.create_task(self._run(), name="mx-rmq-sharing")

    def _hear(self, event: Event, _: BaseException | None, at: float = 0.0) -> None:
        """Note an event, in whichever thread it happens."""
        topics = self._topics.get(type(event), frozenset())
        if event.queue not in ("", self._queue):
            return
        if topics is not None and getattr(event, "topic", "") not in topics:
            return
        most = _MOST_FREQUENT if event.is_frequent else _MOST
        with self._lock:
            if len(self._heard) < most:
                self._heard.append((at or time.time(), event))
            else:
                self._left_out[event.name] += 1

    async def _run(self) -> None:
        while self._wants:
            await asyncio.sleep(_EVERY)
            await self._publish()

    async def _publish(self) -> None:
        with self._lock:
            heard, self._heard = self._heard, []
            left_out, self._left_out = self._left_out, Counter()
        if not heard and not left_out:
            return
        try:
            await self._tails.publish(self._worker, heard, left_out)
        except ResponseError as error:
            self._follow(frozenset())
            self._not_before = self._loop.time() + _REFUSED
            if not self._told:
                self._told = True
                events.emit(events.EventsNotShared(queue=self._queue, error=str(error)))
        except MxRmqError:  # the server is away; what was not seen is counted
            with self._lock:
                self._left_out += left_out
                self._left_out.update(event.name for _, event in heard)
