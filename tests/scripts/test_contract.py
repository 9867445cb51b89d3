"""What a script's header says, what its text does and what the store sends are the same thing."""

from __future__ import annotations

import asyncio
import inspect
import re
from dataclasses import dataclass
from enum import IntEnum
from fnmatch import fnmatchcase
from hashlib import sha1
from importlib.resources import files
from typing import TYPE_CHECKING, Any, NamedTuple, cast, get_args

import pytest

from mx_rmq import limits
from mx_rmq.fingerprint import group_of
from mx_rmq.limits import MAX_BYTES
from mx_rmq.message import LANES, Reason, decode_death
from mx_rmq.storage import history, store
from mx_rmq.storage.contract import Delivery, Kept, NewMessage, Replay, Restore, Suspect, Want
from mx_rmq.storage.counters import EVENTS, HAPPENINGS, RARE, RARE_FIELDS, USUAL
from mx_rmq.storage.keys import PENDING, QUEUE_PARTS, TOPIC_PARTS, Keys
from mx_rmq.storage.scripts import SCRIPTS
from mx_rmq.storage.store import Store

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from redis.asyncio import Redis

    from tests.harness import Clock

ROOT = files("mx_rmq.storage.scripts")
SOURCES = {entry.name[:-4]: entry.read_text() for entry in ROOT.iterdir() if entry.name.endswith(".lua")}
HELPERS = {entry.name[:-4]: entry.read_text() for entry in (ROOT / "lib").iterdir()}
TEXTS = {**SOURCES, **{f"lib/{name}": text for name, text in HELPERS.items()}}
SECTIONS = ("KEYS", "ARGV", "Returns", "Keeps", "Uses")

LOCALS = {
    "all_expire_monitor": "monitor",
    "call": "call_key",
    "wake": "wake_list",
    "pending:high": "high",
    "pending": "normal",
    "pending:low": "low",
}
"""Keys that have another name in the text of the scripts."""

OLDEST = (6, 2)
"""The oldest server that must run every script."""


def code_of(source: str) -> str:
    """A script's text without its comments."""
    return re.sub(r"--.*", "", source)


@dataclass(frozen=True)
class Contract:
    """A header, read on its own, not by the loader."""

    name: str
    does: str
    sections: dict[str, str]

    @property
    def keys(self) -> list[tuple[str, str]]:
        text = self.sections["KEYS"].replace("; per topic: ", " ")
        found = re.findall(r"(\d+) (\S+) (\w+)", text)
        assert [int(number) for number, _, _ in found] == list(range(1, len(found) + 1))
        assert " ".join(" ".join(words) for words in found) == text
        return [(key, kind) for _, key, kind in found]

    @property
    def repeated(self) -> list[str]:
        """The keys that come once for every topic, behind those that come once."""
        _, _, text = self.sections["KEYS"].partition("; per topic: ")
        return re.findall(r"\d+ (\S+) \w+", text)

    @property
    def fixed(self) -> list[str]:
        """The arguments that come once."""
        return [name for part in self._arguments if not part.startswith("per ") for name in part.split(", ")]

    @property
    def group(self) -> list[str]:
        """The arguments that come once for every message."""
        parts = [part.split(": ", 1)[1] for part in self._arguments if part.startswith("per ")]
        assert len(parts) <= 1
        return parts[0].split(", ") if parts else []

    @property
    def uses(self) -> list[str]:
        return self.sections.get("Uses", "").split()

    @property
    def _arguments(self) -> list[str]:
        *parts, last = re.sub(r" ?\([^()]*\)", "", self.sections["ARGV"]).split("; ")
        assert last == "now_us"
        return parts


def read_contract(name: str) -> Contract:
    header = re.match(r"(?:--.*\n)+", SOURCES[name])
    assert header, "a script begins with its header"
    does, *rest = re.split(rf"^-- ({'|'.join(SECTIONS)}) +", header[0], flags=re.MULTILINE)
    texts = [re.sub(r"\s+", " ", text.replace("\n--", " ")).strip() for text in rest[1::2]]
    return Contract(name, re.sub(r"\s*\n--\s*", " ", does).strip(), dict(zip(rest[::2], texts, strict=True)))


CONTRACTS = {name: read_contract(name) for name in sorted(SOURCES)}

for_every_script = pytest.mark.parametrize("name", sorted(SOURCES))
for_every_text = pytest.mark.parametrize("name", sorted(TEXTS))


# -- the header and the text


@for_every_script
def test_a_header_says_what_the_script_does_and_has_every_section_in_order(name: str) -> None:
    contract = CONTRACTS[name]
    assert re.fullmatch(rf"-- {name}: [a-z].*\.", contract.does)
    assert tuple(contract.sections) == (SECTIONS if contract.uses else SECTIONS[:-1])
    assert all(contract.sections.values())


