from __future__ import annotations

import asyncio
import json
import re
import time
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from mx_rmq import (
    ConfigError,
    DeadLetter,
    InvalidName,
    InvalidPayload,
    MessageTooLarge,
    NotDead,
    RedisMessageQueue,
    Retry,
    UnknownTopic,
    UnreadableMessage,
)
from mx_rmq.message import Death, encode_death, encode_message
from mx_rmq.storage.contract import NewMessage, Restore
from tests.harness import command, read_state
from tests.words import PREFIX, bury, claim, eventually, in_order, message, store_of, unchanged

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from mx_rmq.storage.embedded import EmbeddedServer

CRASHED = Death(reason="crashed", error="its worker vanished 3 times")
REFUSED = Death(reason="failed", error="ConnectionError: the bank refused", kind="ConnectionError")


async def dead(queue: RedisMessageQueue, redis: Redis, *ids: str, topic: str = "t", **options: Any) -> None:
    """Dead messages, each with a death of its own time."""
    death = options.pop("death", None)
    for id_ in ids:
        await queue.produce(topic, {"of": id_}, message_id=id_, **options)
        assert await bury(redis, death, topic) == [id_]
        await command(redis, "ZADD", f"{PREFIX}dlq", 1_763_230_000_000 + len(await ids_of(queue)), id_)


async def unreadable(redis: Redis, id_: str, body: bytes = b"\xff not a message", topic: str = "t") -> None:
    """A dead message with other bytes than a message's."""
    await store_of(redis).produce(topic, [NewMessage(id_, body)])
    (delivery,) = await claim(redis, topic)
    error = encode_death(Death(reason="unparsable", error="UnreadableMessage: …", kind="UnreadableMessage"))
    await store_of(redis).move_to_dlq(topic, [(delivery, b"", error)])


async def ids_of(queue: RedisMessageQueue, **options: Any) -> list[str]:
    return [letter.id for letter in (await queue.dlq.list(limit=1000, **options)).letters]


# -- reading


async def test_a_letter_tells_what_died_when_and_why(queue: RedisMessageQueue, redis: Redis) -> None:
    before = time.time()
    await queue.produce("t", {"a": [1]}, message_id="A1", headers={"h": "v"})
    await bury(redis)
    letter = await queue.dlq.get("A1")
    assert isinstance(letter, DeadLetter)
    assert (letter.id, letter.topic) == ("A1", "t")
    assert before - 1 <= letter.died_at <= time.time() + 1
    assert (letter.reason, letter.error, letter.kind) == ("failed", "ValueError: no", "ValueError")
    assert letter.payload == {"a": [1]}
    assert letter.message is not None
    assert letter.message.headers == {"h": "v"}
    assert [attempt.error for attempt in letter.message.history] == ["ValueError: no"]
    assert (await queue.dlq.list()).letters == [letter]


async def test_an_empty_dlq_has_an_empty_page(queue: RedisMessageQueue) -> None:
    page = await queue.dlq.list()
    assert page.letters == []
    assert page.next is None
    assert await queue.dlq.groups() == []


async def test_letters_come_in_pages_latest_first(queue: RedisMessageQueue, redis: Redis) -> None:
    ids = [f"m{n:03}" for n in range(25)]
    await dead(queue, redis, *ids)
    for limit in (1, 7, 25, 26):
        seen: list[str] = []
        after = None
        while True:
            page = await queue.dlq.list(limit=limit, after=after)
            assert len(page.letters) <= limit
            seen += [letter.id for letter in page.letters]
            after = page.next
            if after is None:
                break
            assert len(page.letters) == limit
        assert seen == ids[::-1]


async def test_the_oldest_come_first_if_asked(queue: RedisMessageQueue, redis: Redis) -> None:
    await dead(queue, redis, "a", "b", "c", "d", "e")
    seen: list[str] = []
    after: str | None = None
    while True:
        page = await queue.dlq.list(limit=2, after=after, oldest=True)
        seen += [letter.id for letter in page.letters]
        if (after := page.next) is None:
            break
    assert seen == ["a", "b", "c", "d", "e"]


