"""``mx-rmq dlq ls|groups|show|replay|edit|delete|export|import``."""

from __future__ import annotations

import asyncio
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final

from cyclopts import App, Group, Parameter

from mx_rmq.cli.completion import Topic, topics_like
from mx_rmq.cli.connecting import known_topic, opened, place_of
from mx_rmq.cli.editing import difference, edited, payload_of
from mx_rmq.cli.exits import Exit, Failure, NotFound, UsageError
from mx_rmq.cli.files import Records, new_file, opened_file
from mx_rmq.cli.long_work import long_work
from mx_rmq.cli.messages import print_message
from mx_rmq.cli.output import At, Column, Output
from mx_rmq.cli.settings import Common
from mx_rmq.cli.words import rate_of, seconds_of
from mx_rmq.operating.letters import CanaryDied, CanaryUnfinished, NotDead
from mx_rmq.tables import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mx_rmq.cli.output import Cell
    from mx_rmq.operating.letters import DeadLetter
    from mx_rmq.queue import RedisMessageQueue

_DEFAULT = Common()
_FILTERS: Final = Group("Which dead messages", sort_key=50)
_AT_ONCE: Final = 500
"""Dead messages replayed, deleted or put back in one step."""
_MOST_NAMED: Final = 20
"""Messages or lines that are named one by one."""

dlq = App(name="dlq", help="Look at dead messages; replay, edit, delete, export or import them.")


@Parameter(name="*")
@dataclass(frozen=True, slots=True, kw_only=True)
class Which:
    """Which dead messages a command is about."""

    topic: Annotated[str | None, Parameter(group=_FILTERS, completer=topics_like)] = None
    """Only those of this topic."""
    error: Annotated[str | None, Parameter(group=_FILTERS)] = None
    """Only those with this error class, reason or place, or with this text in their error."""
    group: Annotated[str | None, Parameter(group=_FILTERS)] = None
    """Only those of the group with this id; dlq groups shows it."""

    @property
    def filters(self) -> dict[str, Any]:
        """As ``queue.dlq`` takes them."""
        return asdict(self)

    def __str__(self) -> str:
        said = [f" of topic {self.topic!r}"] if self.topic is not None else []
        said += [f" with the error {self.error!r}"] if self.error is not None else []
        said += [f" in group {self.group}"] if self.group is not None else []
        return "".join(said)


_ANY = Which()


# -- looking


@dlq.command
async def ls(
    *, which: Which = _ANY, limit: int = 50, after: str | None = None, common: Common = _DEFAULT
) -> None:
    """Show dead messages, the latest death first, a page at a time.

    Args:
        limit: the most messages on the page.
        after: where the page begins, as the page before says.
    """
    out = Output(common)
    async with opened(common) as queue:
        page = await queue.dlq.list(**which.filters, limit=limit, after=after)
    columns: list[Column | str] = [
        Column("message", is_whole=True),
        "topic",
        "died",
        Column("reason", is_optional=True),
        Column("group", is_optional=True),
        Column("error", is_cut=True),
    ]
    rows = [
        (one.id, one.topic, At(one.died_at, page.read_at), one.reason, one.group, one.error)
        for one in page.letters
    ]
    out.table(columns, rows, data=page.as_dict(), empty=f"no dead message{which}")
    if page.next is not None:
        out.remark(f"more with --after {page.next}")
    out.missing(page.missing)


@dlq.command
async def groups(*, topic: Topic | None = None, common: Common = _DEFAULT) -> None:
    """Show how many are dead of the same cause, the largest group first.

    Args:
        topic: only the groups of this topic.
    """
    out = Output(common)
    async with opened(common) as queue:
        found = await queue.dlq.groups()
    own = [group for group in found if topic in (None, group.topic)]
    columns: list[Column | str] = ["dead", "topic", "error", Column("first", is_optional=True), "last"]
    columns += [Column("group", is_whole=True)]
    columns += [Column("cause", is_cut=True)] if out.is_terminal else ["text", "place"]
    rows: list[list[Cell]] = []
    for group in own:
        row: list[Cell] = [group.count, group.topic, group.error]
        row += [At(group.first_at, found.read_at), At(group.last_at, found.read_at), group.id]
        cause = f"{group.text} ({group.place})" if group.text and group.place else group.text or group.place
        rows.append(row + ([cause] if out.is_terminal else [group.text, group.place]))
    data = found.as_dict() | {"groups": [group.as_dict() for group in own]}
    out.table(columns, rows, data=data, empty="no dead message")
    if found.uncounted:
        out.remark(f"{found.uncounted:,} more are in no group; mx-rmq audit --repair counts them")
    out.missing(found.missing)