@for_every_script
def test_a_header_cites_invariants_that_there_are(name: str) -> None:
    cited = re.fullmatch(r"(I[1-8](?: I[1-8])*)(?:; reads only)?", CONTRACTS[name].sections["Keeps"])
    assert cited
    numbers = cited[1].split()
    assert numbers == sorted(set(numbers))


@for_every_script
def test_the_loader_reads_the_header_as_it_is_meant(name: str) -> None:
    contract, script = CONTRACTS[name], SCRIPTS[name]
    text = "\n".join([*(HELPERS[helper] for helper in contract.uses), SOURCES[name]])
    assert script.name == name
    assert script.text == text
    assert script.sha == sha1(text.encode()).hexdigest()
    assert list(script.keys) == contract.keys


@for_every_script
def test_every_key_has_the_type_it_has_everywhere(name: str) -> None:
    types = TOPIC_PARTS | QUEUE_PARTS | {"call": "string"}
    assert {key: types.get(key) for key, _ in CONTRACTS[name].keys} == dict(CONTRACTS[name].keys)


@for_every_script
def test_keys_are_unpacked_in_the_order_of_the_header_and_every_one_is_used(name: str) -> None:
    code, keys = code_of(SOURCES[name]), [key for key, _ in CONTRACTS[name].keys]
    unpacked: dict[int, str] = {}
    for left, right in re.findall(r"^local ([\w, ]+) = (KEYS\[\d+\](?:, KEYS\[\d+\])*)$", code, re.MULTILINE):
        indices = map(int, re.findall(r"\d+", right))
        for local, index in zip(left.split(", "), indices, strict=True):
            unpacked[index] = local
            assert len(re.findall(rf"\b{local}\b", code)) > 1, f"{local} is unpacked and never used"
    for first in re.findall(r"\blists_at\((\d+)\)", code):
        unpacked.update(enumerate(LANES, int(first)))
    # A loop over the three lists, which stand side by side.
    offsets = {int(offset or 0) for offset in re.findall(r"KEYS\[(?:(\d+) \+ )?n\]", code)}
    ranges = {(int(low), int(high)) for low, high in re.findall(r"for n = (\d+), (\d+) do", code)}
    looped = {offset + n for offset in offsets for low, high in ranges for n in range(low, high + 1)}
    assert [keys[index - 1] for index in sorted(looped)] in ([], ["pending:high", "pending", "pending:low"])
    for index in looped:
        unpacked.setdefault(index, LOCALS[keys[index - 1]])
    # Those of every topic begin at first.
    repeated = CONTRACTS[name].repeated
    places = set(re.findall(r"\bfirst(?:, \w+)? = (\d+) \+ \(n - 1\) \* (\d+)", code))
    shared = len(keys) - len(repeated)
    assert places == ({(str(shared + 1), str(len(repeated)))} if repeated else set())
    assert set(repeated) <= set(TOPIC_PARTS)
    assert not set(repeated) & {key for key, _ in CONTRACTS[name].keys[:shared]}

    assert unpacked == {n: LOCALS.get(key, key) for n, key in enumerate(keys[:shared], 1)}
    known = r"KEYS\[(?:\d+|(?:\d+ \+ )?n|first|first \+ (?:\d|key|number))\]"
    assert len(re.findall(r"KEYS", code)) == len(re.findall(known, code))


@for_every_script
def test_arguments_are_unpacked_in_the_order_of_the_header(name: str) -> None:
    code, fixed = code_of(SOURCES[name]), CONTRACTS[name].fixed
    unpacked = []
    for left, right in re.findall(r"^local ([\w, ]+) = (.*\bARGV\[\d+\].*)$", code, re.MULTILINE):
        for local, value in zip(left.split(", "), right.split(", "), strict=True):
            (index,) = re.findall(r"ARGV\[(\d+)\]", value)
            unpacked.append((int(index), local))
            assert len(re.findall(rf"\b{local}\b", code)) > 1, f"{local} is unpacked and never used"
    assert unpacked == [(n, {"mode": "mend"}.get(argument, argument)) for n, argument in enumerate(fixed, 1)]
    assert len(re.findall(r"ARGV\[\d+\]", code)) == len(fixed)


