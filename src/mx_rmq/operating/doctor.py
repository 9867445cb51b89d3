"""The doctor: what is wrong with a queue, its server and its workers, each finding with its remedy."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, Literal

from redis.exceptions import ResponseError

from mx_rmq.errors import ServerUnavailable, StoreError
from mx_rmq.operating.audit import audit
from mx_rmq.operating.inspector import Inspector
from mx_rmq.storage.queries import SILENCE
from mx_rmq.storage.server_check import risks_of, too_old, version_of
from mx_rmq.storage.server_facts import read_server
from mx_rmq.tables import ago, counted, plain_fields, table
from mx_rmq.version import __version__

if TYPE_CHECKING:
    from collections.abc import Awaitable, Iterable, Iterator, Sequence

    from mx_rmq.config import Config
    from mx_rmq.operating.audit_report import AuditReport
    from mx_rmq.storage.facts import Counts, WorkerFacts, Workers
    from mx_rmq.storage.server_facts import ServerFacts
    from mx_rmq.storage.shard import Shard
    from mx_rmq.storage.shards import Shards

Level = Literal["ok", "warning", "problem"]

LATE: Final = 2 / 3 * SILENCE
"""Seconds without a registration that are remarked: a worker registers every five, one of many every 15."""
_CLAIM: Final = 60.0
"""Seconds without a claim after which a worker with room does not consume: it looks every ``poll``."""
_MOST_NAMED: Final = 5
"""Names in one finding."""
_MANY_SCRIPTS: Final = 1000
"""Cached scripts that only a program that never reuses one can have loaded."""


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """One thing that was looked at."""

    what: str
    level: Level
    said: str
    """What was found."""
    remedy: str = ""
    """What to do; empty if there is nothing to do."""

    def as_dict(self) -> dict[str, Any]:
        """As JSON has it."""
        return plain_fields(self)


@dataclass(frozen=True, slots=True)
class Checkup:
    """All that was looked at; prints as a table."""

    queue: str
    server: str
    """Its URL without user and password."""
    version: str
    """The version of mx-rmq that looked."""
    diagnoses: list[Diagnosis] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether nothing is a problem; there may be warnings."""
        return all(each.level != "problem" for each in self.diagnoses)

    def as_dict(self) -> dict[str, Any]:
        """As JSON has it."""
        return {"ok": self.ok, **plain_fields(self)}

    def __str__(self) -> str:
        rows = [(each.level, each.what, each.said, each.remedy) for each in self.diagnoses]
        return table(("level", "what", "found", "remedy"), rows)


async def examine(shards: Shards, config: Config, *, audit_for: float = 5.0) -> Checkup:
    """Look at everything; see ``RedisMessageQueue.doctor``."""
    await shards.now()
    found: list[Diagnosis] = []
    servers: dict[str, tuple[Shard, ServerFacts]] = {}

    async def facts_of(shard: Shard) -> ServerFacts | Diagnosis:
        try:
            return await read_server(shard.operating)
        except ServerUnavailable as error:
            if shards.is_one:
                raise
            remedy = "look at this server: the messages of this shard wait until it is back"
            return Diagnosis("server", "problem", str(shard.naming.named(error)), remedy)

    asked = list(shards)  # the layout may change before they answer
    for shard, facts in zip(asked, await asyncio.gather(*map(facts_of, asked)), strict=True):
        if isinstance(facts, Diagnosis):
            found.append(facts)
            continue
        servers.setdefault(facts.info.get("run_id", shard.name), (shard, facts))  # one may have several
    for shard, facts in servers.values():
        at = f"{shard.node}: " if len(servers) > 1 else ""
        found += [replace(each, said=at + each.said) for each in _server(facts, config)]
    found += await _part("topics", _look_at_topics(shards))
    if audit_for:
        looks = [_part("audit", _look_by_audit(shard, config.lease, audit_for)) for shard in shards]
        found += [each for some in await asyncio.gather(*looks) for each in some]
    return Checkup(config.name, config.shown_url, __version__, found)


