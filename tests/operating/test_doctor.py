"""``doctor()``: each finding is there when it should be, with its remedy, and not otherwise."""

from __future__ import annotations

import asyncio
import json
import time
from typing import TYPE_CHECKING, Any

import pytest

from mx_rmq import Config, RedisMessageQueue
from mx_rmq.operating.doctor import Checkup, Diagnosis, _server, not_consuming, unserved
from mx_rmq.storage.facts import Counts, Load, TopicCounts, WorkerFacts
from mx_rmq.storage.rights import Rights
from mx_rmq.storage.server_facts import ServerFacts
from tests.words import ONE_SERVER, bury, eventually

if TYPE_CHECKING:
    from redis.asyncio import Redis

WELL = {
    "valkey_version": "9.1.0",
    "redis_version": "7.2.4",
    "aof_enabled": "1",
    "maxmemory_policy": "noeviction",
    "used_memory": "1000000",
    "maxmemory": "1000000000",
    "role": "master",
    "connected_slaves": "0",
}


def judged(config: Config | None = None, **differs: Any) -> dict[str, Diagnosis]:
    """What the doctor says of a server that differs from a good one in what is given, by what it is about."""
    given: dict[str, Any] = {
        "info": WELL | differs.pop("info", {}),
        "round_trips": [0.001] * 10,
        "clock": 0.01,
        "rights": Rights("shop"),
        "fsync": "everysec",
        "loaded": 20,
    }
    return {each.what: each for each in _server(ServerFacts(**given | differs), config or Config())}


def test_a_good_server_is_ok_in_everything() -> None:
    found = judged()
    assert {each.level for each in found.values()} == {"ok"}
    assert {each.remedy for each in found.values()} == {""}
    assert found["server"].said.startswith("valkey 9.1.0; mx-rmq 2.")
    assert found["memory"].said == "976.6 kB of 953.7 MB used (0 %)"