@dlq.command
async def show(id_: Annotated[str, Parameter(name="ID")], /, *, common: Common = _DEFAULT) -> None:
    """Show everything about a dead message: why it died, its payload, headers and history.

    Args:
        id_: the message.
    """
    out = Output(common)
    async with opened(common) as queue:
        letter = await _letter(queue, id_)
    facts = letter.facts
    data = letter.as_dict() | {"unreadable": facts.unreadable}
    print_message(out, facts, data=data, more={"group": letter.group})


# -- replaying


@dlq.command
async def replay(
    *ids: Annotated[str, Parameter(name="ID")],
    which: Which = _ANY,
    all_: Annotated[bool, Parameter(name="--all")] = False,
    rate: str | None = None,
    canary: int | None = None,
    canary_timeout: str = "1m",
    yes: bool = False,
    common: Common = _DEFAULT,
) -> None:
    """Make dead messages pending again, as if new; their history stays.

    Args:
        ids: the messages; or give filters, or --all.
        all_: replay all dead messages of the queue.
        rate: the most messages a second, such as 100/s or 30/m.
        canary: replay so many first, and the rest only if none of them dies again.
        canary_timeout: how long the canaries may take, retries included.
        yes: do not ask.
    """
    out = Output(common)
    _check_choice("replay", ids, which, all_)
    if ids and (rate or canary):
        raise UsageError("--rate and --canary are for filters or --all; messages named by id run at once")
    options: dict[str, Any] = {
        "rate": None if rate is None else rate_of("--rate", rate),
        "canary": canary,
        "canary_timeout": seconds_of("--canary-timeout", canary_timeout),
    }
    async with opened(common) as queue:
        total = await _count(queue, ids, which)
        if not total:
            await _tell_of_none(out, queue, which, {"replayed": 0})
            return
        out.confirm(f"Replay {_messages(total)}{which} in {place_of(queue)}?", yes=yes)
        with long_work(out, "replaying", "replayed", total) as progress:
            if ids:
                replayed = await _replay_each(queue, ids, progress)
            else:
                replayed = await _replay_all(queue, which, options | {"progress": progress})
        out.line(f"replayed {_messages(replayed)}", data={"replayed": replayed})


async def _replay_all(queue: RedisMessageQueue, which: Which, options: dict[str, Any]) -> int:
    try:
        return await queue.dlq.replay_all(**which.filters, **options)
    except CanaryDied as died:
        how = [f"{one.id}: {one.error or one.reason}" for one in died.letters]
        said = f"{len(died.letters)} of {len(died.replayed)} canaries died again, nothing else was replayed"
    except CanaryUnfinished as unfinished:
        how = [*unfinished.waiting.values()]
        tried, seconds = len(unfinished.replayed), f"{unfinished.timeout:g} s"
        said = f"{len(how)} of {tried} canaries did not end within {seconds}, nothing else was replayed"
    raise Failure(_listed(said, how))


async def _replay_each(queue: RedisMessageQueue, ids: Sequence[str], progress: Callable[[int], None]) -> int:
    """Replay messages one by one, so that one which is not dead holds up no other."""
    replayed, refused = 0, []
    for start in range(0, len(ids), _AT_ONCE):
        calls = [queue.dlq.replay(id_) for id_ in ids[start : start + _AT_ONCE]]
        for end in await asyncio.gather(*calls, return_exceptions=True):
            if isinstance(end, NotDead):
                refused.append(str(end))
            elif isinstance(end, BaseException):
                raise end
            else:
                replayed += end
        progress(replayed)
    if refused:
        raise NotFound(_listed(f"replayed {_messages(replayed)}, but not {len(refused):,}", refused))
    return replayed


# -- editing


