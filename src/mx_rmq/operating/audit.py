"""The audit: reads a whole queue and checks that every message is in exactly one place (I1–I3).

It reads in chunks, so the server stays responsive. A script examines each message atomically, with
everything the queue holds of it. Only whether a pending message is in its list is read separately: lists
are read from the end where entries are added, so that none is missed. A message not found there is looked
for a second time before it counts as stray.
"""

from __future__ import annotations

import time
from collections import Counter
from math import inf
from time import monotonic
from typing import TYPE_CHECKING, Any, Final

from mx_rmq.checks import is_label
from mx_rmq.operating.audit_report import AuditReport, AuditReports, Finding
from mx_rmq.operating.group_audit import check_groups, with_groups
from mx_rmq.operating.lost_topics import (
    UNKNOWN,
    WHAT_TO_DO,
    topic_in,
    topics_of_dead,
    topics_of_live,
)
from mx_rmq.operating.scan import CHUNK, Scan, TimeOver, chunked
from mx_rmq.storage.contract import Examined, Suspect
from mx_rmq.storage.counters import EVENTS, STALE, Counters
from mx_rmq.storage.keys import (
    ERROR_FIELD,
    GROUP_FIELD,
    KEPT_FIELD,
    PENDING,
    QUEUE_PARTS,
    TOPIC_FIELD,
    TOPIC_PARTS,
)
from mx_rmq.storage.queries import Queries
from mx_rmq.storage.shards import ask_all

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterable

    from mx_rmq.storage.shard import Shard
    from mx_rmq.storage.shards import Shards
    from mx_rmq.storage.store import Store

FIELDS: Final = tuple(field.encode() for field in (TOPIC_FIELD, KEPT_FIELD, ERROR_FIELD, GROUP_FIELD))
"""The endings of the fields that a message has beside its body."""

_TOPICLESS: Final = {"body-without-topic", "dead-without-topic"}
"""Findings about messages whose topic field is lost."""

_UNGROUPED: Final = "ungrouped"
"""What the server says of a dead message that no group counts."""

_STALE: Final = f":{STALE}"
"""The ending of the counter of a topic's stale entries."""


async def audit(
    store: Store,
    *,
    repair: bool = False,
    lease: float = 15.0,
    within: float | None = None,
    progress: Callable[[int], None] | None = None,
) -> AuditReport:
    """Check a queue, and with *repair* put every stray message back where it is not lost.

    A body in no place becomes pending. A lease without deadline gets one of *lease* seconds. What is
    left of a message without body is removed. A key of the wrong type is renamed out of the way. A
    field that belongs to no message is moved to the hash ``<key>:foreign``.

    Args:
        store: of the shard.
        repair: whether to mend what is found.
        lease: seconds that a lease without deadline gets.
        within: seconds after which to return what was found so far; None for no limit.
        progress: called with the number of messages looked at so far.
    """
    until = inf if within is None else monotonic() + within
    scan = Scan(store.commands, until=until)
    run = _Audit(store, scan, repair=repair, lease=lease, progress=progress)
    try:
        await run.run()
    except TimeOver:
        run.report.finished = run.report.counters_checked = False
    return run.report


async def audit_all(
    shards: Shards, *, repair: bool, lease: float, progress: Callable[[int], None] | None
) -> AuditReports:
    """Check all shards of a queue at once; *progress* is called with the number looked at in all."""
    looked: dict[Shard, int] = {}

    async def one(shard: Shard) -> AuditReport:
        def tell(count: int) -> None:
            looked[shard] = count
            if progress is not None:
                progress(sum(looked.values()))

        report = await audit(shard.operating, repair=repair, lease=lease, progress=tell)
        report.shard = shard.name
        return report

    return AuditReports(await ask_all(await shards.now(), one))