@for_every_script
def test_the_arguments_of_every_message_are_read_where_the_header_puts_them(name: str) -> None:
    code, contract = code_of(SOURCES[name]), CONTRACTS[name]
    place = (len(contract.fixed) + 1, len(contract.group))
    helpers = re.findall(r"\b(batch|held|admit)\((?:[a-z][a-z_]*, )*(\d+), (\d+)(?:, \w+)*\)", code)
    reads: set[int] = set()
    for helper, first, step in helpers:
        assert (int(first), int(step)) == place
        reads |= {"batch": {0}, "held": {0, 1}, "admit": {0, 1, place[1] - 1}}[helper]
    for first, step in re.findall(r"\bat = (\d+) \+ \(n - 1\) \* (\d+)", code):
        assert (int(first), int(step)) == place
    reads |= {int(offset) for offset in re.findall(r"ARGV\[at \+ (\d+)\]", code)}
    for first, step, offset in re.findall(r"ARGV\[(\d+) \+ \(n - 1\) \* (\d+) \+ (\d+)\]", code):
        assert (int(first), int(step)) == place
        reads.add(int(offset))
    for step in re.findall(
        r"ARGV\[n \* (\d+)\]", code
    ):  # the last one of each message, where no other comes first
        assert (1, int(step)) == place
        reads.add(int(step) - 1)
    assert len(helpers) == (1 if contract.group else 0)
    assert reads == set(range(len(contract.group)))
    known = r"ARGV\[(?:\d+|n \* \d+|at \+ \d+|\d+ \+ \(n - 1\) \* \d+ \+ \d+)\]"
    assert len(re.findall("ARGV", code)) == len(re.findall(known, code))


def functions_of(helper: str) -> list[str]:
    return re.findall(r"^local function (\w+)", code_of(HELPERS[helper]), re.MULTILINE)


def values_of(helper: str) -> list[str]:
    found = re.findall(r"^local (\w[\w, ]*) = ", code_of(HELPERS[helper]), re.MULTILINE)
    return [value for names in found for value in names.split(", ")]


def helpers_used_in(source: str) -> set[str]:
    """Those whose functions a text calls or whose values it reads."""
    code = code_of(source)
    return {
        helper
        for helper, text in HELPERS.items()
        if text != source
        and (
            any(re.search(rf"(?<![\w.]){function}\(", code) for function in functions_of(helper))
            or any(re.search(rf"(?<![\w.]){value}\b", code) for value in values_of(helper))
        )
    }


@for_every_script
def test_uses_names_exactly_the_helpers_that_are_used(name: str) -> None:
    """And each stands behind those that it uses itself, since Lua reads from top to bottom."""
    needed = helpers_used_in(SOURCES[name])
    while more := {inner for helper in needed for inner in helpers_used_in(HELPERS[helper])} - needed:
        needed |= more
    uses = CONTRACTS[name].uses
    assert sorted(uses) == sorted(needed)
    for n, helper in enumerate(uses):
        assert helpers_used_in(HELPERS[helper]) <= set(uses[:n])


def test_every_helper_is_used_and_every_name_in_one_has_one_home() -> None:
    assert {helper for contract in CONTRACTS.values() for helper in contract.uses} == set(HELPERS)
    names = [name for helper in HELPERS for name in (*functions_of(helper), *values_of(helper))]
    assert len(names) == len(set(names)) >= len(HELPERS)
    everything = "\n".join(map(code_of, TEXTS.values()))
    for name in names:
        assert len(re.findall(rf"\b{name}\b", everything)) > 1, f"{name} is never used"


def test_every_counter_is_known_by_name() -> None:
    """Those that only grow tell whether a topic is used; a forgotten topic leaves none behind."""
    everything = "\n".join(map(code_of, SOURCES.values())) + code_of(HELPERS["bury"])
    named = set(re.findall(r"\bcount\(counters, [\w.]+, '(\w+)'", everything)) | {"lapsed", "expired"}
    named |= {"retried", "put_off"}  # retry_message is told which
    assert named == set(HAPPENINGS)
    assert set(EVENTS) <= set(HAPPENINGS) | {"adjusted", "adjusted_dead", "stale"}


def test_the_fields_of_rare_counters_can_be_told_from_the_usual_ones() -> None:
    pattern = RARE_FIELDS.replace("[^", "[!")  # as Python writes what the server has
    assert {name for name in EVENTS if fnmatchcase(f"orders:{name}", pattern)} == set(RARE)
    assert all(fnmatchcase(f"shop:orders:{name}", pattern) for name in RARE)


