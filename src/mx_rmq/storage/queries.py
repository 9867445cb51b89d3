"""Read a queue for people: plain commands that change nothing, none on a message's path."""

from __future__ import annotations

import asyncio
from itertools import chain, pairwise
from math import inf
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
from redis.exceptions import ResponseError

from mx_rmq.checks import are_labels, is_label
from mx_rmq.limits import REPLY_BYTES
from mx_rmq.storage.contract import Ended, Lease
from mx_rmq.storage.counters import RARE, RARE_FIELDS, STALE, whole
from mx_rmq.storage.facts import Counts, Load, TopicCounts, WorkerFacts, Workers, held_ids
from mx_rmq.storage.keys import HELD, KEPT_FIELD, PENDING, QUEUES, TOPIC_FIELD, queue_of
from mx_rmq.storage.scanning import scan_hash

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Mapping, Sequence

    from mx_rmq.message import Lane
    from mx_rmq.storage.commands import Commands
    from mx_rmq.storage.contract import TopicRow
    from mx_rmq.storage.store import Store

SILENCE: Final = 30.0
"""Seconds without a registration after which a worker does not count as live."""


class Unfinished(NamedTuple):
    """The messages of a topic that are neither delayed nor done nor dead."""

    pending: int
    leased: int
    paused: bool


class Live(NamedTuple):
    """A live message as it is stored; instants in seconds, None for what it does not have."""

    body: bytes
    topic: str
    lease: str | None
    due_at: float | None
    deadline: float | None
    """While pending its expiry, while processing the end of its lease."""
    kept: str | None
    """How often it was leased, its lane and its expiry, if it is delayed or was leased before."""


def info_fields(reply: Any) -> dict[str, str]:
    """The fields in a reply to INFO."""
    lines = reply.decode().splitlines() if isinstance(reply, bytes) else []
    return dict(line.split(":", 1) for line in lines if ":" in line)


class ClientIdentity(NamedTuple):
    """The connections of a worker as their server knows them."""

    id: int
    server: str
    """The server's run id: after a restart the same client id belongs to another connection."""
    parked: int = 0
    """The client id of the parked claim's connection; 0 if it is not known, or at another server."""

    @property
    def text(self) -> bytes:
        """How they are registered."""
        return f"{self.server} {self.id}{f'+{self.parked}' if self.parked else ''}".encode()

    @classmethod
    def parse(cls, text: bytes) -> ClientIdentity | None:
        """Read registered connections; None for what another program wrote."""
        server, _, said = text.partition(b" ")
        ids = said.split(b"+", 1)
        if not server.isalnum() or not all(id_.isdigit() and len(id_) < 20 and int(id_) > 0 for id_ in ids):
            return None
        return cls(int(ids[0]), server.decode(), *map(int, ids[1:]))


