"""``mx-rmq messages``, ``show``, ``explain``, ``run-now`` and ``cancel``."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from mx_rmq.checks import check_whole
from mx_rmq.cli.completion import Topic
from mx_rmq.cli.connecting import known_topic, opened, place_of
from mx_rmq.cli.exits import Failure, NotFound
from mx_rmq.cli.output import At, Column, Output
from mx_rmq.cli.settings import Common
from mx_rmq.cli.words import counted
from mx_rmq.limits import BATCH
from mx_rmq.operating.messages import Asked, MessagePage
from mx_rmq.storage.facts import TopicCounts
from mx_rmq.traces import place_of as frame_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from mx_rmq.cli.output import Cell
    from mx_rmq.operating.messages import MessageFacts
    from mx_rmq.queue import RedisMessageQueue

_DEFAULT = Common()
_PAGE: Final = 100
"""Messages read at a time while searching; each may have a megabyte."""
_MOST_SEARCHED: Final = 100_000
"""Messages looked at by one search."""
_WIDEST: Final = 100
"""Characters of a payload in a table."""
_MOST_BYTES: Final = 4096
"""Bytes of an unreadable message that are shown to people."""


async def messages(
    topic: Topic,
    /,
    *,
    state: Asked = "pending",
    limit: int = 50,
    after: str | None = None,
    grep: str | None = None,
    common: Common = _DEFAULT,
) -> None:
    """List the messages of a topic in one state, the next to run first.

    Args:
        topic: whose messages.
        state: processing is running and held together.
        limit: the most messages to show, up to 1,000.
        after: go on where an earlier list ended; it says how.
        grep: only messages whose payload has this text, upper and lower case as given.
    """
    out = Output(common)
    check_whole("limit", limit, 1, BATCH)
    async with opened(common) as queue:
        if grep is None:
            page = await queue.list(topic, state=state, limit=limit, after=after)
            looked = None
        else:
            search = _Search(queue, topic, state, grep)
            with out.progress(f"searching {topic}", await _total(queue, topic, state)) as progress:
                page = await search.run(limit, after, progress)
            looked = search.looked
        if not page.messages and after is None:
            await known_topic(queue, topic)
    data = page.as_dict() | ({} if looked is None else {"looked_at": looked})
    columns: list[Column | str] = [Column("id", is_whole=True), Column("state", is_optional=True), "produced"]
    columns += [*_OTHERS[state], "attempts"]
    columns += [Column("last error", style="red"), Column("payload", is_optional=True)]
    rows = [_row(facts, state, page.read_at, out) for facts in page.messages]
    out.table(columns, rows, data=data, empty=f"no {state} message" if looked is None else "nothing found")
    if looked is not None:
        out.remark(f"looked at {counted(looked, 'message')}")
    if page.next is not None:
        out.remark(f"there is more: --after {page.next}")
    out.missing(page.missing)


_OTHERS: Final[dict[Asked, list[Column | str]]] = {
    "pending": [Column("expires", is_optional=True)],
    "running": ["claimed", Column("holder", is_optional=True)],
    "held": ["claimed", Column("holder", is_optional=True)],
    "processing": ["claimed", Column("holder", is_optional=True)],
    "delayed": ["due"],
    "dead": ["died", "reason"],
}
"""The columns that only messages of a state have."""


def _row(facts: MessageFacts, state: Asked, now: float, out: Output) -> list[Cell]:
    others: dict[Asked, list[Cell]] = {
        "pending": [At(facts.expires_at, now)],
        "delayed": [At(facts.due_at, now)],
        "dead": [At(facts.died_at, now), facts.reason],
    }
    leased: list[Cell] = [At(facts.claimed_at, now), facts.holder]
    payload = _payload_text(facts)
    if out.is_terminal and len(payload) > _WIDEST:
        payload = payload[: _WIDEST - 1] + "…"
    return [
        facts.id,
        facts.state,
        At(facts.created_at, now),
        *others.get(state, leased),
        facts.attempts,
        facts.unreadable or facts.last_error,
        payload,
    ]


def _payload_text(facts: MessageFacts) -> str:
    """The payload as it is stored; of a message that cannot be read all its bytes."""
    stored = facts.body if facts.message is None else bytes(facts.message.payload)
    return stored.decode(errors="backslashreplace")


async def _total(queue: RedisMessageQueue, topic: str, state: Asked) -> int:
    """How many messages a search will look at, at most."""
    of = (await queue.counts()).topics.get(topic, TopicCounts())
    by_state: dict[Asked, int] = {
        "pending": of.pending,
        "running": of.running,
        "held": of.held,
        "processing": of.processing,
        "delayed": of.delayed,
        "dead": of.in_dlq,
    }
    return min(by_state[state], _MOST_SEARCHED)


@dataclass(slots=True)
class _Search:
    """Looks for a text in the payloads of a topic's messages."""

    queue: RedisMessageQueue
    topic: str
    state: Asked
    text: str
    looked: int = 0

    async def run(self, limit: int, after: str | None, progress: Callable[[int], None]) -> MessagePage:
        """Up to *limit* messages that have the text, and where to go on."""
        found: list[MessageFacts] = []
        missing: dict[str, None] = {}
        while True:
            page = await self.queue.list(self.topic, state=self.state, limit=_PAGE, after=after)
            hits = [n for n, facts in enumerate(page.messages) if self.text in _payload_text(facts)]
            if len(found) + len(hits) > limit:
                # Read once more up to the last message that is shown, to learn the place behind it.
                last = hits[limit - len(found)]
                page = await self.queue.list(self.topic, state=self.state, limit=last, after=after)
                hits = [n for n, facts in enumerate(page.messages) if self.text in _payload_text(facts)]
                hits = hits[: limit - len(found)]
            found += [page.messages[n] for n in hits]
            missing |= dict.fromkeys(page.missing)
            self.looked += len(page.messages)
            progress(self.looked)
            after = page.next
            if after is None or len(found) == limit or self.looked >= _MOST_SEARCHED:
                return replace(page, messages=found, missing=tuple(missing))


