"""What needs attention first, each with the page where it is put right."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from mx_rmq.operating.doctor import not_consuming, unserved
from mx_rmq.tables import ago, counted
from mx_rmq.web.words import age, cut, link

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mx_rmq.operating.doctor import Checkup
    from mx_rmq.operating.figures import Figures
    from mx_rmq.operating.letters import DeadGroups
    from mx_rmq.operating.trail import Act, Trail

Level = Literal["bad", "warn"]

_LATE: Final = 300.0
"""Seconds that the message next in line may wait in a topic that is served; ten times as long is bad."""
_RECENT: Final = 3600.0
"""Seconds for which a group that grew is named; a tenth of that ago is bad: it still grows."""
_MOST: Final = 8
"""Matters of one kind that are named."""
_BY_TOPIC: Final = ("topics", "paused", "unserved", "dead letters", "workers", "audit")
"""Diagnoses of the doctor that are told here in other words."""


class Matter(NamedTuple):
    """Something that is not as it should be."""

    level: Level
    name: str
    """Of what: a topic, a worker, a part of the server."""
    said: str
    to: str
    """The page that helps, relative to the dashboard's root."""
    remedy: str
    """The words of the link to it."""


def matters(figures: Figures, groups: DeadGroups, checkup: Checkup, trail: Trail) -> list[Matter]:
    """What needs attention, the worst first."""
    kinds = [
        [*_missing(figures, checkup)],
        [*_server(checkup)],
        [*_unserved(figures)],
        [*_workers(figures)],
        [*_dying(groups)],
        [*_late(figures)],
        [*_paused(figures, trail)],
    ]
    found = []
    for kind in kinds:
        found += kind[:_MOST]
        if len(kind) > _MOST:
            last = kind[_MOST]
            found.append(last._replace(name=f"{len(kind) - _MOST} more", said="of this kind"))
    return sorted(found, key=lambda matter: matter.level != "bad")


def pausings(trail: Trail) -> dict[str, Act]:
    """Who paused a topic last, by topic, as far as the trail knows."""
    found: dict[str, Act] = {}
    for act in trail:
        if act.what == "pause":
            found.setdefault(act.target, act)
    return found


def _missing(figures: Figures, checkup: Checkup) -> Iterator[Matter]:
    """Shards whose messages are in no figure; the checkup, which is made seldom, may know them already."""
    known = "\n".join(each.said for each in checkup.diagnoses)
    for why in figures.counts.missing:
        if why.partition(": ")[0] not in known:
            said = f"{why}; its messages are in no figure of this page"
            yield Matter("bad", "server", said, link("server"), "how to fix")


def _server(checkup: Checkup) -> Iterator[Matter]:
    for each in checkup.diagnoses:
        if each.level == "problem" and each.what not in _BY_TOPIC:
            yield Matter("bad", each.what, each.said, link("server"), "how to fix")


def _unserved(figures: Figures) -> Iterator[Matter]:
    for topic in unserved(figures.counts, figures.workers):
        of = figures.counts.topics[topic]
        waiting = counted(of.pending + of.delayed, "message")
        oldest = "" if of.oldest_at is None else f", the next since {age(of.oldest_at, figures.read_at)}"
        said = f"{waiting} waiting{oldest}: no live worker has a handler for the topic"
        yield Matter("bad", topic, said, link("topic", name=topic), "how to fix")


def _workers(figures: Figures) -> Iterator[Matter]:
    for worker in figures.workers:
        if problems := not_consuming(worker, figures.counts, figures.read_at):
            said = f"does not consume as it should: {cut('; '.join(problems))}"
            yield Matter("bad", worker.name, said, link("workers"), "look at it")


def _dying(groups: DeadGroups) -> Iterator[Matter]:
    for group in groups:
        since = groups.read_at - group.last_at
        if since < _RECENT:
            said = f"{counted(group.count, 'dead letter')} of {cut(group.error, 60)}"
            if group.text:
                said += f": {cut(group.text, 100)}"
            last = ago(group.last_at, groups.read_at)
            said += f"; the last {'a moment ago' if last == 'now' else last}"
            level: Level = "bad" if since < _RECENT / 10 else "warn"
            yield Matter(level, group.topic, said, link("dlq", group=group.id), "open the group")


def _late(figures: Figures) -> Iterator[Matter]:
    alone = set(unserved(figures.counts, figures.workers))
    for topic, of in figures.counts.topics.items():
        if of.oldest_at is None or of.paused or topic in alone or not of.pending:
            continue
        waited = figures.read_at - of.oldest_at
        if waited > _LATE:
            said = f"{of.pending:,} pending, the next in line waits for {age(of.oldest_at, figures.read_at)}"
            level: Level = "bad" if waited > 10 * _LATE else "warn"
            yield Matter(level, topic, said, link("topic", name=topic), "open the topic")


def _paused(figures: Figures, trail: Trail) -> Iterator[Matter]:
    by = pausings(trail)
    for topic, of in figures.counts.topics.items():
        if of.paused and of.pending:
            who = f" by {by[topic].who} {ago(by[topic].at, figures.read_at)}" if topic in by else ""
            said = f"paused{who}, {of.pending:,} waiting, the oldest {age(of.oldest_at, figures.read_at)}"
            yield Matter("warn", topic, said, link("topic", name=topic), "resume")