def unserved(counts: Counts, workers: Iterable[WorkerFacts]) -> list[str]:
    """The topics, paused ones apart, in which messages wait but which no live worker serves."""
    served = {topic for worker in workers for topic in worker.topics}
    return [
        topic
        for topic, of in counts.topics.items()
        if of.pending + of.delayed and not of.paused and topic not in served
    ]


def not_consuming(worker: WorkerFacts, counts: Counts, now: float) -> list[str]:
    """What keeps a live worker from handling messages: what it says itself, and what its claims show.

    A worker that is busy makes no claims, so only one that has room while messages wait is blamed.
    """
    problems = list(worker.problems)
    claimed_at = worker.claimed_at or worker.started_at
    has_room = worker.in_flight < (worker.concurrency or 1)
    waiting = [
        topic
        for topic in worker.topics
        if (of := counts.topics.get(topic)) is not None
        and of.pending
        and not of.paused
        and (topic not in worker.load or worker.load[topic].running < worker.at_once(topic))
    ]
    # A worker of an earlier version does not tell when it claimed.
    if worker.version and has_room and waiting and claimed_at and now - claimed_at > _CLAIM:
        problems.append(f"its last claim was {ago(claimed_at, now)} while {named(waiting)} had messages")
    return problems


def named(names: Sequence[str]) -> str:
    """The first of some names, and how many more there are."""
    shown = ", ".join(names[:_MOST_NAMED])
    return shown if len(names) <= _MOST_NAMED else f"{shown} and {len(names) - _MOST_NAMED:,} more"


async def _part(what: str, look: Awaitable[list[Diagnosis]]) -> list[Diagnosis]:
    """What a look found, or that the server's user may not look."""
    try:
        return await look
    except ServerUnavailable as error:
        return [Diagnosis(what, "problem", str(error), "look at this server")]
    except (ResponseError, StoreError) as error:
        remedy = "give the server's user the rights of an operator: docs/deployment.md"
        return [Diagnosis(what, "problem", f"cannot be read: {error}", remedy)]


# -- the server


def _server(facts: ServerFacts, config: Config) -> Iterator[Diagnosis]:
    if facts.info:
        private = config.server.is_private
        yield _version(facts)
        yield from _persistence(facts, config, private=private)
        yield _memory(facts, private=private)
        yield _replicas(facts)
    else:
        remedy = "give the server's user +info, so that it can be checked"
        yield Diagnosis("server", "warning", "it may not be asked: the user may not run INFO", remedy)
    yield _latency(facts)
    yield _clock(facts)
    yield from _rights(facts)
    yield _scripts(facts)


def _version(facts: ServerFacts) -> Diagnosis:
    said = f"{version_of(facts.info).name}; mx-rmq {__version__}"
    if old := too_old(facts.info):
        return Diagnosis("server", "problem", old, "upgrade the server")
    return Diagnosis("server", "ok", said)


def _persistence(facts: ServerFacts, config: Config, *, private: bool) -> Iterator[Diagnosis]:
    info = facts.info
    risks = risks_of(info, private=private, durability=config.durability, replicas=config.replicas)
    at_risk = {risk.what for risk in risks}
    for risk in risks:
        yield Diagnosis(risk.what, "problem", risk.said, risk.remedy)
    if "persistence" not in at_risk:
        yield _disk(facts, private=private)
    if "eviction" not in at_risk:
        policy = info.get("maxmemory_policy", "unknown")
        yield Diagnosis("eviction", "ok", f"maxmemory-policy is {policy}: nothing is thrown away")


def _disk(facts: ServerFacts, *, private: bool) -> Diagnosis:
    failed = [
        name
        for name in ("aof_last_write_status", "aof_last_bgrewrite_status")
        if facts.info.get(name) == "err"
    ]
    if failed:
        remedy = "look at the server's log and at its disk: it may be full"
        return Diagnosis("persistence", "problem", f"the last write to disk failed ({failed[0]})", remedy)
    if facts.info.get("aof_enabled") != "1":
        said = "a private server in memory" if private else "not known"
        return Diagnosis("persistence", "ok", said)
    if facts.fsync == "no":
        said = "appendonly is on, but appendfsync is no: a loss of power may cost half a minute of messages"
        return Diagnosis("persistence", "warning", said, "set appendfsync to everysec or always")
    return Diagnosis("persistence", "ok", f"appendonly is on, appendfsync {facts.fsync or 'is not told'}")


