"""Runs histories on a real server beside the reference and checks after every call."""

from __future__ import annotations

import asyncio
from math import inf
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

import msgspec
from redis import Redis

from mx_rmq.errors import OutOfMemory, StoreError
from mx_rmq.message import LANES, Lane
from mx_rmq.storage import contract
from mx_rmq.storage.contract import Claim, Delivery, Kept, NewMessage, Overdue, Replay, Suspect
from mx_rmq.storage.keys import Keys
from mx_rmq.storage.refusals import Sealed
from mx_rmq.storage.scripts import SCRIPTS, Script
from mx_rmq.storage.store import Store
from tests.harness import Clock
from tests.model.histories import (
    Again,
    Audit,
    Cancel,
    Carry,
    Deface,
    Delete,
    Fill,
    FlushScripts,
    Forget,
    Hasten,
    Monitor,
    NextDelay,
    Pass,
    Produce,
    Promote,
    Purge,
    Reach,
    Refused,
    Restore,
    Revive,
    Seal,
    Settle,
    Spec,
    Stir,
    Switch,
    Take,
    Taken,
    TakeSome,
    Trim,
    Twice,
)
from tests.model.invariants import IDS, READ, TOPICS, State, check
from tests.model.reference import Reference, Violation

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

SETTLING: Final = frozenset(("start", "extend", "complete", "retry", "put_off", "release", "move_to_dlq"))
DAY: Final = 86400.0
ERRORS: Final = (b'{"reason":"failed","error":"no order 17"}', b'{"reason":"failed","error":"no bank"}')
"""What messages die of: of one group each in every topic."""


class Call(NamedTuple):
    """A call with all its arguments: it can be sent again."""

    verb: str
    args: tuple[Any, ...]
    options: dict[str, Any]


class Line:
    """One connection to the server, blocking: what the store awaits is always there already.

    Behind every command goes the question what the server holds now, which saves half of the trips.
    """

    def __init__(self, socket: Path) -> None:
        self._client = Redis(unix_socket_path=str(socket))
        self._connection = self._client.connection_pool.get_connection()
        self.state = State(())

    async def execute_command(self, *args: Any) -> Any:
        line = self._connection
        line.send_packed_command(line.pack_commands([args, ("EVAL", READ, 0)]))
        try:
            return line.read_response()
        finally:
            self.state = State(line.read_response())

    def close(self) -> None:
        self._connection.disconnect()
        self._client.close()


def sent(call: Call) -> tuple[Any, ...]:
    """The arguments of a call as the store takes them: times in its own words."""
    if call.verb != "complete":
        return call.args
    *rest, times = call.args
    return (*rest, " ".join(f"{bucket}:{amount}" for bucket, amount in times))


def forged(token: str, n: int) -> str:
    """A token that was never given: too short at its end or its beginning, too long, or none at all."""
    return (token[:-1], token[1:], f"{token}0", "")[n % 4]


def kept(seconds: float) -> Kept:
    """What is kept of a message after its end: nothing, its id, what became of it, or both."""
    remember_for = 600.0 if seconds >= 5.0 else 0.0  # longer than a history takes
    return Kept(0.0 if seconds == 5.0 else seconds, remember_for, seconds / 4)