def test_the_scripts_have_the_layout_of_the_history_in_python() -> None:
    code = code_of(HELPERS["history"])
    (letters,) = re.findall(r"^  local history_events = '(.+)'$", code, re.MULTILINE)
    numbers = dict(re.findall(r"^ *local (\w+) = (\d+)\s*$", code, re.MULTILINE))
    (seconds,) = re.findall(r"^  local history_seconds, recent_seconds = (\d+), (\d+)$", code, re.MULTILINE)
    assert letters == history.LETTERS
    assert len(letters) == len(history.EVENTS) + len(history.REASONS)
    assert numbers == {
        "sheet_minutes": str(history.SHEET),
        "spread_buckets": str(history.BUCKETS),
        "history_topics": str(history.MOST_TOPICS),
    }
    # Until the last minute of a sheet is too old to be asked for.
    assert int(seconds[0]) >= 60 * (history.KEPT + 60 + history.SHEET)  # the longest step is an hour
    assert int(seconds[1]) >= 60 * (history.KEPT_FINE + history.SHEET)


def test_the_scripts_have_the_reasons_of_python() -> None:
    named = dict(re.findall(r"(\w+) = '(.)'", code_of(HELPERS["death"])))
    of_python = dict(zip(history.REASONS, history.LETTERS[len(history.EVENTS) :], strict=True))
    assert named | {"unknown": "?"} == of_python
    assert set(history.REASONS) == set(get_args(Reason))


# -- the limits and the lanes

LIMITS = {
    name: float(number)
    for name, number in re.findall(r"^local (\w+) = (\S+)$", HELPERS["limits"], re.MULTILINE)
}


def test_the_scripts_have_the_limits_of_python() -> None:
    assert LIMITS["most_messages"] == limits.BATCH
    assert LIMITS["reply_bytes"] == limits.REPLY_BYTES
    assert LIMITS["call_memory_ms"] == limits.CALL_MEMORY * 1000
    assert sorted(LIMITS) == sorted(values_of("limits")), "a limit is a plain number"


@for_every_text
def test_a_limit_is_spelled_out_in_its_home_only(name: str) -> None:
    """In comments too."""
    text = re.sub(r"(?<=\d),(?=\d{3})", "", TEXTS[name].replace("/ 1000", ""))  # from us to ms: no limit
    numbers = {float(number) for number in re.findall(r"(?<![\w.])\d+(?:e\d+)?\b", text)}
    spelled = numbers & set(LIMITS.values())
    assert spelled == (set(LIMITS.values()) if name == "lib/limits" else set())


def test_the_scripts_have_the_lanes_of_python() -> None:
    code = code_of(HELPERS["lanes"])
    (order,) = re.findall(r"^local lanes = \{ (.*) \}$", code, re.MULTILINE)
    (suffixes,) = re.findall(r"^local suffixes = \{ (.*) \}$", code, re.MULTILINE)
    (lists,) = re.findall(r"^  return \{ (.*) \}$", code, re.MULTILINE)
    assert order == ", ".join(f"'{lane}'" for lane in LANES)
    assert suffixes == ", ".join(f"{lane} = ':{PENDING[lane]}'" for lane in LANES)
    places = ("first", "first + 1", "first + 2")
    assert lists == ", ".join(f"{lane} = KEYS[{at}]" for lane, at in zip(LANES, places, strict=True))


@for_every_text
def test_the_lanes_are_spelled_out_in_their_home_only(name: str) -> None:
    """But for "normal", the lane of a message of which nothing else is known."""
    spelled = re.findall(r"\b(?:high|low)\b|:pending", code_of(TEXTS[name]))
    assert bool(spelled) == (name == "lib/lanes")


# -- the text and the oldest server


def commands_in(source: str) -> Iterator[tuple[str, list[str]]]:
    """Every command of a script, with the words among its arguments."""
    code = code_of(source)
    for start in re.finditer(r"redis\.p?call\(", code):
        depth = 1
        for token in re.compile(r"'[^']*'|[()]").finditer(code, start.end()):
            depth += {"(": 1, ")": -1}.get(token[0], 0)
            if depth == 0:
                break
        call = code[start.end() : token.start()]
        if call != "unpack(command)":  # such commands stand in tables, see below
            assert re.match(r"'[A-Z]+'", call), f"which command is {call}?"
            command, *words = re.findall(r"'([A-Z]+)'", call)
            yield command, words
    tables = re.findall(r"\{ ('[A-Z]+', [^{}]*)\}", code) if "(unpack(command))" in code else []
    for table in tables:
        command, *words = re.findall(r"'([A-Z]+)'", table)
        yield command, words


def pairs(reply: Any) -> dict[bytes, Any]:
    """A map of the server, which is a flat list in RESP2."""
    return reply if isinstance(reply, dict) else dict(zip(reply[::2], reply[1::2], strict=True))


def words_of(arguments: list[Any], since: bytes) -> Iterator[tuple[str, bytes]]:
    """The words a command knows and since when."""
    for argument in map(pairs, arguments):
        known = argument.get(b"since", since)
        if token := argument.get(b"token"):
            yield token.decode().upper(), known
        yield from words_of(argument.get(b"arguments", []), known)


