"""The page of a message: where it is and why, what it carries, its life, and what can be done about it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

import msgspec
from starlette.responses import Response
from starlette.routing import Route

from mx_rmq.checks import check_id
from mx_rmq.errors import MessageTooLarge, MxRmqError
from mx_rmq.message import HISTORY_LIMIT
from mx_rmq.operating.letters import NotDead
from mx_rmq.tables import lasted, utc
from mx_rmq.traces import place_of
from mx_rmq.web.acts import Done, act
from mx_rmq.web.desk import Live, Section, desk_of
from mx_rmq.web.exact import compact, difference, indented, parsed, payload_text, written
from mx_rmq.web.redaction import Uncertain
from mx_rmq.web.security import Refused, visitor_of
from mx_rmq.web.words import cut, link

if TYPE_CHECKING:
    from starlette.requests import Request

    from mx_rmq.message import Message, PastAttempt
    from mx_rmq.operating.letters import DeadLetter
    from mx_rmq.operating.messages import MessageFacts
    from mx_rmq.operating.trail import Trail
    from mx_rmq.web.acts import Call
    from mx_rmq.web.desk import Desk
    from mx_rmq.web.exact import Change
    from mx_rmq.web.users import Right

_SHORT: Final = 20_000
"""Characters of a payload that are shown at first."""
_LONG: Final = 4_000_000
"""Characters that are shown on request; a longer payload is for downloading."""
_MOST_BYTES: Final = 4096
"""Bytes of a message that cannot be read."""
_FOLLOWED: Final = 3600.0
"""Seconds for which the end of a message that was replayed here is remembered, for its page to say."""
_LOST: Final = ("the worker vanished", "the lease ran out although")
"""How errors begin that say that a message was taken from a lost worker."""
_OURS: Final = {
    "replay": "replayed",
    "edit and replay": "edited and replayed",
    "delete": "deleted",
    "cancel": "withdrawn",
    "run now": "made due at once",
}
"""Acts on one message, as its life shows them."""


@dataclass(frozen=True, slots=True)
class Moment:
    """Something in the life of a message."""

    said: str
    level: Literal["", "good", "bad", "warn"] = ""
    at: float | None = None
    error: str = ""
    where: str = ""
    trace: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Text:
    """A payload as a page shows it."""

    text: str
    size: int
    is_cut: bool


async def message(request: Request) -> Response:
    """The page."""
    desk, id_ = desk_of(request), _id(request)
    facts, said, trail = await _look(desk, id_)
    found = facts.message
    moments = _life(facts, trail)
    whole = request.query_params.get("all") == "1"
    return desk.page(
        request,
        "message.html",
        title=f"Message {id_}",
        facts=facts,
        said=said,
        group=await _group(desk, facts),
        moments=moments,
        payload=None if found is None else _payload(desk, found, _LONG if whole else _SHORT),
        whole=whole,
        headers=desk.redact.headers(found.headers) if found else {},
        bytes_=_bytes(desk, facts),
        now=_clock(moments, trail),
    )


async def _look(desk: Desk, id_: str) -> tuple[MessageFacts, str, Trail]:
    facts = await desk.queue.find(id_)
    said = await desk.queue.explain(id_)
    name = f"message {id_} of topic {facts.topic!r} "
    said = said.removeprefix(name)
    return facts, said[:1].upper() + said[1:], await desk.looks.trail()


async def _live(desk: Desk, argument: str) -> Live:
    facts, said, trail = await _look(desk, argument)
    moments = _life(facts, trail)
    now = _clock(moments, trail)
    html = {
        "now": desk.part("message_parts.html", "state", facts=facts, said=said),
        "life": desk.part("message_parts.html", "life", moments=moments, now=now),
    }
    return Live(html)


def _clock(moments: list[Moment], trail: Trail) -> float:
    """The time to count ages from; the trail may have been read a few seconds before the message was."""
    return max([trail.read_at, *(each.at for each in moments if each.at is not None)])


async def _group(desk: Desk, facts: MessageFacts) -> str:
    if facts.state != "dead":
        return ""
    try:
        return (await desk.queue.dlq.get(facts.id)).group
    except NotDead:
        return ""


def _payload(desk: Desk, found: Message, most: int) -> Text:
    text = indented(payload_text(found, desk.redact))
    return Text(text[:most], len(bytes(found.payload)), len(text) > most)


def _bytes(desk: Desk, facts: MessageFacts) -> str:
    """The bytes of a message that cannot be read, as people read them."""
    if not facts.unreadable:
        return ""
    if desk.redact:
        return "(not shown: its fields cannot be hidden)"
    lines = []
    for start in range(0, min(len(facts.body), _MOST_BYTES), 16):
        row = facts.body[start : start + 16]
        text = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in row)
        lines.append(f"{start:06x}  {row.hex(' '):47}  {text}")
    if len(facts.body) > _MOST_BYTES:
        lines.append(f"… {len(facts.body):,} bytes in all")
    return "\n".join(lines)


# -- its life


def _life(facts: MessageFacts, trail: Trail) -> list[Moment]:
    """What is known of a message's life, in order; what has no time comes before how it stands now."""
    dated: list[Moment] = []
    undated: list[Moment] = []
    found = facts.message
    if found is not None:
        dated.append(_produced(found))
        is_whole = len(found.history) < HISTORY_LIMIT
        number = 0
        for past in found.history:
            is_lost = past.error.startswith(_LOST)
            number += not is_lost
            dated.append(_attempt(past, number if is_whole else 0, is_lost=is_lost))
        if not is_whole:
            undated.append(Moment(f"only its latest {HISTORY_LIMIT} failures are kept"))
    began = _last_replay_before(found)
    for note in trail:
        if note.target == facts.id and note.what in _OURS and not note.said.startswith("failed"):
            # An act is noted after it was done, and a quick handler may have failed by then.
            at = min(note.at, began) if "replay" in note.what else note.at
            dated.append(Moment(f"{_OURS[note.what]} by {cut(note.who, 60)}", at=at))
            began = math.inf if "replay" in note.what else began
    if found is not None and found.replays:
        undated.append(Moment(f"replayed {_times(found.replays)} in all"))
    if found is not None and found.put_off:
        undated.append(Moment(f"put off {_times(found.put_off)} by its handler; no attempt was spent"))
    dated.sort(key=lambda moment: moment.at or 0.0)
    return [*dated, *undated, *_now(facts)]


