"""note_vanished: who vanished, the latest notes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.harness import command
from tests.scripts.states import NOW, everything
from tests.words import PREFIX, out_of_memory

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from mx_rmq.storage.store import Store
    from tests.harness import Clock


async def test_a_worker_is_noted_once_with_the_time(store: Store, redis: Redis, clock: Clock) -> None:
    assert await store.note_vanished("w1", b'{"messages":3}')
    clock.advance(1)
    assert not await store.note_vanished("w1", b"{}")  # another worker saw it too
    assert await everything(redis) == {"vanished": {"w1": f'{NOW} {{"messages":3}}'}}


async def test_only_the_latest_are_kept(store: Store, redis: Redis, clock: Clock) -> None:
    await command(redis, "HSET", f"{PREFIX}vanished", "stranger", "nonsense")
    for n in range(55):
        clock.advance(1)
        assert await store.note_vanished(f"w{n}", b"{}")
    kept = await command(redis, "HKEYS", f"{PREFIX}vanished")
    assert sorted(kept) == sorted(f"w{n}".encode() for n in range(5, 55))


async def test_a_full_server_notes_too(store: Store, redis: Redis) -> None:
    async with out_of_memory(redis):
        assert await store.note_vanished("w1", b"{}")