def version(text: bytes) -> tuple[int, ...]:
    return tuple(map(int, text.split(b".")))[:2]


async def test_every_command_is_known_to_the_oldest_server(redis: Redis) -> None:
    """The server at hand says since when it knows each command and each word of it."""
    used = [command for source in TEXTS.values() for command in commands_in(source)]
    assert len(used) > 100
    docs = pairs(await redis.execute_command("COMMAND DOCS", *{command for command, _ in used}))
    known = {}
    for command_name, reply in docs.items():
        doc = pairs(reply)
        tokens = dict(words_of(doc.get(b"arguments", []), doc[b"since"]))
        known[command_name.decode().upper()] = (doc[b"since"], tokens)
    for command, words in used:
        since, tokens = known[command]
        assert version(since) <= OLDEST, command
        for word in words:
            assert version(tokens[word]) <= OLDEST, f"{command} {word}"


@for_every_text
def test_the_text_is_plain_lua_of_the_oldest_server(name: str) -> None:
    """A shebang would make a server without memory refuse even removals; see the findings."""
    source = TEXTS[name]
    code = code_of(source)
    assert "#!" not in source
    assert not re.search(r"\bgoto\b|::|//|table\.(?:un)?pack\b|math\.type|utf8\.|bit32\.|<const>", code)
    assert set(re.findall(r"\bredis\.(\w+)", code)) <= {"call", "pcall"}
    assert source.isascii() or set(re.findall(r"[^\x00-\x7f]", source)) <= set("µ…")
    assert source.endswith("\n")


# -- the store


class Sent(NamedTuple):
    """One command as the store sent it."""

    command: str
    script: str
    keys: list[str]
    args: list[Any]


class Recorder:
    """Passes commands on to a real server and keeps what they were."""

    def __init__(self, redis: Redis) -> None:
        self._redis = redis
        self.sent: list[Sent] = []

    async def execute_command(self, *args: Any) -> Any:
        command, script, count, *rest = args
        self.sent.append(Sent(command, script, rest[:count], rest[count:]))
        return await self._redis.execute_command(*args)

    async def execute_together(self, *commands: tuple[Any, ...]) -> list[Any]:
        return await asyncio.gather(
            *(self.execute_command(*command) for command in commands), return_exceptions=True
        )


class Drive(NamedTuple):
    """A call of the store, and what the script must get for it, by the names of its header."""

    script: str
    call: Callable[[Store], Awaitable[Any]]
    fixed: dict[str, Any]
    groups: tuple[dict[str, Any], ...] = ()


D1 = Delivery("m1", "orders", "1@5", b"old1", 9.0)
D2 = Delivery("m2", "orders", "2@6", b"old2", 9.0)
PREFIX = "mx-rmq:{q}:"


def group(error: bytes) -> bytes:
    return bytes(group_of("orders", decode_death(error)))


