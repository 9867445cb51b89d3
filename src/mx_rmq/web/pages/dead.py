"""Dead letters: their groups, the messages of a group, and what can be done about many of them."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from starlette.responses import StreamingResponse
from starlette.routing import Route

from mx_rmq.errors import ConfigError, MxRmqError
from mx_rmq.operating.letters import CanaryDied, CanaryUnfinished, NotDead
from mx_rmq.tables import counted
from mx_rmq.web.acts import Done, act
from mx_rmq.web.desk import Live, Section, desk_of
from mx_rmq.web.exact import UNREADABLE
from mx_rmq.web.letters import Choice, excerpt, filters_of, look_for, meant, name_of, of_groups
from mx_rmq.web.security import Refused, visitor_of
from mx_rmq.web.words import cut, link

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from starlette.requests import Request
    from starlette.responses import Response

    from mx_rmq.operating.letters import DeadGroup, DeadLetter
    from mx_rmq.web.acts import Call, Form
    from mx_rmq.web.desk import Desk
    from mx_rmq.web.jobs import Job
    from mx_rmq.web.letters import Meant, Part
    from mx_rmq.web.redaction import Redactor
    from mx_rmq.web.users import Right

_MOST_GROUPS: Final = 200
_PAGE: Final = 50
_MOST_RATE: Final = 1e6
_MOST_SECONDS: Final = 1e11
_MANY: Final = 20
"""From so many on, a canary and a rate are proposed."""


@dataclass(frozen=True, slots=True)
class Row:
    """A dead letter in a list."""

    id: str
    topic: str
    died_at: float
    reason: str
    error: str
    place: str
    attempts: int
    again: int
    """How often it died again after a replay."""
    payload: str
    unreadable: str


async def dead(request: Request) -> Response:
    """The groups, or the messages of one of them."""
    choice = _choice(request)
    return await (_letters if choice.groups or choice.each else _groups)(request, choice)


def _choice(request: Request) -> Choice:
    query = request.query_params
    choice = Choice.of(lambda name: query.get(name, ""), query.getlist)
    if query.get("ticked") and not choice.ids and not choice.groups:
        # Without this, nothing ticked would mean all that match.
        raise Refused(400, "nothing is ticked; go back and tick what you mean")
    return choice


# -- groups


async def _groups(request: Request, choice: Choice) -> Response:
    desk = desk_of(request)
    groups = await desk.looks.groups()
    found = of_groups(groups, choice)
    return desk.page(
        request,
        "dead.html",
        title="Dead letters",
        choice=choice,
        groups=found[:_MOST_GROUPS],
        left_out=max(0, len(found) - _MOST_GROUPS),
        count=sum(group.count for group in found),
        uncounted=groups.uncounted,
        missing=groups.missing,
        topics=sorted({group.topic for group in groups})[:_MOST_GROUPS],
        errors=sorted({group.error for group in groups})[:_MOST_GROUPS],
        now=groups.read_at,
        may_act=_may_act(request),
        live=json.dumps([choice.topic, choice.error, choice.text]).encode().hex(),
    )


async def _live_groups(desk: Desk, argument: str) -> Live:
    try:
        topic, error, text = json.loads(bytes.fromhex(argument))
        choice = Choice(topic=str(topic), error=str(error), text=str(text))
    except (ValueError, TypeError):
        return Live({})
    groups = await desk.looks.groups()
    found = of_groups(groups, choice)
    count = sum(group.count for group in found)
    html = {
        f"group-{group.id}": desk.part("dead_parts.html", "group_row", group=group, now=groups.read_at)
        for group in found[:_MOST_GROUPS]
    }
    html["dead-total"] = desk.part("dead_parts.html", "total", count=count, groups=len(found))
    html["none"] = desk.part("dead_parts.html", "nothing", choice=choice, count=count)
    return Live(html, {"groups": [f"group-{group.id}" for group in found[:_MOST_GROUPS]]})


# -- messages


async def _letters(request: Request, choice: Choice) -> Response:
    desk, query = desk_of(request), request.query_params
    oldest = query.get("order") == "oldest"
    group: DeadGroup | None = None
    filters = filters_of(desk, choice)
    if choice.groups:
        filters = {"group": choice.groups[0], **filters}
        group = next((each for each in await desk.queue.dlq.groups() if each.id == choice.groups[0]), None)
    page = await desk.queue.dlq.list(
        **filters, limit=_PAGE, after=query.get("after") or None, oldest=oldest, look=look_for(choice)
    )
    return desk.page(
        request,
        "dead_letters.html",
        title=name_of(group) if group else "Dead letters",
        choice=choice,
        group=group,
        group_id=choice.groups[0] if choice.groups else "",
        rows=[_row(letter, desk.redact) for letter in page.letters],
        oldest=oldest,
        after=query.get("after", ""),
        next=page.next,
        missing=page.missing,
        looked=look_for(choice),
        now=page.read_at,
        is_hiding=bool(desk.redact),
        may_act=_may_act(request),
    )


def _row(letter: DeadLetter, redact: Redactor) -> Row:
    facts = letter.facts
    return Row(
        letter.id,
        letter.topic,
        letter.died_at,
        letter.reason,
        letter.error or letter.reason,
        letter.place,
        facts.attempts,
        facts.message.replays if facts.message else 0,
        excerpt(letter, redact),
        facts.unreadable,
    )


def _may_act(request: Request) -> bool:
    visitor = visitor_of(request)
    return visitor.may("mend") or visitor.may("delete")


# -- before replaying or deleting many


async def confirm_replay(request: Request) -> Response:
    """How many are replayed, how fast, and which of them first."""
    return await _confirm(request, "replay", "mend")


async def confirm_delete(request: Request) -> Response:
    """How many are deleted."""
    return await _confirm(request, "delete", "delete")


async def _confirm(request: Request, verb: str, right: Right) -> Response:
    desk, visitor, choice = desk_of(request), visitor_of(request), _choice(request)
    if not visitor.may(right):
        raise Refused(403, f"{visitor.user.name} may not {verb}: it needs the right {right!r}")
    found = await meant(desk, choice)
    return desk.page(
        request,
        "dead_confirm.html",
        title=f"{verb.capitalize()} {found.said}?",
        verb=verb,
        choice=choice.settled(found),
        back=choice.back,
        meant=found,
        is_many=not found.is_exact or found.count >= _MANY,
    )


# -- acts


@act("/dlq/replay", right="mend", what="replay")
async def replay(call: Call) -> Done:
    """Replay what was chosen: messages by id at once, all others as a job."""
    choice = Choice.of(call.form.get, call.form.all)
    if choice.ids:
        return await _replay_ids(call, choice)
    options = _options(call.form)
    found = await _meant(call, choice)

    async def work(job: Job) -> str:
        return await _replay_parts(call.desk, job, found.parts, options | {"until": found.at})

    return call.start(f"Replay {found.said}", work, total=_total(found), back=choice.back)


@act("/dlq/delete", right="delete", what="delete")
async def delete(call: Call) -> Done:
    """Delete what was chosen, for good."""
    choice = Choice.of(call.form.get, call.form.all)
    dlq = call.desk.queue.dlq
    if choice.ids:
        deleted = await dlq.delete(*choice.ids)
        missing = len(choice.ids) - deleted
        said = f"deleted {counted(deleted, 'dead letter')}: {cut(', '.join(choice.ids), 200)}"
        said += f"; {missing:,} were not dead any more" if missing else ""
        return Done(said, choice.back, deleted)
    found = await _meant(call, choice)

    async def work(job: Job) -> str:
        done = 0
        for part in found.parts:
            done += await dlq.purge(**part.filters, until=found.at, progress=_from(job, done))
            job.progress(done)
        return f"deleted {counted(done, 'dead letter')}"

    return call.start(f"Delete {found.said}", work, total=_total(found), back=link("dlq"))


async def _meant(call: Call, choice: Choice) -> Meant:
    """What is done: no more than the page that asked had counted, however many have died since."""
    count = _number(call.form, "count", "a whole number", sys.maxsize)
    until = _number(call.form, "until", "an instant in seconds", _MOST_SECONDS)
    found = await meant(call.desk, choice)
    if not found.count and found.is_exact:
        raise Refused(404, "no dead letter matches any more; nothing was done")
    return found.asked(None if count is None else int(count), until)


def _from(job: Job, before: int) -> Callable[[int], None]:
    """Takes the progress of a part; so many were done before it."""
    return lambda number: job.progress(before + number)


def _total(found: Meant) -> int | None:
    return found.count if found.is_exact else None


async def _replay_ids(call: Call, choice: Choice) -> Done:
    """One by one, so that one which is not dead holds up no other."""
    replayed, refused = 0, list[str]()
    for id_ in choice.ids:
        try:
            replayed += await call.desk.queue.dlq.replay(id_)
        except NotDead as error:
            refused.append(str(error))
        except MxRmqError as error:
            if not replayed:
                raise
            refused.append(str(error))
            break
    said = f"replayed {counted(replayed, 'dead letter')}: {cut(', '.join(choice.ids), 200)}"
    if refused:
        said = f"replayed {replayed:,} of {len(choice.ids):,} chosen; {cut(refused[0], 200)}"
    return Done(said, choice.back, replayed)


def _options(form: Form) -> dict[str, Any]:
    """Rate and canaries from the form.

    Raises:
        ConfigError: one of them is no number.
    """
    rate = _number(form, "rate", "messages a second, or empty for no limit", _MOST_RATE)
    canary = _number(form, "canary", "a whole number from 1 to 1,000, or empty for none", 1000)
    within = _number(form, "canary_timeout", "seconds", 24 * 3600.0)
    if canary is not None and canary != int(canary):
        raise ConfigError(f"canary must be a whole number from 1 to 1,000, or empty for none, got {canary:g}")
    return {
        "rate": rate,
        "canary": None if canary is None else int(canary),
        "canary_timeout": 60.0 if within is None else within,
    }


def _number(form: Form, name: str, must: str, most: float) -> float | None:
    text = form.get(name).strip()
    if not text:
        return None
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0 < number <= most:
        raise ConfigError(f"{name} must be {must}, got {cut(text, 40)!r}")
    return number


def _keep(job: Job, result: str) -> None:
    if len(job.results) < _MOST_GROUPS:
        job.results.append(result)


async def _replay_parts(desk: Desk, job: Job, parts: list[Part], options: dict[str, Any]) -> str:
    """Replay group by group; canaries that fail stop their own group only."""
    done, stopped = 0, 0
    for part in parts:
        try:
            done += await desk.queue.dlq.replay_all(
                **part.filters,
                **options,
                progress=_from(job, done),
            )
        except CanaryDied as died:
            done += len(died.replayed)
            stopped += 1
            _keep(job, f"{part.name}: {died}")
        except CanaryUnfinished as unfinished:
            done += len(unfinished.replayed)
            stopped += 1
            _keep(job, f"{part.name}: {unfinished}")
        job.progress(done)
    said = f"replayed {counted(done, 'dead letter')}"
    if not stopped:
        return said
    if len(parts) == 1:
        return f"{said}, and no other: {job.results[0]}"
    return f"{said}; {counted(stopped, 'group')} stopped after the canaries"


# -- export


async def export(request: Request) -> Response:
    """All that was chosen as lines of JSON, as ``mx-rmq dlq export`` writes them."""
    desk, choice = desk_of(request), _choice(request)
    found = await meant(desk, choice)
    if not found.count and found.is_exact:
        raise Refused(404, "no dead letter matches, so there is nothing to export")
    name = "".join(sign if sign.isascii() and sign.isalnum() else "-" for sign in desk.queue.config.name)
    stamp = f"{datetime.now(UTC):%Y%m%d-%H%M%S}"
    headers = {"content-disposition": f'attachment; filename="dead-letters-{name}-{stamp}.jsonl"'}
    return StreamingResponse(_lines(desk, choice, found), media_type="application/x-ndjson", headers=headers)


async def _lines(desk: Desk, choice: Choice, found: Meant) -> AsyncIterator[bytes]:
    async for letter in _chosen(desk, choice, found):
        record = letter.as_dict()
        if desk.redact:
            # The stored body has everything in it. Without it dlq.restore() refuses the record, which is
            # better than a message whose hidden fields are lost.
            record = {k: v for k, v in record.items() if not k.startswith("body")}
            try:
                record = desk.redact.hide(record)
            except RecursionError:
                record = desk.redact.hide(record | {"payload": UNREADABLE})
        line = json.dumps(record, ensure_ascii=False, separators=(",", ":"))
        yield line.encode(errors="backslashreplace") + b"\n"


async def _chosen(desk: Desk, choice: Choice, found: Meant) -> AsyncIterator[DeadLetter]:
    for id_ in choice.ids:
        try:
            yield await desk.queue.dlq.get(id_)
        except NotDead:
            continue  # it lives again, or was deleted, since the page was loaded
    for part in found.parts:
        async for letter in desk.queue.dlq.export(**part.filters):
            yield letter


SECTION: Final = Section(
    routes=[
        Route("/dlq", dead),
        Route("/dlq/replay", confirm_replay, methods=["GET"]),
        Route("/dlq/delete", confirm_delete, methods=["GET"]),
        Route("/dlq/export", export, methods=["GET"]),
        replay,
        delete,
    ],
    nav=("Dead letters", "dlq"),
    live={"groups": _live_groups},
)
