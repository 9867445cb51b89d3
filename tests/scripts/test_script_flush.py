"""What the server must know and allow: scripts may vanish at any time, and few rights are enough."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest
from redis.asyncio import Redis
from redis.exceptions import ResponseError

from mx_rmq.errors import StoreError, WrongKeyType
from mx_rmq.storage.contract import NewMessage, Replay, Restore, Settled, Suspect
from mx_rmq.storage.scripts import SCRIPTS
from mx_rmq.storage.store import Store
from tests.scripts.states import everything

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from mx_rmq.storage.commands import Commands
    from mx_rmq.storage.contract import Delivery
    from mx_rmq.storage.embedded import EmbeddedServer
    from mx_rmq.storage.keys import Keys

RIGHTS = [
    *("eval", "evalsha", "type", "time"),
    *("get", "set", "expire", "del"),
    *("hget", "hmget", "hset", "hdel", "hexists", "hlen", "hincrby"),
    *("zadd", "zrem", "zcard", "zscore", "zmscore", "zrange"),
    *("lpush", "rpush", "lpop", "rpop", "llen", "lindex"),
    *("sadd", "srem", "sismember", "smismember", "exists"),
]
"""All a user needs, on the keys ``mx-rmq:*``; commands inside a script count as the caller's own.

A worker needs besides ``blpop``, to sleep on its topics' tokens, and ``hscan``, to give back a claim whose
reply was lost; the guide names them all.
"""


async def live(store: Store) -> list[object]:
    """Every script at least once, and what each said; the server's own clock will do.

    A lease of 0 seconds has lapsed and a delay of 0 seconds is due at once, so nothing waits.
    """
    said: list[object] = []

    def note(value: object) -> None:
        said.append(value)

    async def claim(lease: float = 60.0) -> list[Delivery]:
        claim = await store.claim("t", 10, lease=lease, holder="w")
        note((claim.paused, claim.left, [each.id for each in claim.deliveries]))
        return claim.deliveries

    new = [NewMessage("a", b"a", "high"), NewMessage("b", b"b", ttl=3600.0), NewMessage("c", b"c", "low")]
    note(await store.produce("t", new, producer="p", call="1"))
    note(await store.produce("t", new, producer="p", call="1"))
    note(await store.produce("t", new))
    note(await store.produce_delayed("t", [NewMessage("d", b"d"), NewMessage("later", b"", delay=3600.0)]))
    note((await store.next_delay()).state)
    note((await store.promote()).promoted)

    note(await store.pause("t"))
    await claim()
    note(await store.resume("t"))
    a, b, d, c = await claim()

    note(await store.start("t", [a, b]))
    note(await store.extend("t", [a, b], lease=60.0))
    note(await store.complete("t", [(a, 3600.0), (a, 0.0)]))
    note(await store.produce("t", new[:1]))
    note(await store.retry("t", [(b, 0.0, b"again")]))
    note((await store.promote()).promoted)
    note(await store.release("t", [c]))
    b, c = await claim()
    note(await store.complete("t", [(b, 0.0), (c, 0.0)]))

    note(await store.move_to_dlq("t", [(d, b"", b"why")]))
    note(await store.replay([Replay("d", ttl=3600.0)]))
    await claim(lease=0.0)
    [row] = (await store.take_over(10, lease=60.0, holder="m")).taken
    note((row.delivery.id, row.cause, row.previous))
    note(await store.move_to_dlq("t", [(row.delivery, b"", b"why")]))
    note(await store.delete_dead(["d"]))

    note(await store.produce("t", [NewMessage("e", b"e")]))
    note(await store.move_to_dlq("t", [(each, b"", b"") for each in await claim()]))
    note(await store.trim_dead(max_count=0))
    note(await store.restore([Restore("r", "t", 5.0, b"body", b"why")]))
    note(await store.read_dead([b"r"]))
    note(await store.delete_dead(["r"]))
    note(await store.hasten(["later", "nobody"]))
    note(await store.cancel(["later", "e"]))
    note(await store.produce("t", [NewMessage(id_, b"") for id_ in ("f", "g", "h", "i")]))
    note(await store.cancel(["f", "i"]))
    note(await store.purge("t", 1))
    note(await store.purge("t"))
    note(await store.examine([Suspect("nobody")], mend=True))
    note(await store.register_worker("w", b"facts", silence=60.0))
    note(await store.register_worker("w", b"", silence=60.0))
    note(await store.watch(b"all", lasts=0.0))
    await store.wake("t")
    await claim()
    note(await store.promote())
    note(await store.count(["t"]))
    note(await store.forget(["nothing"], idle=0.0))
    note(await store.set_layout("", "0:1"))
    note(await store.seal())
    note(await store.taken(["a", "nobody"]))
    note(await store.carry([("a", 1)]))
    note(await store.left())
    return said


class Forgetful:
    """A server that has just been restarted, or whose scripts somebody flushed, before every call."""

    def __init__(self, redis: Redis) -> None:
        self.redis: Commands = redis
        self.sent: list[str] = []
        self.texts: set[str] = set()

    async def execute_command(self, *args: Any) -> Any:
        if args[0] == "EVALSHA":
            await self.redis.execute_command("SCRIPT FLUSH")
        if args[0] == "EVAL":
            self.texts.add(args[1])
        self.sent.append(args[0])
        return await self.redis.execute_command(*args)


async def test_a_whole_life_passes_if_scripts_vanish_before_every_call(
    store: Store, redis: Redis, keys: Keys
) -> None:
    expected = await live(store)
    await redis.flushall()
    forgetful = Forgetful(redis)
    other = Store(forgetful, keys)
    assert await live(other) == expected
    await other.note_act(b"{}")  # for people, not part of a message's life
    await other.note_vanished("w", b"{}")
    assert forgetful.sent == ["EVALSHA", "EVAL"] * (len(forgetful.sent) // 2)
    assert forgetful.texts == {script.text for script in SCRIPTS.values()}


async def test_a_life_leaves_nothing_but_what_it_was_asked_to_remember(store: Store, redis: Redis) -> None:
    """I2: after a full drain every key is gone, except tools' parts and the id that stays taken."""
    await live(store)
    state = await everything(redis)
    assert {re.split("[:=]", name)[0] for name in state} == {
        *("done", "topics", "counters", "call", "fence", "layout"),
    }
    assert state["done"].keys() == {"a", "=sealed"}