def _memory(facts: ServerFacts, *, private: bool) -> Diagnosis:
    used, most = (_number(facts.info.get(name)) for name in ("used_memory", "maxmemory"))
    if not most:
        said = f"{_bytes(used)} used, no limit (maxmemory is 0)"
        if private:
            return Diagnosis("memory", "ok", said)
        remedy = "set maxmemory to about half of the host's memory, so that the host never ends the server"
        return Diagnosis("memory", "warning", said, remedy)
    said = f"{_bytes(used)} of {_bytes(most)} used ({100 * used // most} %)"
    level: Level = "problem" if used > 0.9 * most else "warning" if used > 0.75 * most else "ok"
    remedy = "raise maxmemory, let workers catch up, or delete dead messages: mx-rmq dlq" * (level != "ok")
    return Diagnosis("memory", level, said, remedy)


def _replicas(facts: ServerFacts) -> Diagnosis:
    info = facts.info
    if info.get("role") not in ("master", None):
        said = "this server is a replica: it refuses every write"
        return Diagnosis("replicas", "problem", said, "give the URL of the primary")
    lines = [value for name, value in info.items() if name.startswith("slave") and name[5:].isdigit()]
    parts = [dict(part.split("=", 1) for part in line.split(",") if "=" in part) for line in lines]
    late = [part for part in parts if part.get("state") != "online" or _number(part.get("lag")) > 10]
    if late:
        said = f"{len(late)} of {len(parts)} replicas are not in step"
        return Diagnosis("replicas", "warning", said, "look at the replicas and the network to them")
    return Diagnosis("replicas", "ok", f"{len(parts)} in step" if parts else "none")


def _latency(facts: ServerFacts) -> Diagnosis:
    usual, worst = facts.latency, max(facts.round_trips)
    said = f"{usual * 1000:.1f} ms (the slowest of {len(facts.round_trips)}: {worst * 1000:.1f} ms)"
    level: Level = "problem" if usual > 0.5 else "warning" if usual > 0.05 or worst > 0.5 else "ok"
    remedy = "look for slow commands (SLOWLOG GET), a busy host or a long way to the server" * (level != "ok")
    return Diagnosis("latency", level, said, remedy)


def _clock(facts: ServerFacts) -> Diagnosis:
    off = abs(facts.clock)
    level: Level = "problem" if off > 60 else "warning" if off > 1 else "ok"
    if level == "ok":
        return Diagnosis("clock", "ok", f"{off * 1000:.0f} ms from this computer's")
    side = "ahead of" if facts.clock > 0 else "behind"
    said = f"the server's clock is {off:,.1f} s {side} this computer's: ages and at= are off by that much"
    return Diagnosis("clock", level, said, "let NTP set both clocks")


def _rights(facts: ServerFacts) -> Iterator[Diagnosis]:
    rights = facts.rights
    user = f"user {rights.user}" if rights.user else "the server's user"
    for use, lacking in rights.lacking.items():
        level: Level = "problem" if use == "produce and work" else "warning"
        remedy = f"ACL SETUSER {rights.user or 'USER'} {' '.join(lacking)}"
        yield Diagnosis("rights", level, f"{user} may not {use}: lacks {' '.join(lacking)}", remedy)
    if rights.untold:
        found = "" if rights.lacking else ", and are there"
        said = f"{user} may not ask for its rights (ACL DRYRUN); those that change nothing were tried{found}"
        yield Diagnosis("rights", "ok", said)
    elif not rights.lacking:
        yield Diagnosis("rights", "ok", f"{user} may do everything that a queue needs")


def _scripts(facts: ServerFacts) -> Diagnosis:
    cached = _number(facts.info.get("number_of_cached_scripts"))
    told = "" if facts.loaded is None else f"{facts.loaded} of {facts.scripts} loaded"
    said = ", ".join(filter(None, (told, f"{cached:,} in the server's cache" if cached else "")))
    if cached > _MANY_SCRIPTS:
        remedy = "a program sends scripts that differ each time: find it, then SCRIPT FLUSH"
        return Diagnosis("scripts", "warning", said, remedy)
    return Diagnosis("scripts", "ok", said or "loaded when they are used")


