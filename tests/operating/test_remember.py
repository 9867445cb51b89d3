"""After the end: what became of a message is remembered for as long as was asked."""

from __future__ import annotations

import asyncio
import re
import time
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from mx_rmq import ConfigError, RedisMessageQueue, Reject, Retry
from mx_rmq.message import decode_message
from mx_rmq.storage.contract import Ended
from tests.harness import all_keys, command
from tests.words import (
    PREFIX,
    bury,
    claim,
    complete,
    drained,
    eventually,
    in_state,
    is_sound,
    put_bytes,
    store_of,
)

if TYPE_CHECKING:
    from redis.asyncio import Redis

INSTANT = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC"


async def memories(redis: Redis) -> set[str]:
    return {key.removeprefix(PREFIX + "ended=") for key in await all_keys(redis) if "ended=" in key}


async def test_whether_a_message_succeeded_is_known_after_its_end(mq: RedisMessageQueue) -> None:
    @mq.handler("t")
    async def handle(payload: float) -> None:
        await asyncio.sleep(payload)

    await mq.start()
    await mq.produce("t", 0.05, message_id="A1", remember=60)
    await mq.produce("t", 0.0, message_id="A2")
    facts = await in_state(mq, "A1", "done")
    assert (facts.topic, facts.message, facts.died_at) == ("t", None, None)
    assert facts.ended_at is not None
    assert facts.took is not None
    assert abs(facts.ended_at - time.time()) < 15
    assert 0.04 < facts.took < 15
    said = re.sub(INSTANT, "<then>", await mq.explain("A1"))
    assert re.fullmatch(r"message A1 of topic 't' was done at <then>; its handler ran for [\d.]+ s", said)
    await in_state(mq, "A2", "gone")
    assert await is_sound(mq)


async def test_a_dead_message_is_remembered_when_the_dlq_has_forgotten_it(mq: RedisMessageQueue) -> None:
    @mq.handler("t")
    async def handle(payload: int) -> None:
        raise Reject("no")

    await mq.start()
    await mq.produce("t", 1, message_id="A1", remember=timedelta(minutes=1))
    facts = await in_state(mq, "A1", "dead")
    assert (facts.reason, facts.error, facts.ended_at) == ("rejected", "no", None)
    await mq.dlq.delete("A1")
    facts = await mq.find("A1")
    assert (facts.state, facts.topic, facts.reason) == ("dead", "t", "")
    assert facts.died_at == facts.ended_at
    said = re.sub(INSTANT, "<then>", await mq.explain("A1"))
    assert said == "message A1 of topic 't' died at <then> and is not in the DLQ any more"


async def test_a_handler_remembers_for_its_messages_unless_produce_says_otherwise(
    mq: RedisMessageQueue, redis: Redis
) -> None:
    tried: list[int] = []

    @mq.handler("t", remember=60, retry=Retry(backoff="fixed", base=0.01))
    async def handle(payload: int) -> None:
        tried.append(payload)
        if tried.count(2) == 1:
            raise ValueError("once")

    await mq.start()
    for n in range(4):
        options: dict[str, Any] = {"remember": 0} if n == 3 else {}
        await mq.produce("t", n, message_id=f"A{n}", **options)
    await drained(mq)
    await eventually(lambda: tried.count(2) == 2)
    assert await memories(redis) == {"A0", "A1", "A2"}


async def test_every_kind_of_death_is_remembered(mq: RedisMessageQueue, redis: Redis) -> None:
    """Expired while pending, refused by the handler's type, failed for good."""

    @mq.handler("t", retry=Retry(1))
    async def handle(payload: int) -> None:
        raise ValueError("no")

    outside = store_of(redis)
    await mq.produce("other", 1, message_id="expired", ttl=0.001, remember=60)
    await mq.produce("t", 1, message_id="failed", remember=60)
    await mq.produce("u", "not a number", message_id="unfit", remember=60)
    (delivery,) = await claim(redis, "u")
    body = delivery.body
    assert decode_message(body, "unfit", "u").remember_for == 60
    await outside.complete("u", [(delivery, 0.0)])
    await put_bytes(redis, "unfit", body)
    await mq.start()
    for id_ in ("expired", "failed", "unfit"):
        await in_state(mq, id_, "dead")
    assert await memories(redis) == {"expired", "failed", "unfit"}