class Machine:
    """One queue on one server with its reference beside it, for one history."""

    def __init__(self, line: Line, scripts: Mapping[str, Script] = SCRIPTS) -> None:
        self.line = line
        self.clock = Clock()
        self.store = Store(line, Keys("q"), history=True, now=self.clock, scripts=scripts)
        self.reference = Reference()
        self.state = State(())
        self.calls: list[Call] = []
        self.known: list[Delivery] = []
        self.deaths: dict[str, list[int]] = {}
        self.ended: dict[str, int] = {}
        self.bodies = 0
        self.fences: dict[str, int] = {}
        self.full = False

    async def run(self, history: Sequence[Any]) -> None:
        """Run a history and drain what it leaves.

        Raises:
            Violation: with the calls that led there as a note.
        """
        await self.line.execute_command("FLUSHALL")
        try:
            for step in history:
                times = 1
                if isinstance(step, Twice):
                    step, times = step.step, 2
                if getattr(step, "woken", False):
                    await self.stir(getattr(step, "topic", ""))
                call = self.resolve(step)
                if call:
                    if not isinstance(step, Again):
                        self.calls.append(call)
                    for _ in range(times):
                        await self.send(call, lost=getattr(step, "lost", False))
                else:
                    await self.meanwhile(step)
            await self.fill(False)
            await self.drain()
        except Violation as violation:
            violation.add_note("\n".join(["calls:", *map(str, self.calls)]))
            raise
        finally:
            await self.fill(False)

    def resolve(self, step: Any) -> Call | None:
        """The call a step stands for now, if it stands for one."""
        match step:
            case Produce(topic, specs, delayed, producer):
                messages = [self.message(spec) for spec in specs]
                named = {"producer": producer, "call": str(self.bodies)} if producer else {}
                return Call("produce_delayed" if delayed else "produce", (topic, messages), named)
            case Take(topic, limit, lease, worker):
                return Call("claim", (topic, limit), {"lease": lease, "holder": worker})
            case TakeSome(wants, runs, lease, worker):
                return Call("claim_some", (wants,), {"runs": runs, "lease": lease, "holder": worker})
            case Monitor(limit=limit, lease=lease, worker=worker, patience=patience):
                before = None if patience is None else (self.clock.us + 1) / 1e6 + patience
                return Call("take_over", (limit,), {"lease": lease, "holder": worker, "before": before})
            case Settle():
                return self.settle(step)
            case Promote(limit=limit):
                return Call("promote", (limit,), {})
            case NextDelay():
                return Call("next_delay", (), {})
            case Revive(picks, lane, ttl, seen, rewrite):
                dead: Sequence[str] = sorted(self.reference.dead)
                if not dead and seen:
                    return self.settle(Settle("move_to_dlq", picks, "held", 0.0))
                dead = dead or IDS
                ids = [dead[pick % len(dead)] for pick in picks]
                return Call("replay", ([self.replay(id_, lane, ttl, seen, rewrite) for id_ in ids],), {})
            case Audit():
                return Call("examine", ([Suspect(id_) for id_ in IDS],), {"mend": True})
            case Cancel(picks):
                targets = self.cancellable()
                return Call("cancel", ([targets[pick % len(targets)] for pick in picks],), {})
            case Hasten(picks):
                live = self.reference.live.items()
                targets = [*sorted(id_ for id_, life in live if life.place == "delayed"), *IDS]
                return Call("hasten", ([targets[pick % len(targets)] for pick in picks],), {})
            case Delete(picks, seen):
                targets = [*sorted(self.reference.dead), *IDS]
                ids = [targets[pick] for pick in picks]
                died_at = [self.died_at(id_, seen) or 0.0 for id_ in ids] if seen else []
                return Call("delete_dead", (ids, died_at), {})
            case Restore(topic, picks, age, error):
                rows = [
                    contract.Restore(id_, topic, self.clock.ms / 1000 - age, self.body(id_), ERRORS[error])
                    for id_ in (self.by_end()[pick] for pick in picks)
                ]
                return Call("restore", (rows,), {})
            case Trim():
                return Call("trim_dead", (), step._asdict())
            case Purge(topic, limit):
                return Call("purge", (topic, limit), {})
            case Forget(topics, idle):
                return Call("forget", (list(topics),), {"idle": idle})
            case Switch(verb, topic):
                return Call(verb, (topic,), {})
            case Seal():
                return Call("seal", (), {})
            case Taken():
                return Call("taken", (list(IDS),), {})
            case Carry(picks, seconds):
                until = self.clock.ms + round(seconds * 1000)
                return Call("carry", ([(IDS[pick], until) for pick in dict.fromkeys(picks)],), {})
            case Again(n) if self.calls:
                return self.calls[-1 - n % len(self.calls)]
        return None

    def message(self, spec: Spec) -> NewMessage:
        """A message under a free id, the one that ended last first, or under one that is taken."""
        id_ = self.by_end()[spec.pick]
        return NewMessage(id_, self.body(id_), *spec[1:])

    def by_end(self) -> Sequence[str]:
        """Those that are not live first, the one that ended last before the others."""
        return sorted(IDS, key=lambda id_: (id_ in self.reference.live, -self.ended.get(id_, 0)))

    def cancellable(self) -> Sequence[str]:
        """What stands in the middle of a list first: its entry will stay there."""
        order = self.reference.order.values()
        return [id_ for ids in order for id_ in ids[1:-1]] + [id_ for ids in order for id_ in ids] + list(IDS)

    def settle(self, step: Settle) -> Call | None:
        """Aim a settling call at deliveries somebody got; while nobody has any, claim some."""
        live = self.reference.live
        targets = [
            known
            for known in reversed(self.known)
            if step.aim == "old" or (known.id in live and live[known.id].token == known.token)
        ]
        if not targets:
            pending = [life.topic for life in live.values() if life.place == "pending"]
            return Call("claim", (pending[0], 2), {"lease": 30.0, "holder": "w1"}) if pending else None
        topic = targets[step.picks[0] % len(targets)].topic
        targets = [target for target in targets if target.topic == topic]
        picked = [targets[pick % len(targets)] for pick in step.picks]
        if step.aim != "doubled":
            picked = list(dict.fromkeys(picked))
        if step.aim == "astray":
            topic = TOPICS[1 - TOPICS.index(topic)]
        if step.aim == "forged":
            picked = [
                msgspec.structs.replace(pick, token=forged(pick.token, step.picks[0])) for pick in picked
            ]
        match step.verb:
            case "extend":
                return Call("extend", (topic, picked), {"lease": step.seconds})
            case "start":
                return Call("start", (topic, picked), {})
            case "complete":
                times = [(len(picked), len(picked)), (30, 1)]
                return Call("complete", (topic, [(pick, kept(step.seconds)) for pick in picked], times), {})
            case "retry" | "put_off" as verb:
                return Call(verb, (topic, [(pick, step.seconds, self.body(pick.id)) for pick in picked]), {})
            case "release":
                return Call("release", (topic, picked), {})
            case "recover":
                return Call("release", (topic, picked), {"bodies": [self.body(pick.id) for pick in picked]})
        rewritten = [self.body(pick.id) if step.seconds else b"" for pick in picked]
        return Call(
            "move_to_dlq",
            (
                topic,
                [
                    (pick, body, ERRORS[(ord(pick.id) + int(step.seconds)) % 2])
                    for pick, body in zip(picked, rewritten, strict=True)
                ],
            ),
            {"kept": [kept(step.seconds)] * len(picked)},
        )

    def replay(self, id_: str, lane: Lane, ttl: float | None, seen: int, rewrite: bool) -> Replay:
        return Replay(id_, self.body(id_) if rewrite else b"", lane, ttl, self.died_at(id_, seen))

    def died_at(self, id_: str, seen: int) -> float | None:
        deaths = self.deaths.get(id_, [])
        if not seen or not deaths:
            return None
        return (deaths[-seen] if seen <= len(deaths) else deaths[0] - 1) / 1000

    def body(self, id_: str) -> bytes:
        """Bytes that were never stored before."""
        self.bodies += 1
        return f"{id_} {self.bodies}".encode()

    async def send(self, call: Call, *, lost: bool = False) -> Any:
        """Make one call and check its answer and everything the server holds."""
        belated = self.reference.is_belated(call.options)
        refused = self.reference.is_refused(call.verb, call.options)
        try:
            answer = await getattr(self.store, call.verb)(*sent(call), **call.options)
        except StoreError as error:
            # A claim of none removes nothing and only passes tokens on.
            of_none = (call.verb, call.args[-1]) == ("claim", 0) or (
                call.verb == "claim_some"
                and (call.options["runs"] == 0 or all(want.limit == 0 for want in call.args[0]))
            )
            growing = of_none or call.verb in ("produce", "produce_delayed", "restore")
            sealed = refused and isinstance(error, Sealed)
            if not (belated or sealed or (self.full and growing and isinstance(error, OutOfMemory))):
                raise Violation("answer", f"{call} failed: {error}") from error
            self.reference.at(self.clock.us)
            self.look()
            return None
        if belated:
            raise Violation("I5 repeat", f"{call} was done after a later one of its producer")
        if refused:
            raise Violation("seal", f"{call} was answered {answer} by a sealed shard")
        self.reference.at(self.clock.us)
        held = {id_ for id_, life in self.reference.live.items() if life.place == "processing"}
        live = set(self.reference.live)
        expected = getattr(self.reference, call.verb)(*call.args, **call.options)
        self.ended |= dict.fromkeys(live - self.reference.live.keys(), self.clock.us)
        claims = [answer] if isinstance(answer, Claim) else answer if call.verb == "claim_some" else []
        claimed = [delivery for claim in claims for delivery in claim.deliveries]
        if twice := held.intersection(got.id for got in claimed):
            raise Violation("I3 lease", f"{call} gave {twice}, which others hold")
        self.check_fences(claimed)
        if isinstance(answer, Overdue):
            self.check_fences([takeover.delivery for takeover in answer.taken])
        if call.verb == "forget":
            answer, expected = sorted(answer), sorted(expected)
        if answer != expected:
            raise Violation("answer", f"{call} was answered {answer}, not {expected}")
        self.look(settling=call.verb in SETTLING)
        for id_, remains in self.reference.dead.items():
            deaths = self.deaths.setdefault(id_, [])
            if remains.died not in deaths:
                deaths.append(remains.died)
        if not lost:
            self.known += claimed
        if isinstance(answer, Overdue) and not lost:
            self.known += [takeover.delivery for takeover in answer.taken]
        return answer

    def check_fences(self, deliveries: Sequence[Delivery]) -> None:
        """Whatever became of an id before, and whatever the clock did, its next fence is higher."""
        for delivery in deliveries:
            last = self.fences.get(delivery.id, 0)
            if not last < delivery.fence < 2**53:
                raise Violation("fence", f"{delivery.id} was delivered under {delivery.token} after {last}")
            self.fences[delivery.id] = delivery.fence

    def look(self, *, settling: bool = False) -> None:
        """Read the whole server and compare."""
        before, self.state = self.state, self.line.state
        check(before, self.state, self.reference, settling=settling)
        memories = self.state.scores("done").items()
        self.reference.done = {id_: int(until) for id_, until in memories if until < inf}
        self.reference.lists = {
            (topic, lane): list(self.state.pending(topic, lane)) for topic in TOPICS for lane in LANES
        }

    async def fill(self, full: bool) -> None:
        """Let the server reach its maxmemory, or give it room."""
        if full != self.full:
            self.full = full
            await self.line.execute_command("CONFIG", "SET", "maxmemory", int(full))

    async def stir(self, topic: str) -> None:
        """Take a wake token as one who waited for it, a worker of a topic or the scheduler."""
        self.reference.at(self.clock.us)
        part = f"{topic}:wake" if topic else "delay_wake"
        await self.line.execute_command("LPOP", self.store.keys.prefix + part)
        if topic:
            self.reference.take_token(topic)
        else:
            self.reference.take_delay_token()
        self.look()

    async def deface(self, pick: int, what: str) -> None:
        """Spoil what is kept of a delayed message, or the lease of one that runs."""
        targets = [(id_, life) for id_, life in self.reference.live.items() if life.place != "pending"]
        if not targets or self.full:
            return
        id_, life = targets[pick % len(targets)]
        self.reference.at(self.clock.us)
        text = self.reference.deface(id_, what, "9" * 400)
        field = (
            (f"{life.topic}:processing", id_) if life.place == "processing" else ("payload", f"{id_}:keep")
        )
        await self.line.execute_command("HSET", self.store.keys.prefix + field[0], field[1], text)
        self.look()

    async def meanwhile(self, step: Any) -> None:
        """Do what is no call of the store."""
        match step:
            case Pass(seconds):
                self.clock.advance(seconds)
            case Reach(ms):
                ahead = [moment for moment in self.reference.moments() if self.clock.ms < moment < inf]
                if ahead:
                    self.clock.us = max(self.clock.us, int(min(ahead) + ms) * 1000)
            case FlushScripts():
                await self.line.execute_command("SCRIPT", "FLUSH")
            case Fill(full):
                await self.fill(full)
            case Deface(pick, what):
                await self.deface(pick, what)
            case Stir(topic):
                await self.stir(topic)
            case Refused(topic, spec, delayed):
                good = self.message(spec)
                bad = msgspec.structs.replace(good, id=IDS[-1], lane=cast("Lane", "urgent"))
                produce = self.store.produce_delayed if delayed else self.store.produce
                for messages in ([good, bad], [bad]):
                    try:
                        answer = await produce(topic, messages)
                    except StoreError:
                        self.reference.at(self.clock.us)
                        self.look()
                    else:
                        raise Violation("I6 refusal", f"a message in no lane was answered {answer}")

    # -- the end

    async def drain(self) -> None:
        """Do what workers, scheduler, monitor and an operator would: then nothing is left.

        Raises:
            Violation: something is stuck.
        """
        for topic in TOPICS:
            await self.send(Call("resume", (topic,), {}))
            await self.send(Call("let_go", (topic,), {}))
        await self.work_off()
        self.clock.advance(DAY)
        await self.send(Call("promote", (1000,), {}))
        overdue = await self.send(Call("take_over", (1000,), {"lease": 30.0, "holder": "drain"}))
        for topic in TOPICS:
            finished = [(late.delivery, Kept()) for late in overdue.taken if late.delivery.topic == topic]
            await self.send(Call("complete", (topic, finished, []), {}))
        await self.work_off()
        await self.send(Call("promote", (1000,), {}))
        await self.send(Call("delete_dead", (IDS,), {}))
        small = ("topics", "counters", "call=", "fence", "ended=", "history=", "recent=")
        stuck = [name for name in self.state.keys if not name.startswith(small)]
        if self.reference.sealed and set(self.state.scores("done")) == {"=sealed"}:
            stuck.remove("done")
        if stuck:
            raise Violation("drain", f"after a full drain there are still {stuck}")
        if self.reference.live or self.reference.dead or self.reference.earliest() < inf:
            raise Violation("drain", "a message was never seen again")

    async def work_off(self) -> None:
        """Claim and complete all that is pending."""
        for topic in TOPICS:
            left = 1
            while left:
                claim = await self.send(Call("claim", (topic, 2), {"lease": 30.0, "holder": "drain"}))
                left = claim.left
                done = [(got, Kept()) for got in claim.deliveries]
                await self.send(Call("complete", (topic, done, []), {}))


class Bench:
    """Runs histories, each on an empty server, and counts them."""

    def __init__(self, socket: Path, scripts: Mapping[str, Script] = SCRIPTS) -> None:
        self.examples = 0
        self._scripts = scripts
        self._line = Line(socket)
        self._loop = asyncio.Runner()

    def __call__(self, history: Sequence[Any]) -> None:
        self.examples += 1
        self._loop.run(Machine(self._line, self._scripts).run(history))

    def breaks(self, history: Sequence[Any]) -> bool:
        try:
            self(history)
        except Violation:
            return True
        return False

    def shrunk(self, history: Sequence[Any]) -> Sequence[Any]:
        """A history that breaks a promise, without whatever it does not need for that."""
        size = len(history)
        while size:
            start = 0
            while start < len(history):
                shorter = [*history[:start], *history[start + size :]]
                if self.breaks(shorter):
                    history = shorter
                else:
                    start += size
            size //= 2
        return history

    def __enter__(self) -> Bench:
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.close()
        self._line.close()
