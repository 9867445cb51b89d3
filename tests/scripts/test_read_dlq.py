from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from mx_rmq.limits import REPLY_BYTES
from tests.scripts.states import NOW, dead, everything, grouped, pending, seed
from tests.words import PREFIX, unchanged

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from mx_rmq.storage.store import Store, What

IDS = [b"a", b"b", b"c", b"live", b"nobody"]


async def some(redis: Redis) -> None:
    await seed(
        redis,
        grouped("a", died=NOW - 3),
        grouped("b", "u", died=NOW - 2, error="no bank"),
        dead("c", died=NOW - 1, error="no order"),
        pending("live"),
    )


async def test_the_dead_are_read_in_the_order_asked_for_and_nothing_else(store: Store, redis: Redis) -> None:
    await some(redis)
    state = await everything(redis)
    async with unchanged(redis):
        looked, rows = await store.read_dead([b"c", b"live", b"a", b"nobody"])
    assert looked == 4
    assert [row.id for row in rows] == [b"c", b"a"]
    assert rows[0] == (b"c", str(NOW - 1).encode(), b"t", b"no order", b"", b"body of c")
    assert rows[1].group.decode() == state["dlq_payload"]["a:group"]
    assert rows[1].died_at == (NOW - 3) / 1000


@pytest.mark.parametrize(
    ("options", "found"),
    [
        ({"topic": "t"}, [b"a", b"c"]),
        ({"topic": "v"}, []),
        ({"word": "no "}, [b"b", b"c"]),
        ({"word": "%w"}, []),
    ],
)
async def test_only_matches_are_sent(
    store: Store, redis: Redis, options: dict[str, str], found: list[bytes]
) -> None:
    """A word is a text, not a pattern."""
    await some(redis)
    looked, rows = await store.read_dead(IDS, **options)  # type: ignore[arg-type]
    assert (looked, [row.id for row in rows]) == (len(IDS), found)


async def test_a_group_is_found_by_its_id(store: Store, redis: Redis) -> None:
    await some(redis)
    _, (_, b, _) = await store.read_dead(IDS)
    assert await store.read_dead(IDS, group=b.group.decode()) == (len(IDS), [b])


async def test_what_is_not_asked_for_is_left_out(store: Store, redis: Redis) -> None:
    await some(redis)
    _, rows = await store.read_dead(IDS, "errors")
    assert [(row.error, row.body) for row in rows] == [(b"why", b""), (b"no bank", b""), (b"no order", b"")]
    _, rows = await store.read_dead(IDS, "ids", word="no ")
    assert [(row.id, row.topic, row.error, row.body) for row in rows] == [
        (b"b", b"u", b"", b""),
        (b"c", b"t", b"", b""),
    ]
    _, rows = await store.read_dead(IDS, "bodies", word="no ")
    assert [(row.id, row.error, row.body) for row in rows] == [
        (b"b", b"", b"body of b"),
        (b"c", b"", b"body of c"),
    ]


@pytest.mark.parametrize("what", ["ids", "errors", "bodies", "all"])
@pytest.mark.parametrize("left", ["left", "left:queue", "left:error"])
async def test_a_message_of_which_one_part_is_left_is_found_whatever_is_asked_for(
    store: Store, redis: Redis, what: What, left: str
) -> None:
    await seed(redis, dead("left"))
    others = {"left", "left:queue", "left:error"} - {left}
    await redis.hdel(f"{PREFIX}dlq_payload", *others)
    _, rows = await store.read_dead([b"left"], what)
    assert [row.id for row in rows] == [b"left"]


async def test_an_entry_of_which_nothing_is_left_is_no_message(store: Store, redis: Redis) -> None:
    await seed(redis, dead("a"), dead("bare"))
    await redis.hdel(f"{PREFIX}dlq_payload", "a", "a:queue", "a:error")
    await redis.hdel(f"{PREFIX}dlq_payload", "bare", "bare:error")
    _, rows = await store.read_dead([b"a", b"bare"])
    assert [(row.id, row.topic, row.body) for row in rows] == [(b"bare", b"t", b"")]


async def test_a_reply_ends_when_it_is_full(store: Store, redis: Redis) -> None:
    """The next call begins where this one ended; a body that fits into no reply is sent alone."""
    sizes = [REPLY_BYTES // 2, REPLY_BYTES // 2 - 100, 100, REPLY_BYTES * 2, 5]
    for n, size in enumerate(sizes):
        await seed(redis, dead(f"m{n}", f"t{n}", body="x" * size))
    rest = [f"m{n}".encode() for n in range(len(sizes))]
    calls = []
    while rest:
        looked, rows = await store.read_dead(rest)
        assert [row.id for row in rows] == rest[:looked]
        calls.append(looked)
        rest = rest[looked:]
    assert calls == [2, 1, 1, 1]


@pytest.mark.parametrize("what", ["bodies", "all"])
async def test_each_message_gets_its_own_body_be_its_neighbours_large_or_gone(
    store: Store, redis: Redis, what: What
) -> None:
    """Small bodies are read together, large ones alone."""
    bodies = {f"m{n}": "x" * (9000 if n % 11 in (3, 4) else n) for n in range(1, 61)}
    await seed(redis, *(dead(id_, body=body) for id_, body in bodies.items()))
    await redis.hdel(f"{PREFIX}dlq_payload", "m7", "m8")
    await redis.zrem(f"{PREFIX}dlq", "m20")
    _, rows = await store.read_dead([id_.encode() for id_ in bodies], what)
    del bodies["m20"]
    assert {row.id.decode(): row.body.decode() for row in rows} == bodies | {"m7": "", "m8": ""}


async def test_nothing_is_read_of_nothing(store: Store) -> None:
    assert await store.read_dead([]) == (0, [])