async def test_without_the_option_nothing_is_kept(mq: RedisMessageQueue, redis: Redis) -> None:
    await mq.produce_many("t", range(20))
    await complete(redis)
    assert await memories(redis) == set()


async def test_all_messages_of_produce_many_are_remembered(mq: RedisMessageQueue, redis: Redis) -> None:
    @mq.handler("t", batch=10)
    async def handle(payloads: list[int]) -> None: ...

    ids = await mq.produce_many("t", range(30), remember=60)
    ids.append(await asyncio.to_thread(mq.sync.produce, "t", 1, remember=60))
    await mq.start()
    await drained(mq)
    assert await memories(redis) == set(ids)


async def test_a_live_message_hides_what_became_of_an_earlier_one(
    mq: RedisMessageQueue, redis: Redis
) -> None:
    await command(redis, "SET", PREFIX + "ended=A1", "done 1763230000000 250 t")
    assert (await mq.find("A1")).state == "done"
    await mq.produce("t", 1, message_id="A1")
    assert (await mq.find("A1")).state == "pending"


async def test_what_is_remembered_is_forgotten_in_time(mq: RedisMessageQueue, redis: Redis) -> None:
    @mq.handler("t", remember=0.2)
    async def handle(payload: int) -> None: ...

    await mq.start()
    await mq.produce("t", 1, message_id="A1")
    await in_state(mq, "A1", "done")
    await in_state(mq, "A1", "gone")


@pytest.mark.parametrize(
    "text",
    ["", "done", "done 1 2", "ended 1 2 t", "done x 2 t", "done 1 2 t u", "done " + "9" * 400 + " 2 t"],
)
async def test_nonsense_is_no_memory(mq: RedisMessageQueue, redis: Redis, text: str) -> None:
    assert Ended.parse(text) is None
    await command(redis, "SET", PREFIX + "ended=A1", text)
    assert (await mq.find("A1")).state == "gone"


@pytest.mark.parametrize("remember", [-1, "1h", 31 * 86400, float("nan"), timedelta(days=31), True])
async def test_what_cannot_be_remembered_for_is_refused(mq: RedisMessageQueue, remember: Any) -> None:
    rule = "must be seconds from 0 to 2592000"
    with pytest.raises(ConfigError, match=f"^remember {rule}, got "):
        await mq.produce("t", 1, remember=remember)
    with pytest.raises(ConfigError, match=f"^remember of topic 't' {rule}, or None for not at all, got "):

        @mq.handler("t", remember=remember)
        async def handle(payload: int) -> None: ...


async def test_a_replay_may_ask_to_remember_the_end(mq: RedisMessageQueue, redis: Redis) -> None:
    """Without that, one who replays a message and looks later cannot tell done from deleted."""
    for id_ in ("A1", "A2", "A3"):
        await mq.produce("t", 1, message_id=id_, remember=7200 if id_ == "A3" else None)
    await bury(redis)

    await mq.dlq.replay("A1", "A3", remember=60)
    await mq.dlq.replay("A2")
    kept = [(await mq.find(id_)).message for id_ in ("A1", "A2", "A3")]
    assert [message.remember_for for message in kept if message] == [60, None, 7200]

    @mq.handler("t")
    async def handle(payload: int) -> None: ...

    await mq.start()
    await in_state(mq, "A1", "done")
    await in_state(mq, "A2", "gone")
    with pytest.raises(ConfigError, match="remember must be seconds from 0 to 2592000"):
        await mq.dlq.replay("A1", remember=-1)