def _last_replay_before(found: Message | None) -> float:
    """An instant before which its last replay was: when the first attempt after it failed."""
    failures = found.attempts + found.crashes + found.unbegun if found else 0
    if found is None or not failures or failures > len(found.history):
        return math.inf
    return found.history[-failures].at - 0.001


def _produced(found: Message) -> Moment:
    more = [f"priority {found.priority}"] if found.priority != "normal" else []
    more += [f"to run {lasted(found.delay)} later"] if found.delay else []
    more += [f"may wait {lasted(found.ttl)}"] if found.ttl else []
    return Moment("produced", at=found.created_at, where=" · ".join(more))


def _attempt(past: PastAttempt, number: int, *, is_lost: bool) -> Moment:
    trace = tuple(past.trace.split(" > ")) if past.trace else ()
    where = " · ".join(filter(None, (past.worker, place_of(past.trace))))
    if is_lost:
        return Moment("recovered from a lost worker", "warn", past.at, past.error, where, trace)
    name = f"attempt {number}" if number else "an attempt"
    ran = f"after {lasted(past.took)}" if past.took >= 0.001 else "at once"
    return Moment(f"{name} failed {ran}", "bad", past.at, past.error, where, trace)


def _now(facts: MessageFacts) -> list[Moment]:
    again = facts.message.replays if facts.message else 0
    match facts.state:
        case "dead":
            said = f"dead, died again ×{again}" if again else "dead"
            return [Moment(said, "bad", facts.died_at, where=facts.reason)]
        case "done":
            return [Moment(f"done in {lasted(facts.took or 0.0)}", "good", facts.ended_at)]
        case "running":
            return [Moment("running", "good", facts.claimed_at, where=facts.holder or "")]
        case "held":
            return [Moment("held ready", "", facts.claimed_at, where=facts.holder or "")]
        case "delayed":
            return [Moment(f"to run at {utc(facts.due_at)}", at=None)]
        case "pending":
            return [Moment("pending")]
        case "gone":
            return []


