"""What operators did."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from mx_rmq import ConfigError
from tests.harness import command
from tests.words import PREFIX

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from mx_rmq import RedisMessageQueue


async def test_acts_are_read_the_latest_first(mq: RedisMessageQueue) -> None:
    await mq.note_act("anna", "pause", "orders")
    await mq.note_act("ben", "replay", "group 0f", count=211, said="2 died again")
    trail = await mq.trail()
    assert [(act.who, act.what, act.target, act.count, act.said) for act in trail] == [
        ("ben", "replay", "group 0f", 211, "2 died again"),
        ("anna", "pause", "orders", 0, ""),
    ]
    assert abs(trail.read_at - trail[0].at) < 5
    assert "211" in str(trail)
    assert trail.as_dict()["acts"][0]["at"].endswith("+00:00")
    assert len(await mq.trail(1)) == 1
    assert str(await mq.trail(1)).startswith("when")


async def test_texts_are_bounded_and_on_one_line(mq: RedisMessageQueue, redis: Redis) -> None:
    await mq.note_act("a" * 9000, "b\nb" * 9000, "c\x1b" * 9000, said="d" * 9000, count=1)
    assert await command(redis, "MEMORY", "USAGE", f"{PREFIX}trail") < 2000
    (act,) = await mq.trail()
    assert "\n" not in act.what
    assert "\x1b" not in act.target


async def test_what_other_programs_wrote_there_is_passed_over(mq: RedisMessageQueue, redis: Redis) -> None:
    await mq.note_act("anna", "pause", "orders")
    for text in (b"", b"x", b"9", b"9 []", b"\xff {}", b"9 {\xff}", b"1" * 400 + b" {}"):
        await command(redis, "LPUSH", f"{PREFIX}trail", text)
    assert [act.who for act in await mq.trail()] == ["anna"]


async def test_wrong_arguments_are_refused(mq: RedisMessageQueue) -> None:
    with pytest.raises(ConfigError, match="limit"):
        await mq.trail(1001)
    with pytest.raises(ConfigError, match="count"):
        await mq.note_act("anna", "pause", count=-1)