async def show(id_: str, /, *, common: Common = _DEFAULT) -> None:
    """Show all that is known about a message: facts, payload, headers and its failed attempts.

    Args:
        id_: the message.
    """
    out = Output(common)
    async with opened(common) as queue:
        facts = await queue.find(id_)
        if facts.state == "gone":
            raise NotFound(await queue.explain(id_))
    print_message(out, facts, data=facts.as_dict())


def print_message(
    out: Output, facts: MessageFacts, *, data: Any, more: Mapping[str, Cell] | None = None
) -> None:
    """Print all that is known about a message.

    Args:
        out: where to print.
        facts: what is known.
        data: what ``--json`` prints instead.
        more: further facts.
    """
    if out.is_json:
        out.document(data)
        return
    out.facts({**_facts(facts), **(more or {})}, data=data)
    if not out.is_terminal:
        _show_to_programs(facts, out)
        return
    if facts.unreadable:
        out.heading(f"stored bytes ({len(facts.body):,})")
        out.raw(_hex(facts.body[:_MOST_BYTES]))
    if facts.message is not None:
        out.heading("payload")
        out.text(json.dumps(facts.payload, indent=2, ensure_ascii=False))
        if facts.message.headers:
            out.heading("headers")
            out.facts(facts.message.headers, data=None)
        if facts.message.history:
            out.heading("attempts that failed, the latest last")
            columns: list[Column | str] = ["at", "worker", "took", "place", Column("error", style="red")]
            out.table(columns, _history(facts), data=None)
            for trace in dict.fromkeys(each.trace for each in facts.message.history if each.trace):
                out.heading("where it failed, the innermost call last")
                out.text(trace.replace(" > ", "\n"))


def _show_to_programs(facts: MessageFacts, out: Output) -> None:
    """The rest of a message as lines, each with its kind first."""
    if facts.unreadable:
        out.raw(f"body\t{facts.body.hex()}")
    if facts.message is not None:
        out.raw(f"payload\t{json.dumps(facts.payload, ensure_ascii=False)}")
        headers: list[list[Cell]] = [["header", name, value] for name, value in facts.message.headers.items()]
        traces = [each.trace for each in facts.message.history]
        attempts = zip(_history(facts), traces, strict=True)
        rows = [*headers, *(["attempt", *cells, trace] for cells, trace in attempts)]
        if rows:
            out.table([], rows, data=None)