DRIVES = {
    "produce": Drive(
        "produce_normal_message",
        lambda store: store.produce(
            "orders",
            [NewMessage("m1", b"b1", "high", 1.5), NewMessage("m2", b"b2")],
            producer="p1",
            call="c1",
        ),
        {"topic": "orders", "call": "c1", "max_bytes": MAX_BYTES, "history": PREFIX},
        (
            {"id": "m1", "lane": "high", "ttl_ms": 1500, "body": b"b1"},
            {"id": "m2", "lane": "normal", "ttl_ms": "inf", "body": b"b2"},
        ),
    ),
    "produce_one": Drive(
        "produce_one_message",
        lambda store: store.produce_one(
            "orders", NewMessage("m1", b"b1", "high", 1.5), producer="p1", call="c1"
        ),
        {
            "topic": "orders",
            "call": "c1",
            "max_bytes": MAX_BYTES,
            "history": PREFIX,
            "id": "m1",
            "lane": "high",
            "ttl_ms": 1500,
            "body": b"b1",
        },
    ),
    "produce_delayed": Drive(
        "produce_delay_message",
        lambda store: store.produce_delayed(
            "orders",
            [NewMessage("m1", b"b1", "low", 1.5, 2.5), NewMessage("m2", b"b2")],
            producer="p1",
            call="c1",
        ),
        {"topic": "orders", "call": "c1", "max_bytes": MAX_BYTES, "history": PREFIX},
        (
            {"id": "m1", "lane": "low", "ttl_ms": 1500, "delay_ms": 2500, "body": b"b1"},
            {"id": "m2", "lane": "normal", "ttl_ms": "inf", "delay_ms": 0, "body": b"b2"},
        ),
    ),
    "claim": Drive(
        "claim_message",
        lambda store: store.claim("orders", 7, lease=1.5, holder="w1"),
        {"lease_ms": 1500, "holder": "w1", "history": PREFIX, "runs": 7},
        ({"topic": "orders", "limit": 7, "batch": 1},),
    ),
    "claim_some": Drive(
        "claim_message",
        lambda store: store.claim_some(
            [Want("orders", 7), Want("mails", 9, 3)], runs=4, lease=1.5, holder="w1"
        ),
        {"lease_ms": 1500, "holder": "w1", "history": PREFIX, "runs": 4},
        ({"topic": "orders", "limit": 7, "batch": 1}, {"topic": "mails", "limit": 9, "batch": 3}),
    ),
    "extend": Drive(
        "extend_lease",
        lambda store: store.extend("orders", [D1, D2], lease=1.5),
        {"lease_ms": 1500},
        ({"id": "m1", "token": "1@5"}, {"id": "m2", "token": "2@6"}),
    ),
    "extend_together": Drive(
        "extend_lease",
        lambda store: store.extend_together(
            cast("Recorder", store.commands), [("orders", [D1, D2])], lease=1.5
        ),
        {"lease_ms": 1500},
        ({"id": "m1", "token": "1@5"}, {"id": "m2", "token": "2@6"}),
    ),
    "end_leases": Drive(
        "extend_lease",
        lambda store: store.end_leases("orders", [D1, D2]),
        {"lease_ms": 0},
        ({"id": "m1", "token": "1@5"}, {"id": "m2", "token": "2@6"}),
    ),
    "start": Drive(
        "start_message",
        lambda store: store.start("orders", [D1, D2]),
        {},
        ({"id": "m1", "token": "1@5"}, {"id": "m2", "token": "2@6"}),
    ),
    "complete": Drive(
        "complete_message",
        lambda store: store.complete("orders", [(D1, Kept(1.5, 60.0, 0.25)), (D2, 0.0)], "1:2"),
        {"prefix": PREFIX, "topic": "orders", "history": PREFIX, "times": "1:2"},
        (
            {"id": "m1", "token": "1@5", "kept": "1500 60000 250"},
            {"id": "m2", "token": "2@6", "kept": 0},
        ),
    ),
    "retry": Drive(
        "retry_message",
        lambda store: store.retry("orders", [(D1, 1.5, b"b1"), (D2, 0.0, b"b2")]),
        {"topic": "orders", "event": "retried", "history": PREFIX},
        (
            {"id": "m1", "token": "1@5", "delay_ms": 1500, "body": b"b1"},
            {"id": "m2", "token": "2@6", "delay_ms": 0, "body": b"b2"},
        ),
    ),
    "put_off": Drive(
        "retry_message",
        lambda store: store.put_off("orders", [(D1, 1.5, b"b1"), (D2, 0.0, b"b2")]),
        {"topic": "orders", "event": "put_off", "history": PREFIX},
        (
            {"id": "m1", "token": "1@5", "delay_ms": 1500, "body": b"b1"},
            {"id": "m2", "token": "2@6", "delay_ms": 0, "body": b"b2"},
        ),
    ),
    "release": Drive(
        "release_message",
        lambda store: store.release("orders", [D1, D2], bodies=[b"b1", b""]),
        {"topic": "orders"},
        ({"id": "m1", "token": "1@5", "body": b"b1"}, {"id": "m2", "token": "2@6", "body": b""}),
    ),
    "move_to_dlq": Drive(
        "move_to_dlq",
        lambda store: store.move_to_dlq(
            "orders", [(D1, b"b1", b"why"), (D2, b"", b"")], kept=[Kept(0.0, 60.0, 0.25), Kept()]
        ),
        {"prefix": PREFIX, "topic": "orders", "history": PREFIX},
        (
            {
                "id": "m1",
                "token": "1@5",
                "body": b"b1",
                "error": b"why",
                "wish": "60000 250",
                "group": group(b"why"),
            },
            {"id": "m2", "token": "2@6", "body": b"", "error": b"", "wish": "", "group": group(b"")},
        ),
    ),
    "take_over": Drive(
        "handle_timeout_message",
        lambda store: store.take_over(7, lease=1.5, holder="w1", before=2.5),
        {
            "prefix": PREFIX,
            "limit": 7,
            "lease_ms": 1500,
            "holder": "w1",
            "before_us": 2_500_000,
            "history": PREFIX,
        },
    ),
    "next_delay": Drive("get_next_delay_task", lambda store: store.next_delay(), {}),
    "promote": Drive("process_delay_message", lambda store: store.promote(7), {"prefix": PREFIX, "limit": 7}),
    "replay": Drive(
        "replay_dlq",
        lambda store: store.replay([Replay("m1", b"b1", "low", 1.5, 2.5), Replay("m2")]),
        {"prefix": PREFIX},
        (
            {"id": "m1", "died_ms": 2500, "lane": "low", "ttl_ms": 1500, "body": b"b1"},
            {"id": "m2", "died_ms": "", "lane": "normal", "ttl_ms": "inf", "body": b""},
        ),
    ),
    "delete_dead": Drive(
        "delete_dlq",
        lambda store: store.delete_dead(["m1", "m2"], [1.5, 2.5]),
        {},
        ({"id": "m1", "died_ms": 1500}, {"id": "m2", "died_ms": 2500}),
    ),
    "trim_dead": Drive(
        "trim_dlq",
        lambda store: store.trim_dead(max_age=1.5, limit=7),
        {"max_age_ms": 1500, "max_count": "inf", "limit": 7},
    ),
    "restore": Drive(
        "restore_dlq",
        lambda store: store.restore(
            [Restore("m1", "orders", 1.5, b"b1", b"why"), Restore("m2", "orders", 2.5, b"b2", b"")]
        ),
        {},
        (
            {
                "id": "m1",
                "topic": "orders",
                "died_ms": 1500,
                "body": b"b1",
                "error": b"why",
                "group": group(b"why"),
            },
            {
                "id": "m2",
                "topic": "orders",
                "died_ms": 2500,
                "body": b"b2",
                "error": b"",
                "group": group(b""),
            },
        ),
    ),
    "read_dead": Drive(
        "read_dlq",
        lambda store: store.read_dead([b"m1", b"m2"], "errors", topic="orders", group="0f", word="why"),
        {"topic": "orders", "group": "0f", "word": "why", "what": "errors"},
        ({"id": b"m1"}, {"id": b"m2"}),
    ),
    "cancel": Drive(
        "cancel_message",
        lambda store: store.cancel(["m1", "m2"]),
        {"prefix": PREFIX},
        ({"id": "m1"}, {"id": "m2"}),
    ),
    "hasten": Drive(
        "hasten_message", lambda store: store.hasten(["m1", "m2"]), {}, ({"id": "m1"}, {"id": "m2"})
    ),
    "purge": Drive("purge_topic", lambda store: store.purge("orders", 7), {"topic": "orders", "limit": 7}),
    "pause": Drive("pause_topic", lambda store: store.pause("orders"), {"topic": "orders"}),
    "resume": Drive("resume_topic", lambda store: store.resume("orders"), {"topic": "orders"}),
    "count": Drive(
        "count_topics",
        lambda store: store.count(["orders", "mails"]),
        {"prefix": PREFIX, "events": " ".join(USUAL)},
        ({"topic": "orders", "rare": " ".join(RARE)}, {"topic": "mails", "rare": " ".join(RARE)}),
    ),
    "forget": Drive(
        "forget_topics",
        lambda store: store.forget(["orders", "mails"], idle=1.5),
        {"prefix": PREFIX, "events": " ".join(HAPPENINGS), "idle_ms": 1500},
        ({"topic": "orders"}, {"topic": "mails"}),
    ),
    "wake": Drive("wake_topic", lambda store: store.wake("orders"), {}),
    "register_worker": Drive(
        "register_worker",
        lambda store: store.register_worker("w1", b"{}", connection=b"run 7", silence=1.5),
        {"worker": "w1", "facts": b"{}", "connection": b"run 7", "silence_ms": 1500},
    ),
    "watch": Drive(
        "watch_events",
        lambda store: store.watch(b"{}", lasts=1.5),
        {"want": b"{}", "for_ms": 1500},
    ),
    "set_layout": Drive(
        "set_layout",
        lambda store: store.set_layout("0:1", "0:1 1:8", seal=True),
        {"known": "0:1", "text": "0:1 1:8", "seal": 1},
    ),
    "seal": Drive("seal_shard", lambda store: store.seal(), {}),
    "note_act": Drive("note_act", lambda store: store.note_act(b"{}"), {"act": b"{}", "most": 1000}),
    "note_vanished": Drive(
        "note_vanished",
        lambda store: store.note_vanished("w1", b"{}"),
        {"worker": "w1", "note": b"{}", "most": 50},
    ),
    "taken": Drive("taken_ids", lambda store: store.taken(["m1", "m2"]), {}, ({"id": "m1"}, {"id": "m2"})),
    "carry": Drive(
        "carry_done",
        lambda store: store.carry([("m1", 5), ("m2", 6)]),
        {},
        ({"id": "m1", "until_ms": 5}, {"id": "m2", "until_ms": 6}),
    ),
    "left": Drive("left_in_shard", lambda store: store.left(), {}),
    "hold": Drive("pause_topic", lambda store: store.hold("orders"), {"topic": "=held:orders"}),
    "let_go": Drive("resume_topic", lambda store: store.let_go("orders"), {"topic": "=held:orders"}),
    "examine": Drive(
        "mend_message",
        lambda store: store.examine(
            [Suspect("m1", "orders", False, "mails", b"0f {}"), Suspect("m2")], mend=True, lease=1.5
        ),
        {"prefix": PREFIX, "mode": "mend", "lease_ms": 1500},
        (
            {"id": "m1", "found_in": "orders", "listed": 0, "fallback": "mails", "group": b"0f {}"},
            {"id": "m2", "found_in": "", "listed": 1, "fallback": "unknown", "group": b""},
        ),
    ),
}

