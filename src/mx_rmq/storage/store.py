"""One typed method per script: every command on a message's path is here and nowhere else."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, TypeVar

from redis.exceptions import NoScriptError, ResponseError

from mx_rmq.checks import are_labels, check_id, check_name, check_topic
from mx_rmq.errors import MessageTooLarge, StoreError
from mx_rmq.fingerprint import group_of
from mx_rmq.limits import BATCH, MAX_BYTES, MOST_ACTS, MOST_VANISHED
from mx_rmq.message import decode_death
from mx_rmq.receipt import Stored
from mx_rmq.storage.contract import (
    Cancelled,
    Claim,
    DeadRow,
    Delivery,
    Examined,
    Hastened,
    Kept,
    Left,
    NewMessage,
    NextDelay,
    Overdue,
    Promotion,
    Registration,
    Replay,
    Replayed,
    Restore,
    Restored,
    Settled,
    Suspect,
    Takeover,
    TopicRow,
    Want,
)
from mx_rmq.storage.counters import HAPPENINGS, RARE, USUAL
from mx_rmq.storage.keys import HELD
from mx_rmq.storage.refusals import refusal_of
from mx_rmq.storage.scripts import SCRIPTS, Script

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
    from enum import IntEnum

    from mx_rmq.storage.commands import Commands, Together
    from mx_rmq.storage.keys import Keys

Status = TypeVar("Status", bound="IntEnum")

What = Literal["ids", "errors", "bodies", "all"]
"""How much of dead messages to read: id, time of death and topic; the errors, or the bodies, too; or all."""


class NewStore(Protocol):
    """Makes a store: the class itself, or what a test has in its place."""

    def __call__(self, commands: Commands, keys: Keys, *, max_bytes: int, history: bool) -> Store:
        """Return a store on a connection."""


class Store:
    """The transitions of one queue's messages on one server.

    Args:
        commands: the connection on which the scripts run.
        keys: the keys of the queue.
        max_bytes: the largest body that may be stored.
        history: whether to count what happens, by topic and minute.
        now: the time in µs, for tests; the server's own clock otherwise.
        scripts: replacements for the scripts, to test the tests.
    """

    def __init__(
        self,
        commands: Commands,
        keys: Keys,
        *,
        max_bytes: int = MAX_BYTES,
        history: bool = False,
        now: Callable[[], int] | None = None,
        scripts: Mapping[str, Script] = SCRIPTS,
    ) -> None:
        self.commands = commands
        self.keys = keys
        self.max_bytes = max_bytes
        self.history = history
        self.now = now
        self._counted = keys.prefix if history else ""
        self._scripts = scripts

    # -- a message's life

    async def produce(
        self, topic: str, messages: Sequence[NewMessage], *, producer: str = "", call: str = ""
    ) -> list[Stored]:
        """Store messages and make them pending: all of those whose id is free, or none.

        With *producer* and *call*, a call may be sent again after a lost reply. It gets the same answer and
        stores nothing again, even if its messages have been completed by then.
        """
        if len(messages) == 1:
            return [await self.produce_one(topic, messages[0], producer=producer, call=call)]
        self._check_new(topic, messages, producer, call)
        args: list[Any] = [topic, call, self.max_bytes, self._counted]
        for message in messages:
            args += (message.id, message.lane, _lifetime(message.ttl), message.body)
        reply = await self._run("produce_normal_message", args, topic, producer)
        return _statuses(Stored, reply)

    async def produce_one(
        self, topic: str, message: NewMessage, *, producer: str = "", call: str = ""
    ) -> Stored:
        """Store a message that comes alone and make it pending, as ``produce`` does; it costs less."""
        self._check_new(topic, (message,), producer, call)
        head = (topic, call, self.max_bytes, self._counted)
        args = (*head, message.id, message.lane, _lifetime(message.ttl), message.body)
        reply = await self._run("produce_one_message", args, topic, producer)
        return _statuses(Stored, reply)[0]

    async def produce_delayed(
        self, topic: str, messages: Sequence[NewMessage], *, producer: str = "", call: str = ""
    ) -> list[Stored]:
        """Store messages that become pending after their delay."""
        self._check_new(topic, messages, producer, call)
        args: list[Any] = [topic, call, self.max_bytes, self._counted]
        for message in messages:
            args += (message.id, message.lane, _lifetime(message.ttl), _ms(message.delay), message.body)
        reply = await self._run("produce_delay_message", args, topic, producer)
        return _statuses(Stored, reply)

    async def claim(self, topic: str, limit: int, *, lease: float, holder: str) -> Claim:
        """Lease up to *limit* pending messages of a topic to *holder* for *lease* seconds."""
        (claim,) = await self.claim_some([Want(topic, limit)], runs=limit, lease=lease, holder=holder)
        if claim.refusal:
            script = self._scripts["claim_message"]
            keys = self.keys.of_script(script, topic)
            raise await refusal_of(self.commands, ResponseError(claim.refusal), script, keys)
        return claim

    async def claim_some(self, wants: Sequence[Want], *, runs: int, lease: float, holder: str) -> list[Claim]:
        """Lease pending messages of some topics, as many as *runs* handler calls can take.

        The topics are served in order. One that has a key of another type stops no other. The answer has a
        claim for each.
        """
        command = self.claim_command(wants, runs=runs, lease=lease, holder=holder)
        reply = await self._execute(self._scripts["claim_message"], command, wants[0].topic)
        return self.read_claims(wants, reply)

    def claim_command(
        self, wants: Sequence[Want], *, runs: int, lease: float, holder: str
    ) -> tuple[Any, ...]:
        """The command of ``claim_some``, for a caller that sends it on another connection."""
        script = self._scripts["claim_message"]
        keys = self.keys.of_topics(script, [want.topic for want in wants])
        cells = [cell for want in wants for cell in want]
        head = (_ms(lease), check_name("worker", holder), self._counted, runs)
        now = self.now() if self.now else ""
        return ("EVALSHA", script.sha, len(keys), *keys, *head, *cells, now)

    def read_claims(self, wants: Sequence[Want], reply: Sequence[Any]) -> list[Claim]:
        """The answer to a ``claim_command``, by topic."""
        now, at = int(reply[0]) / 1e6, 1
        claims = []
        for topic, *_ in wants:
            left, end = reply[at], at + 2 + 4 * reply[at + 1]
            deliveries = [
                Delivery(id_.decode(), topic, token.decode(), body, float(expires) / 1000)
                for id_, body, token, expires in zip(*[iter(reply[at + 2 : end])] * 4, strict=True)
                if id_.isascii()  # else it could not be settled: its lease runs out; the monitor reports it
            ]
            at = end
            if isinstance(left, int):
                claims.append(Claim(now, deliveries, max(0, left), left < 0))
            else:
                claims.append(Claim(now, deliveries, 0, False, _text(left)))
        return claims

    async def start(self, topic: str, deliveries: Iterable[Delivery]) -> list[Settled]:
        """Note that deliveries are about to run, so that a crash counts against them."""
        args: list[Any] = []
        for delivery in deliveries:
            args += (delivery.id, delivery.token)
        return _statuses(Settled, await self._run("start_message", args, topic))

    async def extend(self, topic: str, deliveries: Sequence[Delivery], *, lease: float) -> list[Settled]:
        """Give deliveries a new deadline, *lease* seconds from now."""
        args: list[Any] = [_ms(lease)]
        for delivery in deliveries:
            args += (delivery.id, delivery.token)
        return _statuses(Settled, await self._run("extend_lease", args, topic))

    async def extend_together(
        self,
        connections: Together,
        chunks: Sequence[tuple[str, Sequence[Delivery]]],
        *,
        lease: float,
    ) -> list[list[Settled] | StoreError]:
        """Extend deliveries of many topics in one write; a topic's refusal is returned among the answers."""
        script = self._scripts["extend_lease"]
        now = self.now() if self.now else ""
        commands: list[tuple[object, ...]] = []
        for topic, deliveries in chunks:
            keys = self.keys.of_script(script, topic)
            args = [cell for delivery in deliveries for cell in (delivery.id, delivery.token)]
            commands.append(("EVALSHA", script.sha, len(keys), *keys, _ms(lease), *args, now))
        answers: list[list[Settled] | StoreError] = []
        replies = await connections.execute_together(*commands)
        unknown = [n for n, reply in enumerate(replies) if isinstance(reply, NoScriptError)]
        if unknown:  # once more, again in one write; the first brings the script for all
            again = [commands[n] for n in unknown]
            again[0] = ("EVAL", script.text, *again[0][2:])
            for n, reply in zip(unknown, await connections.execute_together(*again), strict=True):
                replies[n] = reply
        for (topic, _), reply in zip(chunks, replies, strict=True):
            match reply:
                case ResponseError():
                    keys = self.keys.of_script(script, topic)
                    answers.append(await refusal_of(self.commands, reply, script, keys))
                case Exception():
                    raise reply
                case _:
                    answers.append(_statuses(Settled, reply))
        return answers

    async def end_leases(self, topic: str, deliveries: Sequence[Delivery]) -> list[Settled]:
        """End the leases of a vanished worker now, so that a monitor takes over its messages."""
        return await self.extend(topic, deliveries, lease=0.0)

    async def complete(
        self, topic: str, finished: Iterable[tuple[Delivery, float | Kept]], times: str = ""
    ) -> list[Settled]:
        """Finish deliveries and forget their messages, but for what is kept of each.

        A number stands for the seconds for which the id stays taken.

        Args:
            topic: of all of them.
            finished: the deliveries, each with what is kept.
            times: how long they waited and ran, for the history; see ``history.times_text``.
        """
        args: list[Any] = [self.keys.prefix, topic, self._counted, times]
        for delivery, kept in finished:
            args += (delivery.id, delivery.token, _kept(kept) if kept else 0)
        return _statuses(Settled, await self._run("complete_message", args, topic))

    async def retry(self, topic: str, failed: Iterable[tuple[Delivery, float, bytes]]) -> list[Settled]:
        """Try messages again after the given seconds, with their new bodies."""
        return await self._delay(topic, "retried", failed)

    async def put_off(self, topic: str, rows: Iterable[tuple[Delivery, float, bytes]]) -> list[Settled]:
        """Delay messages as ``retry`` does, for handlers that did not fail."""
        return await self._delay(topic, "put_off", rows)

    async def _delay(
        self, topic: str, event: str, rows: Iterable[tuple[Delivery, float, bytes]]
    ) -> list[Settled]:
        args: list[Any] = [topic, event, self._counted]
        for delivery, delay, body in rows:
            args += (delivery.id, delivery.token, _ms(delay), body)
        return _statuses(Settled, await self._run("retry_message", args, topic))

    async def release(
        self, topic: str, deliveries: Sequence[Delivery], *, bodies: Sequence[bytes] = ()
    ) -> list[Settled]:
        """Put deliveries back to the head of their lanes, with new bodies if given (empty: as stored)."""
        args: list[Any] = [topic]
        for delivery, body in zip(deliveries, bodies or [b""] * len(deliveries), strict=True):
            args += (delivery.id, delivery.token, body)
        return _statuses(Settled, await self._run("release_message", args, topic))

    async def move_to_dlq(
        self, topic: str, dead: Sequence[tuple[Delivery, bytes, bytes]], *, kept: Sequence[Kept] = ()
    ) -> list[Settled]:
        """Move messages to the DLQ, with their final bodies (empty: as stored) and the reason."""
        args: list[Any] = [self.keys.prefix, topic, self._counted]
        for (delivery, body, error), wish in zip(dead, kept or [_NOTHING] * len(dead), strict=True):
            args += (delivery.id, delivery.token, body, error, _wish(wish), _group(topic, error))
        return _statuses(Settled, await self._run("move_to_dlq", args, topic))

    async def take_over(
        self, limit: int, *, lease: float, holder: str, before: float | None = None
    ) -> Overdue:
        """Take over, as *holder*, the messages that are past their deadline.

        A call that arrives after *before* (seconds by the server's clock) changes nothing: what delayed it
        may have delayed the heartbeats of live owners too.
        """
        bound = "" if before is None else round(before * 1e6)
        args = (self.keys.prefix, limit, _ms(lease), check_name("worker", holder), bound, self._counted)
        now, cells, cleaned, poisoned, belated = await self._run("handle_timeout_message", args)
        taken = [
            Takeover(
                Delivery(id_.decode(), topic.decode(), token.decode(), body, float(expires) / 1000),
                cause.decode(),
                _text(previous),
            )
            for id_, topic, body, token, cause, expires, previous in zip(*[iter(cells)] * 7, strict=True)
        ]
        return Overdue(int(now) / 1e6, taken, _texts(cleaned), _texts(poisoned), bool(belated))

    async def next_delay(self) -> NextDelay:
        """Return when the first delayed message is due."""
        state, *rest = await self._run("get_next_delay_task", ())
        ms, id_ = rest or (0, b"")
        return NextDelay(state.decode(), ms / 1000, _text(id_))

    async def promote(self, limit: int = BATCH) -> Promotion:
        """Make due messages pending."""
        args = (self.keys.prefix, limit)
        wait, promoted, cleaned, poisoned = await self._run("process_delay_message", args)
        return Promotion(
            None if wait < 0 else wait / 1000, _texts(promoted), _texts(cleaned), _texts(poisoned)
        )

    # -- for operators

    async def replay(self, replays: Iterable[Replay]) -> list[Replayed]:
        """Make dead messages pending again."""
        args: list[Any] = [self.keys.prefix]
        for replay in replays:
            died = "" if replay.died_at is None else _ms(replay.died_at)
            args += (replay.id, died, replay.lane, _lifetime(replay.ttl), replay.body)
        return _statuses(Replayed, await self._run("replay_dlq", args))

    async def delete_dead(self, ids: Sequence[str], died_at: Sequence[float] = ()) -> int:
        """Delete dead messages for good and return how many there were.

        With *died_at*, the times of death that the caller read, a message that died again since is kept.
        """
        died: list[Any] = [_ms(instant) for instant in died_at] or [""] * len(ids)
        args = [cell for pair in zip(ids, died, strict=True) for cell in pair]
        return int(await self._run("delete_dlq", args))

    async def trim_dead(
        self, *, max_age: float | None = None, max_count: int | None = None, limit: int = BATCH
    ) -> int:
        """Delete up to *limit* of the oldest dead messages that are too old or too many."""
        args = (_lifetime(max_age), "inf" if max_count is None else max_count, limit)
        return int(await self._run("trim_dlq", args))

    async def restore(self, dead: Sequence[Restore]) -> list[Restored]:
        """Put dead messages back into the DLQ, those whose id is neither live nor dead."""
        args: list[Any] = []
        for row in dead:
            group = _group(row.topic, row.error)
            args += (row.id, row.topic, _ms(row.died_at), row.body, row.error, group)
        return _statuses(Restored, await self._run("restore_dlq", args))

    async def read_dead(
        self,
        ids: Sequence[bytes],
        what: What = "all",
        *,
        topic: str = "",
        group: str = "",
        word: str = "",
    ) -> tuple[int, list[DeadRow]]:
        """Read dead messages that match; returns how many ids were looked at, and the matches.

        A full reply ends the look: ask again with the rest of the ids.

        Args:
            ids: the messages.
            what: how much of them to read.
            topic: only messages of this topic; empty for any.
            group: only messages of the group with this id; empty for any.
            word: only messages whose stored error has this text.
        """
        args = (topic, group, word, what, *ids)
        looked, *cells = await self._run("read_dlq", args)
        return looked, [DeadRow(*row) for row in zip(*[iter(cells)] * 6, strict=True)]

    async def cancel(self, ids: Sequence[str]) -> list[Cancelled]:
        """Withdraw messages that are pending or delayed."""
        return _statuses(Cancelled, await self._run("cancel_message", [self.keys.prefix, *ids]))

    async def hasten(self, ids: Sequence[str]) -> list[Hastened]:
        """Make delayed messages due now."""
        return _statuses(Hastened, await self._run("hasten_message", ids))

    async def purge(self, topic: str, limit: int = BATCH) -> tuple[int, int]:
        """Withdraw up to *limit* pending messages; returns how many, and how many entries are left."""
        withdrawn, left = await self._run("purge_topic", (topic, limit), topic)
        return withdrawn, left

    async def pause(self, topic: str) -> bool:
        """Stop the delivery of a topic; False if it already was stopped."""
        check_topic(topic)
        return bool(await self._run("pause_topic", (topic,), topic))

    async def resume(self, topic: str) -> bool:
        """Deliver a paused topic again; False if it was not paused."""
        return bool(await self._run("resume_topic", (topic,), topic))

    async def count(
        self, topics: Sequence[str], rare: Mapping[str, Collection[str]] | None = None
    ) -> list[TopicRow]:
        """Read how topics stand; with large bodies not of all of them: ask again for the rest.

        Args:
            topics: to read.
            rare: which of the rare counters to read, by topic; all of every topic by default.
        """
        args = [self.keys.prefix, " ".join(USUAL)]
        for topic in topics:
            args += (topic, " ".join(RARE if rare is None else rare.get(topic, ())))
        cells = iter(await self._run("count_topics", args))
        return list(map(TopicRow._make, zip(*[cells] * len(TopicRow._fields), strict=True)))

    async def forget(self, topics: Sequence[str], *, idle: float) -> list[str]:
        """Forget those topics that have been empty, not paused and unused for *idle* seconds; returns them.

        How long a topic has been unused is known from earlier calls.
        """
        args = [self.keys.prefix, " ".join(HAPPENINGS), _ms(idle), *topics]
        return _texts(await self._run("forget_topics", args))

    async def wake(self, topic: str) -> None:
        """Pass on a wake token that the worker took but cannot use."""
        await self._run("wake_topic", (), topic)

    async def register_worker(
        self, worker: str, facts: bytes, *, connection: bytes = b"", silence: float
    ) -> Registration:
        """Register a worker, or remove it if *facts* is empty; remove those silent for *silence* seconds.

        With *connection*, a worker that has registered by another connection since is not removed.
        """
        reply = await self._run("register_worker", (worker, facts, connection, _ms(silence)))
        return Registration(*reply)

    async def set_layout(self, known: str, layout: str, *, seal: bool = False) -> tuple[int, str]:
        """Write the queue's layout if *known* is there now; returns how it went, and what is there.

        1 is written, 0 is another layout there, -1 is a queue in use as one shard.

        Args:
            known: the text that was read; empty for none.
            layout: the text to write.
            seal: whether this tag is no shard of the layout, so that it takes no messages from now on.
        """
        status, text = await self._run("set_layout", (known, layout, int(seal)))
        return int(status), _text(text)

    async def seal(self) -> bool:
        """Take no new messages from now on; False if that was so before."""
        return bool(await self._run("seal_shard", ()))

    async def taken(self, ids: Sequence[str]) -> list[Stored]:
        """Whether ids are taken on a sealed shard; ``STORED`` for one that is free."""
        return _statuses(Stored, await self._run("taken_ids", ids))

    async def carry(self, done: Sequence[tuple[str, int]]) -> int:
        """Keep ids taken, each until an instant in ms; returns how many were not known for so long."""
        args = [cell for pair in done for cell in pair]
        return sum(await self._run("carry_done", args))

    async def left(self) -> Left:
        """What the shard has left."""
        return Left(*await self._run("left_in_shard", ()))

    async def hold(self, topic: str) -> bool:
        """Deliver no messages of a topic here, until those on older shards are claimed."""
        check_topic(topic)
        return bool(await self._run("pause_topic", (HELD + topic,), topic))

    async def let_go(self, topic: str) -> bool:
        """Deliver a topic that was held."""
        return bool(await self._run("resume_topic", (HELD + topic,), topic))

    async def watch(self, want: bytes, *, lasts: float) -> bool:
        """Note what a program wants to hear of, for *lasts* seconds; False if there are too many others."""
        return bool(await self._run("watch_events", (want, _ms(lasts))))

    async def note_act(self, act: bytes) -> int:
        """Note what an operator did, with the server's time; returns how many notes there are."""
        return int(await self._run("note_act", (act, MOST_ACTS)))

    async def note_vanished(self, worker: str, note: bytes) -> bool:
        """Note that a worker vanished, with the server's time; False if that was noted before."""
        return bool(await self._run("note_vanished", (worker, note, MOST_VANISHED)))

    async def examine(
        self, suspects: Iterable[Suspect], *, mend: bool = False, lease: float = 15.0
    ) -> list[Examined]:
        """Return where messages are and what is wrong with them; with *mend*, mend that."""
        args: list[Any] = [self.keys.prefix, "mend" if mend else "look", _ms(lease)]
        for suspect in suspects:
            args += (suspect.id, suspect.found_in, int(suspect.listed), suspect.fallback, suspect.group)
        cells = _texts(await self._run("mend_message", args))
        return [
            Examined(place, topic, deadline, tuple(findings.split()))
            for place, topic, deadline, findings in zip(*[iter(cells)] * 4, strict=True)
        ]

    # -- running a script

    async def _run(self, name: str, args: Sequence[Any], topic: str = "", producer: str = "") -> Any:
        script = self._scripts[name]
        keys = self.keys.of_script(script, topic, producer)
        now = self.now() if self.now else ""
        command = ("EVALSHA", script.sha, len(keys), *keys, *args, now)
        return await self._execute(script, command, topic, producer)

    async def _execute(self, script: Script, command: tuple[Any, ...], topic: str, producer: str = "") -> Any:
        try:
            try:
                return await self.commands.execute_command(*command)
            except NoScriptError:
                # EVAL also loads the script, and needs no permission for SCRIPT LOAD.
                return await self.commands.execute_command("EVAL", script.text, *command[2:])
        except ResponseError as error:
            keys = self.keys.of_script(script, topic, producer)
            raise await refusal_of(self.commands, error, script, keys) from error

    def _check_new(self, topic: str, messages: Sequence[NewMessage], producer: str, call: str) -> None:
        names = [topic, *[message.id for message in messages]]
        if call:  # the stored call is read word by word, under a key for this producer only
            names += (producer, call)
        if not are_labels(names):
            check_topic(topic)
            for message in messages:
                check_id(message.id)
            check_name("producer", producer)
            check_name("call", call)
        for message in messages:
            if len(message.body) > self.max_bytes:
                raise too_large(topic, message, self.max_bytes)