@dlq.command
async def edit(
    id_: Annotated[str, Parameter(name="ID")],
    /,
    *,
    payload: Annotated[str | None, Parameter(allow_leading_hyphen=True)] = None,
    yes: bool = False,
    common: Common = _DEFAULT,
) -> None:
    """Change the payload of a dead message in $VISUAL or $EDITOR, and replay it.

    Args:
        id_: the message.
        payload: the new payload as JSON, "-" to read it from stdin, in place of an editor.
        yes: do not ask.
    """
    out = Output(common)
    async with opened(common) as queue:
        letter = await _letter(queue, id_)
    if unreadable := letter.facts.unreadable:
        advice = f"mx-rmq dlq delete {id_} --export FILE keeps its bytes"
        raise Failure(f"message {id_} cannot be edited: {unreadable}; {advice}")
    # The connection is closed while a person edits.
    new = edited(letter.payload) if payload is None else payload_of("--payload", payload)
    changes = difference(letter.payload, new)
    if not changes:
        raise Failure(
            f"the payload is the same; nothing was done. mx-rmq dlq replay {id_} replays it as it is"
        )
    out.remark(changes)
    async with opened(common) as queue:
        out.confirm(f"Replay message {id_} with this payload in {place_of(queue)}?", yes=yes)
        await queue.dlq.replay(id_, payload=new)
        out.line(f"replayed {id_} with the new payload", data={"replayed": 1, "id": id_, "payload": new})


# -- deleting


@dlq.command
async def delete(
    *ids: Annotated[str, Parameter(name="ID")],
    which: Which = _ANY,
    all_: Annotated[bool, Parameter(name="--all")] = False,
    export_to: Annotated[str | None, Parameter(name="--export")] = None,
    yes: bool = False,
    common: Common = _DEFAULT,
) -> None:
    """Delete dead messages for good.

    Args:
        ids: the messages; or give filters, or --all.
        all_: delete all dead messages of the queue.
        export_to: a new file to write them to first, which dlq import takes.
        yes: do not ask.
    """
    out = Output(common)
    _check_choice("delete", ids, which, all_)
    async with opened(common) as queue:
        total = await _count(queue, ids, which)
        if not total:
            await _tell_of_none(out, queue, which, {"deleted": 0})
            return
        kept = "" if export_to is None else f", kept in {export_to}"
        out.confirm(f"Delete {_messages(total)}{which} from {place_of(queue)} for good{kept}?", yes=yes)
        if export_to is not None:
            deleted = await _export_and_delete(out, queue, ids, which, export_to, total)
        else:
            with long_work(out, "deleting", "deleted", total) as progress:
                if ids:
                    deleted = await _delete_each(queue, ids, None, progress)
                else:
                    deleted = await queue.dlq.purge(**which.filters, progress=progress)
        if len(set(ids)) > deleted:
            missing = len(set(ids)) - deleted
            raise NotFound(f"deleted {_messages(deleted)}; {missing:,} of the given are not in the DLQ")
        data: dict[str, Any] = {"deleted": deleted}
        written = ""
        if export_to is not None:
            data["file"], written = export_to, f"; kept in {export_to}"
        out.line(f"deleted {_messages(deleted)}{written}", data=data)


async def _export_and_delete(
    out: Output, queue: RedisMessageQueue, ids: Sequence[str], which: Which, name: str, total: int
) -> int:
    """Write dead messages to a file, and delete exactly those once it is whole.

    What dies in between stays: it is not in the file.
    """
    marks: list[tuple[str, float]] = []
    stopped = "nothing was deleted, and the file was removed"
    with new_file(name) as write, long_work(out, "exporting", "exported", total, then=stopped) as progress:
        if ids:
            for id_ in dict.fromkeys(ids):
                letter = await _letter(queue, id_)
                write(letter.as_dict())
                marks.append((letter.id, letter.died_at))
        else:
            async for letter in queue.dlq.export(**which.filters):
                write(letter.as_dict())
                marks.append((letter.id, letter.died_at))
                progress(len(marks))
    left = f"all are in {name}; the same command with another file goes on"
    with long_work(out, "deleting", "deleted", len(marks), then=left) as progress:
        deleted = await _delete_each(queue, [id_ for id_, _ in marks], [at for _, at in marks], progress)
    if deleted < len(marks):
        missed = counted(len(marks) - deleted, "message")
        out.remark(f"{missed} in {name} left the DLQ, or died again, before being deleted")
    return deleted


async def _delete_each(
    queue: RedisMessageQueue,
    ids: Sequence[str],
    deaths: Sequence[float] | None,
    progress: Callable[[int], None],
) -> int:
    deleted = 0
    for start in range(0, len(ids), _AT_ONCE):
        chunk = slice(start, start + _AT_ONCE)
        deleted += await queue.dlq.delete(*ids[chunk], died_at=None if deaths is None else deaths[chunk])
        progress(deleted)
    return deleted


# -- files