async def test_a_function_says_which_are_meant(queue: RedisMessageQueue, redis: Redis) -> None:
    await dead(queue, redis, "a", "b", "c", "d", "e")

    def late(letter: DeadLetter) -> bool:
        return bool(letter.payload["of"] > "b")

    assert await ids_of(queue, matching=late) == ["e", "d", "c"]
    assert [letter.id async for letter in queue.dlq.export(matching=late)] == ["c", "d", "e"]
    assert await queue.dlq.replay_all(matching=lambda letter: letter.id == "d") == 1
    assert await queue.dlq.purge(matching=late) == 2
    assert await ids_of(queue) == ["b", "a"]


@pytest.mark.parametrize("oldest", [False, True])
async def test_a_page_goes_on_where_a_message_was_that_died_again(
    queue: RedisMessageQueue, redis: Redis, oldest: bool
) -> None:
    """It is among the latest now; the page is found at once all the same, not by all that died between."""
    ids = [f"m{n:04}" for n in range(5000)]
    step, died, body = 1 if oldest else -1, encode_death(Death(reason="failed")), encode_message(message())
    letters = [Restore(id_, "t", 1e6 + step * n, body, died) for n, id_ in enumerate(ids)]
    for start in range(0, 5000, 1000):
        await store_of(redis).restore(letters[start : start + 1000])
    page = await queue.dlq.list(limit=4000, oldest=oldest)
    last = page.letters[-1].id
    assert last == "m3999"
    await command(redis, "ZADD", f"{PREFIX}dlq", 1 if oldest else 2e9, last)
    before = (await command(redis, "INFO", "stats"))["total_commands_processed"]
    page = await queue.dlq.list(limit=10, oldest=oldest, after=page.next)
    after = (await command(redis, "INFO", "stats"))["total_commands_processed"]
    assert [letter.id for letter in page.letters] == ids[4000:4010]
    assert after - before < 150  # 370 reads of eleven messages would lead there


async def test_a_search_looks_at_so_many_and_says_where_to_go_on(
    queue: RedisMessageQueue, redis: Redis
) -> None:
    await dead(queue, redis, "a", topic="rare")
    await dead(queue, redis, *"bcdefg")
    page = await queue.dlq.list(topic="rare", look=4)
    assert page.letters == []
    page = await queue.dlq.list(topic="rare", look=4, after=page.next)
    assert [letter.id for letter in page.letters] == ["a"]
    assert page.next is None
    with pytest.raises(ConfigError, match="look must be"):
        await queue.dlq.list(look=0)


async def test_paging_works_beyond_what_is_read_at_once(queue: RedisMessageQueue, redis: Redis) -> None:
    await queue.produce_many("t", range(450))
    await queue.produce_many("other", range(450))
    await bury(redis)
    await bury(redis, topic="other")
    seen: list[str] = []
    after = None
    while True:
        page = await queue.dlq.list(topic="t", limit=130, after=after)
        seen += [letter.id for letter in page.letters]
        assert {letter.topic for letter in page.letters} == {"t"}
        if (after := page.next) is None:
            break
    assert len(seen) == len(set(seen)) == 450


async def test_the_last_page_says_that_it_is_the_last(queue: RedisMessageQueue, redis: Redis) -> None:
    await dead(queue, redis, "A1", "A2")
    await dead(queue, redis, "B1", topic="other")
    page = await queue.dlq.list(topic="t", limit=2)
    assert len(page.letters) == 2
    assert page.next is None


@pytest.mark.parametrize(
    ("options", "found"),
    [
        ({"topic": "t"}, ["A2", "A1"]),
        ({"topic": "other"}, ["B1"]),
        ({"topic": "nothing"}, []),
        ({"error": "crashed"}, ["B1"]),
        ({"error": "ConnectionError"}, ["A2"]),
        ({"error": "the bank"}, ["A2"]),
        ({"error": "failed"}, ["A2", "A1"]),
        ({"error": "Connect"}, ["A2"]),
        ({"topic": "t", "error": "ValueError"}, ["A1"]),
        ({"topic": "other", "error": "ValueError"}, []),
    ],
)
async def test_letters_are_found_by_topic_and_error(
    queue: RedisMessageQueue, redis: Redis, options: dict[str, str], found: list[str]
) -> None:
    await dead(queue, redis, "A1")
    await dead(queue, redis, "A2", death=REFUSED)
    await dead(queue, redis, "B1", topic="other", death=CRASHED)
    assert await ids_of(queue, **options) == found