class Queries:
    """Reads one shard."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._commands: Commands = store.commands
        self._keys = store.keys
        self.queue = store.keys.queue
        """The queue's name."""
        self._now = store.now

    async def counts(self) -> Counts:
        """The counts of every topic, in a few round trips: two for up to 1,600 topics."""
        topics, paused, delayed, dead, workers, rare = await asyncio.gather(
            self._read("SMEMBERS", "topics"),
            self._read("SMEMBERS", "paused"),
            self._read("ZCARD", "delay_tasks"),
            self._read("ZCARD", "dlq"),
            self.workers(),
            self._rare_counters(),
        )
        stopped = _labels(paused)
        counts = await self._counts(sorted({*_labels(topics), *stopped}), stopped, workers, rare)
        return Counts(counts, delayed, dead, workers.read_at)

    async def _rare_counters(self) -> dict[str, set[str]]:
        """Which rare counters each topic has; one that begins later is in the next counts."""
        found: dict[str, set[str]] = {}
        try:
            fields = await scan_hash(self._commands, self._keys.of_queue("counters"), _FIELDS, RARE_FIELDS)
        except ResponseError as error:
            if "WRONGTYPE" not in str(error):
                raise
            return found  # what another program wrote there counts nothing
        for field in fields:
            topic, _, name = _text(field).rpartition(":")
            if name in RARE:
                found.setdefault(topic, set()).add(name)
        return found

    async def topic_counts(self, topic: str) -> TopicCounts:
        """The counts of one topic."""
        (row,), paused, workers = await asyncio.gather(
            self._store.count([topic]), self.paused(topic), self.workers()
        )
        return _counts(row, _serving(workers).get(topic), paused=paused)

    async def _counts(
        self, topics: Sequence[str], paused: set[str], workers: Workers, rare: Mapping[str, set[str]]
    ) -> dict[str, TopicCounts]:
        """The counts of topics: the server counts some while those before them are read here."""
        serving = _serving(workers)
        chunks = [topics[start : start + _TOPICS] for start in range(0, len(topics), _TOPICS)]
        counts: list[list[TopicCounts]] = [[] for _ in chunks]
        left = iter(zip(chunks, counts, strict=True))

        async def count_in_turn() -> None:
            for asked, found in left:
                while len(found) < len(asked):
                    some = asked[len(found) :]
                    rows = await self._store.count(some, rare)
                    for topic, row in zip(some, rows, strict=False):
                        found.append(_counts(row, serving.get(topic), paused=topic in paused))

        await asyncio.gather(*(count_in_turn() for _ in range(_CALLS)))
        return dict(zip(topics, chain.from_iterable(counts), strict=True))

    async def unfinished(self, *topics: str) -> list[Unfinished]:
        """What is pending and what is leased in each of the topics."""
        asked: list[Awaitable[Any]] = []
        for topic in topics:
            asked += [self._command("LLEN", self._keys.of_topic(topic, part)) for part in PENDING.values()]
            asked += [
                self._command("HLEN", self._keys.of_topic(topic, "processing")),
                self._read("HGET", "counters", f"{topic}:{STALE}"),
                self._read("SISMEMBER", "paused", topic),
            ]
        replies = iter(await asyncio.gather(*asked))
        return [
            Unfinished(max(0, high + normal + low - max(0, whole(stale))), leased, bool(paused))
            for high, normal, low, leased, stale, paused in zip(*[replies] * 6, strict=True)
        ]

    async def any_unfinished(self) -> bool:
        """Whether anything is pending or leased in any topic: each such message has a deadline."""
        return bool(await self._read("ZCARD", "all_expire_monitor"))

    async def paused(self, topic: str) -> bool:
        """Whether a topic is paused."""
        return bool(await self._read("SISMEMBER", "paused", topic))

    async def held(self) -> set[str]:
        """The topics that wait for the shards of an older generation."""
        members = [_text(each) for each in await self._read("SMEMBERS", "paused")]
        return {each.removeprefix(HELD) for each in members if each.startswith(HELD)}

    async def paused_topics(self) -> set[str]:
        """The topics that are paused."""
        return _labels(await self._read("SMEMBERS", "paused"))

    async def done_until(self, cursor: bytes) -> tuple[bytes, list[tuple[str, int]]]:
        """Some ids that stay taken after completion, each until an instant in ms, and how to go on."""
        following, rows = await self._read("ZSCAN", "done", cursor, "COUNT", 1000)
        pairs = ((_text(id_), float(until)) for id_, until in _rows(rows))
        return following, [(id_, int(until)) for id_, until in pairs if is_label(id_) and until < inf]

    async def workers(self) -> Workers:
        """The workers that registered within the last ``SILENCE`` seconds.

        A silent one is removed when another worker registers, which may never happen.
        """
        facts, seen, now = await asyncio.gather(
            self._read("HGETALL", "workers"),
            self._read("ZRANGE", "workers_seen", 0, -1, "WITHSCORES"),
            self.time(),
        )
        said, since = _pairs(facts), (now - SILENCE) * 1000
        live = [name for name, score in _rows(seen) if name in said and float(score) >= since]
        scores = _pairs(seen)
        return Workers((_worker(name, scores[name], said[name]) for name in sorted(live)), now)

    async def is_held(self, id_: str, topic: str, lease: Lease) -> bool:
        """Whether a leased message is held ready by its worker, as far as that is known."""
        key = self._keys.of_topic(topic, "processing")
        workers, leases = await asyncio.gather(self.workers(), self._command("HLEN", key))
        owner = [worker for worker in workers if worker.name == lease.holder]
        if any(worker.load.get(topic, _NONE).held or leases > worker.at_once(topic) for worker in owner):
            return id_ in held_ids(topic, await self.leases(topic), owner)
        return False

    async def connections(self, names: Sequence[str] | None = None) -> dict[str, bytes]:
        """The connections by which workers registered, as ``ClientIdentity.text``: of some, or of all."""
        if names is None:
            found = _pairs(await self._read("HGETALL", "workers_connections"))
            return {_text(name): said for name, said in found.items()}
        if not names:
            return {}
        rows = zip(names, await self._read("HMGET", "workers_connections", *names), strict=True)
        return {name: said for name, said in rows if said is not None}

    async def own_connection(self) -> ClientIdentity:
        """The connection that these queries use.

        Raises:
            ResponseError: the user may not run the commands, or a proxy shares connections.
        """
        own = await self._command("CLIENT", "ID")
        server = (await self.info("server")).get("run_id", "")
        if not isinstance(own, int) or not server or own not in await self.connected([own]):
            raise ResponseError("the server does not list this connection; does a proxy share connections?")
        return ClientIdentity(own, server)

    async def connected(self, ids: Collection[int]) -> set[int]:
        """Those of the given client ids that are connected.

        The server needs 4 to 17 µs for each, in which it does nothing else, so many are asked for in parts.
        """
        some = list(ids)
        chunks = [some[start : start + _CLIENTS] for start in range(0, len(some), _CLIENTS)]
        replies = await asyncio.gather(*(self._command("CLIENT", "LIST", "ID", *chunk) for chunk in chunks))
        lines = chain.from_iterable(reply.splitlines() for reply in replies)
        return {int(line[3 : line.index(b" ")]) for line in lines if line.startswith(b"id=")}

    async def next_deadline(self) -> float | None:
        """When the first lease or lifetime ends, in seconds since 1970; None if there is none."""
        first = await self._read("ZRANGE", "all_expire_monitor", 0, 0, "WITHSCORES")
        return _seconds(first[1]) if first else None

    async def topics(self) -> list[str]:
        """The topics that are known."""
        return sorted(_text(topic) for topic in await self._read("SMEMBERS", "topics"))

    async def topic_names(self) -> set[str]:
        """The names of the topics that are known or paused, without those from other programs."""
        known, paused = await asyncio.gather(
            self._read("SMEMBERS", "topics"), self._read("SMEMBERS", "paused")
        )
        return {name.decode() for name in {*known, *paused} if is_label(name)}

    async def knows(self, topic: str) -> bool:
        """Whether a topic was produced to, or is paused."""
        return any(
            await asyncio.gather(
                self._read("SISMEMBER", "topics", topic), self._read("SISMEMBER", "paused", topic)
            )
        )

    async def queues(self) -> set[str]:
        """The names of the queues on this server that were produced to or have workers."""
        names = set()
        cursor = b"0"
        while True:
            cursor, keys = await self._command("SCAN", cursor, "MATCH", QUEUES, "COUNT", 1000)
            names |= {name for key in keys if (name := queue_of(_text(key)))}
            if int(cursor) == 0:
                return names

    async def layout(self) -> str:
        """The layout as it is stored under this tag; empty for none."""
        return _text(await self._read("GET", "layout"))

    async def time(self) -> float:
        """The time that the scripts go by, in seconds since 1970: the server's, unless a test sets it."""
        if self._now is not None:
            return self._now() / 1e6
        seconds, us = await self._command("TIME")
        return int(seconds) + int(us) / 1e6

    async def timed(self, clock: Callable[[], float]) -> tuple[float, float]:
        """The server's time, and when it was asked for by *clock*: just when the question was written."""
        return clock(), await self.time()

    async def ping(self) -> None:
        """Make one round trip, with a command that every documented right includes."""
        await self._command("TIME")

    async def message(self, id_: str) -> Live | None:
        """A live message, None if there is none.

        Its body is read last, so that it is never older than the place the message was seen in.
        """
        (topic,) = await self._read("HMGET", "payload", id_ + TOPIC_FIELD)
        lease = None
        if topic is not None:
            lease = await self._command("HGET", self._keys.of_topic(_text(topic), "processing"), id_)
        due = await self._read("ZSCORE", "delay_tasks", id_)
        deadline = await self._read("ZSCORE", "all_expire_monitor", id_)
        body, kept = await self._read("HMGET", "payload", id_, id_ + KEPT_FIELD)
        if body is None:
            return None
        return Live(
            body, _text(topic), _text(lease) or None, _seconds(due), _seconds(deadline), _text(kept) or None
        )

    async def trail(self, count: int) -> list[bytes]:
        """The latest notes of what operators did, each with its time in ms before it."""
        return list(await self._read("LRANGE", "trail", 0, count - 1))

    async def vanished(self) -> dict[str, bytes]:
        """What was noted about workers that vanished, each with its time in ms before it."""
        return {_text(name): note for name, note in _pairs(await self._read("HGETALL", "vanished")).items()}

    async def ended(self, id_: str) -> Ended | None:
        """What became of a message, if that is remembered."""
        return Ended.parse(_text(await self._command("GET", self._keys.of_end(id_))))

    async def lives(self, topic: str, ids: Sequence[str]) -> list[Live | None]:
        """Messages of a topic without their bodies; None for one that does not belong to it."""
        if not ids:
            return []
        fields = [id_ + part for part in (TOPIC_FIELD, KEPT_FIELD) for id_ in ids]
        stored, leases, dues, deadlines = await asyncio.gather(
            self._read("HMGET", "payload", *fields),
            self._command("HMGET", self._keys.of_topic(topic, "processing"), *ids),
            self._read("ZMSCORE", "delay_tasks", *ids),
            self._read("ZMSCORE", "all_expire_monitor", *ids),
        )
        return [
            None
            if _text(of) != topic
            else Live(b"", topic, _text(lease) or None, _seconds(due), _seconds(end), _text(kept) or None)
            for of, kept, lease, due, end in zip(
                stored[: len(ids)], stored[len(ids) :], leases, dues, deadlines, strict=True
            )
        ]

    async def pending_ids(
        self, topic: str, lane: Lane, start: int, count: int, *, newest: bool = False
    ) -> list[str]:
        """Entries of a pending list, the next to be claimed first, or last; some may be stale."""
        key = self._keys.of_topic(topic, PENDING[lane])
        if newest:
            return [_text(id_) for id_ in await self._command("LRANGE", key, start, start + count - 1)]
        entries = await self._command("LRANGE", key, -start - count, -start - 1)
        return [_text(id_) for id_ in reversed(entries)]

    async def lease_count(self, topic: str) -> int:
        """How many messages of a topic are leased."""
        count: int = await self._command("HLEN", self._keys.of_topic(topic, "processing"))
        return count

    async def leases(self, topic: str) -> dict[str, Lease]:
        """All readable leases of a topic, by id."""
        leases: dict[str, Lease] = {}
        cursor = b"0"
        while True:
            key = self._keys.of_topic(topic, "processing")
            cursor, rows = await self._command("HSCAN", key, cursor, "COUNT", 500)
            leases |= {_text(id_): lease for id_, text in _rows(rows) if (lease := Lease.parse(_text(text)))}
            if int(cursor) == 0:
                return leases

    async def bodies(self, ids: Sequence[str]) -> list[bytes | None]:
        """The bodies of messages that one claim has returned, so that they fit into a reply."""
        return list(await self._read("HMGET", "payload", *ids)) if ids else []

    async def values(self, part: str, names: Sequence[str]) -> AsyncIterator[list[bytes | None]]:
        """The values of a hash's fields in the given order, as many at a time as fit into a reply."""
        some: list[str] = []
        size = 0
        for name, length in zip(names, await self._lengths(part, names), strict=True):
            if some and size + length > REPLY_BYTES:
                yield await self._read("HMGET", part, *some)
                some, size = [], 0
            some.append(name)
            size += length + _FRAME
        if some:
            yield await self._read("HMGET", part, *some)

    async def _lengths(self, part: str, names: Sequence[str]) -> list[int]:
        """The lengths of a hash's fields, 0 for a missing one; the commands are pipelined."""
        key = self._keys.of_queue(part)
        asked = [self._commands.execute_command("HSTRLEN", key, name) for name in names]
        return list(await asyncio.gather(*asked))

    async def delayed_from(
        self, score: str, skip: int, count: int, *, latest: bool = False
    ) -> list[tuple[str, str]]:
        """Ids of delayed messages and their due times as stored, from a due time on, or back from it."""
        if skip <= _STEPPED:
            span = ("-inf", "BYSCORE", "REV") if latest else ("inf", "BYSCORE")
            options = ("LIMIT", skip, count, "WITHSCORES")
            rows = await self._read("ZRANGE", "delay_tasks", score, *span, *options)
        else:  # the server steps over each; by rank it finds the place at once
            before = (f"({score}", "+inf") if latest else ("-inf", f"({score}")
            start = skip + await self._read("ZCOUNT", "delay_tasks", *before)
            order = ("REV", "WITHSCORES") if latest else ("WITHSCORES",)
            rows = await self._read("ZRANGE", "delay_tasks", start, start + count - 1, *order)
        return [(_text(id_), _text(due)) for id_, due in _rows(rows)]

    async def due_counts(self, edges: Sequence[float]) -> list[int]:
        """How many delayed messages are due up to the first instant, between each two, and after the last."""
        marks = ["-inf", *(f"({edge * 1000:.0f}" for edge in edges), "+inf"]
        spans = [(since, until.removeprefix("(")) for since, until in pairwise(marks)]
        return list(await asyncio.gather(*(self._read("ZCOUNT", "delay_tasks", *span) for span in spans)))

    async def delayed_ids(self, start: int, count: int) -> list[str]:
        """Ids of delayed messages, the next one due first."""
        return [_text(id_) for id_ in await self._read("ZRANGE", "delay_tasks", start, start + count - 1)]

    async def topics_of(self, ids: Sequence[str]) -> list[str]:
        """The topics of live messages, empty for one that is gone."""
        if not ids:
            return []
        return [_text(t) for t in await self._read("HMGET", "payload", *(id_ + TOPIC_FIELD for id_ in ids))]

    async def info(self, *sections: str) -> dict[str, str]:
        """The fields of the server's INFO."""
        return info_fields(await self._command("INFO", *sections))

    async def _command(self, *args: Any) -> Any:
        return await self._commands.execute_command(*args)

    async def _read(self, command: str, part: str, *args: Any) -> Any:
        return await self._commands.execute_command(command, self._keys.of_queue(part), *args)