def _facts(facts: MessageFacts) -> dict[str, Cell]:
    message = facts.message
    found: dict[str, Cell] = {
        "message": facts.id,
        "state": facts.state,
        "topic": facts.topic,
        "priority": None if message is None else message.priority,
        "produced": _at(facts.created_at),
        "due": _at(facts.due_at),
        "expires": _at(facts.expires_at),
        "holder": facts.holder,
        "claimed": _at(facts.claimed_at),
        "lease until": _at(facts.lease_until),
        "died": _at(facts.died_at),
        "ended": _at(facts.ended_at),
        "took": None if facts.took is None else f"{facts.took:.3g} s",
        "reason": facts.reason,
        "attempts": facts.attempts or None,
        "replays": None if message is None else message.replays or None,
        "put off": None if message is None else message.put_off or None,
        "last error": facts.last_error,
        "place": facts.place,
        "unreadable": facts.unreadable,
    }
    return {name: cell for name, cell in found.items() if cell not in (None, "")}


def _at(instant: float | None) -> At | None:
    return None if instant is None else At(instant)


def _history(facts: MessageFacts) -> list[list[Cell]]:
    past = facts.message.history if facts.message is not None else []
    return [
        [At(each.at), each.worker, f"{each.took:.3g} s", frame_of(each.trace), each.error] for each in past
    ]


def _hex(body: bytes) -> str:
    """Bytes as people read them: their place, in hex, and as text where they are some."""
    lines = []
    for start in range(0, len(body), 16):
        row = body[start : start + 16]
        text = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in row)
        lines.append(f"{start:06x}  {row.hex(' '):47}  {text}")
    return "\n".join(lines)


async def explain(id_: str, /, *, common: Common = _DEFAULT) -> None:
    """Say in one sentence why a message has not run.

    Args:
        id_: the message.
    """
    out = Output(common)
    async with opened(common) as queue:
        facts, said = await queue.find(id_), await queue.explain(id_)
    if facts.state == "gone":
        raise NotFound(said)
    out.line(said, data={"id": id_, "state": facts.state, "topic": facts.topic, "explanation": said})
    if facts.state == "pending" and "the topic is paused" in said:
        out.remark(f"mx-rmq topic resume {facts.topic}")
    elif facts.state == "dead" and facts.ended_at is None:
        out.remark(f"mx-rmq dlq replay {id_}")


async def run_now(id_: str, /, *, common: Common = _DEFAULT) -> None:
    """Let a delayed message run now, also one that waits for its next attempt.

    Args:
        id_: the message.
    """
    out = Output(common)
    async with opened(common) as queue:
        facts = await queue.find(id_)
        if facts.state in ("gone", "done"):
            raise NotFound(await queue.explain(id_))
        if not await queue.run_now(id_):
            raise Failure(f"only a delayed message is made due: {await queue.explain(id_)}")
    out.line(f"message {id_} is due now", data={"id": id_, "topic": facts.topic, "due": True})


async def cancel(id_: str, /, *, yes: bool = False, common: Common = _DEFAULT) -> None:
    """Withdraw a message that has not started, for good.

    Args:
        id_: the message.
        yes: do not ask.
    """
    out = Output(common)
    async with opened(common) as queue:
        facts = await queue.find(id_)
        match facts.state:
            case "gone" | "done":
                raise NotFound(await queue.explain(id_))
            case "running" | "held":
                raise Failure(
                    f"message {id_} is with {facts.holder}: only one that no worker has is withdrawn"
                )
            case "dead":
                raise Failure(f"message {id_} is dead; mx-rmq dlq delete {id_} deletes it")
        question = (
            f"Withdraw the {facts.state} message {id_} of topic {facts.topic!r} from {place_of(queue)}?"
        )
        out.confirm(question, yes=yes)
        if not await queue.cancel(id_):
            raise Failure(f"not withdrawn: {await queue.explain(id_)}")
    out.line(f"withdrew message {id_}", data={"id": id_, "topic": facts.topic, "cancelled": True})
