"""Which dead letters a page is about: some by id, some groups, or all that match a filter."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from time import monotonic
from typing import TYPE_CHECKING, Any, Final

from mx_rmq.errors import ServerUnavailable
from mx_rmq.tables import counted
from mx_rmq.web.exact import payload_text, visible
from mx_rmq.web.words import cut, link

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from mx_rmq.operating.letters import DeadGroup, DeadLetter, Page
    from mx_rmq.web.desk import Desk
    from mx_rmq.web.redaction import Redactor

MOST_CHOSEN: Final = 500
"""Messages or groups that are chosen one by one."""
LOOK: Final = 5000
"""Dead messages that one page looks at."""
_LOOK_BODIES: Final = 500
"""The same if their payloads are read for it."""
_PATIENCE: Final = 0.1
"""Seconds that a page counts matches."""
_LONGEST: Final = 128 * 1024
"""Bytes of the longest payload that a list shows the beginning of."""


@dataclass(frozen=True, slots=True)
class Choice:
    """Which dead letters are meant.

    Ids come first: the rest counts only without them. Without groups and ``each``, the filter means groups.
    """

    ids: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    topic: str = ""
    error: str = ""
    text: str = ""
    each: bool = False
    """Whether the filter means messages, not groups."""

    @classmethod
    def of(cls, get: Callable[[str], str], all_: Callable[[str], Iterable[str]]) -> Choice:
        """The choice in the query of an address, or in a form."""
        return cls(
            tuple(dict.fromkeys(filter(None, all_("id"))))[:MOST_CHOSEN],
            tuple(dict.fromkeys(filter(None, all_("group"))))[:MOST_CHOSEN],
            get("topic").strip()[:128],
            get("error").strip()[:200],
            get("text").strip()[:200],
            get("show") == "messages",
        )

    @property
    def fields(self) -> list[tuple[str, str]]:
        """As the fields of a form."""
        found = [("id", each) for each in self.ids] + [("group", each) for each in self.groups]
        found += [("topic", self.topic), ("error", self.error), ("text", self.text)]
        found += [("show", "messages" if self.each else "")]
        return [(name, value) for name, value in found if value]

    def settled(self, found: Meant) -> Choice:
        """The same with its groups by id: one that appears after a person was asked is not meant."""
        if self.ids or self.groups or self.each or not 0 < len(found.parts) <= MOST_CHOSEN:
            return self
        return Choice(groups=tuple(part.filters["group"] for part in found.parts))

    @property
    def back(self) -> str:
        """The list that shows it."""
        group = self.groups[0] if len(self.groups) == 1 else ""
        show = "messages" if self.each else ""
        return link("dlq", group=group, topic=self.topic, error=self.error, text=self.text, show=show)


@dataclass(frozen=True, slots=True)
class Part:
    """Some of the dead letters of a choice, as the methods of ``mq.dlq`` take them."""

    name: str
    filters: dict[str, Any]
    count: int


@dataclass(frozen=True, slots=True)
class Meant:
    """What a choice means now."""

    parts: list[Part]
    count: int
    is_exact: bool
    """Whether all were counted; else there may be more."""
    which: str = ""
    """In words, such as ``of orders: GatewayDown``."""
    noun: str = "dead letter"
    at: float | None = None
    """When they were counted, by the server's clock. One that dies later is not meant."""

    @property
    def said(self) -> str:
        """In words, such as ``211 dead letters of orders: GatewayDown``."""
        words = ("" if self.is_exact else "at least", counted(self.count, self.noun), self.which)
        return " ".join(filter(None, words))

    def asked(self, count: int | None, until: float | None) -> Meant:
        """What a person was asked about: so many, that had died up to then."""
        number = self.count if count is None or not self.is_exact else min(self.count, count)
        return replace(self, count=number, at=until)


def of_groups(groups: Iterable[DeadGroup], choice: Choice) -> list[DeadGroup]:
    """Those of the groups that a choice means."""
    word = choice.text.lower()
    return [
        group
        for group in groups
        if (not choice.groups or group.id in choice.groups)
        and choice.topic in ("", group.topic)
        and choice.error in ("", group.error)
        and (
            bool(choice.groups)
            or word in f"{group.topic}\n{group.error}\n{group.text}\n{group.place}\n{group.id}".lower()
        )
    ]