def _times(number: int) -> str:
    return "once" if number == 1 else f"{number:,} times"


# -- the payload by itself


async def payload(request: Request) -> Response:
    """The payload as a file."""
    desk, id_ = desk_of(request), _id(request)
    facts = await desk.queue.find(id_)
    if facts.message is None:
        raise Refused(404, f"message {id_} has no payload that can be read")
    text = payload_text(facts.message, desk.redact)
    name = "".join(sign if sign.isascii() and sign.isalnum() else "-" for sign in id_)
    headers = {"content-disposition": f'attachment; filename="payload-{name}.json"'}
    return Response(text.encode(errors="backslashreplace"), media_type="application/json", headers=headers)


# -- acts on one message


@act("/message/replay", right="mend", what="replay", target="id")
async def replay(call: Call) -> Done:
    """Replay it as it is."""
    id_ = check_id(call.target)
    await call.desk.queue.dlq.replay(id_, remember=_FOLLOWED)
    return Done("replayed; this page follows it", link("message", id=id_), 1)


@act("/message/run", right="mend", what="run now", target="id")
async def run_now(call: Call) -> Done:
    """Let a delayed message run now."""
    id_ = check_id(call.target)
    if await call.desk.queue.run_now(id_):
        return Done("due now; this page follows it", link("message", id=id_), 1)
    return Done(f"nothing was done: {await call.desk.queue.explain(id_)}", link("message", id=id_))


async def confirm_delete(request: Request) -> Response:
    """Ask before a dead letter is deleted."""
    return await _confirm(request, "delete", "delete")


async def confirm_cancel(request: Request) -> Response:
    """Ask before a message is withdrawn."""
    return await _confirm(request, "cancel", "withdraw")


async def _confirm(request: Request, action: str, verb: str) -> Response:
    desk, id_ = desk_of(request), _id(request)
    _require(request, "delete", verb)
    facts, said, _ = await _look(desk, id_)
    title = f"{verb.capitalize()} 1 message?"
    return desk.page(
        request, "message_confirm.html", title=title, verb=verb, action=action, facts=facts, said=said
    )


@act("/message/delete", right="delete", what="delete", target="id")
async def delete(call: Call) -> Done:
    """Delete a dead letter for good."""
    id_ = check_id(call.target)
    letter = await call.desk.queue.dlq.get(id_)
    if died := call.form.get("died"):
        _check_same(letter, died)
    deleted = await call.desk.queue.dlq.delete(id_, died_at=[letter.died_at])
    said = f"deleted {id_}" if deleted else f"{id_} was not dead any more; nothing was done"
    return Done(said, link("dlq", group=letter.group), deleted)


@act("/message/cancel", right="delete", what="cancel", target="id")
async def cancel(call: Call) -> Done:
    """Withdraw a message that no worker has."""
    id_ = check_id(call.target)
    if await call.desk.queue.cancel(id_):
        return Done(f"withdrew {id_}", link("message", id=id_), 1)
    return Done(f"not withdrawn: {await call.desk.queue.explain(id_)}", link("message", id=id_))


# -- editing


async def edit(request: Request) -> Response:
    """The payload in an editor."""
    desk, id_ = desk_of(request), _id(request)
    _require(request, "mend", "edit")
    letter = await desk.queue.dlq.get(id_)
    found = _readable(letter)
    text = indented(payload_text(found, desk.redact))
    return _editor(request, letter, text)