async def test_groups_count_by_topic_and_class_of_error(queue: RedisMessageQueue, redis: Redis) -> None:
    await dead(queue, redis, "A1", "A2")
    await dead(queue, redis, "A3", death=REFUSED)
    await dead(queue, redis, "B1", topic="other", death=CRASHED)
    await unreadable(redis, "C1")
    assert [(group.topic, group.error, group.count) for group in await queue.dlq.groups()] == [
        ("t", "ValueError", 2),
        ("other", "crashed", 1),
        ("t", "ConnectionError", 1),
        ("t", "UnreadableMessage", 1),
    ]


async def test_groups_tell_places_in_the_code_apart(queue: RedisMessageQueue, redis: Redis) -> None:
    """And when the first and the last of each died."""
    for n, place in enumerate(["shop.py:31 in deep", "shop.py:7 in flat", "shop.py:31 in deep"]):
        failed = Death(reason="failed", error=f"KeyError: {n}", kind="KeyError", place=place)
        await dead(queue, redis, f"A{n}", death=failed)
    groups = await queue.dlq.groups()
    assert [(group.place, group.count) for group in groups] == [
        ("shop.py:31 in deep", 2),
        ("shop.py:7 in flat", 1),
    ]
    assert groups[0].first_at <= groups[1].first_at <= groups[0].last_at
    assert groups[1].first_at == groups[1].last_at
    assert await ids_of(queue, error="shop.py:31 in deep") == ["A2", "A0"]
    header, first, _ = str(groups).splitlines()
    assert header.split() == ["dead", "group", "topic", "error", "text", "first", "last", "place"]
    assert first.split()[:4] == ["2", groups[0].id, "t", "KeyError"]
    assert first.endswith("shop.py:31 in deep")
    assert str(groups[1]).splitlines()[1].endswith("shop.py:7 in flat")
    found = json.loads(json.dumps(groups.as_dict()))
    assert found["groups"][0]["first_at"].startswith("20")
    assert found["uncounted"] == 0


async def test_a_real_failure_is_grouped_by_its_place(queue: RedisMessageQueue) -> None:
    prices: dict[int, float] = {}

    @queue.handler("t", retry=Retry(1))
    async def handle(payload: int) -> None:
        prices[payload]

    await queue.produce_many("t", range(3))
    await queue.start()

    async def all_dead() -> bool:
        return (await queue.counts()).dead == 3

    await eventually(all_dead)
    (group,) = await queue.dlq.groups()
    assert (group.topic, group.error, group.count) == ("t", "KeyError", 3)
    assert re.fullmatch(r"tests/operating/test_dead_letters\.py:\d+ in handle", group.place)


async def test_groups_count_thousands(queue: RedisMessageQueue, redis: Redis) -> None:
    await queue.produce_many("t", range(900))
    await bury(redis)
    (group,) = await queue.dlq.groups()
    assert (group.topic, group.error, group.count) == ("t", "ValueError", 900)


@pytest.mark.parametrize("id_", ["unknown", "", "A1:error", "{x}"])
async def test_what_is_not_dead_is_not_found(queue: RedisMessageQueue, redis: Redis, id_: str) -> None:
    await queue.produce("t", 1, message_id="live")
    await dead(queue, redis, "A1", topic="u")
    for unknown in (id_, "live"):
        with pytest.raises(NotDead, match="is not in the DLQ"):
            await queue.dlq.get(unknown)


@pytest.mark.parametrize("limit", [0, -1])
async def test_a_page_of_nothing_is_refused(queue: RedisMessageQueue, limit: int) -> None:
    """A loop over its pages would never end."""
    with pytest.raises(ConfigError, match="limit"):
        await queue.dlq.list(limit=limit)


@pytest.mark.parametrize("after", ["x", "1", "a,b,c", "1,2", "0,nan,A1", "-1,5,A1", 5])
async def test_a_place_that_no_page_named_is_refused(queue: RedisMessageQueue, after: Any) -> None:
    with pytest.raises(ConfigError, match="after must be the next of an earlier page, got"):
        await queue.dlq.list(after=after)


# -- letters that cannot be read