def filters_of(desk: Desk, choice: Choice) -> dict[str, Any]:
    """What ``mq.dlq`` takes for a choice that means messages, but for their group."""
    found: dict[str, Any] = {"topic": choice.topic, "error": choice.error if choice.each else ""}
    found = {name: value for name, value in found.items() if value}
    return found | ({"matching": has(choice.text, desk.redact)} if choice.text else {})


def has(text: str, redact: Redactor) -> Callable[[DeadLetter], bool]:
    """Whether a letter has a text in its id, error or payload; upper and lower case are the same."""
    word = text.lower()

    def matches(letter: DeadLetter) -> bool:
        if word in letter.id.lower() or word in letter.error.lower():
            return True
        message = letter.message
        return message is not None and word in payload_text(message, redact).lower()

    return matches


def look_for(choice: Choice) -> int:
    """How many dead messages a page of a choice looks at."""
    return _LOOK_BODIES if choice.text else LOOK


async def meant(desk: Desk, choice: Choice) -> Meant:
    """What a choice means, and how many dead letters that is."""
    if choice.ids:
        return Meant([], len(choice.ids), True, noun="chosen dead letter")
    having = f" with “{cut(choice.text, 60)}” in them" if choice.text else ""
    if not choice.each:
        all_ = await desk.queue.dlq.groups()
        groups = of_groups(all_, choice)
        own = {"matching": has(choice.text, desk.redact)} if choice.text and choice.groups else {}
        parts = [Part(name_of(each), {"group": each.id} | own, each.count) for each in groups]
        number = sum(each.count for each in groups)
        is_exact = True
        if own:
            number, is_exact = await _count(desk, parts, choice)
        else:
            having = ""
        which = f"of {parts[0].name}" if len(parts) == 1 else f"in {counted(len(parts), 'group')}"
        return Meant(parts, number, is_exact, f"{which}{having}", at=all_.read_at)
    part = Part(" ".join(filter(None, (choice.topic, choice.error))) or "all", filters_of(desk, choice), 0)
    if choice.error or choice.text:
        number, is_exact = await _count(desk, [part], choice)
    else:
        counts = (await desk.queue.counts()).topics
        number = sum(of.in_dlq for name, of in counts.items() if choice.topic in ("", name))
        is_exact = True
    of = f"of {choice.topic}" if choice.topic else ""
    of += f" by {cut(choice.error, 80)}" if choice.error else ""
    page = _whole(await desk.queue.dlq.list(limit=1, look=1))
    return Meant([part], number, is_exact, f"{of}{having}".strip(), at=page.read_at)


def _whole(page: Page) -> Page:
    """A page, if all shards answered: a number that people agree to must not lack a shard."""
    if page.missing:
        raise ServerUnavailable("; ".join(page.missing))
    return page


def name_of(group: DeadGroup) -> str:
    """A group in words."""
    return f"{group.topic}: {cut(group.error, 80)}"


async def _count(desk: Desk, parts: list[Part], choice: Choice) -> tuple[int, bool]:
    """How many match, and whether all were looked at; a page does not wait for a long count."""
    number, until = 0, monotonic() + _PATIENCE
    for part in parts:
        after: str | None = None
        while True:
            page = _whole(
                await desk.queue.dlq.list(**part.filters, limit=500, after=after, look=look_for(choice))
            )
            number, after = number + len(page.letters), page.next
            if after is None:
                break
            if monotonic() > until:
                return number, False
            await asyncio.sleep(0)
    return number, True


def excerpt(letter: DeadLetter, redact: Redactor) -> str:
    """The beginning of a payload, for a row of a list."""
    message = letter.message
    if message is None:
        return ""
    size = len(bytes(message.payload))
    if redact and size > _LONGEST:
        return f"({size:,} bytes)"
    text = payload_text(message, redact)
    return cut(visible(text[:1000]), 140)