def check_size(topic: str, message: NewMessage, max_bytes: int) -> None:
    """Refuse a message that is larger than it may be.

    Raises:
        MessageTooLarge: names it, its size and the limit.
    """
    if len(message.body) > max_bytes:
        raise too_large(topic, message, max_bytes)


def too_large(topic: str, message: NewMessage, max_bytes: int) -> MessageTooLarge:
    """The error for a message that is larger than it may be."""
    return MessageTooLarge(
        f"message {message.id} for topic {topic!r} has {len(message.body)} bytes, "
        f"the limit is {max_bytes}; store large data elsewhere and send a reference"
    )


_NOTHING: Final = Kept()


def _group(topic: str, error: bytes) -> bytes:
    """The group of a message by why it died, as that is stored: the audit finds the same one."""
    return bytes(group_of(topic, decode_death(error)))


def _wish(kept: Kept) -> str:
    """How long to remember what became of a message, and how long it ran; empty for not at all."""
    remember = _ms(kept.remember_for)
    return f"{remember} {_ms(kept.took)}" if remember > 0 else ""


def _kept(kept: float | Kept) -> int | str:
    if not isinstance(kept, Kept):
        return _ms(kept)
    dedup, wish = _ms(kept.dedup_for), _wish(kept)
    return f"{dedup} {wish}" if wish else dedup


def _ms(seconds: float) -> int:
    return round(seconds * 1000) if seconds else 0


@lru_cache(maxsize=256)
def _lifetime(seconds: float | None) -> int | str:
    return "inf" if seconds is None else _ms(seconds)


def _text(cell: bytes) -> str:
    # Another program may have written any bytes; those from mx-rmq are plain names.
    return cell.decode(errors="backslashreplace")


def _texts(cells: Iterable[bytes]) -> list[str]:
    return [_text(cell) for cell in cells]


def _statuses(kind: type[Status], codes: Iterable[int]) -> list[Status]:
    names: Any = kind._value2member_map_
    return [names[code] for code in codes]