async def test_an_unreadable_letter_keeps_its_bytes_and_hides_nobody(
    queue: RedisMessageQueue, redis: Redis
) -> None:
    await dead(queue, redis, "A1")
    await unreadable(redis, "bad1")
    await unreadable(redis, "bad2", b'{"v":99,"id":"bad2","topic":"t","payload":1,"created_at":1}')
    page = await queue.dlq.list()
    assert {letter.id for letter in page.letters} == {"A1", "bad1", "bad2"}
    letter = await queue.dlq.get("bad1")
    assert letter.body == b"\xff not a message"
    assert letter.message is None
    assert letter.payload is None
    assert letter.reason == "unparsable"
    assert (await queue.dlq.get("bad2")).message is None


async def test_a_letter_whose_error_cannot_be_read_shows_it_as_it_is(
    queue: RedisMessageQueue, redis: Redis
) -> None:
    await dead(queue, redis, "A1")
    await command(redis, "HSET", f"{PREFIX}dlq_payload", "A1:error", b"\xff someone else's words")
    letter = await queue.dlq.get("A1")
    assert letter.reason == "unknown"
    assert "someone else's words" in letter.error


async def test_a_letter_without_a_body_is_listed_and_can_be_deleted(
    queue: RedisMessageQueue, redis: Redis
) -> None:
    """Something else has damaged it; hiding it would not mend it."""
    ids = [f"m{n}" for n in range(6)]
    await dead(queue, redis, *ids)
    await command(redis, "HDEL", f"{PREFIX}dlq_payload", "m3")
    first = await queue.dlq.list(limit=3)
    second = await queue.dlq.list(limit=3, after=first.next)
    assert [letter.id for letter in [*first.letters, *second.letters]] == ids[::-1]
    letter = await queue.dlq.get("m3")
    assert (letter.body, letter.message, letter.payload) == (b"", None, None)
    assert await queue.dlq.delete("m3") == 1


async def test_an_entry_of_which_nothing_is_left_moves_no_page(
    queue: RedisMessageQueue, redis: Redis
) -> None:
    ids = [f"m{n}" for n in range(6)]
    await dead(queue, redis, *ids)
    await command(redis, "HDEL", f"{PREFIX}dlq_payload", "m4", "m4:queue", "m4:error")
    first = await queue.dlq.list(limit=2)
    second = await queue.dlq.list(limit=2, after=first.next)
    third = await queue.dlq.list(limit=2, after=second.next)
    seen = [letter.id for page in (first, second, third) for letter in page.letters]
    assert seen == ["m5", "m3", "m2", "m1", "m0"]
    with pytest.raises(NotDead):
        await queue.dlq.get("m4")


async def test_a_topic_that_cannot_be_read_hides_nobody(queue: RedisMessageQueue, redis: Redis) -> None:
    await dead(queue, redis, "A1", "A2")
    await command(redis, "HSET", f"{PREFIX}dlq_payload", "A1:queue", b"\xff")
    assert await ids_of(queue) == ["A2", "A1"]
    assert sum(group.count for group in await queue.dlq.groups()) == 2


# -- replay


async def test_a_replayed_message_starts_anew_and_keeps_its_history(
    queue: RedisMessageQueue, redis: Redis
) -> None:
    await dead(queue, redis, "A1", priority="high", ttl=60, headers={"h": "v"}, dedup_for=5)
    assert await queue.dlq.replay("A1") == 1
    facts = await queue.find("A1")
    assert facts.state == "pending"
    assert facts.message is not None
    assert (facts.message.attempts, facts.message.crashes, facts.message.replays) == (0, 0, 1)
    assert [attempt.error for attempt in facts.message.history] == ["ValueError: no"]
    assert (facts.message.priority, facts.message.headers, facts.message.dedup_for) == ("high", {"h": "v"}, 5)
    assert facts.expires_at is not None
    assert 55 < facts.expires_at - time.time() < 65
    assert (await queue.counts()).dead == 0
    assert await command(redis, "LLEN", f"{PREFIX}t:pending:high") == 1