for_every_method = pytest.mark.parametrize("method", DRIVES)


def test_every_script_has_one_method_of_the_store_and_every_method_a_script() -> None:
    methods = {
        name
        for name, member in vars(Store).items()
        if inspect.iscoroutinefunction(member) and not name.startswith("_")
    }
    assert set(DRIVES) == methods
    # From one topic and from some; leases of one topic, of many in one write, and of a worker that vanished;
    # failed and put off; topics that wait for older shards are held as those that are paused.
    shared = ["claim_message", "extend_lease", "extend_lease", "retry_message", "pause_topic", "resume_topic"]
    assert sorted(drive.script for drive in DRIVES.values()) == sorted([*SOURCES, *shared])


@for_every_method
async def test_the_store_sends_what_the_header_asks_for(method: str, redis: Redis, clock: Clock) -> None:
    recorder = Recorder(redis)
    drive = DRIVES[method]
    contract = CONTRACTS[drive.script]
    await drive.call(Store(recorder, Keys("q"), history=True, now=clock))

    sent = recorder.sent[0]
    assert sent.script == SCRIPTS[drive.script].sha
    assert sent.keys == [
        PREFIX + (f"orders:{key}" if key in TOPIC_PARTS else "call=p1" if key == "call" else key)
        for key, _ in contract.keys
    ] + [f"{PREFIX}{each['topic']}:{key}" for each in drive.groups[1:] for key in contract.repeated]
    assert list(drive.fixed) == contract.fixed
    assert [list(group) for group in drive.groups] == [contract.group] * len(drive.groups)
    assert len(drive.groups) == (2 if contract.group and method != "claim" else len(contract.group) // 3)
    per_message = [value for group in drive.groups for value in group.values()]
    assert sent.args == [*drive.fixed.values(), *per_message, clock.us]


@for_every_method
async def test_a_script_the_server_does_not_know_is_sent_once_in_full(method: str, redis: Redis) -> None:
    """Every test begins with a server without scripts, as after a restart or a failover."""
    recorder = Recorder(redis)
    drive = DRIVES[method]
    store = Store(recorder, Keys("q"))
    await drive.call(store)
    await drive.call(store)
    first, full, second = recorder.sent
    assert [first.command, full.command, second.command] == ["EVALSHA", "EVAL", "EVALSHA"]
    assert full.script == SCRIPTS[drive.script].text
    assert (first.keys, first.args) == (full.keys, full.args) == (second.keys, second.args)
    assert first.args[-1] == "", "in production the server's clock counts"


def status_of(method: str) -> type[IntEnum] | None:
    answer = inspect.signature(getattr(Store, method)).return_annotation
    found = re.fullmatch(r"(?:list\[)?(\w+)\]?", answer)
    kind = getattr(store, found[1], None) if found else None
    return kind if kind is not None and issubclass(kind, IntEnum) else None


@pytest.mark.parametrize("method", [method for method in DRIVES if status_of(method)])
def test_the_codes_a_script_returns_are_those_of_the_answer(method: str) -> None:
    kind = status_of(method)
    assert kind is not None
    _, codes = re.split(r"^per (?:message|delivery): ", CONTRACTS[DRIVES[method].script].sections["Returns"])
    returned = [int(code.split(" ", 1)[0]) for code in codes.split(" | ")]
    assert returned == sorted(returned, reverse=True)
    assert set(returned) == {member.value for member in kind}


def test_every_kind_of_answer_belongs_to_a_script() -> None:
    kinds = {
        kind
        for kind in vars(store).values()
        if isinstance(kind, type) and issubclass(kind, IntEnum) and kind is not IntEnum
    }
    assert {status_of(method) for method in DRIVES} - {None} == kinds
