from __future__ import annotations

from typing import TYPE_CHECKING

from tests.harness import command
from tests.scripts.states import NOW, everything
from tests.words import PREFIX, out_of_memory

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from mx_rmq.storage.store import Store
    from tests.harness import Clock


async def test_an_act_is_noted_with_the_time(store: Store, redis: Redis, clock: Clock) -> None:
    assert await store.note_act(b'{"what":"pause"}') == 1
    clock.advance(1)
    assert await store.note_act(b"{}") == 2
    assert await everything(redis) == {"trail": [f'{NOW} {{"what":"pause"}}', f"{NOW + 1000} {{}}"]}


async def test_the_latest_thousand_are_kept(store: Store, redis: Redis) -> None:
    for n in range(1003):
        kept = await store.note_act(b"%d" % n)
    assert kept == 1000
    assert await command(redis, "LLEN", f"{PREFIX}trail") == 1000
    assert (await command(redis, "LINDEX", f"{PREFIX}trail", 0)).endswith(b" 1002")


async def test_a_full_server_notes_too(store: Store, redis: Redis) -> None:
    """Even where there is none whose removal would open the door."""
    async with out_of_memory(redis):
        assert await store.note_act(b"{}") == 1