class _Audit:
    def __init__(
        self,
        store: Store,
        scan: Scan,
        *,
        repair: bool,
        lease: float,
        progress: Callable[[int], None] | None,
    ) -> None:
        self._store = store
        self._keys = store.keys
        self._scan = scan
        self._repair = repair
        self._lease = lease
        self._progress = progress
        self.report = AuditReport()
        self._live: Counter[str] = Counter()
        self._dead: Counter[str] = Counter()
        self._stale: dict[str, int] = {}
        self._strays: Counter[str] = Counter()
        """Messages in no place, per topic; a repair adds a list entry for each."""
        self._reported: set[tuple[str, str]] = set()

    async def run(self) -> None:
        topics = await self._topics()
        usable = await self._check_types(topics)
        if not all(self._keys.of_queue(part) in usable for part in QUEUE_PARTS):
            return  # Without repair, a key of the wrong type cannot be judged.
        before = await self._counters()
        listed = await self._listed(topics, usable)
        unseen = await self._check_bodies(listed, usable)
        await self._check_unseen(unseen, topics)
        await self._check_places(topics, usable)
        await self._check_dead()
        await self._check_groups()
        await self._check_counters(before)
        await self._check_hints(before, listed, usable)

    # -- keys

    async def _topics(self) -> list[str]:
        """Every topic that has a key. Found by SCAN: the ``topics`` set is only for tools."""
        topics = set()
        pattern = self._keys.prefix.replace("[", "\\[") + "*"
        async for key in self._scan.names(pattern):
            name = key.decode(errors="replace").removeprefix(self._keys.prefix)
            topics |= {topic for part in TOPIC_PARTS if is_label(topic := _before(name, ":" + part))}
        return sorted(topics)

    async def _check_types(self, topics: Iterable[str]) -> set[str]:
        """The usable keys: those of the right type, missing, or renamed out of the way by the repair."""
        expected = {self._keys.of_queue(part): kind for part, kind in QUEUE_PARTS.items()}
        for topic in topics:
            expected |= {self._keys.of_topic(topic, part): kind for part, kind in TOPIC_PARTS.items()}
        usable = set()
        for key, kind in expected.items():
            found = (await self._scan.command("TYPE", key)).decode()
            if found in (kind, "none"):
                usable.add(key)
                continue
            if self._repair:
                aside = f"{key}:foreign:{time.time_ns()}"
                await self._scan.command("RENAME", key, aside)
                usable.add(key)
            self._add("wrong-type", key, detail=f"is a {found}, not a {kind}")
        return usable

    # -- messages

    async def _listed(self, topics: Iterable[str], usable: set[str]) -> dict[str, Counter[bytes]]:
        """The entries of each topic's pending lists."""
        listed: dict[str, Counter[bytes]] = {}
        for topic in topics:
            entries = listed[topic] = Counter()
            lists = [self._keys.of_topic(topic, part) for part in PENDING.values()]
            for key in filter(usable.__contains__, lists):
                async for chunk in self._scan.list_entries(key):
                    entries.update(chunk)
        return listed

    async def _check_bodies(self, listed: dict[str, Counter[bytes]], usable: set[str]) -> list[Suspect]:
        """Judge every stored message; returns those that should be pending but were in no list."""
        unseen: list[Suspect] = []
        claimable: Counter[str] = Counter()

        async def seek(ids: list[str]) -> list[str]:
            return await topics_of_live(self._scan, self._keys, ids, listed, usable)

        async for suspects in chunked(self._stored("payload")):
            for suspect, verdict in await self._judge(await self._with_topics("payload", suspects, seek)):
                if verdict.place == "none":
                    continue
                self.report.places[verdict.place] += 1
                self._live[verdict.topic] += 1
                if verdict.place == "pending" and "body-in-no-place" not in verdict.findings:
                    if suspect.id in listed.get(verdict.topic, ()):
                        claimable[verdict.topic] += 1
                    else:
                        unseen.append(suspect)
            self._tell()
        self._stale = {topic: entries.total() - claimable[topic] for topic, entries in listed.items()}
        self.report.stale_hints = sum(self._stale.values())
        return unseen

    async def _check_unseen(self, unseen: list[Suspect], topics: list[str]) -> None:
        """Look again for messages that were in no list: one may have been promoted or produced just then."""
        if not unseen:
            return
        still = [s for s, v in await self._look(unseen) if v.place == "pending"]
        before = await self._kept(still)
        topics = sorted({*topics, *await self._topics()})  # a topic that was empty had no keys
        listed = await self._listed(topics, await self._check_types(topics))
        again = await self._look(still)
        after = await self._kept(still)  # if it differs, the message was claimed and released in between
        stray = [
            suspect._replace(listed=False)
            for (suspect, verdict), one, other in zip(again, before, after, strict=True)
            if verdict.place == "pending" and one == other and suspect.id not in listed.get(verdict.topic, ())
        ]
        for start in range(0, len(stray), CHUNK):
            await self._judge(stray[start : start + CHUNK])

    async def _kept(self, suspects: list[Suspect]) -> list[Any]:
        """The ``:keep`` field of each message: it holds how often the message was leased before."""
        kept: list[Any] = []
        for start in range(0, len(suspects), CHUNK):
            fields = [_shown(suspect.id) + KEPT_FIELD for suspect in suspects[start : start + CHUNK]]
            kept += await self._scan.command("HMGET", self._keys.of_queue("payload"), *fields)
        return kept

    async def _check_places(self, topics: Iterable[str], usable: set[str]) -> None:
        """Judge the entries of every place. Those with a body are judged already; the others are strays."""
        for topic in topics:
            key = self._keys.of_topic(topic, "processing")
            if key in usable:
                async for chunk in chunked(self._entries("HSCAN", key, found_in=topic)):
                    await self._judge(chunk)
        for part in ("all_expire_monitor", "delay_tasks"):
            async for chunk in chunked(self._entries("ZSCAN", self._keys.of_queue(part))):
                await self._judge(chunk)

    async def _check_dead(self) -> None:
        async def seek(ids: list[str]) -> list[str]:
            return await topics_of_dead(self._scan, self._keys, ids)

        async for chunk in chunked(self._stored("dlq_payload")):
            suspects = await with_groups(self._store, await self._with_topics("dlq_payload", chunk, seek))
            for _, verdict in await self._judge(suspects):
                if verdict.place == "dead":
                    self.report.places["dead"] += 1
                    self._dead[verdict.topic] += 1
                    self.report.ungrouped += _UNGROUPED in verdict.findings
            self._tell()
        async for chunk in chunked(self._entries("ZSCAN", self._keys.of_queue("dlq"))):
            await self._judge(chunk)

    async def _check_groups(self) -> None:
        """Check how many dead messages each group counts, unless that changed during the count."""
        wrong = await check_groups(self._store, repair=self._repair)
        if wrong is None:
            self.report.counters_checked = False
        for group in wrong or ():
            self._add("groups-disagree", group.id, topic=group.topic, detail=group.detail)

    async def _judge(self, suspects: list[Suspect]) -> list[tuple[Suspect, Examined]]:
        """Examine each suspect atomically, report each problem once, and mend it if repairing."""
        verdicts = await self._store.examine(suspects, mend=self._repair, lease=self._lease)
        for suspect, verdict in zip(suspects, verdicts, strict=True):
            for kind in verdict.findings:
                if kind != _UNGROUPED:
                    detail = WHAT_TO_DO if kind in _TOPICLESS and verdict.topic == UNKNOWN else ""
                    self._add(kind, _shown(suspect.id), topic=verdict.topic, detail=detail)
            self._strays[verdict.topic] += "body-in-no-place" in verdict.findings
        return list(zip(suspects, verdicts, strict=True))

    async def _look(self, suspects: list[Suspect]) -> list[tuple[Suspect, Examined]]:
        seen: list[tuple[Suspect, Examined]] = []
        for start in range(0, len(suspects), CHUNK):
            chunk = suspects[start : start + CHUNK]
            seen += zip(chunk, await self._store.examine(chunk), strict=True)
        return seen

    # -- counters

    async def _counters(self) -> dict[str, int]:
        pairs = await self._scan.command("HGETALL", self._keys.of_queue("counters"))
        if not isinstance(pairs, dict):
            pairs = dict(zip(pairs[::2], pairs[1::2], strict=True))
        return {
            name.decode(errors="replace"): int(value)
            for name, value in pairs.items()
            if value.lstrip(b"-").isdigit() and len(value) <= 20  # a longer number is not from mx-rmq
        }

    async def _check_counters(self, before: dict[str, int]) -> None:
        """Check that gains minus losses match the messages found, unless the counters changed in between."""
        counters = await self._counters()
        if counters != before:
            self.report.counters_checked = False
            return
        for topic in sorted(
            {name.rpartition(":")[0] for name in counters} | set(self._live) | set(self._dead)
        ):
            of = Counters(*(counters.get(f"{topic}:{event}", 0) for event in EVENTS))
            await self._compare(topic, "adjusted", of.live, self._live[topic])
            await self._compare(topic, "adjusted_dead", of.in_dlq, self._dead[topic])

    async def _check_hints(
        self, before: dict[str, int], listed: dict[str, Counter[bytes]], usable: set[str]
    ) -> None:
        """Check each topic's counter of stale entries, unless its lists changed during the audit."""
        counted = {name.removesuffix(_STALE) for name in before if name.endswith(_STALE)}
        for topic in sorted(self._stale.keys() | set(filter(is_label, counted))):
            stale = self._stale.get(topic, 0)
            lists = [self._keys.of_topic(topic, part) for part in PENDING.values()]
            if not self.report.counters_checked or (topic in listed and not usable.issuperset(lists)):
                continue
            entries = sum([await self._scan.command("LLEN", key) for key in lists])
            said = before.get(topic + _STALE, 0)
            mended = self._strays[topic] if self._repair else 0
            if entries != listed.get(topic, Counter()).total() + mended:
                self.report.counters_checked = False
            elif said != stale:
                if self._repair:
                    key = self._keys.of_queue("counters")
                    await self._scan.command("HSET", key, topic + _STALE, stale)
                if not self._strays[topic]:  # else the reported strays explain it
                    detail = f"the counters say {said} stale entries, found {stale}"
                    self._add("counters-disagree", topic + _STALE, topic=topic, detail=detail)

    async def _compare(self, topic: str, adjustment: str, said: int, found: int) -> None:
        if said == found:
            return
        if self._repair:
            key = self._keys.of_queue("counters")
            await self._scan.command("HINCRBY", key, f"{topic}:{adjustment}", found - said)
        place = "dead" if adjustment == "adjusted_dead" else "live"
        detail = f"the counters say {said} {place}, found {found}"
        self._add("counters-disagree", topic, topic=topic, detail=detail)

    # -- reading

    def _tell(self) -> None:
        if self._progress is not None:
            self._progress(self.report.places.total())

    def _add(self, kind: str, what: str, *, topic: str = "", detail: str = "") -> None:
        if (kind, what) not in self._reported:
            self._reported.add((kind, what))
            self.report.findings.append(Finding(kind, what, topic, repaired=self._repair, detail=detail))

    async def _stored(self, part: str) -> AsyncIterator[Suspect]:
        """Each message in a hash of bodies, once; then ids that have other fields but no body."""
        seen: set[bytes] = set()
        loose: set[bytes] = set()
        key = self._keys.of_queue(part)
        async for name in self._scan.fields(key):
            id_ = next((name.removesuffix(suffix) for suffix in FIELDS if name.endswith(suffix)), name)
            if not is_label(id_):
                await self._set_aside(key, name)
            elif id_ != name:
                loose.add(id_)
            elif id_ not in seen:
                seen.add(id_)
                yield Suspect(id_)
        for id_ in loose - seen:
            yield Suspect(id_)

    async def _with_topics(
        self, part: str, suspects: list[Suspect], seek: Callable[[list[str]], Awaitable[list[str]]]
    ) -> list[Suspect]:
        """The suspects; one without a valid topic field gets as fallback the topic that its body names.

        If its body names none, *seek* finds the topics that other keys of the queue name. A field such as
        ``A1:colour`` is a message only if it has a topic or a readable body.
        """
        ids = [_shown(suspect.id) for suspect in suspects]
        topics = await self._scan.command(
            "HMGET", self._keys.of_queue(part), *(id_ + TOPIC_FIELD for id_ in ids)
        )
        lost = [n for n, topic in enumerate(topics) if topic is None or not is_label(topic)]
        reading = Queries(self._store).values(part, [ids[n] for n in lost])
        bodies = [body async for some in reading for body in some]
        named = {n: topic_in(body) for n, body in zip(lost, bodies, strict=True) if body is not None}
        foreign = {n for n in named if named[n] is None and topics[n] is None and ":" in ids[n]}
        for n in foreign:
            await self._set_aside(self._keys.of_queue(part), ids[n].encode())
        nameless = [n for n in named if not named[n] and n not in foreign]
        if nameless:
            named |= zip(nameless, await seek([ids[n] for n in nameless]), strict=True)
        return [
            suspect._replace(fallback=named.get(n) or UNKNOWN)
            for n, suspect in enumerate(suspects)
            if n not in foreign
        ]

    async def _set_aside(self, key: str, name: bytes) -> None:
        """Report a field that belongs to no message; a repair moves it to the hash ``<key>:foreign``."""
        if self._repair and (value := await self._scan.command("HGET", key, name)) is not None:
            await self._scan.command("HSET", f"{key}:foreign", name, value)
            await self._scan.command("HDEL", key, name)
        self._add("foreign-field", _shown(name), detail=f"in {key}")

    async def _entries(self, command: str, key: str, found_in: str = "") -> AsyncIterator[Suspect]:
        async for name, _ in self._scan.pairs(command, key):
            yield Suspect(name, found_in=found_in)


def _shown(name: str | bytes) -> str:
    """A name as text to show; it may be arbitrary bytes."""
    return name.decode(errors="backslashreplace") if isinstance(name, bytes) else name


def _before(text: str, ending: str) -> str:
    """What precedes an ending; empty if the text has another one."""
    return text.removesuffix(ending) if text.endswith(ending) else ""