def _editor(
    request: Request,
    letter: DeadLetter,
    text: str,
    *,
    wrong: str = "",
    changes: list[Change] | None = None,
    died: str = "",
) -> Response:
    desk = desk_of(request)
    return desk.page(
        request,
        "edit.html",
        status=400 if wrong else 200,
        title=f"Edit {letter.id}",
        letter=letter,
        text=text,
        died=died or repr(letter.died_at),
        wrong=wrong,
        changes=changes,
        is_hiding=bool(desk.redact),
    )


@act("/message/edit/preview", right="look", what="preview", target="id")
async def preview(call: Call) -> Response:
    """Check an edited payload and show what it changes; nothing is done yet."""
    _require(call.request, "mend", "edit")
    letter = await call.desk.queue.dlq.get(check_id(call.target))
    text, died = call.form.get("payload"), call.form.get("died")
    before = indented(payload_text(_readable(letter), call.desk.redact))
    try:
        _check_same(letter, died)
        _edited(call, letter)
        changes = difference(before, indented(text))
    except (ValueError, RecursionError) as error:
        return _editor(call.request, letter, text, wrong=_why(error), died=died)
    if not changes:
        return _editor(call.request, letter, text, wrong="The payload is the same as before.", died=died)
    return _editor(call.request, letter, text, changes=changes, died=died)


@act("/message/edit", right="mend", what="edit and replay", target="id")
async def replay_edited(call: Call) -> Done | Response:
    """Replay a message with the payload that was checked."""
    id_ = check_id(call.target)
    letter = await call.desk.queue.dlq.get(id_)
    try:
        _check_same(letter, call.form.get("died"))
        new = _edited(call, letter)
        await call.desk.queue.dlq.replay(id_, payload=new, remember=_FOLLOWED)
    except (ValueError, RecursionError) as error:
        raise Refused(400, f"nothing was done: {_why(error)}") from None
    return Done("replayed with the new payload; this page follows it", link("message", id=id_), 1)


def _check_same(letter: DeadLetter, died: str) -> None:
    if died != repr(letter.died_at):
        raise Refused(409, "it was replayed and has died again since the page was loaded; look at it anew")


def _edited(call: Call, letter: DeadLetter) -> msgspec.Raw:
    """The new payload to store: as it was typed, with the original values where they are hidden."""
    text = call.form.get("payload")
    value = parsed(text)  # also the check
    redact = call.desk.redact
    if redact:
        original = parsed(bytes(_readable(letter).payload).decode())
        text = written(redact.keep(value, original))
    new = compact(text).encode()
    most = call.desk.queue.config.max_bytes
    if len(new) > most:
        raise MessageTooLarge(f"the payload has {len(new):,} bytes; a message may have {most:,}")
    msgspec.json.decode(new)  # what the parser of the workers does not take
    return msgspec.Raw(new)


def _why(error: Exception) -> str:
    if isinstance(error, RecursionError):
        return "The payload is nested too deep."
    said = str(error)
    return said if isinstance(error, MxRmqError | Uncertain) else f"This is not JSON: {said}"


def _readable(letter: DeadLetter) -> Message:
    found = letter.message
    if found is None:
        raise Refused(400, f"message {letter.id} cannot be edited: {letter.facts.unreadable}")
    return found


# -- what they share


def _id(request: Request) -> str:
    return check_id(request.query_params.get("id", ""))


def _require(request: Request, right: Right, verb: str) -> None:
    visitor = visitor_of(request)
    if not visitor.may(right):
        raise Refused(403, f"{visitor.user.name} may not {verb}: it needs the right {right!r}")


SECTION: Final = Section(
    routes=[
        Route("/message", message),
        Route("/message/payload", payload, methods=["GET"]),
        Route("/message/edit", edit, methods=["GET"]),
        Route("/message/delete", confirm_delete, methods=["GET"]),
        Route("/message/cancel", confirm_cancel, methods=["GET"]),
        replay,
        run_now,
        delete,
        cancel,
        preview,
        replay_edited,
    ],
    live={"message": _live},
)