async def test_a_replayed_message_runs_and_dies_again_after_all_its_attempts(
    server: EmbeddedServer, redis: Redis
) -> None:
    attempts: list[int] = []
    async with RedisMessageQueue(
        server.url, name="q", server_check="off", retry=Retry(2, backoff=[0.0])
    ) as queue:

        @queue.handler("t")
        async def handle(payload: int, context: Any) -> None:
            attempts.append(context.attempt)
            raise ValueError("no")

        async def is_dead() -> bool:
            return (await queue.find("A1")).state == "dead"

        await queue.produce("t", 1, message_id="A1")
        await queue.start()
        await eventually(is_dead)
        await queue.dlq.replay("A1")
        await eventually(is_dead)
        letter = await queue.dlq.get("A1")
    assert attempts == [1, 2, 1, 2]
    assert letter.message is not None
    assert len(letter.message.history) == 4


async def test_several_are_replayed_in_the_given_order(queue: RedisMessageQueue, redis: Redis) -> None:
    await dead(queue, redis, "A1", "A2", "A3")
    assert await queue.dlq.replay("A3", "A1") == 2
    assert await in_order(redis) == ["A3", "A1"]
    assert await ids_of(queue) == ["A2"]
    assert await queue.dlq.replay() == 0


async def test_replaying_what_is_not_dead_is_an_error(queue: RedisMessageQueue, redis: Redis) -> None:
    await queue.produce("t", 1, message_id="live")
    for id_ in ("unknown", "live"):
        with pytest.raises(NotDead, match=id_):
            await queue.dlq.replay(id_)
    assert await in_order(redis) == ["live"]


async def test_a_message_is_not_replayed_twice(queue: RedisMessageQueue, redis: Redis) -> None:
    await dead(queue, redis, "A1")
    results = await asyncio.gather(*(queue.dlq.replay("A1") for _ in range(10)), return_exceptions=True)
    assert results.count(1) == 1
    assert sum(isinstance(result, NotDead) for result in results) == 9
    assert await in_order(redis) == ["A1"]


async def test_an_id_that_lives_again_is_not_replayed_over(queue: RedisMessageQueue, redis: Redis) -> None:
    """Produce refuses a dead id, so only damage can bring this about."""
    await dead(queue, redis, "A1")
    await command(redis, "HSET", f"{PREFIX}payload", "A1", "other", "A1:queue", "t")
    with pytest.raises(NotDead, match="is alive"):
        await queue.dlq.replay("A1")


async def test_a_payload_can_be_mended_on_the_way(queue: RedisMessageQueue, redis: Redis) -> None:
    await dead(queue, redis, "A1", headers={"h": "v"})
    assert await queue.dlq.replay("A1", payload={"fixed": True}) == 1
    facts = await queue.find("A1")
    assert facts.message is not None
    assert bytes(facts.message.payload) == b'{"fixed":true}'
    assert facts.message.headers == {"h": "v"}
    assert len(facts.message.history) == 1


async def test_none_is_a_payload_too(queue: RedisMessageQueue, redis: Redis) -> None:
    await dead(queue, redis, "A1")
    await queue.dlq.replay("A1", payload=None)
    facts = await queue.find("A1")
    assert facts.message is not None
    assert bytes(facts.message.payload) == b"null"


async def test_a_mended_payload_is_checked_as_in_produce(queue: RedisMessageQueue, redis: Redis) -> None:
    await dead(queue, redis, "A1", "A2")
    async with unchanged(redis):
        with pytest.raises(InvalidPayload):
            await queue.dlq.replay("A1", payload={1, 2})
        with pytest.raises(MessageTooLarge):
            await queue.dlq.replay("A1", payload="x" * 1_100_000)
        with pytest.raises(ConfigError, match="one message at a time"):
            await queue.dlq.replay("A1", "A2", payload=1)
        with pytest.raises(ConfigError, match="one message at a time"):
            await queue.dlq.replay(payload=1)


async def test_a_mended_payload_must_fit_the_handler_here(queue: RedisMessageQueue, redis: Redis) -> None:
    await dead(queue, redis, "A1")

    @queue.handler((await queue.dlq.get("A1")).topic)
    async def takes_numbers(n: int) -> None: ...

    async with unchanged(redis):
        with pytest.raises(
            InvalidPayload, match="has the handler takes_numbers: the payload does not fit int"
        ):
            await queue.dlq.replay("A1", payload="x")
    assert await queue.dlq.replay("A1", payload=3) == 1