_FRAME: Final = 16
"""Bytes of a reply per value, beside the value itself."""
_STEPPED: Final = 1000
"""Messages due at the same instant that a read may step over."""
_CLIENTS: Final = 250
"""Connections looked at in one call. The server needs 1 ms for them."""
_TOPICS: Final = 200
"""Topics counted in one call. The server needs 2 ms for them."""
_CALLS: Final = 8
"""Calls that count topics at a time. The server answers all that it has read of them at once, so with all
of them it would work alone, and then this process."""
_FIELDS: Final = 10_000
"""Counters looked at in one call for rare ones. The server needs 2 ms for them."""


class _Serving(NamedTuple):
    """What the live workers of a topic have said."""

    held: int = 0
    at_once: float = 0.0
    """How many messages they can run at once."""


_NONE: Final = Load()


def _serving(workers: Iterable[WorkerFacts]) -> dict[str, _Serving]:
    """What the workers have said, by topic."""
    serving: dict[str, _Serving] = {}
    for worker in workers:
        for topic in worker.topics:
            held, at_once = serving.get(topic, _Serving())
            here = worker.load.get(topic, _NONE).held
            serving[topic] = _Serving(held + here, at_once + worker.at_once(topic))
    return serving


def _counts(row: TopicRow, serving: _Serving | None, *, paused: bool) -> TopicCounts:
    """The counts of a topic.

    Its workers have said how many messages they hold ready, a moment ago. More than they run at once they
    hold at any rate.
    """
    pending, leases, delayed, in_dlq, oldest, *totals = row
    held = 0
    if serving is not None:
        held = int(min(leases, max(serving.held, leases - serving.at_once)))
    oldest_at = None if oldest is None else float(oldest)
    # By position: a queue may have thousands of topics.
    return TopicCounts(pending, leases - held, held, delayed, in_dlq, oldest_at, paused, *totals)


def _worker(name: bytes, seen_ms: bytes, facts: bytes) -> WorkerFacts:
    """Parse a worker's registration; a later version may write more fields, another program anything."""
    try:
        said = msgspec.json.decode(facts, type=dict[str, Any])
        seen = {"name": _text(name), "seen_at": float(seen_ms) / 1000}
        return msgspec.convert({"topics": ()} | said | seen, WorkerFacts)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return WorkerFacts(_text(name), float(seen_ms) / 1000, ())


def _labels(names: Collection[bytes]) -> set[str]:
    """The topics among names; those that are no labels are not from mx-rmq."""
    texts = [_text(name) for name in names]
    return set(texts if are_labels(texts) else filter(is_label, texts))


def _text(value: bytes | None) -> str:
    return "" if value is None else value.decode(errors="replace")


def _seconds(score: bytes | None) -> float | None:
    return None if score is None else float(score) / 1000


def _rows(flat: Sequence[bytes]) -> list[tuple[bytes, bytes]]:
    return list(zip(flat[::2], flat[1::2], strict=True))


def _pairs(flat: Sequence[bytes]) -> dict[bytes, bytes]:
    return dict(_rows(flat))