@dlq.command
async def export(
    file: Annotated[str, Parameter(name="FILE", allow_leading_hyphen=True)] = "-",
    /,
    *,
    which: Which = _ANY,
    common: Common = _DEFAULT,
) -> None:
    """Write dead messages as lines of JSON, which dlq import takes; they stay in the DLQ.

    Args:
        file: a new file, or "-" for stdout.
    """
    out = Output(common)
    async with opened(common) as queue:
        total = await _count(queue, (), which)
        if file == "-":
            exported = await _export(out, queue, which, total, out.json_line)
            out.remark(f"exported {_messages(exported)}")
            return
        with new_file(file) as write:
            exported = await _export(out, queue, which, total, write)
        out.line(f"exported {_messages(exported)} to {file}", data={"exported": exported, "file": file})


async def _export(
    out: Output, queue: RedisMessageQueue, which: Which, total: int, write: Callable[[Any], None]
) -> int:
    exported = 0
    with long_work(out, "exporting", "exported", total, then="nothing has changed in the DLQ") as progress:
        async for letter in queue.dlq.export(**which.filters):
            write(letter.as_dict())
            exported += 1
            progress(exported)
    return exported


@dlq.command(name="import")
async def import_(
    file: Annotated[str, Parameter(name="FILE", allow_leading_hyphen=True)], /, *, common: Common = _DEFAULT
) -> Exit:
    """Put exported messages back into the DLQ. An id that is live or dead already is left as it is.

    Args:
        file: lines of JSON, as dlq export wrote them; "-" for stdin.
    """
    out = Output(common)
    async with opened(common, must_exist=False) as queue:
        with opened_file(file) as lines, long_work(out, "importing", "put back", None) as progress:
            records = Records(lines)
            result = await queue.dlq.restore(records, refused=records.refuse, progress=progress)
        place = place_of(queue)
    refused = records.refused
    for number, why in refused[:_MOST_NAMED]:
        out.remark(f"line {number}: {why}")
    if len(refused) > _MOST_NAMED:
        out.remark(f"and {len(refused) - _MOST_NAMED:,} more lines that were refused")
    said = [f"put back {_messages(result.restored)} into {place}"]
    said += [f"{result.dead:,} already in the DLQ"] if result.dead else []
    said += [f"{result.live:,} not put back, since a message with the id is alive"] if result.live else []
    said += [f"{len(refused):,} lines refused"] if refused else []
    data = result._asdict() | {"refused": [{"line": number, "error": why} for number, why in refused]}
    out.line("; ".join(said), data=data)
    return Exit.FAILED if refused or result.live else Exit.DONE


# -- what the commands share


def _check_choice(verb: str, ids: Sequence[str], which: Which, all_: bool) -> None:
    """Refuse a choice that says nothing, or two things."""
    if sum((bool(ids), which != _ANY, all_)) > 1:
        raise UsageError(f"{verb} takes ids, or filters, or --all; give one of them")
    if not ids and which == _ANY and not all_:
        raise UsageError(f"{verb} needs ids, or --topic, --error or --group, or --all for all dead messages")


async def _count(queue: RedisMessageQueue, ids: Sequence[str], which: Which) -> int:
    """How many dead messages are meant.

    Raises:
        NotFound: there is no such group.
    """
    if ids:
        return len(set(ids))
    total = await queue.dlq.count(**which.filters)
    if total or which.group is None or which.group in [one.id for one in await queue.dlq.groups()]:
        return total
    raise NotFound(f"there is no group {which.group!r} of dead messages; see mx-rmq dlq groups")


async def _tell_of_none(out: Output, queue: RedisMessageQueue, which: Which, data: dict[str, int]) -> None:
    """Say that nothing matches, so nothing is done: what dies only now was not asked about.

    Raises:
        NotFound: there is no such topic.
    """
    if which.topic is not None:
        await known_topic(queue, which.topic)
    out.line(f"no dead message{which}; nothing was done", data=data)


async def _letter(queue: RedisMessageQueue, id_: str) -> DeadLetter:
    """A dead message.

    Raises:
        NotFound: there is none with that id; says where the message is.
    """
    try:
        return await queue.dlq.get(id_)
    except NotDead:
        raise NotFound(f"message {id_} is not in the DLQ; {await queue.explain(id_)}") from None


def _messages(count: int) -> str:
    return counted(count, "dead message")


def _listed(said: str, how: Sequence[str]) -> str:
    """A sentence, and the cases below it."""
    shown = [f"  {one}" for one in how[:_MOST_NAMED]]
    more = [f"  and {len(how) - _MOST_NAMED:,} more"] if len(how) > _MOST_NAMED else []
    return "\n".join([f"{said}:", *shown, *more])