async def test_an_id_may_be_a_number_for_operators_too(queue: RedisMessageQueue, redis: Redis) -> None:
    number: Any = 17
    await dead(queue, redis, "17")
    assert (await queue.dlq.get(number)).id == "17"
    assert await queue.dlq.replay(number) == 1
    assert await queue.cancel(number)
    several: Any = ["17"]
    for call in (queue.dlq.get, queue.dlq.replay, queue.dlq.delete):
        with pytest.raises(InvalidName, match=r"a message id must be .*, got \['17'\]"):
            await call(several)


async def test_an_unreadable_letter_is_replayed_as_it_is_but_cannot_be_mended(
    queue: RedisMessageQueue, redis: Redis
) -> None:
    await unreadable(redis, "bad")
    with pytest.raises(UnreadableMessage, match="bad"):
        await queue.dlq.replay("bad", payload=1)
    assert await queue.dlq.replay("bad") == 1
    assert await command(redis, "HGET", f"{PREFIX}payload", "bad") == b"\xff not a message"
    assert await in_order(redis) == ["bad"]


async def test_everything_that_matches_is_replayed_the_first_to_die_first(
    queue: RedisMessageQueue, redis: Redis
) -> None:
    await dead(queue, redis, *(f"m{n:03}" for n in range(30)))
    await dead(queue, redis, "x1", death=REFUSED)
    await dead(queue, redis, "B1", topic="other")
    assert await queue.dlq.replay_all(topic="t", error="ValueError") == 30
    assert await in_order(redis) == [f"m{n:03}" for n in range(30)]
    assert await ids_of(queue) == ["B1", "x1"]
    assert await queue.dlq.replay_all() == 2
    assert await queue.dlq.replay_all() == 0


async def test_hundreds_are_replayed_each_once(queue: RedisMessageQueue, redis: Redis) -> None:
    ids = await queue.produce_many("t", range(700))
    await bury(redis)
    await unreadable(redis, "bad", topic="u")
    assert await queue.dlq.replay_all() == 701
    assert sorted(await in_order(redis)) == sorted(ids)


async def test_hundreds_of_ids_are_replayed_in_the_given_order(
    queue: RedisMessageQueue, redis: Redis
) -> None:
    """They take several calls, of which more than one is under way."""
    ids = await queue.produce_many("t", range(700))
    await bury(redis)
    wanted = [*ids[350:], *ids[:350]]
    assert await queue.dlq.replay(*wanted) == 700
    assert await in_order(redis) == wanted


async def test_what_dies_again_meanwhile_is_not_replayed_for_ever(
    server: EmbeddedServer, redis: Redis
) -> None:
    async with RedisMessageQueue(server.url, name="q", server_check="off", retry=Retry(1)) as queue:

        @queue.handler("t")
        async def handle(payload: int) -> None:
            raise ValueError("no")

        await queue.produce_many("t", range(50))

        async def all_dead() -> bool:
            return (await queue.counts()).dead == 50

        await queue.start()
        await eventually(all_dead)
        async with asyncio.timeout(10):
            assert await queue.dlq.replay_all() == 50
        await eventually(all_dead)


async def test_a_rate_spreads_a_replay_in_time(queue: RedisMessageQueue, redis: Redis) -> None:
    await dead(queue, redis, *(f"m{n}" for n in range(5)))
    started = time.monotonic()
    assert await queue.dlq.replay_all(rate=20) == 5
    assert time.monotonic() - started >= 4 / 20


@pytest.mark.parametrize("rate", [0, -1, float("nan"), float("inf"), "5"])
async def test_a_rate_that_makes_no_sense_is_refused(
    queue: RedisMessageQueue, redis: Redis, rate: Any
) -> None:
    await dead(queue, redis, "A1")
    with pytest.raises(ConfigError, match="rate"):
        await queue.dlq.replay_all(rate=rate)
    assert await ids_of(queue) == ["A1"]


# -- deleting


async def test_letters_are_deleted_by_id_for_good(queue: RedisMessageQueue, redis: Redis) -> None:
    await dead(queue, redis, "A1", "A2")
    await unreadable(redis, "bad")
    await queue.produce("t", 1, message_id="live")
    assert await queue.dlq.delete("A1", "bad", "unknown", "live", "A2:queue") == 2
    assert await ids_of(queue) == ["A2"]
    assert (await queue.find("live")).state == "pending"
    assert (await queue.find("A1")).state == "gone"
    assert not (await queue.produce("t", 1, message_id="A1")).duplicate
    assert await queue.dlq.delete() == 0