@pytest.mark.parametrize(
    ("differs", "what", "level", "said"),
    [
        ({"info": {"valkey_version": "7.0.1"}}, "server", "problem", "needs 7.2 or later"),
        ({"info": {"aof_enabled": "0"}}, "persistence", "problem", "appendonly is off"),
        ({"info": {"aof_last_write_status": "err"}}, "persistence", "problem", "write to disk failed"),
        ({"fsync": "no"}, "persistence", "warning", "appendfsync is no"),
        ({"info": {"maxmemory_policy": "allkeys-lru"}}, "eviction", "problem", "allkeys-lru"),
        ({"info": {"maxmemory": "0"}}, "memory", "warning", "no limit"),
        ({"info": {"used_memory": "800000000"}}, "memory", "warning", "(80 %)"),
        ({"info": {"used_memory": "950000000"}}, "memory", "problem", "(95 %)"),
        ({"info": {"role": "slave"}}, "replicas", "problem", "is a replica"),
        ({"info": {"slave0": "ip=a,state=wait_bgsave,lag=0"}}, "replicas", "warning", "1 of 1 replicas"),
        ({"info": {"slave0": "ip=a,state=online,lag=60"}}, "replicas", "warning", "1 of 1 replicas"),
        ({"info": {"slave0": "ip=a,state=online,lag=1"}}, "replicas", "ok", "1 in step"),
        ({"round_trips": [0.001] * 9 + [0.6]}, "latency", "warning", "600.0 ms"),
        ({"round_trips": [0.6] * 10}, "latency", "problem", "600.0 ms"),
        ({"clock": -5.0}, "clock", "warning", "5.0 s behind"),
        ({"clock": 90.0}, "clock", "problem", "90.0 s ahead of"),
        ({"info": {"number_of_cached_scripts": "5000"}}, "scripts", "warning", "5,000 in the server's cache"),
        ({"rights": Rights("shop", {"operate": ["+scan"]})}, "rights", "warning", "lacks +scan"),
        ({"rights": Rights("shop", {"produce and work": ["+eval"]})}, "rights", "problem", "lacks +eval"),
        ({"rights": Rights("", {}, ("set",))}, "rights", "ok", "may not ask"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_each_weakness_of_a_server_is_named(
    differs: dict[str, Any], what: str, level: str, said: str
) -> None:
    found = judged(**differs)
    assert (found[what].level, said in found[what].said) == (level, True), found[what]
    assert bool(found[what].remedy) is (level != "ok")
    assert {each.what for each in found.values() if each.level != "ok"} <= {what}


def test_durability_is_judged_by_what_the_queue_asks_for() -> None:
    found = judged(Config(durability="replicated", replicas=2))
    assert found["durability"].level == "problem"
    assert "wants 2 replicas, but 0 are connected" in found["durability"].said
    assert "durability" not in judged()


def test_a_private_server_is_in_memory_on_purpose() -> None:
    found = judged(Config(url="embedded://"), info={"aof_enabled": "0", "maxmemory": "0"})
    assert {each.level for each in found.values()} == {"ok"}


def test_without_info_the_rest_is_told() -> None:
    found = {each.what: each for each in _server(ServerFacts({}, [0.001], 0.0, Rights()), Config())}
    assert found["server"].level == "warning"
    assert {"latency", "clock", "rights", "scripts"} <= found.keys()


def test_a_checkup_is_ok_unless_something_is_a_problem() -> None:
    warned = Checkup(
        "q", "redis://x", "2", [Diagnosis("a", "ok", "x"), Diagnosis("b", "warning", "y", "do z")]
    )
    assert warned.ok
    assert warned.as_dict()["diagnoses"][1] == {
        "what": "b",
        "level": "warning",
        "said": "y",
        "remedy": "do z",
    }
    assert "do z" in str(warned)
    assert not Checkup("q", "redis://x", "2", [Diagnosis("a", "problem", "x")]).ok


# -- topics and workers


def counts(**topics: TopicCounts) -> Counts:
    return Counts(topics)


def worker(**differs: Any) -> WorkerFacts:
    given: dict[str, Any] = {
        "name": "w1",
        "seen_at": 1000.0,
        "topics": ("t",),
        "concurrency": 2,
        "version": "2",
    }
    return WorkerFacts(**given | {"started_at": 10.0, "claimed_at": 100.0} | differs)


def test_a_topic_is_unserved_if_messages_wait_and_it_is_neither_served_nor_paused() -> None:
    waiting = TopicCounts(pending=1)
    found = counts(
        t=waiting,
        alone=waiting,
        later=TopicCounts(delayed=1),
        paused=TopicCounts(pending=1, paused=True),
        empty=TopicCounts(),
    )
    assert unserved(found, [worker()]) == ["alone", "later"]


@pytest.mark.parametrize(
    ("differs", "of", "blamed"),
    [
        ({}, TopicCounts(pending=1), True),
        ({"claimed_at": None}, TopicCounts(pending=1), True),
        ({"claimed_at": 990.0}, TopicCounts(pending=1), False),
        ({}, TopicCounts(), False),
        ({}, TopicCounts(pending=1, paused=True), False),
        ({"load": {"t": Load(2, 0)}}, TopicCounts(pending=1), False),
        ({"load": {"t": Load(0, 2)}}, TopicCounts(pending=1), False),
        ({"load": {"t": Load(1, 0)}, "limits": {"t": 1}}, TopicCounts(pending=1), False),
        ({"version": ""}, TopicCounts(pending=1), False),
        ({"topics": ("other",)}, TopicCounts(pending=1), False),
    ],
    ids=lambda value: str(value)[:40],
)
def test_only_a_worker_with_room_while_messages_wait_is_blamed(
    differs: dict[str, Any], of: TopicCounts, blamed: bool
) -> None:
    assert bool(not_consuming(worker(**differs), counts(t=of), 1000.0)) is blamed


def test_a_worker_is_blamed_for_what_it_says_itself() -> None:
    sick = worker(problems=("the event loop was blocked for 9 s",), claimed_at=999.0)
    assert not_consuming(sick, counts(), 1000.0) == ["the event loop was blocked for 9 s"]


# -- on real servers


async def test_the_doctor_sees_what_stands_still(queue: RedisMessageQueue, redis: Redis) -> None:
    await queue.produce("t", 1)
    await bury(redis)
    await queue.produce("t", 1)
    await queue.produce("held-up", 1)
    await queue.pause("held-up")
    seen = (time.time() - 20) * 1000
    said = {"topics": ["x"], "version": "0.1", "problems": ["the fetcher has failed for 60 s"]}
    await redis.hset("mx-rmq:{q}:workers", "w1", json.dumps(said))
    await redis.zadd("mx-rmq:{q}:workers_seen", {"w1": seen})
    checkup = await queue.doctor()
    found = [(each.what, each.level, each.said) for each in checkup.diagnoses if each.level != "ok"]
    assert ("paused", "warning", "not delivered: held-up") in found
    assert ("unserved", "problem", "no live worker serves t: 1 message waiting") in found
    assert ("dead letters", "warning", "1 message in the DLQ") in found
    assert ("workers", "warning", "silent for 20 s or longer: w1") in found
    assert ("workers", "problem") in [each[:2] for each in found]
    assert any("mx-rmq 0.1" in text for what, _, text in found if what == "workers")
    assert all(each.remedy for each in checkup.diagnoses if each.level != "ok")
    assert not checkup.ok


async def test_a_queue_that_works_is_well(redis: Redis, mq: RedisMessageQueue) -> None:
    @mq.handler("t")
    async def handle(n: int) -> None:
        await asyncio.sleep(0)

    await redis.config_set("appendonly", "yes")
    try:
        await mq.start()
        await mq.produce("t", 1)

        async def settled() -> bool:
            return bool(await mq.workers()) and (await mq.counts()).topics["t"].completed == 1

        await eventually(settled)
        checkup = await mq.doctor()
    finally:
        await redis.config_set("appendonly", "no")
    assert checkup.ok
    assert {each.what for each in checkup.diagnoses if each.level == "warning"} == {"memory"}


@ONE_SERVER
async def test_the_audit_of_a_checkup_ends_in_time_and_says_how_far_it_came(
    queue: RedisMessageQueue, redis: Redis
) -> None:
    await queue.produce_many("t", range(20_000))
    checkup = await queue.doctor(audit_for=0.01)
    (found,) = [each for each in checkup.diagnoses if each.what == "audit"]
    assert found.level == "ok"
    assert "stopped after 0.01 s" in found.said
    assert "audit" not in {each.what for each in (await queue.doctor(audit_for=0)).diagnoses}
    await redis.delete("mx-rmq:{q}:t:pending")
    checkup = await queue.doctor(audit_for=60)
    (found,) = [each for each in checkup.diagnoses if each.what == "audit"]
    assert (found.level, found.said) == ("problem", "20,000 findings in 20,000 messages: body-in-no-place")