async def test_a_script_travels_once_and_is_known_afterwards(redis: Redis, keys: Keys) -> None:
    """EVAL leaves the script with the server, so that its text is not sent again and again."""

    class Listening(Forgetful):
        async def execute_command(self, *args: Any) -> Any:
            self.sent.append(args[0])
            return await self.redis.execute_command(*args)

    listening = Listening(redis)
    store = Store(listening, keys)
    for _ in range(3):
        await store.next_delay()
    assert listening.sent == ["EVALSHA", "EVAL", "EVALSHA", "EVALSHA"]


async def test_leases_of_many_topics_take_two_writes_if_the_script_is_unknown(
    store: Store, redis: Redis, keys: Keys
) -> None:
    """Each write costs the lease keeper's thread its turn, which is long while handlers compute."""

    class Writes:
        def __init__(self) -> None:
            self.sent: list[list[str]] = []

        async def execute_together(self, *commands: tuple[Any, ...]) -> list[Any]:
            self.sent.append([command[0] for command in commands])
            line: Commands = redis
            return [await _reply(line, command) for command in commands]

    writes, chunks = Writes(), []
    for topic in ("a", "b", "c"):
        await store.produce(topic, [NewMessage(f"of-{topic}", b"")])
        chunks.append((topic, (await store.claim(topic, 1, lease=60.0, holder="w")).deliveries))
    assert await store.extend_together(writes, chunks, lease=60.0) == [[Settled.DONE]] * 3
    assert writes.sent == [["EVALSHA"] * 3, ["EVAL", "EVALSHA", "EVALSHA"]]
    assert await store.extend_together(writes, chunks, lease=60.0) == [[Settled.DONE]] * 3
    assert writes.sent[2:] == [["EVALSHA"] * 3]


async def _reply(line: Commands, command: tuple[Any, ...]) -> Any:
    try:
        return await line.execute_command(*command)
    except ResponseError as error:
        return error


@pytest.fixture
async def user(server: EmbeddedServer, redis: Redis) -> AsyncIterator[Redis]:
    """A client that may do nothing yet; tests grant rights to it."""
    commands: Commands = redis
    await commands.execute_command("ACL", "SETUSER", "worker", "reset", "on", ">secret", "~mx-rmq:*")
    client = Redis(unix_socket_path=str(server.socket), username="worker", password="secret")
    async with client:
        yield client
    await redis.acl_deluser("worker")


async def grant(redis: Redis, rights: list[str]) -> None:
    commands: Commands = redis
    await commands.execute_command("ACL", "SETUSER", "worker", "-@all", *(f"+{right}" for right in rights))


async def outcome(store: Store, redis: Redis) -> tuple[object, ...]:
    """A life, what it leaves for people to see, and what it says of a key of the wrong type."""
    said = await live(store)
    state = await everything(redis)
    await redis.set("mx-rmq:{q}:delay_tasks", "wrong")
    with pytest.raises(WrongKeyType) as refusal:
        await store.next_delay()
    places = {re.split("[:=]", name)[0] for name in state}
    return said, state.get("counters"), state.get("topics"), places, str(refusal.value)


@pytest.fixture
async def expected(store: Store, redis: Redis) -> tuple[object, ...]:
    """The outcome for a user who may do everything; the server is empty again."""
    key = redis.connection_pool.connection_kwargs["path"]
    if key not in _outcomes:
        _outcomes[key] = await outcome(store, redis)
        await redis.flushall()
        await redis.script_flush()
    return _outcomes[key]


_outcomes: dict[str, tuple[object, ...]] = {}


async def test_these_rights_are_enough_for_a_whole_life(
    redis: Redis, user: Redis, keys: Keys, expected: tuple[object, ...]
) -> None:
    """EVAL brings the scripts in, so nobody needs ``script|load``; TIME is asked of the server."""
    await grant(redis, RIGHTS)
    assert await outcome(Store(user, keys), redis) == expected


@pytest.mark.parametrize("right", RIGHTS)
async def test_and_none_of_them_can_be_missing(
    right: str, redis: Redis, user: Redis, keys: Keys, expected: tuple[object, ...]
) -> None:
    await grant(redis, [each for each in RIGHTS if each != right])
    try:
        seen: object = await outcome(Store(user, keys), redis)
    except (StoreError, ResponseError, ValueError) as refusal:  # ValueError: too few deliveries came
        seen = refusal
    assert seen != expected