# -- the queue


async def _look_at_topics(shards: Shards) -> list[Diagnosis]:
    inspector = Inspector(shards)
    counts, workers = await asyncio.gather(inspector.counts(), inspector.workers())
    return [*_topics(counts, workers), *_workers(counts, workers)]


def _topics(counts: Counts, workers: Workers) -> Iterator[Diagnosis]:
    states = f"{counts.pending:,} pending, {counts.processing:,} processing, {counts.delayed:,} delayed"
    yield Diagnosis("topics", "ok", f"{counted(len(counts.topics), 'topic')}; {states}")
    paused = [topic for topic, of in counts.topics.items() if of.paused]
    if paused:
        remedy = f"mx-rmq topic resume {paused[0] if len(paused) == 1 else 'TOPIC'}"
        yield Diagnosis("paused", "warning", f"not delivered: {named(paused)}", remedy)
    if alone := unserved(counts, workers):
        waiting = sum(counts.topics[topic].pending + counts.topics[topic].delayed for topic in alone)
        said = f"no live worker serves {named(alone)}: {counted(waiting, 'message')} waiting"
        remedy = "start a worker that has a handler for it, or look whether the name is misspelt"
        yield Diagnosis("unserved", "problem", said, remedy)
    if counts.dead:
        said = f"{counted(counts.dead, 'message')} in the DLQ"
        yield Diagnosis("dead letters", "warning", said, "see why with mx-rmq dlq groups")


def _workers(counts: Counts, workers: Workers) -> Iterator[Diagnosis]:
    yield Diagnosis("workers", "ok", f"{len(workers):,} live")
    now = workers.read_at
    stale = [worker for worker in workers if now - worker.seen_at > LATE]
    if stale:
        said = f"silent for {LATE:g} s or longer: {named([worker.name for worker in stale])}"
        remedy = "its process may be gone, stopped or cut off; its messages run elsewhere after their lease"
        yield Diagnosis("workers", "warning", said, remedy)
    sick = [(worker.name, not_consuming(worker, counts, now)) for worker in workers]
    for name, problems in [each for each in sick if each[1]][:_MOST_NAMED]:
        said = f"{name} does not consume as it should: {'; '.join(problems)}"
        yield Diagnosis("workers", "problem", said, "look at its log, and restart it")
    others = sorted({worker.version for worker in workers if worker.version not in ("", __version__)})
    if others:
        said = f"workers run mx-rmq {named(others)}, this is {__version__}"
        yield Diagnosis("workers", "warning", said, "deploy one version, unless a rollout is under way")


async def _look_by_audit(shard: Shard, lease: float, within: float) -> list[Diagnosis]:
    with shard.naming():
        report = await audit(shard.operating, lease=lease, within=within)
    report.shard = shard.name
    return [_audited(report, within)]


def _audited(report: AuditReport, within: float) -> Diagnosis:
    looked = counted(report.places.total(), "message") + (f" of shard {report.shard}" if report.shard else "")
    if report.findings:
        kinds = sorted({finding.kind for finding in report.findings})
        said = f"{counted(len(report.findings), 'finding')} in {looked}: {named(kinds)}"
        return Diagnosis("audit", "problem", said, "see them with mx-rmq audit, mend them with --repair")
    if not report.finished:
        said = f"nothing wrong so far; stopped after {within:g} s and {looked}"
        return Diagnosis("audit", "ok", said, "mx-rmq audit looks at all of them")
    return Diagnosis("audit", "ok", f"{looked}, each in one place")


# -- words


def _number(text: str | None) -> int:
    return int(text) if text and text.isdigit() else 0


_SIZES: Final[tuple[tuple[int, str], ...]] = ((1 << 30, "GB"), (1 << 20, "MB"), (1 << 10, "kB"))


def _bytes(count: int) -> str:
    return next((f"{count / size:.1f} {unit}" for size, unit in _SIZES if count >= size), f"{count} bytes")
