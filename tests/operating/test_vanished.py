"""Workers that vanished, as operators see them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from tests.harness import command
from tests.words import PREFIX, store_of

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from mx_rmq import RedisMessageQueue


async def test_the_latest_comes_first_and_nonsense_is_passed_over(
    mq: RedisMessageQueue, redis: Redis
) -> None:
    assert str(await mq.vanished()) == "no worker vanished"
    await store_of(redis).note_vanished("w1", b'{"messages":2,"ids":["a","b"],"seen_by":"w9"}')
    await command(
        redis, "HSET", f"{PREFIX}vanished", "w2", "9 {}", "x", "", "y", "5 [", "z", "9" * 400 + " {}"
    )
    found = await mq.vanished()
    assert [(each.name, each.messages, each.ids, each.seen_by) for each in found] == [
        ("w1", 2, ("a", "b"), "w9"),
        ("w2", 0, (), ""),
    ]
    assert abs(found[0].at - found.read_at) < 5
    assert "a, b" in str(found)
    assert "w9" in str(found[0])
    assert json.dumps(found.as_dict())
