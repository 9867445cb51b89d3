"""What must hold after every step, read from the server alone or compared with the reference."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from math import inf
from typing import Any, Final

from mx_rmq.message import LANES, Lane
from mx_rmq.storage.keys import HELD, PENDING
from tests.model.reference import Reference, Violation

IDS: Final = ("a", "b", "c", "d", "e")
TOPICS: Final = ("t", "u")
PREFIX: Final = "mx-rmq:{q}:"

READ: Final = """
local read = { hash = 'HGETALL', set = 'SMEMBERS', string = 'GET' }
local all = {}
for n, key in ipairs(redis.call('KEYS', '*')) do
  local kind = redis.call('TYPE', key).ok
  if kind == 'zset' then
    all[n] = { key, kind, redis.call('ZRANGE', key, 0, -1, 'WITHSCORES') }
  elseif kind == 'list' then
    all[n] = { key, kind, redis.call('LRANGE', key, 0, -1) }
  else
    local value = redis.call(read[kind], key)
    if string.find(key, '=', 1, true) and redis.call('PTTL', key) < 0 then
      if kind == 'set' then value[#value + 1] = 'for ever' else value = value .. ' for ever' end
    end
    all[n] = { key, kind, value }
  end
end
return all
"""
"""Everything the server holds, in one call."""


class State:
    """Everything the server holds, by key without the queue's prefix; lists head first."""

    def __init__(self, reply: Iterable[tuple[bytes, bytes, Any]]) -> None:
        self.keys: dict[str, Any] = {}
        for key, kind, value in reply:
            # Not UTF-8: a sheet of the history is no text.
            cells = [cell.decode("latin-1") for cell in ([value] if isinstance(value, bytes) else value)]
            name, shown = key.decode().removeprefix(PREFIX), _value(kind, cells)
            self.keys[name] = shown

    def __eq__(self, other: object) -> bool:
        return isinstance(other, State) and self.keys == other.keys

    __hash__ = None  # type: ignore[assignment]

    def fields(self, name: str) -> dict[str, str]:
        found: dict[str, str] = self.keys.get(name, {})
        return found

    def scores(self, name: str) -> dict[str, float]:
        found: dict[str, float] = self.keys.get(name, {})
        return found

    def entries(self, name: str) -> list[str]:
        found: list[str] = self.keys.get(name, [])
        return found

    def members(self, name: str) -> set[str]:
        found: set[str] = self.keys.get(name, set())
        return found

    def pending(self, topic: str, lane: Lane) -> list[str]:
        return self.entries(f"{topic}:{PENDING[lane]}")

    def lease(self, topic: str, id_: str) -> str | None:
        return self.fields(f"{topic}:processing").get(id_)

    def differences(self, other: State) -> str:
        names = sorted(self.keys.keys() | other.keys.keys())
        return "; ".join(
            f"{name} was {self.keys.get(name)}, is {other.keys.get(name)}"
            for name in names
            if self.keys.get(name) != other.keys.get(name)
        )


def _value(kind: bytes, cells: list[str]) -> Any:
    pairs = zip(cells[::2], cells[1::2], strict=False)
    match kind:
        case b"hash":
            return dict(pairs)
        case b"zset":
            return {member: float(score) for member, score in pairs}
        case b"list":
            return cells[::-1]
        case b"set":
            return set(cells)
    return cells[0]


def check(before: State, state: State, reference: Reference, *, settling: bool) -> None:
    """Compare the server with its promises after one call.

    Raises:
        Violation: one of them is broken.
    """
    if not reference.changed and state != before:
        promise = "I4 stale" if settling else "I5 repeat"
        raise Violation(promise, f"a call without effect had one: {before.differences(state)}")
    for promise, broken in PROMISES:
        for what in broken(state, reference):
            raise Violation(promise, what)


Broken = Iterable[str]


def one_place(state: State, reference: Reference) -> Broken:
    """A live id is in one of pending, processing, delayed; a dead one only in the DLQ."""
    payload, monitor = state.fields("payload"), state.scores("all_expire_monitor")
    delays, dlq = state.scores("delay_tasks"), state.scores("dlq")
    for id_ in IDS:
        topic = payload.get(f"{id_}:queue", "")
        leased_in = [name for name in TOPICS if state.lease(name, id_)]
        listed = any(id_ in state.pending(topic, lane) for lane in LANES)
        places = ["processing" for _ in leased_in]
        if id_ in delays:
            places.append("delayed")
        # A list entry is a hint; a deadline without a lease makes it a place.
        if id_ in monitor and not leased_in:
            places.append("pending" if listed else "pending, in no list")
        if id_ in dlq:
            places.append("dead")
        life = reference.live.get(id_)
        if life and life.topic != topic:
            yield f"{id_} belongs to topic {life.topic!r}, not {topic!r}"
        if life and life.place == "processing" and leased_in not in ([], [life.topic]):
            yield f"{id_} of topic {life.topic} is leased in {leased_in}"
        expected = [life.place] if life else ["dead"] if id_ in reference.dead else []
        if places != expected:
            yield f"{id_} is in {places}, not in {expected}"


def one_body(state: State, reference: Reference) -> Broken:
    """A message has one body, in the place where it is looked for; what is gone leaves nothing."""
    payload, remains = state.fields("payload"), state.fields("dlq_payload")
    for id_, life in reference.live.items():
        if payload.get(id_) != life.body.decode():
            yield f"the body of {id_} is {payload.get(id_)}, not {life.body.decode()}"
    for id_, dead in reference.dead.items():
        found = [remains.get(field) for field in (id_, f"{id_}:queue", f"{id_}:error", f"{id_}:group")]
        if found != [dead.body.decode(), dead.topic, dead.error.decode(), dead.group.id]:
            yield f"of the dead {id_} there is {found}"
    for field in payload:
        if field.split(":")[0] not in reference.live:
            yield f"payload keeps {field} of a message that is not live"
    for field in remains:
        if field.split(":")[0] not in reference.dead:
            yield f"dlq_payload keeps {field} of a message that is not dead"


def one_holder(state: State, reference: Reference) -> Broken:
    """Who holds a lease holds exactly the token that was given to it."""
    for id_, life in reference.live.items():
        if life.place == "processing":
            lease = f"{life.token} {life.lane} {life.told()[1]} {life.holder} {life.cause}"
            if state.lease(life.topic, id_) != lease:
                yield f"{id_} is leased as {state.lease(life.topic, id_)!r}, not as {lease!r}"


def deadlines(state: State, reference: Reference) -> Broken:
    """The monitor has the message's expiry while it is pending, the lease's end while it runs."""
    expected = {
        id_: life.deadline if life.place == "processing" else life.expires
        for id_, life in reference.live.items()
        if life.place != "delayed"
    }
    if state.scores("all_expire_monitor") != expected:
        yield f"deadlines are {state.scores('all_expire_monitor')}, not {expected}"
    dues = {id_: life.deadline for id_, life in reference.live.items() if life.place == "delayed"}
    if state.scores("delay_tasks") != dues:
        yield f"due times are {state.scores('delay_tasks')}, not {dues}"
    deaths = {id_: float(remains.died) for id_, remains in reference.dead.items()}
    if state.scores("dlq") != deaths:
        yield f"times of death are {state.scores('dlq')}, not {deaths}"
    memories = dict(state.scores("done"))
    if (memories.pop("=sealed", None) is not None) != reference.sealed:
        yield f"the shard is{' not' if reference.sealed else ''} sealed"
    for id_ in memories.keys() | reference.done.keys():
        until = reference.done.get(id_, -inf)
        if memories.get(id_) != until and (until > reference.now or id_ in memories):
            yield f"the completed {id_} is remembered until {memories.get(id_)}, not {until}"


def kept(state: State, reference: Reference) -> Broken:
    """Lane, expiry and the count of leases outlive a lease and a delay."""
    for id_, life in reference.live.items():
        keep = state.fields("payload").get(f"{id_}:keep")
        count, expiry = life.told()
        expected = f"{count} {life.lane} {expiry}"
        needed = life.place == "delayed" or life.leased
        if life.place != "processing" and keep != expected and (keep or needed):
            yield f"of the {life.place} {id_} is kept {keep!r}, not {expected!r}"


def order(state: State, reference: Reference) -> Broken:
    """Inside a lane first in is first out; a released message is at the head again."""
    for topic in TOPICS:
        for lane in LANES:
            found, expected = state.pending(topic, lane), reference.lists.get((topic, lane), [])
            gone = reference.unlisted
            if [id_ for id_ in found if id_ not in gone] != [id_ for id_ in expected if id_ not in gone]:
                yield f"the {lane} lane of {topic} is {found}, not {expected}"
            if not _within(found, expected):
                yield f"the {lane} lane of {topic} is {found}, though it was {expected}"
            if not _within(reference.order.get((topic, lane), []), found):
                yield f"the {lane} lane of {topic} is {found}, the order {reference.order[topic, lane]}"


def wakes(state: State, reference: Reference) -> Broken:
    """Whoever sleeps is woken by one token when there is something to do."""
    for topic in TOPICS:
        tokens = state.entries(f"{topic}:wake")
        if len(tokens) != (topic in reference.wakes):
            yield f"topic {topic} has {len(tokens)} wake tokens"
        waiting = any((life.topic, life.place) == (topic, "pending") for life in reference.live.values())
        stopped = {topic, HELD + topic} & reference.paused
        if waiting and not tokens and not stopped and topic not in reference.stirred:
            yield f"topic {topic} has pending messages and nobody knows"
    tokens = state.entries("delay_wake")
    if len(tokens) != reference.delay_wake:
        yield f"the scheduler has {len(tokens)} wake tokens"
    earlier = min(state.scores("delay_tasks").values(), default=inf) < reference.scheduler_waits_for
    if earlier and not tokens and not reference.scheduler_stirred:
        yield "a message is due earlier than the scheduler knows"


def counts(state: State, reference: Reference) -> Broken:
    """Every event is counted once: live and dead messages are what the counters say they must be."""
    counters = {field: int(count) for field, count in state.fields("counters").items()}
    for topic in TOPICS:
        idle = counters.pop(f"{topic}:idle_total", None), counters.pop(f"{topic}:idle_since", None)
        if idle != reference.idle.get(topic, (None, None)):
            yield f"topic {topic} is noted as unused by {idle}, not by {reference.idle.get(topic)}"
        stale = counters.pop(f"{topic}:stale", 0)
        entries = sum(len(state.pending(topic, lane)) for lane in LANES)
        pending = sum((life.topic, life.place) == (topic, "pending") for life in reference.live.values())
        if entries - stale != pending:
            yield f"topic {topic} has {pending} pending messages, {entries} entries and {stale} stale ones"
        of = Counter(
            {field.split(":")[1]: n for field, n in counters.items() if field.startswith(f"{topic}:")}
        )
        fields = state.fields("payload").items()
        live = sum(value == topic for field, value in fields if field.endswith(":queue"))
        if live != of["produced"] + of["replayed"] - of["completed"] - of["dead"] - of["cancelled"]:
            yield f"topic {topic} has {live} live messages, but counted {dict(of)}"
        fields = state.fields("dlq_payload").items()
        dead = sum(value == topic for field, value in fields if field.endswith(":queue"))
        if dead != of["dead"] + of["restored"] - of["replayed"] - of["deleted"]:
            yield f"topic {topic} has {dead} dead messages, but counted {dict(of)}"
    if counters != reference.counters:
        yield f"counted {counters}, not {dict(reference.counters)}"


def groups(state: State, reference: Reference) -> Broken:
    """Every dead message is counted in its group; a group without messages leaves nothing."""
    expected = {
        f"{id_}:{part}": str(value)
        for id_, crowd in reference.groups.items()
        for part, value in (
            ("count", crowd.count),
            ("label", crowd.label),
            ("first_at", crowd.first),
            ("last_at", crowd.last),
        )
    }
    if state.fields("dlq_groups") != expected:
        yield f"the groups of the dead are {state.fields('dlq_groups')}, not {expected}"


def bookkeeping(state: State, reference: Reference) -> Broken:
    """Nothing else is kept, and what is kept is right."""
    if state.members("topics") != reference.topics:
        yield f"the known topics are {state.members('topics')}, not {reference.topics}"
    if state.members("paused") != reference.paused:
        yield f"the paused topics are {state.members('paused')}, not {reference.paused}"
    if int(state.keys.get("fence", 0)) != reference.fence:
        yield f"the last fence is {state.keys.get('fence')}, not {reference.fence}"
    calls = {
        f"call={producer}": " ".join([call, *(str(int(status)) for status in answer)])
        for producer, (call, answer) in reference.calls.items()
    }
    if {name: value for name, value in state.keys.items() if name.startswith("call=")} != calls:
        yield f"the remembered calls are not {calls}"
    ends = {name.removeprefix("ended="): value for name, value in state.keys.items() if "ended=" in name}
    if ends != reference.ended:
        yield f"what became of messages is remembered as {ends}, not as {reference.ended}"
    sheets = {name: value for name, value in state.keys.items() if name.startswith(("history=", "recent="))}
    if sheets != reference.sheets():
        yield f"the history is {sheets}, not {reference.sheets()}"
    for name in state.keys:
        if name not in KNOWN and not name.startswith(("call=", "ended=", "history=", "recent=")):
            yield f"there is a key {name}"


KNOWN: Final = frozenset(
    (
        *("payload", "all_expire_monitor", "delay_tasks", "dlq", "dlq_payload", "dlq_groups", "done"),
        *("delay_wake", "topics", "paused", "counters", "fence"),
        *(f"{topic}:{part}" for topic in TOPICS for part in (*PENDING.values(), "processing", "wake")),
    )
)

PROMISES: Final[Sequence[tuple[str, Callable[[State, Reference], Broken]]]] = (
    ("I1 place", one_place),
    ("I2 body", one_body),
    ("I3 lease", one_holder),
    ("deadlines", deadlines),
    ("kept", kept),
    ("order", order),
    ("wake", wakes),
    ("counters", counts),
    ("groups", groups),
    ("bookkeeping", bookkeeping),
)


def _within(part: Sequence[str], whole: Sequence[str]) -> bool:
    """Is *part* a subsequence of *whole*?"""
    rest = iter(whole)
    return all(item in rest for item in part)