async def test_thousands_are_deleted_by_id(queue: RedisMessageQueue, redis: Redis) -> None:
    ids = await queue.produce_many("t", range(2300))
    while await bury(redis):
        pass
    assert await queue.dlq.delete(*ids) == 2300
    assert (await queue.counts()).dead == 0


async def test_letters_are_purged_by_filter(queue: RedisMessageQueue, redis: Redis) -> None:
    await dead(queue, redis, "A1", "A2")
    await dead(queue, redis, "A3", death=REFUSED)
    await dead(queue, redis, "B1", topic="other")
    assert await queue.dlq.purge(topic="t", error="ValueError") == 2
    assert await ids_of(queue) == ["B1", "A3"]
    with pytest.raises(UnknownTopic):
        await queue.dlq.purge(topic="nothing")
    assert await queue.dlq.purge() == 2
    assert [key for key in await read_state(redis) if "dlq" in key] == []


async def test_hundreds_are_purged(queue: RedisMessageQueue, redis: Redis) -> None:
    await queue.produce_many("t", range(700))
    await queue.produce_many("other", range(300))
    await bury(redis)
    await bury(redis, topic="other")
    assert await queue.dlq.purge(topic="t") == 700
    assert (await queue.counts()).dead == 300


async def test_letters_are_trimmed_by_count_oldest_first(queue: RedisMessageQueue, redis: Redis) -> None:
    await dead(queue, redis, *(f"m{n}" for n in range(6)))
    assert await queue.dlq.trim(max_count=4) == 2
    assert await ids_of(queue) == ["m5", "m4", "m3", "m2"]
    assert await queue.dlq.trim() == 0
    assert await queue.dlq.trim(max_count=0) == 4


async def test_letters_are_trimmed_by_age(queue: RedisMessageQueue, redis: Redis) -> None:
    await dead(queue, redis, "old1", "old2")
    await queue.produce("t", 1, message_id="new")
    await bury(redis)
    assert await queue.dlq.trim(max_age=timedelta(days=90000)) == 0
    assert await queue.dlq.trim(max_age=3600) == 2
    assert await ids_of(queue) == ["new"]


async def test_thousands_are_trimmed(queue: RedisMessageQueue, redis: Redis) -> None:
    await queue.produce_many("t", range(2300))
    while await bury(redis):
        pass
    assert await queue.dlq.trim(max_count=10) == 2290


@pytest.mark.parametrize("options", [{"max_age": -1}, {"max_count": -1}, {"max_age": float("nan")}])
async def test_a_bound_that_makes_no_sense_deletes_nothing(
    queue: RedisMessageQueue, redis: Redis, options: dict[str, Any]
) -> None:
    await dead(queue, redis, "A1")
    with pytest.raises(ConfigError, match=next(iter(options))):
        await queue.dlq.trim(**options)
    assert await ids_of(queue) == ["A1"]


async def test_retention_deletes_thousands_at_once(server: EmbeddedServer, redis: Redis) -> None:
    """However many died since the last look, none beyond the bound is left."""
    async with RedisMessageQueue(server.url, name="q", server_check="off", dlq_max_count=5) as queue:

        @queue.handler("other")
        async def handle(payload: int) -> None: ...

        await queue.produce_many("t", range(2500))
        while await bury(redis):
            pass
        await queue.start()

        async def trimmed() -> bool:
            return (await queue.counts()).dead == 5

        await eventually(trimmed, within=4)  # the next look would be after five seconds


async def test_without_retention_the_dead_stay(server: EmbeddedServer, redis: Redis) -> None:
    async with RedisMessageQueue(server.url, name="q", server_check="off") as queue:

        @queue.handler("other")
        async def handle(payload: int) -> None: ...

        await dead(queue, redis, "A1")
        await queue.start()

        async def registered() -> bool:
            return bool(await queue.workers())

        await eventually(registered)
        await queue.stop()
        assert await ids_of(queue) == ["A1"]


# -- a closed queue


async def test_the_dlq_of_a_queue_that_is_not_open_says_so(server: EmbeddedServer) -> None:
    queue = RedisMessageQueue(server.url)
    with pytest.raises(ConfigError, match="not open"):
        _ = queue.dlq
